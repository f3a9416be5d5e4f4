"""Members one after another, until the answer is known. NumPy only.

After the first j members of an order, with S_c the sum of their vote shares
times their probabilities of class c and R the vote shares of the others, a
sample leaves

- if no answers of the others can change the predicted class: for one class c,
  w_c S_c > w_d (S_d + R) for every other class d, where w are the factors that
  classes are multiplied by in the end (1 / priors, or 1); and
- if a confidence was chosen, one for all j or one for each, as soon as the mean
  of these j members gives a class that much.

It gets the mean of the members that were used. Exported graphs do the same, and
are compared with what is computed here.
"""

import dataclasses
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cbnn_keras import calibration, imbalance, metrics

# By how much a class must be ahead for good: each of two probabilities may be
# off by 1e-5 in another runtime, and the predicted class must be the same.
MARGIN = 2e-5
NEVER = 2.0  # a confidence that no sample reaches

Confidence = float | tuple[float, ...] | None


@dataclasses.dataclass(frozen=True)
class Cascade:
    """In which order members are asked, and when a sample needs no more.

    Attributes:
        order: The steps of the members. None for the order of their votes, the
            largest first.
        confidence: Between 0 and 1: a sample leaves as soon as the members so
            far give a class this much. A tuple has one for each number of
            members but all, `NEVER` where no sample leaves by it. None for the
            exact rule alone, under which every predicted class is the
            ensemble's.
        priors: Those that it was chosen with, or None.
        temperature: The one that it was chosen with, or None.
        votes: Those that it was chosen with, in the order of the members, or
            None.
        mean_members: How many members a sample needed on average, on the data
            that it was chosen on.
        loss: The accuracy that was lost on these data.
    """

    order: tuple[int, ...] | None = None
    confidence: Confidence = None
    priors: tuple[float, ...] | None = None
    temperature: float | None = None
    votes: tuple[float, ...] | None = None
    mean_members: float | None = None
    loss: float | None = None

    def fitted_to(self, steps: Sequence[int], votes: ArrayLike) -> Self:
        """With an order of these members.

        Raises:
            ValueError: If it was chosen for other members.
        """
        if self.order is None:
            order = tuple(steps[i] for i in order_by_vote(votes))
            return dataclasses.replace(self, order=order)
        if sorted(self.order) != sorted(steps):
            raise ValueError(
                f"The cascade was chosen for members of the steps "
                f"{sorted(self.order)}, but the ensemble has {sorted(steps)}. "
                "Choose it anew: ensemble.cascade(validation_data)."
            )
        return self

    def confidences(self, num_members: int) -> list[float]:
        """That of each member but the last, `NEVER` if it is exact.

        Raises:
            ValueError: If it has another number of them.
        """
        if self.confidence is None:
            return [NEVER] * (num_members - 1)
        if isinstance(self.confidence, tuple):
            if len(self.confidence) != num_members - 1:
                raise ValueError(
                    f"The cascade has confidences {self.confidence} for "
                    f"{num_members} members: one for each but the last is "
                    f"{num_members - 1}."
                )
            return list(self.confidence)
        return [self.confidence] * (num_members - 1)

    def positions(self, steps: Sequence[int]) -> list[int]:
        """Where the members, in their order, are among the steps."""
        return [list(steps).index(step) for step in self.order or ()]

    def __str__(self) -> str:
        rule = "leave when no vote can change the answer"
        if self.confidence is not None:
            numbers = np.atleast_1d(self.confidence)
            listed = ", ".join(
                "none" if number > 1 else f"{number:.4g}" for number in numbers
            )
            rule = f"leave at a confidence of {listed}"
        if self.mean_members is None or self.order is None:
            return f"cascade: {rule}"
        loss = self.loss or 0.0
        change = "lost" if loss >= 0 else "gained"
        return (
            f"cascade: {rule}; {self.mean_members:.2f} of {len(self.order)} "
            f"members on average, {abs(loss):.2%} of accuracy {change} on the "
            "data it was chosen on"
        )


