"""Rounds of a run in TensorBoard, while it trains.

`TensorBoardLogger` looks at the callback that takes the checkpoints, and
writes what it finds there. It computes nothing: errors, votes and bounds are
the run's, the disagreement is that of `diversity`.
"""

import os
import posixpath
import warnings
from collections.abc import Iterator
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.analysis.diversity import pairwise_disagreement
from cbnn_keras.analysis.plots.maps import draw_heat_map
from cbnn_keras.runs.manifest import Round
from cbnn_keras.runs.run import Run
from cbnn_keras.support.aliases import Logs
from cbnn_keras.support.extras import need
from cbnn_keras.training.checkpointing import CheckpointCallback

# How files with events end; other callbacks may write to the same directory.
_SUFFIX = ".cbnn-keras"
_EXTRA = "tensorboard"

# What is in the files: values of scalars by tag and step.
Scalars = dict[tuple[str, int], np.float32]


class TensorBoardLogger(keras.callbacks.Callback):
    """Writes every round of a run for TensorBoard as soon as it is taken.

    At the step of each round, with the method in front (`cbnn/error`):

    - scalars `error`, `vote`, `normaliser` and `members`, their number so far;
      for CBNN also `bound` and `exponential_loss`, see `boosting.Stage`
    - a histogram `sample_weights`, mean 1: those of the next round
    - an image `disagreement`: the share of the training samples on which
      exactly one of two members is right, for any two members so far

    and after each epoch `val_ensemble_accuracy`, if the callback was given
    `validation_data`. TensorBoard shows them with `tensorboard --logdir logs`.

    With `resume=True` nothing is written twice, and rounds that the files do
    not have yet are added. Give each run a log directory of its own: those in
    one directory are drawn as one line.

    A final model may be one that was just turned down as a checkpoint. Then
    there are two values of that step, of which the later counts.

    Args:
        callback: The callback that takes the checkpoints: a `CBNNCallback`, or
            a method of `baselines`. It must be listed before the logger.
        log_dir: The directory of files with events; made if it is not there.

    Raises:
        ValueError: If `callback` or `log_dir` is something else, or when `fit`
            begins without that callback.
        ImportError: If tensorboard or matplotlib is missing.

    Example:

        cbnn = CBNNCallback("runs/a")
        train = cbnn.weighted(x, y)
        logger = TensorBoardLogger(cbnn, "logs/a")
        model.fit(train, epochs=30, callbacks=[cbnn, logger])
    """

    def __init__(
        self, callback: CheckpointCallback, log_dir: str | os.PathLike[str]
    ) -> None:
        super().__init__()
        if not isinstance(callback, CheckpointCallback):
            raise ValueError(
                f"TensorBoardLogger({callback!r}, ...): give the callback that "
                "takes the checkpoints, such as `CBNNCallback`, and list both "
                "in `fit(..., callbacks=[callback, logger])`."
            )
        if not isinstance(log_dir, (str, os.PathLike)):
            raise ValueError(
                f"TensorBoardLogger(log_dir={log_dir!r}): log_dir must be a "
                "directory."
            )
        need("tensorboard", _EXTRA)
        need("matplotlib", _EXTRA)
        self.callback = callback
        self.log_dir = os.fspath(log_dir)
        self._writer: Any = None
        self._known: Scalars = {}
        self._last: Round | None = None
        self._num_epochs = 0

    # Hooks, in the order in which Keras calls them.

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._check_callback()
        self._check_directory()
        self._close()  # still open after a `fit` that failed
        # A new run is written whole, whatever its directory holds.
        self._known = (
            _read_scalars(self.log_dir) if self.callback.resume else {}
        )
        self._last = None
        self._num_epochs = 0

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self._write_new_rounds()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        logs = logs or {}
        self._num_epochs += 1
        if self._num_epochs == 1:
            self._check_order(logs)
        self._write_new_rounds()
        accuracy = logs.get("val_ensemble_accuracy")
        if accuracy is not None:
            self._write_scalars(
                {"val_ensemble_accuracy": accuracy}, self.callback.step
            )

    def on_train_end(self, logs: Logs | None = None) -> None:
        self._write_new_rounds()
        self._close()

    # What is checked.

    def _check_callback(self) -> None:
        # Keras hands the same object to all callbacks of a `fit`.
        if self.callback.params is not self.params:
            name = type(self.callback).__name__
            raise ValueError(
                f"TensorBoardLogger: its {name} is not among the callbacks of "
                "this `fit`. List both: `callbacks=[callback, "
                "TensorBoardLogger(callback, log_dir)]`."
            )

    def _check_directory(self) -> None:
        try:
            tf.io.gfile.makedirs(self.log_dir)
        except tf.errors.OpError as error:
            raise ValueError(
                f"TensorBoardLogger(log_dir={self.log_dir!r}) cannot be "
                f"written to: {error.message}."
            ) from error

    def _check_order(self, logs: Logs) -> None:
        # The callback puts it there at the end of every epoch.
        if f"{self.callback.LOG_PREFIX}_members" not in logs:
            warnings.warn(
                "TensorBoardLogger is listed before its "
                f"{type(self.callback).__name__}: `val_ensemble_accuracy`, and "
                "the final round of a run that is stopped early, will not be "
                "written. List it after: `callbacks=[callback, logger]`.",
                stacklevel=2,
            )

    # What is written.

    def _write_new_rounds(self) -> None:
        run = self.callback.run
        # After most batches there is nothing to do.
        if not run.rounds or run.rounds[-1] is self._last:
            return
        num_members = 0
        for i, record in enumerate(run.rounds):
            num_members += record.is_member
            scalars = _scalars_of(run, record) | {"members": num_members}
            if not self._is_known(scalars, record.step):
                self._write_round(run, i, scalars)
        self._last = run.rounds[-1]

    def _write_round(self, run: Run, i: int, scalars: dict[str, float]) -> None:
        summary = _operations()
        step = run.rounds[i].step
        with self._open().as_default():
            summary.histogram(
                self._tag("sample_weights"), self._weights_after(run, i), step
            )
            if scalars["members"]:
                image = _disagreement_image(run, step)
                summary.image(self._tag("disagreement"), image[None], step)
        # Last: a round whose scalars are there is there as a whole.
        self._write_scalars(scalars, step)

    def _write_scalars(self, scalars: dict[str, float], step: int) -> None:
        if self._is_known(scalars, step):
            return
        # Its end flushes the file: people watch while it trains.
        with self._open().as_default():
            for name, value in scalars.items():
                _operations().scalar(self._tag(name), value, step)
                self._known[self._tag(name), step] = np.float32(value)

    def _is_known(self, scalars: dict[str, float], step: int) -> bool:
        # By value and not by record: a record that only becomes final is the
        # same round, one that becomes a member is not.
        return all(
            self._known.get((self._tag(name), step)) == np.float32(value)
            for name, value in scalars.items()
        )

    def _weights_after(self, run: Run, i: int) -> np.ndarray:
        if i == len(run.rounds) - 1:
            return cast(np.ndarray, self.callback.sample_weights.numpy())
        weights = run.replay(i + 1).distribution * run.header.num_samples
        return weights.astype(np.float32)

    def _tag(self, name: str) -> str:
        return f"{self.callback.METHOD}/{name}"

    # The file.

    def _open(self) -> Any:
        # Not before there is something to write: a `fit` that is refused leaves
        # no file behind.
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(
                self.log_dir, filename_suffix=_SUFFIX
            )
        return self._writer

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _operations() -> Any:
    """`histogram`, `image` and `scalar`, which `tf.summary` may not have.

    It does only if tensorboard was there when TensorFlow was imported: in a
    notebook it may be installed later.
    """
    return need("tensorboard.summary.v2", _EXTRA)


