"""What boosting does for each class: figure 2(b) of the paper."""

import dataclasses

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True)
class ClassWeights:
    """Average weight of the samples of each class, all of shape `(k,)`.

    Attributes:
        mean: n * omega, so that the mean over all samples is 1; NaN for a class
            without samples.
        count: Number of samples.
        is_minority: Whether the class has less than half as many samples as
            large classes have: those at the upper quartile.
    """

    mean: NDArray[np.float64]
    count: NDArray[np.int64]
    is_minority: NDArray[np.bool_]

    @property
    def minority_mean(self) -> float:
        """The mean over the minority classes, each counting once, or NaN."""
        return self._mean_of(self.is_minority)

    @property
    def majority_mean(self) -> float:
        """The mean over the other classes that have samples."""
        return self._mean_of(~self.is_minority)

    def _mean_of(self, chosen: NDArray[np.bool_]) -> float:
        values = self.mean[chosen & (self.count > 0)]
        return float(values.mean()) if values.size else float("nan")


def weights_by_class(
    weights: np.ndarray, labels: np.ndarray, num_classes: int
) -> ClassWeights:
    """Averages sample weights over classes.

    Args:
        weights: omega, or any multiple of it, shape `(num_samples,)`.
        labels: Class indices, shape `(num_samples,)`.
        num_classes: k.

    Example:

    >>> weights, labels = np.array([1, 1, 1, 3]), np.array([0, 0, 0, 1])
    >>> found = weights_by_class(weights, labels, num_classes=2)
    >>> found.mean, found.is_minority
    (array([0.66666667, 2.        ]), array([False,  True]))
    """
    if weights.shape != labels.shape:
        raise ValueError(
            f"weights_by_class has weights of shape {weights.shape} for labels "
            f"of shape {labels.shape}. Give the training labels, in order, as "
            "class indices."
        )
    count = np.bincount(labels, minlength=num_classes)
    total = np.bincount(labels, weights / weights.mean(), num_classes)
    with np.errstate(invalid="ignore"):
        mean = total / count
    # Not the largest class: one that is large by chance makes all others small.
    large = np.quantile(count, 0.75, method="higher")
    return ClassWeights(mean, count, 2 * count < large)
