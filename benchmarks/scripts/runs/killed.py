"""Killed at epoch 4, started again, with `resume=True`.

$ cbnn export run
"""

import os
import pathlib

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])


class PowerCut(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 3 and not pathlib.Path("was_here").exists():
            pathlib.Path("was_here").touch()
            os.kill(os.getpid(), 9)


cbnn = CBNNCallback("run", resume=True)  # +
# - model.fit(x, y, epochs=6, callbacks=[PowerCut()])
train = cbnn.weighted(x, y)  # +
model.fit(train, epochs=6, callbacks=[cbnn, PowerCut()])  # +
