"""A run of checkpoints inside `model.fit`, whatever the method.

`CheckpointCallback` binds the data, counts the steps, takes checkpoints when
its plan says so, keeps the run, and goes on with one. What the plan is, and
what happens between checkpoints, is up to a method: `callback.CBNNCallback`
and those of `baselines`.
"""

import abc
import dataclasses
import os
import pathlib
import sys
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, TypedDict

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.data.sample_weights import (
    EXPLICIT_FORM,
    SampleWeights,
    as_examples,
    claim_sample_weights,
    sample_weights_of,
    weighted,
)
from cbnn_keras.ensemble.ensemble import CheckpointEnsemble
from cbnn_keras.ensemble.validation import EnsembleValidation, as_pair
from cbnn_keras.models import copying, replicas
from cbnn_keras.models.classifier import averages_loss
from cbnn_keras.runs.directory import (
    RunDirectory,
    check_available,
    holds_run,
)
from cbnn_keras.runs.run import MemoryRun, Notes, Record, Run, labels_id
from cbnn_keras.support import arguments
from cbnn_keras.support.console import Reporter
from cbnn_keras.training.rounds import Rounds
from cbnn_keras.training.task import Task, bare_optimizer, describe_task
from cbnn_keras.version import __version__

DEFAULT_NUM_CHECKPOINTS = 6
_NUM_CHECKED = 10  # batches of a fit whose lookups are counted


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a method is going to do in a run of known length.

    Attributes:
        steps: With a checkpoint, in order; the last is the end of the run.
        settings: What decides on all of it, for the manifest; those of
            `boosting.Booster` among them.
        learning_rate: The rate of a step, from 1, or None where the method
            leaves it alone. None for a method that never sets it.
    """

    steps: list[int]
    settings: Record
    learning_rate: Callable[[int], float | None] | None = None


# A learning rate by step, from 1.
Schedule = Callable[[int], float]


def by_step(owner: str, schedule: Any) -> Schedule | None:
    """One of Keras' schedules, which count from 0, or a function, or None.

    Raises:
        ValueError: If it is none of these.
    """
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        return lambda step: float(schedule(step - 1))
    if schedule is not None and not callable(schedule):
        raise ValueError(
            f"{owner}(schedule={schedule!r}): a function of the step, from 1, "
            "or a schedule of Keras."
        )
    return schedule


def known_steps(owner: str, steps_per_epoch: int | None) -> int:
    """Raises a `ValueError` if an epoch is of unknown length."""
    if not steps_per_epoch:
        raise ValueError(
            f"{owner}: `fit` does not know how many steps an epoch has. Pass "
            "`steps_per_epoch=` to `fit`."
        )
    return int(steps_per_epoch)


class RunOptions(TypedDict, total=False):
    """Arguments that all callbacks have in common; see `CBNNCallback`."""

    total_steps: int | None
    from_logits: bool | None
    validation_data: Any
    score_data: Any
    resume: bool
    overwrite: bool


class CheckpointCallback(keras.callbacks.Callback, abc.ABC):
    """What all methods have in common.

    A method gives its plan, and may define the hooks below it.
    """

    METHOD: ClassVar[str]  # in the manifest, and in front of what is printed

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        num_checkpoints: int | None = None,
        total_steps: int | None = None,
        from_logits: bool | None = None,
        validation_data: Any = None,
        score_data: Any = None,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        super().__init__()
        self.directory = self._as_path(directory)
        self.num_checkpoints = num_checkpoints
        self.total_steps = total_steps
        self.from_logits = from_logits
        self.validation_data = validation_data
        self.score_data = score_data
        self.resume = resume
        self.overwrite = overwrite
        self._check_arguments()
        self._weights: SampleWeights | None = None
        self._rounds: Rounds | None = None
        self._step = 0

    # What a method is.

    @abc.abstractmethod
    def _make_plan(
        self, total_steps: int, steps_per_epoch: int | None
    ) -> Plan: ...

    def _check_task(self, task: Task) -> None:
        """Raises a `ValueError` if the method does not go with the task."""

    def _after_step(self) -> None:
        """Called after each execution of steps, before any checkpoint."""

    def _after_epoch(self, logs: Record) -> None:
        """Called after each epoch but the last, with its logs."""

    def _before_final(self) -> None:
        """Called when training is over, before the final model is scored."""

    def _notes(self) -> Notes:
        """What the method has to remember if the process dies."""
        return {}

    def _take_up(self, notes: Notes) -> None:
        """Gets back what `_notes` gave; nothing when a run begins."""

    # What a user calls.

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

    @property
    def run(self) -> Run:
        """Rounds and members so far, wherever they are kept."""
        if self._rounds is None:
            raise ValueError(
                f"{self._name}: nothing was trained yet. Pass the callback to "
                "`model.fit(..., callbacks=[...])` first."
            )
        return self._rounds.run

    @property
    def step(self) -> int:
        """How many steps of the run were made."""
        return self._step

    def ensemble(self) -> CheckpointEnsemble:
        """The members so far, as an ensemble around the trained model."""
        return CheckpointEnsemble(self.run, self.model)

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
        self._check_task(self._task)
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
            self._rounds.save_state(self._step, epoch - 1, self._notes())
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
        if self._plan.learning_rate is not None:
            rate = self._plan.learning_rate(self._step + 1)
            if rate is not None:
                bare_optimizer(self.model).learning_rate = rate

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
                f"{self._name}(total_steps={self.total_steps}): `fit` goes on "
                "after so many steps, so the final model would not be in the "
                "ensemble. Give the number of steps of all epochs together."
            )
        if self._is_gated:
            self._check_gate()
        self._after_step()
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
        if not self._is_done:
            self._after_epoch(logs or {})
        if self._rounds is not None and logs is not None:
            logs.update(self._rounds.logs(self._step))

    def on_train_end(self, logs: Record | None = None) -> None:
        self.model._initial_epoch = self._initial_epoch
        self._task.weights.set_replicas(0, is_averaged=True)
        if self._rounds is not None:  # or there was no epoch to train
            self._end()
            self._rounds.run.finish()

    # What the constructor and the beginning of `fit` check.

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _as_path(self, directory: Any) -> pathlib.Path | None:
        if directory is None:
            return None
        if not isinstance(directory, (str, os.PathLike)):
            raise ValueError(
                f"{self._name}({directory!r}): the first argument is the "
                "directory of the run; give numbers by name, as in "
                "`num_checkpoints=6`."
            )
        return pathlib.Path(directory).absolute()

    def _check_arguments(self) -> None:
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"{self._name} runs on Keras' TensorFlow backend; this is "
                f"{keras.backend.backend()!r}. Set KERAS_BACKEND=tensorflow "
                "before Keras is imported."
            )
        # Plain Python values from here on: they go into the manifest.
        if self.num_checkpoints is not None:
            self.num_checkpoints = arguments.positive_integer(
                self._name, "num_checkpoints", self.num_checkpoints
            )
        if self.total_steps is not None:
            self.total_steps = arguments.positive_integer(
                self._name, "total_steps", self.total_steps
            )
        if self.from_logits is not None:
            if not isinstance(self.from_logits, (bool, np.bool_)):
                raise ValueError(
                    f"{self._name}(from_logits={self.from_logits!r}): True, "
                    "False or None."
                )
            self.from_logits = bool(self.from_logits)
        if self.validation_data is not None:
            as_pair(self.validation_data)
        if self.resume and self.overwrite:
            raise ValueError(
                f"{self._name}(resume=True, overwrite=True): go on with the "
                "run or replace it, not both."
            )
        if self.directory is None:
            if self.resume or self.overwrite:
                raise ValueError(
                    f"{self._name}: resume and overwrite need a directory."
                )
        elif not (self.resume and holds_run(self.directory)):
            check_available(
                self.directory, overwrite=self.overwrite, advice=_ADVICE
            )

    def _check_learning_rate(self) -> None:
        """Refuses what would keep the method from setting the rate."""
        if self._plan.learning_rate is None:
            return
        if self.model.steps_per_execution > 1:
            raise ValueError(
                f"{self._name} sets the learning rate of every step, but the "
                "model was compiled with steps_per_execution="
                f"{self.model.steps_per_execution}. Leave it out of `compile`."
            )
        optimizer = bare_optimizer(self.model)
        rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
        try:
            optimizer.learning_rate = rate
        except (AttributeError, TypeError):  # Keras has no other way to ask
            raise ValueError(
                f"{self._name} sets the learning rate itself, but the "
                "optimizer was made with a schedule. Make it with a number; "
                "methods that leave a part of the run alone take the rate of "
                "that part as `schedule=`."
            ) from None

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
                f"{self._name}: sparse inputs cannot be divided among {num} "
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
                f"{self._name}: there are no sample weights yet. "
                + EXPLICIT_FORM
            )
        return self._weights

    # The beginning of a run.

    def _start(self, first_epoch: int) -> None:
        header = self._header(first_epoch)
        self._check_learning_rate()
        self._take_up({})
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
        self._reporter.line(
            f"{self._title}: checkpoints after steps {steps}; {place}"
        )

    @property
    def _title(self) -> str:
        return self.METHOD.upper()

    def _go_on(self, directory: pathlib.Path) -> None:
        run = RunDirectory.open(directory)
        if not self._task.weights.has_own_seed:
            self._task.weights.set_seed(run.header["settings"]["seed"])
        run.check_started_with(
            self._header(run.header["settings"]["first_epoch"])
        )
        self._check_learning_rate()
        run = RunDirectory.claim(directory)
        if not run.is_finished and run.state is None:
            return  # killed in its first epoch: `_start` begins it again
        run.verify()
        epoch = self.params["epochs"]
        if run.is_finished:
            run.load_member(run.members[-1], self.model)
            self._is_done = True
        else:
            state, notes = run.rewind(self.model)
            self._take_up(notes)
            self._step, epoch = state["step"], state["epoch"]
        self._follow(run)
        # Where `fit` starts; `on_epoch_begin` puts the old value back.
        self.model._initial_epoch = epoch
        self._reporter.line(
            f"{self._title}: the run in {self.directory} is complete; there is "
            "nothing left to train. The model holds its last member, of step "
            f"{run.members[-1]}."
            if self._is_done
            else f"{self._title}: going on in {self.directory} after epoch "
            f"{epoch}, "
            f"step {self._step}; members so far: {len(run.members)}."
        )

    def _follow(self, run: Run) -> None:
        self._pending = [s for s in self._plan.steps if s > self._step]
        self._rounds = Rounds(self._task, run, self._validation, self._reporter)

    def _header(self, first_epoch: int) -> Record:
        task = self._task
        total_steps = self._find_total_steps(first_epoch)
        self._plan = self._make_plan(total_steps, self.params.get("steps"))
        return {
            "method": self.METHOD,
            "package_version": __version__,
            "num_classes": task.classifier.num_classes,
            "num_samples": task.weights.num_samples,
            "is_binary": task.classifier.is_binary,
            "from_logits": task.classifier.from_logits,
            "num_parameters": self.model.count_params(),
            "architecture": copying.architecture_id(self.model),
            "labels": labels_id(task.labels, task.weights.base),
            "settings": {
                "total_steps": total_steps,
                "first_epoch": first_epoch,
                **self._plan.settings,
                "optimizer": type(bare_optimizer(self.model)).__name__,
                **task.weights.settings,
            },
        }

    def _find_total_steps(self, first_epoch: int) -> int:
        steps = self.params.get("steps")
        if not steps:
            if self.total_steps is None:
                raise ValueError(
                    f"{self._name}: `fit` does not know how many steps an "
                    f"epoch has. Pass `total_steps=` to {self._name}, or "
                    "`steps_per_epoch=` to `fit`."
                )
            if self.model.steps_per_execution > 1:
                raise ValueError(
                    f"{self._name}: with steps_per_execution="
                    f"{self.model.steps_per_execution} the steps of an epoch "
                    "must be known. Pass `steps_per_epoch=` to `fit`."
                )
            return self.total_steps
        known = int(steps) * (self.params["epochs"] - first_epoch)
        if self.total_steps not in (None, known):
            raise ValueError(
                f"{self._name}(total_steps={self.total_steps}), but `fit` "
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
            self._add_checkpoint()

    def _add_checkpoint(self) -> None:
        """For a method that finds out by itself when it is time for one."""
        if self._rounds is not None:
            self._rounds.add(self._step, self._epoch, is_final=False)

    def _end(self) -> None:
        """Takes the model as it is now for the final one."""
        if self._is_done or self._rounds is None:
            return
        self._is_done = True
        self._pending = []
        self._before_final()
        if self._rounds.last_step == self._step and self._rounds.run.members:
            self._rounds.make_last_final()  # taken at this very step
            return
        self._rounds.add(self._step, self._epoch, is_final=True)


_NOT_OUR_BATCH = (
    "The first batch of `fit` did not come from the pipeline of "
    "this callback, so its samples have no weights. "
)

_LOOKS_AHEAD = (
    "Batches look their weights up before their turn, so some "
    "would have old ones. Remove `.prefetch(...)` and "
    "`num_parallel_calls` from what is done to the pipeline after it was made; "
    "it prefetches by itself. "
)

_GATE_GAVE_UP = (
    "A step lasted for long while a batch was held back for the "
    "next update of the weights, and probably waited for it. Nothing is held "
    "back any more, so that some batches will have old weights. Remove "
    "`.shuffle(...)` and the like from what is done to the pipeline after it "
    "was made; it shuffles by itself."
)

_FROZEN_WEIGHTS = (
    "Batches of this epoch did not look their weights up, which "
    "are frozen. Remove `.cache()` from what is done to the pipeline after it "
    "was made; cache the examples that it is made of. "
)


_ADVICE = (
    "Choose another directory, go on with that run (`resume=True`), or replace "
    "it (`overwrite=True`)."
)


def _is_uniform(distribution: np.ndarray) -> bool:
    return bool(np.all(distribution == distribution[0]))


def _shortened(steps: list[int]) -> list[Any]:
    return steps if len(steps) <= 12 else [*steps[:5], "...", *steps[-3:]]
