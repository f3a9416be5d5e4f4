"""Rounds in files with events, read back by TensorBoard's own reader."""

import io
import itertools
import sys
import types

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from helpers import blobs, dense_model, trained
from matplotlib import pyplot
from tensorboard.backend.event_processing import (
    event_accumulator,
    tag_types,
)

from cbnn_keras import CBNNCallback
from cbnn_keras.analysis.plots import draw_heat_map
from cbnn_keras.analysis.tensorboard import TensorBoardLogger
from cbnn_keras.baselines import SnapshotBoosting
from cbnn_keras.boosting import Booster
from cbnn_keras.boosting_policies import Boosting

SCALARS = ["error", "vote", "normaliser", "bound", "exponential_loss"]


def fit(callback, log_dir, *others, model=None, epochs=4):
    """Trains on `blobs`, 6 steps an epoch."""
    x, y = blobs()
    model = model or dense_model()
    train = callback.weighted(x, y, batch_size=20, seed=1)
    logger = TensorBoardLogger(callback, log_dir)
    callbacks = [callback, logger, *others]
    model.fit(train, epochs=epochs, callbacks=callbacks, verbose=0)
    return logger


class Events:
    """What TensorBoard reads in a directory: `(step, value)` by tag."""

    def __init__(self, log_dir):
        reader = event_accumulator.EventAccumulator(
            str(log_dir), size_guidance={tag_types.TENSORS: 0}
        )
        self._reader = reader.Reload()
        self.tags = set(reader.Tags()[tag_types.TENSORS])

    def arrays(self, tag):
        return [
            (event.step, tf.make_ndarray(event.tensor_proto))
            for event in self._reader.Tensors(tag)
        ]

    def steps(self, tag):
        return [step for step, _ in self.arrays(tag)]

    def values(self, tag):
        return [float(value) for _, value in self.arrays(tag)]

    def images(self, tag):
        """Width and height are in front of each, as text."""
        for _, (width, height, encoded) in self.arrays(tag):
            image = PIL.Image.open(io.BytesIO(encoded))
            assert image.format == "PNG"
            assert image.size == (int(width), int(height))
            yield image


def assert_logged(events, callback, prefix="cbnn", names=SCALARS):
    """Each round once, with the values of the history."""
    history = callback.history
    assert len(history) >= 2
    steps = [record["step"] for record in history]
    for name in names:
        tag = f"{prefix}/{name}"
        assert events.steps(tag) == steps
        expected = [record[name] for record in history]
        np.testing.assert_allclose(events.values(tag), expected, rtol=1e-6)
    members = list(itertools.accumulate(r["is_member"] for r in history))
    assert events.steps(f"{prefix}/members") == steps
    assert events.values(f"{prefix}/members") == members
    assert events.steps(f"{prefix}/sample_weights") == steps
    drawn = [s for s, num in zip(steps, members, strict=True) if num]
    assert events.steps(f"{prefix}/disagreement") == drawn


