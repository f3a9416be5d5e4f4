"""`restarts="auto"`: held-out samples decide when a run starts anew."""

import json
import math

import keras
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
import sklearn.metrics
import tensorflow as tf
from helpers import blobs, dense_model
from test_callback import images, noisy_cnn
from test_restarts import AtStep, weights
from test_restarts import fit as fit_epochs
from test_resume import Stop, StopAfter, contents

from cbnn_keras import CBNNCallback, CheckpointEnsemble, RunError
from cbnn_keras.boosting import stage_vote
from cbnn_keras.commands import cli
from cbnn_keras.commands.inspect import inspect_run
from cbnn_keras.runs.advice import restart_advice

X, Y = blobs(20)
LOSS = "cbnn_keras.training.running_accuracy.RunningAccuracy.loss"
LOOKS = [2, 3, 4, 6, 8, 12, 16, 24]
# In 24 epochs of one step, if twice the steps never help: cycles of two steps
# begin after step 4.
STEPS = [2, 3, *range(4, 26, 2)]
quiet = pytest.mark.filterwarnings("ignore:.*no better than chance")


@pytest.fixture
def flat(monkeypatch):
    """Twice the steps never help."""
    monkeypatch.setattr(LOSS, lambda *_: 0.1)


def fit(*others, **options):
    """24 epochs of one step each."""
    return fit_epochs(*others, data=(X, Y), epochs=24, **options)


def held_out_loss(probabilities, labels):
    """Of the best temperature, by other people's code."""

    logs = np.log(np.maximum(probabilities.astype(float), 1e-7))

    def loss(log):
        scaled = scipy.special.softmax(logs / math.exp(log), axis=1)
        return sklearn.metrics.log_loss(labels, scaled)

    return scipy.optimize.minimize_scalar(
        loss, bounds=(math.log(0.01), math.log(100)), method="bounded"
    ).fun


def slow_model():
    """What it learns in 24 steps is never enough."""
    return dense_model(optimizer=keras.optimizers.SGD(0.2))


def test_as_long_as_twice_the_steps_help_it_is_one_cosine():
    """Bit for bit, and members are trusted as they are without restarts."""
    cbnn, model = fit(model=slow_model, restarts="auto", validation_data=(X, Y))
    _, alone = fit(model=slow_model, learning_rate="cosine")
    for ours, theirs in zip(weights(model), weights(alone), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [r["step"] for r in cbnn.history] == LOOKS
    losses = {r["step"]: r["validation_loss"] for r in cbnn.history}
    assert all(losses[2 * s] < 0.97 * losses[s] for s in (2, 3, 4, 6, 8))
    errors = cbnn.run.training_errors(LOOKS)
    assert [m["step"] for m in cbnn.ensemble().members] == [
        s for s, e in zip(LOOKS, errors, strict=True) if e <= errors[-1] + 0.005
    ]
    assert restart_advice(cbnn.run) == (
        "Up to step 16 of 24 twice the steps still helped on held-out data: "
        "the model never started anew."
    )


@quiet
def test_what_no_longer_helps_starts_anew(flat):
    rate = AtStep(lambda m: float(m.optimizer.learning_rate), before=True)
    before, after = AtStep(weights), AtStep(weights)
    before.is_first = True
    cbnn, model = fit(
        rate, before, after, restarts="auto", validation_data=(X, Y)
    )
    assert [r["step"] for r in cbnn.history] == STEPS
    # Fresh biases are zero, from the second look on.
    is_fresh = [not found[1].any() for found in after.found]
    assert [s for s in range(1, 25) if is_fresh[s - 1]] == STEPS[2:-1]
    assert all(found[1].any() for found in before.found)
    # A cosine of 24 steps that breaks off, then cosines of two steps.
    ours = [0.025 * (math.cos(math.pi * i / 24) + 1) for i in range(4)]
    assert rate.found == pytest.approx([*ours, *[0.05, 0.025] * 10])
    assert float(model.optimizer.learning_rate) == pytest.approx(0.05)


@quiet
@pytest.mark.large
@pytest.mark.parametrize(
    ("restarts", "rate", "starts"),
    [
        ("auto", 0.1, range(4, 24, 2)),
        # Nothing is ever seen, and it stays one cosine.
        ("auto", 100.0, []),
        (6, 0.1, range(4, 24, 4)),
        (6, 100.0, range(4, 24, 4)),
    ],
)
def test_cycles_outlast_the_stop_rule(flat, restarts, rate, starts):
    """The learning rate is that of a cycle, and so are the weights."""
    weights_after = AtStep(weights)
    rates = AtStep(lambda m: float(m.optimizer.learning_rate), before=True)
    cbnn, _ = fit(
        weights_after,
        rates,
        restarts=restarts,
        validation_data=(X, Y),
        deviation_rate=rate,
        average=False,
    )
    planned = len(STEPS) if restarts == "auto" else restarts
    assert len(cbnn.history) < planned  # the votes were used up
    fresh = [not found[1].any() for found in weights_after.found]
    assert [s for s in range(1, 25) if fresh[s - 1]] == list(starts)
    highest = [s - 1 for s in range(2, 25) if rates.found[s - 1] > 0.0499]
    assert highest == list(starts)


@quiet
def test_averages_are_of_a_part_of_the_cycle(flat):
    """Half of a cycle of two steps is one step: exp(-1) of the one before."""
    raw = AtStep(weights)
    raw.is_first = True
    cbnn, _ = fit(raw, restarts="auto", validation_data=(X, Y), average=0.5)
    with cbnn.ensemble("all").member(8) as model:
        found = weights(model)
    for before, last, mean in zip(
        raw.found[6], raw.found[7], found, strict=True
    ):
        share = math.exp(-1)
        expected = share * before + (1 - share) * last
        np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-7)


