"""Whether probabilities mean what they say, before and after scaling.

Probabilities have the shape `(num_samples, num_classes)`, or one column, the
probability of class 1, if binary; labels are class indices.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from cbnn_keras import metrics
from cbnn_keras.calibration import fit_temperature, scale
from cbnn_keras.support import arguments

__all__ = [
    "Calibration",
    "calibration",
    "fit_temperature",
    "scale",
    "scale_by_halves",
]


@dataclasses.dataclass(frozen=True)
class Calibration:
    """How confident predictions are, and how often they are right.

    Attributes:
        confidence: Mean probability of the predicted class in each bin, shape
            `(num_bins,)`; NaN in an empty bin.
        accuracy: Share of right predictions in each bin.
        count: Number of samples in each bin.
        expected_error: The expected calibration error: the mean over all
            samples of the distance between the two in their bin.
        negative_log_likelihood: Mean of -log p(label).
        brier: Mean over the samples of the squared distance between all
            probabilities and the one-hot label, between 0 and 2.
    """

    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    count: NDArray[np.int64]
    expected_error: float
    negative_log_likelihood: float
    brier: float


def calibration(
    probabilities: np.ndarray, labels: np.ndarray, num_bins: int = 15
) -> Calibration:
    """Judges the probability that the predicted class is given.

    Args:
        probabilities: Shape `(num_samples, num_classes)`, or one column if
            binary.
        labels: Class indices, shape `(num_samples,)`.
        num_bins: Number of bins of one width, from 0 to 1, each with its upper
            end. Defaults to 15.

    Example:

    >>> p = np.array([[0.8, 0.2], [0.8, 0.2], [0.4, 0.6]])
    >>> found = calibration(p, np.array([0, 1, 1]), num_bins=2)
    >>> round(found.expected_error, 4), round(found.brier, 4)
    (0.0667, 0.56)
    """
    num_bins = arguments.integer("calibration", "num_bins", num_bins)
    rows = metrics.class_columns(probabilities)
    confidence = rows.max(axis=1)
    is_right = metrics.predicted_classes(rows) == labels
    edges = np.linspace(0, 1, num_bins + 1)
    bins = np.searchsorted(edges[1:-1], confidence)
    count = np.bincount(bins, minlength=num_bins)
    with np.errstate(invalid="ignore"):
        mean_confidence = np.bincount(bins, confidence, num_bins) / count
        accuracy = np.bincount(bins, is_right, num_bins) / count
    distance = np.nan_to_num(np.abs(mean_confidence - accuracy))
    return Calibration(
        confidence=mean_confidence,
        accuracy=accuracy,
        count=count,
        expected_error=float((count * distance).sum() / len(labels)),
        negative_log_likelihood=metrics.negative_log_likelihood(
            probabilities, labels
        ),
        brier=_brier(rows, labels),
    )


def scale_by_halves(
    probabilities: np.ndarray, labels: np.ndarray, seed: int = 0
) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Scales each half of the samples by the temperature of the other half.

    Likelihoods should be compared after temperature scaling (Ashukha et al.,
    "Pitfalls of In-Domain Uncertainty Estimation", 2020), and a temperature
    must not be judged on the labels that it was fitted to.

    Args:
        probabilities: Shape `(num_samples, num_classes)`, or one column if
            binary.
        labels: Class indices, shape `(num_samples,)`.
        seed: What the choice of the halves derives from.

    Returns:
        The scaled probabilities, and the two temperatures.
    """
    if len(labels) < 2:
        raise ValueError(
            "scale_by_halves needs two samples at least, one for each half."
        )
    order = np.random.default_rng(seed).permutation(len(labels))
    halves = np.array_split(order, 2)
    scaled = np.empty(probabilities.shape)
    temperatures = []
    for half, other in (halves, reversed(halves)):
        temperatures.append(
            fit_temperature(probabilities[other], labels[other])
        )
        scaled[half] = scale(probabilities[half], temperatures[-1])
    return scaled, (temperatures[0], temperatures[1])


def _brier(rows: np.ndarray, labels: np.ndarray) -> float:
    of_label = rows[np.arange(len(labels)), labels]
    # |p - onehot|^2 = |p|^2 - 2 p(label) + 1
    return float(((rows**2).sum(axis=1) - 2 * of_label + 1).mean())
