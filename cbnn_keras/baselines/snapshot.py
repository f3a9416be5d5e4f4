"""Snapshot Ensemble: a learning rate that starts again and again."""

import os
from typing import ClassVar, Unpack

from cbnn_keras import schedules
from cbnn_keras.boosting_policies import EqualVotes
from cbnn_keras.support import arguments
from cbnn_keras.training.checkpointing import CheckpointCallback
from cbnn_keras.training.plan import DEFAULT_NUM_CHECKPOINTS, Plan
from cbnn_keras.training.run_arguments import RunOptions


class SnapshotEnsemble(CheckpointCallback):
    """Cyclic cosine annealing, a snapshot at the end of each cycle ("SSE").

    The learning rate is set before every iteration, see
    `schedules.cyclic_cosine_rate`; momentum is not reset. Members have equal
    votes. Where T is not a multiple of M the last cycle is cut short, and its
    snapshot is the final model all the same. Compile the model with a number
    as its learning rate; what it is does not matter.

    Reference: Huang et al., "Snapshot Ensembles: Train 1, get M for free",
    ICLR 2017.

    Args:
        directory: Where the run is kept, as for `CBNNCallback`.
        num_checkpoints: M, the number of cycles. Defaults to 6.
        highest_rate: a0, the rate at each restart. Defaults to 0.2, as in the
            experiments of CBNN.
        **options: The other arguments of `CBNNCallback` that all methods have:
            `training.run_arguments.RunOptions`.
    """

    METHOD: ClassVar[str] = "sse"

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        num_checkpoints: int | None = None,
        highest_rate: float = 0.2,
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__(directory, num_checkpoints=num_checkpoints, **options)
        self.highest_rate = arguments.number(
            "SnapshotEnsemble",
            "highest_rate",
            highest_rate,
            above=0,
            allowed="a number above 0",
        )

    def _make_plan(self, total_steps: int, steps_per_epoch: int | None) -> Plan:
        num = self.num_checkpoints or DEFAULT_NUM_CHECKPOINTS
        return Plan(
            schedules.cycle_ends(total_steps, num),
            EqualVotes(),
            {
                "num_checkpoints": num,
                "highest_rate": self.highest_rate,
            },
            lambda step: schedules.cyclic_cosine_rate(
                step, total_steps, num, self.highest_rate
            ),
        )
