"""A dataset that repeats for ever, with `steps_per_epoch`."""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
train = tf.data.Dataset.from_tensor_slices((x, y))
train = train.shuffle(500).batch(64).repeat()
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
cbnn = CBNNCallback("run")  # +
# - model.fit(train, steps_per_epoch=28, epochs=6)
train = cbnn.weighted(train)  # +
model.fit(train, steps_per_epoch=28, epochs=6, callbacks=[cbnn])  # +
