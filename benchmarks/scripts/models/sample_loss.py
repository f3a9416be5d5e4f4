"""A loss function that gives one value a sample."""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)


def focal(y_true, y_pred):
    y_true = keras.ops.cast(keras.ops.reshape(y_true, (-1, 1)), "int32")
    right = keras.ops.take_along_axis(y_pred, y_true, axis=-1)
    return -((1 - right) ** 2 * keras.ops.log(right + 1e-7))[:, 0]


model.compile("adam", focal, metrics=["accuracy"])
cbnn = CBNNCallback("run")  # +
# - model.fit(x, y, epochs=6)
model.fit(cbnn.weighted(x, y), epochs=6, callbacks=[cbnn])  # +
