"""A dataset `from_generator`, of unknown length."""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
train = tf.data.Dataset.from_generator(
    lambda: zip(x, y, strict=True),
    output_signature=(tf.TensorSpec((64,)), tf.TensorSpec((), tf.int32)),
).batch(64)
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
cbnn = CBNNCallback("run")  # +
# - model.fit(train, epochs=6)
model.fit(cbnn.weighted(train), epochs=6, callbacks=[cbnn])  # +
