"""Which members of an ensemble to use, and with which votes. Arrays only."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cbnn_keras import metrics


def equally_spaced(num_members: int, num: int) -> list[int]:
    """Positions of `num` members at equal intervals, the last one included.

    Section 3.2 of the paper: "selecting with equal interval is expected to
    achieve high diversity".

    Example:

    >>> equally_spaced(12, 6)
    [1, 3, 5, 7, 9, 11]
    >>> equally_spaced(7, 3)
    [1, 4, 6]
    """
    spaced = np.linspace(num_members / num - 1, num_members - 1, num)
    return [int(position) for position in np.round(spaced)]


def by_likelihood(
    probabilities: np.ndarray,
    votes: np.ndarray,
    labels: np.ndarray,
    max_rounds: int = 25,
) -> NDArray[np.float64]:
    """Votes under which labels are more likely, from given ones on.

    In each round the member that helps most gains one vote, where a vote is the
    mean of those that there are at first; a member can gain several (Caruana et
    al., "Ensemble selection from libraries of models", 2004). A round counts
    only if the mean of -log p(label) falls by more than the standard error of
    the samples' differences: what held-out data cannot tell apart stays as it
    is.

    Args:
        probabilities: Shape `(num_members, num_samples, num_classes)`, or one
            column if binary.
        votes: Shape `(num_members,)`, some of them positive. Members with 0
            can gain votes too.
        labels: Class indices, shape `(num_samples,)`.
        max_rounds: How many votes are added at the most.

    Returns:
        Votes, shape `(num_members,)`.

    Example:

    >>> found = np.array([[[0.9, 0.1]] * 9, [[0.4, 0.6]] * 9])
    >>> by_likelihood(found, np.array([2.0, 2.0]), np.zeros(9, int), 3)
    array([8., 2.])
    """
    rows = np.arange(len(labels))
    of_label = metrics.class_columns(probabilities)[:, rows, labels]
    chosen = np.array(votes, dtype=np.float64)
    one_vote = chosen[chosen > 0].mean()
    losses = _losses(chosen @ of_label / chosen.sum())
    for _ in range(max_rounds):
        mixed = chosen @ of_label + one_vote * of_label
        found = _losses(mixed / (chosen.sum() + one_vote))
        best = int(found.mean(axis=1).argmin())
        gains = losses - found[best]
        error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else 0
        if gains.mean() <= error:
            break
        chosen[best] += one_vote
        losses = found[best]
    return chosen


def _losses(of_label: np.ndarray) -> NDArray[np.float64]:
    return -np.log(np.maximum(of_label, metrics.SMALLEST_PROBABILITY))


def greedy(
    probabilities: np.ndarray,
    votes: np.ndarray,
    labels: np.ndarray,
    quality: Callable[[np.ndarray], float],
) -> list[int]:
    """Positions chosen by greedy forward selection from the last member on.

    Adds, as long as that helps, the member with which the ensemble is best (of
    equals, the one with the higher likelihood). No member is taken twice and
    votes stay what they are, so that the result is at least as good on these
    data as the last member alone.

    Args:
        probabilities: Shape `(num_members, num_samples, num_classes)`, or one
            column if binary.
        votes: Shape `(num_members,)`.
        labels: Class indices, shape `(num_samples,)`.
        quality: What is to be large, from the probabilities of an ensemble.

    Returns:
        Positions in ascending order.
    """

    def judged(positions: list[int]) -> tuple[float, float]:
        found = metrics.weighted_mean(
            probabilities[positions], votes[positions]
        )
        likelihood = -metrics.negative_log_likelihood(found, labels)
        return quality(found), likelihood

    chosen = [len(votes) - 1]
    best = judged(chosen)
    while rest := [i for i in range(len(votes)) if i not in chosen]:
        found, position = max((judged([*chosen, i]), i) for i in rest)
        if found <= best:
            break
        best = found
        chosen.append(position)
    return sorted(chosen)