@quiet
def test_who_has_trained_long_enough_votes(capsys):
    """Losses after 2, 3, 4, 6 and 8 steps: 8 are no better than 4."""
    cbnn = CBNNCallback(restarts="auto", validation_data=(X, Y))
    losses = iter([1.0, 0.8, 0.5, 0.4, 0.499, 0.3, 0.2, 0.1, 0.1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LOSS, lambda *_: next(losses))
        train = cbnn.weighted(X, Y, batch_size=20, seed=1)
        keras.utils.set_random_seed(1)
        dense_model().fit(train, epochs=24, callbacks=[cbnn], verbose=2)
    steps = [2, 3, 4, 6, 8, 12, 16, 20, 24]
    assert [r["step"] for r in cbnn.history] == steps
    assert [m["step"] for m in cbnn.ensemble().members] == [
        4,
        8,
        12,
        16,
        20,
        24,
    ]
    assert len(cbnn.ensemble("all")) == 9
    text = capsys.readouterr().out
    assert (
        "held-out loss 0.5000 after step 4 and 0.4990 after step 8: twice the "
        "steps helped by less than 3%, so that cycles of 4 steps begin" in text
    )
    assert (
        "After step 4 twice the steps no longer helped on held-out data: 4 of "
        "6 members started anew." in text
    )
    assert (
        "checkpoints after steps 2, 3, 4, 6, 8, 12, 16, 24; in memory" in text
    )


def test_the_loss_is_that_of_the_member():
    x, y = blobs(60, seed=9)
    held_out = (x, np.where(np.arange(60) % 4, y, (y + 1) % 3))
    cbnn, _ = fit(model=slow_model, restarts="auto", validation_data=held_out)
    ensemble = cbnn.ensemble("all")
    predictions = ensemble.member_probabilities(x, verbose=0)
    for record, said in zip(ensemble.rounds, predictions, strict=True):
        expected = held_out_loss(said, held_out[1])
        assert record.validation_loss == pytest.approx(expected, rel=1e-4)
    settings = cbnn.run.header.settings.own
    assert settings["restart_chance"] == pytest.approx(
        scipy.stats.entropy(np.bincount(held_out[1]))
    )


@quiet
def test_a_run_directory_remembers(flat, tmp_path, capsys):
    directory = tmp_path / "run"
    fit(directory=directory, restarts="auto", validation_data=(X, Y))
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["format_version"] == 8
    settings = manifest["settings"]
    assert (settings["restarts"], settings["restart_parts"]) == ("auto", 24)
    loaded = CheckpointEnsemble.load(directory)
    everyone = CheckpointEnsemble.load(directory, members="all")
    steps = [m["step"] for m in everyone.members]
    # All but that of step 3, after which it did not start anew.
    assert [m["step"] for m in loaded.members] == [s for s in steps if s != 3]
    loaded.take(steps[-2:]).save(tmp_path / "copy")
    assert len(CheckpointEnsemble.load(tmp_path / "copy")) == 2
    with pytest.raises(
        ValueError, match="restarts=auto: members after step 4 started anew"
    ):
        loaded.soup(X, Y)
    assert cli.main(["inspect", str(directory)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("no vote") == 1  # that of step 3
    assert "not trusted" not in printed


@quiet
def test_inspect_tells_the_restarts_that_were_made(flat, tmp_path):
    """Not those that would have come."""
    directory = tmp_path / "run"
    options = {"restarts": "auto", "validation_data": (X, Y)}
    fit(StoppingAfter(9), directory=directory, **options)
    assert inspect_run(directory)["restarts_after"] == [4, 6, 8]
    with pytest.raises(Stop):
        fit(StopAfter(epoch=6), directory=tmp_path / "other", **options)
    assert inspect_run(tmp_path / "other")["restarts_after"] == [4, 6]


@pytest.mark.large
def test_without_a_restart_members_are_a_soup():
    cbnn, _ = fit(model=slow_model, restarts="auto", validation_data=(X, Y))
    assert len(cbnn.ensemble("all").soup(X, Y, verbose=0)) == 1


@pytest.mark.large
@quiet
@pytest.mark.parametrize("how", ["validation_data", "validation_split"])
def test_callback_fit_passes_held_out_data_on(how):
    options = {"validation_data": (X, Y, Y), "validation_split": 0.2}
    cbnn = CBNNCallback(restarts="auto")
    cbnn.fit(
        dense_model(),
        X,
        Y,
        epochs=24,
        batch_size=20,
        verbose=0,
        seed=1,
        **{how: options[how]},
    )
    assert all("validation_loss" in record for record in cbnn.history)


@quiet
@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras'
def test_held_out_data_without_an_end(flat):
    """As many batches of them as `fit` is told to take."""

    def endless():
        for _ in range(2000):
            yield X, Y
        pytest.fail("All of it was read.")

    batches = tf.data.Dataset.from_generator(
        endless,
        output_signature=(
            tf.TensorSpec(X.shape, tf.float32),
            tf.TensorSpec(Y.shape, tf.int64),
        ),
    )
    cbnn = CBNNCallback(restarts="auto")
    options = {"epochs": 24, "batch_size": 20, "verbose": 0}
    cbnn.fit(
        dense_model(),
        X,
        Y,
        validation_data=batches,
        validation_steps=2,
        **options,
    )
    assert all("validation_loss" in record for record in cbnn.history)


def test_weights_part_no_further_than_they_may():
    """However many checkpoints there are: 13, and no update after the last."""
    cbnn, _ = fit(restarts="auto", validation_data=(X, Y), largest_ratio=1.2)
    expected = 12 * stage_vote(0.05, num_classes=3)
    rate = cbnn.run.header.settings.policy.deviation_rate
    assert rate == pytest.approx(math.log(1.2) / expected)


def test_held_out_data_of_one_fit_are_not_those_of_the_next():
    cbnn = CBNNCallback(restarts="auto")
    with pytest.raises(ValueError, match="2 steps is too short"):
        cbnn.fit(dense_model(), X, Y, batch_size=10, validation_data=(X, Y))
    assert cbnn.validation_data is None
    with pytest.raises(ValueError, match="held-out samples decide when to sta"):
        cbnn.fit(dense_model(), X, Y, epochs=24, batch_size=20, verbose=0)
    # Those of the callback are its own.
    own = CBNNCallback(restarts="auto", validation_data=(X, Y))
    with pytest.raises(ValueError, match="2 steps is too short"):
        own.fit(dense_model(), X, Y, batch_size=10, validation_data=(X, Y))
    assert own.validation_data == (X, Y)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return X, Y


def test_held_out_data_that_only_fit_can_read():
    """They go with `fit`, and it is `restarts` that wants others."""
    options = {"validation_data": Batches(), "batch_size": 5, "verbose": 0}
    CBNNCallback().fit(dense_model(), X, Y, **options)
    with pytest.raises(
        ValueError,
        match=r"^CBNNCallback\(restarts='auto'\): validation_data must be "
        r"`\(x, y\)` or .*; received Batches",
    ):
        CBNNCallback(restarts="auto").fit(dense_model(), X, Y, **options)


def test_held_out_data_are_needed():
    cbnn = CBNNCallback(restarts="auto")
    train = cbnn.weighted(X, Y, batch_size=20)
    with pytest.raises(ValueError, match=r"Give some to the callback, which d"):
        dense_model().fit(train, callbacks=[cbnn], verbose=0)
    with pytest.raises(ValueError, match="a run of 6 steps is too short to be"):
        fit_epochs(restarts="auto", validation_data=(X, Y), epochs=1)
    with pytest.raises(
        ValueError, match="not know how many steps an epoch has"
    ):
        cbnn = CBNNCallback(
            restarts="auto", validation_data=(X, Y), total_steps=24
        )
        train = cbnn.weighted(X, Y, batch_size=20)
        endless = train.take(24).filter(lambda *_: True)
        dense_model().fit(endless, callbacks=[cbnn], verbose=0)


def test_held_out_data_of_one_class_say_nothing():
    """Their loss can be that of knowing nothing, which is 0."""
    alone = Y == 1
    with pytest.raises(
        ValueError,
        match=r"CBNNCallback\(restarts='auto'\): all samples of validation_data"
        " are of one class.*Give samples of all classes",
    ):
        fit(restarts="auto", validation_data=(X[alone], Y[alone]))


def test_several_steps_at_once_cannot_be_looked_into():
    def make():
        model = dense_model()
        model.compile(
            "adam", "sparse_categorical_crossentropy", steps_per_execution=2
        )
        return model

    with pytest.raises(ValueError, match="between steps, .*execution=2. Leave"):
        fit(
            model=make,
            restarts="auto",
            learning_rate="compiled",
            validation_data=(X, Y),
        )


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("is_dataset", [False, True])
def test_held_out_samples_that_are_no_numbers(wrong, is_dataset):
    """Before the first step: a ReLU can turn NaN into 0."""
    x = X.copy()
    x[3, 1] = wrong
    data = (x, Y)
    if is_dataset:
        data = tf.data.Dataset.from_tensor_slices(data).batch(5)
    count = AtStep(lambda _: None)
    with pytest.raises(
        ValueError, match="^CBNNCallback.restarts='auto'.: .* not finite .NaN"
    ):
        fit(count, restarts="auto", validation_data=data)
    assert not count.found


class StoppingAfter(keras.callbacks.Callback):
    def __init__(self, num_epochs):
        super().__init__()
        self.num_epochs = num_epochs

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch + 1 == self.num_epochs


@quiet
def test_the_last_one_of_a_run_that_stopped_votes_if_it_had_time(flat):
    early, _ = fit(StoppingAfter(9), restarts="auto", validation_data=(X, Y))
    assert [r["step"] for r in early.history] == [2, 3, 4, 6, 8, 9]
    assert [m["step"] for m in early.ensemble().members] == [2, 4, 6, 8]
    assert "2 of 4 members started anew" in restart_advice(early.run)
    # What would have started anew after it was the end.
    at_look, _ = fit(StoppingAfter(4), restarts="auto", validation_data=(X, Y))
    assert [r["step"] for r in at_look.history] == [2, 3, 4]
    assert not at_look.run.auto_cycles.starts
    assert at_look.ensemble().members[-1]["step"] == 4
    assert restart_advice(at_look.run) == (
        "After step 2 twice the steps no longer helped on held-out data, but "
        "training ended there."
    )


@quiet
def test_training_that_ends_at_a_look_leaves_the_model_as_it_is(flat, capsys):
    """Nothing starts anew after the second one, of step 3."""
    keras.utils.set_random_seed(1)
    model, raw = dense_model(), AtStep(weights)
    cbnn = CBNNCallback(restarts="auto", validation_data=(X, Y))
    model.fit(
        cbnn.weighted(X, Y, batch_size=20, seed=1),
        epochs=24,
        callbacks=[cbnn, raw, StoppingAfter(3)],
        verbose=2,
    )
    for ours, theirs in zip(weights(model), raw.found[-1], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert "holds its last member" not in capsys.readouterr().out


@quiet
@pytest.mark.parametrize(("restarts", "end"), [("auto", 4), (6, 8)])
def test_training_that_ends_where_the_model_starts_anew(
    flat, restarts, end, capsys
):
    """It is no new model that `fit` leaves."""
    keras.utils.set_random_seed(1)
    model = dense_model()
    cbnn = CBNNCallback(restarts=restarts, validation_data=(X, Y))
    model.fit(
        cbnn.weighted(X, Y, batch_size=20, seed=1),
        epochs=24,
        callbacks=[cbnn, StoppingAfter(end)],
        verbose=2,
    )
    with cbnn.ensemble("all").member(end) as member:
        expected = weights(member)
    for ours, theirs in zip(weights(model), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (
        "training ended where the model had started anew: it holds its last "
        f"member again, of step {end}" in capsys.readouterr().out
    )


@pytest.mark.filterwarnings("ignore:At step")
@pytest.mark.parametrize(("restarts", "first"), [("auto", 2), (6, 4)])
def test_one_member_because_training_ended_early(restarts, first):
    """What is advised goes with restarts."""
    with pytest.warns(
        UserWarning,
        match=rf"after step 1 of 24, .* at step {first}: .* alone\. Train for "
        r"longer, or tell `fit` fewer epochs\.$",
    ):
        fit(StoppingAfter(1), restarts=restarts, validation_data=(X, Y))


def test_resumed_with_other_held_out_labels(tmp_path):
    """Hashes say nothing to anybody."""
    directory = tmp_path / "run"
    options = {"directory": directory, "restarts": "auto"}
    with pytest.raises(Stop):
        fit(StopAfter(epoch=1), validation_data=(X, Y), **options)
    with pytest.raises(
        RunError,
        match="with other settings: the labels of validation_data are others "
        r"or in another order\. Use the same",
    ):
        fit(resume=True, validation_data=(X, Y % 2), **options)
    with pytest.raises(RunError, match="restarts was 'auto'") as raised:
        fit(directory=directory, resume=True, restarts=3)
    assert "held_out was" not in str(raised.value)


def killable(directory, *others, seed=0, **options):
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    x, y = images()
    model = noisy_cnn()
    held_out = (x, y)
    cbnn = CBNNCallback(
        directory,
        resume=True,
        restarts="auto",
        validation_data=held_out,
        **options,
    )
    train = cbnn.weighted(x, y, batch_size=48, seed=4)
    model.fit(train, epochs=24, callbacks=[cbnn, *others], verbose=0)


@quiet
@pytest.mark.large
@pytest.mark.parametrize(
    ("crash", "options"),
    [
        ({"epoch": 12, "batch": 1}, {"average": 0.3}),
        ({"epoch": 3, "batch": 0}, {}),
        (
            {"epoch": 7},
            {"restart_from": "start", "average": 0.2, "largest_ratio": 1.1},
        ),
    ],
    ids=str,
)
def test_resumed_run_equals_uninterrupted(flat, tmp_path, crash, options):
    """2 steps an epoch; looks after 4 and 8 of 48, then cycles of 4."""
    killable(tmp_path / "whole", **options)
    with pytest.raises(Stop):
        killable(tmp_path / "run", StopAfter(**crash), **options)
    killable(tmp_path / "run", seed=99, **options)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    whole = CheckpointEnsemble.load(tmp_path / "whole")
    assert len(whole.run.auto_cycles.starts) == 10


@quiet
@pytest.mark.large
def test_on_several_devices(flat):
    found = []
    for num_devices in (1, 2):
        keras.utils.set_random_seed(1)
        strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{i}" for i in range(num_devices)],
            tf.distribute.ReductionToOneDevice(),
        )
        with strategy.scope():
            model = dense_model(optimizer=keras.optimizers.SGD(0.1))
        cbnn = CBNNCallback(restarts="auto", validation_data=(X, Y))
        train = cbnn.weighted(X, Y, batch_size=20, seed=1)
        model.fit(train, epochs=24, callbacks=[cbnn], verbose=0)
        assert cbnn.run.auto_cycles.starts
        found.append(cbnn.ensemble().predict(X))
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)
