"""What a round makes of scores: the arithmetic, over all processes.

Every process scores a part of the samples; together they come to one record,
and each to the weights of the samples that it keeps.
"""

import dataclasses

import numpy as np

from cbnn_keras import metrics
from cbnn_keras.boosting import Stage
from cbnn_keras.models import engine
from cbnn_keras.patterns import GroupedWeights, PatternBooster
from cbnn_keras.runs.manifest import Round
from cbnn_keras.runs.run import Booster, Run, unpack_bits
from cbnn_keras.training.scoring import Scored
from cbnn_keras.training.task import Task


class SharedBoosting:
    """Boosting on a task, from where its run is.

    Args:
        task: What is trained on what; its weights follow the rounds.
        run: Its rounds are replayed.
    """

    def __init__(self, task: Task, run: Run) -> None:
        self._task = task
        self._run = run
        self._processes = engine.in_use().processes()
        self.replay()

    def replay(self) -> None:
        """Takes the rounds of the run as they are now."""
        self._booster = self._replayed()
        self.reweight()

    def may_continue(self) -> bool:
        """The stop rule: may there be another checkpoint before the last?"""
        return self._booster.may_continue()

    def add(
        self, scored: Scored, step: int, epoch: int, *, is_final: bool
    ) -> tuple[Round, np.ndarray]:
        """Takes a checkpoint in; its samples are weighed anew by `reweight`.

        Returns:
            What the round leaves, and which of all samples are right, as bits:
            nothing else that is as long is kept for the update.
        """
        bits = self._processes.gather_bits(scored.correct)
        # Before the round tells samples apart that were alike so far.
        loss = self._mean_loss(scored)
        class_error = self._class_error(scored, bits)
        stage = self._add(bits, scored, is_final)
        self._agree(step)
        record = Round(
            step=step,
            epoch=epoch,
            negative_log_likelihood=loss,
            class_error=class_error,
            **dataclasses.asdict(stage),
        )
        return record, bits

    def reweight(self) -> None:
        """Gives the samples the weights of the round to come."""
        self._task.weights.assign(self._booster.weights)

    def _replayed(self) -> Booster:
        """Boosting after the rounds of the run, of what this process keeps."""
        own = self._task.weights.own
        if own is None:
            return self._run.replay()
        return self._run.replay(own=own, exchange=self._processes.total)

    def _mean_loss(self, scored: Scored) -> float:
        """The mean of the losses by the first distribution."""
        if isinstance(self._booster, PatternBooster):
            return self._booster.first_mean(
                scored.losses, self._known(scored), self._processes.total
            )
        losses = self._processes.gather(scored.losses).astype(np.float64)
        return float(self._task.weights.first_distribution @ losses)

    def _class_error(self, scored: Scored, bits: np.ndarray) -> float:
        """The error averaged over classes, by the first distribution."""
        if isinstance(self._booster, PatternBooster):
            part = self._known(scored)
            labels = self._task.labels[part]
            return self._booster.first_class_error(
                scored.correct, labels, part, self._processes.total
            )
        weights = self._task.weights
        correct = unpack_bits(bits, weights.num_samples)
        return metrics.class_error(
            correct, self._task.all_labels(), weights.first_distribution
        )

    def _known(self, scored: Scored) -> slice:
        """What was scored, of those samples that this process keeps."""
        is_own = self._task.weights.own is not None
        return slice(None) if is_own else scored.part

    def _add(self, bits: np.ndarray, scored: Scored, is_final: bool) -> Stage:
        """Has the booster add what is right of the samples that it knows."""
        if isinstance(self._booster, PatternBooster):
            is_own = self._task.weights.own is not None
            known = np.packbits(scored.correct) if is_own else bits
            return self._booster.add(known, is_final=is_final)
        correct = unpack_bits(bits, self._task.weights.num_samples)
        return self._booster.add(correct, is_final=is_final)

    def _agree(self, step: int) -> None:
        """Sees to it that all processes have come to the same weights."""
        if self._processes.count == 1:
            return
        weights = self._booster.weights
        if isinstance(weights, GroupedWeights):
            # Which sample is in which group follows from what all were told.
            weights = weights.values
        self._processes.agree(
            weights.tobytes(),
            f"the sample weights after step {step}. Give each of them the "
            "same data in the same order, the same model and versions.",
        )
