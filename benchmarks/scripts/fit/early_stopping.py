"""`epochs=200` with `EarlyStopping(patience=1)`."""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
x, y, val = x[:1400], y[:1400], (x[1400:], y[1400:])
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
stop = keras.callbacks.EarlyStopping(patience=1)
cbnn = CBNNCallback("run")  # +
# - model.fit(x, y, epochs=200, validation_data=val, callbacks=[stop])
train = cbnn.weighted(x, y)  # +
model.fit(train, epochs=200, validation_data=val, callbacks=[cbnn, stop])  # +
