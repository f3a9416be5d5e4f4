"""What probabilities say and how good they are, once for everybody.

The predicted class, the weighted mean, accuracy and likelihood, in NumPy.
Probabilities have the shape `(..., num_classes)`, or `(..., 1)`, that of class
1, where a model has one sigmoid output.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The least probability in a logarithm, as in Keras' losses of probabilities.
SMALLEST_PROBABILITY = 1e-7
_CHUNK = 2**20  # samples that are counted at once


def predicted_classes(probabilities: ArrayLike) -> NDArray[np.int64]:
    """The predicted class of each row; ties go to the lower class.

    One column is the probability of class 1 of two, which is predicted where it
    is above 1/2.

    Args:
        probabilities: Shape `(..., num_classes)`, or `(..., 1)` if binary.

    Example:

    >>> predicted_classes([[0.2, 0.8], [0.5, 0.5]])
    array([1, 0])
    >>> predicted_classes([[0.2], [0.8]])
    array([0, 1])
    """
    values = np.asarray(probabilities)
    if values.shape[-1] == 1:
        return (values[..., 0] > 0.5).astype(np.int64)
    return values.argmax(axis=-1)


def one_hot_votes(probabilities: ArrayLike) -> NDArray[np.floating]:
    """One-hot predicted classes, the paper's G_m; ties go to the lower class.

    One column is the probability of class 1 of two, and stays one column.
    Averaged by `weighted_mean` this is hard voting.

    Args:
        probabilities: Shape `(..., num_classes)`, or `(..., 1)` if binary.

    Example:

    >>> one_hot_votes([[0.2, 0.8], [0.5, 0.5]])
    array([[0., 1.],
           [1., 0.]])
    >>> one_hot_votes([[0.2], [0.8]])
    array([[0.],
           [1.]])
    """
    values = np.asarray(probabilities)
    dtype = values.dtype if values.dtype.kind == "f" else np.float64
    classes = predicted_classes(values)
    if values.shape[-1] == 1:
        return classes[..., np.newaxis].astype(dtype)
    return np.eye(values.shape[-1], dtype=dtype)[classes]


def weighted_mean(
    probabilities: ArrayLike, votes: ArrayLike
) -> NDArray[np.floating]:
    """Soft voting: the vote-weighted mean of probabilities (eq. 9).

    Args:
        probabilities: Shape `(num_members, ...)`.
        votes: Shape `(num_members,)`, with a positive sum.

    Example:

    >>> weighted_mean([[[0.9, 0.1]], [[0.3, 0.7]]], votes=[2.0, 1.0])
    array([[0.7, 0.3]])
    """
    shares = np.asarray(votes, dtype=np.float64)
    return np.tensordot(shares / shares.sum(), np.asarray(probabilities), 1)


class RunningMean:
    """The weighted mean of arrays that come one by one.

    In float64: adding all of them gives what `weighted_mean` of them gives.

    Example:

    >>> mean = RunningMean()
    >>> mean.add(np.array([0.9, 0.1]), vote=2.0)
    array([0.9, 0.1])
    >>> mean.add(np.array([0.3, 0.7]), vote=1.0)
    array([0.7, 0.3])
    """

    def __init__(self) -> None:
        self._sum: NDArray[np.float64] | float = 0.0
        self._sum_of_votes = 0.0

    @property
    def value(self) -> NDArray[np.float64]:
        """The mean of what was added so far."""
        return np.asarray(self._sum / self._sum_of_votes)

    def add(self, probabilities: ArrayLike, vote: float) -> NDArray[np.float64]:
        """Takes one more in, and gives the mean of all so far."""
        self._sum = self._sum + vote * np.asarray(probabilities, np.float64)
        self._sum_of_votes += vote
        return np.asarray(self._sum / self._sum_of_votes)

    def value_with(
        self, probabilities: ArrayLike, vote: float
    ) -> NDArray[np.float64]:
        """The mean if this were added; nothing is."""
        total = self._sum + vote * np.asarray(probabilities, np.float64)
        return np.asarray(total / (self._sum_of_votes + vote))


def disagreement(
    probabilities: ArrayLike, votes: ArrayLike, classes: ArrayLike
) -> NDArray[np.floating]:
    """The share of votes that is not for the predicted class, by sample.

    Args:
        probabilities: Those of each member, shape `(num_members, num_samples,
            ...)`.
        votes: Shape `(num_members,)`, with a positive sum.
        classes: The predicted classes of the ensemble, shape `(num_samples,)`.

    Example:

    >>> members = [[[0.9, 0.1]], [[0.3, 0.7]]]
    >>> disagreement(members, votes=[3.0, 1.0], classes=[0])
    array([0.25])
    """
    differs = predicted_classes(probabilities) != np.asarray(classes)
    return weighted_mean(differs, votes)


def accuracy(probabilities: ArrayLike, labels: NDArray[np.integer]) -> float:
    """The share of samples whose predicted class is the label.

    Example:

    >>> accuracy(np.array([[0.9, 0.1], [0.8, 0.2]]), np.array([0, 1]))
    0.5
    """
    return float(np.mean(predicted_classes(probabilities) == labels))


def strictly_right(
    probabilities: ArrayLike, labels: NDArray[np.integer]
) -> NDArray[np.bool_]:
    """Where the label is more probable than any other class.

    As in a round of training: a tie is wrong.

    Example:

    >>> strictly_right([[0.9, 0.1], [0.5, 0.5]], np.array([0, 0]))
    array([ True, False])
    """
    columns = class_columns(probabilities).copy()
    rows = np.arange(len(labels))
    of_label = columns[rows, labels]
    columns[rows, labels] = -np.inf
    return np.asarray(of_label > columns.max(axis=1))


def class_error(
    correct: NDArray[np.bool_],
    labels: NDArray[np.integer],
    weights: NDArray[np.float64],
) -> float:
    """The share that is wrong of a class, averaged over the classes.

    One minus the balanced accuracy: a class of ten samples counts as much as
    one of ten thousand. Classes without samples do not count.

    Args:
        correct: Which samples are right, shape `(num_samples,)`.
        labels: Class indices, same shape.
        weights: What each sample weighs, same shape, not all 0.

    Example:

    >>> correct = np.array([True, True, True, False])
    >>> class_error(correct, np.array([0, 0, 1, 1]), np.full(4, 0.25))
    0.25
    >>> class_error(correct, np.array([0, 0, 0, 1]), np.full(4, 0.25))
    0.5
    """
    num_classes = int(labels.max()) + 1
    wrong = sums_by_class(labels, weights, num_classes, ~correct)
    return mean_share(wrong, sums_by_class(labels, weights, num_classes))


def sums_by_class(
    labels: NDArray[np.integer],
    weights: NDArray[np.float64],
    num_classes: int,
    chosen: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """What the samples of each class weigh together.

    Args:
        labels: Class indices, shape `(num_samples,)`.
        weights: What each sample weighs, same shape.
        num_classes: k.
        chosen: Which samples count; None for all.

    Returns:
        Shape `(num_classes,)`.

    Example:

    >>> sums_by_class(np.array([0, 2, 2]), np.array([0.2, 0.3, 0.5]), 4)
    array([0.2, 0. , 0.8, 0. ])
    """
    sums = np.zeros(num_classes)
    for start in range(0, len(labels), _CHUNK):  # for the sake of memory
        part = slice(start, start + _CHUNK)
        share = weights[part]
        if chosen is not None:
            share = share * chosen[part]
        sums += np.bincount(labels[part], share, num_classes)
    return sums


def mean_share(
    parts: NDArray[np.float64], wholes: NDArray[np.float64]
) -> float:
    """The mean of part/whole over the wholes that are not 0.

    Example:

    >>> mean_share(np.array([1.0, 0.0, 1.0]), np.array([2.0, 0.0, 1.0]))
    0.75
    """
    is_there = wholes > 0
    return float(np.mean(parts[is_there] / wholes[is_there]))


def negative_log_likelihood(
    probabilities: ArrayLike, labels: NDArray[np.integer]
) -> float:
    """The mean of -log p(label), with p clipped at 1e-7.

    Keras' losses clip there too, unless they find the logits behind a softmax:
    then a sure and wrong model is worse in `model.evaluate` than here.

    Example:

    >>> p = np.array([[0.5, 0.5], [0.25, 0.75]])
    >>> round(negative_log_likelihood(p, np.array([0, 1])), 4)
    0.4904
    """
    of_label = class_columns(probabilities)[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(of_label, SMALLEST_PROBABILITY)).mean())


def class_columns(probabilities: ArrayLike) -> NDArray[np.float64]:
    """A column for each class, in float64, where binary ones have just one.

    Example:

    >>> class_columns(np.array([[0.25], [1.0]]))
    array([[0.75, 0.25],
           [0.  , 1.  ]])
    """
    columns = np.asarray(probabilities, dtype=np.float64)
    if columns.shape[-1] == 1:
        columns = np.concatenate([1 - columns, columns], axis=-1)
    return columns
