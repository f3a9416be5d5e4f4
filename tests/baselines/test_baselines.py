"""The other methods inside real `fit` calls."""

import gc
import math

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from helpers import Undescribed, blobs, dense_model

from cbnn_keras import CheckpointEnsemble, weighted
from cbnn_keras.baselines import (
    FastGeometricEnsemble,
    HorizontalVoting,
    PlainCheckpoints,
    SnapshotBoosting,
    SnapshotEnsemble,
    StochasticWeightAveraging,
    parallel_ensemble,
)
from cbnn_keras.boosting_policies import BoostingFromFirst, EqualVotes
from cbnn_keras.commands.inspect import inspect_run
from cbnn_keras.data.indexed import ArraySamples
from cbnn_keras.export import export_onnx

METHODS = {
    "no-cycle": PlainCheckpoints,
    "horizontal-voting": HorizontalVoting,
    "sse": SnapshotEnsemble,
    "fge": FastGeometricEnsemble,
    "ssb-reconstruction": SnapshotBoosting,
    "swa": StochasticWeightAveraging,
}
NUM_SAMPLES = 120


@pytest.fixture
def collected():
    """TensorFlow waits for up to a minute when it ends an old iterator."""
    yield
    gc.collect()


class Rates(keras.callbacks.Callback):
    """Notes the learning rate that each step was made with."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))


class Scripted(keras.callbacks.Callback):
    """Puts values of our own into the logs, for callbacks after it."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def on_epoch_end(self, epoch, logs=None):
        logs["val_loss"] = self.values[epoch]


class Interrupted(Exception):
    pass


class Interrupt(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        self.step -= 1
        if not self.step:
            raise Interrupted


def sgd_model(**compile):
    rate = compile.pop("rate", 0.1)
    return dense_model(
        optimizer=keras.optimizers.SGD(rate, momentum=0.9), **compile
    )


def batch_norm_model():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        "sparse_categorical_crossentropy",
    )
    return model


def fit(
    callback,
    *,
    model=None,
    epochs=6,
    batch_size=20,
    before=(),
    after=(),
    validation_data=None,
):
    """Trains on `blobs`: six steps an epoch unless told otherwise."""
    x, y = blobs(NUM_SAMPLES)
    model = model or sgd_model()
    train = callback.weighted(x, y, batch_size=batch_size, seed=1)
    model.fit(
        train,
        epochs=epochs,
        callbacks=[*before, callback, *after],
        validation_data=validation_data,
        verbose=0,
    )
    return model


def recorded_rates(callback, **options):
    rates = Rates()
    fit(callback, after=[rates], **options)
    return rates.rates


def steps(callback):
    return [record["step"] for record in callback.history]


# Snapshot Ensemble


@pytest.mark.parametrize(
    ("epochs", "num_checkpoints", "expected"),
    [
        (5, 4, [8, 16, 24, 30]),  # 30 steps, ceil(30 / 4) = 8
        (2, 5, [3, 6, 9, 12]),  # ceil(12 / 5) = 3: four cycles do
        *(
            pytest.param(*case, marks=pytest.mark.large)
            for case in [
                (6, 3, [12, 24, 36]),
                (6, 6, [6, 12, 18, 24, 30, 36]),  # a cycle is an epoch
                (1, 1, [6]),
            ]
        ),
    ],
)
def test_snapshot_rates_and_steps(epochs, num_checkpoints, expected):
    callback = SnapshotEnsemble(
        num_checkpoints=num_checkpoints, highest_rate=0.3
    )
    rates = recorded_rates(callback, epochs=epochs)
    cycle = math.ceil(6 * epochs / num_checkpoints)
    # The formula of the paper, with a loop for the remainder.
    position, formula = 0, []
    for _ in range(6 * epochs):
        angle = math.pi * position / cycle
        formula.append(0.3 / 2 * (math.cos(angle) + 1))
        position = 0 if position + 1 == cycle else position + 1
    np.testing.assert_allclose(rates, formula, rtol=1e-6)
    assert steps(callback) == expected
    assert callback.history[-1]["is_final"]
    np.testing.assert_array_equal(callback.ensemble().votes, 1.0)


