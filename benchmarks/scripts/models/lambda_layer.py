"""A `Lambda` layer of a function; other processes `--import` it.

$ cbnn export run --import lambda_layer
"""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +


def scaled(pixels):
    return pixels / 16


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    x, y = load_digits(return_X_y=True)
    model = keras.Sequential(
        [
            keras.layers.Lambda(scaled),
            keras.layers.Dense(32, "relu"),
            keras.layers.Dense(10, "softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    cbnn = CBNNCallback("run")  # +
    # - model.fit(x, y, epochs=6)
    model.fit(cbnn.weighted(x, y), epochs=6, callbacks=[cbnn])  # +
