"""One run of several fits: a head first, then all of the model."""

import json
import re
import shutil

import keras
import numpy as np
import pytest
from helpers import blobs, change_manifest, same, trained
from test_callback import Stop, StopAfter
from test_resume import contents

from cbnn_keras import CBNNCallback, CheckpointEnsemble, boosting, weighted
from cbnn_keras.runs.directory import RunDirectory

X, Y = blobs(130)  # 7 steps of 20 an epoch


def network():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="relu", name="base"),
            keras.layers.Dropout(0.2, seed=3),
            keras.layers.Dense(3, activation="softmax", name="head"),
        ]
    )
    model.get_layer("base").trainable = False
    return model


def compiled(model, rate):
    model.compile(
        keras.optimizers.Adam(rate), "sparse_categorical_crossentropy"
    )


def two_fits(directory, *others, seed=0, cbnn=None, epochs=(2, 3), **options):
    """A script of two phases; `others` are the callbacks of each."""
    keras.backend.clear_session()  # names of layers as in a new process
    keras.utils.set_random_seed(seed)
    others = [*others, *([[]] * (2 - len(others)))]
    model = network()
    compiled(model, 0.05)
    options = {"interval": 5, "largest_ratio": 1.1, **options}
    cbnn = cbnn or CBNNCallback(directory, phases=2, **options)
    train = cbnn.weighted(X, Y, batch_size=20, seed=1)
    logs = [
        model.fit(
            train, epochs=epochs[0], callbacks=[cbnn, *others[0]], verbose=0
        )
    ]
    model.get_layer("base").trainable = True
    compiled(model, 0.01)
    logs.append(
        model.fit(
            train, epochs=epochs[1], callbacks=[cbnn, *others[1]], verbose=0
        )
    )
    return cbnn, model, logs


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("phases") / "run"
    return directory, *two_fits(directory)


