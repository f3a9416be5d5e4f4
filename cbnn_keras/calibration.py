"""Probabilities that mean what they say: a temperature, a share, and sets.

Temperature scaling (Guo et al., "On calibration of modern neural networks",
2017), with a share of 1/k for every class where the data ask for one, and split
conformal prediction (Vovk et al., "Algorithmic learning in a random world",
2005), as formulas in NumPy. `CheckpointEnsemble.calibrate` fits them, and
whatever predicts applies them; how good they are is measured in
`analysis.calibration`.

Probabilities have the shape `(..., num_classes)`, or one column, the
probability of class 1, if binary; labels are class indices.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cbnn_keras import metrics

SMALLEST_TEMPERATURE, LARGEST_TEMPERATURE = 0.01, 100.0
LARGEST_SHARE = 0.9
# Temperatures that are tried with a share, each 1.27 times the one before, and
# how often the way between two of them is divided then: 1e-6 of it is left.
_TRIED = np.geomspace(0.05, 20, 26)
_NUM_DIVISIONS = 29
_GOLDEN = (math.sqrt(5) - 1) / 2
_ROUNDING = 2.0**-24  # of p in float32, where p is near 1
_NEGLIGIBLE = 5e-6  # a difference in scaled probabilities, from that rounding


@dataclasses.dataclass(frozen=True)
class Scaling:
    """What probabilities are scaled by, see `scale`.

    Attributes:
        temperature: T.
        share: s, 0 for a temperature alone.

    Example:

    >>> print(Scaling(1.5), "or", Scaling(1.1, share=0.125))
    temperature 1.500 or temperature 1.100 and share 0.125
    """

    temperature: float
    share: float = 0.0

    def __call__(self, probabilities: np.ndarray) -> NDArray[np.float64]:
        """Probabilities that are scaled so."""
        return scale(probabilities, self.temperature, self.share)

    def __str__(self) -> str:
        and_share = f" and share {self.share:.3f}" if self.share else ""
        return f"temperature {self.temperature:.3f}{and_share}"


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
        share: s, see `scale`; 0 unless the data asked for one.
    """

    temperature: float
    num_samples: int
    members: list[int]
    votes: list[float]
    coverage: float | None = None
    threshold: float | None = None
    share: float = 0.0

    @property
    def scaling(self) -> Scaling:
        """What probabilities are scaled by."""
        return Scaling(self.temperature, self.share)

    def to_json(self) -> dict[str, Any]:
        """Its attributes; a share of 0 is left out, as before there were any.

        So earlier versions read what they would read rightly, and no other.
        """
        found = dict(vars(self))
        if not self.share:
            del found["share"]
        return found

    def holds_for(self, members: list[int], votes: ArrayLike) -> bool:
        """Whether it was fitted to these members with these votes."""
        return members == self.members and np.array_equal(votes, self.votes)


def fit(probabilities: np.ndarray, labels: np.ndarray) -> Scaling:
    """The temperature, and perhaps the share, that make labels most likely.

    A share makes every fit a little better, and is taken only where the labels
    ask for it: where it raises the sum of their log-likelihoods by more than
    log(n) / 2, as Schwarz's criterion wants it of a further number, even
    without the sample that gains most. Nor is it where the temperature beside
    it would be at the end of those that are tried, all but a few sure mistakes
    being right: then all samples would be equally sure. Otherwise the
    temperature is that of `fit_temperature`.

    Args:
        probabilities: Shape `(n, num_classes)`, or one column if binary, of
            samples that were not trained on.
        labels: Class indices, shape `(n,)`.

    Example:

    Of what is said with 0.98 four fifths are right, and of what is said with
    0.6 three fifths, as it should be: no temperature can mend the one and
    leave the other.

    >>> p = np.array([[0.98, 0.02], [0.6, 0.4]] * 500)
    >>> found = fit(p, np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 1] * 100))
    >>> found(p[:2]).round(2)
    array([[0.8, 0.2],
           [0.6, 0.4]])
    """
    alone = Scaling(fit_temperature(probabilities, labels))
    if not _TRIED[0] <= alone.temperature <= _TRIED[-1]:
        return alone
    of_labels = _of_labels(probabilities, labels)
    at_random = 1 / max(probabilities.shape[-1], 2)
    shared = _fit_with_share(of_labels, at_random)
    if not 1.01 * _TRIED[0] < shared.temperature < 0.99 * _TRIED[-1]:
        return alone
    likely = of_labels(shared.temperature)
    likely += shared.share * (at_random - likely)
    gains = np.log(likely / of_labels(alone.temperature))
    gain = gains.sum() - gains.max()  # of more than one sure mistake
    return shared if gain > math.log(len(labels)) / 2 else alone