def assert_weights(buckets, weights):
    """Rows of a histogram are `left edge, right edge, number`."""
    left, right, number = buckets.T
    assert number.sum() == len(weights)
    np.testing.assert_allclose(left[0], weights.min(), rtol=1e-5)
    np.testing.assert_allclose(right[-1], weights.max(), rtol=1e-5)
    # The mean lies between those of the edges.
    assert (left * number).sum() <= weights.sum() * (1 + 1e-5)
    assert (right * number).sum() >= weights.sum() * (1 - 1e-5)


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A run with all that can be logged, and what was there after each round.

    Images are drawn in known colours, to find them in the file again.
    """
    keras.utils.set_random_seed(0)
    cbnn = CBNNCallback.paper(
        interval=5, deviation_rate=0.1, validation_data=blobs(seed=0)
    )
    log_dir = tmp_path_factory.mktemp("tensorboard") / "not there" / "logs"
    seen, drawn = [], []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if cbnn.history and cbnn.history[-1]["step"] == cbnn.step:
                seen.append(Events(log_dir).steps("cbnn/error"))

    def draw(matrix, ax, *, labels, kind, title):
        assert kind == "disagreement"
        drawn.append((matrix, list(labels), title))
        draw_heat_map(matrix, ax, labels=labels, kind=kind, title=title)
        ax.figure.set_facecolor((1, 0, len(drawn) / 255))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cbnn_keras.analysis.tensorboard.draw_heat_map", draw)
        logger = fit(cbnn, log_dir, Look())
    return types.SimpleNamespace(
        cbnn=cbnn,
        run=cbnn.run,
        accuracies=logger.model.history.history["val_ensemble_accuracy"],
        events=Events(log_dir),
        seen=seen,
        drawn=drawn,
    )


def test_each_round_of_a_run(logged):
    assert logged.events.tags == {
        f"cbnn/{name}"
        for name in [
            *SCALARS,
            "members",
            "sample_weights",
            "disagreement",
            "val_ensemble_accuracy",
        ]
    }
    assert_logged(logged.events, logged.cbnn)
    assert logged.events.steps("cbnn/val_ensemble_accuracy") == [6, 12, 18, 24]
    np.testing.assert_allclose(
        logged.events.values("cbnn/val_ensemble_accuracy"),
        logged.accuracies,
        rtol=1e-6,
    )
    # While it trains, each as soon as it is taken.
    steps = [record.step for record in logged.run.rounds]
    assert logged.seen == [steps[: i + 1] for i in range(len(steps))]


def test_weights_are_those_after_the_update_of_the_round(logged):
    run = logged.run
    booster = Booster(np.full(120, 1 / 120), 3, Boosting(deviation_rate=0.1))
    histograms = logged.events.arrays("cbnn/sample_weights")
    ranges = []
    for (step, buckets), record in zip(histograms, run.rounds, strict=True):
        booster.add(run.correct(step), is_final=record.is_final)
        assert_weights(buckets, booster.distribution * 120)
        ranges.append((buckets[0, 0], buckets[-1, 1]))
    # All differ, but those after the final round, which has no update.
    assert ranges[-1] == ranges[-2]
    assert len(set(ranges)) == len(ranges) - 1


def test_images_are_of_the_disagreement(logged):
    run = logged.run
    images = list(logged.events.images("cbnn/disagreement"))
    assert len(images) == len(logged.drawn) == len(run.rounds)
    for number, (matrix, labels, title) in enumerate(logged.drawn, start=1):
        members = run.members[:number]
        assert labels == members
        assert f"step {members[-1]}" in title
        for i, j in itertools.product(range(number), repeat=2):
            one, other = run.correct(members[i]), run.correct(members[j])
            differ = sum(a != b for a, b in zip(one, other, strict=True))
            assert matrix[i, j] == pytest.approx(differ / 120)
        image = images[number - 1]
        assert image.getpixel((0, 0)) == (255, 0, number, 255)
        assert image.mode == "RGBA" and min(image.size) >= 300
        assert len(set(image.get_flattened_data())) > 20
    assert matrix.max() > 0
    assert pyplot.get_fignums() == []  # none of them is kept


def test_baselines_have_no_bound(tmp_path):
    method = SnapshotBoosting(monitor="loss", patience=1, restart_patience=1)
    prefix = "ssb-reconstruction"
    fit(method, tmp_path, epochs=8)
    events = Events(tmp_path)
    names = ["error", "vote", "normaliser"]
    assert events.tags == {
        f"{prefix}/{name}"
        for name in [*names, "members", "sample_weights", "disagreement"]
    }
    assert_logged(events, method, prefix, names)


def stop_after(epoch):
    """Listed last: after the callback's own turn at the end of the epoch."""

    def stop(number, logs):
        callback.model.stop_training = number + 1 == epoch

    callback = keras.callbacks.LambdaCallback(on_epoch_end=stop)
    return callback


