"""`sample_weight` left where it was, in `fit`."""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
doubted = 1 - 0.5 * (y == 8)
cbnn = CBNNCallback("run")  # +
# - model.fit(x, y, epochs=6, sample_weight=doubted)
train = cbnn.weighted(x, y)  # +
model.fit(train, epochs=6, sample_weight=doubted, callbacks=[cbnn])  # +
