"""Checks of arguments that are numbers, with one wording for all."""

import numbers
import operator
from typing import Any

import numpy as np


def integer(
    owner: str,
    name: str,
    value: Any,
    *,
    at_least: int | None = 1,
    allowed: str | None = None,
) -> int:
    """Python's own int, which a manifest can hold.

    Args:
        owner: The class or function whose argument it is, for the message.
        name: What the argument is called.
        value: What was given. True and False are no integers.
        at_least: The smallest integer allowed, or None for any.
        allowed: What the message says is allowed, if it is more than that.

    Raises:
        ValueError: If it is not such an integer.

    Example:

    >>> integer("select", "num", 2.5)
    Traceback (most recent call last):
        ...
    ValueError: select(num=2.5): num must be an integer of at least 1.
    """
    if allowed is None:
        limit = "" if at_least is None else f" of at least {at_least}"
        allowed = f"an integer{limit}"
    refusal = ValueError(
        f"{owner}({name}={value!r}): {name} must be {allowed}."
    )
    if isinstance(value, (bool, np.bool_)):
        raise refusal
    try:
        found = operator.index(value)
    except TypeError:
        raise refusal from None
    if at_least is not None and found < at_least:
        raise refusal
    return found


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
        owner: The class or function whose argument it is, for the message.
        name: What the argument is called.
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
        raise ValueError(
            f"{owner}({name}={value!r}): {name} must be {allowed}."
        )
    return float(value)
