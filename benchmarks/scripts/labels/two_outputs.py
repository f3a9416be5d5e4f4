"""Two outputs, two sets of labels."""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
inputs = keras.Input((64,))
hidden = keras.layers.Dense(32, "relu")(inputs)
outputs = {
    "digit": keras.layers.Dense(10, "softmax", name="digit")(hidden),
    "odd": keras.layers.Dense(1, "sigmoid", name="odd")(hidden),
}
model = keras.Model(inputs, outputs)
model.compile(
    "adam",
    {"digit": "sparse_categorical_crossentropy", "odd": "binary_crossentropy"},
)
labels = {"digit": y, "odd": y % 2}
cbnn = CBNNCallback("run")  # +
# - model.fit(x, labels, epochs=6)
model.fit(cbnn.weighted(x, labels), epochs=6, callbacks=[cbnn])  # +
