"""Several devices: the same ensemble as on one, under `MirroredStrategy`."""

import contextlib
import functools
import gc
import os
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import blobs
from test_resume import SCRIPT, contents

from cbnn_keras import CBNNCallback, CheckpointEnsemble, weighted

pytestmark = pytest.mark.large  # together


@pytest.fixture(autouse=True)
def collected():
    """TensorFlow waits for up to a minute when it ends an old iterator."""
    yield
    gc.collect()


def strategy(num_replicas=2):
    if num_replicas == "one device":
        return tf.distribute.OneDeviceStrategy("CPU:0")
    # Collectives would remember the number of devices for the whole process.
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(num_replicas)],
        tf.distribute.ReductionToOneDevice(),
    )


def network(*, norm=None, dtype=None, rate=0.1, **compile):
    layers = keras.layers
    between = {
        None: [],
        "synchronised": [
            layers.BatchNormalization(
                momentum=0.8, synchronized=True, dtype=dtype
            )
        ],
        "separate": [layers.BatchNormalization(momentum=0.8, dtype=dtype)],
    }[norm]
    model = keras.Sequential(
        [
            keras.Input((4,), dtype=dtype),
            layers.Dense(8, activation="relu", dtype=dtype),
            *between,
            layers.Dense(3, activation="softmax", dtype=dtype),
        ]
    )
    compile.setdefault("loss", "sparse_categorical_crossentropy")
    compile.setdefault("optimizer", keras.optimizers.SGD(rate, momentum=0.9))
    model.compile(**compile)
    return model


def run(
    num_replicas,
    *,
    num_samples=120,
    batch_size=24,
    interval=3,
    epochs=3,
    directory=None,
    make=network,
    options=None,
    **model,
):
    """Trains on `blobs`; `num_replicas=None` is without any strategy."""
    x, y = blobs(num_samples)
    keras.utils.set_random_seed(1)
    scope = (
        contextlib.nullcontext()
        if num_replicas is None
        else strategy(num_replicas).scope()
    )
    with scope:
        network = make(**model)
        cbnn = CBNNCallback.paper(
            directory, interval=interval, deviation_rate=0.1, **(options or {})
        )
        train = cbnn.weighted(x, y, batch_size=batch_size, seed=3)
        network.fit(train, epochs=epochs, callbacks=[cbnn], verbose=0)
    return cbnn, network, x, y


@functools.cache
def reference(**settings):
    """The same without any strategy."""
    return run(None, **settings)


def assert_same(found, expected, tolerance):
    (cbnn, _, x, _), (single, _, _, _) = found, expected
    steps = [record["step"] for record in cbnn.history]
    assert steps == [record["step"] for record in single.history]
    ensemble, other = cbnn.ensemble(), single.ensemble()
    assert len(ensemble.votes) >= 4
    np.testing.assert_allclose(ensemble.votes, other.votes, atol=tolerance)
    np.testing.assert_allclose(
        cbnn.sample_weights, single.sample_weights, atol=tolerance
    )
    assert np.ptp(cbnn.sample_weights) > 0.1  # or nothing was compared
    np.testing.assert_allclose(
        list(ensemble.staged_predict(x)),
        list(other.staged_predict(x)),
        atol=tolerance,
    )


# With 3 replicas, 121 samples leave a last batch of one sample and 127 one of
# seven: pieces of 1, 0, 0 and 3, 3, 1 in TensorFlow's way of cutting.
@pytest.mark.parametrize(
    ("num_replicas", "num_samples", "interval"),
    [
        ("one device", 121, 1),
        (1, 121, 1),
        (2, 120, 3),
        (2, 121, 1),
        (2, 127, 4),
        (3, 121, 1),
        (3, 127, 4),
    ],
)
def test_the_same_as_on_one_device(num_replicas, num_samples, interval):
    settings = {
        "num_samples": num_samples,
        "interval": interval,
        "dtype": "float64",
    }
    assert_same(run(num_replicas, **settings), reference(**settings), 1e-5)


def jitter(x, seed):
    return x + tf.random.stateless_normal(
        tf.shape(x), seed, stddev=0.1, dtype=x.dtype
    )


