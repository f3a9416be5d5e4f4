"""One `fit`, and the run that it makes: where it is, what is still to come."""

import pathlib
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from cbnn_keras.models import engine, keras_internals, replicas
from cbnn_keras.models.classifier import averages_loss
from cbnn_keras.runs.advice import restart_advice
from cbnn_keras.runs.manifest import Round
from cbnn_keras.runs.run import MethodState
from cbnn_keras.support.aliases import Logs
from cbnn_keras.support.console import Reporter
from cbnn_keras.training.guards import GateKeeper, LookupGuard
from cbnn_keras.training.plan import Phase, Plan, set_rate
from cbnn_keras.training.preemption import Preemption
from cbnn_keras.training.rounds import Rounds
from cbnn_keras.training.running_accuracy import RunningAccuracy
from cbnn_keras.training.task import Task

_AVERAGE = "average/"  # in front of the names of arrays of members' weights


class Course:
    """The plan of a run, its rounds so far, and the steps to come.

    Args:
        plan: What the method is going to do.
        task: What is trained on what.
        rounds: The rounds of the run, from where it is.
        reporter: What people are told by.
        phase: Which `fit` of its run this is.
        step: How many steps of the run were made; those before the phase if
            None.
        num_kept: After how many epochs the state was saved that they led to.
        is_done: Whether the final model is there already.

    Attributes:
        step: How many steps of the run were made.
        epoch: The epoch that training is in, from 0.
        pending: The steps with a checkpoint that are still to come.
        is_finished: Whether all of it is over, and the run complete.
        next_update: The step after which sample weights may change again.
    """

    def __init__(
        self,
        plan: Plan,
        task: Task,
        rounds: Rounds,
        reporter: Reporter,
        *,
        phase: Phase,
        step: int | None = None,
        num_kept: int = 0,
        is_done: bool = False,
    ) -> None:
        self.plan = plan
        self.task = task
        self.rounds = rounds
        self.reporter = reporter
        self.phase = phase
        self.step = phase.first_step if step is None else step
        self.epoch = 0
        self.is_done = is_done
        self._num_kept = num_kept
        self._begun_anew_at: int | None = None
        self.is_finished = False
        self._steps = [phase.first_step + s for s in plan.steps]
        self.pending = [s for s in self._steps if s > self.step]
        self.next_update = self.pending[0] if self.pending else sys.maxsize

    @property
    def num_rounds(self) -> int:
        """How many rounds there were."""
        return len(self.rounds.run.rounds)

    @property
    def last_round(self) -> Round:
        """What the latest round left."""
        return self.rounds.run.rounds[-1]

    @property
    def kept(self) -> str:
        """What would be left if the process ended now, as a predicate."""
        if self.is_finished:
            return "is complete"
        if not self._num_kept:
            return "has kept no epoch yet"
        return f"is kept as it was after epoch {self._num_kept}"

    def set_learning_rate(self) -> None:
        """Sets the rate of the step to come, if the method has one for it."""
        if self.plan.learning_rate is None:
            return
        rate = self.plan.learning_rate(self.step + 1 - self.phase.first_step)
        if rate is not None:
            engine.in_use().sync(self.task.model)
            set_rate(self.task.model, rate, self.plan.compiled_rate)

    def advance(self, step: int) -> bool:
        """Goes on to a step, and takes a checkpoint if it is time for one.

        Returns:
            Whether it was.
        """
        self.step = step
        if self.plan.actions is not None:
            engine.in_use().sync(self.task.model)
            self.plan.actions.after_step(self)
        self.rounds.member_weights.after_step(step)
        if step < self.next_update:
            return False
        self.pending = [s for s in self.pending if s > step]
        self.next_update = self.pending[0] if self.pending else sys.maxsize
        with engine.in_use().alone(self.task.model):
            self._take_checkpoint()
        return True

    def _take_checkpoint(self) -> None:
        if not self.pending:
            self.end()
            return
        actions = self.plan.actions
        if actions is not None and not actions.due([self.step]):
            return
        self.rounds.add(self.step, self.epoch, is_final=False)
        # Also where the stop rule left it out: the rate goes on in cycles.
        if actions is not None:
            actions.after_checkpoint(self)

    def add_checkpoint(self) -> None:
        """Takes a checkpoint now, whatever the plan says."""
        self.rounds.add(self.step, self.epoch, is_final=False)

    def begin_anew(self, share: float = 1.0) -> None:
        """Forgets the weights so far: the model got others."""
        self._begun_anew_at = self.step
        horizon = max(round(share * (self.plan.horizon or 1)), 1)
        self.rounds.member_weights.begin_anew(horizon)

    def end_epoch(self, logs: Mapping[str, Any]) -> None:
        """Lets the method act on what `fit` has logged."""
        if self.plan.actions is not None and not self.is_done:
            self.plan.actions.after_epoch(self, logs)

    def save_state(self) -> None:
        """Keeps what training would be resumed from after this epoch."""
        actions, average = self.plan.actions, self.rounds.member_weights.state()
        state = {} if actions is None else actions.state()
        state |= {_AVERAGE + name: array for name, array in average.items()}
        self.rounds.save_state(self.step, self.epoch, state)
        self._num_kept = self.epoch + 1

    def restore(self, state: MethodState) -> None:
        """Gives the method and the members' weights back what they kept."""
        average = {
            name.removeprefix(_AVERAGE): array
            for name, array in state.items()
            if name.startswith(_AVERAGE)
        }
        if average:
            self.rounds.member_weights.restore(average)
        if self.plan.actions is not None:
            own = {k: a for k, a in state.items() if not k.startswith(_AVERAGE)}
            self.plan.actions.restore(own)

    def end(self) -> None:
        """Takes the model as it is now for the final one of this `fit`."""
        if self.is_done:
            return
        self.is_done = True
        self.pending, self.next_update = [], sys.maxsize
        if self.plan.actions is not None:
            self.plan.actions.before_final(self)
        is_final = self.phase.is_last
        if self.rounds.last_step != self.step or not self.rounds.run.members:
            self.rounds.add(self.step, self.epoch, is_final=is_final)
        elif is_final:
            self.rounds.make_last_final()  # taken at this very step
            if self._begun_anew_at == self.step:
                self._take_back()

    def _take_back(self) -> None:
        """Gives a model that has just begun anew its last member again."""
        run = self.rounds.run
        run.load_member(run.members[-1], self.task.model)
        self.reporter.line(
            f"{self.rounds.title}: training ended where the model had started "
            f"anew: it holds its last member again, of step {run.members[-1]}"
        )

    def finish(self) -> None:
        """Ends this `fit`, and the run with the last one."""
        if self.phase.is_over:
            return
        self.end()
        if self.plan.compiled_rate is not None:
            # As the user compiled it, for another `fit`.
            set_rate(self.task.model, self.plan.compiled_rate)
        if not self.phase.is_last:
            self.rounds.end_phase(self.step, self.epoch)
            self._num_kept = self.epoch + 1
            return
        self.rounds.finish()
        self.is_finished = True
        advice = restart_advice(self.rounds.run)
        if advice is not None:
            self.reporter.line(f"{self.rounds.title}: {advice}")
        self._warn_of_one()

    def _warn_of_one(self) -> None:
        """Says that there is no ensemble because training ended early."""
        run, steps, actions = self.rounds.run, self._steps, self.plan.actions
        if actions is not None:
            steps = actions.due(steps)
        is_growing = self.plan.num_kept is not None
        last = steps[0] if is_growing else steps[0] - 1
        if len(steps) == 1 or len(run.rounds) > 1 or self.step > last:
            return
        advice = "Tell `fit` fewer epochs, or take more checkpoints."
        if is_growing:
            advice = "Train for longer, as with more `patience`."
        elif run.has_bound and actions is not None:  # restarts
            advice = "Train for longer, or tell `fit` fewer epochs."
        elif run.has_bound:
            advice = (
                "Checkpoints that come in time: `CBNNCallback(stops_early="
                'True)`, or `interval="1ep"` for one every epoch.'
            )
        warnings.warn(
            f"Training ended after step {self.step} of {steps[-1]}, and "
            f"the first checkpoint was to be at step {steps[0]}: the "
            f"ensemble is the final model alone. {advice}",
            stacklevel=2,
        )