def test_snapshot_ensemble_keeps_its_momentum_at_a_restart():
    class Momenta(keras.callbacks.Callback):
        found = []

        def on_train_batch_end(self, batch, logs=None):
            first = self.model.optimizer.momentums[0]
            self.found.append(keras.ops.convert_to_numpy(first))

    callback = SnapshotEnsemble(num_checkpoints=6)
    fit(callback, after=[watch := Momenta()])
    assert all(np.abs(momentum).max() > 0 for momentum in watch.found)


# Fast Geometric Ensemble


def test_fast_geometric_rates_and_steps():
    # 60 steps, 12 of them for cycles: 2 * 4 - 3 = 5 half cycles of 2 steps.
    callback = FastGeometricEnsemble(
        num_checkpoints=4, highest_rate=0.05, lowest_rate=0.01
    )
    rates = recorded_rates(callback, epochs=10)
    assert steps(callback) == [50, 52, 56, 60]
    cycle = [0.05, 0.03, 0.01, 0.03]
    np.testing.assert_allclose(rates, [0.1] * 50 + (cycle * 3)[:10], rtol=1e-6)


def test_fast_geometric_cycles_of_epochs():
    # Of 60 steps, cycles of 2 epochs = 12 steps: 6 + 12 back from the end.
    callback = FastGeometricEnsemble(
        num_checkpoints=3,
        cycle_epochs=2,
        highest_rate=0.05,
        lowest_rate=0.0005,
        schedule=lambda step: 1 / (10 + step),
    )
    rates = recorded_rates(callback, epochs=10)
    assert steps(callback) == [42, 48, 60]
    expected = [1 / (10 + step) for step in range(1, 43)]
    # As published: by epoch of the cycle and share of the epoch.
    for epoch in range(3):
        for iteration in range(6):
            t = (epoch % 2 + iteration / 6) / 2
            expected.append(
                0.05 * (1 - 2 * t) + 0.0005 * 2 * t
                if t < 0.5
                else 0.05 * (2 * t - 1) + 0.0005 * (2 - 2 * t)
            )
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


def test_fast_geometric_takes_a_schedule_of_keras():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.2, 1, 0.9)
    callback = FastGeometricEnsemble(num_checkpoints=2, schedule=schedule)
    rates = recorded_rates(callback, epochs=5)
    assert steps(callback) == [24, 30]
    np.testing.assert_allclose(
        rates[:24], [0.2 * 0.9**i for i in range(24)], rtol=1e-5
    )


# Plain checkpoints, horizontal voting


