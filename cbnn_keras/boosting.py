"""The arithmetic of CBNN: errors, votes, sample weights, bounds.

Here are the equations of "Boost Neural Networks by Checkpoints" (Wang et al.,
NeurIPS 2021), one function each, and `Booster`, which applies them round after
round as a method's `Policy` says. Everything is NumPy in float64. The policies
are in `boosting_policies.py`; when a round takes place is in `schedules.py`.

The paper's letters: omega_i `weights[i]` (they sum to 1), e `error`, lambda
`vote`, k `num_classes`, eta `deviation_rate`, Z `normaliser`, I(G = y)
`correct`.
"""

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

# Equation 9 and what belongs to it are in `metrics`, and to be had here too.
from cbnn_keras.metrics import (  # noqa: F401
    disagreement,
    one_hot_votes,
    predicted_classes,
)
from cbnn_keras.metrics import (  # noqa: F401
    weighted_mean as combine_probabilities,
)
from cbnn_keras.trust import Trust

# Whose reciprocal is a number: a vote is finite.
_SMALLEST_ERROR = float(np.finfo(np.float64).tiny)
_LARGEST = float(np.finfo(np.float64).max)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]


def stage_error(weights: Floats, correct: Bools) -> float:
    """Weighted error rate e of one checkpoint (eq. 4).

    e = sum of omega_i over the misclassified samples.

    Args:
        weights: omega, shape `(num_samples,)`, sums to 1.
        correct: True where the checkpoint is right, shape `(num_samples,)`.

    Example:

    >>> stage_error(np.array([0.5, 0.25, 0.25]), np.array([True, False, True]))
    0.25
    """
    return float(weights[~correct].sum())


def stage_vote(
    error: float, num_classes: int, smallest_weight: float = 0.0
) -> float:
    """Vote lambda of one checkpoint (eq. 3).

    lambda = log((1 - e) / e) + log(k - 1); it is positive exactly where the
    checkpoint is better than chance.

    Args:
        error: e, at least 0 and below 1.
        num_classes: k, at least 2.
        smallest_weight: The smallest positive omega. A perfect checkpoint
            counts as half a sample wrong, or its vote would be infinite: an e
            below half of this is replaced by it. Defaults to 0, no floor. An
            omega so small that 1/omega is no number counts as the smallest
            one for which it is, 2e-308.

    Example:

    >>> round(stage_vote(0.05, num_classes=100), 2)  # as in section 3.2
    7.54
    >>> round(stage_vote(0.0, num_classes=2, smallest_weight=0.1), 4)
    2.9444
    >>> round(stage_vote(0.0, num_classes=2, smallest_weight=5e-324), 4)
    708.3964
    """
    if smallest_weight > 0:
        error = max(error, smallest_weight / 2, _SMALLEST_ERROR)
    return float(np.log((1 - error) / error) + np.log(num_classes - 1))


def is_better_than_chance(error: float, num_classes: int) -> bool:
    """Whether e < 1 - 1/k, which is what makes lambda positive.

    Example:

    >>> is_better_than_chance(0.49, num_classes=2)
    True
    >>> is_better_than_chance(0.5, num_classes=2)
    False
    """
    # A sum over n weights is rounded: what is wrong on exactly 1 - 1/k of them
    # must not pass by the last digits.
    return num_classes * error < (num_classes - 1) * (1 - 1e-12)


def stage_normaliser(error: float, vote: float, deviation_rate: float) -> float:
    """Normaliser Z of one round (eq. 7, in the closed form of theorem 2).

    Z = (1 - e) * exp(-eta * lambda) + e; below 1 wherever lambda > 0.

    Example:

    >>> round(stage_normaliser(0.25, vote=np.log(3), deviation_rate=1.0), 12)
    0.5
    """
    return float((1 - error) * np.exp(-deviation_rate * vote) + error)


