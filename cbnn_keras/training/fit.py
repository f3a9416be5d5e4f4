"""One `fit`: what Keras' hooks come to, between its beginning and its end."""

from typing import Any

import keras

from cbnn_keras.models import replicas
from cbnn_keras.models.classifier import averages_loss
from cbnn_keras.support.console import Reporter
from cbnn_keras.training.course import Course
from cbnn_keras.training.guards import GateKeeper, LookupGuard
from cbnn_keras.training.running_accuracy import RunningAccuracy
from cbnn_keras.training.task import Task


class Fit:
    """All that belongs to one `fit`.

    Args:
        owner: The class of the callback, for messages.
        task: What is trained on what.
        params: What Keras tells callbacks: `steps`, `epochs`, `verbose`.
        reporter: What people are told by.
        validation_data: To log the accuracy of the ensemble so far, or None.

    Attributes:
        course: The run that is made, once it has begun.
        accuracy: Grows with the members, or None.
    """

    def __init__(
        self,
        owner: str,
        task: Task,
        params: dict[str, Any],
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
                validation_data, task.classifier, task.batch_size
            )
        )
        self.initial_epoch: int = task.model._initial_epoch
        self.course: Course | None = None
        weights = task.weights
        is_distributed = replicas.is_distributed(task.model)
        _divide_batches(owner, task, is_distributed)
        self._lookups = LookupGuard(
            weights, allows_early=is_distributed or weights.samples is None
        )
        self._gate = GateKeeper(
            weights,
            is_needed=is_distributed
            and weights.num_batches is not None
            and weights.num_batches == params["steps"],
        )
        self._step_before_fit = 0
        self._step_before_epoch = 0
        self._num_executions = 0

    @property
    def model(self) -> keras.Model:
        return self.task.model

    @property
    def is_in_epoch(self) -> bool:
        """Whether steps were made since the last epoch began."""
        return self._num_executions > 0

    @property
    def running(self) -> Course:
        """The run that is made; an error before it has begun."""
        if self.course is None:
            raise ValueError(f"{self._owner}: no epoch has begun.")
        return self.course

    def follow(self, course: Course) -> None:
        """Makes this run, from where it is."""
        self.course = course
        self._step_before_fit = course.step

    def begin_epoch(self, epoch: int) -> None:
        course = self.running
        course.epoch = epoch
        self._step_before_epoch = course.step
        self._num_executions = 0
        self._lookups.epoch_begins()
        self.task.weights.set_epoch(epoch)

    def begin_step(self) -> None:
        if not self._num_executions:
            self._gate.epoch_begins(self._num_batches_to_update())
        self._gate.step_begins()
        self.running.set_learning_rate()

    def end_step(self) -> None:
        if self.running.is_done:
            raise ValueError(
                f"{self._owner}(total_steps={self.running.plan.steps[-1]}): "
                "`fit` goes on after so many steps, so the final model would "
                "not be in the ensemble. Give the number of steps of all "
                "epochs together."
            )
        # Counted here: with `steps_per_execution` Keras calls once for several
        # batches, and its versions differ in which of them they name.
        self._num_executions += 1
        num_batches = self._num_executions * self.model.steps_per_execution
        if self.params.get("steps"):
            num_batches = min(num_batches, self.params["steps"])
        step = self._step_before_epoch + num_batches
        self._lookups.step_ends(step - self._step_before_fit, num_batches)
        self._gate.step_ends()
        if self.running.advance(step):
            self._gate.hold_after(self._num_batches_to_update())

    def end_epoch(self, logs: dict[str, Any]) -> None:
        course = self.running
        self._gate.epoch_ends()
        self._lookups.check(course.step - self._step_before_fit)
        replicas.average_statistics(self.model)
        if self.model.stop_training:
            course.end()
        course.end_epoch(logs)
        logs.update(course.rounds.logs(course.step))

    def end(self) -> None:
        """Leaves model and pipeline as they were before `fit`."""
        self.restore_initial_epoch()
        self.task.weights.set_replicas(0, is_averaged=True)
        if self.course is not None:  # or there was no epoch to train
            self.course.finish()

    def restore_initial_epoch(self) -> None:
        """Undoes what resuming told Keras, once Keras knows it."""
        self.model._initial_epoch = self.initial_epoch

    def _num_batches_to_update(self) -> int:
        """The batches of this epoch, from its start up to the next update."""
        return self.running.next_update - self._step_before_epoch


def _divide_batches(owner: str, task: Task, is_distributed: bool) -> None:
    """Tells the pipeline what a strategy will do to its batches."""
    strategy = task.model.distribute_strategy
    num = strategy.num_replicas_in_sync if is_distributed else 0
    if num > 1 and not task.weights.can_be_divided:
        raise ValueError(
            f"{owner}: sparse inputs cannot be divided among {num} "
            "devices. Make them dense: "
            "`dataset.map(lambda x, y: (tf.sparse.to_dense(x), y))`."
        )
    task.weights.set_replicas(num, is_averaged=averages_loss(task.model))
