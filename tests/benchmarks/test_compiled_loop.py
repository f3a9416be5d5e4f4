"""The loop behind `benchmarks/accuracy.py` does what the callback does."""

import functools

import keras
import numpy as np
import pytest
import scipy.stats
from accuracy_tasks import Data
from accuracy_training import Course, train
from compiled_loop import CompiledLoop
from helpers import blobs

from cbnn_keras import CBNNCallback, boosting, schedules
from cbnn_keras.auto_restarts import AutoRestarts
from cbnn_keras.boosting_policies import Boosting, EqualVotes
from cbnn_keras.models.fresh import fresh_weights

pytestmark = pytest.mark.large
SEED, EPOCHS, BATCH = 3, 6, 15
X, Y = blobs(60)
TOTAL = EPOCHS * len(X) // BATCH


def model():
    return keras.Sequential(
        [
            keras.Input(X.shape[1:]),
            keras.layers.Dense(8, "relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3),
        ]
    )


def by_callback(cbnn, rate, labels=Y):
    """What `fit` leaves, from the weights that the loop begins with."""
    net = model()
    net.set_weights(fresh_weights(net, X[:1], SEED))
    net.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    train = cbnn.weighted(X, labels, batch_size=BATCH, seed=SEED)
    callbacks = [cbnn] if rate is None else [ByStep(rate), cbnn]
    net.fit(train, epochs=EPOCHS, callbacks=callbacks, verbose=0)
    return cbnn


class ByStep(keras.callbacks.Callback):
    """Sets the learning rate of every step, as a loop of the user's would."""

    def __init__(self, rate):
        super().__init__()
        self.rate, self.step = rate, 0

    def on_train_batch_begin(self, batch, logs=None):
        self.step += 1
        self.model.optimizer.learning_rate = self.rate(self.step)


CASES = {
    "paper": (
        lambda: CBNNCallback.paper(num_checkpoints=3, deviation_rate=0.05),
        Course([8, 16, 24], lambda step: 0.05, Boosting(0.05)),
        lambda step: 0.05,
    ),
    "averaged": (
        lambda: CBNNCallback(
            num_checkpoints=3, members="all", average=0.25, largest_ratio=1.1
        ),
        Course(
            [8, 16, 24],
            functools.partial(
                schedules.annealed_rate, ends=[TOTAL], highest=0.05
            ),
            Boosting(boosting.rate_of_ratio(1.1, 3, 0.05, 3)),
            horizon=6,
        ),
        functools.partial(schedules.annealed_rate, ends=[TOTAL], highest=0.05),
    ),
    "restarts": (
        lambda: CBNNCallback(
            restarts=2, keep=0.3, average=0.5, largest_ratio=1.1
        ),
        Course(
            [12, 24],
            functools.partial(
                schedules.annealed_rate, ends=[12, 24], highest=0.05
            ),
            Boosting(boosting.rate_of_ratio(1.1, 2, 0.05, 3)),
            horizon=6,
            keep=0.3,
        ),
        None,  # set by the callback
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_loop_is_the_callback(case):
    make, course, rate = CASES[case]
    compare(by_callback(make(), rate), course, Y)


@pytest.mark.parametrize(
    ("num_of_last", "horizon"),
    [(5, 4), (20, 2)],  # 15 % of 24 steps, and 10 % of a short run
)
def test_the_loop_is_the_callback_without_lag(num_of_last, horizon):
    is_left = np.cumsum(Y == 2) <= num_of_last
    labels = np.where((Y == 2) & ~is_left, 0, Y)
    assert np.bincount(labels).tolist() == [40 - num_of_last, 20, num_of_last]
    cbnn = by_callback(CBNNCallback(num_checkpoints=3), None, labels)
    course = Course(
        [8, 16, 24],
        lambda step: 0.05,
        Boosting(0.0),
        horizon=horizon,
        is_lag_free=True,
    )
    compare(cbnn, course, labels, labels)


@pytest.mark.filterwarnings("ignore:.*no better than chance")
def test_the_loop_starts_anew_by_held_out_data_as_the_callback_does():
    """Labels are what the model says after 8 steps: 16 are no better."""

    def trained(labels):
        cbnn = CBNNCallback(
            restarts="auto", validation_data=(X, labels), average=0.5
        )
        return by_callback(cbnn, None)

    with trained(Y).ensemble("all").member(8) as net:
        labels = keras.ops.convert_to_numpy(net(X)).argmax(axis=1)
    cbnn = trained(labels)
    assert cbnn.run.auto_cycles.starts == [16]
    rule = AutoRestarts(
        TOTAL,
        shortest=2 * TOTAL // EPOCHS,
        chance=scipy.stats.entropy(np.bincount(labels)),
    )
    course = Course(
        rule.steps, lambda step: 0.05, Boosting(0.0), horizon=12, rule=rule
    )
    compare(cbnn, course, labels)


def compare(cbnn, course, held_out, labels=Y):
    """The loop makes what the callback has made."""
    data = Data((X, labels), (X, held_out), (X, labels), 3)
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    loop = CompiledLoop(model(), optimizer, X, labels, BATCH)
    found = train(loop, data, course, SEED)
    assert [c.step for c in found] == [r["step"] for r in cbnn.history]
    found = [c for c in found if c.vote]
    ensemble = cbnn.ensemble("all")
    assert [c.step for c in found] == [m["step"] for m in ensemble.members]
    np.testing.assert_allclose(
        [c.vote for c in found], ensemble.votes, rtol=1e-6
    )
    for ours, theirs in zip(
        found, ensemble.member_probabilities(X, verbose=0), strict=True
    ):
        # XLA rounds otherwise, and steps multiply that.
        np.testing.assert_allclose(ours.member.test, theirs, atol=2e-4)
    errors = cbnn.run.training_errors(c.step for c in found)
    np.testing.assert_allclose([c.member.train_error for c in found], errors)


def test_other_samples_and_no_vote_leave_no_trace():
    """A loop that has run is as good as a new one, and eta = 0 as no vote."""
    x, y = blobs(60, seed=5)
    data = Data((x, y), (x, y), (x, y), 3)
    found = []
    for first, policy, horizon in (
        ((x, y), EqualVotes(), None),
        ((X, Y), Boosting(0.0), 6),
    ):
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        loop = CompiledLoop(model(), optimizer, *first, BATCH)
        course = Course([12, TOTAL], lambda step: 0.05, policy, horizon)
        if first[0] is X:
            train(loop, data, course, SEED)
            loop.load(x, y)
        found.append(train(loop, data, course, SEED)[-1].raw)
    np.testing.assert_array_equal(found[0].test, found[1].test)
    assert found[0].train_error == found[1].train_error
