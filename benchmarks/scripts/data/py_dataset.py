"""A `keras.utils.PyDataset`."""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)


class Digits(keras.utils.PyDataset):
    x, y = load_digits(return_X_y=True)

    def __len__(self):
        return len(self.x) // 64

    def __getitem__(self, index):
        part = slice(64 * index, 64 * (index + 1))
        return self.x[part] / 16, self.y[part]


model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
cbnn = CBNNCallback("run")  # +
# - model.fit(Digits(), epochs=6)
model.fit(cbnn.weighted(Digits()), epochs=6, callbacks=[cbnn])  # +
