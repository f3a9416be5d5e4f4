"""What a user says of restarts and of the learning rate."""

import dataclasses
import functools
import warnings
from collections.abc import Iterable
from typing import Any

import keras

from cbnn_keras import schedules
from cbnn_keras.auto_restarts import (
    AUTO,
    NUM_PARTS,
    SHORTEST_EPOCHS,
    AutoRestarts,
)
from cbnn_keras.runs.manifest import HELD_OUT
from cbnn_keras.support import arguments
from cbnn_keras.training.intervals import Checkpoints, may_stop_early
from cbnn_keras.training.plan import Schedule, known_steps
from cbnn_keras.training.restarts import AutoRestarting, NewStarts, Restarting
from cbnn_keras.training.running_accuracy import RunningAccuracy


@dataclasses.dataclass(frozen=True)
class RestartOptions:
    """How often a run starts anew, from what, and how its rate falls.

    Attributes:
        owner: The class of the callback, for messages.
        restarts: K, `"auto"`, or None for a run without.
        new_starts: What the model starts anew from.
        learning_rate: `"cosine"`, `"compiled"`, or None for a cosine with
            restarts and what was compiled without.
    """

    owner: str
    restarts: Any
    new_starts: NewStarts
    learning_rate: str | None

    @classmethod
    def checked(
        cls,
        owner: str,
        restarts: Any,
        new_starts: NewStarts,
        learning_rate: Any,
    ) -> "RestartOptions":
        """What a user said.

        Raises:
            ValueError: If it is outside what is allowed.
        """
        is_auto = isinstance(restarts, str) and restarts == AUTO
        if restarts is not None and not is_auto:
            restarts = arguments.integer(
                owner,
                "restarts",
                restarts,
                at_least=2,
                allowed="'auto', or an integer of at least 2",
            )
        if learning_rate not in (None, "cosine", "compiled"):
            raise ValueError(
                f"{owner}(learning_rate={learning_rate!r}): must be 'cosine' "
                "or 'compiled'; give the number to the optimizer."
            )
        return cls(owner, restarts, new_starts, learning_rate)

    @property
    def are_auto(self) -> bool:
        """Whether held-out data decide."""
        return isinstance(self.restarts, str)

    @property
    def set_the_rate(self) -> bool:
        """Whether the learning rate is that of a cosine."""
        if self.learning_rate is None:
            return self.restarts is not None
        return self.learning_rate == "cosine"

    def check(self, model: keras.Model, validation_data: Any) -> None:
        """Raises a `ValueError` for what keeps a run from starting anew."""
        if not self.are_auto:
            return
        asked = f"{self.owner}(restarts='auto'"
        if validation_data is None:
            raise ValueError(
                f"{asked}): held-out samples decide when to start anew. Give "
                "some to the callback, which does not see those of "
                f"`model.fit`: {asked}, validation_data=(x_val, y_val)), or "
                "callback.fit(model, x, y, validation_data=(x_val, y_val))."
            )
        if model.steps_per_execution > 1:
            raise ValueError(
                f"{asked}) looks at the model between steps, but it was "
                "compiled with steps_per_execution="
                f"{model.steps_per_execution}. Leave it out of `compile`."
            )

    def warn_of_stopping(
        self, callbacks: Iterable[keras.callbacks.Callback]
    ) -> None:
        """Says that a new start looks like the end of all progress."""
        if self.restarts is not None and may_stop_early(callbacks):
            warnings.warn(
                f"{self.owner}(restarts={self.restarts!r}): `EarlyStopping` is "
                "among the callbacks, and ends training where the model starts "
                "anew and is bad for a while. Leave it out of this `fit`.",
                stacklevel=2,
            )

    def actions(
        self,
        total_steps: int,
        steps_per_epoch: int | None,
        held_out: RunningAccuracy | None,
    ) -> Restarting | None:
        """What happens between checkpoints, or None without restarts.

        Args:
            total_steps: T.
            steps_per_epoch: None if `fit` does not know.
            held_out: What decides if they are automatic; see `check`.
        """
        if self.restarts is None:
            return None
        own = vars(self.new_starts)
        if not self.are_auto or held_out is None:
            ends = schedules.restart_steps(total_steps, self.restarts)
            settings = {"restarts": self.restarts, **own}
            equal = Checkpoints(ends, settings, None, ends[0])
            return Restarting(self.new_starts, equal)
        asked = f"{self.owner}(restarts='auto')"
        if total_steps < NUM_PARTS:
            raise ValueError(
                f"{asked}: a run of {total_steps} steps is too short to be "
                f"looked at. It needs {NUM_PARTS} or more."
            )
        if not held_out.label_entropy:
            raise ValueError(
                f"{asked}: all samples of validation_data are of one class, so "
                "that they cannot tell when twice the steps help. Give samples "
                "of all classes."
            )
        # Outputs do not tell: a ReLU can turn NaN into 0.
        if not held_out.has_finite_inputs:
            raise ValueError(
                f"{asked}: validation_data has inputs that are not finite (NaN "
                "or infinite). Leave those samples out, or put numbers in "
                "their place, as `np.nan_to_num(x)` does."
            )
        rule = AutoRestarts(
            total_steps,
            shortest=SHORTEST_EPOCHS * known_steps(asked, steps_per_epoch),
            chance=held_out.label_entropy,
        )
        settings = {**rule.settings, HELD_OUT: held_out.labels_id, **own}
        found = Checkpoints(rule.steps, settings, None, total_steps)
        return AutoRestarting(self.new_starts, found, rule)


def cosine(
    actions: Restarting | None, total_steps: int, highest: float
) -> Schedule:
    """The learning rate by step: of each cycle, or of the whole run."""
    if actions is not None:
        return functools.partial(actions.rate, highest=highest)
    return functools.partial(
        schedules.annealed_rate, ends=[total_steps], highest=highest
    )
