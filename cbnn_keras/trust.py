"""Which members vote: those that are nearly as good as the last one.

lambda hardly tells a weak early member from a strong late one where there are
many classes: log(k - 1) dominates it.
"""

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Trust:
    """Rules of trust. A member votes if each that is not None trusts it.

    Attributes:
        margin: How far above the last member's a training error may be.
        class_margin: The same of the error averaged over the classes, where a
            rare class counts as much as a frequent one.
        ratio: How many times the last member's loss a loss may be; in runs of
            format 3.
    """

    margin: float | None = None
    class_margin: float | None = None
    ratio: float | None = None

    def voters(
        self,
        errors: Sequence[float],
        class_errors: Sequence[float],
        losses: Sequence[float],
    ) -> list[bool]:
        """Whether each member votes, in order; the last one always does.

        Args:
            errors: What each member gets wrong of the training set.
            class_errors: The same, averaged over the classes.
            losses: The mean of -log p(label) of each.

        Example:

        >>> trust = Trust(margin=0.005, class_margin=0.005)
        >>> trust.voters([0.044, 0.042, 0.04], [0.2, 0.05, 0.05], [0.1] * 3)
        [False, True, True]
        """
        rules = []
        if self.margin is not None:
            rules.append(near_last(errors, self.margin))
        if self.class_margin is not None:
            rules.append(near_last(class_errors, self.class_margin))
        if self.ratio is not None:
            rules.append(near_last(losses, ratio=self.ratio))
        positions = range(len(errors))
        return [all(rule[position] for rule in rules) for position in positions]


# As in the paper.
ALL = Trust()


def near_last(
    values: Sequence[float], margin: float = 0.0, ratio: float = 1.0
) -> list[bool]:
    """Which values are at most `ratio` times the last one and `margin` more.

    Args:
        values: At least 0.
        margin: At least 0.
        ratio: At least 1.

    Example:

    >>> near_last([0.31, 0.08, 0.044, 0.04], margin=0.005)
    [False, False, True, True]
    """
    # Sums of weights are rounded: their last digits must not decide.
    limit = ratio * values[-1] + margin + 1e-12
    return [value <= limit for value in values]
