"""A callback of one's own that stops `fit`."""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])


class GoodEnough(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if logs["accuracy"] > 0.7:
            self.model.stop_training = True


cbnn = CBNNCallback("run")  # +
# - model.fit(x, y, epochs=200, callbacks=[GoodEnough()])
train = cbnn.weighted(x, y)  # +
model.fit(train, epochs=200, callbacks=[cbnn, GoodEnough()])  # +
