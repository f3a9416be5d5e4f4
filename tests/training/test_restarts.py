"""Restarts: one run, several members that start anew."""

import math
import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import blobs, dense_model
from test_callback import images, noisy_cnn
from test_resume import Stop, StopAfter, contents

from cbnn_keras import CBNNCallback, CheckpointEnsemble


class AtStep(keras.callbacks.Callback):
    """What a function of the model gives, by step, when listed after CBNN."""

    def __init__(self, look, before=False):
        super().__init__()
        self.look, self.before, self.found = look, before, []

    def on_train_batch_begin(self, batch, logs=None):
        if self.before:
            self.found.append(self.look(self.model))

    def on_train_batch_end(self, batch, logs=None):
        if not self.before:
            self.found.append(self.look(self.model))


def fit(*others, model=None, data=None, epochs=4, seed=1, **options):
    """24 steps with `blobs`; `others` are listed after the callback."""
    keras.utils.set_random_seed(seed)
    x, y = data or blobs()
    model = model() if model else dense_model()
    cbnn = CBNNCallback(**options)
    train = cbnn.weighted(x, y, batch_size=20, seed=1)
    before = [o for o in others if getattr(o, "is_first", False)]
    after = [o for o in others if o not in before]
    model.fit(
        train, epochs=epochs, callbacks=[*before, cbnn, *after], verbose=0
    )
    return cbnn, model


def weights(model):
    return [np.array(w) for w in model.get_weights()]


def test_members_are_the_ends_of_the_cycles():
    cbnn, _ = fit(restarts=3)
    assert [r["step"] for r in cbnn.history] == [8, 16, 24]
    assert len(cbnn.ensemble()) == 3


@pytest.mark.parametrize("keep", [0.0, 0.3])
def test_model_becomes_a_blend_with_fresh_weights(keep):
    """Fresh biases are zero, so that a share of the old ones is left."""
    before, after = AtStep(weights), AtStep(weights)
    before.is_first = True
    fit(before, after, restarts=3, keep=keep)
    for step in (8, 16):
        old, new = before.found[step - 1], after.found[step - 1]
        for i in (1, 3):  # biases
            np.testing.assert_allclose(new[i], keep * old[i], rtol=1e-6)
        for i in (0, 2):  # kernels, by Glorot and Bengio
            limit = math.sqrt(6 / sum(old[i].shape))
            fresh = (new[i] - keep * old[i]) / (1 - keep)
            assert np.abs(fresh).max() <= limit * 1.0001
            assert fresh.std() == pytest.approx(limit / math.sqrt(3), rel=0.4)
    # Other weights in every cycle, and nothing changes between them.
    assert not np.array_equal(after.found[7][0], after.found[15][0])
    for step in {*range(24)} - {7, 15}:
        for a, b in zip(before.found[step], after.found[step], strict=True):
            np.testing.assert_array_equal(a, b)


def test_early_stopping_is_warned_of():
    """It ends training where the model has just started anew."""
    stop = keras.callbacks.EarlyStopping("cbnn_error", mode="min", patience=9)
    with pytest.warns(
        UserWarning, match=r"restarts=2\): `EarlyStopping` is .*Leave it out"
    ) as caught:
        fit(stop, restarts=2)
    assert sum("EarlyStopping` is" in str(w.message) for w in caught) == 1


def test_optimizer_and_batch_norm_begin_anew():
    def state(model):
        optimizer = {v.path: np.array(v) for v in model.optimizer.variables}
        optimizer.pop("adam/learning_rate")
        norm = model.layers[1]
        return optimizer, [np.array(w) for w in norm.get_weights()]

    look = AtStep(state)
    fit(look, model=noisy_cnn, data=images(), restarts=2, epochs=4)
    optimizer, norm = look.found[9]  # 20 steps, a cycle of 10
    assert len(optimizer) == 1 + 2 * 6
    assert all(not value.any() for value in optimizer.values())
    for value, expected in zip(norm, [1, 0, 0, 1], strict=True):
        assert (value == expected).all()
    assert all(value.any() for value in look.found[8][0].values())


