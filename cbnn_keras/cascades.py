"""Members one after another, until the answer is known. NumPy only.

After the first j members of an order, with S_c the sum of their vote shares
times their probabilities of class c and R the vote shares of the others, a
sample leaves

- if no answers of the others can change the predicted class: for one class c,
  w_c S_c > w_d (S_d + R) for every other class d, where w are the factors that
  classes are multiplied by in the end (1 / priors, or 1), see `Ranks`; and
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
from cbnn_keras.calibration import Scaling

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
        scaling: The one that it was chosen with, or None.
        votes: Those that it was chosen with, in the order of the members, or
            None.
        mean_members: How many members a sample needed on average, on the data
            that it was chosen on.
        loss: The accuracy that was lost on these data.
    """

    order: tuple[int, ...] | None = None
    confidence: Confidence = None
    priors: tuple[float, ...] | None = None
    scaling: Scaling | None = None
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


@dataclasses.dataclass(frozen=True)
class Ranks:
    """The order of classes after what is done to means, if there are priors.

    Priors multiply the probability of each class by w. A temperature raises
    means m to the power 1/T before, not below a floor, so that the order is
    that of w^T m. With a share s as well it is that of

        w (m^(1/T) + z),  z = Z s / (k (1 - s)),

    where Z is the sum of all powers. It depends on what the others say, but is
    between 1 and k^(1 - 1/T). By how much one class is ahead of another changes
    with z times the difference of their factors. So z is that of the middle,
    and a class has to be ahead by more: by half of the range of z, times the
    largest difference of factors. What those so far say is itself a way in
    which all may end, the others saying the same on average, so that a class
    that is ahead for good is also the one that is shown.

    Attributes:
        factors: w, or w^T without a share; shape `(num_classes,)`, at most 1.
        floor: What means below it count as.
        power: 1/T with a share, otherwise 1.
        offset: z of the middle, 0 without a share.
        margin: By how much a class must be ahead for good.
    """

    factors: NDArray[np.float64]
    floor: float = 0.0
    power: float = 1.0
    offset: float = 0.0
    margin: float = MARGIN


def ranks(
    num_columns: int, priors: ArrayLike | None, scaling: Scaling | None
) -> Ranks | None:
    """How classes are ordered, None if it is as their means are.

    Args:
        num_columns: Of the probabilities, 1 if binary.
        priors: See `imbalance.threshold`.
        scaling: See `calibration.scale`.
    """
    if priors is None:
        return None
    factors = imbalance.inverse_priors(priors)
    if scaling is None:
        return Ranks(factors)
    temperature, share = scaling.temperature, scaling.share
    floor = calibration.floor(temperature, num_columns)
    power, num_classes = 1 / temperature, len(factors)
    least, most = sorted([1.0, num_classes ** (1 - power)])
    most *= 1 + num_classes * floor  # what means are raised by
    ratio = share / (num_classes * (1 - share))
    offset = ratio * (least + most) / 2
    if not offset:  # no share, or one that is lost in rounding
        return Ranks(factors**temperature, floor)
    slack = ratio * (most - least) / 2 * float(np.ptp(factors))
    # A power of what is off by half of the margin.
    each = max((MARGIN / 2) ** power, power * MARGIN / 2)
    return Ranks(factors, floor, power, offset, slack + 2 * each)


def lead(
    sums: ArrayLike, rest: float, ranks: Ranks | None = None
) -> NDArray[np.float64]:
    """By how much a class is ahead whatever the others say, less the margin.

    The least that the first class can end with, minus the most that any other
    can: the largest w_c S_c, minus the second largest w_d (S_d + R).

    Args:
        sums: S, shape `(..., num_classes)`, of two classes at least.
        rest: R, the vote shares of the members that were not asked.
        ranks: How classes are ordered in the end. Defaults to None: as sums.

    Example:

    Three of five equal members are sure of the first class: 0.6 to 0, and the
    others can add 0.4.

    >>> lead([[0.6, 0.0]], rest=0.4).round(3)
    array([0.2])
    >>> lead([[0.4, 0.2]], rest=0.4).round(3)
    array([-0.2])
    """
    least = np.asarray(sums, dtype=np.float64)
    most, margin = least + rest, MARGIN
    if ranks is not None:
        most, margin = np.maximum(most, ranks.floor), ranks.margin
        if ranks.offset:
            least = np.maximum(least, ranks.floor)
            least, most = (p**ranks.power + ranks.offset for p in (least, most))
        least, most = least * ranks.factors, most * ranks.factors
    second = np.partition(most, -2, axis=-1)[..., -2]
    return least.max(axis=-1) - second - margin


def stages(
    probabilities: ArrayLike,
    votes: ArrayLike,
    priors: ArrayLike | None = None,
    scaling: Scaling | None = None,
) -> Stages:
    """What is known after each member of an order.

    Args:
        probabilities: Of the members in the order in which they are asked,
            shape `(num_members, num_samples, num_classes)`, or one column if
            binary; one-hot votes for hard voting.
        votes: Theirs, shape `(num_members,)`.
        priors: What means are divided by, see `imbalance.threshold`.
        scaling: What they are scaled by before, see `calibration.scale`.

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
    if scaling is not None:
        means = scaling(means)
    if priors is not None:
        means = imbalance.threshold(means, priors)
    order = ranks(given.shape[-1], priors, scaling)
    leads = [
        lead(part, 1 - total, order)
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
