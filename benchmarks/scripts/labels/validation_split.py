"""`validation_split` given to `weighted`."""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
cbnn = CBNNCallback("run")  # +
# - model.fit(x, y, epochs=6, validation_split=0.2)
train = cbnn.weighted(x, y, validation_split=0.2)  # +
val = train.validation_data  # +
model.fit(train, epochs=6, validation_data=val, callbacks=[cbnn])  # +
