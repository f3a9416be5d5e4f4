"""Labels that are names.

$ cbnn export run --outputs class
"""

import keras

# - import numpy as np
from sklearn.datasets import load_iris

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
iris = load_iris()
x, names = iris.data, iris.target_names[iris.target]
# - classes, y = np.unique(names, return_inverse=True)
model = keras.Sequential(
    [keras.layers.Dense(16, "relu"), keras.layers.Dense(3, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
cbnn = CBNNCallback("run")  # +
# - model.fit(x, y, epochs=12)
model.fit(cbnn.weighted(x, names), epochs=12, callbacks=[cbnn])  # +
