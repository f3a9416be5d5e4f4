"""`evaluate` and `select` by the compiled metrics."""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
x, y, val = x[:1400], y[:1400], (x[1400:], y[1400:])
model = keras.Sequential(
    [keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)
top_2 = keras.metrics.SparseTopKCategoricalAccuracy(2, name="top_2")
model.compile("adam", "sparse_categorical_crossentropy", metrics=[top_2])
cbnn = CBNNCallback("run")  # +
# - model.fit(x, y, epochs=6)
model.fit(cbnn.weighted(x, y), epochs=6, callbacks=[cbnn])  # +
# - print(model.evaluate(*val, return_dict=True)["top_2"])
ensemble = cbnn.ensemble("all")  # +
ensemble = ensemble.select(validation_data=val, by="top_2")  # +
print(ensemble.evaluate(*val)["top_2"])  # +
