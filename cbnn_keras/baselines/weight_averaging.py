"""Stochastic weight averaging: one model, the mean of several."""

import os
from typing import ClassVar, Unpack

import keras
import numpy as np

from cbnn_keras import schedules
from cbnn_keras.boosting_policies import EqualVotes
from cbnn_keras.models.batch_norm import recompute_statistics
from cbnn_keras.runs.run import MethodState
from cbnn_keras.support import arguments
from cbnn_keras.training.checkpointing import CheckpointCallback
from cbnn_keras.training.plan import (
    Actions,
    Plan,
    Progress,
    Schedule,
    by_step,
    known_steps,
)
from cbnn_keras.training.run_arguments import RunOptions
from cbnn_keras.training.task import Task


class StochasticWeightAveraging(CheckpointCallback):
    """The mean of the weights over the last part of a run ("SWA").

    The run has one member, the averaged model, and costs no more to serve than
    a single one. When `fit` is over the model itself holds the average, unless
    another callback puts other weights into it, as `EarlyStopping` may.
    BatchNorm's statistics are recomputed for it, in a pass over the training
    set without augmentation.

    Reference: Izmailov et al., "Averaging weights leads to wider optima and
    better generalization", UAI 2018.

    Args:
        directory: Where the run is kept, as for `CBNNCallback`.
        num_checkpoints: How many models are averaged, equally spaced over the
            last part, the last one at the end. Defaults to None: the model
            after each of its epochs.
        first_part: The share of the run before it. Defaults to 0.75.
        learning_rate: A constant rate for the last part. Defaults to None: as
            it would be.
        schedule: The learning rate of the first part, by step from 1, or one of
            Keras' schedules; only together with `learning_rate`.
        **options: The other arguments of `CBNNCallback` that all methods have:
            `training.run_arguments.RunOptions`.
    """

    METHOD: ClassVar[str] = "swa"

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        num_checkpoints: int | None = None,
        first_part: float = 0.75,
        learning_rate: float | None = None,
        schedule: Schedule | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__(directory, num_checkpoints=num_checkpoints, **options)
        name = self._name
        self.first_part = arguments.number(
            name,
            "first_part",
            first_part,
            at_least=0,
            below=1,
            allowed="a share of at least 0 and below 1; the default is 0.75",
        )
        if learning_rate is not None:
            learning_rate = arguments.number(
                name,
                "learning_rate",
                learning_rate,
                above=0,
                allowed="a number above 0, or None",
            )
        elif schedule is not None:
            raise ValueError(
                f"{name}(schedule=...): only together with `learning_rate=`; "
                "without it, compile the model with the schedule."
            )
        self.learning_rate = learning_rate
        self.schedule = by_step(name, schedule)

    def _check_task(self, task: Task) -> None:
        if task.samples.own is not None:
            raise ValueError(
                "StochasticWeightAveraging: each device has samples of its "
                "own, over which statistics of BatchNorm are not collected "
                "here. Give `weighted(sharded=False)`, or train with "
                "`CBNNCallback(average=True)`."
            )

    def _make_plan(self, total_steps: int, steps_per_epoch: int | None) -> Plan:
        first = schedules.share_of_steps(total_steps, self.first_part)
        if self.num_checkpoints is None:
            spacing = known_steps(self._name, steps_per_epoch)
        else:
            spacing = max((total_steps - first) // self.num_checkpoints, 1)
        num = min(
            -(-(total_steps - first) // spacing),
            self.num_checkpoints or total_steps,
        )
        steps = schedules.last_steps(total_steps, num, spacing)

        def learning_rate(step: int) -> float | None:
            if step > first:
                return self.learning_rate
            return None if self.schedule is None else self.schedule(step)

        return Plan(
            [total_steps],
            EqualVotes(),
            {"averaged": steps, "learning_rate": self.learning_rate},
            None if self.learning_rate is None else learning_rate,
            _Averaging(steps),
        )


class _Averaging(Actions):
    """The mean of the weights so far.

    Args:
        steps: After which of them weights are taken in.
    """

    def __init__(self, steps: list[int]) -> None:
        self._steps = steps
        self._num_averaged = 0
        self._num_passed = 0
        self._means: list[np.ndarray] = []

    def after_step(self, progress: Progress) -> None:
        num_passed = sum(step <= progress.step for step in self._steps)
        if num_passed > self._num_passed:
            self._num_passed = num_passed
            self._average(progress.task.model)

    def _average(self, model: keras.Model) -> None:
        self._num_averaged += 1
        values = [weight.astype(np.float64) for weight in model.get_weights()]
        if not self._means:
            self._means = values
            return
        for mean, value in zip(self._means, values, strict=True):
            mean += (value - mean) / self._num_averaged

    def before_final(self, progress: Progress) -> None:
        if not self._num_averaged:
            return  # stopped before there was anything to average
        task = progress.task
        weights = task.model.get_weights()
        task.model.set_weights(
            [
                mean.astype(weight.dtype) if _is_float(weight) else weight
                for mean, weight in zip(self._means, weights, strict=True)
            ]
        )
        batches = task.samples.shuffled_inputs(task.batch_size, task.shuffle)
        num_batches = -(-task.samples.num_samples // task.batch_size)
        recompute_statistics(
            task.model,
            progress.reporter.track(
                batches, num_batches, "BatchNorm statistics"
            ),
        )

    def state(self) -> MethodState:
        counts = {
            "num_averaged": np.array(self._num_averaged),
            "num_passed": np.array(self._num_passed),
        }
        return counts | {str(i): mean for i, mean in enumerate(self._means)}

    def restore(self, state: MethodState) -> None:
        arrays = dict(state)
        self._num_averaged = int(arrays.pop("num_averaged"))
        self._num_passed = int(arrays.pop("num_passed"))
        self._means = [arrays[str(i)] for i in range(len(arrays))]


def _is_float(weight: np.ndarray) -> bool:
    return bool(keras.backend.is_float_dtype(weight.dtype.name))
