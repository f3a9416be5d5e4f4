"""What a method is going to do in a run of known length."""

import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import keras
import numpy as np

from cbnn_keras.boosting import Policy
from cbnn_keras.runs.manifest import Round
from cbnn_keras.runs.run import MethodState
from cbnn_keras.support.console import Reporter
from cbnn_keras.training.task import Task, bare_optimizer

DEFAULT_NUM_CHECKPOINTS = 6
# A learning rate by step, from 1.
Schedule = Callable[[int], float]


class Progress(Protocol):
    """What a method sees of the run that is being made.

    Attributes:
        task: What is trained on what.
        step: How many steps of the run were made.
        reporter: What people are told by.
    """

    task: Task
    step: int
    reporter: Reporter

    @property
    def num_rounds(self) -> int:
        """How many rounds there were."""

    @property
    def last_round(self) -> Round:
        """What the latest round left."""

    def add_checkpoint(self) -> None:
        """Takes a checkpoint now, whatever the plan says."""

    def begin_anew(self, share: float = 1.0) -> None:
        """Forgets the weights so far: the model got others.

        Args:
            share: What part of the plan's horizon averages have from now on.
        """


class Actions:
    """What a method does between checkpoints: nothing, unless it says so.

    One object serves one run, so that a method keeps its state in it.

    Attributes:
        has_validation_losses: Whether rounds keep the loss on held-out data.
    """

    has_validation_losses: ClassVar[bool] = False

    def begin(self, progress: Progress) -> None:
        """Called when a run begins, and not when it is resumed."""

    def due(self, steps: Sequence[int]) -> list[int]:
        """Those of the plan's steps that have a checkpoint, as things are."""
        return list(steps)

    def after_step(self, progress: Progress) -> None:
        """Called after each execution of steps, before any checkpoint."""

    def after_checkpoint(self, progress: Progress) -> None:
        """Called after each checkpoint but the final one."""

    def after_epoch(self, progress: Progress, logs: Mapping[str, Any]) -> None:
        """Called after each epoch but the last, with its logs."""

    def before_final(self, progress: Progress) -> None:
        """Called when training is over, before the final model is scored."""

    def state(self) -> MethodState:
        """What the method has to remember if the process dies."""
        return {}

    def restore(self, state: MethodState) -> None:
        """Gets back what `state` gave."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a method is going to do in a run of known length.

    Attributes:
        steps: The steps of a `fit` with a checkpoint, in order; the last is
            the end. Of these, `actions` can leave some out (`Actions.due`).
        policy: How checkpoints vote and sample weights change.
        settings: What else decides on the run, for the manifest.
        learning_rate: The rate of a step, from 1, or None where the method
            leaves it alone. None for a method that never sets it.
        actions: What happens between checkpoints, or None for nothing.
        compiled_rate: The learning rate that the model has again when the run
            is over, or None for the last one.
        horizon: Over how many steps the weights of a member are averaged, or
            None for members that are the model at its checkpoint.
        num_kept: How many members are kept, the latest ones, or None for all.
            The rounds of the others stay.
        is_lag_free: Whether these averages keep up with the weights.
    """

    steps: list[int]
    policy: Policy
    settings: Mapping[str, Any]
    learning_rate: Callable[[int], float | None] | None = None
    actions: Actions | None = None
    horizon: int | None = None
    compiled_rate: float | None = None
    num_kept: int | None = None
    is_lag_free: bool = False


@dataclasses.dataclass(frozen=True)
class Phase:
    """Which `fit` of its run a `fit` is.

    Attributes:
        first_step: How many steps of the run there were before.
        epoch_shift: Added to an epoch of `fit`, it is that of the run.
        is_last: Whether the run is complete when it ends.
        is_over: Whether it has ended before, and is passed over now.
    """

    first_step: int = 0
    epoch_shift: int = 0
    is_last: bool = True
    is_over: bool = False


def by_step(owner: str, schedule: Any) -> Schedule | None:
    """A schedule by step, from one of Keras', which count from 0.

    A function of the step, or None, is given back as it is.

    Raises:
        ValueError: If it is none of these.
    """
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        return lambda step: float(schedule(step - 1))
    if schedule is not None and not callable(schedule):
        raise ValueError(
            f"{owner}(schedule={schedule!r}): schedule must be a function of "
            "the step, from 1, or a schedule of Keras."
        )
    return schedule


def known_steps(owner: str, steps_per_epoch: int | None) -> int:
    """The steps of an epoch.

    Raises:
        ValueError: If an epoch is of unknown length.
    """
    if not steps_per_epoch:
        raise ValueError(
            f"{owner}: `fit` does not know how many steps an epoch has. Pass "
            "`steps_per_epoch=` to `fit`."
        )
    return int(steps_per_epoch)


def check_learning_rate(owner: str, plan: Plan, model: keras.Model) -> None:
    """Raises a `ValueError` for what keeps a plan from setting the rate."""
    if plan.learning_rate is None:
        return
    if model.steps_per_execution > 1:
        raise ValueError(
            f"{owner} sets the learning rate of every step, but the "
            "model was compiled with steps_per_execution="
            f"{model.steps_per_execution}. Leave it out of `compile`."
        )
    compiled_rate(owner, model)


# By optimizer, the rate that it was given last and the one that was compiled:
# Keras tells nobody when an error or Ctrl-C ends a `fit`.
_GIVEN: weakref.WeakKeyDictionary[
    keras.optimizers.Optimizer, tuple[float, float]
] = weakref.WeakKeyDictionary()


def set_rate(
    model: keras.Model, rate: float, compiled: float | None = None
) -> None:
    """Sets the learning rate of a model.

    Args:
        model: Compiled, with a number as learning rate.
        rate: The rate.
        compiled: What `compiled_rate` is to give until another rate is set by
            anybody; None for the rate itself.
    """
    optimizer = bare_optimizer(model)
    optimizer.learning_rate = rate
    _GIVEN.pop(optimizer, None)
    if compiled is not None:
        _GIVEN[optimizer] = (rate, compiled)


def compiled_rate(owner: str, model: keras.Model) -> float:
    """The learning rate that the optimizer was compiled with, if it may be set.

    Raises:
        ValueError: If the optimizer was made with a schedule.
    """
    optimizer = bare_optimizer(model)
    rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    given, compiled = _GIVEN.get(optimizer, (None, rate))
    if given is not None and np.float32(given) == np.float32(rate):
        return compiled
    try:
        optimizer.learning_rate = rate
    except (AttributeError, TypeError):  # Keras has no other way to ask
        raise ValueError(
            f"{owner} sets the learning rate itself, but the "
            "optimizer was made with a schedule. Make it with a number; "
            "methods that leave a part of the run alone take the rate of "
            "that part as `schedule=`."
        ) from None
    return rate
