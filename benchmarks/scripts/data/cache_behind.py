"""A `cache` behind `weighted`, which would freeze the weights."""

import keras

# - import tensorflow as tf
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
cbnn = CBNNCallback("run")  # +
# - train = tf.data.Dataset.from_tensor_slices((x, y)).batch(32).cache()
# - model.fit(train, epochs=6)
train = cbnn.weighted(x, y).cache()  # +
model.fit(train, epochs=6, callbacks=[cbnn])  # +
