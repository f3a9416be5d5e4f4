"""Members that are averages of weights; training does not notice."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import blobs, dense_model, same
from test_callback import images, noisy_cnn
from test_resume import Stop, StopAfter, contents, fit

from cbnn_keras import CBNNCallback, CheckpointEnsemble


class Trace(keras.callbacks.Callback):
    """The trainable weights after every step."""

    def __init__(self):
        super().__init__()
        self.weights = []

    def on_train_batch_end(self, batch, logs=None):
        variables = self.model.trainable_variables
        self.weights.append([np.array(v, "float64") for v in variables])


def expected_average(weights, horizon, period):
    """A loop over what each step left: exp(-s / horizon), all alike at first"""
    mean, num, last = None, 0, 0
    for step in range(period, len(weights) + 1, period):
        num += 1
        share = max(1 - np.exp(-(step - last) / horizon), 1 / num)
        last, values = step, weights[step - 1]
        mean = mean or values
        mean = [m + share * (v - m) for m, v in zip(mean, values, strict=True)]
    return mean


@pytest.mark.parametrize(
    ("average", "epochs", "horizon", "period"),
    [(0.1, 5, 3, 1), (0.9, 5, 27, 2), (True, 20, 6, 1)],  # of 6 steps each
)
def test_member_is_the_exponential_average(average, epochs, horizon, period):
    x, y = blobs()
    model, trace = dense_model(), Trace()
    cbnn = CBNNCallback(average=average, num_checkpoints=2)
    train = cbnn.weighted(x, y, batch_size=20, seed=1)
    model.fit(train, epochs=epochs, callbacks=[trace, cbnn], verbose=0)
    ensemble = cbnn.ensemble("all")
    for step in (3 * epochs, 6 * epochs):
        expected = expected_average(trace.weights[:step], horizon, period)
        with ensemble.member(step) as member:
            for a, b in zip(expected, member.get_weights(), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    # The model itself holds what training made, not an average.
    for a, b in zip(trace.weights[-1], model.get_weights(), strict=True):
        np.testing.assert_array_equal(a.astype("float32"), b)


def rare(ratio=5):
    """Samples whose last class has so many fewer than the others."""
    x, y = blobs(120)
    kept = np.concatenate([np.flatnonzero(y == c) for c in (0, 1)])
    kept = np.append(kept, np.flatnonzero(y == 2)[: 40 // ratio])
    kept = np.random.default_rng(0).permutation(kept)
    return x[kept], y[kept]


def expected_without_lag(weights, horizon, period):
    """Of a straight line: 2 a - b, b what the average a is averaged to."""
    of_steps = [
        expected_average(weights[:step], horizon, period)
        for step in range(1, len(weights) + 1)
    ]
    first = of_steps[period - 1 :: period]
    behind = None
    for num, means in enumerate(first, start=1):
        share = max(1 - np.exp(-period / horizon), 1 / num)
        behind = behind or means
        behind = [
            b + share * (m - b) for b, m in zip(behind, means, strict=True)
        ]
    return [2 * m - b for m, b in zip(first[-1], behind, strict=True)]


def test_averages_keep_up_with_the_weights_where_a_class_is_rare():
    x, y = rare()
    model, trace = dense_model(), Trace()
    cbnn = CBNNCallback(num_checkpoints=2)
    train = cbnn.weighted(x, y, batch_size=22, seed=1)
    model.fit(train, epochs=15, callbacks=[trace, cbnn], verbose=0)
    assert len(trace.weights) == 60
    assert cbnn.run.header.settings.own["average"] == 0.15
    assert cbnn.run.header.settings.own["lag_free"] is True
    for step in (30, 60):
        expected = expected_without_lag(trace.weights[:step], 9, 1)
        with cbnn.ensemble("all").member(step) as member:
            for a, b in zip(expected, member.get_weights(), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_what_has_no_lag_follows_a_straight_line():
    """Weights that grow by one a step, long after the beginning."""
    line = [[np.array(float(step))] for step in range(1, 401)]
    average = expected_average(line, horizon=10, period=1)
    assert 400 - average[0] == pytest.approx(9.508, abs=0.001)  # 1/(e^0.1 - 1)
    found = expected_without_lag(line, horizon=10, period=1)
    assert found[0] == pytest.approx(400, abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "epochs", "options", "found"),
    [
        (5, 20, {}, {"average": 0.15, "lag_free": True}),
        (5, 20, {"average": True}, {"average": 0.15, "lag_free": True}),
        (5, 2, {}, {"average": 0.15, "lag_free": True}),
        (4, 20, {}, {"average": 0.05}),
        (4, 20, {"restarts": 4}, {"average": 0.05}),
        (4, 19, {}, {"average": 0.1, "lag_free": True}),
        (4, 1, {"average": True}, {"average": 0.1, "lag_free": True}),
        (4, 1, {"average": 0.1}, {"average": 0.1}),
        (5, 1, {"average": False}, {}),
    ],
    ids=str,
)
def test_what_averages_a_run_has(ratio, epochs, options, found):
    cbnn = CBNNCallback(**options)
    train = cbnn.weighted(*rare(ratio), batch_size=22, seed=1)
    dense_model().fit(train, epochs=epochs, callbacks=[cbnn], verbose=0)
    settings = cbnn.run.header.settings.own
    known = {name: settings.get(name) for name in ("average", "lag_free")}
    assert {name: v for name, v in known.items() if v is not None} == found


def test_epochs_of_a_pipeline_are_passes_over_the_samples():
    """Ten epochs of twice the samples are twenty."""
    x, y = rare(4)
    cbnn = CBNNCallback()
    train = cbnn.weighted(x, y, batch_size=22, seed=1)
    steps = 2 * int(train.cardinality())
    dense_model().fit(
        train.repeat(),
        epochs=10,
        steps_per_epoch=steps,
        callbacks=[cbnn],
        verbose=0,
    )
    assert cbnn.run.header.settings.own["average"] == 0.05


def test_epochs_before_the_first_do_not_count():
    """Fifteen epochs of a pipeline of one's own are a short run."""
    x, y = blobs()
    cbnn = CBNNCallback(score_data=(x, y))
    samples = tf.data.Dataset.from_tensor_slices((x, y))
    train = cbnn.attach_index(samples).batch(20)
    train = train.map(lambda i, x, y: (x, y, cbnn.look_up(i)))
    dense_model().fit(
        train, initial_epoch=10, epochs=25, callbacks=[cbnn], verbose=0
    )
    assert cbnn.run.header.settings.own["average"] == 0.1


