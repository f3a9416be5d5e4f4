"""Runs of so many samples that weights are patterns and orders a formula.

How many that are is lowered here: to have them in fact takes too long.
"""

import keras
import numpy as np
import pytest
from helpers import blobs, dense_model
from test_callback import Stop, StopAfter
from test_resume import contents

from cbnn_keras import CBNNCallback, CheckpointEnsemble, patterns
from cbnn_keras.data import order
from cbnn_keras.patterns import PatternBooster
from cbnn_keras.support.processes import Alone
from cbnn_keras.training.shared_boosting import SharedBoosting

X, Y = blobs()


@pytest.fixture
def patterned(monkeypatch):
    """Samples are many, as far as their weights are concerned."""
    monkeypatch.setattr(patterns, "LARGE", 100)


@pytest.fixture
def reordered(monkeypatch):
    """And as far as their order is."""
    monkeypatch.setattr(order, "LARGE", 100)


def fit(directory=None, *others, epochs=4, **options):
    """One start of the script, 6 steps an epoch, a checkpoint every 4."""
    keras.backend.clear_session()  # names of layers as in a new process
    keras.utils.set_random_seed(0)
    options.setdefault("deviation_rate", 0.04)
    cbnn = CBNNCallback.paper(
        directory, interval=4, resume=bool(directory), **options
    )
    # Two first weights: groups.
    train = cbnn.weighted(
        X, Y, batch_size=20, seed=4, class_weight={0: 2.0, 1: 1.0, 2: 1.0}
    )
    model = dense_model()
    model.fit(train, epochs=epochs, callbacks=[cbnn, *others], verbose=0)
    return cbnn


def assert_close(cbnn, reference):
    assert len(cbnn.history) == len(reference.history) == 6
    for found, expected in zip(cbnn.history, reference.history, strict=True):
        assert found == pytest.approx(expected, rel=1e-9)
    found, expected = cbnn.sample_weights, reference.sample_weights
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert len(np.unique(expected)) > 6  # not the two that it began with


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """As every run was: a float64 per sample."""
    directory = tmp_path_factory.mktemp("dense") / "run"
    return directory, fit(directory)


def test_training_by_patterns_is_training(dense, patterned):
    _, reference = dense
    cbnn = fit()
    assert_close(cbnn, reference)
    booster = cbnn.ensemble().run.replay()
    assert isinstance(booster, PatternBooster)
    np.testing.assert_array_equal(
        cbnn.sample_weights, (len(Y) * booster.distribution).astype("f4")
    )


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_round_makes_no_number_per_sample(
    num_processes, patterned, monkeypatch
):
    agreed = []

    class Others(Alone):
        count = num_processes

        def agree(self, content, what):
            agreed.append(len(content))

    monkeypatch.setattr(
        SharedBoosting,
        "_processes",
        property(lambda _: Others(), lambda *_: None),
        raising=False,
    )
    monkeypatch.setattr(PatternBooster, "distribution", None)
    cbnn = fit()
    assert len(cbnn.history) == 6
    assert len(agreed) == (6 if num_processes > 1 else 0)
    assert all(0 < size // 8 < len(Y) / 2 for size in agreed)


@pytest.mark.large
def test_what_was_begun_without_patterns_is_resumed_with_them(
    dense, tmp_path, monkeypatch
):
    directory, reference = dense
    with pytest.raises(Stop):
        fit(tmp_path / "run", StopAfter(2, 3))
    monkeypatch.setattr(patterns, "LARGE", 100)
    cbnn = fit(tmp_path / "run")
    assert_close(cbnn, reference)
    # Rounds are recomputed when a run is loaded, and found to be true.
    loaded = CheckpointEnsemble.load(directory)
    np.testing.assert_array_equal(
        loaded.votes, [record["vote"] for record in reference.history]
    )


@pytest.mark.large
def test_a_resumed_run_equals_an_uninterrupted_one(
    patterned, reordered, tmp_path
):
    reference = fit(tmp_path / "whole")
    with pytest.raises(Stop):
        fit(tmp_path / "run", StopAfter(2, 3))
    resumed = fit(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    assert resumed.history == reference.history
    np.testing.assert_array_equal(
        resumed.sample_weights, reference.sample_weights
    )


def test_without_deviation_every_weight_stays(patterned):
    cbnn = fit(deviation_rate=0, epochs=2)
    first = np.where(Y == 0, 1.5, 0.75).astype("f4")  # 2 and 1, mean 1
    np.testing.assert_array_equal(cbnn.sample_weights, first)
