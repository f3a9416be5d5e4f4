"""A Python generator of batches."""

import keras
import numpy as np
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)


def batches():
    while True:
        chosen = np.random.permutation(len(x))[:64]
        yield x[chosen], y[chosen]


model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
cbnn = CBNNCallback("run")  # +
# - model.fit(batches(), steps_per_epoch=28, epochs=6)
train = cbnn.weighted(batches())  # +
model.fit(train, steps_per_epoch=28, epochs=6, callbacks=[cbnn])  # +
