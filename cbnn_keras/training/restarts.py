"""Restarts: members that start anew within one run and one budget."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from cbnn_keras import schedules
from cbnn_keras.auto_restarts import AutoRestarts
from cbnn_keras.models.fresh import (
    fresh_weights,
    reset_optimizer,
    starts_anew,
)
from cbnn_keras.runs.run import MethodState
from cbnn_keras.support import arguments
from cbnn_keras.training.intervals import Checkpoints
from cbnn_keras.training.plan import Actions, Progress

_LOSSES = "losses"  # in the state, beside arrays that are called by numbers


@dataclasses.dataclass(frozen=True)
class NewStarts:
    """What the model starts anew from, after each checkpoint but the last.

    Attributes:
        keep: The share of the trained weights that it keeps.
        restart_from: `"fresh"` for weights that its layers draw, `"start"` for
            those that `fit` began with.
        head: With `"start"`, the names of the layers that are drawn anew;
            None for the last one that has weights.
    """

    keep: float
    restart_from: str
    head: list[str] | None

    @classmethod
    def checked(
        cls, owner: str, keep: Any, restart_from: Any, head: Any
    ) -> "NewStarts":
        """What a user said.

        Raises:
            ValueError: If it is outside what is allowed.
        """
        share = arguments.number(
            owner,
            "keep",
            keep,
            at_least=0,
            below=1,
            allowed="a share of at least 0 and below 1",
        )
        if restart_from not in ("fresh", "start"):
            raise ValueError(
                f"{owner}(restart_from={restart_from!r}): must be 'fresh' or "
                "'start'."
            )
        if head is not None and restart_from != "start":
            raise ValueError(
                f"{owner}(head={head!r}): only with restart_from='start'; "
                "'fresh' draws all layers anew."
            )
        names = [head] if isinstance(head, str) else head
        return cls(share, restart_from, None if names is None else list(names))


class Restarting(Actions):
    """weights <- keep * weights + (1 - keep) * a new start.

    Frozen layers stay. Slots of the optimizer and statistics of BatchNorm
    begin anew, and so does the average of the weights.

    Args:
        new_starts: What the model starts anew from.
        checkpoints: When there is one, by default at the end of each cycle.

    Attributes:
        checkpoints: The same.
    """

    def __init__(self, new_starts: NewStarts, checkpoints: Checkpoints) -> None:
        self._new_starts = new_starts
        self.checkpoints = checkpoints
        self._first: list[np.ndarray] = []

    def rate(self, step: int, highest: float) -> float:
        """The learning rate: a cosine from `highest` in every cycle."""
        ends = self.checkpoints.steps
        return schedules.annealed_rate(step, ends, highest)

    @property
    def most_checkpoints(self) -> int:
        """How many checkpoints there are at the most."""
        return len(self.checkpoints.steps)

    def begin(self, progress: Progress) -> None:
        model = progress.task.model
        _fresh(progress)  # fails now and not after a cycle
        if self._new_starts.restart_from == "start":
            _in_layers(model, self._new_starts.head)
            self._first = [np.array(weight) for weight in model.get_weights()]

    def after_checkpoint(self, progress: Progress) -> None:
        self._start_anew(progress)

    def _start_anew(self, progress: Progress, share: float = 1.0) -> None:
        model, keep = progress.task.model, self._new_starts.keep
        begin = _fresh(progress)
        if self._first:
            is_head = _in_layers(model, self._new_starts.head)
            begin = [
                drawn if is_new else first
                for drawn, first, is_new in zip(
                    begin, self._first, is_head, strict=True
                )
            ]
        trained = {id(variable) for variable in model.trainable_variables}
        for variable, start, is_anew in zip(
            model.weights, begin, starts_anew(model), strict=True
        ):
            if id(variable) in trained:
                value = keras.ops.convert_to_numpy(variable)
                variable.assign(_blended(value, start, keep))
            elif is_anew:
                variable.assign(start)
        reset_optimizer(model)
        progress.begin_anew(share)
        progress.reporter.line(
            f"restart after step {progress.step}"
            + (f", keeping {keep:g} of the weights" if keep else ""),
            during_epoch=True,
        )

    def state(self) -> MethodState:
        return {str(i): array for i, array in enumerate(self._first)}

    def restore(self, state: MethodState) -> None:
        self._first = [state[str(i)] for i in range(len(state))]


class AutoRestarting(Restarting):
    """Starts anew when twice the steps no longer help on held-out data.

    Args:
        new_starts: What the model starts anew from.
        checkpoints: All that there can be.
        rule: Which of them there are, and when the model starts anew.
    """

    has_validation_losses = True

    def __init__(
        self,
        new_starts: NewStarts,
        checkpoints: Checkpoints,
        rule: AutoRestarts,
    ) -> None:
        super().__init__(new_starts, checkpoints)
        self._rule = rule
        self._losses: dict[int, float] = {}
        self._cycles = rule.cycles(self._losses)  # asked for in every step

    @property
    def most_checkpoints(self) -> int:
        return self._rule.most_checkpoints

    def rate(self, step: int, highest: float) -> float:
        return self._cycles.rate(step, highest)

    def due(self, steps: Sequence[int]) -> list[int]:
        return [step for step in steps if step in self._cycles.checkpoints]

    def after_checkpoint(self, progress: Progress) -> None:
        was_decided, step = bool(self._cycles.starts), progress.step
        record = progress.last_round if progress.num_rounds else None
        # There is none of this step if the stop rule left it out.
        if record is not None and record.validation_loss is not None:
            self._losses[record.step] = record.validation_loss
        cycles = self._cycles = self._rule.cycles(self._losses)
        if step not in cycles.starts:
            return
        length = cycles.length_after(step)
        if not was_decided:
            progress.reporter.line(
                f"held-out loss {self._losses[cycles.enough]:.4f} "
                f"after step {cycles.enough} and "
                f"{self._losses[step]:.4f} after step {step}: "
                f"twice the steps helped by less than {self._rule.gain:.0%}, "
                f"so that cycles of {length} steps begin",
                during_epoch=True,
            )
        self._start_anew(progress, length / self._rule.total_steps)

    def state(self) -> MethodState:
        losses = np.array(list(self._losses.items())).reshape(-1, 2)
        return {**super().state(), _LOSSES: losses}

    def restore(self, state: MethodState) -> None:
        pairs = state.pop(_LOSSES)
        self._losses = {int(step): float(loss) for step, loss in pairs}
        self._cycles = self._rule.cycles(self._losses)
        super().restore(state)


def _fresh(progress: Progress) -> list[np.ndarray]:
    """Weights as the layers draw them, others after each step of a run."""
    task = progress.task
    entropy = [task.weights.seed or 0, progress.step]
    seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
    return fresh_weights(task.model, next(task.samples.inputs(1)), seed)


def _blended(value: np.ndarray, start: np.ndarray, keep: float) -> np.ndarray:
    mean = keep * value.astype(np.float64) + (1 - keep) * start.astype(
        np.float64
    )
    return mean.astype(value.dtype)


def _in_layers(model: keras.Model, names: Sequence[str] | None) -> list[bool]:
    """Which of `model.weights` belong to layers of these names.

    Raises:
        ValueError: If there is no such layer.
    """
    if names is None:
        layers = [layer for layer in model.layers if layer.trainable_variables]
        chosen = layers[-1:]
    else:
        found = {layer.name: layer for layer in model.layers}
        unknown = [name for name in names if name not in found]
        if unknown:
            raise ValueError(
                f"head={list(names)!r}: the model has no layer "
                f"{unknown[0]!r}; it has {', '.join(found)}."
            )
        chosen = [found[name] for name in names]
    ids = {id(weight) for layer in chosen for weight in layer.weights}
    return [id(weight) in ids for weight in model.weights]