@dataclasses.dataclass(frozen=True)
class Stages:
    """What is known after the first member of an order, the first two, ...

    Attributes:
        probabilities: The mean of the members so far, as the ensemble would
            give it. Shape `(num_members, num_samples, num_columns)`.
        lead: By how much the predicted class is ahead for good; not if
            negative. Shape `(num_members, num_samples)`.
        confidences: The probability of the predicted class.
    """

    probabilities: NDArray[np.float64]
    lead: NDArray[np.float64]
    confidences: NDArray[np.float64]

    def members_used(self, confidence: Confidence) -> NDArray[np.int64]:
        """How many members each sample needs, shape `(num_samples,)`."""
        leaves = ~(self._surplus(confidence) < 0)  # also if it is no number
        leaves[-1] = True
        return leaves.argmax(axis=0) + 1

    def probabilities_at(
        self, members_used: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """The mean of the members that each sample used."""
        return self.probabilities[
            members_used - 1, np.arange(len(members_used))
        ]

    def clearness(self, confidence: Confidence) -> NDArray[np.float64]:
        """How far the nearest decision of each sample was from another one.

        In probability. What computes a little differently may use another
        number of members where this is small.
        """
        used = self.members_used(confidence)
        distances = np.abs(self._surplus(confidence))
        distances[-1] = np.inf  # nothing is decided after the last member
        is_asked = np.arange(len(distances))[:, np.newaxis] < used
        return np.where(is_asked, distances, np.inf).min(axis=0)

    def _surplus(self, confidence: Confidence) -> NDArray[np.float64]:
        found = self.lead.copy()
        if confidence is not None:
            each = np.reshape(confidence, (-1, 1))
            found[:-1] = np.maximum(found[:-1], self.confidences[:-1] - each)
        return found


def factors_and_floor(
    num_columns: int,
    priors: ArrayLike | None = None,
    temperature: float | None = None,
) -> tuple[NDArray[np.float64] | None, float]:
    """What `lead` has to know of what is done to means.

    A temperature raises them to the power 1/T, not below its floor, and priors
    multiply them by w then. So the order of classes is that of w^T times the
    mean, which priors alone or a temperature alone are special cases of.

    Args:
        num_columns: Of the probabilities, 1 if binary.
        priors: See `imbalance.threshold`.
        temperature: See `calibration.scale`.
    """
    if priors is None:
        return None, 0.0
    factors = imbalance.inverse_priors(priors)
    if temperature is None:
        return factors, 0.0
    return factors**temperature, calibration.floor(temperature, num_columns)


def lead(
    sums: ArrayLike,
    rest: float,
    factors: ArrayLike | None = None,
    floor: float = 0.0,
) -> NDArray[np.float64]:
    """By how much a class is ahead whatever the others say, less `MARGIN`.

    The least that the first class can end with, minus the most that any other
    can: the largest w_c S_c, minus the second largest w_d (S_d + R).

    Args:
        sums: S, shape `(..., num_classes)`, of two classes at least.
        rest: R, the vote shares of the members that were not asked.
        factors: w, shape `(num_classes,)`, at most 1. Defaults to ones.
        floor: What means below it count as.

    Example:

    Three of five equal members are sure of the first class: 0.6 to 0, and the
    others can add 0.4.

    >>> lead([[0.6, 0.0]], rest=0.4).round(3)
    array([0.2])
    >>> lead([[0.4, 0.2]], rest=0.4).round(3)
    array([-0.2])
    """
    values = np.asarray(sums, dtype=np.float64)
    weights = np.asarray(1.0 if factors is None else factors, np.float64)
    least = (values * weights).max(axis=-1)
    most = np.maximum(values + rest, floor) * weights
    return least - np.partition(most, -2, axis=-1)[..., -2] - MARGIN


def stages(
    probabilities: ArrayLike,
    votes: ArrayLike,
    priors: ArrayLike | None = None,
    temperature: float | None = None,
) -> Stages:
    """What is known after each member of an order.

    Args:
        probabilities: Of the members in the order in which they are asked,
            shape `(num_members, num_samples, num_classes)`, or one column if
            binary; one-hot votes for hard voting.
        votes: Theirs, shape `(num_members,)`.
        priors: What means are divided by, see `imbalance.threshold`.
        temperature: What they are scaled by before, see `calibration.scale`.

    Example:

    >>> members = np.array([[[0.9, 0.1]], [[0.7, 0.3]], [[0.2, 0.8]]])
    >>> found = stages(members, votes=[2.0, 1.0, 1.0])
    >>> found.members_used(confidence=None), found.members_used(confidence=0.9)
    (array([2]), array([1]))
    """
    shares = np.asarray(votes, dtype=np.float64) / np.sum(votes)
    given = np.asarray(probabilities, dtype=np.float64)
    sums = np.cumsum(shares[:, np.newaxis, np.newaxis] * given, axis=0)
    of_classes = np.cumsum(
        shares[:, np.newaxis, np.newaxis] * metrics.class_columns(given), axis=0
    )
    totals = np.cumsum(shares)
    means = sums / totals[:, np.newaxis, np.newaxis]
    if temperature is not None:
        means = calibration.scale(means, temperature)
    if priors is not None:
        means = imbalance.threshold(means, priors)
    factors, floor = factors_and_floor(given.shape[-1], priors, temperature)
    leads = [
        lead(part, 1 - total, factors, floor)
        for part, total in zip(of_classes, totals, strict=True)
    ]
    confidences = metrics.class_columns(means).max(axis=-1)
    return Stages(means, np.stack(leads), confidences)


def order_by_vote(votes: ArrayLike) -> list[int]:
    """Positions by vote, the largest first; of equals, the later first.

    With large votes first, fewer are left that could change an answer.

    Example:

    >>> order_by_vote([2.0, 3.0, 2.0])
    [1, 2, 0]
    """
    values = np.asarray(votes)
    return sorted(range(len(values)), key=lambda i: (-values[i], -i))
