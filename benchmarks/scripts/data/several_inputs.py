"""A functional model with two named inputs.

$ cbnn export run
"""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
inputs = {
    "top": keras.Input((32,), name="top"),
    "bottom": keras.Input((32,), name="bottom"),
}
both = keras.layers.Concatenate()(
    [keras.layers.Dense(16, "relu")(part) for part in inputs.values()]
)
model = keras.Model(inputs, keras.layers.Dense(10, "softmax")(both))
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
halves = {"top": x[:, :32], "bottom": x[:, 32:]}
cbnn = CBNNCallback("run")  # +
# - model.fit(halves, y, epochs=6)
model.fit(cbnn.weighted(halves, y), epochs=6, callbacks=[cbnn])  # +