def update_weights(
    weights: Floats, correct: Bools, vote: float, deviation_rate: float
) -> Floats:
    """Sample weights of the next round (eq. 6).

    omega_i <- omega_i * exp(-eta * lambda * correct_i) / Z, with Z such that
    they sum to 1: what was misclassified gains weight.

    Example:

    >>> update_weights(
    ...     np.full(4, 0.25),
    ...     np.array([True, True, True, False]),
    ...     vote=np.log(3),
    ...     deviation_rate=1.0,
    ... ).round(12)
    array([0.16666667, 0.16666667, 0.16666667, 0.5       ])
    """
    # An infinite one times 0 would be no number.
    exponents = -min(deviation_rate * vote, _LARGEST) * correct
    # Z cancels a common factor; without it no rate can make all weights 0.
    updated = weights * np.exp(exponents - exponents.max())
    total = updated.sum()
    if not total:  # what weighs anything is right, all of it: nothing changes
        return weights
    return np.asarray(updated / total)


def exponential_loss(
    weights: Floats, true_class_votes: Floats, total_vote: float
) -> float:
    """Exponential loss of the ensemble so far (eq. 10).

    L = sum of omega_1i * exp(-G^y(x_i)), where G^y(x_i) is the share of the
    votes that went to the right class. Theorem 1: L is at most the product of
    the normalisers, as long as the votes sum to less than 1/eta.

    Args:
        weights: The first round's omega (1/n in the paper).
        true_class_votes: Sum of lambda over the members that got the sample
            right, shape `(num_samples,)`.
        total_vote: Sum of lambda over all members, positive.

    Example:

    >>> loss = exponential_loss(
    ...     np.array([0.5, 0.5]), np.array([2.0, 0.0]), total_vote=2.0
    ... )
    >>> round(loss, 6)  # (exp(-1) + exp(0)) / 2
    0.68394
    """
    return float(np.sum(weights * np.exp(-true_class_votes / total_vote)))


def is_within_budget(
    votes: Sequence[float], deviation_rate: float, reserved_vote: float = 0.0
) -> bool:
    """Whether the votes sum to less than 1/eta (eq. 8).

    With `reserved_vote`, the vote lambda_0 expected of the final model, this is
    the stop rule of algorithm 1, line 3.

    Example:

    >>> is_within_budget([60.0, 30.0], deviation_rate=0.01)
    True
    >>> is_within_budget([60.0, 30.0], 0.01, reserved_vote=10.0)
    False
    >>> is_within_budget([1e9], deviation_rate=0.0)
    True
    """
    return deviation_rate * (reserved_vote + sum(votes)) < 1


def rate_of_ratio(
    largest_ratio: float, num_checkpoints: int, expected_error: float, k: int
) -> float:
    """eta with which the weights of two samples differ by at most a ratio.

    A sample that no checkpoint gets right gains exp(eta * sum of the votes)
    over one that all of them do, so eta = ln R / (expected sum of the votes);
    the final model has a vote, but no update after it.

    Args:
        largest_ratio: R, at least 1.
        num_checkpoints: M, the final model included.
        expected_error: What a checkpoint is expected to get wrong.
        k: The number of classes.

    Example:

    >>> round(rate_of_ratio(2.0, 6, expected_error=0.05, k=10), 4)
    0.027
    """
    votes = max(num_checkpoints - 1, 1) * stage_vote(expected_error, k)
    return math.log(largest_ratio) / votes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """What one round found.

    Attributes:
        error: e, the weighted error.
        vote: lambda; 0 where the checkpoint is not a member.
        normaliser: Z; 1 where the weights stay as they were for want of a vote.
        bound: Product of the Zs so far, upper bound of `exponential_loss`.
        exponential_loss: That of the members so far; 1 while there is none.
        is_member: Whether the checkpoint joins the ensemble.
        within_budget: Whether the votes sum to less than 1/eta, the condition
            of theorem 1.
        is_final: Whether this is the model at the end of training.
    """

    error: float
    vote: float
    normaliser: float
    bound: float
    exponential_loss: float
    is_member: bool
    within_budget: bool
    is_final: bool