def fit_temperature(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """The temperature under which the labels are most likely.

    The likelihood is concave in 1/T, so that its one maximum is where its
    derivative changes sign; it is looked for between 0.01 and 100. For one
    column the derivative is that with the `floor` of the temperature.
    """
    rows = np.arange(len(labels))
    # Many columns have the same floor at any T.
    logs_above = functools.lru_cache(1)(
        lambda least: _logs(probabilities, least)
    )
    # Of 1/T.
    low, high = -np.log(LARGEST_TEMPERATURE), -np.log(SMALLEST_TEMPERATURE)
    for _ in range(32):  # 2e-9 of it
        middle = (low + high) / 2
        logs = logs_above(floor(np.exp(-middle), probabilities.shape[-1]))
        scaled = _softmax(np.exp(middle) * logs)
        if (scaled * logs).sum(axis=1).mean() < logs[rows, labels].mean():
            low = middle
        else:
            high = middle
    return float(np.exp(-middle))


def scale(
    probabilities: np.ndarray, temperature: float, share: float = 0.0
) -> NDArray[np.float64]:
    """Probabilities to the power of 1/T, made to sum to 1, and a share of 1/k.

    (1 - s) q + s / k, where q are the powers divided by their sum: the same as
    dividing logits by T. Predicted classes stay what they are; a temperature
    above 1 makes them less confident, and so does a share, most where they are
    surest. What is below `floor` counts as that.

    Args:
        probabilities: Shape `(..., num_classes)`, or one column if binary.
        temperature: T, above 0.
        share: s, at least 0 and below 1. Defaults to 0.

    Example:

    >>> scale(np.array([[0.8, 0.2]]), temperature=2)
    array([[0.66666667, 0.33333333]])
    >>> scale(np.array([[0.8, 0.2]]), temperature=2, share=0.4)
    array([[0.6, 0.4]])
    """
    if not 0 < temperature < np.inf:
        raise ValueError(
            f"scale(temperature={temperature!r}): temperature must be above 0."
        )
    if not 0 <= share < 1:
        raise ValueError(
            f"scale(share={share!r}): share must be at least 0 and below 1."
        )
    num_columns = probabilities.shape[-1]
    logs = _logs(probabilities, floor(temperature, num_columns))
    scaled = _softmax(logs / temperature)
    if share:
        scaled = (1 - share) * scaled + share / scaled.shape[-1]
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


def _of_labels(
    probabilities: np.ndarray, labels: np.ndarray
) -> Callable[[float], NDArray[np.float64]]:
    """p(label) of each sample as a function of a temperature that is tried."""
    num_columns, rows = probabilities.shape[-1], np.arange(len(labels))

    @functools.lru_cache(1)  # many columns have the same floor at any T
    def log_ratios(least: float) -> NDArray[np.float64]:
        logs = _logs(probabilities, least)
        return logs - logs[rows, labels][:, np.newaxis]

    def of_labels(temperature: float) -> NDArray[np.float64]:
        ratios = log_ratios(floor(temperature, num_columns))
        return 1 / np.exp(ratios / temperature).sum(axis=1)

    return of_labels


def _fit_with_share(
    of_labels: Callable[[float], NDArray[np.float64]], at_random: float
) -> Scaling:
    """The temperature and the share under which the labels are most likely.

    Given T, the likelihood is concave in the share, whose best value is easily
    found. As a function of T alone, with the best share of each, it may have
    several maxima: it is looked at from one end to the other first, and then
    between the neighbours of the best, by golden sections.

    Args:
        of_labels: p(label) of each sample, given T.
        at_random: 1/k.
    """

    def loss(log_temperature: float) -> float:
        likely = of_labels(math.exp(log_temperature))
        share = _best_share(likely, at_random)
        return -float(np.log(likely + share * (at_random - likely)).mean())

    tried = np.log(_TRIED)
    nearest = int(np.argmin([loss(value) for value in tried]))
    around = tried[max(nearest - 1, 0) : nearest + 2]
    found = math.exp(_least(loss, float(around[0]), float(around[-1])))
    return Scaling(found, _best_share(of_labels(found), at_random))


def _best_share(of_label: np.ndarray, at_random: float) -> float:
    """The share under which labels of these probabilities are most likely."""
    low, high = 0.0, LARGEST_SHARE
    gains = at_random - of_label
    if (gains / of_label).sum() <= 0:
        return low
    if (gains / (of_label + high * gains)).sum() >= 0:
        return high
    for _ in range(32):
        middle = (low + high) / 2
        if (gains / (of_label + middle * gains)).sum() > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _least(
    function: Callable[[float], float], low: float, high: float
) -> float:
    """Where a function with one minimum between both has it."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(_NUM_DIVISIONS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = function(right)
    return (low + high) / 2


def _logs(probabilities: np.ndarray, least: float) -> NDArray[np.float64]:
    return np.log(np.maximum(metrics.class_columns(probabilities), least))


def _softmax(logits: np.ndarray) -> NDArray[np.float64]:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