def test_plain_checkpoints_change_nothing():
    keras.utils.set_random_seed(3)
    plain = sgd_model()
    x, y = blobs(NUM_SAMPLES)
    plain.fit(weighted(x, y, batch_size=20, seed=1), epochs=6, verbose=0)
    keras.utils.set_random_seed(3)
    callback = PlainCheckpoints(num_checkpoints=5)
    model = fit(callback)
    for one, other in zip(
        plain.get_weights(), model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert steps(callback) == [8, 16, 24, 28, 36]


def test_plain_average_is_the_mean_of_the_probabilities():
    callback = PlainCheckpoints(num_checkpoints=3)
    fit(callback)
    x, _ = blobs(NUM_SAMPLES)
    ensemble = callback.ensemble()
    members = [
        model.predict(x, verbose=0) for model in ensemble.member_models()
    ]
    np.testing.assert_allclose(
        ensemble.predict(x, verbose=0), np.mean(members, axis=0), atol=1e-6
    )


def test_horizontal_voting_takes_the_last_epochs():
    callback = HorizontalVoting(num_checkpoints=3)
    fit(callback, epochs=5)
    assert steps(callback) == [18, 24, 30]
    assert [record["epoch"] for record in callback.history] == [2, 3, 4]
    few = HorizontalVoting(num_checkpoints=9)
    fit(few, epochs=2)
    assert steps(few) == [6, 12]


# Stochastic weight averaging


class WeightsAfter(keras.callbacks.Callback):
    """Notes the weights after some steps, before others change them."""

    def __init__(self, wanted):
        super().__init__()
        self.wanted = wanted
        self.found = []
        self.num_steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.num_steps += 1
        if self.num_steps in self.wanted:
            self.found.append(self.model.get_weights())


AVERAGED = [
    ({}, [42, 48]),  # the ends of the epochs after 36 of 48 steps
    ({"first_part": 0.5}, [30, 36, 42, 48]),
    ({"num_checkpoints": 4, "first_part": 0.5}, [30, 36, 42, 48]),
    ({"num_checkpoints": 5, "first_part": 0.5}, [32, 36, 40, 44, 48]),
    ({"num_checkpoints": 1}, [48]),
    ({"num_checkpoints": 9, "first_part": 0.9375}, [46, 47, 48]),
]


@pytest.mark.parametrize(("options", "averaged"), AVERAGED)
def test_steps_whose_weights_are_averaged(options, averaged):
    callback = StochasticWeightAveraging(**options)
    plan = callback._make_plan(total_steps=48, steps_per_epoch=6)
    assert plan.settings["averaged"] == averaged
    assert plan.steps == [48]


@pytest.mark.parametrize(("options", "averaged"), [AVERAGED[0], AVERAGED[3]])
def test_weight_averaging_is_the_mean_of_the_weights(options, averaged):
    callback = StochasticWeightAveraging(**options)
    watch = WeightsAfter(averaged)
    model = fit(callback, epochs=8, before=[watch])
    expected = [np.mean(w, axis=0) for w in zip(*watch.found, strict=True)]
    for found, mean in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(found, mean, rtol=1e-6, atol=1e-7)
    assert steps(callback) == [48]
    [member] = callback.ensemble().member_models()
    for found, kept in zip(
        model.get_weights(), member.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(found, kept)


def test_share_of_a_run_is_not_rounded_by_a_step():
    # 0.57 * 100 is a little less than 57 in binary.
    callback = StochasticWeightAveraging(first_part=0.57)
    plan = callback._make_plan(total_steps=100, steps_per_epoch=1)
    assert plan.settings["averaged"] == list(range(58, 101))


def test_weight_averaging_has_a_rate_of_its_own():
    callback = StochasticWeightAveraging(
        learning_rate=0.02, first_part=0.5, schedule=lambda step: 0.1 / step
    )
    rates = recorded_rates(callback, epochs=4)
    expected = [0.1 / step for step in range(1, 13)] + [0.02] * 12
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    assert (
        recorded_rates(StochasticWeightAveraging(), epochs=2)
        == [pytest.approx(0.1)] * 12
    )


def test_swa_refuses_samples_that_devices_share_out(monkeypatch):
    """When `fit` begins, and not when it would collect statistics."""
    monkeypatch.setattr(ArraySamples, "own", slice(0, 120))
    callback = StochasticWeightAveraging()
    train = callback.weighted(*blobs(), batch_size=20)
    with pytest.raises(ValueError, match="samples of its own, over which"):
        dense_model().fit(train, epochs=1, callbacks=[callback], verbose=0)


def test_weight_averaging_recomputes_batch_norm():
    callback = StochasticWeightAveraging()
    model = fit(callback, model=batch_norm_model(), epochs=8)
    x, _ = blobs(NUM_SAMPLES)
    activations = keras.ops.convert_to_numpy(model.layers[0](x))
    mean, variance = model.layers[1].get_weights()[2:]
    np.testing.assert_allclose(mean, activations.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(variance, activations.var(axis=0), rtol=1e-4)


def test_weight_averaging_of_a_run_that_is_stopped_early():
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 2

    callback = StochasticWeightAveraging()
    fit(callback, epochs=20, before=[Stop()])
    assert steps(callback) == [18]


# Snapshot Boosting


def test_snapshot_boosting_rates_restarts_and_weights():
    losses = [5, 4, 4, 4, 4, 4, 9, 9, 9, 8, 8, 8]
    # Rates of epochs: better, better, then 1 to 4 epochs without progress:
    # halved after 2; restart after 4; the new stage starts with any value.
    expected = [0.2, 0.2, 0.2, 0.2, 0.1, 0.1, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1]
    callback = SnapshotBoosting(
        highest_rate=0.2,
        decay=0.5,
        patience=2,
        restart_patience=4,
        deviation_rate=0.5,
    )
    rates = recorded_rates(callback, epochs=12, before=[Scripted(losses)])
    np.testing.assert_allclose(rates[::6], expected, rtol=1e-6)
    np.testing.assert_allclose(rates, np.repeat(expected, 6), rtol=1e-6)
    assert steps(callback) == [36, 72]
    first = callback.ensemble().run.correct(36)
    error = 1 - first.mean()
    vote = math.log((1 - error) / error) + math.log(2)
    weights = np.where(first, math.exp(-0.5 * vote), 1.0)
    np.testing.assert_allclose(
        callback.sample_weights.numpy(),
        NUM_SAMPLES * weights / weights.sum(),
        rtol=1e-5,
    )
    assert callback.history[0]["vote"] == pytest.approx(vote)


def test_snapshot_boosting_begins_each_update_from_the_first_weights():
    options = {"patience": 1, "restart_patience": 1, "deviation_rate": 0.5}
    callback = SnapshotBoosting(**options)
    fit(callback, epochs=4, before=[Scripted([1, 2, 1, 2])])
    # Restarts after epochs 2 and 4 of those before the last: 12 only, since
    # the fourth is the last.
    assert steps(callback) == [12, 24]
    callback = SnapshotBoosting(**options)
    fit(callback, epochs=6, before=[Scripted([1, 2, 1, 2, 1, 2])])
    assert steps(callback) == [12, 24, 36]
    second = callback.ensemble().run.correct(24)
    vote = callback.history[1]["vote"]
    weights = np.where(second, math.exp(-0.5 * vote), 1.0)
    np.testing.assert_allclose(
        callback.sample_weights.numpy(),
        NUM_SAMPLES * weights / weights.sum(),
        rtol=1e-5,
    )


def test_snapshot_boosting_has_a_limit_of_members():
    callback = SnapshotBoosting(
        num_checkpoints=2, patience=1, restart_patience=1
    )
    fit(callback, epochs=8, before=[Scripted([1, 2] * 4)])
    assert steps(callback) == [12, 48]


def test_snapshot_boosting_needs_what_it_monitors():
    x, y = blobs(NUM_SAMPLES)
    callback = SnapshotBoosting()
    train = callback.weighted(x, y, batch_size=20)
    with pytest.raises(
        ValueError,
        match=r"monitor='val_loss'.*only.*loss.*`validation_data=`",
    ):
        sgd_model().fit(train, epochs=2, callbacks=[callback], verbose=0)


# Parallel ensemble


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Two members each of three networks of other seeds."""
    found = []
    for seed in range(3):
        keras.utils.set_random_seed(seed)
        directory = tmp_path_factory.mktemp("network")
        callback = PlainCheckpoints(directory / "run", num_checkpoints=2)
        fit(callback, epochs=3)
        found.append(callback.ensemble())
    return found


def test_parallel_ensemble_is_the_mean_of_its_networks(networks, tmp_path):
    x, y = blobs(NUM_SAMPLES)
    finals = [ensemble.select(num=1) for ensemble in networks]
    expected = np.mean([e.predict(x, verbose=0) for e in finals], axis=0)
    combined = parallel_ensemble(finals)
    np.testing.assert_allclose(
        combined.predict(x, verbose=0), expected, atol=1e-6
    )
    # Each was trained for 18 steps.
    assert [member["step"] for member in combined.members] == [18, 36, 54]
    assert [m["is_final"] for m in combined.members] == [False, False, True]
    combined.save(tmp_path / "combined")
    loaded = CheckpointEnsemble.load(tmp_path / "combined")
    np.testing.assert_allclose(
        loaded.predict(x, verbose=0), expected, atol=1e-6
    )
    assert inspect_run(tmp_path / "combined")["header"]["method"] == "parallel"


def test_parallel_ensemble_counts_every_run_the_same(networks):
    first, second, _ = networks
    x, _ = blobs(NUM_SAMPLES)
    combined = parallel_ensemble([first, second.select(num=1)])
    np.testing.assert_allclose(combined.votes, [0.5, 0.5, 1.0])
    expected = (
        first.predict(x, verbose=0) + second.select(num=1).predict(x, verbose=0)
    ) / 2
    np.testing.assert_allclose(
        combined.predict(x, verbose=0), expected, atol=1e-6
    )


def test_parallel_ensemble_of_models_that_keras_cannot_describe():
    x, y = blobs(NUM_SAMPLES)
    ensembles = []
    for _ in range(2):
        model = Undescribed([keras.layers.Dense(3, activation="softmax")])
        model.compile("adam", "sparse_categorical_crossentropy")
        callback = PlainCheckpoints(num_checkpoints=1)
        fit(callback, model=model, epochs=6)
        ensembles.append(callback.ensemble())
    twice = parallel_ensemble([ensembles[0], *ensembles, ensembles[0]])
    one, other = (e.predict(x, verbose=0) for e in ensembles)
    np.testing.assert_allclose(
        twice.predict(x, verbose=0), (3 * one + other) / 4, atol=1e-6
    )
    assert [m["is_final"] for m in twice.members] == [False] * 3 + [True]


def test_parallel_ensemble_of_what_does_not_fit(networks):
    ensemble = networks[0]
    for wrong in ([], ["runs/a", "runs/b"]):
        with pytest.raises(ValueError, match="give the ensembles to put toge"):
            parallel_ensemble(wrong)
    other = PlainCheckpoints(num_checkpoints=1)
    fit(other, model=batch_norm_model(), epochs=3)
    with pytest.raises(ValueError, match="ensemble 2 has another architecture"):
        parallel_ensemble([ensemble, other.ensemble()])
    x, y = blobs(60)
    fewer = PlainCheckpoints(num_checkpoints=1)
    train = fewer.weighted(x, y, batch_size=20)
    sgd_model().fit(train, epochs=6, callbacks=[fewer], verbose=0)
    with pytest.raises(ValueError, match="another number of training samples"):
        parallel_ensemble([ensemble, fewer.ensemble()])


# All of them


@pytest.mark.large
@pytest.mark.parametrize("method", METHODS)
def test_run_directory_loads_inspects_selects_and_exports(method, tmp_path):
    callback = METHODS[method](tmp_path / "run", num_checkpoints=3)
    data = x, _ = blobs(NUM_SAMPLES)
    fit(callback, epochs=5, model=batch_norm_model(), validation_data=data)
    expected = callback.ensemble().predict(x, verbose=0)
    ensemble = CheckpointEnsemble.load(tmp_path / "run")
    np.testing.assert_array_equal(ensemble.predict(x, verbose=0), expected)
    content = inspect_run(tmp_path / "run")
    assert content["header"]["method"] == method
    assert content["is_finished"]
    assert len(ensemble.select(num=1)) == 1
    export_onnx(ensemble, tmp_path / "run.onnx", verbose=0)
    session = onnxruntime.InferenceSession(tmp_path / "run.onnx")
    [name] = [i.name for i in session.get_inputs()]
    [found] = session.run(["probabilities"], {name: x})
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_only_snapshot_boosting_boosts(method):
    boosts = method == "ssb-reconstruction"
    plan = METHODS[method]()._make_plan(total_steps=48, steps_per_epoch=6)
    assert plan.policy == (BoostingFromFirst(0.1) if boosts else EqualVotes())
    assert not plan.settings.keys() & {"expected_error", "deviation_rate"}


def test_logs_have_names_of_their_own():
    callback = SnapshotEnsemble(num_checkpoints=2)
    x, y = blobs(NUM_SAMPLES)
    train = callback.weighted(x, y, batch_size=20, seed=1)
    fitted = sgd_model().fit(train, epochs=2, callbacks=[callback], verbose=0)
    names = {"error", "vote", "members", "bound"}
    expected = {"loss", *(f"ensemble_{name}" for name in names)}
    assert set(fitted.history) == expected
    assert fitted.history["ensemble_vote"] == [1.0, 1.0]
    np.testing.assert_array_equal(callback.sample_weights.numpy(), 1.0)


@pytest.mark.large
@pytest.mark.parametrize("method", METHODS)
def test_resumed_equals_uninterrupted(method, tmp_path):
    losses = [3, 4, 5, 6, 7, 8, 9, 9]

    def train(directory, after=()):
        keras.utils.set_random_seed(5)
        options = (
            {"patience": 1, "restart_patience": 2}
            if method == "ssb-reconstruction"
            else {"num_checkpoints": 3}
        )
        if method == "swa":
            options = {"first_part": 0.3, "learning_rate": 0.05}
        callback = METHODS[method](directory, resume=True, **options)
        fit(
            callback,
            model=batch_norm_model(),
            epochs=8,
            before=[Scripted(losses)],
            after=after,
        )
        return callback

    whole = train(tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(tmp_path / "parts", after=[Interrupt(31)])
    parts = train(tmp_path / "parts")
    assert steps(parts) == steps(whole)
    assert [r["error"] for r in parts.history] == [
        r["error"] for r in whole.history
    ]
    for one, other in zip(
        whole.ensemble().member_models(),
        parts.ensemble().member_models(),
        strict=True,
    ):
        for first, second in zip(
            one.get_weights(), other.get_weights(), strict=True
        ):
            np.testing.assert_array_equal(first, second)


@pytest.mark.usefixtures("collected")
@pytest.mark.large
@pytest.mark.parametrize("method", ["sse", "fge", "swa", "ssb-reconstruction"])
def test_two_devices_are_as_one(method):
    def train():
        keras.utils.set_random_seed(5)
        options = {"learning_rate": 0.05} if method == "swa" else {}
        callback = METHODS[method](num_checkpoints=3, **options)
        data = blobs(NUM_SAMPLES)
        fit(callback, model=sgd_model(), epochs=5, validation_data=data)
        return callback

    alone = train()
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    with strategy.scope():
        both = train()
    assert steps(both) == steps(alone)
    x, _ = blobs(NUM_SAMPLES)
    np.testing.assert_allclose(
        both.ensemble().predict(x, verbose=0),
        alone.ensemble().predict(x, verbose=0),
        atol=1e-4,
    )


@pytest.mark.large
@pytest.mark.usefixtures("collected")
def test_batch_norm_is_recomputed_on_two_devices():
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    with strategy.scope():
        callback = StochasticWeightAveraging()
        model = fit(callback, model=batch_norm_model(), epochs=8)
    x, _ = blobs(NUM_SAMPLES)
    [member] = callback.ensemble().member_models()
    activations = keras.ops.convert_to_numpy(member.layers[0](x))
    for weights in (member.get_weights(), model.get_weights()):
        np.testing.assert_allclose(
            weights[4], activations.mean(axis=0), atol=1e-5
        )
        np.testing.assert_allclose(
            weights[5], activations.var(axis=0), rtol=1e-4
        )


# What is refused


@pytest.mark.parametrize(
    "callback",
    [
        SnapshotEnsemble(),
        FastGeometricEnsemble(num_checkpoints=2),
        SnapshotBoosting(),
        StochasticWeightAveraging(learning_rate=0.1),
    ],
)
def test_compiled_schedule_is_refused_before_training(callback):
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    rates = Rates()
    with pytest.raises(
        ValueError, match=r"sets the learning rate itself.*with a number"
    ):
        fit(callback, model=sgd_model(rate=rate), after=[rates])
    assert not rates.rates


def test_rate_that_is_a_function_is_refused():
    model = sgd_model()
    model.compile(
        keras.optimizers.SGD(lambda: 0.1), "sparse_categorical_crossentropy"
    )
    with pytest.raises(ValueError, match="Make it with a number"):
        fit(SnapshotEnsemble(), model=model)


def test_several_steps_at_once_are_refused():
    with pytest.raises(ValueError, match="rate of every step.*Leave it out"):
        fit(SnapshotEnsemble(), model=sgd_model(steps_per_execution=2))
    callback = PlainCheckpoints(num_checkpoints=2)
    fit(callback, model=sgd_model(steps_per_execution=2))
    assert steps(callback) == [18, 36]


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("sse", {"highest_rate": 0}, r"SnapshotEnsemble\(highest_rate=0\)"),
        (
            "sse",
            {"num_checkpoints": 0},
            r"num_checkpoints=0\): .*an integer",
        ),
        ("sse", {"resume": True}, "resume and overwrite need a directory"),
        ("fge", {"num_checkpoints": 1}, "at least 2, the model before"),
        ("fge", {"first_part": 1.0}, "a share between 0 and 1"),
        ("fge", {"cycle_epochs": 3}, "an even number"),
        ("fge", {"cycle_epochs": 2, "first_part": 0.5}, "one of them, not bo"),
        ("fge", {"lowest_rate": -1}, "a number of at least 0"),
        ("fge", {"highest_rate": 1e-4}, "a number above lowest_rate=0.0005"),
        ("fge", {"schedule": 0.1}, "a function of the step, from 1"),
        ("swa", {"first_part": 1}, "at least 0 and below 1"),
        ("swa", {"learning_rate": 0}, "a number above 0, or None"),
        ("swa", {"schedule": len}, "only together with `learning_rate=`"),
        ("ssb-reconstruction", {"highest_rate": -1}, "a number above 0"),
        ("ssb-reconstruction", {"decay": 1.0}, "a factor between 0 and 1"),
        ("ssb-reconstruction", {"monitor": None}, "a name in `fit`'s logs"),
        ("ssb-reconstruction", {"patience": 7}, "`patience` the smaller one"),
        (
            "ssb-reconstruction",
            {"patience": 0},
            r"patience=0\): .*an integer",
        ),
        ("ssb-reconstruction", {"restart_patience": 0.5}, "an integer"),
        ("ssb-reconstruction", {"deviation_rate": -1}, "of at least 0"),
    ],
)
def test_arguments_are_checked(method, options, message):
    with pytest.raises(ValueError, match=message):
        METHODS[method](**options)


def test_runs_that_are_too_short_for_cycles():
    with pytest.raises(ValueError, match="too few for 5 cycles"):
        fit(FastGeometricEnsemble(), epochs=1)
    with pytest.raises(ValueError, match="2 cycles of 24 steps do not fit"):
        fit(FastGeometricEnsemble(num_checkpoints=3, cycle_epochs=4), epochs=3)


def test_epochs_of_unknown_length():
    x, y = blobs(NUM_SAMPLES)
    for callback in (
        HorizontalVoting(total_steps=12),
        StochasticWeightAveraging(total_steps=12),
        FastGeometricEnsemble(total_steps=12, cycle_epochs=2),
    ):
        train = callback.weighted(x, y, batch_size=20)
        unknown = train.apply(
            tf.data.experimental.assert_cardinality(tf.data.UNKNOWN_CARDINALITY)
        )
        with pytest.raises(ValueError, match="how many steps an epoch has"):
            sgd_model().fit(unknown, epochs=2, callbacks=[callback], verbose=0)


def test_directory_of_another_method_is_not_gone_on_with(tmp_path):
    fit(PlainCheckpoints(tmp_path), epochs=2)
    with pytest.raises(ValueError, match="method was 'no-cycle' and is 'sse'"):
        fit(SnapshotEnsemble(tmp_path, resume=True), epochs=2)
