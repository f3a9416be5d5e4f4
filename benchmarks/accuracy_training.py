"""One run of `accuracy.py`: what `CBNNCallback` does, in a compiled loop.

Checkpoints, votes, sample weights, averages, restarts and learning rates are
those of the package: the same functions, called at the same steps.
`tests/benchmarks/test_compiled_loop.py` compares a run with that of the
callback.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from accuracy_tasks import Data, Task
from compiled_loop import CompiledLoop

from cbnn_keras import calibration, metrics
from cbnn_keras.auto_restarts import AutoRestarts, Cycles
from cbnn_keras.boosting import Booster, Policy
from cbnn_keras.boosting_policies import EqualVotes

LONGEST_PERIOD = 16  # as in `training.averaging`


@dataclasses.dataclass(frozen=True)
class Course:
    """What a run does.

    Attributes:
        steps: The steps with a checkpoint; the last is the end.
        rate: The learning rate of a step, from 1.
        policy: How checkpoints vote and sample weights change.
        horizon: Over how many steps weights are averaged, or None.
        keep: What a restart after each checkpoint keeps of the weights, or
            None for a run without.
        has_raw: Whether checkpoints say what the model itself predicts beside
            its averaged weights; the last one always does.
        rule: Decides by held-out data which of the steps have a checkpoint,
            and after which of them the model starts anew, or None. The rate is
            then the highest one, and the horizon that of a run without.
        is_lag_free: Whether averages keep up with the weights.
    """

    steps: list[int]
    rate: Callable[[int], float]
    policy: Policy = dataclasses.field(default_factory=EqualVotes)
    horizon: int | None = None
    keep: float | None = None
    has_raw: bool = False
    rule: AutoRestarts | None = None
    is_lag_free: bool = False


@dataclasses.dataclass(frozen=True)
class View:
    """What one set of weights predicts.

    Attributes:
        likelihood: The mean of -log p(label) over the training samples.
        train_error: The share of training samples that is wrong.
        class_error: The same of each class, averaged over the classes.
        val: Probabilities of the validation samples.
        test: Probabilities of the test samples.
        other_view: The same for the other view of them, if there is one.
        weights: Those that are trained.
    """

    likelihood: float
    train_error: float
    class_error: float
    val: np.ndarray
    test: np.ndarray
    other_view: np.ndarray | None
    weights: list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint: its vote, and what the weights say.

    Attributes:
        step: The number of steps before it.
        vote: lambda, or 0 where it is not a member.
        raw: The model itself, or None where nobody asks.
        member: The averaged weights where there are any, or else the model.
    """

    step: int
    vote: float
    raw: View | None
    member: View


class Watch(Protocol):
    """What looks at a run while it goes on.

    Attributes:
        steps: When it wants to look.
    """

    steps: list[int]

    def __call__(
        self, step: int, checkpoints: list[Checkpoint], current: np.ndarray
    ) -> None: ...


def compiled_loop(task: Task, data: Data) -> CompiledLoop:
    """A loop over the training samples of a task."""
    return CompiledLoop(
        task.make_model(data.train[0], data.num_classes),
        task.make_optimizer(0.1),
        *data.train,
        task.batch_size,
        jit_compile=task.jit_compile,
    )


