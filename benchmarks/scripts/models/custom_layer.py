"""A layer of one's own, not registered; other processes `--import` it.

$ cbnn export run --import custom_layer
$ cbnn verify exports/run/1 --run run --import custom_layer
"""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +


class Scale(keras.layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=shape[-1:], initializer="ones")

    def call(self, inputs):
        return inputs * self.factor


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    x, y = load_digits(return_X_y=True)
    model = keras.Sequential([Scale(), keras.layers.Dense(10, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    cbnn = CBNNCallback("run")  # +
    # - model.fit(x, y, epochs=6)
    model.fit(cbnn.weighted(x, y), epochs=6, callbacks=[cbnn])  # +
