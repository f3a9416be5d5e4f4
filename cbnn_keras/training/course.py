"""A run that is being made: where it is, and what is still to come."""

import sys
from collections.abc import Mapping
from typing import Any

from cbnn_keras.support.console import Reporter
from cbnn_keras.training.plan import Plan
from cbnn_keras.training.rounds import Rounds
from cbnn_keras.training.task import Task, bare_optimizer


class Course:
    """The plan of a run, its rounds so far, and the steps to come.

    Args:
        plan: What the method is going to do.
        task: What is trained on what.
        rounds: The rounds of the run, from where it is.
        reporter: What people are told by.
        step: How many steps were made.
        is_done: Whether the final model is there already.

    Attributes:
        step: How many steps of the run were made.
        epoch: The epoch that training is in, from 0.
        pending: The steps with a checkpoint that are still to come.
    """

    def __init__(
        self,
        plan: Plan,
        task: Task,
        rounds: Rounds,
        reporter: Reporter,
        *,
        step: int = 0,
        is_done: bool = False,
    ) -> None:
        self.plan = plan
        self.task = task
        self.rounds = rounds
        self.reporter = reporter
        self.step = step
        self.epoch = 0
        self.is_done = is_done
        self.pending = [s for s in plan.steps if s > step]

    @property
    def next_update(self) -> int:
        """The step after which sample weights may change again."""
        return self.pending[0] if self.pending else sys.maxsize

    @property
    def num_rounds(self) -> int:
        """How many rounds there were."""
        return len(self.rounds.run.rounds)

    def set_learning_rate(self) -> None:
        """Sets the rate of the step to come, if the method has one for it."""
        if self.plan.learning_rate is None:
            return
        rate = self.plan.learning_rate(self.step + 1)
        if rate is not None:
            bare_optimizer(self.task.model).learning_rate = rate

    def advance(self, step: int) -> bool:
        """Goes on to a step, and takes a checkpoint if it is time for one.

        Returns:
            Whether it was.
        """
        self.step = step
        self.plan.actions.after_step(self)
        if step < self.next_update:
            return False
        self.pending = [s for s in self.pending if s > step]
        if not self.pending:
            self.end()
        elif self.rounds.may_continue():
            self.add_checkpoint()
        return True

    def add_checkpoint(self) -> None:
        """Takes a checkpoint now, whatever the plan says."""
        self.rounds.add(self.step, self.epoch, is_final=False)

    def end_epoch(self, logs: Mapping[str, Any]) -> None:
        """Lets the method act on what `fit` has logged."""
        if not self.is_done:
            self.plan.actions.after_epoch(self, logs)

    def save_state(self, epoch: int) -> None:
        """Keeps what training would be resumed from after that epoch."""
        self.rounds.save_state(self.step, epoch, self.plan.actions.state())

    def end(self) -> None:
        """Takes the model as it is now for the final one."""
        if self.is_done:
            return
        self.is_done = True
        self.pending = []
        self.plan.actions.before_final(self)
        if self.rounds.last_step == self.step and self.rounds.run.members:
            self.rounds.make_last_final()  # taken at this very step
        else:
            self.rounds.add(self.step, self.epoch, is_final=True)

    def finish(self) -> None:
        """Ends the run, complete."""
        self.end()
        self.rounds.run.finish()
