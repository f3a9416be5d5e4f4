"""When to start anew, by held-out data: the rule of `restarts="auto"`.

A run begins as one cosine over all of its steps. From a twelfth of them on it
is looked at again and again, each time after about half as many steps more: if
twice the steps have not lowered the loss on held-out data by 3 %, the model
starts anew, in cycles that are as long as what was enough, two epochs at the
least. As long as twice the steps help, or nothing was learnt yet, nothing is
changed, so that a short run is that of a plain cosine.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from cbnn_keras import schedules

AUTO = "auto"  # in the settings of a run
NUM_PARTS = 24
GAIN = 0.03
SHORTEST_EPOCHS = 2  # of a cycle: before, the loss goes up and down by itself
# A loss above this share of that of knowing nothing says nothing either.
_LARGEST_SHARE = 0.9


@dataclasses.dataclass(frozen=True)
class Cycles:
    """What a run does, as far as is known.

    Attributes:
        checkpoints: The steps with a checkpoint, the last of them the end.
        compared: The last step at which was looked at what twice the steps
            have brought, 0 if there was no such look.
        starts: The steps after which the model starts anew, none if it does
            not.
        enough: How many steps were enough, 0 without a restart.
        voters: The checkpoints that vote: that after as many steps, that after
            twice as many, and the ends of all cycles that started anew. None
            without a restart.
    """

    checkpoints: list[int]
    compared: int
    starts: list[int] = dataclasses.field(default_factory=list)
    enough: int = 0
    voters: list[int] | None = None

    @property
    def _ends(self) -> list[int]:
        return [*self.starts, self.checkpoints[-1]]

    def length_after(self, step: int) -> int:
        """The steps of the cycle that starts after a step."""
        return next(end for end in self._ends if end > step) - step

    def rate(self, step: int, highest: float) -> float:
        """A cosine from `highest` towards zero in every cycle."""
        ends = self._ends
        # The first cycle is planned to the end, and breaks off.
        if step <= ends[0]:
            ends = ends[-1:]
        return schedules.annealed_rate(step, ends, highest)


@dataclasses.dataclass(frozen=True)
class AutoRestarts:
    """The rule, for a run of known length.

    Attributes:
        total_steps: T.
        num_parts: Into how many parts the run is divided; cycles are some of
            them, and the first look is after two.
        gain: By what share twice the steps must lower the held-out loss.
        shortest: The fewest steps of a cycle that starts anew.
        chance: The loss of knowing nothing of the held-out samples but how
            frequent their classes are.
    """

    total_steps: int
    num_parts: int = NUM_PARTS
    gain: float = GAIN
    shortest: int = 0
    chance: float = math.inf

    @property
    def settings(self) -> dict[str, Any]:
        """What a run remembers of it, see `of_settings`."""
        return {
            "restarts": AUTO,
            "restart_parts": self.num_parts,
            "restart_gain": self.gain,
            "restart_shortest": self.shortest,
            "restart_chance": self.chance,
        }

    @property
    def steps(self) -> list[int]:
        """All steps that can have a checkpoint."""
        return schedules.restart_steps(self.total_steps, self.num_parts)

    @property
    def most_checkpoints(self) -> int:
        """How many checkpoints there are at the most.

        >>> AutoRestarts(total_steps=240).most_checkpoints
        13
        """
        looks = _looks(self.num_parts)
        nums = [
            num_before + len(self._starts(now)) + 1
            for num_before, now in enumerate(looks[:-1])
            if not now % 2 and now // 2 in looks
        ]
        return max(len(looks), *nums)

    def is_learnt(self, loss: float) -> bool:
        """Whether a held-out loss says more than how frequent classes are."""
        return loss < _LARGEST_SHARE * self.chance

    def cycles(self, losses: Mapping[int, float]) -> Cycles:
        """What the run does, by the held-out losses at its checkpoints so far.

        Example:

        Twice the steps help once (0.4 after 10, 0.3 after 20) and then no
        more: from step 40 on, cycles of 20 steps are enough.

        >>> rule = AutoRestarts(total_steps=120)
        >>> found = rule.cycles({10: 0.4, 15: 0.35, 20: 0.3, 30: 0.3, 40: 0.3})
        >>> found.checkpoints
        [10, 15, 20, 30, 40, 60, 80, 100, 120]
        >>> found.starts, found.voters
        ([40, 60, 80, 100], [20, 40, 60, 80, 100, 120])
        >>> rule.cycles({10: 0.4}).checkpoints
        [10, 15, 20, 30, 40, 60, 80, 120]
        """
        looks = _looks(self.num_parts)
        at = dict(enumerate(self.steps, start=1))
        compared = 0
        for now in looks[:-1]:
            half = now // 2
            once, twice = losses.get(at[half]), losses.get(at[now])
            if now % 2 or once is None or twice is None:
                continue
            is_late = at[half] >= self.shortest
            if not (is_late and self.is_learnt(once)):
                continue
            compared = at[now]
            if not twice < (1 - self.gain) * once:
                starts = [at[part] for part in self._starts(now)]
                new = [*starts, self.total_steps]
                so_far = [at[part] for part in looks if part < now]
                enough = at[half]
                return Cycles(
                    [*so_far, *new], compared, starts, enough, [enough, *new]
                )
        return Cycles([at[part] for part in looks], compared)

    def _starts(self, now: int) -> range:
        """The parts after which the model starts anew, from a look on."""
        half = now // 2
        # What is left over makes the last cycle longer.
        return range(now, self.num_parts - half + 1, half)


def of_settings(
    settings: Mapping[str, Any], total_steps: int | None
) -> AutoRestarts | None:
    """The rule that a run was trained by, or None if it has another."""
    if settings.get("restarts") != AUTO or total_steps is None:
        return None
    return AutoRestarts(
        total_steps,
        settings["restart_parts"],
        settings["restart_gain"],
        settings["restart_shortest"],
        settings["restart_chance"],
    )


def _looks(num_parts: int) -> list[int]:
    """2, 3, 4, 6, 8 and so on, and the end.

    >>> _looks(24)
    [2, 3, 4, 6, 8, 12, 16, 24]
    """
    found = [2, 3]
    while 2 * found[-2] < num_parts:
        found.append(2 * found[-2])
    return [*(part for part in found if part < num_parts), num_parts]