def test_stopped_early(tmp_path):
    """A round that becomes final has a new record, and is written once."""
    cbnn = CBNNCallback.paper(interval=6)
    fit(cbnn, tmp_path, stop_after(2))
    assert [record["step"] for record in cbnn.history] == [6, 12]
    assert cbnn.history[-1]["is_final"]
    assert_logged(Events(tmp_path), cbnn)


@pytest.mark.filterwarnings("ignore:At step:UserWarning")  # all is chance
def test_a_checkpoint_that_was_turned_down_and_is_the_final_model(tmp_path):
    """Two values at one step, of which the later is that of the history."""
    model = dense_model(optimizer=keras.optimizers.SGD(0.0))
    model.layers[-1].kernel.assign(np.zeros((8, 3)))  # always the first class
    cbnn = CBNNCallback.paper(interval=6)
    fit(cbnn, tmp_path, stop_after(1), model=model)
    assert [r["step"] for r in cbnn.history] == [6]
    events = Events(tmp_path)
    assert events.arrays("cbnn/vote") == [(6, 0.0), (6, 1.0)]
    assert events.arrays("cbnn/members") == [(6, 0.0), (6, 1.0)]
    # Without members there is nothing to draw.
    assert events.steps("cbnn/disagreement") == [6]


# More than one `fit`.


@pytest.mark.large
@pytest.mark.filterwarnings("ignore:.* starts a new run in memory")
def test_a_second_fit_with_the_same_logger(tmp_path):
    """It is a new run, and written whole, whatever its directory holds."""
    cbnn = CBNNCallback.paper(interval=5)
    x, y = blobs()
    train = cbnn.weighted(x, y, batch_size=20, seed=1)
    logger = TensorBoardLogger(cbnn, tmp_path / "first")
    model = dense_model()
    for name in ("first", "second"):
        logger.log_dir = str(tmp_path / name)
        model.fit(train, epochs=2, callbacks=[cbnn, logger], verbose=0)
        assert_logged(Events(tmp_path / name), cbnn)
    model.fit(train, epochs=2, callbacks=[cbnn, logger], verbose=0)
    steps = [record["step"] for record in cbnn.history]
    assert Events(tmp_path / "second").steps("cbnn/error") == 2 * steps


class Stop(Exception):
    """Ends `fit` in the middle."""


def stop_at(step):
    def stop(batch, logs):
        if next(steps) == step:
            raise Stop

    steps = itertools.count(1)
    return keras.callbacks.LambdaCallback(on_train_batch_end=stop)


def resumable(tmp_path, *others, log_dir="logs"):
    keras.backend.clear_session(free_memory=False)  # as in a new process
    keras.utils.set_random_seed(0)
    cbnn = CBNNCallback.paper(
        tmp_path / "run",
        interval=4,
        resume=True,
        deviation_rate=0.1,
        validation_data=blobs(),
    )
    fit(cbnn, tmp_path / log_dir, *others, epochs=3)
    return cbnn


# Of 18 steps, 6 an epoch, a round every 4; the state is kept every epoch.
@pytest.mark.large
@pytest.mark.parametrize("step", [5, 7, 17, 18])
def test_a_resumed_run_repeats_no_round(tmp_path, step):
    # Files of others do not count as written.
    with tf.summary.create_file_writer(str(tmp_path / "logs")).as_default():
        tf.summary.scalar("loss", 1.0, step=4)
    with pytest.raises(Stop):
        resumable(tmp_path, stop_at(step))
    cbnn = resumable(tmp_path)
    events = Events(tmp_path / "logs")
    assert_logged(events, cbnn)
    # Also not that of an epoch that was trained again.
    assert events.steps("cbnn/val_ensemble_accuracy") == [6, 12, 18]


