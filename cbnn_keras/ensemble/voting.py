"""How members' probabilities become those of an ensemble."""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from cbnn_keras import imbalance, metrics
from cbnn_keras.models.classifier import Classifier


@dataclasses.dataclass(frozen=True)
class Voting:
    """What members add to the mean, and what becomes of the mean.

    Attributes:
        kind: `"soft"` averages probabilities, `"hard"` one-hot votes.
        priors: What the mean is divided by, shape `(num_classes,)`, or None.
    """

    kind: str
    priors: np.ndarray | None

    @classmethod
    def checked(
        cls, voting: str, priors: ArrayLike | None, classifier: Classifier
    ) -> "Voting":
        """A voting from arguments of the user.

        Raises:
            ValueError: If they do not fit the classes or each other.
        """
        check_voting(voting)
        return cls(voting, checked_priors(priors, voting, classifier))

    def opinion(self, probabilities: np.ndarray) -> np.ndarray:
        """What a member with these probabilities adds to the mean."""
        if self.kind == "soft":
            return probabilities
        return metrics.one_hot_votes(probabilities)

    def result(self, mean: np.ndarray) -> np.ndarray:
        """The ensemble's probabilities, float32, from the mean of all."""
        if self.priors is not None:
            mean = imbalance.threshold(mean, self.priors)
        return mean.astype(np.float32)


def check_voting(voting: str) -> None:
    """Raises a `ValueError` for a voting that there is not."""
    if voting not in ("soft", "hard"):
        raise ValueError(f"voting must be 'soft' or 'hard', not {voting!r}.")


def checked_priors(
    priors: ArrayLike | None, voting: str, classifier: Classifier
) -> np.ndarray | None:
    """Priors that sum to 1, if there are any.

    Raises:
        ValueError: If they do not fit the classes or the voting.
    """
    if priors is None:
        return None
    if voting == "hard":
        raise ValueError(
            "priors are for voting='soft': they divide probabilities, and "
            "voting='hard' counts predicted classes. Leave one of the two out."
        )
    return imbalance.checked_priors(priors, classifier.num_classes)
