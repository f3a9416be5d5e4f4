"""How good members and ensembles are, and from when on.

Errors are shares of the samples, between 0 and 1. Probabilities have the shape
`(num_members, num_samples, num_classes)`, or one column if binary, and labels
are class indices of shape `(num_samples,)`.
"""

import math
import statistics
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cbnn_keras import metrics
from cbnn_keras.ensemble import selection


def member_errors(
    probabilities: np.ndarray, labels: np.ndarray
) -> NDArray[np.float64]:
    """Error of each member by itself, shape `(num_members,)`."""
    return np.array([1 - metrics.accuracy(p, labels) for p in probabilities])


def stage_errors(
    probabilities: np.ndarray, votes: np.ndarray, labels: np.ndarray
) -> NDArray[np.float64]:
    """Error of the first member, the first two, ..., all of them."""
    sizes = range(1, len(votes) + 1)
    return _errors(probabilities, votes, labels, map(range, sizes))


def size_errors(
    probabilities: np.ndarray, votes: np.ndarray, labels: np.ndarray
) -> NDArray[np.float64]:
    """Error of ensembles of 1, 2, ..., all members at equal intervals.

    The final model is in each of them, as in section 3.2 of the paper.
    """
    chosen = (
        selection.equally_spaced(len(votes), num)
        for num in range(1, len(votes) + 1)
    )
    return _errors(probabilities, votes, labels, chosen)


def time_to_accuracy(
    times: ArrayLike, accuracies: ArrayLike, targets: ArrayLike
) -> NDArray[np.float64]:
    """When each accuracy was reached first; NaN where it never was.

    Args:
        times: Increasing, in any unit: steps, epochs or seconds. Shape `(n,)`.
        accuracies: Accuracy at each time; NaN where none was measured.
        targets: Accuracies to reach.

    Example:

    >>> time_to_accuracy([1, 2, 3], [0.4, 0.7, 0.6], targets=[0.5, 0.7, 0.9])
    array([ 2.,  2., nan])
    """
    times = np.asarray(times, dtype=np.float64)
    accuracies = np.asarray(accuracies, dtype=np.float64)
    if (
        times.ndim != 1
        or times.shape != accuracies.shape
        or not np.all(np.diff(times) >= 0)
    ):
        raise ValueError(
            "time_to_accuracy takes times in increasing order and one accuracy "
            f"for each; received shapes {times.shape} and {accuracies.shape}."
        )
    best = np.maximum.accumulate(
        np.where(np.isnan(accuracies), -np.inf, accuracies)
    )
    first = np.searchsorted(best, np.asarray(targets, dtype=np.float64))
    return np.append(times, np.nan)[first]


def sign_test(gained: int, lost: int) -> float:
    """How likely so large a difference is if there is none (McNemar's test).

    Each of two models would then be the right one on half of the samples that
    just one of them gets right.

    Args:
        gained: Number of samples that only the first one gets right.
        lost: Number of samples that only the second one gets right.

    Returns:
        The p-value, two-sided; exact up to 1,000 samples.

    Example:

    >>> sign_test(4, 0), round(sign_test(5_100, 4_900), 4)
    (0.125, 0.0466)
    """
    num, most = gained + lost, max(gained, lost)
    if num > 1_000:
        distance = (2 * most - num - 1) / math.sqrt(num)
        return min(1.0, 2 * (1 - statistics.NormalDist().cdf(distance)))
    tail = sum(math.comb(num, i) for i in range(most, num + 1))
    return min(1.0, 2 * tail / 2**num)


def _errors(
    probabilities: np.ndarray,
    votes: np.ndarray,
    labels: np.ndarray,
    ensembles: Iterable[Iterable[int]],
) -> NDArray[np.float64]:
    errors = []
    for positions in ensembles:
        chosen = list(positions)
        combined = metrics.weighted_mean(probabilities[chosen], votes[chosen])
        errors.append(1 - metrics.accuracy(combined, labels))
    return np.array(errors)
