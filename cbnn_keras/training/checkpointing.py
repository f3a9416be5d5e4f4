"""A run of checkpoints inside `model.fit`, whatever the method.

`CheckpointCallback` is the seam between Keras and a method: its hooks decide
and pass on. What belongs to one `fit` is in `fit.Fit`, the run that it makes in
`fit.Course`. What a method does is its `plan.Plan`: `callback.CBNNCallback`
and those of `baselines` have one each. What they are all told by a user is in
`run_arguments`.
"""

import abc
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras

from cbnn_keras.data.pipelines import (
    check_part,
    claim_sample_weights,
    own_part,
)
from cbnn_keras.data.sharding import Part
from cbnn_keras.ensemble.ensemble import CheckpointEnsemble
from cbnn_keras.ensemble.loading import voting_members
from cbnn_keras.models import copying, engine, keras_internals
from cbnn_keras.runs.directory import holds_run
from cbnn_keras.runs.manifest import Settings
from cbnn_keras.runs.mirroring import mirror
from cbnn_keras.runs.run import Run
from cbnn_keras.support.aliases import Json, Logs
from cbnn_keras.support.console import Reporter
from cbnn_keras.training import fit_call
from cbnn_keras.training.fit import Course, Fit
from cbnn_keras.training.plan import Plan
from cbnn_keras.training.progress_bar import hide_empty_columns
from cbnn_keras.training.run_arguments import RunArguments
from cbnn_keras.training.start_or_resume import Beginning
from cbnn_keras.training.task import Task, describe_task
from cbnn_keras.training.weight_check import check_weights_are_used