def test_samples_that_weigh_more_are_not_rare():
    x, y = rare()
    cbnn = CBNNCallback(num_checkpoints=1)
    weights = {0: 1.0, 1: 1.0, 2: 2.0}
    train = cbnn.weighted(x, y, class_weight=weights, batch_size=22, seed=1)
    dense_model().fit(train, epochs=20, callbacks=[cbnn], verbose=0)
    assert "lag_free" not in cbnn.run.header.settings.own


@pytest.mark.parametrize("options", [{}, {"average": True}], ids=str)
def test_a_run_with_the_averages_of_before_keeps_them(tmp_path, options):
    """As a run of an earlier version, on data with a rare class."""
    fit_rare(tmp_path / "whole", average=0.05)
    with pytest.raises(Stop):
        fit_rare(tmp_path / "run", StopAfter(epoch=2), average=0.05)
    cbnn = fit_rare(tmp_path / "run", **options)
    assert "lag_free" not in cbnn.run.header.settings.own
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def fit_rare(directory, *others, **options):
    keras.backend.clear_session()  # names of layers as in a new process
    keras.utils.set_random_seed(3)
    cbnn = CBNNCallback(directory, num_checkpoints=3, resume=True, **options)
    train = cbnn.weighted(*rare(), batch_size=22, seed=1)
    model = dense_model()
    model.fit(train, epochs=6, callbacks=[cbnn, *others], verbose=0)
    return cbnn


@pytest.mark.large
@pytest.mark.parametrize("options", [{}, {"average": True}], ids=str)
def test_resumed_run_without_lag_equals_uninterrupted(tmp_path, options):
    fit_rare(tmp_path / "whole")
    with pytest.raises(Stop):
        fit_rare(tmp_path / "run", StopAfter(epoch=3, batch=2))
    cbnn = fit_rare(tmp_path / "run", **options)
    assert cbnn.run.header.settings.own["lag_free"] is True
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    manifest = (tmp_path / "run" / "manifest.json").read_text()
    assert '"format_version": 8' in manifest


