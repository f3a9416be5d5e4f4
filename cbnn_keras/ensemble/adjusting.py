"""What is done to averaged probabilities: scaling, then priors.

The same formulas twice, for arrays and for tensors of a graph: a temperature
and a share make probabilities mean what they say where classes are as frequent
as in the calibration data, and priors allow for other frequencies after it.
"""

from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from cbnn_keras import calibration, imbalance
from cbnn_keras.calibration import Scaling


def adjusted_arrays(
    probabilities: np.ndarray,
    scaling: Scaling | None = None,
    priors: ArrayLike | None = None,
) -> np.ndarray:
    """Probabilities as they are shown; None changes nothing.

    Args:
        probabilities: Shape `(..., num_classes)`, or `(..., 1)` if binary.
        scaling: Temperature and share, see `calibration.scale`.
        priors: Shape `(num_classes,)`, see `imbalance.threshold`.
    """
    if scaling is not None:
        probabilities = scaling(probabilities)
    if priors is not None:
        probabilities = imbalance.threshold(probabilities, priors)
    return probabilities


def adjusted_tensors(
    probabilities: Any,
    scaling: Scaling | None = None,
    priors: ArrayLike | None = None,
) -> Any:
    """`adjusted_arrays` of tensors, symbolic or not, in float32."""
    if scaling is not None:
        probabilities = _scaled(probabilities, scaling)
    if priors is not None:
        probabilities = _thresholded(probabilities, priors)
    return probabilities


def _scaled(probabilities: Any, scaling: Scaling) -> Any:
    num_columns = probabilities.shape[-1]
    power, share = 1 / scaling.temperature, scaling.share
    least = calibration.floor(scaling.temperature, num_columns)

    def logarithm(values: Any) -> Any:
        return keras.ops.log(keras.ops.maximum(values, least))

    logs = logarithm(probabilities)
    if num_columns == 1:
        odds = logs - logarithm(1 - probabilities)
        scaled = keras.ops.sigmoid(odds * power)
    else:
        scaled = keras.ops.softmax(logs * power, axis=-1)
    if share:
        scaled = scaled * (1 - share) + share / max(num_columns, 2)
    return scaled


def _thresholded(probabilities: Any, priors: ArrayLike) -> Any:
    weights = imbalance.inverse_priors(priors).astype("float32")
    if probabilities.shape[-1] == 1:
        first = (1 - probabilities) * float(weights[0])
        second = probabilities * float(weights[1])
        return second / (first + second)
    weighted = probabilities * weights
    return weighted / keras.ops.sum(weighted, axis=-1, keepdims=True)
