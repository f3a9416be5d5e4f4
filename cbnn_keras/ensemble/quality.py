"""What an ensemble is chosen by, as a number that is to be large."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np


def checked_quality(
    by: Any,
    mode: str,
    labels: np.ndarray,
    judge: Callable[[np.ndarray], dict[str, float]],
) -> Callable[[np.ndarray], float]:
    """A function of probabilities, from what a user gave.

    Args:
        by: A name in what `judge` gives, a metric of Keras that is in it, or a
            function of labels and probabilities.
        mode: `"max"`, or `"min"` for what is to be small.
        labels: Class indices, shape `(num_samples,)`.
        judge: Values by name, of probabilities.

    Raises:
        ValueError: If it is none of these; and, when it is called, for a name
            that is not there and for what is no number.
    """
    sign = 1 if mode == "max" else -1
    if isinstance(by, keras.metrics.Metric):
        by = by.name
    is_function = callable(by) and not isinstance(by, type)
    if not isinstance(by, str) and not is_function:
        raise ValueError(
            f"select(by={by!r:.100}): by must be 'likelihood', a name that "
            "`evaluate` gives, a metric of Keras, or a function of labels and "
            "probabilities."
        )

    def named(probabilities: np.ndarray) -> Any:
        found = judge(probabilities)
        if by not in found:
            raise ValueError(
                f"select(by={by!r}): by must be 'likelihood' or one of "
                f"{', '.join(map(repr, found))}. Compile the model with other "
                "metrics, or give one of Keras or a function."
            )
        return found[by]

    def quality(probabilities: np.ndarray) -> float:
        if isinstance(by, str):
            value = named(probabilities)
        else:
            value = by(labels, probabilities)
        value = np.asarray(value)
        if value.size != 1 or not np.isfinite(value).all():
            raise ValueError(
                f"select(by=...): it gave {value!r:.100} for an ensemble, "
                "which is no finite number."
            )
        return sign * float(value.item())

    return quality
