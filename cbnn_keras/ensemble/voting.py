"""How members' probabilities are combined: the check of what users say."""

import numpy as np
from numpy.typing import ArrayLike

from cbnn_keras import imbalance
from cbnn_keras.models.classifier import Classifier


def checked_priors(
    voting: str, priors: ArrayLike | None, classifier: Classifier
) -> np.ndarray | None:
    """Priors that sum to 1, if there are any, for a voting that there is.

    Args:
        voting: `"soft"` averages probabilities, `"hard"` one-hot votes.
        priors: What the average is divided by, shape `(num_classes,)`, or None.
        classifier: Says how many classes there are.

    Raises:
        ValueError: If they do not fit the classes or each other.
    """
    if voting not in ("soft", "hard"):
        raise ValueError(f"voting must be 'soft' or 'hard', not {voting!r}.")
    if priors is None:
        return None
    if voting == "hard":
        raise ValueError(
            "priors are for voting='soft': they divide probabilities, and "
            "voting='hard' counts predicted classes. Leave one of the two out."
        )
    return imbalance.checked_priors(priors, classifier.num_classes)
