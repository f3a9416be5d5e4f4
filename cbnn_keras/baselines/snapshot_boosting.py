"""Snapshot Boosting, as far as it can be reconstructed."""

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import numpy as np

from cbnn_keras.boosting_policies import BoostingFromFirst
from cbnn_keras.runs.run import MethodState
from cbnn_keras.support import arguments
from cbnn_keras.training.checkpointing import CheckpointCallback
from cbnn_keras.training.plan import Actions, Plan, Progress
from cbnn_keras.training.run_arguments import RunOptions


class SnapshotBoosting(CheckpointCallback):
    """Restarts and new sample weights when progress ends ("SSB").

    **A reconstruction, and not faithful.** The method (Zhang et al., "Snapshot
    boosting: a fast ensemble framework for deep neural networks", 2020) has no
    public code, and we know of it only what the paper of CBNN says: a modified
    rule for restarting the learning rate, weights that are updated only at a
    restart and always from their initial values, as many members as it finds,
    and four constants, r1 = 0.1, r2 = 0.5, p1 = 2, p2 = 6. Here they mean:

    - A stage starts at the learning rate `highest_rate` (r1).
    - After `patience` (p1) epochs without a better value of `monitor`, and
      again after as many, the rate is multiplied by `decay` (r2).
    - After `restart_patience` (p2) such epochs the stage ends: a snapshot is
      taken, and the next stage starts at r1.
    - At a restart the snapshot's vote is that of eq. 3 of CBNN, and the new
      weights are those of its eq. 6, applied to the initial weights, with
      `deviation_rate` for eta.
    - The model at the end of the run is the last member, if it is better than
      chance.

    Args:
        directory: Where the run is kept, as for `CBNNCallback`.
        num_checkpoints: At most so many members, the final model included.
            Defaults to None: no limit.
        monitor: What has to fall, by its name in `fit`'s logs. Defaults to
            `"val_loss"`, for which `fit` needs `validation_data`.
        highest_rate: r1. Defaults to 0.1.
        decay: r2. Defaults to 0.5.
        patience: p1. Defaults to 2.
        restart_patience: p2. Defaults to 6.
        deviation_rate: eta. Defaults to 0.1: a sample that a snapshot with a
            vote of 7 got wrong then counts twice as much as the others.
        **options: The other arguments of `CBNNCallback` that all methods have:
            `training.run_arguments.RunOptions`.
    """

    METHOD: ClassVar[str] = "ssb-reconstruction"

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        num_checkpoints: int | None = None,
        monitor: str = "val_loss",
        highest_rate: float = 0.1,
        decay: float = 0.5,
        patience: int = 2,
        restart_patience: int = 6,
        deviation_rate: float = 0.1,
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__(directory, num_checkpoints=num_checkpoints, **options)
        name = self._name
        if not isinstance(monitor, str):
            raise ValueError(
                f"{name}(monitor={monitor!r}): a name in `fit`'s logs, such as "
                "'val_loss'."
            )
        self.monitor = monitor
        self.highest_rate = arguments.number(
            name,
            "highest_rate",
            highest_rate,
            above=0,
            allowed="a number above 0",
        )
        self.decay = arguments.number(
            name,
            "decay",
            decay,
            above=0,
            below=1,
            allowed="a factor between 0 and 1",
        )
        self.patience = arguments.integer(name, "patience", patience)
        self.restart_patience = arguments.integer(
            name, "restart_patience", restart_patience
        )
        if self.patience > self.restart_patience:
            raise ValueError(
                f"{name}(patience={patience}, restart_patience="
                f"{restart_patience}): the stage would end before its rate "
                "decays. Make `patience` the smaller one."
            )
        self.deviation_rate = arguments.number(
            name,
            "deviation_rate",
            deviation_rate,
            at_least=0,
            allowed="a number of at least 0",
        )

    @property
    def _is_boosted(self) -> bool:
        return self.deviation_rate > 0

    def _make_plan(self, total_steps: int, steps_per_epoch: int | None) -> Plan:
        stages = _Stages(self)
        settings = {
            "num_checkpoints": self.num_checkpoints,
            "monitor": self.monitor,
            "highest_rate": self.highest_rate,
            "decay": self.decay,
            "patience": self.patience,
            "restart_patience": self.restart_patience,
        }
        return Plan(
            [total_steps],
            BoostingFromFirst(self.deviation_rate),
            settings,
            lambda step: stages.rate,
            stages,
        )


class _Stages(Actions):
    """Where the stage of a run is: its rate, and how long it has waited.

    Attributes:
        rate: The learning rate of the next step.
    """

    def __init__(self, method: SnapshotBoosting) -> None:
        self._method = method
        self.rate = method.highest_rate
        self._best = np.inf
        self._num_waited = 0

    def after_epoch(self, progress: Progress, logs: Mapping[str, Any]) -> None:
        method = self._method
        if method.monitor not in logs:
            raise ValueError(
                f"{type(method).__name__}(monitor={method.monitor!r}): `fit` "
                f"logs only {', '.join(sorted(logs))}. Pass "
                "`validation_data=` to `fit`, or choose one of these."
            )
        value = float(logs[method.monitor])
        if value < self._best:
            self._best, self._num_waited = value, 0
            return
        self._num_waited += 1
        if self._num_waited >= method.restart_patience:
            limit = method.num_checkpoints
            if limit is None or progress.num_rounds + 1 < limit:
                progress.add_checkpoint()
            self._restart()
        elif self._num_waited % method.patience == 0:
            self.rate *= method.decay

    def _restart(self) -> None:
        self.rate, self._best = self._method.highest_rate, np.inf
        self._num_waited = 0

    def state(self) -> MethodState:
        return {"stage": np.array([self.rate, self._best, self._num_waited])}

    def restore(self, state: MethodState) -> None:
        rate, best, num_waited = state["stage"]
        self.rate, self._best = float(rate), float(best)
        self._num_waited = int(num_waited)