def _scalars_of(run: Run, record: Round) -> dict[str, float]:
    names = ["error", "vote", "normaliser"]
    if run.has_bound:
        names += ["bound", "exponential_loss"]
    return {name: getattr(record, name) for name in names}


def _disagreement_image(run: Run, step: int) -> np.ndarray:
    """A heat map of the members so far, RGBA, shape `(height, width, 4)`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    members = [member for member in run.members if member <= step]
    disagreement = pairwise_disagreement([run.correct(m) for m in members])
    # Without pyplot, which would keep the figure and choose a window system.
    figure = Figure((4.4, 3.3), dpi=120, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    draw_heat_map(
        disagreement,
        figure.add_subplot(),
        labels=members,
        kind="disagreement",
        title=f"Disagreement of the members at step {step}",
    )
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def _read_scalars(log_dir: str) -> Scalars:
    """The scalars that loggers have written; the later of two counts."""
    found: Scalars = {}
    for event in _read_events(log_dir):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "scalars":
                number = tf.make_ndarray(value.tensor)
                found[value.tag, event.step] = np.float32(number)
    return found


def _read_events(log_dir: str) -> Iterator[Any]:
    loader = need(
        "tensorboard.backend.event_processing.event_file_loader", _EXTRA
    )
    # TensorFlow's functions: the directory may be in a cloud.
    if not tf.io.gfile.isdir(log_dir):
        return
    names = tf.io.gfile.listdir(log_dir)
    for name in sorted(name for name in names if name.endswith(_SUFFIX)):
        path = posixpath.join(log_dir, name)
        yield from loader.EventFileLoader(path).Load()