class CheckpointCallback(RunArguments, abc.ABC):
    """What all methods have in common; a method gives its plan."""

    METHOD: ClassVar[str]  # in the manifest, and in front of what is printed
    LOG_PREFIX: ClassVar[str] = "ensemble"  # of its names in `fit`'s logs

    _num_phases = 1  # how many fits make a run
    _phase = 0  # which of them is the next or the present one
    _earlier: Run | None = None  # of the phases before
    _fit: Fit | None = None
    _course: Course | None = None
    _others: Sequence[keras.callbacks.Callback] = ()
    # What decided on the run that is resumed, by name.
    _resumed: Mapping[str, Any] | None = None

    # What a method is.

    @abc.abstractmethod
    def _make_plan(
        self, total_steps: int, steps_per_epoch: int | None
    ) -> Plan: ...

    def _check_task(self, task: Task) -> None:
        """Raises a `ValueError` if the method does not go with the task."""

    def _see_validation_data(self, data: Any) -> None:
        """Takes note of what `fit` is given, where the callback calls it.

        Called with None when that `fit` has ended.
        """

    @property
    def _is_boosted(self) -> bool:
        """Whether sample weights can change."""
        return False

    def _adopt(self, settings: Settings | None) -> None:
        """Takes what the user left open from a run that is resumed, if any."""
        self._resumed = None if settings is None else settings.own

    # What a user calls.

    def fit(
        self, model: keras.Model, x: Any, y: Any = None, **options: Any
    ) -> keras.callbacks.History:
        """`model.fit` with `weighted` in front and this callback in its list.

        Args:
            model: Compiled.
            x: As in `weighted`.
            y: As in `weighted`.
            **options: The arguments of `model.fit`, `class_weight` and
                `validation_split` among them, and those of `weighted`.

        Returns:
            What `model.fit` returns.
        """
        pipeline, left = fit_call.divided(self, options)
        train = self.weighted(x, y, **pipeline)
        given = fit_call.validated(left, train)
        self._see_validation_data(fit_call.held_out(given))
        try:
            return model.fit(train, **given)
        finally:
            self._see_validation_data(None)

    @property
    def history(self) -> list[Json]:
        """One record per round; `epoch` counts from 0, as in Keras.

        `step`, `epoch`, `error`, `vote`, `normaliser`, `bound`,
        `exponential_loss`, `is_member`, `within_budget`, `is_final`; see
        `boosting.Stage`. They are copies: a run does not change with them.
        """
        is_none = self._course is None and self._earlier is None
        return [] if is_none else self.run.records()

    @property
    def run(self) -> Run:
        """Rounds and members so far, wherever they are kept."""
        if self._course is None:
            if self._earlier is not None:
                return self._earlier
            raise ValueError(
                f"{self._name}: nothing was trained yet. Pass the callback to "
                "`model.fit(..., callbacks=[...])` first."
            )
        run = self._course.rounds.run
        run.kept_alive = self._scratch  # an ensemble outlives its callback
        return run

    @property
    def step(self) -> int:
        """How many steps of the run were made."""
        return 0 if self._course is None else self._course.step

    def ensemble(self, members: str = "trusted") -> CheckpointEnsemble:
        """The members so far, as an ensemble around the trained model.

        Those that the method trusts vote, or `"all"`.
        """
        steps = voting_members(self.run, members)
        return CheckpointEnsemble(self.run, self.model, steps)

    # Hooks, in the order in which Keras calls them.

    def on_train_begin(self, logs: Logs | None = None) -> None:
        engine.in_use().check(self.model)
        part = own_part()  # which changes within
        with engine.in_use().alone(self.model):
            self._begin_fit(part)

    def _begin_fit(self, part: Part | None) -> None:
        if self.resume and self._course and self._course.is_finished:
            raise ValueError(
                f"{self._name}: this callback has finished the run in "
                f"{self.directory}. For one run of several fits, as after "
                "layers were unfrozen, say how many there are when it begins "
                "(`CBNNCallback(..., phases=2)`); another run needs a callback "
                "and a directory of its own."
            )
        verbose = self.params.get("verbose", 0)
        reporter = Reporter(verbose if self._processes.is_first else 0)
        found = keras_internals.callbacks_of_fit()
        self._others = [] if found is None else list(found.callbacks)
        hide_empty_columns(self._others, f"{self.LOG_PREFIX}_")
        if not self.resume and not self._phase:
            self._check_directory(self._advice_on_phases)
        self._weights = claim_sample_weights(self)
        check_part(self._weights, part)
        task = describe_task(
            self.model,
            self._weights,
            score_data=self.score_data,
            from_logits=self.from_logits,
            track=reporter.tracker("reading the labels"),
        )
        self._check_task(task)
        check_weights_are_used(self._name, task, is_boosted=self._is_boosted)
        self._warn_of_rebuilding()
        fit = Fit(self._name, task, self.params, reporter, self.validation_data)
        if not self._phase:
            self._warn_of_dropped()
        # Not before here: a `fit` that is refused leaves the last one's result.
        self._begin = self._beginning()
        self._fit, self._course = fit, None
        self._adopt(None)
        if self.resume and self.directory and not self._phase:
            mirror(self.directory, self._processes)
        is_resumed = self.resume or self._phase
        if is_resumed and self.directory and holds_run(self.directory):
            with self._begin.explained(self.directory):
                self._course = self._begin.resume(fit, self.directory)
            if self._course is None:  # it begins anew
                self._adopt(None)
        if self._told_directory:
            fit.watch_for_preemption(self._told_directory)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        if self._fit is None:
            return
        self._fit.restore_initial_epoch()
        with engine.in_use().alone(self.model):
            if self._course is None:
                self._course = self._begin.start(self._fit, epoch)
            elif self._fit.is_in_epoch:
                # State of the epoch before, and not at its end: callbacks after
                # this one still change things there, as the learning rate.
                self._course.save_state()
                self._fit.end_if_preempted(self._course)
        self._fit.begin_epoch(self._course, epoch)

    def on_train_batch_begin(
        self, batch: int, logs: Logs | None = None
    ) -> None:
        if self._fit and self._course:
            self._fit.begin_step(self._course)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        if self._fit and self._course:
            self._fit.end_step(self._course)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if self._fit and self._course:
            with engine.in_use().alone(self.model):
                self._fit.end_epoch(self._course, {} if logs is None else logs)

    def on_train_end(self, logs: Logs | None = None) -> None:
        if self._fit:
            self._fit.end()
        if self._fit and self._course:  # or there was no epoch to train
            with engine.in_use().alone(self.model):
                self._course.finish()
            is_last = self._course.phase.is_last
            self._phase = 0 if is_last else self._phase + 1
            self._earlier = None if is_last else self.run
            self._fit.end_if_preempted(self._course)

    # What the hooks need.

    @property
    def _advice_on_phases(self) -> str:
        """What to do if it is the run that this callback has just made."""
        if self._course is None or self.METHOD != "cbnn":
            return ""
        return (
            " One run of several fits is told how many there are when it "
            f"begins: `CBNNCallback(..., phases={self._num_phases + 1})`."
        )

    def _warn_of_dropped(self) -> None:
        """Says that members in memory are let go of, if there are any."""
        num = len(self.run.members) if self._course else 0
        if num and self.directory is None:
            warnings.warn(
                f"{self._name}: this `fit` starts a new run in memory, and "
                f"the callback lets go of the last one with its {num} members. "
                "To go on with it, say how many fits it has "
                "(`CBNNCallback(phases=2)`); to keep it, save it before "
                "(`ensemble().save(directory)`) or use one callback for each "
                "`fit`.",
                stacklevel=2,
            )

    def _warn_of_rebuilding(self) -> None:
        """Says now, and not after training, what the files will not do."""
        reason = self.directory and copying.why_not_rebuilt(self.model)
        if reason:
            warnings.warn(
                f"{self._name}: the model cannot be built again from the run "
                f"alone. {reason} Or load the run with a model that you build "
                "as here: CheckpointEnsemble.load(directory, model=model).",
                stacklevel=2,
            )

    def _beginning(self) -> Beginning:
        return Beginning(
            owner=self._name,
            method=self.METHOD,
            log_prefix=self.LOG_PREFIX,
            directory=self.directory,
            total_steps=self.total_steps,
            phase=self._phase,
            num_phases=self._num_phases,
            run=self._earlier,
            replaces=self.overwrite,
            # With `resume`, it is this very run.
            replaces_begun=self.resume,
            make_plan=self._make_plan,
            adopt=self._adopt,
        )
