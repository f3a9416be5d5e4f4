"""Probabilities that mean what they say: a temperature, and sets of classes.

Temperature scaling (Guo et al., "On calibration of modern neural networks",
2017) and split conformal prediction (Vovk et al., "Algorithmic learning in a
random world", 2005), as formulas in NumPy. `CheckpointEnsemble.calibrate` fits
them, and whatever predicts applies them; how good they are is measured in
`analysis.calibration`.

Probabilities have the shape `(..., num_classes)`, or one column, the
probability of class 1, if binary; labels are class indices.
"""

import dataclasses
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cbnn_keras import metrics

SMALLEST_TEMPERATURE, LARGEST_TEMPERATURE = 0.01, 100.0
_ROUNDING = 2.0**-24  # of p in float32, where p is near 1
_NEGLIGIBLE = 5e-6  # a difference in scaled probabilities, from that rounding


@dataclasses.dataclass(frozen=True)
class CalibrationRecord:
    """What `CheckpointEnsemble.calibrate` found, and for which ensemble.

    Attributes:
        temperature: T, see `scale`.
        num_samples: The number of samples that it was fitted to.
        members: The steps of the members that were averaged.
        votes: Their votes.
        coverage: The share of samples whose label is to be in their set, or
            None if no sets were asked for.
        threshold: The least probability, after scaling, of a class that is in a
            set; None without `coverage`.
    """

    temperature: float
    num_samples: int
    members: list[int]
    votes: list[float]
    coverage: float | None = None
    threshold: float | None = None

    def holds_for(self, members: list[int], votes: ArrayLike) -> bool:
        """Whether it was fitted to these members with these votes."""
        return members == self.members and np.array_equal(votes, self.votes)


def fit_temperature(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """The temperature under which the labels are most likely.

    The likelihood is concave in 1/T, so that its one maximum is where its
    derivative changes sign; it is looked for between 0.01 and 100. For one
    column the derivative is that with the `floor` of the temperature.
    """
    rows = np.arange(len(labels))
    # Of 1/T.
    low, high = -np.log(LARGEST_TEMPERATURE), -np.log(SMALLEST_TEMPERATURE)
    for _ in range(32):  # 2e-9 of it
        middle = (low + high) / 2
        least = floor(np.exp(-middle), probabilities.shape[-1])
        logs = _logs(probabilities, least)
        scaled = _softmax(np.exp(middle) * logs)
        if (scaled * logs).sum(axis=1).mean() < logs[rows, labels].mean():
            low = middle
        else:
            high = middle
    return float(np.exp(-middle))


def scale(probabilities: np.ndarray, temperature: float) -> NDArray[np.float64]:
    """Probabilities to the power of 1/T, made to sum to 1 again.

    The same as dividing logits by T. Predicted classes stay what they are; a
    temperature above 1 makes them less confident. What is below `floor` counts
    as that.

    Example:

    >>> scale(np.array([[0.8, 0.2]]), temperature=2)
    array([[0.66666667, 0.33333333]])
    """
    if not 0 < temperature < np.inf:
        raise ValueError(
            f"scale(temperature={temperature!r}): temperature must be above 0."
        )
    num_columns = probabilities.shape[-1]
    logs = _logs(probabilities, floor(temperature, num_columns))
    scaled = _softmax(logs / temperature)
    return scaled[..., 1:] if num_columns == 1 else scaled


def floor(temperature: float, num_columns: int) -> float:
    """The least probability that `scale` tells from smaller ones.

    1e-7, as in the likelihood. More for one column and T above 1: there
    1 - p is known to 6e-8 in float32, however small it is, and
    (1 - p)^(1/T) magnifies that. With the floor, no two runtimes that
    differ in the last bit of p differ by more than 5e-6 in what is scaled.

    Example:

    >>> floor(3.0, num_columns=10), round(floor(3.0, num_columns=1), 6)
    (1e-07, 0.00025)
    """
    least = metrics.SMALLEST_PROBABILITY
    if num_columns > 1 or temperature <= 1:
        return least
    # Where the derivative of x^(1/T), times the rounding, is negligible.
    ratio = _ROUNDING / (temperature * _NEGLIGIBLE)
    return max(least, ratio ** (temperature / (temperature - 1)))


def conformal_threshold(
    probabilities: np.ndarray, labels: np.ndarray, coverage: float
) -> float:
    """The least probability that puts a class into a set.

    Split conformal prediction with the score 1 - p(label): the threshold is the
    k-th largest p(label), k = ceil((n + 1) * coverage). For a further sample
    that comes from where these came from, the label is then in the set with a
    probability of `coverage` at least, and of 1/(n + 1) more at most if no two
    scores are equal. Given these n samples it varies as a Beta(k, n + 1 - k)
    does: for n = 1,000 and 0.9, by 0.009.

    Args:
        probabilities: Shape `(n, num_classes)`, or one column if binary, of
            samples that were not trained on.
        labels: Class indices, shape `(n,)`.
        coverage: Between 0 and 1, both excluded.

    Raises:
        ValueError: If n is so small that only sets of all classes would do.

    Example:

    >>> p = np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.8, 0.2]])
    >>> conformal_threshold(p, np.array([0, 0, 0, 0]), coverage=0.6)
    0.6
    """
    if not 0 < coverage < 1:
        raise ValueError(
            f"conformal_threshold(coverage={coverage!r}): coverage must be "
            "between 0 and 1, both excluded."
        )
    num = len(labels)
    # Products such as 100 * 0.55 are above the integer that they should be.
    rank = math.ceil((num + 1) * coverage - 1e-9)
    if rank > num:
        needed = math.ceil(coverage / (1 - coverage) - 1e-9)
        raise ValueError(
            f"A coverage of {coverage} cannot be promised after {num} samples, "
            f"but by sets of all classes: it takes {needed} at least. Give "
            "more samples, or choose a lower coverage."
        )
    of_label = metrics.class_columns(probabilities)[np.arange(num), labels]
    return float(np.sort(of_label)[num - rank])


def prediction_sets(
    probabilities: np.ndarray, threshold: float
) -> NDArray[np.bool_]:
    """Which classes are in the set of each sample, `(num_samples, k)`.

    Those of at least the threshold: none, if no class is likely enough.

    Example:

    >>> prediction_sets(np.array([[0.7, 0.3], [0.55, 0.45]]), 0.6)
    array([[ True, False],
           [False, False]])
    """
    return metrics.class_columns(probabilities) >= threshold


def _logs(probabilities: np.ndarray, least: float) -> NDArray[np.float64]:
    return np.log(np.maximum(metrics.class_columns(probabilities), least))


def _softmax(logits: np.ndarray) -> NDArray[np.float64]:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
