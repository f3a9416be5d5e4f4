"""Horizontal voting: the last epochs of an ordinary training run."""

from typing import ClassVar

from cbnn_keras import schedules
from cbnn_keras.boosting_policies import EqualVotes
from cbnn_keras.training.checkpointing import CheckpointCallback
from cbnn_keras.training.plan import DEFAULT_NUM_CHECKPOINTS, Plan, known_steps


class HorizontalVoting(CheckpointCallback):
    """The models after each of the last epochs, averaged with equal votes.

    Reference: Xie et al., "Horizontal and vertical ensemble with deep
    representation for classification", 2013.

    Args:
        directory: Where the run is kept, as for `CBNNCallback`.
        num_checkpoints: How many of the last epochs. Defaults to 6.
        **options: The other arguments of `CBNNCallback` that all methods have:
            `training.run_arguments.RunOptions`.
    """

    METHOD: ClassVar[str] = "horizontal-voting"

    def _make_plan(self, total_steps: int, steps_per_epoch: int | None) -> Plan:
        num = self.num_checkpoints or DEFAULT_NUM_CHECKPOINTS
        spacing = known_steps(self._name, steps_per_epoch)
        steps = schedules.last_steps(total_steps, num, spacing)
        return Plan(steps, EqualVotes(), {"num_checkpoints": num})
