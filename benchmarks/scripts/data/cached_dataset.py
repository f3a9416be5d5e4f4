"""A dataset with `map` and `cache`, then shuffled."""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
train = (
    tf.data.Dataset.from_tensor_slices((x, y))
    .map(lambda x, y: (x / 16, y), num_parallel_calls=tf.data.AUTOTUNE)
    .cache()
    .shuffle(2000)
    .batch(32)
    .prefetch(tf.data.AUTOTUNE)
)
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
cbnn = CBNNCallback("run")  # +
# - model.fit(train, epochs=6)
model.fit(cbnn.weighted(train), epochs=6, callbacks=[cbnn])  # +
