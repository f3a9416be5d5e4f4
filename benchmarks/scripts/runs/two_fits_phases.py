"""Two fits with `phases=2`: one run of both."""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
base = keras.Sequential([keras.layers.Dense(32, "relu", name="base")])
base.trainable = False
model = keras.Sequential([base, keras.layers.Dense(10, "softmax")])
model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
cbnn = CBNNCallback("run", phases=2)  # +
# - model.fit(x, y, epochs=4)
train = cbnn.weighted(x, y)  # +
model.fit(train, epochs=4, callbacks=[cbnn])  # +
base.trainable = True
model.compile(keras.optimizers.Adam(1e-4), "sparse_categorical_crossentropy")
# - model.fit(x, y, epochs=4)
model.fit(train, epochs=4, callbacks=[cbnn])  # +