def train(
    loop: CompiledLoop,
    data: Data,
    course: Course,
    seed: int,
    watch: Watch | None = None,
) -> list[Checkpoint]:
    """Makes a run, from weights and in an order that derive from the seed.

    Args:
        loop: Holds the model and the training samples.
        data: What checkpoints predict.
        course: What the run does.
        seed: Of weights and order.
        watch: Called at its steps with the checkpoints so far and what the
            model predicts of the test samples.
    """
    watched = [] if watch is None else watch.steps
    cycles = course.rule and course.rule.cycles({})
    horizon = course.horizon
    num = len(loop.labels)
    booster = Booster(np.full(num, 1 / num), data.num_classes, course.policy)
    loop.begin(seed)
    first_step = 0  # of the cycle
    checkpoints: list[Checkpoint] = []
    for start in range(0, course.steps[-1], loop.steps_per_call):
        stop = min(start + loop.steps_per_call, course.steps[-1])
        steps = range(start + 1, stop + 1)
        order = loop.order(seed, start // loop.steps_per_epoch)
        done = 0
        ends = {s for s in (*course.steps, *watched) if s in steps}
        for end in sorted(ends | {steps[-1]}):
            shares = [_share(step, first_step, horizon) for step in steps]
            rates = np.array([_rate(step, course, cycles) for step in steps])
            weights = num * booster.distribution
            loop.run(
                order,
                rates,
                shares,
                weights,
                done,
                end - start,
                is_lag_free=course.is_lag_free,
            )
            done = end - start
            is_final = end == course.steps[-1]
            # The second is the paper's stop rule.
            due = course.steps if cycles is None else cycles.checkpoints
            is_due = end in due and (is_final or booster.may_continue())
            if is_due:
                found = _checkpoint(loop, data, course, booster, end)
                checkpoints.append(found)
            if watch is not None and end in watched:
                watch(end, checkpoints, loop.predict(data.test[0]))
            is_start = course.keep is not None
            if is_due and course.rule is not None:
                cycles = cycles_of(course.rule, checkpoints, data)
                is_start = end in cycles.starts
            if is_due and is_start and not is_final:
                entropy = np.random.SeedSequence([seed, end])
                loop.begin(
                    int(entropy.generate_state(1)[0]), course.keep or 0.0
                )
                first_step = end
                if cycles is not None:
                    share = cycles.length_after(end) / course.steps[-1]
                    horizon = max(round(course.horizon * share), 1)
    return checkpoints


def cycles_of(
    rule: AutoRestarts, checkpoints: list[Checkpoint], data: Data
) -> Cycles:
    """What a run does by the held-out losses of its checkpoints."""
    labels = data.val[1]
    losses = {}
    for checkpoint in checkpoints:
        said = checkpoint.member.val
        scaled = calibration.scale(
            said, calibration.fit_temperature(said, labels)
        )
        found = metrics.negative_log_likelihood(scaled, labels)
        losses[checkpoint.step] = found
    return rule.cycles(losses)


def _rate(step: int, course: Course, cycles: Cycles | None) -> float:
    if cycles is None:
        return course.rate(step)
    # A call has whole epochs, also where the run ends within.
    last = min(step, course.steps[-1])
    return cycles.rate(last, course.rate(last))


def _share(step: int, first_step: int, horizon: int | None) -> float:
    """What part of the average the weights after this step replace."""
    if horizon is None:
        return 0.0
    period = min(LONGEST_PERIOD, max(horizon // 10, 1))
    if step % period:
        return 0.0
    num_updates = max(step // period - first_step // period, 1)
    return max(1 - math.exp(-period / horizon), 1 / num_updates)


def _checkpoint(
    loop: CompiledLoop, data: Data, course: Course, booster: Booster, step: int
) -> Checkpoint:
    is_final = step == course.steps[-1]
    raw = None
    if course.horizon is None or course.has_raw or is_final:
        raw, correct = view(loop, data)
    member = raw
    if course.horizon is not None:
        swapped = loop.averaged(is_lag_free=course.is_lag_free)
        member, correct = view(loop, data, swapped)
    stage = booster.add(correct, is_final=is_final)
    return Checkpoint(step, stage.vote, raw, member)


def view(
    loop: CompiledLoop,
    data: Data,
    swapped: contextlib.AbstractContextManager[None] | None = None,
) -> tuple[View, np.ndarray]:
    """What the model predicts, and which training samples it gets right."""
    with swapped or contextlib.nullcontext():
        found = loop.predict()
        correct = metrics.predicted_classes(found) == loop.labels
        return View(
            metrics.negative_log_likelihood(found, loop.labels),
            1 - float(correct.mean()),
            metrics.class_error(correct, loop.labels, np.ones(len(correct))),
            loop.predict(data.val[0]),
            loop.predict(data.test[0]),
            None if data.other_view is None else loop.predict(data.other_view),
            loop.trainable(),
        ), correct