class Policy(Protocol):
    """How a method votes and updates: what a `Booster` asks of it.

    Attributes:
        has_bound: Whether theorem 1 speaks of the method.
        deviation_rate: eta; 0 for a method that leaves the weights alone.
        trust: Which members vote.
    """

    has_bound: ClassVar[bool]

    @property
    def deviation_rate(self) -> float: ...

    @property
    def trust(self) -> Trust: ...

    def vote(
        self, error: float, num_classes: int, smallest_weight: float
    ) -> float:
        """The vote of a checkpoint, or 0 if it is not a member."""

    def update(
        self, first: Floats, current: Floats, correct: Bools, vote: float
    ) -> Floats:
        """The next round's omega, from the first round's and this one's."""

    def may_continue(self, votes: Sequence[float], num_classes: int) -> bool:
        """Whether there may be another checkpoint before the final one."""


class Booster:
    """The state of boosting: distribution, votes, bound.

    Fed with what each checkpoint got right, in order, it is a pure function of
    those bits: a run that is resumed after a crash replays them.

    Args:
        distribution: The first round's omega, shape `(num_samples,)`,
            non-negative, sums to 1.
        num_classes: k.
        policy: How checkpoints vote and what becomes of the weights, such as
            `boosting_policies.Boosting()`, CBNN with the paper's numbers.

    Attributes:
        distribution: omega of the round to come.
        votes: lambda of each member so far.
        bound: Product of the Zs so far.

    Example:

    >>> from cbnn_keras.boosting_policies import Boosting
    >>> booster = Booster(np.full(4, 0.25), 2, Boosting(deviation_rate=1.0))
    >>> stage = booster.add(np.array([True, True, True, False]))
    >>> stage.error, round(stage.vote, 4), round(stage.normaliser, 4)
    (0.25, 1.0986, 0.5)
    """

    def __init__(
        self, distribution: Floats, num_classes: int, policy: Policy
    ) -> None:
        self.distribution = distribution
        self.votes: list[float] = []
        self.bound = 1.0
        self._first = distribution
        self._num_classes = num_classes
        self._policy = policy
        self._true_class_votes = np.zeros_like(distribution)
        self._counts: Integers | None = None  # samples an entry stands for

    @property
    def weights(self) -> Floats:
        """omega of the round to come, as it is kept."""
        return self.distribution

    @property
    def first(self) -> Floats:
        """omega of the first round."""
        return self._first

    def split(self, entries: Integers, counts: Integers) -> "Booster":
        """The same state for parts of its entries, of so many samples each."""
        finer = copy.copy(self)
        finer.votes, finer._counts = list(self.votes), counts
        finer.distribution = self.distribution[entries]
        finer._first = self._first[entries]
        finer._true_class_votes = self._true_class_votes[entries]
        return finer

    def may_continue(self) -> bool:
        """The stop rule: may there be another checkpoint before the last?"""
        return self._policy.may_continue(self.votes, self._num_classes)

    def add(self, correct: Bools, *, is_final: bool = False) -> Stage:
        """Takes one checkpoint in, and reweights unless it is the final one.

        A checkpoint that gets no vote is not a member and leaves the weights
        alone. Only a final model that no member precedes is taken in any case,
        with a vote of 1: the ensemble is then that model.
        """
        first, shares = self._first, self.distribution
        if self._counts is not None:
            first, shares = first * self._counts, shares * self._counts
        error = stage_error(shares, correct)
        smallest = float(self.distribution[self.distribution > 0].min())
        vote = self._policy.vote(error, self._num_classes, smallest)
        rate = self._policy.deviation_rate
        normaliser = 1.0
        if vote and rate:  # at 0 a sum of 1 - 1e-16 is not to change a bit
            normaliser = stage_normaliser(error, vote, rate)
            if not is_final:
                updated = self._policy.update(first, shares, correct, vote)
                if self._counts is not None:
                    updated = updated / self._counts
                self.distribution = updated
        elif is_final and not vote and not self.votes:
            vote = 1.0
        if vote:
            self.votes.append(vote)
            self._true_class_votes = self._true_class_votes + vote * correct
        self.bound *= normaliser
        loss = 1.0  # exp(-0) while no member has voted for anything yet
        if total := sum(self.votes):
            loss = exponential_loss(first, self._true_class_votes, total)
        return Stage(
            error=error,
            vote=vote,
            normaliser=normaliser,
            bound=self.bound,
            exponential_loss=loss,
            is_member=bool(vote),
            within_budget=is_within_budget(self.votes, rate),
            is_final=is_final,
        )
