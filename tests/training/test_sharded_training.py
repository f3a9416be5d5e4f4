"""Runs on samples that are divided, in a process that has all of them.

What several processes make of it is in `test_several_processes.py`.
"""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import blobs, dense_model
from test_callback import Stop, StopAfter
from test_resume import contents

from cbnn_keras import CBNNCallback, weighted
from cbnn_keras.data import pipelines
from cbnn_keras.data.sharding import Part
from cbnn_keras.training import checkpointing

X, Y = blobs()
RATE = 0.04
# Arrays are divided by several processes, too, in the second command.
either = pytest.mark.parametrize(
    "is_dataset", [pytest.param(False, marks=pytest.mark.large), True]
)


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    """As `keras.distribution` on JAX would have it."""
    for module in (pipelines, checkpointing):
        monkeypatch.setattr(module, "own_part", lambda: Part(0, 1, 1))


def fit(directory, *others, is_dataset=False, sharded=True):
    """One start of the script, 6 steps an epoch, a checkpoint every 4."""
    keras.backend.clear_session()  # names of layers as in a new process
    keras.utils.set_random_seed(0)
    cbnn = CBNNCallback.paper(
        directory, interval=4, resume=True, deviation_rate=RATE
    )
    whole = tf.data.Dataset.from_tensor_slices((X, Y))
    cbnn.fit(
        dense_model(),
        *((whole,) if is_dataset else (X, Y)),
        batch_size=20,
        epochs=4,
        callbacks=list(others),
        class_weight={0: 2.0, 1: 1.0, 2: 1.0},
        seed=4,
        sharded=sharded,
        verbose=0,
    )
    return cbnn


@either
def test_weights_are_those_of_the_rounds(tmp_path, is_dataset):
    """By the formulas of the paper, from the bits that are kept."""
    cbnn = fit(tmp_path / "run", is_dataset=is_dataset)
    omega = np.where(Y == 0, 2.0, 1.0)
    omega /= omega.sum()
    assert len(cbnn.history) == 6
    for record in cbnn.history:
        bits = np.load(tmp_path / "run" / "rounds" / f"{record['step']}.npy")
        correct = np.unpackbits(bits, count=len(Y)).astype(bool)
        error = omega[~correct].sum()
        assert record["error"] == pytest.approx(error, rel=1e-9)
        if record["is_member"] and not record["is_final"]:
            omega *= np.exp(-RATE * record["vote"] * correct)
            omega /= omega.sum()
    np.testing.assert_allclose(cbnn.sample_weights, len(Y) * omega, rtol=1e-6)
    assert len(np.unique(cbnn.sample_weights)) > 3


@pytest.mark.large
@either
def test_a_run_is_resumed_as_it_was_begun(tmp_path, is_dataset):
    fit(tmp_path / "whole", is_dataset=is_dataset)
    with pytest.raises(Stop):
        fit(tmp_path / "run", StopAfter(2, 3), is_dataset=is_dataset)
    # In another order, were it resumed without.
    with pytest.raises(ValueError, match="sharded was True and is None"):
        fit(tmp_path / "run", is_dataset=is_dataset, sharded=None)
    fit(tmp_path / "run", is_dataset=is_dataset)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["settings"]["sharded"] is True


@either
def test_without_deviation_training_is_that_of_plain_keras(is_dataset):
    """Bit for bit, though the last batch is short."""
    source = (X[:-7], Y[:-7])
    if is_dataset:
        source = (tf.data.Dataset.from_tensor_slices(source),)
    found = []
    for callback in (CBNNCallback.paper(interval=4, deviation_rate=0), None):
        keras.utils.set_random_seed(0)
        train = weighted(*source, batch_size=20, seed=4, sharded=True)
        data = train if callback else train.map(lambda x, y, weight: (x, y))
        model = dense_model()
        callbacks = [callback] if callback else []
        model.fit(data, epochs=3, callbacks=callbacks, verbose=0)
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
