"""Random changes as `augment=`, in place of a random `map`."""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)


# - def noisy(x, y):
# -     return x + tf.random.normal(x.shape, dtype=x.dtype), y
def noisy(x, seed):  # +
    noise = tf.random.stateless_normal(x.shape, seed, dtype=x.dtype)  # +
    return x + noise  # +


# - train = tf.data.Dataset.from_tensor_slices((x, y)).map(noisy).batch(64)
train = tf.data.Dataset.from_tensor_slices((x, y)).batch(64)  # +
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
cbnn = CBNNCallback("run")  # +
# - model.fit(train, epochs=6)
train = cbnn.weighted(train, augment=noisy)  # +
model.fit(train, epochs=6, callbacks=[cbnn])  # +