def test_steps_epochs_and_members_go_on(uninterrupted):
    directory, cbnn, _, _ = uninterrupted
    # By algorithm 1: of 14 steps 5, 14 - 5 and 14, of the other 21 again 5, 10,
    # 15, 21 - 5 and 21.
    steps = [5, 9, 14, 19, 24, 29, 30, 35]
    assert [r["step"] for r in cbnn.history] == steps
    # 7 steps an epoch, the first step is that of epoch 0.
    epochs = [(step - 1) // 7 for step in steps]
    assert [r["epoch"] for r in cbnn.history] == epochs
    assert [r["is_final"] for r in cbnn.history] == [False] * 7 + [True]
    run = RunDirectory.open(directory)
    assert run.is_finished
    assert [(p.step, p.epoch) for p in run.phases] == [(14, 2)]
    assert run.header.settings.total_steps == 21
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["format_version"] == 8  # by its averages


def test_boosting_goes_on_from_phase_to_phase(uninterrupted):
    """Every round recomputed by hand from what was right and wrong."""
    _, cbnn, _, _ = uninterrupted
    rate = cbnn.run.header.settings.policy.deviation_rate
    omega = np.full(len(Y), 1 / len(Y))
    for record in cbnn.history:
        correct = cbnn.run.correct(record["step"])
        error = omega @ ~correct
        vote = np.log((1 - error) / error) + np.log(2)
        assert record["error"] == pytest.approx(error)
        assert record["vote"] == pytest.approx(vote)
        if not record["is_final"]:
            omega = omega * np.exp(rate * vote * ~correct)
            omega /= omega.sum()
    np.testing.assert_allclose(cbnn.sample_weights, omega * len(Y), rtol=1e-5)


def averages(run):
    return [run.settings_of(phase).own.get("average") for phase in (0, 1)]


def test_a_long_fit_averages_as_the_short_one_before_it():
    cbnn, _, _ = two_fits(None, epochs=(2, 21))
    assert averages(cbnn.run) == [0.1, 0.1]


def test_a_fit_averages_as_the_one_of_another_version_before_it(tmp_path):
    """It was begun when averages of short runs had their lag."""
    directory = tmp_path / "run"
    with pytest.raises(Stop):
        two_fits(directory, [], [StopAfter(epoch=0, batch=1)])

    def with_lag(manifest):
        phase = manifest["phases"][0]
        for settings in (manifest["settings"], phase["settings"]):
            settings["average"] = 0.05
            del settings["lag_free"]

    change_manifest(directory, with_lag)
    cbnn, _, _ = two_fits(directory, resume=True)
    assert averages(cbnn.run) == [0.05, 0.05]
    assert "lag_free" not in cbnn.run.settings_of(1).own


@pytest.mark.large
def test_the_largest_ratio_is_that_of_all_phases_together():
    cbnn, _, _ = two_fits(None, largest_ratio=2.0)
    # Three checkpoints in the first of two phases stand for six.
    expected = boosting.rate_of_ratio(2.0, 6, 0.05, 3)
    policy = cbnn.run.header.settings.policy
    assert policy.deviation_rate == pytest.approx(expected)


@pytest.mark.parametrize(
    ("phase", "crash"),
    [
        pytest.param(*(0, {"epoch": 1, "batch": 1}), marks=pytest.mark.large),
        (1, {"epoch": 0, "batch": 5}),  # after its first checkpoint
        pytest.param(*(1, {"epoch": 2, "batch": 3}), marks=pytest.mark.large),
        # After all, before the end.
        pytest.param(*(1, {"epoch": 2}), marks=pytest.mark.large),
    ],
    ids=str,
)
@pytest.mark.large
def test_killed_and_resumed_is_the_run_that_never_was(
    uninterrupted, tmp_path, phase, crash
):
    directory, reference, model, _ = uninterrupted
    others = [[], []]
    others[phase] = [StopAfter(**crash)]
    with pytest.raises(Stop):
        two_fits(tmp_path / "run", *others, resume=True)
    cbnn, resumed, logs = two_fits(tmp_path / "run", seed=99, resume=True)
    if phase == 1:
        assert logs[0].epoch == []
    assert contents(tmp_path / "run") == contents(directory)
    np.testing.assert_array_equal(cbnn.sample_weights, reference.sample_weights)
    assert same(resumed.get_weights(), model.get_weights())


@pytest.mark.large
def test_killed_between_two_phases(uninterrupted, tmp_path, capsys):
    directory, _, model, _ = uninterrupted

    class Refuse(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            raise Stop

    with pytest.raises(Stop):
        two_fits(tmp_path / "run", [], [Refuse()], resume=True)
    with pytest.warns(UserWarning, match="not finished"):
        CheckpointEnsemble.load(tmp_path / "run")
    _, resumed, logs = two_fits(tmp_path / "run", seed=99, resume=True)
    assert logs[0].epoch == []
    assert contents(tmp_path / "run") == contents(directory)
    assert same(resumed.get_weights(), model.get_weights())


def test_a_finished_run_is_left_alone(uninterrupted, tmp_path):
    directory, cbnn, model, _ = uninterrupted
    shutil.copytree(directory, tmp_path / "run")
    again, same_model, logs = two_fits(tmp_path / "run", seed=99, resume=True)
    assert [log.epoch for log in logs] == [[], []]
    assert contents(tmp_path / "run") == contents(directory)
    # The averaged last member, as after any run that is opened again.
    np.testing.assert_array_equal(
        same_model.predict(X, verbose=0),
        CheckpointEnsemble.load(directory).model.predict(X, verbose=0),
    )
    np.testing.assert_array_equal(
        again.ensemble().predict(X, verbose=0),
        cbnn.ensemble().predict(X, verbose=0),
    )


@pytest.mark.large
def test_in_memory_it_is_the_same_run(uninterrupted):
    _, reference, _, _ = uninterrupted
    cbnn, _, _ = two_fits(None)
    assert cbnn.history == reference.history
    np.testing.assert_array_equal(
        cbnn.ensemble("all").predict(X, verbose=0),
        reference.ensemble("all").predict(X, verbose=0),
    )


@pytest.mark.large
def test_without_deviation_training_is_that_of_plain_keras():
    """The same weights, bit for bit, from the same batches."""
    _, model, _ = two_fits(None, largest_ratio=1)
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    plain = network()
    train = weighted(X, Y, batch_size=20, seed=1).map(lambda x, y, w: (x, y))
    compiled(plain, 0.05)
    plain.fit(train, epochs=2, verbose=0)
    plain.get_layer("base").trainable = True
    compiled(plain, 0.01)
    plain.fit(train, epochs=3, verbose=0)
    assert same(plain.get_weights(), model.get_weights())


@pytest.mark.large
def test_epochs_that_the_user_counts_on_are_those_of_the_run(uninterrupted):
    """As in `fit(epochs=total, initial_epoch=history.epoch[-1] + 1)`."""
    _, reference, _, _ = uninterrupted
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = network()
    compiled(model, 0.05)
    cbnn = CBNNCallback(phases=2, interval=5, largest_ratio=1.1)
    train = cbnn.weighted(X, Y, batch_size=20, seed=1)
    log = model.fit(train, epochs=2, callbacks=[cbnn], verbose=0)
    model.get_layer("base").trainable = True
    compiled(model, 0.01)
    model.fit(
        train,
        epochs=5,
        initial_epoch=log.epoch[-1] + 1,
        callbacks=[cbnn],
        verbose=0,
    )
    assert cbnn.history == reference.history


@pytest.mark.large
def test_a_phase_that_failed_is_begun_again(uninterrupted):
    """In memory, from the weights that the model has now."""
    cbnn, _, _ = two_fits(None)
    model = network()
    compiled(model, 0.05)
    train = cbnn.weighted(X, Y, batch_size=20, seed=1)
    with pytest.warns(UserWarning, match="lets go of the last one"):
        model.fit(train, epochs=2, callbacks=[cbnn], verbose=0)
    with pytest.raises(Stop):
        stop = StopAfter(epoch=1, batch=2)
        model.fit(train, epochs=2, callbacks=[cbnn, stop], verbose=0)
    assert len(cbnn.history) == 5
    model.fit(train, epochs=2, callbacks=[cbnn], verbose=0)
    assert [r["step"] for r in cbnn.history] == [5, 9, 14, 19, 23, 28]


def test_another_task_is_refused_and_what_there_is_stays(tmp_path):
    model = network()
    compiled(model, 0.05)
    cbnn = CBNNCallback(tmp_path / "run", phases=2, interval=7)
    train = cbnn.weighted(X, Y, batch_size=20)
    model.fit(train, epochs=2, callbacks=[cbnn], verbose=0)
    before = contents(tmp_path / "run")
    del train
    other = cbnn.weighted(X, Y[::-1].copy(), batch_size=20)
    with pytest.raises(
        ValueError,
        match=re.escape(
            "CBNNCallback(phases=2): `fit` number 2 cannot go on with the run: "
            "the labels, their order or the sample weights to start from are "
            "others. Train the same model on the same samples, or use a "
            "callback of its own."
        ),
    ):
        model.fit(other, epochs=1, callbacks=[cbnn], verbose=0)
    assert contents(tmp_path / "run") == before
    assert len(cbnn.history) == 2
    del other
    cbnn.fit(model, X, Y, batch_size=20, epochs=1, verbose=0)
    assert [r["step"] for r in cbnn.history] == [7, 14, 21]
    assert CheckpointEnsemble.load(tmp_path / "run").run.is_finished


@pytest.mark.large
def test_other_settings_of_a_phase_are_refused(uninterrupted, tmp_path):
    with pytest.raises(Stop):
        crash = [StopAfter(epoch=2, batch=3)]
        two_fits(tmp_path / "run", [], crash, resume=True)
    with pytest.raises(ValueError, match="total_steps was 21 and is 28"):
        two_fits(tmp_path / "run", resume=True, epochs=(2, 4))
    with pytest.raises(ValueError, match="total_steps was 14 and is 7"):
        two_fits(tmp_path / "run", resume=True, epochs=(1, 3))


def test_phases_and_restarts_exclude_each_other():
    with pytest.raises(
        ValueError, match=re.escape("CBNNCallback(phases=2, restarts=3)")
    ):
        CBNNCallback(phases=2, restarts=3)
    with pytest.raises(ValueError, match="phases must be an integer"):
        CBNNCallback(phases=0)


def test_a_second_fit_into_a_directory_is_told_of_phases(tmp_path):
    cbnn, model, *_ = trained(tmp_path / "run")
    train = cbnn.weighted(X, Y, batch_size=20)
    with pytest.raises(
        ValueError,
        match=re.escape("`CBNNCallback(..., phases=2)`."),
    ):
        model.fit(train, epochs=1, callbacks=[cbnn], verbose=0)


def test_a_new_callback_for_the_second_fit_is_told_of_the_first(tmp_path):
    model = network()
    compiled(model, 0.05)
    cbnn = CBNNCallback(tmp_path / "run", phases=2, interval=7)
    options = {"batch_size": 20, "epochs": 2, "verbose": 0}
    cbnn.fit(model, X, Y, **options)
    model.get_layer("base").trainable = True
    compiled(model, 0.01)
    again = CBNNCallback(tmp_path / "run", phases=2, interval=7, resume=True)
    with pytest.raises(
        ValueError,
        match="other layers were frozen.* call all of them again, in their",
    ):
        again.fit(model, X, Y, **options)
    cbnn.fit(model, X, Y, **options)
    assert CheckpointEnsemble.load(tmp_path / "run").run.is_finished