@pytest.mark.large
@pytest.mark.parametrize("step", [13, None])
def test_rounds_before_the_first_log_are_written_too(tmp_path, step):
    """Once: a run that is finished is not written again."""
    if step is None:
        resumable(tmp_path, log_dir="others")
    else:
        with pytest.raises(Stop):
            resumable(tmp_path, stop_at(step), log_dir="others")
    resumable(tmp_path)
    files = list((tmp_path / "logs").iterdir())
    cbnn = resumable(tmp_path)
    assert list((tmp_path / "logs").iterdir()) == files
    events = Events(tmp_path / "logs")
    assert_logged(events, cbnn)
    run = cbnn.ensemble().run
    histograms = events.arrays("cbnn/sample_weights")
    for i, (_, buckets) in enumerate(histograms, start=1):
        assert_weights(buckets, run.replay(i).distribution * 120)


@pytest.mark.large
def test_an_event_that_was_cut_off(tmp_path):
    with pytest.raises(Stop):
        resumable(tmp_path, stop_at(14))
    (path,) = (tmp_path / "logs").iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    cbnn = resumable(tmp_path)
    events = Events(tmp_path / "logs")
    # The round that was not whole is there once more.
    steps = [record["step"] for record in cbnn.history]
    assert sorted(set(events.steps("cbnn/error"))) == steps
    assert events.steps("cbnn/members") == steps


# Several devices.


@pytest.mark.large
def test_under_a_strategy(tmp_path):
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
        cbnn = CBNNCallback.paper(interval=5, deviation_rate=0.1)
        fit(cbnn, tmp_path, epochs=2)
    events = Events(tmp_path)
    assert_logged(events, cbnn)
    _, buckets = events.arrays("cbnn/sample_weights")[-1]
    assert_weights(buckets, cbnn.sample_weights.numpy())


# What is refused.


@pytest.mark.parametrize("callback", [None, keras.callbacks.History()])
def test_another_callback_or_directory(callback):
    with pytest.raises(
        ValueError,
        match=r"TensorBoardLogger\(.*takes the checkpoints, such as "
        r"`CBNNCallback`.*callbacks=\[callback, logger\]",
    ):
        TensorBoardLogger(callback, "logs")
    with pytest.raises(ValueError, match="log_dir=3.: log_dir must be a dir"):
        TensorBoardLogger(CBNNCallback.paper(), 3)


@pytest.mark.parametrize("package", ["tensorboard", "matplotlib"])
def test_a_missing_package(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ImportError,
        match=rf'{package}: pip install "cbnn-keras\[tensorboard\]"',
    ):
        TensorBoardLogger(CBNNCallback.paper(), "logs")


def test_the_callback_is_not_in_fit(tmp_path):
    cbnn, model, x, y = trained(epochs=1)
    for callback in (cbnn, CBNNCallback.paper()):  # used before, and never
        logger = TensorBoardLogger(callback, tmp_path / "logs")
        with pytest.raises(
            ValueError, match=r"its CBNNCallback is not among.*List both"
        ):
            model.fit(x, y, callbacks=[logger], verbose=0)
    assert not (tmp_path / "logs").exists()


def test_listed_before_the_callback(tmp_path):
    x, y = blobs()
    cbnn = CBNNCallback.paper(interval=5, validation_data=(x, y))
    train = cbnn.weighted(x, y, batch_size=20)
    logger = TensorBoardLogger(cbnn, tmp_path)
    with pytest.warns(
        UserWarning,
        match=r"listed before its CBNNCallback.*final round.*"
        r"List it after: `callbacks=\[callback, logger\]`",
    ) as found:
        dense_model().fit(train, epochs=2, callbacks=[logger, cbnn], verbose=0)
    assert sum("listed before" in str(w.message) for w in found) == 1
    assert "cbnn/val_ensemble_accuracy" not in Events(tmp_path).tags


def test_a_directory_that_cannot_be_is_refused_when_fit_begins(tmp_path):
    (tmp_path / "file").write_text("")
    callback = CBNNCallback.paper()
    with pytest.raises(
        ValueError,
        match=r"TensorBoardLogger\(log_dir='.*logs'\) cannot be written to: ",
    ):
        fit(callback, tmp_path / "file" / "logs")
    assert callback.history == []
