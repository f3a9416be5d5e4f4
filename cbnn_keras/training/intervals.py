"""When there are checkpoints: by number, by interval, or by time trained.

What a user says of it is checked here, and what it is in steps is found out
when `fit` begins. The arithmetic is in `schedules.py`.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from cbnn_keras import schedules
from cbnn_keras.support import arguments
from cbnn_keras.training.plan import known_steps

_FIRST = "first_interval"  # in the settings of a run whose intervals grow
_KEPT = "num_kept"


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """The steps with a checkpoint, and what a manifest says of them.

    Attributes:
        steps: In order; the last is the end.
        settings: What decided on them.
        num_kept: How many members are kept, or None for all.
        length: About how many steps the run has, for what is a share of it.
    """

    steps: list[int]
    settings: Mapping[str, object]
    num_kept: int | None
    length: int


def at_intervals(total_steps: int, interval: int) -> Checkpoints:
    """Checkpoints as in the paper, every so many steps."""
    steps = schedules.checkpoint_steps(total_steps, interval)
    return Checkpoints(steps, {"interval": interval}, None, total_steps)


def growing(total_steps: int, first: int, num_checkpoints: int) -> Checkpoints:
    """Checkpoints of a run that may end at any time."""
    return Checkpoints(
        schedules.growing_steps(total_steps, first, num_checkpoints),
        {_FIRST: first, _KEPT: num_checkpoints},
        num_checkpoints,
        min(first * num_checkpoints, total_steps),
    )


def has_growing(settings: Mapping[str, object]) -> bool:
    """Whether intervals grow in a run of these settings."""
    return _FIRST in settings


def may_stop_early(callbacks: Iterable[keras.callbacks.Callback]) -> bool:
    """Whether one of these callbacks is there to end training."""
    kind = keras.callbacks.EarlyStopping
    return any(isinstance(callback, kind) for callback in callbacks)


def checked_interval(owner: str, interval: Any) -> int | str | None:
    """An interval in steps, or in epochs as a text, as a user gave it.

    Raises:
        ValueError: If it is neither.
    """
    if interval is None:
        return None
    if isinstance(interval, str) and _epochs(interval):
        return interval
    return arguments.integer(
        owner,
        "interval",
        interval,
        allowed="a number of steps of at least 1, or of epochs as a text, such "
        "as '1ep' or '0.5ep'",
    )


def in_steps(
    owner: str, interval: int | str, steps_per_epoch: int | None
) -> int:
    """An interval in steps.

    Raises:
        ValueError: If it is one of epochs, and they are of unknown length.
    """
    if isinstance(interval, int):
        return interval
    return max(
        round(_epochs(interval) * known_steps(owner, steps_per_epoch)), 1
    )


def _epochs(text: str) -> float:
    """How many epochs a text stands for; 0 for none."""
    found = re.fullmatch(r"\s*(\d*\.?\d+)\s*ep(?:ochs?)?\s*", text)
    return float(found[1]) if found else 0.0
