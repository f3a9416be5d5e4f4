"""`EarlyStopping(restore_best_weights=True)` by accuracy.

$ cbnn export run
"""

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
stop = keras.callbacks.EarlyStopping(
    "val_accuracy", patience=3, restore_best_weights=True
)
cbnn = CBNNCallback("run")  # +
# - model.fit(x, y, epochs=100, validation_data=val, callbacks=[stop])
train = cbnn.weighted(x, y)  # +
model.fit(train, epochs=100, validation_data=val, callbacks=[cbnn, stop])  # +
