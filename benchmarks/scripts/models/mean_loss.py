"""A loss function that gives the mean of a batch."""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)


def my_loss(y_true, y_pred):
    losses = keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
    return keras.ops.mean(losses)


model.compile("adam", my_loss, metrics=["accuracy"])
cbnn = CBNNCallback("run")  # +
# - model.fit(x, y, epochs=6)
model.fit(cbnn.weighted(x, y), epochs=6, callbacks=[cbnn])  # +
