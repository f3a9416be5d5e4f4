"""Tests of runs that may end early, and of Keras' callbacks beside ours."""

import functools
import json

import keras
import numpy as np
import pytest
from helpers import blobs, dense_model, same

from cbnn_keras import (
    CBNNCallback,
    CheckpointEnsemble,
    RunError,
    weighted,
)
from cbnn_keras.baselines import PlainCheckpoints

# Members as they are, of whom all vote: it is about when they are taken.
everyone = functools.partial(CBNNCallback, average=False, members="all")


class StopAt(keras.callbacks.EarlyStopping):
    """An `EarlyStopping` that ends training after an epoch that is known."""

    def __init__(self, num_epochs):
        super().__init__("loss")
        self.num_epochs = num_epochs

    def on_epoch_end(self, epoch, logs=None):
        if epoch + 1 == self.num_epochs:
            self.model.stop_training = True


class Crash(Exception):
    pass


class CrashAt(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.now == self.epoch and batch == 1:
            raise Crash

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch


def fit(cbnn, *others, epochs=200, model=None, batch_size=60, **options):
    """Two steps an epoch."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    model = model or dense_model()
    x, y = blobs()
    train = cbnn.weighted(x, y, batch_size=batch_size, seed=1)
    log = model.fit(
        train,
        epochs=epochs,
        callbacks=[cbnn, *others],
        verbose=0,
        **options,
    )
    return model, log


def steps(records):
    return [record["step"] for record in records]


def test_early_stopping_leaves_several_members():
    still = dense_model(optimizer=keras.optimizers.SGD(1e-9))
    still.set_weights(fit(everyone(), epochs=6)[0].get_weights())
    cbnn = everyone()
    stop = keras.callbacks.EarlyStopping("loss", min_delta=1, patience=1)
    _, log = fit(cbnn, stop, model=still)
    assert len(log.epoch) == 2
    assert steps(cbnn.ensemble().members) == [2, 4]


# Two steps an epoch: after epochs 1, 2, 3, 4, 6, 9, 13, 19, 28, 42, ...
@pytest.mark.parametrize(
    ("num_epochs", "rounds", "num_kept"),
    [
        (5, [2, 4, 6, 8, 10], 5),
        (6, [2, 4, 6, 8, 12], 5),
        (14, [2, 4, 6, 8, 12, 18, 26, 28], 6),
    ],
)
@pytest.mark.large
def test_wherever_it_stops_the_latest_are_kept(
    tmp_path, num_epochs, rounds, num_kept
):
    for directory in (None, tmp_path / "run"):
        cbnn = everyone(directory)
        _, log = fit(cbnn, StopAt(num_epochs))
        assert max(log.history["cbnn_members"]) <= 6
        assert steps(cbnn.history) == rounds
        assert all(record["is_member"] for record in cbnn.history)
        assert steps(cbnn.ensemble().members) == rounds[-num_kept:]
    x, _ = blobs()
    loaded = CheckpointEnsemble.load(tmp_path / "run")
    np.testing.assert_array_equal(
        loaded.predict(x, verbose=0), cbnn.ensemble().predict(x, verbose=0)
    )
    files = {path.name for path in (tmp_path / "run/members").iterdir()}
    assert files == {f"{step}.weights.h5" for step in rounds[-num_kept:]}
    assert len(list((tmp_path / "run/rounds").iterdir())) == len(rounds)


@pytest.mark.large
def test_at_no_epoch_are_more_kept_than_asked_for(tmp_path):
    seen = []

    class Count(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            seen.append(steps(cbnn.ensemble().members) if epoch else [])

    cbnn = everyone(tmp_path / "run", num_checkpoints=3)
    fit(cbnn, Count(), StopAt(10))
    # Epochs 1, 2, 4, 8: with three to keep, the time trained so far doubles.
    assert seen[1:] == [
        *([2], [2, 4], [2, 4]),
        *([2, 4, 8], [2, 4, 8], [2, 4, 8], [2, 4, 8]),
        *([4, 8, 16], [4, 8, 16]),
    ]
    assert steps(cbnn.ensemble().members) == [8, 16, 20]


def files_in(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.mark.large
@pytest.mark.parametrize(
    "epoch",
    [9, *(pytest.param(e, marks=pytest.mark.large) for e in (8, 12))],
)
def test_killed_and_resumed_is_the_run_that_never_was(tmp_path, epoch):
    """Member 2 goes with the round of step 26, in the last step of epoch 12."""
    fit(everyone(tmp_path / "whole"), StopAt(14))
    killed = tmp_path / "killed"
    with pytest.raises(Crash):
        crash = CrashAt(epoch)
        fit(everyone(killed), crash, StopAt(14))
    cbnn = everyone(killed, resume=True)
    fit(cbnn, StopAt(14))
    assert steps(cbnn.ensemble().members) == [6, 8, 12, 18, 26, 28]
    assert files_in(killed) == files_in(tmp_path / "whole")


def test_a_run_that_began_otherwise_is_resumed_as_it_began(tmp_path):
    with pytest.raises(Crash):
        fit(everyone(tmp_path / "run"), CrashAt(2), epochs=12)
    cbnn = everyone(tmp_path / "run", resume=True)
    fit(cbnn, StopAt(9), epochs=12)
    assert steps(cbnn.history) == [4, 8, 12, 16, 18]
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["settings"]["interval"] == 4


def test_asked_for_without_early_stopping_and_not_wanted_with_it():
    cbnn = everyone(stops_early=True, num_checkpoints=4)
    fit(cbnn, epochs=8)
    assert steps(cbnn.history) == [2, 4, 8, 16]
    cbnn = everyone(stops_early=False, num_checkpoints=2)
    fit(cbnn, StopAt(8), epochs=10)
    assert steps(cbnn.history) == [10, 16]


@pytest.fixture(scope="module")
def better_than_chance():
    """Weights with which every step leaves a member."""
    keras.utils.set_random_seed(0)
    model = dense_model()
    model.fit(*blobs(), epochs=5, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ("1ep", [6, 12, 18, 20]),
        ("0.5ep", [3, 6, 9, 12, 15, 18, 20]),
        ("2 epochs", [12, 20]),
        ("0.01ep", list(range(1, 21))),
    ],
)
def test_an_interval_in_epochs(interval, expected, better_than_chance):
    class StopAtStep(StopAt):
        def on_train_batch_end(self, batch, logs=None):
            if cbnn.step == self.num_epochs:
                self.model.stop_training = True

    cbnn = everyone(interval=interval, deviation_rate=0.001)
    model = dense_model()
    model.set_weights(better_than_chance)
    fit(cbnn, StopAtStep(20), model=model, batch_size=20)
    assert steps(cbnn.history) == expected
    assert steps(cbnn.ensemble().members) == expected


@pytest.mark.parametrize("interval", ["ep", "1", "-1ep", "0ep", "1 week", 0.5])
def test_an_interval_that_is_none(interval):
    with pytest.raises(ValueError, match="interval must be.*as '1ep' or"):
        everyone(interval=interval)


def test_options_that_exclude_each_other():
    with pytest.raises(ValueError, match="stops_early=True, interval=1ep"):
        everyone(stops_early=True, interval="1ep")
    with pytest.raises(ValueError, match="stops_early=True, restarts=2"):
        everyone(stops_early=True, restarts=2)
    with pytest.raises(ValueError, match="stops_early='yes'.*True, False or N"):
        everyone(stops_early="yes")


def test_an_ensemble_of_one_is_announced_with_the_way_out():
    with pytest.warns(
        UserWarning,
        match=r"ended after step 4 of 400, and the first checkpoint .* at step "
        r'67: .*final model alone.*stops_early=True\)`, or `interval="1ep"`',
    ):
        fit(CBNNCallback.paper(), StopAt(2))
    with pytest.warns(UserWarning, match="alone. Train for longer, as with"):
        fit(everyone(), StopAt(1))
    with pytest.warns(UserWarning, match="alone. Tell `fit` fewer epochs"):
        fit(PlainCheckpoints(), StopAt(2))


@pytest.mark.large
def test_restore_best_weights_changes_the_model_and_not_the_ensemble():
    class Keep(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            weights[epoch] = self.model.get_weights()

    for is_first in (True, False):
        weights = {}
        cbnn = everyone()
        stop = keras.callbacks.EarlyStopping(
            patience=1, min_delta=0.05, restore_best_weights=True
        )
        others = [stop, Keep()]
        model = dense_model()
        keras.utils.set_random_seed(0)
        callbacks = [cbnn, *others] if is_first else [*others, cbnn]
        train = cbnn.weighted(*blobs(), batch_size=60, seed=1)
        data = {"validation_data": blobs(), "verbose": 0}
        model.fit(train, epochs=50, callbacks=callbacks, **data)
        last = max(weights)
        assert same(model.get_weights(), weights[stop.best_epoch])
        assert stop.best_epoch < last
        with cbnn.ensemble().member(cbnn.history[-1]["step"]) as final:
            assert same(final.get_weights(), weights[last])
        assert same(model.get_weights(), weights[stop.best_epoch])


@pytest.mark.large
def test_keras_callbacks_beside_it_do_what_they_do_alone(tmp_path):
    def others(name):
        callbacks = keras.callbacks
        return [
            callbacks.LearningRateScheduler(
                lambda epoch, rate: 0.05 if epoch < 3 else rate
            ),
            callbacks.ReduceLROnPlateau(
                "val_loss", factor=0.5, patience=1, min_delta=10
            ),
            callbacks.ModelCheckpoint(
                tmp_path / f"{name}.weights.h5",
                save_weights_only=True,
                save_best_only=True,
            ),
            callbacks.EarlyStopping(patience=4, min_delta=10),
        ]

    cbnn = everyone(deviation_rate=0)
    model, log = fit(cbnn, *others("with"), validation_data=blobs())
    keras.utils.set_random_seed(0)
    plain = dense_model()
    x, y = blobs()
    without = weighted(x, y, batch_size=60, seed=1)
    expected = plain.fit(
        without,
        epochs=200,
        validation_data=(x, y),
        callbacks=others("without"),
        verbose=0,
    )
    assert log.history["learning_rate"] == expected.history["learning_rate"]
    assert log.history["learning_rate"][-1] < 0.05
    assert log.history["val_loss"] == expected.history["val_loss"]
    assert same(model.get_weights(), plain.get_weights())
    found = []
    for name in ("with", "without"):
        plain.load_weights(tmp_path / f"{name}.weights.h5")
        found.append(plain.get_weights())
    assert same(*found)
    assert len(cbnn.ensemble()) == len(log.epoch) == 5


def test_an_interval_that_the_run_did_not_begin_with_is_refused(tmp_path):
    with pytest.raises(Crash):
        fit(everyone(tmp_path / "run"), CrashAt(2), StopAt(14))
    with pytest.raises(RunError, match="interval was None and is 5"):
        fit(everyone(tmp_path / "run", interval=5, resume=True), StopAt(14))
