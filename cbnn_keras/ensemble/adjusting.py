"""What is done to averaged probabilities: a temperature, then priors.

The same formulas twice, for arrays and for tensors of a graph: a temperature
makes probabilities mean what they say where classes are as frequent as in the
calibration data, and priors allow for other frequencies after it.
"""

from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from cbnn_keras import calibration, imbalance


def adjusted_arrays(
    probabilities: np.ndarray,
    temperature: float | None = None,
    priors: ArrayLike | None = None,
) -> np.ndarray:
    """Probabilities as they are shown; None changes nothing.

    Args:
        probabilities: Shape `(..., num_classes)`, or `(..., 1)` if binary.
        temperature: T, see `calibration.scale`.
        priors: Shape `(num_classes,)`, see `imbalance.threshold`.
    """
    if temperature is not None:
        probabilities = calibration.scale(probabilities, temperature)
    if priors is not None:
        probabilities = imbalance.threshold(probabilities, priors)
    return probabilities


def adjusted_tensors(
    probabilities: Any,
    temperature: float | None = None,
    priors: ArrayLike | None = None,
) -> Any:
    """`adjusted_arrays` of tensors, symbolic or not, in float32."""
    if temperature is not None:
        probabilities = _scaled(probabilities, temperature)
    if priors is not None:
        probabilities = _thresholded(probabilities, priors)
    return probabilities


def _scaled(probabilities: Any, temperature: float) -> Any:
    num_columns = probabilities.shape[-1]
    least = calibration.floor(temperature, num_columns)

    def logarithm(values: Any) -> Any:
        return keras.ops.log(keras.ops.maximum(values, least))

    logs = logarithm(probabilities)
    if num_columns == 1:
        odds = logs - logarithm(1 - probabilities)
        return keras.ops.sigmoid(odds * (1 / temperature))
    return keras.ops.softmax(logs * (1 / temperature), axis=-1)


def _thresholded(probabilities: Any, priors: ArrayLike) -> Any:
    weights = imbalance.inverse_priors(priors).astype("float32")
    if probabilities.shape[-1] == 1:
        first = (1 - probabilities) * float(weights[0])
        second = probabilities * float(weights[1])
        return second / (first + second)
    weighted = probabilities * weights
    return weighted / keras.ops.sum(weighted, axis=-1, keepdims=True)
