"""One training in several processes, on Keras' JAX backend.

    python -m cbnn_keras.launch --processes 2 examples/several_hosts/train.py

Handwritten digits of scikit-learn, a small network. Every process runs this
very script; the first one has the directory of the run. If one dies, all of
them are started again and resume the run.
"""

import sys

from cbnn_keras.launch import join

join()  # before any model is made

import keras  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

from cbnn_keras import CBNNCallback  # noqa: E402

directory = sys.argv[1] if len(sys.argv) > 1 else "runs/several_hosts"
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 12
images, labels = load_digits(return_X_y=True)
images = images.astype("float32") / 16

keras.utils.set_random_seed(0)  # the same first weights everywhere
model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy")
cbnn = CBNNCallback(directory, resume=True)
train = cbnn.weighted(images[300:], labels[300:], batch_size=64, seed=0)
model.fit(train, epochs=epochs, callbacks=[cbnn], verbose=0)
print(cbnn.ensemble(), flush=True)
