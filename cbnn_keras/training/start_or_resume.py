"""The beginning of a run: in a new directory, in memory, or resumed."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cbnn_keras.boosting import Policy
from cbnn_keras.models import copying, engine, keras_internals
from cbnn_keras.runs.claims import are_class_names
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.manifest import Header, Settings
from cbnn_keras.runs.run import MemoryRun, Run, labels_id
from cbnn_keras.support.faults import RunError, faults_named
from cbnn_keras.training.averaging import AveragedWeights, MemberWeights
from cbnn_keras.training.fit import Course, Fit
from cbnn_keras.training.plan import Phase, Plan, check_learning_rate
from cbnn_keras.training.rounds import Rounds
from cbnn_keras.training.task import bare_optimizer
from cbnn_keras.version import __version__

# What all fits of a run have in common, and what is said if they have not.
_OF_ALL_PHASES = {
    "architecture": "the model has another architecture",
    "labels": "the labels, their order or the sample weights to start from are "
    "others",
    "from_logits": "the loss reads the outputs of the model otherwise "
    "(from_logits)",
}


@dataclasses.dataclass(frozen=True)
class Beginning:
    """Begins runs as a callback was told to.

    Attributes:
        owner: The class of the callback, for messages.
        method: The method's short name, for the manifest and what is printed.
        log_prefix: What its names in `fit`'s logs begin with.
        directory: Where the run is kept, or None for in memory.
        total_steps: T, where `fit` cannot know its steps.
        phase: Which `fit` of the run it is, from 0.
        num_phases: How many there are going to be.
        run: That of the phases before, if there were.
        replaces: Whether a run that is in the directory is replaced.
        replaces_begun: Whether one that was killed in its first epoch is.
        make_plan: The method's plan, from T and the steps of an epoch.
        adopt: Lets the method take from the settings of a run that is resumed
            what the user left open.
    """

    owner: str
    method: str
    log_prefix: str
    directory: pathlib.Path | None
    total_steps: int | None
    phase: int
    num_phases: int
    run: Run | None
    replaces: bool
    replaces_begun: bool
    make_plan: Callable[[int, int | None], Plan]
    adopt: Callable[[Settings], None]

    @property
    def _title(self) -> str:
        return self.method.upper()

    def start(self, fit: Fit, first_epoch: int) -> Course:
        """Starts a run, or another phase of one, with this epoch."""
        run = self.run
        if run is None:
            plan, header = self._describe(fit, first_epoch)
            _agree(fit, header)
            run = self._created(fit, header)
        else:
            policy = run.header.settings.policy
            plan, header = self._describe(fit, first_epoch, policy)
            self._check_same_task(run.header, header)
            run.begin_phase(header.settings)
        course = self._course(fit, plan, run)
        if plan.actions is not None:
            plan.actions.begin(course)
        pending = course.pending
        if plan.actions is not None:
            pending = plan.actions.due(pending)
        steps = ", ".join(map(str, _shortened(pending)))
        if plan.num_kept is not None:
            steps += f", of which the latest {plan.num_kept} are kept"
        place = f"run in {self.directory}" if self.directory else "in memory"
        fit.reporter.line(
            f"{self._title}: checkpoints after steps {steps}; {place}"
        )
        seed = fit.task.weights.file_seed
        if self.directory is not None and seed is not None:
            fit.reporter.line(
                f"{self._title}: Keras has shuffled the files by a seed; to "
                f"resume this run, give `seed={seed}` to the function of Keras "
                "that reads the directory"
            )
        return course

    def resume(self, fit: Fit, directory: pathlib.Path) -> Course | None:
        """Resumes the run in a directory.

        Keras is told where to start; see `Fit.restore_initial_epoch`.

        Returns:
            None for a run, or a phase of one, that was killed in its first
            epoch: it is started again, when that begins.

        Raises:
            ValueError: If it is another run, or damaged, or in use.
        """
        found = RunDirectory.open(directory)
        if not found.has_begun(self.phase):
            return None
        settings = found.settings_of(self.phase)
        _check_backend(directory, settings)
        self.adopt(settings)
        if not fit.task.weights.has_own_seed and settings.seed is not None:
            fit.task.weights.set_seed(settings.seed)
        plan, header = self._describe(
            fit,
            settings.first_epoch or 0,
            settings.policy if self.phase else None,
        )
        header = _known_as(found.header, header, fit)
        run = RunDirectory.claim(directory, header, self.phase)
        if not run.is_finished and run.state is None:
            return None
        run.verify()
        if self.phase < len(run.phases):
            return self._pass_over(fit, plan, run)
        if run.is_finished:
            return self._reopen(fit, plan, run)
        if self.phase and run.state and run.state.step == run.first_step:
            return None
        state, method_state = run.rewind(fit.task.model)
        course = self._course(
            fit, plan, run, step=state.step, num_kept=state.epoch
        )
        keras_internals.set_initial_epoch(
            fit.task.model, state.epoch - course.phase.epoch_shift
        )
        fit.reporter.line(
            f"{self._title}: resuming {directory} after epoch "
            f"{state.epoch}, step {state.step}; members so far: "
            f"{len(run.members)}."
        )
        with faults_named(f"The state of step {state.step} in {directory}"):
            course.restore(method_state)
        return course

    @contextlib.contextmanager
    def explained(self, directory: pathlib.Path) -> Iterator[None]:
        """Says with errors that the first `fit` of a script comes first."""
        try:
            yield
        except RunError as error:
            if self.phase or not RunDirectory.open(directory).phases:
                raise
            raise RunError(
                f"{error} The run has several fits, and this is the first one "
                "of this callback: call all of them again, in their order and "
                "with one callback; those that are over take no time."
            ) from error

    def _reopen(self, fit: Fit, plan: Plan, run: RunDirectory) -> Course:
        run.load_member(run.members[-1], fit.task.model)
        keras_internals.set_initial_epoch(fit.task.model, fit.params["epochs"])
        fit.reporter.line(
            f"{self._title}: the run in {run.path} is complete; there is "
            "nothing left to train. The model holds its last member, of step "
            f"{run.members[-1]}"
            + (", which is an average of weights." if plan.horizon else ".")
        )
        return self._course(fit, plan, run, is_done=True)

    def _pass_over(self, fit: Fit, plan: Plan, run: RunDirectory) -> Course:
        """For a phase that is over; the model is as the next one needs it."""
        end = run.phases[self.phase].step
        if run.state is not None and run.state.step == end:
            run.rewind(fit.task.model)
        keras_internals.set_initial_epoch(fit.task.model, fit.params["epochs"])
        fit.reporter.line(
            f"{self._title}: phase {self.phase + 1} of the run in {run.path} "
            f"is over, with step {end}; there is nothing left to train in it."
        )
        return self._course(fit, plan, run, is_done=True)

    def _created(self, fit: Fit, header: Header) -> Run:
        first = fit.task.weights.first_distribution
        own = None if _is_uniform(first) else first
        if self.directory is None:
            return MemoryRun(header, own)
        return RunDirectory.create(
            self.directory,
            header,
            fit.task.model,
            own_distribution=own,
            overwrite=self.replaces,
            restart=self.replaces_begun,
        )

    def _check_same_task(self, then: Header, now: Header) -> None:
        """Raises a `ValueError` if a run cannot go on with this `fit`."""
        wrong = [
            text
            for name, text in _OF_ALL_PHASES.items()
            if getattr(then, name) != getattr(now, name)
        ]
        if wrong:
            raise ValueError(
                f"{self.owner}(phases={self.num_phases}): `fit` number "
                f"{self.phase + 1} cannot go on with the run: "
                f"{'; '.join(wrong)}. Train the same model on the same "
                "samples, or use a callback of its own."
            )

    def _phase(self, run: Run, first_epoch: int) -> Phase:
        is_last = self.phase == self.num_phases - 1
        if not self.phase:
            return Phase(is_last=is_last, is_over=bool(run.phases))
        before = run.phases[self.phase - 1]
        return Phase(
            before.step,
            before.epoch - first_epoch,
            is_last,
            is_over=self.phase < len(run.phases),
        )

    def _course(self, fit: Fit, plan: Plan, run: Run, **where: Any) -> Course:
        rounds = Rounds(
            fit.task,
            run,
            fit.accuracy,
            fit.reporter,
            self.log_prefix,
            MemberWeights()
            if plan.horizon is None
            else AveragedWeights(
                fit.task,
                plan.horizon,
                fit.reporter,
                is_lag_free=plan.is_lag_free,
            ),
            plan.num_kept,
            has_validation_losses=plan.actions is not None
            and plan.actions.has_validation_losses,
        )
        first_epoch = run.settings_of(self.phase).first_epoch or 0
        phase = self._phase(run, first_epoch)
        return Course(
            plan, fit.task, rounds, fit.reporter, phase=phase, **where
        )

    def _describe(
        self, fit: Fit, first_epoch: int, policy: Policy | None = None
    ) -> tuple[Plan, Header]:
        """What the method is going to do, and what the manifest says of it.

        With the policy of earlier phases, if there were.
        """
        task = fit.task
        total_steps = self._find_total_steps(fit, first_epoch)
        plan = self.make_plan(total_steps, fit.params.get("steps"))
        if policy is not None:
            plan = dataclasses.replace(plan, policy=policy)
        check_learning_rate(self.owner, plan, task.model)
        names, num_classes = (
            task.weights.class_names or [],
            task.classifier.num_classes,
        )
        name = engine.in_use().NAME
        header = Header(
            method=self.method,
            package_version=__version__,
            num_classes=num_classes,
            num_samples=task.weights.num_samples,
            is_binary=task.classifier.is_binary,
            from_logits=task.classifier.from_logits,
            num_parameters=task.model.count_params(),
            architecture=copying.architecture_id(task.model),
            labels=labels_id(
                task.all_labels(), task.weights.first_distribution
            ),
            settings=Settings(
                policy=plan.policy,
                own=plan.settings,
                total_steps=total_steps,
                first_epoch=first_epoch,
                optimizer=type(bare_optimizer(task.model)).__name__,
                seed=task.weights.seed,
                batch_size=task.weights.batch_size,
                shuffle=task.weights.shuffle,
                backend=None if name == "tensorflow" else name,
                sharded=task.weights.sharded,
            ),
            class_names=names if are_class_names(names, num_classes) else None,
        )
        return plan, header

    def _find_total_steps(self, fit: Fit, first_epoch: int) -> int:
        steps, model = fit.params.get("steps"), fit.task.model
        if not steps:
            if self.total_steps is None:
                raise ValueError(
                    f"{self.owner}: `fit` does not know how many steps an "
                    f"epoch has. Pass `total_steps=` to {self.owner}, or "
                    "`steps_per_epoch=` to `fit`."
                )
            if model.steps_per_execution > 1:
                raise ValueError(
                    f"{self.owner}: with steps_per_execution="
                    f"{model.steps_per_execution} the steps of an epoch "
                    "must be known. Pass `steps_per_epoch=` to `fit`."
                )
            return self.total_steps
        known = int(steps) * (fit.params["epochs"] - first_epoch)
        if self.total_steps not in (None, known):
            raise ValueError(
                f"{self.owner}(total_steps={self.total_steps}), but `fit` "
                f"will make {known} steps. Leave `total_steps` out."
            )
        return known


def _agree(fit: Fit, header: Header) -> None:
    """Sees to it that all processes are to train the same."""
    processes, ask = engine.in_use().processes(), "Give each of them "
    if processes.count == 1:
        return
    settings = {k: str(v) for k, v in header.settings.to_json().items()}
    processes.agree(
        header.labels.encode(),
        f"the labels or the first weights. {ask}the same data, all of it.",
    )
    processes.agree(
        str(
            sorted({**header.to_json(), "settings": settings}.items())
        ).encode(),
        f"the model or the settings. {ask}the same script and arguments.",
    )
    processes.agree(
        b"".join(w.tobytes() for w in fit.task.model.get_weights()),
        "the weights that training begins with. Call "
        "`keras.utils.set_random_seed` before the model is made.",
    )


def _check_backend(directory: pathlib.Path, settings: Settings) -> None:
    """Raises a `RunError` for a run of another backend of Keras."""
    then, now = settings.backend or "tensorflow", engine.in_use().NAME
    if then != now:
        raise RunError(
            f"resume=True: {directory} was trained on Keras' backend {then}, "
            f"and this is {now}. A run is resumed on its own: set "
            f"KERAS_BACKEND={then} before Keras is imported, or start in a new "
            "directory. Its members can be loaded on any."
        )


def _known_as(then: Header, now: Header, fit: Fit) -> Header:
    """What a run is started with, as an earlier version would have said it."""
    former = copying.architecture_id(fit.task.model, as_frozen=True)
    if then.architecture != former:
        return now
    return dataclasses.replace(now, architecture=former)


def _is_uniform(distribution: np.ndarray) -> bool:
    return bool(np.all(distribution == distribution[0]))


def _shortened(steps: list[int]) -> list[Any]:
    return steps if len(steps) <= 12 else [*steps[:5], "...", *steps[-3:]]