def test_the_same_from_a_dataset_with_augmentation():
    x, y = blobs(121)
    found = []
    for scope in (strategy().scope(), contextlib.nullcontext()):
        keras.utils.set_random_seed(1)
        with scope:
            model = network(dtype="float64")
            cbnn = CBNNCallback.paper(interval=4, deviation_rate=0.1)
            train = cbnn.weighted(
                tf.data.Dataset.from_tensor_slices((x.astype("float64"), y)),
                batch_size=24,
                seed=3,
                augment=jitter,
            )
            model.fit(train, epochs=3, callbacks=[cbnn], verbose=0)
        found.append((cbnn, model, x, y))
    assert_same(*found, 1e-5)


@pytest.mark.parametrize("num_samples", [120, 127])
def test_the_same_with_synchronised_batch_norm(num_samples):
    settings = {
        "num_samples": num_samples,
        "norm": "synchronised",
        "dtype": "float64",
    }
    assert_same(run(2, **settings), run(None, **settings), 1e-4)


# A sum is not averaged over the pieces, whatever their sizes; none is a sum.
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_loss_is_that_of_the_whole_batch(reduction):
    settings = {
        "num_samples": 29,  # a last batch of 5: pieces of 3 and 2
        "dtype": "float64",
        "loss": keras.losses.SparseCategoricalCrossentropy(reduction=reduction),
        "rate": 0.1 if reduction == "mean" else 0.01,
        "epochs": 8,
        "interval": 16,
    }
    (_, spread, _, _), (_, single, _, _) = (
        run(num_replicas, **settings) for num_replicas in (2, None)
    )
    for a, b in zip(spread.weights, single.weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_built_in_the_scope_and_used_outside_of_it():
    x, y = blobs()
    keras.utils.set_random_seed(1)
    with strategy().scope():
        model = network(dtype="float64")
    cbnn = CBNNCallback.paper(interval=3, deviation_rate=0.1)
    train = cbnn.weighted(x, y, batch_size=24, seed=3)
    model.fit(train, epochs=3, callbacks=[cbnn], verbose=0)
    expected = reference(num_samples=120, interval=3, dtype="float64")
    assert_same((cbnn, model, x, y), expected, 1e-5)


def test_the_shortest_form():
    x, y = blobs()
    with strategy().scope():
        cbnn = CBNNCallback.paper(interval=3)
        network().fit(
            weighted(x, y, batch_size=24),
            epochs=3,
            callbacks=[cbnn],
            verbose=0,
        )
        accuracy = cbnn.ensemble().evaluate(x, y)["accuracy"]
    assert accuracy > 0.6


def test_the_weights_are_one_variable_on_the_host():
    cbnn, _, _, _ = run(2)
    assert isinstance(cbnn.sample_weights, tf.Variable)
    assert not isinstance(cbnn.sample_weights, tf.distribute.DistributedValues)
    assert "CPU:0" in cbnn.sample_weights.device


def scaled(initial_scale):
    """An optimizer for float16 that starts with another scale than Keras'."""
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), initial_scale=initial_scale
    )


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    keras.config.set_dtype_policy(policy)

    def make():
        # Keras' own scale overflows in so small a model; see the next test.
        is_scaled = policy == "mixed_float16"
        compile = {"optimizer": scaled(128.0)} if is_scaled else {}
        return network(norm="separate", **compile)

    cbnn, model, x, y = run(2, make=make, num_samples=127, epochs=6)
    assert cbnn.ensemble().evaluate(x, y)["accuracy"] > 0.6
    for weight in model.weights:
        assert np.isfinite(weight.numpy()).all()