def test_frozen_layers_and_adapted_ones_stay():
    x, _ = blobs()

    def make():
        normalise = keras.layers.Normalization()
        normalise.adapt(x)
        model = keras.Sequential(
            [
                keras.Input((4,)),
                normalise,
                keras.layers.Dense(8, "relu", trainable=False),
                keras.layers.BatchNormalization(trainable=False),
                keras.layers.Dense(3, "softmax"),
            ]
        )
        model.layers[2].moving_mean.assign(np.arange(8.0) / 8)
        model.compile(
            keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy"
        )
        return model

    begin, look = AtStep(weights, before=True), AtStep(weights)
    fit(begin, look, model=make, restarts=2)
    for a, b in zip(begin.found[0][:-2], look.found[11][:-2], strict=True):
        np.testing.assert_array_equal(a, b)
    assert not look.found[11][-1].any() and look.found[10][-1].any()


@pytest.mark.parametrize("head", [None, "hidden", ["hidden", "out"]])
def test_back_to_the_start_with_a_new_head(head):
    def make():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, "relu", name="hidden"),
                keras.layers.Dense(3, "softmax", name="out"),
            ]
        )
        model.set_weights([w + 1 for w in model.get_weights()])
        model.compile(
            keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy"
        )
        return model

    begin, look = AtStep(weights, before=True), AtStep(weights)
    fit(begin, look, model=make, restarts=2, restart_from="start", head=head)
    names = {"out"} if head is None else {*np.atleast_1d(head)}
    layers = ["hidden", "hidden", "out", "out"]
    for first, new, layer in zip(
        begin.found[0], look.found[11], layers, strict=True
    ):
        if layer in names:
            assert not np.array_equal(first, new)
            assert np.abs(new).max() < 1  # drawn, not from around 1
        else:
            np.testing.assert_array_equal(first, new)


@pytest.mark.parametrize("restarts", [None, 2])
def test_learning_rate_is_a_cosine_in_every_cycle(restarts):
    rate = AtStep(lambda m: float(m.optimizer.learning_rate), before=True)
    _, model = fit(rate, restarts=restarts, learning_rate="cosine")
    length = 24 if restarts is None else 12
    assert rate.found == pytest.approx(
        [
            0.025 * (math.cos(math.pi * (i % length) / length) + 1)
            for i in range(24)
        ]
    )
    # As compiled, for another `fit`.
    assert float(model.optimizer.learning_rate) == pytest.approx(0.05)


@pytest.mark.parametrize(
    "options", [{"restarts": 2, "learning_rate": "compiled"}, {}], ids=str
)
def test_learning_rate_is_left_alone(options):
    rate = AtStep(lambda m: float(m.optimizer.learning_rate), before=True)
    fit(rate, **options)
    assert set(rate.found) == {np.float32(0.05)}


@pytest.mark.parametrize("options", [{"restarts": 3}, {"restarts": None}])
def test_the_compiled_rate_outlasts_an_interrupted_fit(options):
    """Keras tells nobody that a `fit` ended by an error or Ctrl-C."""
    options["learning_rate"] = "cosine"
    model = dense_model()
    highest = float(model.optimizer.learning_rate)
    with pytest.raises(Stop):
        fit(StopAfter(epoch=1), model=lambda: model, **options)
    assert float(model.optimizer.learning_rate) < 0.9 * highest
    rates = AtStep(lambda m: float(m.optimizer.learning_rate), before=True)
    cbnn, _ = fit(rates, model=lambda: model, **options)
    assert cbnn.run.header.settings.own["highest_rate"] == highest
    assert rates.found[0] == highest
    assert float(model.optimizer.learning_rate) == highest
    # What somebody else has set is what counts.
    with pytest.raises(Stop):
        fit(StopAfter(epoch=1), model=lambda: model, **options)
    model.optimizer.learning_rate = 0.03125
    cbnn, _ = fit(model=lambda: model, **options)
    assert cbnn.run.header.settings.own["highest_rate"] == 0.03125


def test_a_schedule_of_the_optimizer_goes_on_over_restarts():
    def make():
        decay = keras.optimizers.schedules.PolynomialDecay(0.05, 24, 0.0)
        return dense_model(optimizer=keras.optimizers.Adam(decay))

    steps = AtStep(lambda m: int(m.optimizer.iterations))
    fit(steps, model=make, restarts=2, learning_rate="compiled")
    assert steps.found == list(range(1, 25))
    with pytest.raises(ValueError, match="the optimizer was made with a sche"):
        fit(model=make, restarts=2)


@pytest.mark.large
def test_equal_seeds_give_equal_restarts_and_python_draws_as_before():
    found = []
    for _ in range(2):
        look = AtStep(weights)
        fit(look, restarts=3, seed=4)
        found.append(look.found[-1])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    drawn = []
    for restarts in (2, 3):
        fit(restarts=restarts, seed=4)
        drawn.append(random.random())
    assert drawn[0] == drawn[1]


