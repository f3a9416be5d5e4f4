"""Labels True and False, one sigmoid output."""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
y = y == 8
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(1, "sigmoid")]
)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
cbnn = CBNNCallback("run")  # +
# - model.fit(x, y, epochs=6)
model.fit(cbnn.weighted(x, y), epochs=6, callbacks=[cbnn])  # +