def test_nan_by_a_float16_that_keras_did_not_see_overflow():
    keras.config.set_dtype_policy("mixed_float16")

    class Spoil(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            first = self.model.weights[0]
            first.assign(np.full(first.shape, np.nan))

    x, y = blobs()
    with strategy().scope():
        model = network()
        cbnn = CBNNCallback.paper()
        train = cbnn.weighted(x, y, batch_size=24)
        with pytest.raises(ValueError, match="weights are not.*mixed_bfloat16"):
            model.fit(train, callbacks=[Spoil(), cbnn], verbose=0)


def test_eager_steps():
    cbnn, _, x, y = run(2, run_eagerly=True, epochs=2)
    assert cbnn.ensemble().evaluate(x, y)["accuracy"] > 0.6


def test_the_accuracy_of_the_ensemble_in_the_logs():
    x, y = blobs(121)
    settings = {"dtype": "float64", "options": {"validation_data": (x, y)}}
    found = [
        model.history.history["val_ensemble_accuracy"]
        for _, model, _, _ in (run(2, **settings), run(None, **settings))
    ]
    assert found[0] == found[1]


def test_text_and_several_inputs():
    def make():
        words = keras.Input((3,), dtype="int32", name="words")
        number = keras.Input((1,), name="number")
        x = keras.layers.Flatten()(keras.layers.Embedding(6, 4)(words))
        x = keras.layers.Concatenate()([x, number])
        outputs = keras.layers.Dense(3, activation="softmax")(x)
        model = keras.Model({"words": words, "number": number}, outputs)
        model.compile(keras.optimizers.Adam(0.1), "categorical_crossentropy")
        return model

    generator = np.random.default_rng(0)
    y = np.arange(61) % 3
    x = {
        "words": generator.integers(6, size=(61, 3)).astype("int32"),
        "number": y[:, None].astype("float32"),
    }
    with strategy(3).scope():
        model = make()
        cbnn = CBNNCallback.paper(num_checkpoints=3)
        train = cbnn.weighted(x, np.eye(3)[y], batch_size=12)
        model.fit(train, epochs=6, callbacks=[cbnn], verbose=0)
    assert len(cbnn.history) == 3
    assert cbnn.ensemble().predict(x).shape == (61, 3)


# Statistics of BatchNorm that every replica keeps for itself.


def sorted_run(directory, num_replicas=2, num_samples=127):
    """Each replica always sees other classes than the other one."""
    x, y = blobs(num_samples)
    order = np.argsort(y, kind="stable")
    x, y = x[order], y[order]
    with strategy(num_replicas).scope():
        model = network(norm="separate")
        cbnn = CBNNCallback.paper(directory, interval=4, deviation_rate=0.1)
        train = cbnn.weighted(x, y, batch_size=num_samples - 1, shuffle=False)
        model.fit(train, epochs=6, callbacks=[cbnn], verbose=0)
    return cbnn, model, x, y


def statistics(model):
    """By replica."""
    return [
        [copy.numpy() for copy in variable.value.values]
        for variable in model.non_trainable_variables
        if "moving" in variable.path
    ]


def test_a_member_from_disk_has_exactly_the_error_that_was_recorded(tmp_path):
    cbnn, _, x, y = sorted_run(tmp_path / "run")
    assert len(cbnn.history) == 3
    model = keras.saving.load_model(tmp_path / "run" / "model.keras")
    omega = np.full(len(y), 1 / len(y))
    for record in cbnn.history:
        step = record["step"]
        model.load_weights(tmp_path / "run" / "members" / f"{step}.weights.h5")
        correct = model.predict(x, verbose=0).argmax(axis=1) == y
        bits = np.load(tmp_path / "run" / "rounds" / f"{step}.npy")
        assert np.array_equal(np.unpackbits(bits)[: len(y)], correct)
        assert omega[~correct].sum() == pytest.approx(
            record["error"], rel=1e-12
        )
        omega = omega * np.exp(-0.1 * record["vote"] * correct)
        omega /= omega.sum()


def test_replicas_have_the_mean_of_their_statistics_when_it_matters():
    before, after = [], []

    class Look(keras.callbacks.Callback):
        def __init__(self, into):
            super().__init__()
            self.into = into

        def on_train_batch_end(self, batch, logs=None):
            self.into.append(statistics(self.model))

        def on_epoch_end(self, epoch, logs=None):
            at_end.append(statistics(self.model))

    at_end = []
    x, y = blobs(60)
    with strategy().scope():
        model = network(norm="separate")
        cbnn = CBNNCallback.paper(interval=2)
        train = cbnn.weighted(x, y, batch_size=12)
        model.fit(
            train,
            epochs=2,
            callbacks=[Look(before), cbnn, Look(after)],
            verbose=0,
        )
    # The end of the first epoch, step 5, before our callback and after it.
    for (first, second), (third, fourth) in zip(*at_end[:2], strict=True):
        assert not np.array_equal(first, second)
        np.testing.assert_array_equal(third, fourth)
        mean = (first.astype("float64") + second) / 2
        np.testing.assert_allclose(third, mean, rtol=1e-6)
    for step, (old, new) in enumerate(zip(before, after, strict=True), 1):
        for (first, second), found in zip(old, new, strict=True):
            assert not np.array_equal(first, second)
            if step % 2:
                np.testing.assert_array_equal(found, [first, second])
            else:
                mean = (first.astype("float64") + second) / 2
                np.testing.assert_allclose(found, [mean, mean], rtol=1e-6)


def test_a_last_batch_of_one_sample_does_not_turn_batch_norm_into_nan():
    cbnn, model, x, _ = run(3, num_samples=121, norm="separate", epochs=2)
    assert np.isfinite(cbnn.ensemble().predict(x)).all()
    for copies in statistics(model):
        assert np.isfinite(copies).all()


# Prefetching, on the way to the devices and by the user.


def test_no_batch_has_old_weights_whoever_prefetches():
    features, y = blobs(60)
    index = np.arange(60, dtype="float32")
    x = np.column_stack([index / 64, features[:, 1:]])
    given, due = [], []

    def note(x, weight):
        given.append((np.rint(x[:, 0] * 64).astype(int), weight))
        return x

    def noted(x, y, weight):
        same = tf.numpy_function(note, [x, weight], tf.float32)
        return tf.ensure_shape(same, x.shape), y, weight

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            due.append(cbnn.sample_weights.numpy())

    with strategy().scope():
        model = network()
        cbnn = CBNNCallback.paper(interval=2, deviation_rate=0.2)
        train = cbnn.weighted(x, y, batch_size=10).map(noted).prefetch(3)
        model.fit(train, epochs=3, callbacks=[cbnn, Look()], verbose=0)
    assert len({weights.tobytes() for weights in due}) >= 4
    # Those before were only looked at by Keras, to build the model.
    for (index, weight), weights in zip(given[-18:], due, strict=True):
        np.testing.assert_array_equal(weight, weights[index])


def test_batches_that_are_gathered_behind_the_lookup(monkeypatch):
    monkeypatch.setattr("cbnn_keras.data.gate._PATIENCE", 1.0)
    x, y = blobs()
    with strategy().scope():
        model = network()
        cbnn = CBNNCallback.paper(interval=2)
        train = cbnn.weighted(x, y, batch_size=12).shuffle(10)
        with pytest.warns(UserWarning, match=r"held back.*Remove `\.shuffle"):
            model.fit(train, epochs=2, callbacks=[cbnn], verbose=0)
    assert [r["step"] for r in cbnn.history] == list(range(2, 21, 2))


def test_a_pipeline_of_your_own():
    x, y = blobs(121)
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    with strategy().scope():
        model = network(norm="separate")
        cbnn = CBNNCallback.paper(interval=5, score_data=(x, y))
        train = (
            cbnn.attach_index(dataset)
            .shuffle(121)
            .batch(12, drop_remainder=True)
            .map(lambda index, x, y: (x, y, cbnn.look_up(index)))
        )
        model.fit(train, epochs=4, callbacks=[cbnn], verbose=0)
    assert cbnn.ensemble().evaluate(x, y)["accuracy"] > 0.6


def test_epochs_that_are_no_passes():
    x, y = blobs()
    with strategy().scope():
        model = network()
        cbnn = CBNNCallback.paper(interval=4)
        train = cbnn.weighted(x, y, batch_size=12).repeat()
        model.fit(
            train, epochs=3, steps_per_epoch=7, callbacks=[cbnn], verbose=0
        )
    assert [r["step"] for r in cbnn.history] == [4, 8, 12, 16, 17, 21]


@pytest.mark.parametrize("num_samples", [120, 24])
def test_repeated_passes(num_samples):
    """Passes go on from one epoch to the next, and start before it."""
    x, y = blobs(num_samples)
    with strategy().scope():
        model = network()
        cbnn = CBNNCallback.paper(interval=3)
        train = cbnn.weighted(x, y, batch_size=12)
        num_steps = num_samples // 12
        model.fit(
            train.repeat(),
            epochs=60 // num_steps,
            steps_per_epoch=num_steps,
            callbacks=[cbnn],
            verbose=0,
        )
    assert cbnn.history[-1]["step"] == 60
    assert len(cbnn.history) == 20


def test_weights_that_are_cached_under_a_strategy():
    x, y = blobs()
    with strategy().scope():
        model = network()
        cbnn = CBNNCallback.paper(interval=7)
        train = cbnn.weighted(x, y, batch_size=12).cache()
        with pytest.raises(ValueError, match="frozen.*Remove `.cache"):
            model.fit(train, epochs=3, callbacks=[cbnn], verbose=0)


def test_batches_are_whole_again_after_training():
    cbnn, _, x, y = run(2, num_samples=121)
    train = cbnn.weighted(x, y, batch_size=24)
    with (
        strategy().scope(),
        pytest.warns(UserWarning, match="lets go of the last one"),
    ):
        network().fit(train, callbacks=[cbnn], verbose=0)
    assert [len(labels) for _, labels, _ in train] == [24] * 5 + [1]


def sparse(x, y):
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    return dataset.map(lambda x, y: (tf.sparse.from_dense(x), y))


def test_sparse_inputs():
    x, y = blobs()
    with strategy().scope():
        model = network()
        cbnn = CBNNCallback.paper(interval=5)
        train = cbnn.weighted(sparse(x, y), batch_size=12)
        with pytest.raises(ValueError, match=r"sparse.*2 devices.*to_dense"):
            cbnn.set_model(model)
            cbnn.set_params({"epochs": 1, "steps": 10})
            cbnn.on_train_begin()
    del train


def test_another_callback_may_read_the_pipeline_and_stop_training():
    x, y = blobs()
    num_read = []

    class Reader(keras.callbacks.Callback):
        def read(self, *_):
            num_read.append(sum(1 for _ in train))

        on_train_begin = on_epoch_begin = on_epoch_end = on_train_end = read

        def on_train_batch_end(self, batch, logs=None):
            self.read()
            self.model.stop_training = batch == 4

    with strategy().scope():
        model = network()
        cbnn = CBNNCallback.paper(interval=7)
        train = cbnn.weighted(x, y, batch_size=12)
        with pytest.warns(UserWarning, match="Training ended after step 5"):
            model.fit(train, epochs=3, callbacks=[cbnn, Reader()], verbose=0)
    assert num_read == [10] * 9
    assert [r["step"] for r in cbnn.history] == [5]


# Crashes.


class Stop(Exception):
    """Ends `fit` in the middle."""


class StopAt(keras.callbacks.Callback):
    def __init__(self, epoch, batch):
        super().__init__()
        self.when = (epoch, batch)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.when:
            raise Stop


def resumable(num_replicas, directory, *others, norm=None):
    x, y = blobs(127)
    keras.utils.set_random_seed(1)
    scope = (
        strategy(num_replicas).scope()
        if num_replicas
        else contextlib.nullcontext()
    )
    with scope:
        model = network(dtype="float64", norm=norm)
        cbnn = CBNNCallback.paper(
            directory, interval=4, deviation_rate=0.1, resume=True
        )
        train = cbnn.weighted(x, y, batch_size=24, seed=3)
        model.fit(train, epochs=4, callbacks=[cbnn, *others], verbose=0)
    return cbnn, model, x, y


def test_resumed_on_another_number_of_devices(tmp_path):
    for num_replicas, stop in ((2, (1, 2)), (None, (2, 1))):
        with pytest.raises(Stop):
            resumable(num_replicas, tmp_path / "run", StopAt(*stop))
    found = resumable(3, tmp_path / "run")
    expected = resumable(None, tmp_path / "other")
    assert_same(found, expected, 1e-5)
    assert len(CheckpointEnsemble.load(tmp_path / "run")) == len(
        expected[0].ensemble()
    )


def test_the_same_pipeline_again_after_an_error():
    x, y = blobs()
    with strategy().scope():
        cbnn = CBNNCallback.paper(interval=7)
        train = cbnn.weighted(x, y, batch_size=12)
        model = network()
        with pytest.raises(Stop):
            model.fit(
                train, epochs=3, callbacks=[cbnn, StopAt(0, 3)], verbose=0
            )
        assert sum(1 for _ in train) == 10
        model.fit(train, epochs=3, callbacks=[cbnn], verbose=0)
    assert [r["step"] for r in cbnn.history] == [7, 14, 21, 23, 30]


def test_the_same_pipeline_on_one_device_after_an_error():
    x, y = blobs(121)
    sizes = []
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: sizes.extend(len(y) for _, y, _ in train)
    )
    cbnn = CBNNCallback.paper(interval=7)
    with strategy().scope():
        train = cbnn.weighted(x, y, batch_size=24)
        with pytest.raises(Stop):
            network().fit(
                train, epochs=2, callbacks=[cbnn, StopAt(0, 3)], verbose=0
            )
    network().fit(train, epochs=2, callbacks=[cbnn, look], verbose=0)
    assert sizes == 2 * ([24] * 5 + [1])


