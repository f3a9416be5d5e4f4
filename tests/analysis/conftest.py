"""Runs that many tests look at; none of them changes one."""

import types

import keras
import numpy as np
import pytest
from helpers import blobs, trained

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.analysis import suspects


@pytest.fixture(scope="session")
def blobs_run(tmp_path_factory):
    """The directory of a run of three members on `blobs`."""
    keras.utils.set_random_seed(0)
    path = tmp_path_factory.mktemp("runs") / "blobs"
    trained(path, num_checkpoints=3)
    return path


@pytest.fixture(scope="session")
def softmax_run(tmp_path_factory):
    """Six members, their training data, and what `suspects` finds in them."""
    keras.utils.set_random_seed(0)
    path = tmp_path_factory.mktemp("runs") / "softmax"
    callback, _, x, y = trained(path, epochs=2)
    ensemble = CheckpointEnsemble.load(path)
    found = suspects(ensemble, x, y, verbose=0)
    return types.SimpleNamespace(
        path=path, callback=callback, ensemble=ensemble, x=x, y=y, found=found
    )


@pytest.fixture(scope="session")
def binary_run():
    """One sigmoid output, and every seventh label is wrong."""
    keras.utils.set_random_seed(0)
    x, y = blobs(num_samples=60, num_classes=2, seed=3)
    y[::7] = 1 - y[::7]
    # Not worse than chance at first, as chance would have it.
    last = keras.layers.Dense(1, "sigmoid", kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((4,)), last])
    model.compile(keras.optimizers.Adam(0.05), loss="binary_crossentropy")
    callback, *_ = trained(data=(x, y), model=model)
    ensemble = callback.ensemble()
    found = suspects(ensemble, x, y, verbose=0)
    return types.SimpleNamespace(ensemble=ensemble, x=x, y=y, found=found)


@pytest.fixture(params=["softmax_run", "binary_run"])
def either_run(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def digits():
    """scikit-learn's images between 0 and 1, and a small compiled model."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)

    def model():
        made = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(32, activation="relu"),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        made.compile(
            keras.optimizers.Adam(0.003), "sparse_categorical_crossentropy"
        )
        return made

    return (x / 16).astype(np.float32), y, model
