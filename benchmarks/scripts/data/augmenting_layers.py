"""Layers that augment, in the model.

$ cbnn export run
"""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
model = keras.Sequential(
    [
        keras.layers.Reshape((8, 8, 1)),
        keras.layers.RandomTranslation(0.1, 0.1),
        keras.layers.RandomRotation(0.05),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10, "softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
cbnn = CBNNCallback("run")  # +
# - model.fit(x, y, epochs=6)
model.fit(cbnn.weighted(x, y), epochs=6, callbacks=[cbnn])  # +
