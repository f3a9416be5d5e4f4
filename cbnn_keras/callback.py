"""CBNN inside `model.fit`: when to score, reweight and save."""

import hashlib
import numbers
import os
import pathlib
import sys
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras import architecture, boosting, replicas, schedules
from cbnn_keras.classifier import averages_loss
from cbnn_keras.console import Reporter
from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.rounds import Rounds
from cbnn_keras.run import MemoryRun, Record, Run
from cbnn_keras.run_directory import (
    RunDirectory,
    check_available,
    holds_run,
)
from cbnn_keras.sample_weights import (
    EXPLICIT_FORM,
    SampleWeights,
    as_examples,
    claim_sample_weights,
    sample_weights_of,
    weighted,
)
from cbnn_keras.task import bare_optimizer, describe_task
from cbnn_keras.validation import EnsembleValidation, as_pair
from cbnn_keras.version import __version__

_DEFAULT_NUM_CHECKPOINTS = 6
_NUM_CHECKED = 10  # batches of a fit whose lookups are counted


class CBNNCallback(keras.callbacks.Callback):
    """Turns one training run into an ensemble of boosted checkpoints.

    Every so many iterations the training set is scored, the checkpoint gets a
    vote, the samples that it got wrong gain weight, and training goes on. The
    model itself, its loss and its optimizer are left as they are, with one
    exception: under `tf.distribute.MirroredStrategy` the statistics that each
    device collects for itself, those of BatchNorm, are averaged over the
    devices at every checkpoint and after every epoch. Without that, the member
    that is saved would be another than the one that is scored.

    Each round is a record in `history`, a line on the screen and part of
    `fit`'s logs (`cbnn_error`, `cbnn_vote`, `cbnn_members`, `cbnn_bound`, and
    `val_ensemble_accuracy` with `validation_data`): list this callback before
    those that read them, such as `CSVLogger` or `EarlyStopping(
    "val_ensemble_accuracy", mode="max")`.

    Reference: Wang et al., "Boost Neural Networks by Checkpoints", NeurIPS
    2021, algorithm 1.

    Args:
        directory: Where the run is kept, crash-safe. Left out, members stay in
            memory until `ensemble().save(directory)`.
        num_checkpoints: M, at most so many members, the final model included.
            Defaults to 6.
        interval: t, iterations between checkpoints, instead of
            `num_checkpoints`.
        total_steps: T, needed only where `fit` cannot know its steps.
        deviation_rate: eta, how fast weights change; 0 leaves training as it
            would be without. Defaults to 0.01, the paper's choice.
        expected_error: Training error expected of the final model, below
            1 - 1/k: with eta it limits the number of checkpoints (the stop rule
            of the paper). Defaults to 0.05.
        from_logits: Whether the model ends in logits. Defaults to None: read
            from the loss and the last activation.
        validation_data: `(x, y)` or a dataset of batches, to log the accuracy
            of the ensemble so far; callbacks never see `fit`'s.
        score_data: The training samples in the order of their index, as
            `(x, y)` or a dataset of single examples: only for a pipeline made
            with `attach_index`.
        resume: Go on with the run in `directory` if there is one. The same
            script then serves first start and restart.
        overwrite: Replace the run in `directory` if there is one.

    Raises:
        ValueError: For arguments outside their range, and, when `fit` begins,
            for data or a model that cannot be boosted.

    Example:

    >>> x, y = np.random.rand(60, 4), np.arange(60) % 3
    >>> model = keras.Sequential([keras.layers.Dense(3, "softmax")])
    >>> model.compile("adam", "sparse_categorical_crossentropy")
    >>> cbnn = CBNNCallback(num_checkpoints=2)
    >>> train = cbnn.weighted(x, y, batch_size=20)
    >>> _ = model.fit(train, epochs=4, callbacks=[cbnn], verbose=0)
    >>> [record["step"] for record in cbnn.history]
    [6, 12]
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        num_checkpoints: int | None = None,
        interval: int | None = None,
        total_steps: int | None = None,
        deviation_rate: float = 0.01,
        expected_error: float = 0.05,
        from_logits: bool | None = None,
        validation_data: Any = None,
        score_data: Any = None,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        super().__init__()
        self.directory = _as_path(directory)
        self.num_checkpoints = num_checkpoints
        self.interval = interval
        self.total_steps = total_steps
        self.deviation_rate = deviation_rate
        self.expected_error = expected_error
        self.from_logits = from_logits
        self.validation_data = validation_data
        self.score_data = score_data
        self.resume = resume
        self.overwrite = overwrite
        self._check_arguments()
        self._weights: SampleWeights | None = None
        self._rounds: Rounds | None = None

    def weighted(self, x: Any, y: Any = None, **options: Any) -> Any:
        """`cbnn_keras.weighted` for this callback; takes its arguments."""
        dataset = weighted(x, y, **options)
        self._weights = sample_weights_of(dataset)
        self._weights.owner = self
        return dataset

    def attach_index(
        self,
        dataset: tf.data.Dataset,
        *,
        num_samples: int | None = None,
        sample_weight: Any = None,
    ) -> tf.data.Dataset:
        """For a pipeline of your own: `(x, y)` examples -> `(index, x, y)`.

        Attach the index before shuffling and look the weights up per batch,
        after the last `prefetch`. Samples that are blended (MixUp, CutMix) are
        to have their labels and weights blended alike:

            cbnn = CBNNCallback("runs/a", score_data=(x, y))

            def mix(index, x, y):
                share = tf.random.uniform([])
                other = tf.reverse(index, [0])
                x = share * x + (1 - share) * tf.reverse(x, [0])
                y = share * y + (1 - share) * tf.reverse(y, [0])
                return x, y, share, index, other

            def weigh(x, y, share, index, other):
                weight = share * cbnn.look_up(index)
                return x, y, weight + (1 - share) * cbnn.look_up(other)

            train = cbnn.attach_index(dataset).shuffle(10_000).batch(128)
            train = train.map(mix).prefetch(tf.data.AUTOTUNE).map(weigh)

        Resuming replays an epoch bit for bit only if the pipeline does so.

        Args:
            dataset: Single examples `(x, y)`, in the order of `score_data`.
            num_samples: Their number, where the dataset does not know it.
            sample_weight: Weights to start from, shape `(num_samples,)`.
        """
        examples = as_examples(dataset, None, num_samples)
        self._weights = SampleWeights(
            examples.num_samples, sample_weight=sample_weight
        )
        self._weights.owner = self
        return self._weights.attach_index(dataset)

    def look_up(self, index: tf.Tensor) -> tf.Tensor:
        """Weights of samples by index, mean 1, float32: the other half."""
        return self._bound_weights().look_up(index)

    @property
    def sample_weights(self) -> tf.Variable:
        """n * omega of the pipeline in use, mean 1, shape `(num_samples,)`."""
        return self._bound_weights().variable

    @property
    def history(self) -> list[Record]:
        """One record a round; `epoch` counts from 0, as in Keras.

        `step`, `epoch`, `error`, `vote`, `normaliser`, `bound`,
        `exponential_loss`, `is_member`, `within_budget`, `is_final`; see
        `boosting.Stage`.
        """
        return [] if self._rounds is None else self._rounds.run.rounds

    def ensemble(self) -> CheckpointEnsemble:
        """The members so far, as an ensemble around the trained model."""
        if self._rounds is None:
            raise ValueError(
                "CBNNCallback.ensemble(): nothing was trained yet. Pass the "
                "callback to `model.fit(..., callbacks=[cbnn])` first."
            )
        return CheckpointEnsemble(self._rounds.run, self.model)

    # Hooks, in the order in which Keras calls them.

    def on_train_begin(self, logs: Record | None = None) -> None:
        self._reporter = Reporter(self.params.get("verbose", 0))
        self._initial_epoch = self.model._initial_epoch
        if self.directory is not None and not self.resume:
            check_available(
                self.directory, overwrite=self.overwrite, advice=_ADVICE
            )
        self._weights = claim_sample_weights(self)
        self._task = describe_task(
            self.model,
            self._weights,
            score_data=self.score_data,
            from_logits=self.from_logits,
            track=self._reporter.tracker("reading the labels"),
        )
        self._check_expected_error(self._task.classifier.num_classes)
        self._validation = (
            None
            if self.validation_data is None
            else EnsembleValidation(
                self.validation_data,
                self._task.classifier,
                self._task.batch_size,
            )
        )
        self._is_distributed = replicas.is_distributed(self.model)
        self._divide(self._weights)
        # Or else passes and epochs are not the same, and nothing can be held.
        self._is_gated = (
            self._is_distributed
            and self._weights.num_batches is not None
            and self._weights.num_batches == self.params["steps"]
        )
        # Not before here: a `fit` that is refused leaves the last one's result.
        self._rounds = None
        self._step = 0
        self._is_done = False
        self._num_executions = 0
        self._num_checked = 0
        if self.resume and self.directory and holds_run(self.directory):
            self._go_on(self.directory)
        self._step_before_fit = self._step
        self._num_lookups_before_fit = self._weights.num_lookups

    def on_epoch_begin(self, epoch: int, logs: Record | None = None) -> None:
        self.model._initial_epoch = self._initial_epoch
        if self._rounds is None:
            self._start(first_epoch=epoch)
        elif self._num_executions:
            # Of the epoch before, and not at its end: callbacks after this one
            # still change things there, such as the learning rate.
            self._rounds.save_state(self._step, epoch - 1)
        self._epoch = epoch
        self._step_before_epoch = self._step
        self._num_executions = 0
        self._num_lookups = self._task.weights.num_lookups
        self._task.weights.set_epoch(epoch)

    def on_train_batch_begin(
        self, batch: int, logs: Record | None = None
    ) -> None:
        if self._is_gated:
            gate = self._task.weights.gate
            if not self._num_executions:
                # No sooner: another callback may read the pipeline before.
                gate.announce(self._num_batches_to_update())
            gate.step_begins()

    def on_train_batch_end(
        self, batch: int, logs: Record | None = None
    ) -> None:
        # Counted here: with `steps_per_execution` Keras calls once for several
        # batches, and its versions differ in which of them they name.
        self._num_executions += 1
        num_batches = self._num_executions * self.model.steps_per_execution
        if self.params.get("steps"):
            num_batches = min(num_batches, self.params["steps"])
        self._step = self._step_before_epoch + num_batches
        if self._num_checked < _NUM_CHECKED:
            self._num_checked += 1
            self._check_lookups()
            if not self._is_distributed:  # or else the gate sees to it
                self._check_for_early_lookups(num_batches)
        if self._is_done:
            raise ValueError(
                f"CBNNCallback(total_steps={self.total_steps}): `fit` goes on "
                "after so many steps, so the final model would not be in the "
                "ensemble. Give the number of steps of all epochs together."
            )
        if self._is_gated:
            self._check_gate()
        if self._pending and self._step >= self._pending[0]:
            self._pass_checkpoint()
            if self._is_gated:
                gate = self._task.weights.gate
                gate.hold_after(self._num_batches_to_update())

    def on_epoch_end(self, epoch: int, logs: Record | None = None) -> None:
        if self._is_gated:
            self._task.weights.gate.release()
        self._check_lookups()
        replicas.average_statistics(self.model)
        if self.model.stop_training:
            self._end()
        if self._rounds is not None and logs is not None:
            logs.update(self._rounds.logs(self._step))

    def on_train_end(self, logs: Record | None = None) -> None:
        self.model._initial_epoch = self._initial_epoch
        self._task.weights.set_replicas(0, is_averaged=True)
        if self._rounds is not None:  # or there was no epoch to train
            self._end()
            self._rounds.run.finish()

    # What the constructor and the beginning of `fit` check.

    def _check_arguments(self) -> None:
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "CBNNCallback runs on Keras' TensorFlow backend; this is "
                f"{keras.backend.backend()!r}. Set KERAS_BACKEND=tensorflow "
                "before Keras is imported."
            )
        if self.num_checkpoints is not None and self.interval is not None:
            raise ValueError(
                f"CBNNCallback(num_checkpoints={self.num_checkpoints}, "
                f"interval={self.interval}): give one of them, not both."
            )
        # Plain Python values from here on: they go into the manifest.
        for name in ("num_checkpoints", "interval", "total_steps"):
            value = getattr(self, name)
            if value is None:
                continue
            if not (_is_integer(value) and value >= 1):
                raise ValueError(
                    f"CBNNCallback({name}={value!r}): an integer of at least 1."
                )
            setattr(self, name, int(value))
        rate, error = self.deviation_rate, self.expected_error
        if not (_is_real(rate) and 0 <= rate < float("inf")):
            raise ValueError(
                f"CBNNCallback(deviation_rate={rate!r}): a number of at least "
                "0; the paper uses 0.01."
            )
        if not (_is_real(error) and 0 < error < 1):
            raise ValueError(
                f"CBNNCallback(expected_error={error!r}): a number between 0 "
                "and 1, below 1 - 1/k for k classes; the default is 0.05."
            )
        self.deviation_rate, self.expected_error = float(rate), float(error)
        if self.from_logits is not None:
            if not isinstance(self.from_logits, (bool, np.bool_)):
                raise ValueError(
                    f"CBNNCallback(from_logits={self.from_logits!r}): True, "
                    "False or None."
                )
            self.from_logits = bool(self.from_logits)
        if self.validation_data is not None:
            as_pair(self.validation_data)
        if self.resume and self.overwrite:
            raise ValueError(
                "CBNNCallback(resume=True, overwrite=True): go on with the "
                "run or replace it, not both."
            )
        if self.directory is None:
            if self.resume or self.overwrite:
                raise ValueError(
                    "CBNNCallback: resume and overwrite need a directory."
                )
        elif not (self.resume and holds_run(self.directory)):
            check_available(
                self.directory, overwrite=self.overwrite, advice=_ADVICE
            )

    def _check_expected_error(self, num_classes: int) -> None:
        if not boosting.is_better_than_chance(self.expected_error, num_classes):
            raise ValueError(
                f"CBNNCallback(expected_error={self.expected_error}): must be "
                f"below {1 - 1 / num_classes:.4g}, the error of guessing one "
                f"of {num_classes} classes."
            )

    def _check_lookups(self) -> None:
        """Refuses to go on if a batch has not looked its weights up."""
        num_lookups = self._task.weights.num_lookups
        num_steps = self._step - self._step_before_fit
        if num_lookups - self._num_lookups_before_fit < num_steps:
            message = _NOT_OUR_BATCH if num_steps == 1 else _FROZEN_WEIGHTS
            raise ValueError(message + EXPLICIT_FORM)

    def _check_for_early_lookups(self, num_batches: int) -> None:
        weights = self._task.weights
        num_new = weights.num_lookups - self._num_lookups
        # In a pipeline of the user's own, a batch may look up more than once.
        if weights.examples is not None and num_new > num_batches:
            raise ValueError(_LOOKS_AHEAD + EXPLICIT_FORM)

    def _divide(self, weights: SampleWeights) -> None:
        """Tells the pipeline what a strategy will do to its batches."""
        strategy = self.model.distribute_strategy
        num = strategy.num_replicas_in_sync if self._is_distributed else 0
        if num > 1 and not weights.can_be_divided:
            raise ValueError(
                f"CBNNCallback: sparse inputs cannot be divided among {num} "
                "devices. Make them dense: "
                "`dataset.map(lambda x, y: (tf.sparse.to_dense(x), y))`."
            )
        weights.set_replicas(num, is_averaged=averages_loss(self.model))

    def _check_gate(self) -> None:
        gate = self._task.weights.gate
        gate.step_ends()
        if gate.has_given_up:
            self._is_gated = False
            warnings.warn(_GATE_GAVE_UP, stacklevel=2)

    def _num_batches_to_update(self) -> int:
        """Those of this epoch, from its start up to the next update."""
        next_update = self._pending[0] if self._pending else sys.maxsize
        return next_update - self._step_before_epoch

    def _bound_weights(self) -> SampleWeights:
        if self._weights is None:
            raise ValueError(
                "CBNNCallback: there are no sample weights yet. "
                + EXPLICIT_FORM
            )
        return self._weights

    # The beginning of a run.

    def _start(self, first_epoch: int) -> None:
        header = self._header(first_epoch)
        weights = self._task.weights.base
        base = None if _is_uniform(weights) else weights
        if self.directory is None:
            self._follow(MemoryRun(header, base))
        else:
            # With `resume`, a run that is there is this very one, killed
            # before the end of its first epoch.
            overwrite = self.overwrite or self.resume
            run = RunDirectory.create(
                self.directory,
                header,
                self.model,
                base=base,
                overwrite=overwrite,
            )
            self._follow(run)
        steps = ", ".join(map(str, _shortened(self._pending)))
        place = f"run in {self.directory}" if self.directory else "in memory"
        self._reporter.line(f"CBNN: checkpoints after steps {steps}; {place}")

    def _go_on(self, directory: pathlib.Path) -> None:
        run = RunDirectory.open(directory)
        if not self._task.weights.has_own_seed:
            self._task.weights.set_seed(run.header["settings"]["seed"])
        run.check_started_with(
            self._header(run.header["settings"]["first_epoch"])
        )
        run = RunDirectory.claim(directory)
        if not run.is_finished and run.state is None:
            return  # killed in its first epoch: `_start` begins it again
        run.verify()
        epoch = self.params["epochs"]
        if run.is_finished:
            run.load_member(run.members[-1], self.model)
            self._is_done = True
        else:
            state = run.rewind(self.model)
            self._step, epoch = state["step"], state["epoch"]
        self._follow(run)
        # Where `fit` starts; `on_epoch_begin` puts the old value back.
        self.model._initial_epoch = epoch
        self._reporter.line(
            f"CBNN: the run in {self.directory} is complete; there is nothing "
            "left to train."
            if self._is_done
            else f"CBNN: going on in {self.directory} after epoch {epoch}, "
            f"step {self._step}; members so far: {len(run.members)}."
        )

    def _follow(self, run: Run) -> None:
        settings = run.header["settings"]
        steps = schedules.checkpoint_steps(
            settings["total_steps"], settings["interval"]
        )
        self._pending = [step for step in steps if step > self._step]
        self._rounds = Rounds(self._task, run, self._validation, self._reporter)

    def _header(self, first_epoch: int) -> Record:
        task = self._task
        total_steps = self._find_total_steps(first_epoch)
        interval = self.interval or schedules.checkpoint_interval(
            total_steps, self.num_checkpoints or _DEFAULT_NUM_CHECKPOINTS
        )
        schedules.checkpoint_steps(total_steps, interval)  # raises if too long
        data = hashlib.sha256(task.labels.tobytes())
        data.update(task.weights.base.tobytes())
        return {
            "method": "cbnn",
            "package_version": __version__,
            "num_classes": task.classifier.num_classes,
            "num_samples": task.weights.num_samples,
            "is_binary": task.classifier.is_binary,
            "from_logits": task.classifier.from_logits,
            "num_parameters": self.model.count_params(),
            "architecture": architecture.architecture_id(self.model),
            "labels": data.hexdigest(),
            "settings": {
                "total_steps": total_steps,
                "interval": interval,
                "first_epoch": first_epoch,
                "deviation_rate": self.deviation_rate,
                "expected_error": self.expected_error,
                "optimizer": type(bare_optimizer(self.model)).__name__,
                **task.weights.settings,
            },
        }

    def _find_total_steps(self, first_epoch: int) -> int:
        steps = self.params.get("steps")
        if not steps:
            if self.total_steps is None:
                raise ValueError(
                    "CBNNCallback: `fit` does not know how many steps an "
                    "epoch has. Pass `total_steps=` to CBNNCallback, or "
                    "`steps_per_epoch=` to `fit`."
                )
            if self.model.steps_per_execution > 1:
                raise ValueError(
                    "CBNNCallback: with steps_per_execution="
                    f"{self.model.steps_per_execution} the steps of an epoch "
                    "must be known. Pass `steps_per_epoch=` to `fit`."
                )
            return self.total_steps
        known = int(steps) * (self.params["epochs"] - first_epoch)
        if self.total_steps not in (None, known):
            raise ValueError(
                f"CBNNCallback(total_steps={self.total_steps}), but `fit` "
                f"will make {known} steps. Leave `total_steps` out."
            )
        return known

    # A checkpoint.

    def _pass_checkpoint(self) -> None:
        num_passed = sum(step <= self._step for step in self._pending)
        self._pending = self._pending[num_passed:]
        if not self._pending:
            self._end()
        elif self._rounds is not None and self._rounds.may_continue():
            self._rounds.add(self._step, self._epoch, is_final=False)

    def _end(self) -> None:
        """Takes the model as it is now for the final one."""
        if self._is_done or self._rounds is None:
            return
        self._is_done = True
        self._pending = []
        if self._rounds.last_step == self._step and self._rounds.run.members:
            self._rounds.make_last_final()  # taken at this very step
            return
        self._rounds.add(self._step, self._epoch, is_final=True)


_NOT_OUR_BATCH = (
    "CBNNCallback: the first batch of `fit` did not come from the pipeline of "
    "this callback, so its samples have no weights. "
)

_LOOKS_AHEAD = (
    "CBNNCallback: batches look their weights up before their turn, so some "
    "would have old ones. Remove `.prefetch(...)` and "
    "`num_parallel_calls` from what is done to the pipeline after it was made; "
    "it prefetches by itself. "
)

_GATE_GAVE_UP = (
    "CBNNCallback: a step lasted for long while a batch was held back for the "
    "next update of the weights, and probably waited for it. Nothing is held "
    "back any more, so that some batches will have old weights. Remove "
    "`.shuffle(...)` and the like from what is done to the pipeline after it "
    "was made; it shuffles by itself."
)

_FROZEN_WEIGHTS = (
    "CBNNCallback: batches of this epoch did not look their weights up, which "
    "are frozen. Remove `.cache()` from what is done to the pipeline after it "
    "was made; cache the examples that it is made of. "
)


_ADVICE = (
    "Choose another directory, go on with that run (`resume=True`), or replace "
    "it (`overwrite=True`)."
)


def _as_path(directory: Any) -> pathlib.Path | None:
    if directory is None:
        return None
    if not isinstance(directory, (str, os.PathLike)):
        raise ValueError(
            f"CBNNCallback({directory!r}): the first argument is the directory "
            "of the run; give numbers by name, as in `num_checkpoints=6`."
        )
    return pathlib.Path(directory).absolute()


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_uniform(distribution: np.ndarray) -> bool:
    return bool(np.all(distribution == distribution[0]))


def _shortened(steps: list[int]) -> list[Any]:
    return steps if len(steps) <= 12 else [*steps[:5], "...", *steps[-3:]]
