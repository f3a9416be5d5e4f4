"""Which members of an ensemble to use. Arrays in, positions out."""

import numpy as np

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


def greedy(
    probabilities: np.ndarray, votes: np.ndarray, labels: np.ndarray
) -> list[int]:
    """Positions chosen by greedy forward selection from the last member on.

    Adds, as long as that helps, the member with which the ensemble is most
    accurate (of equals, the one with the higher likelihood). No member is taken
    twice and votes stay what they are, so that the result is at least as
    accurate on these data as the last member alone.

    Args:
        probabilities: Shape `(num_members, num_samples, num_classes)`, or one
            column if binary.
        votes: Shape `(num_members,)`.
        labels: Class indices, shape `(num_samples,)`.

    Returns:
        Positions in ascending order.
    """
    chosen = [len(votes) - 1]
    best = _quality(probabilities, votes, labels, chosen)
    while rest := [i for i in range(len(votes)) if i not in chosen]:
        quality, position = max(
            (_quality(probabilities, votes, labels, [*chosen, i]), i)
            for i in rest
        )
        if quality <= best:
            break
        best = quality
        chosen.append(position)
    return sorted(chosen)


def _quality(
    probabilities: np.ndarray,
    votes: np.ndarray,
    labels: np.ndarray,
    chosen: list[int],
) -> tuple[float, float]:
    combined = metrics.weighted_mean(probabilities[chosen], votes[chosen])
    return (
        metrics.accuracy(combined, labels),
        -metrics.negative_log_likelihood(combined, labels),
    )
