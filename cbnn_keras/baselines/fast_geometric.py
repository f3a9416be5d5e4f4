"""Fast Geometric Ensemble: short cycles around a trained model."""

import os
from typing import ClassVar, Unpack

from cbnn_keras import schedules
from cbnn_keras.boosting_policies import EqualVotes
from cbnn_keras.support import arguments
from cbnn_keras.training.checkpointing import CheckpointCallback
from cbnn_keras.training.plan import (
    DEFAULT_NUM_CHECKPOINTS,
    Plan,
    Schedule,
    by_step,
    known_steps,
)
from cbnn_keras.training.run_arguments import RunOptions


class FastGeometricEnsemble(CheckpointCallback):
    """Ordinary training, then triangular cycles, members amid each ("FGE").

    The first part trains as the single model does. Then the learning rate goes
    from `highest_rate` to `lowest_rate` and back, see
    `schedules.triangular_rate`; a member is taken at each lowest point, the
    last of which is the end of the run, and the model before the cycles is one
    as well. The optimizer's state goes on from the first part. Members have
    equal votes.

    Reference: Garipov et al., "Loss surfaces, mode connectivity, and fast
    ensembling of DNNs", NeurIPS 2018.

    Args:
        directory: Where the run is kept, as for `CBNNCallback`.
        num_checkpoints: Members in all, at least 2. Defaults to 6.
        first_part: The share of the run before the cycles, at least: they are
            as long as fits into the rest. Defaults to 0.8.
        cycle_epochs: The length of a cycle instead, in epochs, even. The first
            part is then what the cycles leave of the run.
        highest_rate: a1. Defaults to 0.05.
        lowest_rate: a2. Defaults to 0.0005.
        schedule: The learning rate of the first part, by step from 1, or one of
            Keras' schedules. Defaults to None: as the model was compiled, which
            must be with a number.
        **options: The other arguments of `CBNNCallback` that all methods have:
            `training.run_arguments.RunOptions`.
    """

    METHOD: ClassVar[str] = "fge"

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        num_checkpoints: int | None = None,
        first_part: float | None = None,
        cycle_epochs: int | None = None,
        highest_rate: float = 0.05,
        lowest_rate: float = 0.0005,
        schedule: Schedule | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__(directory, num_checkpoints=num_checkpoints, **options)
        name = self._name
        if first_part is not None and cycle_epochs is not None:
            raise ValueError(
                f"{name}(first_part={first_part}, cycle_epochs={cycle_epochs}):"
                " give one of them, not both."
            )
        if self.num_checkpoints == 1:
            raise ValueError(
                f"{name}(num_checkpoints=1): at least 2, the model before the "
                "cycles and one amid a cycle."
            )
        self.first_part = arguments.number(
            name,
            "first_part",
            0.8 if first_part is None else first_part,
            above=0,
            below=1,
            allowed="a share between 0 and 1; the default is 0.8",
        )
        if cycle_epochs is not None:
            cycle_epochs = arguments.integer(name, "cycle_epochs", cycle_epochs)
            if cycle_epochs % 2:
                raise ValueError(
                    f"{name}(cycle_epochs={cycle_epochs}): an even number, so "
                    "that the middle of a cycle is the end of an epoch."
                )
        self.cycle_epochs = cycle_epochs
        self.lowest_rate = arguments.number(
            name,
            "lowest_rate",
            lowest_rate,
            at_least=0,
            allowed="a number of at least 0",
        )
        self.highest_rate = arguments.number(
            name,
            "highest_rate",
            highest_rate,
            above=self.lowest_rate,
            allowed=f"a number above lowest_rate={self.lowest_rate}",
        )
        self.schedule = by_step(name, schedule)

    def _make_plan(self, total_steps: int, steps_per_epoch: int | None) -> Plan:
        num = self.num_checkpoints or DEFAULT_NUM_CHECKPOINTS
        if self.cycle_epochs is None:
            cycle = schedules.geometric_cycle(total_steps, num, self.first_part)
        else:
            epoch = known_steps(self._name, steps_per_epoch)
            cycle = self.cycle_epochs * epoch
        steps = schedules.geometric_steps(total_steps, num, cycle)
        first = steps[0]

        def learning_rate(step: int) -> float | None:
            if step <= first:
                return None if self.schedule is None else self.schedule(step)
            return schedules.triangular_rate(
                step - first, cycle, self.highest_rate, self.lowest_rate
            )

        settings = {
            "num_checkpoints": num,
            "cycle": cycle,
            "highest_rate": self.highest_rate,
            "lowest_rate": self.lowest_rate,
        }
        return Plan(steps, EqualVotes(), settings, learning_rate)
