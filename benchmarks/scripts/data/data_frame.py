"""A pandas data frame."""

import keras
from sklearn.datasets import load_iris

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
table = load_iris(as_frame=True).frame.sample(frac=1, random_state=0)
y = table.pop("target")
model = keras.Sequential(
    [
        keras.layers.Normalization(),
        keras.layers.Dense(16, "relu"),
        keras.layers.Dense(3, "softmax"),
    ]
)
model.layers[0].adapt(table.to_numpy())
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
cbnn = CBNNCallback("run")  # +
# - model.fit(table, y, epochs=12, batch_size=16)
train = cbnn.weighted(table, y, batch_size=16)  # +
model.fit(train, epochs=12, callbacks=[cbnn])  # +
