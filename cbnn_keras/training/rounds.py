"""Round after round: score, vote, reweight, keep, tell.

`Rounds` does a round of boosting on a task whenever it is told to. When that
is, is up to `fit.Course`.
"""

import dataclasses
import warnings

import numpy as np

from cbnn_keras import boosting
from cbnn_keras.ensemble.ensemble import CheckpointEnsemble
from cbnn_keras.models import engine, replicas
from cbnn_keras.models import state as training_state
from cbnn_keras.runs.manifest import Round
from cbnn_keras.runs.run import MethodState, Run
from cbnn_keras.support.console import Reporter
from cbnn_keras.training.averaging import MemberWeights
from cbnn_keras.training.running_accuracy import RunningAccuracy
from cbnn_keras.training.scoring import Scored, Scorer
from cbnn_keras.training.shared_boosting import SharedBoosting
from cbnn_keras.training.task import Task, is_loss_scaled

# Batches of training that are scored as one: a step of a small model takes as
# long for four times the samples, and inference keeps nothing for gradients,
# so that it takes no more memory than training.
_NUM_BATCHES_AT_ONCE = 4


class Rounds:
    """The rounds of one run, from where the run is.

    Args:
        task: What is trained on what.
        run: Where rounds are kept; those that are there are replayed.
        accuracy: Grows with the members, or None.
        reporter: What people are told by.
        log_prefix: What names in `fit`'s logs begin with.
        member_weights: What of the model becomes a member.
        num_kept: How many members are kept, the latest ones, or None for all.
        has_validation_losses: Whether rounds keep the loss on held-out data.

    Attributes:
        title: What is printed begins with it.
    """

    def __init__(
        self,
        task: Task,
        run: Run,
        accuracy: RunningAccuracy | None,
        reporter: Reporter,
        log_prefix: str,
        member_weights: MemberWeights,
        num_kept: int | None = None,
        *,
        has_validation_losses: bool = False,
    ) -> None:
        self.run = run
        self._has_validation_losses = has_validation_losses
        self._num_kept = num_kept
        self.member_weights = member_weights
        self._task = task
        self._accuracy = accuracy
        self._reporter = reporter
        self._log_prefix = log_prefix
        self._scorer = Scorer(task.model, task.classifier)
        self._said: set[str] = set()
        self._has_bound = run.has_bound
        self.title = run.header.method.upper()
        self._boosting = SharedBoosting(task, run)
        if accuracy is not None and run.members:
            self._replay_accuracy(accuracy)

    def _replay_accuracy(self, accuracy: RunningAccuracy) -> None:
        """Lets the members of a run that is resumed predict once more."""
        ensemble = CheckpointEnsemble(
            self.run, self._task.model, list(self.run.members)
        )
        for record in ensemble.rounds:
            with ensemble.member(record.step) as model:
                accuracy.add_member(accuracy.predict(model), record)

    @property
    def last_step(self) -> int:
        return self.run.rounds[-1].step if self.run.rounds else 0

    def add(self, step: int, epoch: int, *, is_final: bool) -> bool:
        """Makes the model as it is now a checkpoint.

        Unless the paper's stop rule says that there is to be none before the
        final one; that is said once.

        Returns:
            Whether there was a round.
        """
        if not is_final and not self._boosting.may_continue():
            self._say_once(
                "the votes and the one expected of the final model have "
                "reached 1/deviation_rate: no more checkpoints before the "
                "final model (the paper's stop rule)."
            )
            return False
        model = self._task.model
        engine.in_use().sync(model)
        replicas.average_statistics(model)
        # Outputs alone do not tell: a ReLU can turn NaN into 0.
        if training_state.has_nan(model):
            raise _diverged("weights", step, epoch, self._advice())
        with self.member_weights.in_model():
            record, bits = self._boosting.add(
                self._scored(step, epoch), step, epoch, is_final=is_final
            )
            member = model if record.is_member else None
            if self._accuracy is None:
                self.run.add_round(record, bits, member)
            else:
                held_out = self._accuracy.predict(model)
                if self._has_validation_losses:
                    loss = _as_first(self._accuracy.loss(held_out))
                    record = dataclasses.replace(record, validation_loss=loss)
                self.run.add_round(record, bits, member)
                if record.is_member:
                    self._accuracy.add_member(held_out, record)
        self._boosting.reweight()
        self._tell(record)
        return True

    def make_last_final(self) -> None:
        """The last checkpoint is the final model: its update is undone."""
        self.run.make_last_round_final()
        self._boosting.replay()

    @property
    def num_members(self) -> int:
        """How many members there are, but for those that are to go."""
        num = len(self.run.members)
        return num if self._num_kept is None else min(num, self._num_kept)

    def finish(self) -> None:
        """Ends the run, complete."""
        self._drop_members()
        self.run.finish()

    def end_phase(self, step: int, epoch: int) -> None:
        """Keeps what the next `fit` of the run goes on from."""
        self.run.end_phase(step, epoch + 1)
        self.save_state(step, epoch, {})
        num = len(self.run.phases)
        self._reporter.line(
            f"{self.title}: phase {num} is over, and the next `fit` with this "
            "callback goes on with the run"
        )

    def _drop_members(self) -> None:
        if self._num_kept is not None:
            self.run.keep_latest(self._num_kept)

    def save_state(
        self, step: int, epoch: int, method_state: MethodState
    ) -> None:
        """Keeps what training would be resumed from after that epoch."""
        self._drop_members()
        try:
            self.run.save_state(self._task.model, step, epoch + 1, method_state)
        except FloatingPointError:
            raise _diverged("weights", step, epoch, self._advice()) from None

    def logs(self, step: int) -> dict[str, float]:
        """What `fit` is to know at the end of an epoch, after that step."""
        last = self.run.rounds[-1] if self.run.rounds else None
        values = {
            "error": last.error if last else float("nan"),
            "vote": last.vote if last else float("nan"),
            "members": self.num_members,
            "bound": last.bound if last else float("nan"),
        }
        logs = {f"{self._log_prefix}_{k}": v for k, v in values.items()}
        if self._accuracy is not None:
            logs["val_ensemble_accuracy"] = self._accuracy_at(
                self._accuracy, step
            )
        return logs

    def _scored(self, step: int, epoch: int) -> Scored:
        in_training = -(-self._task.batch_size // self._scorer.num_replicas)
        try:
            with training_state.generators_kept(self._task.model):
                return self._scorer.score_all(
                    self._task.samples,
                    self._task.labels,
                    _NUM_BATCHES_AT_ONCE * in_training,
                    self._reporter.tracker(f"scoring step {step}"),
                )
        except FloatingPointError:
            raise _diverged("outputs", step, epoch, self._advice()) from None

    def _advice(self) -> str:
        """What else to look at on several devices."""
        if self._scorer.num_replicas == 1:
            return ""
        if self._task.weights.samples is None:
            return (
                " BatchNorm also gives NaN if the last batch leaves a device "
                "without samples: add `drop_remainder=True` to `.batch(...)`."
            )
        if is_loss_scaled(self._task.model):
            return (
                " With mixed_float16 on several devices Keras looks for "
                "overflow on the first of them only: use mixed_bfloat16, or a "
                "LossScaleOptimizer with a smaller `initial_scale`."
            )
        return ""

    def _accuracy_at(self, accuracy: RunningAccuracy, step: int) -> float:
        members, voters = self.run.members, self.run.voters
        if members and members[-1] == step:
            return accuracy.accuracy(voters)
        return accuracy.accuracy_with(voters, self._task.model)

    def _tell(self, record: Round) -> None:
        error = f"weighted error {record.error:.4f}"
        if record.is_member:
            num = self.num_members
            text = (
                f"{error}, vote {record.vote:.3f}, "
                f"{num} member{'s' if num > 1 else ''}"
            )
            if self._has_bound and record.bound < 1:
                text += f", bound {record.bound:.4f}"
        else:
            text = f"{error} is no better than chance: not a member"
        self._reporter.line(
            f"{self.title}: step {record.step}, epoch "
            f"{record.epoch + 1}: {text}",
            during_epoch=True,
        )
        if not boosting.is_better_than_chance(
            record.error, self._task.classifier.num_classes
        ):
            self._warn_of_chance(record)
        if self._has_bound and not record.within_budget:
            self._say_once(
                "the votes now sum to more than 1/deviation_rate, so the bound "
                "on the exponential loss no longer holds (theorem 1). This is "
                "recorded; predictions are fine."
            )

    def _warn_of_chance(self, record: Round) -> None:
        if "chance" in self._said:
            return
        self._said.add("chance")
        if record.is_member and len(self.run.members) == 1 and record.is_final:
            outcome = (
                "No checkpoint was, so the ensemble is the final model alone."
            )
        elif record.is_member:
            outcome = "It is a member all the same."
        else:
            outcome = "It is not a member, and no weight was changed."
        warnings.warn(
            f"At step {record.step} the model was no better "
            f"than chance on the training set (error {record.error:.4f} "
            f"with {self._task.classifier.num_classes} classes). {outcome} "
            "Train for longer, or check labels and learning rate.",
            stacklevel=2,
        )

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._reporter.line(f"{self.title}: {text}", during_epoch=True)


def _as_first(number: float) -> float:
    """What the first process has found: the others may round otherwise."""
    said = engine.in_use().processes().broadcast(np.float64(number).tobytes())
    return float(np.frombuffer(said)[0])


def _diverged(what: str, step: int, epoch: int, advice: str) -> ValueError:
    return ValueError(
        f"The model's {what} are not finite (NaN or infinite) at "
        f"step {step}, epoch {epoch + 1}. Training has diverged; lower the "
        "learning rate or clip the gradients, and look for NaN in the data."
        f"{advice} The members saved so far are intact."
    )
