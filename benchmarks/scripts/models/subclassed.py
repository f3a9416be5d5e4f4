"""A subclassed model, exported by the script."""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +
from cbnn_keras.export import export_saved_model  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)


class Classifier(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(32, "relu")
        self.last = keras.layers.Dense(10, "softmax")

    def call(self, inputs):
        return self.last(self.hidden(inputs))


model = Classifier()
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
cbnn = CBNNCallback("run")  # +
# - model.fit(x, y, epochs=6)
model.fit(cbnn.weighted(x, y), epochs=6, callbacks=[cbnn])  # +
export_saved_model(cbnn.ensemble(), "serving")  # +
