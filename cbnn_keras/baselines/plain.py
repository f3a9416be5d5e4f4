"""NoCycle: checkpoints of an ordinary training run."""

from typing import ClassVar

from cbnn_keras import schedules
from cbnn_keras.boosting_policies import EqualVotes
from cbnn_keras.training.checkpointing import CheckpointCallback
from cbnn_keras.training.plan import DEFAULT_NUM_CHECKPOINTS, Plan


class PlainCheckpoints(CheckpointCallback):
    """Equally spaced checkpoints, averaged with equal votes ("NoCycle").

    Nothing about training changes: this is what any other checkpoint ensemble
    has to beat. With `num_checkpoints=1` it is the single model, in a run
    directory. Checkpoints fall where `CBNNCallback` takes them.

    Args:
        directory: Where the run is kept, as for `CBNNCallback`.
        num_checkpoints: At most so many members, the final model included.
            Defaults to 6.
        **options: The other arguments of `CBNNCallback` that all methods have:
            `training.run_arguments.RunOptions`.
    """

    METHOD: ClassVar[str] = "no-cycle"

    def _make_plan(self, total_steps: int, steps_per_epoch: int | None) -> Plan:
        interval = schedules.checkpoint_interval(
            total_steps, self.num_checkpoints or DEFAULT_NUM_CHECKPOINTS
        )
        steps = schedules.checkpoint_steps(total_steps, interval)
        return Plan(steps, EqualVotes(), {"interval": interval})
