"""A dataset with a random `map` in it."""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

x, y = load_digits(return_X_y=True)


def noisy(x, y):
    return x + tf.random.normal(x.shape, dtype=x.dtype), y


train = tf.data.Dataset.from_tensor_slices((x, y)).map(noisy).batch(64)
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
cbnn = CBNNCallback("run")  # +
# - model.fit(train, epochs=6)
model.fit(cbnn.weighted(train), epochs=6, callbacks=[cbnn])  # +