def test_weights_with_a_constraint_keep_it():
    """Twice an average minus another can leave what both are in."""
    x, y = rare()
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(
                3, "softmax", kernel_constraint=keras.constraints.NonNeg()
            ),
        ]
    )
    model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy")
    model.layers[0].kernel.assign(np.ones((4, 3)))
    trace = Trace()
    cbnn = CBNNCallback(num_checkpoints=1)
    train = cbnn.weighted(x, y, batch_size=22, seed=1)
    model.fit(train, epochs=8, callbacks=[trace, cbnn], verbose=0)
    free = expected_without_lag(trace.weights, 5, 1)
    assert free[0].min() < -1e-3
    with cbnn.ensemble().member(32) as member:
        kernel, bias = member.get_weights()
    np.testing.assert_allclose(kernel, np.maximum(free[0], 0), atol=1e-5)
    np.testing.assert_allclose(bias, free[1], atol=1e-5)


def test_training_is_the_same_bit_for_bit():
    """BatchNorm, Dropout, Adam, metrics; without updates of the weights."""
    x, y = images()
    models, logs = [], []
    for average in (False, True):
        keras.utils.set_random_seed(5)
        model = noisy_cnn()
        cbnn = CBNNCallback(deviation_rate=0, average=average)
        train = cbnn.weighted(x, y, batch_size=16, seed=7)
        log = model.fit(train, epochs=4, callbacks=[cbnn], verbose=0).history
        models.append(model)
        logs.append({k: v for k, v in log.items() if "cbnn" not in k})
    assert logs[0] == logs[1]
    for first, second in zip(
        models[0].variables + models[0].optimizer.variables,
        models[1].variables + models[1].optimizer.variables,
        strict=True,
    ):
        np.testing.assert_array_equal(first, second)


def test_vote_score_and_file_speak_of_the_averaged_weights(tmp_path):
    x, y = images()
    keras.utils.set_random_seed(1)
    model = noisy_cnn()
    cbnn = CBNNCallback(
        tmp_path / "run", average=True, num_checkpoints=3, deviation_rate=0.01
    )
    train = cbnn.weighted(x, y, batch_size=16, seed=7)
    model.fit(train, epochs=6, callbacks=[cbnn], verbose=0)
    ensemble = CheckpointEnsemble.load(tmp_path / "run", members="all")
    omega = np.full(len(y), 1 / len(y))
    for record, p in zip(
        cbnn.history, ensemble.member_probabilities(x), strict=True
    ):
        right = p.argmax(axis=1) == y
        assert record["error"] == pytest.approx(omega[~right].sum())
        likelihood = -np.log(p[np.arange(len(y)), y]).mean()
        assert record["negative_log_likelihood"] == pytest.approx(
            likelihood, rel=1e-5
        )
        omega = omega * np.exp(-0.01 * record["vote"] * right)
        omega /= omega.sum()


def test_statistics_of_batch_norm_are_those_of_the_averaged_weights():
    x, y = blobs()
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(6),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3, "softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy"
    )
    cbnn = CBNNCallback(average=True, num_checkpoints=2)
    train = cbnn.weighted(x, y, batch_size=20, seed=1)
    model.fit(train, epochs=4, callbacks=[cbnn], verbose=0)
    ensemble = cbnn.ensemble()
    for record in cbnn.history:
        with ensemble.member(record["step"]) as member:
            dense, norm, _ = member.layers
            values = x @ np.array(dense.kernel) + np.array(dense.bias)
            mean, variance = norm.moving_mean, norm.moving_variance
            np.testing.assert_allclose(mean, values.mean(0), atol=1e-5)
            np.testing.assert_allclose(variance, values.var(0), rtol=1e-4)


