"""In which order to ask members, and when to stop, by held-out data.

What a cascade does with it is in `cascades`. NumPy only.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cbnn_keras import calibration, metrics
from cbnn_keras.cascades import NEVER, Stages

# What a right answer is worth in members, as a logarithm: where to look for it
# and how finely.
_PRICES = (0.0, 14.0)
_NUM_PRICES = 20
_NUM_PASSES = 3


def order_by_likelihood(
    probabilities: np.ndarray,
    votes: np.ndarray,
    labels: np.ndarray,
    first: int | None = None,
) -> list[int]:
    """Positions in the order in which members make the labels most likely.

    The best one alone is first, then the one with which it is best, and so on.

    Args:
        probabilities: Shape `(num_members, num_samples, num_classes)`, or one
            column if binary.
        votes: Shape `(num_members,)`.
        labels: Class indices, shape `(num_samples,)`.
        first: The position of the first, if it is not to be the best one.

    Example:

    >>> members = np.array([[[0.6, 0.4]], [[0.1, 0.9]], [[0.8, 0.2]]])
    >>> order_by_likelihood(members, np.ones(3), np.array([0]))
    [2, 0, 1]
    """
    order: list[int] = []
    mean = metrics.RunningMean()
    while len(order) < len(votes):
        losses = {
            i: metrics.negative_log_likelihood(
                mean.value_with(probabilities[i], votes[i]), labels
            )
            for i in range(len(votes))
            if i not in order and (order or first in (None, i))
        }
        best = min(losses, key=lambda i: (losses[i], -i))
        mean.add(probabilities[best], votes[best])
        order.append(best)
    return order


def expected_losses(found: Stages, labels: np.ndarray) -> NDArray[np.float64]:
    """The accuracy that leaving after each member is expected to cost.

    If all members say d, and those so far c: p(d) - p(c), by what all members
    say once it is calibrated on these samples. A label tells only whether one
    of both was right, mostly neither: that says little about a tenth of a
    point.

    Args:
        found: What is known of held-out samples.
        labels: Their class indices.

    Returns:
        Shape `(num_members, num_samples)`; at least 0, and 0 in the last row.

    Example:

    >>> from cbnn_keras.cascades import stages
    >>> members = np.array([[[0.4, 0.6], [0.1, 0.9]], [[0.9, 0.1], [0.1, 0.9]]])
    >>> found = stages(members, votes=[1.0, 1.0])
    >>> expected_losses(found, np.array([0, 1])).round(1)
    array([[1., 0.],
           [0., 0.]])
    """
    all_say = found.probabilities[-1]
    scaling = calibration.fit(all_say, labels)
    columns = metrics.class_columns(scaling(all_say))
    classes = metrics.predicted_classes(found.probabilities)
    likely = np.take_along_axis(columns, classes.T, axis=1).T
    return likely[-1] - likely


def chosen_confidences(
    found: Stages,
    labels: np.ndarray,
    loss: float,
    standard_errors: float = 2.0,
) -> tuple[float, ...] | None:
    """Confidences to leave at, one for each member but the last.

    Those with which samples use the fewest members, among all that are expected
    to cost no more accuracy, with its standard error, and that did cost no more
    by the labels of these samples. The standard error is at least that of one
    sample as bad as the worst: where none differs, one could have.

    Args:
        found: What is known of held-out samples.
        labels: Their class indices.
        loss: Accuracy that may be lost, such as 0.001.
        standard_errors: How many of them are added to what is expected.

    Returns:
        None if none are known to be that safe, as with very few samples, or if
        there is but one member.
    """
    if len(found.confidences) == 1:
        return None
    losses = expected_losses(found, labels)
    is_right = metrics.predicted_classes(found.probabilities) == labels
    num_right = np.count_nonzero(is_right[-1])
    worst = losses.max() or 1.0
    samples = np.arange(len(labels))

    def is_safe(confidences: tuple[float, ...]) -> bool:
        used = found.members_used(confidences) - 1
        lost = losses[used, samples]
        error = max(np.sqrt(np.sum(lost**2)), worst) / len(lost)
        num_lost = num_right - np.count_nonzero(is_right[used, samples])
        expected = lost.mean() + standard_errors * error
        return bool(max(expected, num_lost / len(lost)) <= loss)

    chosen = None
    low, high = _PRICES
    for _ in range(_NUM_PRICES):
        middle = (low + high) / 2
        candidate = _confidences_at(found, losses, np.exp(middle))
        if is_safe(candidate):
            chosen, high = candidate, middle
        else:
            low = middle
    return chosen and _lowered(found, chosen, is_safe)


def _lowered(
    found: Stages,
    confidences: tuple[float, ...],
    is_safe: Callable[[tuple[float, ...]], bool],
) -> tuple[float, ...]:
    """Lower ones that are safe as well: between two prices there are some."""
    chosen = list(confidences)
    for j, start in enumerate(confidences):
        values = np.unique(found.confidences[j])
        low, high = 0, int(np.searchsorted(values, start))
        while low < high:
            middle = (low + high) // 2
            lower = (*chosen[:j], float(values[middle]), *chosen[j + 1 :])
            if is_safe(lower):
                high, chosen = middle, list(lower)
            else:
                low = middle + 1
    return tuple(chosen)


def _confidences_at(
    found: Stages, losses: NDArray[np.float64], price: float
) -> tuple[float, ...]:
    """The best confidences if an answer is worth so many members.

    From the last member on: whoever leaves pays for what is lost, whoever stays
    for another member and what comes then. Who gets as far depends on earlier
    confidences, so that it is done several times.
    """
    num = len(losses) - 1
    is_decided = found.lead >= 0
    reaches = np.ones_like(is_decided)
    for _ in range(_NUM_PASSES):
        chosen = np.full(num, NEVER)
        leaves = is_decided.copy()
        cost = price * losses[-1]
        for j in reversed(range(num)):
            stays_for, leaves_for = 1 + cost, price * losses[j]
            order = np.argsort(-found.confidences[j], kind="stable")
            matters = reaches[j] & ~is_decided[j]
            gains = np.where(matters, stays_for - leaves_for, 0)[order]
            best = int(np.argmax(np.cumsum([0, *gains])))
            if best:
                chosen[j] = found.confidences[j][order[best - 1]]
            leaves[j] |= found.confidences[j] >= chosen[j]
            cost = np.where(leaves[j], leaves_for, stays_for)
        stays = np.logical_and.accumulate(~leaves[:num], axis=0)
        reaches[1:] = stays
    return tuple(chosen.tolist())
