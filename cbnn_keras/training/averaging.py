"""What a member is: the weights at its checkpoint, or an average of weights.

Scoring, saving and votes speak of the weights that are in the model inside
`in_model`; training goes on from those that it had before.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from cbnn_keras.models import engine
from cbnn_keras.models.batch_norm import StatisticsRecomputer
from cbnn_keras.runs.run import MethodState
from cbnn_keras.support.console import Reporter
from cbnn_keras.training.task import Task

# Weights change little in so many steps: averages of every step are no better.
_LONGEST_PERIOD = 16
# Enough for statistics of BatchNorm, also where the training set is larger.
_NUM_BATCHES = 200


class MemberWeights:
    """A member is the model at its checkpoint, as in the paper."""

    def after_step(self, step: int) -> None:
        """Called after each execution of steps, before any checkpoint."""

    @contextlib.contextmanager
    def in_model(self) -> Iterator[None]:
        """Has the member's weights in the model for a while."""
        yield

    def begin_anew(self, horizon: int) -> None:
        """Forgets what was before a restart.

        Args:
            horizon: Of averages from now on, in steps.
        """

    def state(self) -> MethodState:
        """What has to be remembered if the process dies."""
        return {}

    def restore(self, state: MethodState) -> None:
        """Gets back what `state` gave."""


class AveragedWeights(MemberWeights):
    """A member is an exponential average of the weights so far.

    Trainable weights are averaged, on their device, every few steps: the
    weights of s steps ago count by exp(-s / horizon), and while fewer steps
    were made all count alike. Statistics of BatchNorm are recomputed for the
    average, in a pass over training samples without augmentation.

    An average is some steps behind what it is of, and an average of averages
    twice as many: lag-free, a member is twice the average minus that (Brown's
    double exponential smoothing), which follows a trend and is as steady.

    Args:
        task: What is trained on what.
        horizon: In steps.
        reporter: Shows the progress of the pass.
        is_lag_free: Whether averages keep up with the weights.
    """

    def __init__(
        self,
        task: Task,
        horizon: int,
        reporter: Reporter,
        *,
        is_lag_free: bool = False,
    ) -> None:
        self._task = task
        self._set_horizon(horizon)
        self._reporter = reporter
        self._last_step = 0
        self._num_updates = 0
        self._has_own_horizon = False  # other than that of the plan
        # Those of the beginning: layers may be unfrozen on the way.
        self._variables = list(task.model.trainable_variables)
        self._means = engine.in_use().averages(
            task.model, self._variables, of_averages=is_lag_free
        )
        self._recompute = StatisticsRecomputer(task.model)

    def _set_horizon(self, horizon: int) -> None:
        self._horizon = horizon
        self._period = min(_LONGEST_PERIOD, max(horizon // 10, 1))

    def after_step(self, step: int) -> None:
        if step // self._period == self._last_step // self._period:
            return
        self._num_updates += 1
        elapsed = step - self._last_step
        share = max(
            1 - math.exp(-elapsed / self._horizon), 1 / self._num_updates
        )
        self._last_step = step
        self._means.blend(share)

    @contextlib.contextmanager
    def in_model(self) -> Iterator[None]:
        if not self._num_updates:  # a checkpoint before the first update
            yield
            return
        model = self._task.model
        engine.in_use().sync(model)
        kept = [np.array(weight) for weight in model.get_weights()]
        try:
            for variable, value in zip(
                self._variables, self._values(), strict=True
            ):
                variable.assign(keras.ops.cast(value, variable.dtype))
            if self._task.samples.own is None:
                self._recompute(*self._parts())
            else:
                self._recompute.from_parts(self._parts())
            yield
        finally:
            model.set_weights(kept)

    def _values(self) -> list[Any]:
        means, num = self._means.values(), len(self._variables)
        means, behind = means[:num], means[num:]
        if not behind:
            return means
        values = [2 * mean - b for mean, b in zip(means, behind, strict=True)]
        # Twice minus once leaves what is convex, such as weights of at least 0.
        return [
            value if variable.constraint is None else variable.constraint(value)
            for variable, value in zip(self._variables, values, strict=True)
        ]

    def _parts(self) -> list[Iterable[Any]]:
        """Batches, of each device where each has samples of its own."""
        samples, size = self._task.samples, self._task.batch_size
        num_batches = min(-(-samples.num_samples // size), _NUM_BATCHES)
        parts = samples.shuffled_parts(size, self._task.shuffle, num_batches)
        return [
            self._reporter.track(
                part, num_batches // len(parts), "BatchNorm statistics"
            )
            for part in parts
        ]

    def begin_anew(self, horizon: int) -> None:
        self._num_updates = 0
        if horizon != self._horizon:
            self._set_horizon(horizon)
            self._has_own_horizon = True

    def state(self) -> MethodState:
        numbers = [self._last_step, self._num_updates]
        if self._has_own_horizon:
            numbers.append(self._horizon)
        counts = np.array(numbers)
        means = map(keras.ops.convert_to_numpy, self._means.values())
        return {"counts": counts, **{str(i): m for i, m in enumerate(means)}}

    def restore(self, state: MethodState) -> None:
        self._last_step, self._num_updates, *own = map(int, state["counts"])
        for horizon in own:
            self._set_horizon(horizon)
            self._has_own_horizon = True
        self._means.restore([state[str(i)] for i in range(len(state) - 1)])
