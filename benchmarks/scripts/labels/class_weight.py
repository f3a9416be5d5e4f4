"""`class_weight` given to `weighted`."""

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
cbnn = CBNNCallback("run")  # +
# - model.fit(x, y, epochs=6, class_weight=rare)
train = cbnn.weighted(x, y, class_weight=rare)  # +
model.fit(train, epochs=6, callbacks=[cbnn])  # +