def test_initializers_with_a_seed_of_the_user_draw_others():
    def make():
        initializer = keras.initializers.GlorotUniform(seed=1)
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(
                    3, "softmax", kernel_initializer=initializer
                ),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy"
        )
        return model

    begin, look = AtStep(weights, before=True), AtStep(weights)
    fit(begin, look, model=make, restarts=3)
    starts = [begin.found[0][0], look.found[7][0], look.found[15][0]]
    assert len({start.tobytes() for start in starts}) == 3


def killable(directory, *others, seed=0, **options):
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    x, y = images()
    model = noisy_cnn()
    cbnn = CBNNCallback(directory, resume=True, largest_ratio=1.1, **options)
    train = cbnn.weighted(x, y, batch_size=16, seed=4)
    model.fit(train, epochs=5, callbacks=[cbnn, *others], verbose=0)


@pytest.mark.parametrize(
    ("crash", "options"),
    [
        ({"epoch": 3, "batch": 1}, {"average": True, "keep": 0.3}),
        pytest.param({"epoch": 1, "batch": 5}, {}, marks=pytest.mark.large),
        pytest.param(
            {"epoch": 2},
            {"restart_from": "start", "average": 0.2},
            marks=pytest.mark.large,
        ),
    ],
    ids=str,
)
@pytest.mark.large
def test_resumed_run_equals_uninterrupted(tmp_path, crash, options):
    """6 steps an epoch; restarts after 10 and 20 of 30."""
    killable(tmp_path / "whole", restarts=3, **options)
    with pytest.raises(Stop):
        killable(tmp_path / "run", StopAfter(**crash), restarts=3, **options)
    # Only where the run began with them do the first weights matter.
    killable(tmp_path / "run", seed=99, restarts=3, **options)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    assert len(CheckpointEnsemble.load(tmp_path / "run")) == 3


@pytest.mark.large
def test_restarts_on_several_devices():
    found = []
    for num_devices in (1, 2):
        keras.utils.set_random_seed(1)
        strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{i}" for i in range(num_devices)],
            tf.distribute.ReductionToOneDevice(),
        )
        with strategy.scope():
            model = dense_model(optimizer=keras.optimizers.SGD(0.1))
        x, y = blobs()
        cbnn = CBNNCallback(average=True, restarts=2, keep=0.5)
        train = cbnn.weighted(x, y, batch_size=24, seed=1)
        model.fit(train, epochs=4, callbacks=[cbnn], verbose=0)
        found.append((cbnn.ensemble().votes, cbnn.ensemble().predict(x)))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-4)


class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden = keras.layers.Dense(8, "relu")
        self.out = keras.layers.Dense(3, "softmax")

    def call(self, x):
        return self.out(self.hidden(x))


class WithArgument(Subclassed):
    def __init__(self, num):
        super().__init__()


def test_subclassed_model_restarts_if_it_can_be_made_again():
    def make(cls, *arguments):
        model = cls(*arguments)
        model.compile(
            keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy"
        )
        return model

    before, look = AtStep(weights), AtStep(weights)
    before.is_first = True
    fit(before, look, model=lambda: make(Subclassed), restarts=2)
    assert not look.found[11][1].any() and before.found[11][1].any()
    with pytest.raises(ValueError, match="cannot draw fresh weights for With"):
        fit(model=lambda: make(WithArgument, 3), restarts=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"restarts": 1},
            "restarts=1.: restarts must be 'auto', or an integer",
        ),
        ({"restarts": "six"}, "'six'.: restarts must be 'auto', or an integer"),
        ({"restarts": 2, "interval": 3}, "interval=3, restarts=2.: give one"),
        ({"restarts": 2, "num_checkpoints": 3}, "give one of them, not seve"),
        ({"keep": 1}, "keep=1.: keep must be a share of at least 0 and bel"),
        ({"keep": -0.1}, "keep must be a share"),
        ({"restart_from": "scratch"}, "must be 'fresh' or 'start'"),
        ({"head": "out"}, "head='out'.: only with restart_from='start'"),
        ({"learning_rate": 0.1}, "learning_rate=0.1.: must be 'cosine' or"),
    ],
    ids=str,
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        CBNNCallback(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"restarts": 30}, "24 steps has no room for 30 cycles: train for"),
        (
            {"restarts": 2, "restart_from": "start", "head": "top"},
            "the model has no layer 'top'; it has dense",
        ),
    ],
    ids=str,
)
def test_runs_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        fit(**options)
