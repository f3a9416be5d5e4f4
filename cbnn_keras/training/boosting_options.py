"""What a user says of weights, members and votes, and what is left open.

The defaults are what `benchmarks/accuracy.py` speaks for; docs/defaults.md has
the evidence. Where a run is resumed, what its script leaves open is as it was
when the run began.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from cbnn_keras import boosting
from cbnn_keras.boosting_policies import Boosting
from cbnn_keras.runs.manifest import Settings
from cbnn_keras.support import arguments
from cbnn_keras.support.aliases import Json
from cbnn_keras.trust import ALL, Trust

_LAG_FREE = "lag_free"  # in the settings of a run
# The rarest class has a fifth of the most frequent one's samples, or less.
_IMBALANCE = 5
_FEWEST_EPOCHS = 20  # of a run that is not short
# Half a point of training error, over all samples and averaged over classes.
DEFAULT_TRUST = Trust(margin=0.005, class_margin=0.005)
# Training as it is without: no larger ratio was better on held-out data.
DEFAULT_RATIO = 1.0


@dataclasses.dataclass(frozen=True)
class Averaging:
    """How the weights of a member are averaged.

    Attributes:
        horizon: As a share of its cycle or of the run.
        is_lag_free: Whether averages keep up with the weights.
    """

    horizon: float
    is_lag_free: bool = False

    @property
    def settings(self) -> Json:
        """What a run remembers of it, see `of_settings`."""
        found: Json = {"average": self.horizon}
        return found | ({_LAG_FREE: True} if self.is_lag_free else {})

    @classmethod
    def of_settings(cls, own: Mapping[str, Any]) -> "Averaging | None":
        """What a run was trained by, or None for the model as it is."""
        horizon = own.get("average")
        return (
            None if horizon is None else cls(horizon, own.get(_LAG_FREE, False))
        )


AVERAGES = Averaging(0.05)
# Averages lag behind the weights: most of all in what these know of rare
# classes, ...
_OF_RARE_CLASSES = Averaging(0.15, is_lag_free=True)
# ... and in a run that ends before all is learnt.
_OF_SHORT_RUNS = Averaging(0.1, is_lag_free=True)


def averaging_of(class_sums: np.ndarray, num_epochs: float) -> Averaging:
    """How members are averaged by default.

    Args:
        class_sums: What the training samples of each class weigh together.
        num_epochs: How often the run passes over them.

    Example:

    >>> averaging_of(np.array([50, 50, 11, 0]), num_epochs=20)
    Averaging(horizon=0.05, is_lag_free=False)
    >>> averaging_of(np.array([50, 50, 11, 0]), num_epochs=19)
    Averaging(horizon=0.1, is_lag_free=True)
    >>> averaging_of(np.array([50, 50, 10, 0]), num_epochs=20)
    Averaging(horizon=0.15, is_lag_free=True)
    """
    known = class_sums[class_sums > 0]
    # Sums are rounded: their last digits must not decide.
    if known.min() * _IMBALANCE <= known.max() * (1 + 1e-9):
        return _OF_RARE_CLASSES
    return _OF_SHORT_RUNS if num_epochs < _FEWEST_EPOCHS else AVERAGES


@dataclasses.dataclass(frozen=True)
class BoostingOptions:
    """How checkpoints vote, what members are, and how far weights part.

    Attributes:
        deviation_rate: eta, or None where the ratio says it.
        largest_ratio: R, or None where eta is given.
        expected_error: The error expected of the final model.
        averaging: Of members; None for the model as it is.
        trust: Which members vote.
        left_open: Which of `"rate"`, `"average"` and `"members"` the user has
            said nothing of.
        asks_for_data: Whether data and epochs decide on the averaging.
    """

    deviation_rate: float | None
    largest_ratio: float | None
    expected_error: float
    averaging: Averaging | None
    trust: Trust
    left_open: frozenset[str]
    asks_for_data: bool

    @classmethod
    def checked(
        cls,
        owner: str,
        *,
        deviation_rate: Any,
        largest_ratio: Any,
        expected_error: Any,
        average: Any,
        members: Any,
        has_restarts: bool,
    ) -> "BoostingOptions":
        """What a user said.

        Raises:
            ValueError: If it is outside what is allowed.
        """
        given = {
            "rate": deviation_rate is not None or largest_ratio is not None,
            "average": average is not None,
            "members": members is not None,
        }
        if members is None:
            # Members that start anew are worth the same, whichever is last.
            members = "all" if has_restarts else "trusted"
        if not given["rate"]:
            largest_ratio = DEFAULT_RATIO
        return cls(
            _checked_rate(owner, deviation_rate),
            _checked_ratio(owner, largest_ratio),
            arguments.number(
                owner,
                "expected_error",
                expected_error,
                above=0,
                below=1,
                allowed="a number between 0 and 1, below 1 - 1/k for k "
                "classes; the default is 0.05",
            ),
            _checked_averaging(owner, True if average is None else average),
            _checked_trust(owner, members),
            frozenset(name for name, is_given in given.items() if not is_given),
            average is None or average is True,
        )

    @property
    def may_reweight(self) -> bool:
        """Whether sample weights can change at all."""
        return bool(self.deviation_rate or (self.largest_ratio or 1) > 1)

    def adopted(self, settings: Settings) -> "BoostingOptions":
        """These options for a run that was begun with other defaults."""
        policy, found = settings.policy, self
        averaging = Averaging.of_settings(settings.own)
        if "rate" in self.left_open:
            found = dataclasses.replace(
                found, deviation_rate=policy.deviation_rate, largest_ratio=None
            )
        # `average=True` is as it was meant when the run began.
        if "average" in self.left_open or (self.asks_for_data and averaging):
            found = dataclasses.replace(
                found, averaging=averaging, asks_for_data=False
            )
        # "trusted" is as it was meant when the run began.
        is_meant = ALL not in (self.trust, policy.trust)
        if is_meant or "members" in self.left_open:
            found = dataclasses.replace(found, trust=policy.trust)
        return found

    def policy(self, num_checkpoints: int, num_classes: int) -> Boosting:
        """How a run of so many checkpoints votes and updates."""
        rate = self.deviation_rate
        if rate is None:
            rate = boosting.rate_of_ratio(
                self.largest_ratio or 1.0,
                num_checkpoints,
                self.expected_error,
                num_classes,
            )
        return Boosting(rate, self.expected_error, self.trust)


def _checked_rate(owner: str, rate: Any) -> float | None:
    if rate is None:
        return None
    return arguments.number(
        owner,
        "deviation_rate",
        rate,
        at_least=0,
        allowed="a number of at least 0; the paper uses 0.01",
    )


def _checked_ratio(owner: str, ratio: Any) -> float | None:
    if ratio is None:
        return None
    return arguments.number(
        owner,
        "largest_ratio",
        ratio,
        at_least=1,
        below=1e6,
        allowed="a number of at least 1 and below a million",
    )


def _checked_averaging(owner: str, average: Any) -> Averaging | None:
    """How members are averaged, or None for the model as it is."""
    if isinstance(average, (bool, np.bool_)):
        return AVERAGES if average else None
    horizon = arguments.number(
        owner,
        "average",
        average,
        above=0,
        below=1,
        allowed="True, False, or a share of the run between 0 and 1",
    )
    return Averaging(horizon)


def _checked_trust(owner: str, members: Any) -> Trust:
    if members not in ("trusted", "all"):
        raise ValueError(
            f"{owner}(members={members!r}): must be 'trusted' or 'all'."
        )
    return DEFAULT_TRUST if members == "trusted" else ALL
