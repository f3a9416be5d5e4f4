"""How methods vote and update: CBNN, equal votes, updates from the first.

A policy is what `boosting.Booster` asks each round. It is all of a method that
a run has to remember to compute the weights of any round again.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from cbnn_keras.boosting import (
    Bools,
    Floats,
    is_better_than_chance,
    is_within_budget,
    stage_vote,
    update_weights,
)
from cbnn_keras.trust import ALL, Trust


@dataclasses.dataclass(frozen=True)
class Boosting:
    """CBNN's policy: equations 3 and 6, and the paper's stop rule.

    Attributes:
        deviation_rate: eta.
        expected_error: The error expected of the final model; gives lambda_0.
        trust: Which members vote; all, as in the paper, by default.
    """

    deviation_rate: float = 0.01
    expected_error: float = 0.05
    trust: Trust = ALL
    has_bound: ClassVar[bool] = True

    def vote(
        self, error: float, num_classes: int, smallest_weight: float
    ) -> float:
        # As for the vote: a perfect checkpoint is half a sample wrong.
        counted = max(error, smallest_weight / 2)
        if not is_better_than_chance(counted, num_classes):
            return 0.0
        return stage_vote(error, num_classes, smallest_weight)

    def update(
        self, first: Floats, current: Floats, correct: Bools, vote: float
    ) -> Floats:
        return update_weights(current, correct, vote, self.deviation_rate)

    def may_continue(self, votes: Sequence[float], num_classes: int) -> bool:
        reserved = stage_vote(self.expected_error, num_classes)
        return is_within_budget(votes, self.deviation_rate, reserved)


@dataclasses.dataclass(frozen=True)
class BoostingFromFirst:
    """Votes as CBNN's; each update begins from the first round's omega.

    That is Snapshot Boosting as we reconstruct it. It has no stop rule.

    Attributes:
        deviation_rate: eta.
    """

    deviation_rate: float
    trust: ClassVar[Trust] = ALL
    has_bound: ClassVar[bool] = False

    def vote(
        self, error: float, num_classes: int, smallest_weight: float
    ) -> float:
        return Boosting().vote(error, num_classes, smallest_weight)

    def update(
        self, first: Floats, current: Floats, correct: Bools, vote: float
    ) -> Floats:
        return update_weights(first, correct, vote, self.deviation_rate)

    def may_continue(self, votes: Sequence[float], num_classes: int) -> bool:
        return True


@dataclasses.dataclass(frozen=True)
class EqualVotes:
    """No boosting: every checkpoint has a vote of 1, and weights stay."""

    deviation_rate: ClassVar[float] = 0.0
    trust: ClassVar[Trust] = ALL
    has_bound: ClassVar[bool] = False

    def vote(
        self, error: float, num_classes: int, smallest_weight: float
    ) -> float:
        return 1.0

    def update(
        self, first: Floats, current: Floats, correct: Bools, vote: float
    ) -> Floats:
        return current

    def may_continue(self, votes: Sequence[float], num_classes: int) -> bool:
        return True
