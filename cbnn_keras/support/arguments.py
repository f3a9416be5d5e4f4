"""Checks of constructor arguments, with one wording for all callbacks."""

import numbers
from typing import Any

import numpy as np


def positive_integer(owner: str, name: str, value: Any) -> int:
    """Python's own int, which a manifest can hold.

    Raises:
        ValueError: If it is not an integer of at least 1.
    """
    is_integer = isinstance(value, (int, np.integer))
    if not is_integer or isinstance(value, bool) or value < 1:
        raise ValueError(
            f"{owner}({name}={value!r}): an integer of at least 1."
        )
    return int(value)


def number(
    owner: str,
    name: str,
    value: Any,
    *,
    above: float = -np.inf,
    at_least: float = -np.inf,
    below: float = np.inf,
    allowed: str,
) -> float:
    """Python's own float within limits.

    Args:
        owner: Whose argument it is, for the message.
        name: What it is called.
        value: What was given.
        above: It must be larger than this.
        at_least: It must not be smaller than this.
        below: It must be smaller than this.
        allowed: What the message says is allowed.

    Raises:
        ValueError: If it is not such a number.
    """
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (is_real and above < value < below and value >= at_least):
        raise ValueError(f"{owner}({name}={value!r}): {allowed}.")
    return float(value)