@pytest.mark.parametrize(
    "crash",
    [
        pytest.param({"epoch": 2, "batch": 5}, marks=pytest.mark.large),
        pytest.param({"epoch": 0, "batch": 2}, marks=pytest.mark.large),
        pytest.param({"epoch": 4}, marks=pytest.mark.large),
    ],
    ids=str,
)
def test_resumed_run_equals_uninterrupted(tmp_path, crash):
    fit(tmp_path / "whole", average=0.2)
    with pytest.raises(Stop):
        fit(tmp_path / "run", StopAfter(**crash), average=0.2)
    fit(tmp_path / "run", average=0.2, seed=0 if crash["epoch"] == 0 else 99)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


@pytest.mark.large
def test_another_horizon_is_another_run(tmp_path):
    with pytest.raises(Stop):
        fit(tmp_path / "run", StopAfter(epoch=2), average=0.2)
    with pytest.raises(ValueError, match="average was 0.2 and is 0.1"):
        fit(tmp_path / "run", average=0.1)


@pytest.mark.parametrize(
    "compile",
    [{"jit_compile": True}, {"steps_per_execution": 4}, {"run_eagerly": True}],
    ids=str,
)
def test_average_whatever_the_model_is_compiled_with(compile):
    x, y = blobs()
    model = dense_model(**compile)
    cbnn = CBNNCallback(average=0.3, num_checkpoints=2, deviation_rate=0)
    train = cbnn.weighted(x, y, batch_size=20, seed=1)
    model.fit(train, epochs=4, callbacks=[cbnn], verbose=0)
    with cbnn.ensemble().member(cbnn.history[-1]["step"]) as member:
        averaged = member.get_weights()
    assert not same(averaged, model.get_weights())
    assert all(np.isfinite(w).all() for w in averaged)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_average_in_mixed_precision(policy):
    keras.config.set_dtype_policy(policy)
    x, y = blobs()
    model, trace = dense_model(), Trace()
    cbnn = CBNNCallback(average=0.1, num_checkpoints=2)
    train = cbnn.weighted(x, y, batch_size=20, seed=1)
    model.fit(train, epochs=5, callbacks=[trace, cbnn], verbose=0)
    expected = expected_average(trace.weights, horizon=3, period=1)
    with cbnn.ensemble().member(30) as member:
        for a, b in zip(expected, member.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.large
@pytest.mark.parametrize(
    ("data", "options"),
    [(blobs(), {"average": 0.2}), (rare(), {})],
    ids=["average", "lag-free"],
)
def test_average_on_several_devices_is_that_of_one(data, options):
    found = []
    for num_devices in (1, 2):
        keras.utils.set_random_seed(1)
        devices = [f"CPU:{i}" for i in range(num_devices)]
        strategy = tf.distribute.MirroredStrategy(
            devices, tf.distribute.ReductionToOneDevice()
        )
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((4,)),
                    keras.layers.Dense(8, "relu"),
                    keras.layers.BatchNormalization(synchronized=True),
                    keras.layers.Dense(3, "softmax"),
                ]
            )
            model.compile(
                keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy"
            )
        x, y = data
        cbnn = CBNNCallback(num_checkpoints=3, **options)
        train = cbnn.weighted(x, y, batch_size=len(y) // 4, seed=1)
        model.fit(train, epochs=5, callbacks=[cbnn], verbose=0)
        found.append((cbnn.ensemble().votes, cbnn.ensemble().predict(x)))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-4)


@pytest.mark.parametrize("average", [0, 1, -0.1, "yes", np.nan])
def test_average_that_is_no_share(average):
    with pytest.raises(ValueError, match="must be True, False, or a share of"):
        CBNNCallback(average=average)


def test_layers_that_are_unfrozen_on_the_way():
    """Their weights are those of the checkpoint: there is no average yet."""
    x, y = blobs()
    model = dense_model()
    model.layers[0].trainable = False
    adam = keras.optimizers.Adam(0.05)
    model.compile(adam, "sparse_categorical_crossentropy")
    unfreeze = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: setattr(
            model.layers[0], "trainable", epoch > 0
        )
    )
    cbnn = CBNNCallback(num_checkpoints=2)
    train = cbnn.weighted(x, y, batch_size=20, seed=1)
    model.fit(train, epochs=4, callbacks=[unfreeze, cbnn], verbose=0)
    assert len(cbnn.ensemble("all")) == 2