def start(directory, *arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, directory, "4", *arguments],
        env=os.environ | {"REPLICAS": "2"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.large
def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    assert start(tmp_path / "whole").returncode == 0
    for fatal_save in ("33", "16"):
        killed = start(tmp_path / "killed", fatal_save)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    last = start(tmp_path / "killed")
    assert last.returncode == 0, last.stderr
    # It went on where it was, and not from the start.
    assert "epoch 0" not in last.stdout
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    found, expected = (
        np.load(tmp_path / f"{name}.results.npz")
        for name in ("killed", "whole")
    )
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


LEFT_WAITING = """
import keras, numpy as np, tensorflow as tf, time
from cbnn_keras import CBNNCallback

cpu = tf.config.list_physical_devices("CPU")[0]
logical = tf.config.LogicalDeviceConfiguration()
tf.config.set_logical_device_configuration(cpu, [logical, logical])
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, activation="softmax")]
    )
    model.compile("sgd", "sparse_categorical_crossentropy")

def fail(batch, logs):
    if batch == 3:
        time.sleep(0.5)  # the pipeline has come to the gate by now
        raise RuntimeError("on purpose")

cbnn = CBNNCallback.paper(interval=5)
train = cbnn.weighted(np.ones((60, 4)), np.arange(60) % 3, batch_size=6)
failing = keras.callbacks.LambdaCallback(on_train_batch_end=fail)
model.fit(train, epochs=3, callbacks=[cbnn, failing], verbose=0)
"""


def test_a_process_that_fails_while_a_batch_is_held_back_ends_as_others():
    found = subprocess.run(
        [sys.executable, "-c", LEFT_WAITING],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "RuntimeError: on purpose" in found.stderr
    assert found.returncode == 1  # and no signal


# What is refused, when `fit` begins.


@pytest.mark.parametrize(
    ("compile", "message"),
    [
        (
            {"jit_compile": True},
            r"jit_compile=True under tf\.distribute\.MirroredStrategy.*XLA on "
            "several devices",
        ),
        (
            {"steps_per_execution": 4},
            r"steps_per_execution=4 under tf\.distribute\.MirroredStrategy.*"
            "fails on several steps at once",
        ),
    ],
)
def test_what_keras_cannot_do_under_a_strategy(compile, message):
    x, y = blobs()
    with strategy().scope():
        model = network(**compile)
        cbnn = CBNNCallback.paper()
        train = cbnn.weighted(x, y, batch_size=12)
        before = model.get_weights()
        with pytest.raises(ValueError, match=message):
            model.fit(train, callbacks=[cbnn], verbose=0)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert cbnn.history == []


def test_xla_under_a_strategy_of_one_device():
    cbnn, _, x, y = run(1, jit_compile=True, epochs=2)
    assert cbnn.ensemble().evaluate(x, y)["accuracy"] > 0.6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: tf.distribute.experimental.CentralStorageStrategy(
                ["CPU:0"]
            ),
            r"CentralStorageStrategy.*MirroredStrategy\(\)",
        ),
        (
            # Not begun: that would change the collectives of this process.
            lambda: object.__new__(tf.distribute.MultiWorkerMirroredStrategy),
            r"MultiWorkerMirroredStrategy.*KERAS_BACKEND=jax.*several_hosts",
        ),
    ],
)
def test_another_strategy(make, message):
    x, y = blobs()
    model = network()
    model._distribute_strategy = make()
    cbnn = CBNNCallback.paper()
    train = cbnn.weighted(x, y, batch_size=12)
    with pytest.raises(ValueError, match=message):
        cbnn.set_model(model)
        cbnn.set_params({"epochs": 1, "steps": 10})
        cbnn.on_train_begin()
    del train


@pytest.mark.parametrize(
    ("num_samples", "batch_size", "first"), [(120, 25, 25), (31, 40, 31)]
)
def test_batches_that_keras_cannot_divide(num_samples, batch_size, first):
    x, y = blobs(num_samples)
    with (
        strategy().scope(),
        pytest.raises(
            ValueError, match=rf"first batch of {first} .* among 2 devices"
        ),
    ):
        weighted(x, y, batch_size=batch_size)
