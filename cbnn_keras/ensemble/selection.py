"""Which members of an ensemble to use. Arrays in, positions out."""

import numpy as np

from cbnn_keras import boosting

# Of a probability in a logarithm, as in Keras' losses.
SMALLEST_PROBABILITY = 1e-7


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


def accuracy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Share of samples whose most probable class is the label.

    Example:

    >>> accuracy(np.array([[0.9, 0.1], [0.8, 0.2]]), np.array([0, 1]))
    0.5
    """
    if probabilities.shape[-1] == 1:
        predicted = (probabilities[:, 0] > 0.5).astype(labels.dtype)
    else:
        predicted = probabilities.argmax(axis=-1)
    return float(np.mean(predicted == labels))


def negative_log_likelihood(
    probabilities: np.ndarray, labels: np.ndarray
) -> float:
    """Mean of -log p(label), with p clipped at 1e-7 as Keras' losses do.

    Example:

    >>> p = np.array([[0.5, 0.5], [0.25, 0.75]])
    >>> round(negative_log_likelihood(p, np.array([0, 1])), 4)
    0.4904
    """
    of_label = distribution(probabilities)[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(of_label, SMALLEST_PROBABILITY)).mean())


def distribution(probabilities: np.ndarray) -> np.ndarray:
    """A column for each class, in float64, where binary ones have just one.

    Example:

    >>> distribution(np.array([[0.25], [1.0]]))
    array([[0.75, 0.25],
           [0.  , 1.  ]])
    """
    columns = np.asarray(probabilities, dtype=np.float64)
    if columns.shape[-1] == 1:
        columns = np.concatenate([1 - columns, columns], axis=-1)
    return columns


def _quality(
    probabilities: np.ndarray,
    votes: np.ndarray,
    labels: np.ndarray,
    chosen: list[int],
) -> tuple[float, float]:
    combined = boosting.combine_probabilities(
        probabilities[chosen], votes[chosen]
    )
    return (
        accuracy(combined, labels),
        -negative_log_likelihood(combined, labels),
    )
