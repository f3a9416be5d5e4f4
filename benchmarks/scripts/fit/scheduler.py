"""`LearningRateScheduler`, and a `BackupAndRestore`."""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(32, "relu"),
        keras.layers.Dense(10, "softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
others = [
    keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 * 0.8**epoch),
    keras.callbacks.BackupAndRestore("backup"),
]
cbnn = CBNNCallback("run")  # +
# - model.fit(x, y, epochs=8, callbacks=others)
train = cbnn.weighted(x, y)  # +
model.fit(train, epochs=8, callbacks=[cbnn, *others])  # +