class Fit:
    """All that belongs to one `fit`.

    Args:
        owner: The class of the callback, for messages.
        task: What is trained on what.
        params: What Keras tells callbacks: `steps`, `epochs`, `verbose`.
        reporter: What people are told by.
        validation_data: To log the accuracy of the ensemble so far, or None.

    Attributes:
        accuracy: Grows with the members, or None.
    """

    def __init__(
        self,
        owner: str,
        task: Task,
        params: Logs,
        reporter: Reporter,
        validation_data: Any,
    ) -> None:
        self._owner = owner
        self.task = task
        self.params = params
        self.reporter = reporter
        self.accuracy = (
            None
            if validation_data is None
            else RunningAccuracy(
                validation_data,
                task.classifier,
                task.batch_size,
                task.weights.class_names,
            )
        )
        self._initial_epoch = keras_internals.initial_epoch(task.model)
        weights = task.weights
        is_distributed = replicas.is_distributed(task.model)
        _divide_batches(owner, task, is_distributed)
        self._lookups = LookupGuard(
            weights, allows_early=is_distributed or weights.samples is None
        )
        # Where passes and epochs are not the same, nothing can be held.
        is_gated = (
            is_distributed
            and weights.num_batches is not None
            and weights.num_batches == params["steps"]
        )
        self._gate = GateKeeper(weights) if is_gated else None
        self._preemption: Preemption | None = None
        self._step_before_epoch = 0  # of the run
        self._num_steps = 0  # of this fit
        self._num_steps_before_epoch = 0
        self._num_executions = 0

    @property
    def is_in_epoch(self) -> bool:
        """Whether steps were made since the last epoch began."""
        return self._num_executions > 0

    def watch_for_preemption(self, directory: pathlib.Path) -> None:
        """Lets SIGTERM end this `fit` at the end of a step."""
        self._preemption = Preemption(
            self.task.model,
            self._owner,
            directory,
            is_alone=engine.in_use().processes().count == 1,
        )
        self._preemption.begin()

    def end_if_preempted(self, course: Course) -> None:
        """Ends the process if SIGTERM was sent to it."""
        if self._preemption is not None:
            self._preemption.check(course.kept)

    def begin_epoch(self, course: Course, epoch: int) -> None:
        course.epoch = epoch + course.phase.epoch_shift
        self._step_before_epoch = course.step
        self._num_steps_before_epoch = self._num_steps
        self._num_executions = 0
        self._lookups.epoch_begins()
        self.task.weights.set_epoch(course.epoch)

    def begin_step(self, course: Course) -> None:
        if self._gate is not None:
            self._gate.step_begins(
                course.next_update - self._step_before_epoch,
                is_first=not self._num_executions,
            )
        course.set_learning_rate()
        if not self._num_steps and not self._num_executions:
            engine.in_use().begin_training(self.task.model)

    def end_step(self, course: Course) -> None:
        if course.is_done:
            raise ValueError(
                f"{self._owner}(total_steps={course.plan.steps[-1]}): "
                "`fit` goes on after so many steps, so the final model would "
                "not be in the ensemble. Give the number of steps of all "
                "epochs together."
            )
        # Counted here: with `steps_per_execution` Keras calls once for several
        # batches, and its versions differ in which of them they name.
        self._num_executions += 1
        num_batches = self._num_executions * self.task.model.steps_per_execution
        if self.params.get("steps"):
            num_batches = min(num_batches, self.params["steps"])
        self._num_steps = self._num_steps_before_epoch + num_batches
        self._lookups.check(self._num_steps, num_batches)
        if self._gate is not None:
            self._gate.step_ends()
        is_update = course.advance(self._step_before_epoch + num_batches)
        if is_update and self._gate is not None:
            self._gate.hold_after(course.next_update - self._step_before_epoch)
        self.end_if_preempted(course)

    def end_epoch(self, course: Course, logs: Logs) -> None:
        if self._gate is not None:
            self._gate.epoch_ends()
        self._lookups.check(self._num_steps)
        replicas.average_statistics(self.task.model)
        if self.task.model.stop_training:
            course.end()
        course.end_epoch(logs)
        logs.update(course.rounds.logs(course.step))

    def end(self) -> None:
        """Leaves model and pipeline as they were before `fit`."""
        if self._preemption is not None:
            self._preemption.end()
        self.restore_initial_epoch()
        self.task.weights.set_replicas(0, is_averaged=True)

    def restore_initial_epoch(self) -> None:
        """Undoes what resuming told Keras, once Keras knows it."""
        keras_internals.set_initial_epoch(self.task.model, self._initial_epoch)


def _divide_batches(owner: str, task: Task, is_distributed: bool) -> None:
    """Tells the pipeline what a strategy will do to its batches."""
    num = replicas.num_replicas(task.model) if is_distributed else 0
    if num > 1 and not task.weights.can_be_divided:
        raise ValueError(
            f"{owner}: sparse inputs cannot be divided among {num} "
            "devices. Make them dense: "
            "`dataset.map(lambda x, y: (tf.sparse.to_dense(x), y))`."
        )
    task.weights.set_replicas(num, is_averaged=averages_loss(task.model))
