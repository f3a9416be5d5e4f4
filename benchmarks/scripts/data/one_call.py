"""Arrays, `class_weight` and `validation_split`, by `cbnn.fit`."""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
rare = {digit: 1.0 + (digit == 8) for digit in range(10)}
options = {"batch_size": 16, "class_weight": rare, "validation_split": 0.2}
cbnn = CBNNCallback("run")  # +
# - model.fit(x, y, epochs=6, **options)
cbnn.fit(model, x, y, epochs=6, **options)  # +
