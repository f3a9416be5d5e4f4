"""The methods of `accuracy.py`: each a course of training and who votes.

A run can serve several methods: a cosine gives the single model, its averaged
weights and the equal votes of its checkpoints. All have one budget of steps.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.stats
from accuracy_tasks import Data, Task
from accuracy_training import (
    Checkpoint,
    Course,
    View,
    compiled_loop,
    cycles_of,
    train,
    view,
)
from compiled_loop import CompiledLoop

from cbnn_keras import boosting, imbalance, metrics, schedules
from cbnn_keras.auto_restarts import SHORTEST_EPOCHS, AutoRestarts
from cbnn_keras.boosting_policies import Boosting, EqualVotes
from cbnn_keras.training.boosting_options import (
    AVERAGES,
    DEFAULT_RATIO,
    DEFAULT_TRUST,
    Averaging,
    averaging_of,
)
from cbnn_keras.trust import ALL, Trust

NUM_CHECKPOINTS = 6
PAPER = Boosting()
AUTO = "restarts=auto"
NUM_POINTS = 24  # of the curve of a run


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a method ends with.

    Attributes:
        val: Probabilities of the validation samples.
        test: Probabilities of the test samples.
        train_errors: The training error of each of its members.
        curve: `(step, test accuracy)` along the run, for the methods that are
            watched.
    """

    val: np.ndarray
    test: np.ndarray
    train_errors: list[float]
    curve: list[tuple[int, float]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Setting:
    """One cell with a seed and a rate: what a run is made of."""

    task: Task
    loop: CompiledLoop
    data: Data
    total_steps: int
    rate: float
    seed: int
    is_watched: bool = False  # all along, which costs some time

    @property
    def checkpoints(self) -> list[int]:
        total = self.total_steps
        interval = schedules.checkpoint_interval(total, NUM_CHECKPOINTS)
        return schedules.checkpoint_steps(total, interval)

    @property
    def num_epochs(self) -> float:
        return self.total_steps / self.loop.steps_per_epoch

    @property
    def averaging(self) -> Averaging:
        """That of the callback's `average=True`."""
        return averaging_of(np.bincount(self.data.train[1]), self.num_epochs)

    def averages(
        self, num_steps: int, averaging: Averaging | None = None
    ) -> dict[str, Any]:
        """What a course says of averages; by default that of the callback.

        Args:
            num_steps: Of a cycle, or of the run.
            averaging: How they are made instead.
        """
        chosen = averaging or self.averaging
        return {
            "horizon": max(round(chosen.horizon * num_steps), 1),
            "is_lag_free": chosen.is_lag_free,
        }

    def cosine(self, ends: list[int]) -> Callable[[int], float]:
        return functools.partial(
            schedules.annealed_rate, ends=ends, highest=self.rate
        )

    def train(self, course: Course, **options) -> list[Checkpoint]:
        return train(self.loop, self.data, course, self.seed, **options)


def voted(
    checkpoints: list[Checkpoint],
    policy: Boosting | EqualVotes,
    kind: str = "member",
) -> Outcome:
    """The vote of those members that the policy trusts."""
    if isinstance(policy, EqualVotes):
        checkpoints = [dataclasses.replace(c, vote=1.0) for c in checkpoints]
    members = [c for c in checkpoints if c.vote]
    views: list[View] = [getattr(c, kind) for c in members]
    is_trusted = policy.trust.voters(
        [v.train_error for v in views],
        [v.class_error for v in views],
        [v.likelihood for v in views],
    )
    chosen = [
        (v, c.vote)
        for v, c, yes in zip(views, members, is_trusted, strict=True)
        if yes
    ]
    votes = [vote for _, vote in chosen]
    return Outcome(
        metrics.weighted_mean(np.stack([v.val for v, _ in chosen]), votes),
        metrics.weighted_mean(np.stack([v.test for v, _ in chosen]), votes),
        [v.train_error for v in views],
    )


def single(found: View) -> Outcome:
    return Outcome(found.val, found.test, [found.train_error])


class Curves:
    """Test accuracy of members and current model, watched along a run.

    Args:
        setting: Of the run.
        votes: What checkpoints say together, by method; None for the current
            model alone.
    """

    def __init__(
        self,
        setting: Setting,
        votes: dict[str, Callable[[list[Checkpoint]], Outcome] | None],
    ):
        self._points: dict[str, list[tuple[int, float]]] = {
            name: [] for name in votes
        }
        self._votes = votes
        self._labels = setting.data.test[1]
        total = setting.total_steps
        points = range(1, NUM_POINTS + 1) if setting.is_watched else ()
        self.steps = [round(total * i / NUM_POINTS) for i in points]

    def __call__(
        self, step: int, checkpoints: list[Checkpoint], current: np.ndarray
    ) -> None:
        members = [c for c in checkpoints if c.vote]
        for name, vote in self._votes.items():
            found = current
            if vote is not None and members:
                found = vote(members).test
                if members[-1].step != step:
                    votes = [len(members), 1]
                    found = metrics.weighted_mean(
                        np.stack([found, current]), votes
                    )
            accuracy = metrics.accuracy(found, self._labels)
            self._points[name].append((step, accuracy))

    def added_to(self, outcomes: dict[str, Outcome]) -> dict[str, Outcome]:
        """The outcomes, with their curves."""
        return {
            name: dataclasses.replace(outcome, curve=self._points.get(name, []))
            for name, outcome in outcomes.items()
        }


def _script(
    setting: Setting, name: str, rate: Callable[[int], float], **options
) -> tuple[list[Checkpoint], dict[str, Outcome]]:
    """A script alone, and with `CBNNCallback()`.

    The callback changes nothing in training by default, so that one run is
    that of both. (`tests/training/test_callback.py` compares bits.)
    """
    policy = policy_of(setting, NUM_CHECKPOINTS, DEFAULT_TRUST)
    if policy.deviation_rate:
        raise ValueError("By default training is another: it needs its own run")
    added = f"CBNN, {name}"
    vote = functools.partial(voted, policy=policy)
    curves = Curves(setting, {name: None, added: vote})
    options |= setting.averages(setting.total_steps)
    course = Course(setting.checkpoints, rate, policy, **options)
    found = setting.train(course, watch=curves)
    outcomes = {name: single(found[-1].raw), added: voted(found, policy)}
    return found, curves.added_to(outcomes)


def plain(setting: Setting) -> dict[str, Outcome]:
    """What most scripts do: one rate from beginning to end."""
    return _script(setting, "plain", lambda step: setting.rate)[1]


def cosine(setting: Setting) -> dict[str, Outcome]:
    rate = setting.cosine([setting.total_steps])
    found, outcomes = _script(setting, "cosine", rate, has_raw=True)
    last = found[-1].member
    if setting.averaging != AVERAGES:  # the usual ones are what is compared
        averages = setting.averages(setting.total_steps, AVERAGES)
        last = setting.train(Course([setting.total_steps], rate, **averages))[
            -1
        ].member
    outcomes["cosine, averaged"] = single(last)
    outcomes["NoCycle"] = voted(found, EqualVotes(), "raw")
    if setting.data.other_view is not None:
        mean = (found[-1].raw.test + found[-1].raw.other_view) / 2
        outcomes["cosine, two views"] = Outcome(
            found[-1].raw.val, mean, outcomes["cosine"].train_errors
        )
    return outcomes


def policy_of(
    setting: Setting,
    num: int,
    trust: Trust,
    ratio: float = DEFAULT_RATIO,
) -> Boosting:
    """That of `CBNNCallback(largest_ratio=ratio)` with so many checkpoints."""
    error = Boosting().expected_error
    num_classes = setting.data.num_classes
    rate = boosting.rate_of_ratio(ratio, num, error, num_classes)
    return Boosting(rate, error, trust)


def _paper(
    setting: Setting, script: str, rate: Callable[[int], float]
) -> dict[str, Outcome]:
    name = f"CBNN of the paper, {script}"
    curves = Curves(setting, {name: functools.partial(voted, policy=PAPER)})
    course = Course(setting.checkpoints, rate, PAPER)
    found = setting.train(course, watch=curves)
    return curves.added_to({name: voted(found, PAPER)})


def paper_plain(setting: Setting) -> dict[str, Outcome]:
    return _paper(setting, "plain", lambda step: setting.rate)


def paper_cosine(setting: Setting) -> dict[str, Outcome]:
    rate = setting.cosine([setting.total_steps])
    return _paper(setting, "cosine", rate)


def _restarts(
    setting: Setting, num: int, keep: float = 0.0
) -> dict[str, Outcome]:
    policy = policy_of(setting, num, ALL)
    ends = schedules.restart_steps(setting.total_steps, num)
    name = f"restarts={num}" + (f", keep={keep}" if keep else "")
    curves = Curves(setting, {name: functools.partial(voted, policy=policy)})
    course = Course(
        ends,
        setting.cosine(ends),
        policy,
        keep=keep,
        **setting.averages(ends[0]),
    )
    found = setting.train(course, watch=curves)
    return curves.added_to({name: voted(found, policy)})


def auto_restarts(
    setting: Setting, averaging: Averaging | None = None
) -> dict[str, Outcome]:
    """`restarts="auto"`, by the validation samples."""
    shares = np.bincount(setting.data.val[1]) / len(setting.data.val[1])
    rule = AutoRestarts(
        setting.total_steps,
        shortest=SHORTEST_EPOCHS * setting.loop.steps_per_epoch,
        chance=scipy.stats.entropy(shares),
    )
    policy = policy_of(setting, rule.num_parts, DEFAULT_TRUST)

    def vote(checkpoints: list[Checkpoint]) -> Outcome:
        voters = cycles_of(rule, checkpoints, setting.data).voters
        if voters is None:
            return voted(checkpoints, policy)
        return voted(
            [c for c in checkpoints if c.step in voters],
            dataclasses.replace(policy, trust=ALL),
        )

    curves = Curves(setting, {AUTO: vote})
    course = Course(
        rule.steps,
        lambda step: setting.rate,
        policy,
        rule=rule,
        **setting.averages(setting.total_steps, averaging),
    )
    found = setting.train(course, watch=curves)
    return curves.added_to({AUTO: vote(found)})


def snapshots(setting: Setting) -> dict[str, Outcome]:
    """Huang et al. 2017: cosine cycles, no restart of the weights."""
    total = setting.total_steps
    rate = functools.partial(
        schedules.cyclic_cosine_rate,
        total_steps=total,
        num_cycles=NUM_CHECKPOINTS,
        highest=setting.rate,
    )
    ends = schedules.cycle_ends(total, NUM_CHECKPOINTS)
    return {"SSE": voted(setting.train(Course(ends, rate)), EqualVotes())}


def fast_geometric(setting: Setting) -> dict[str, Outcome]:
    """Garipov et al. 2018: 0.8 of a cosine, then triangles below it."""
    total = setting.total_steps
    cycle = schedules.geometric_cycle(total, NUM_CHECKPOINTS, 0.8)
    steps = schedules.geometric_steps(total, NUM_CHECKPOINTS, cycle)
    first_part = setting.cosine([total])

    def rate(step: int) -> float:
        if step <= steps[0]:
            return first_part(step)
        return schedules.triangular_rate(
            step - steps[0], cycle, setting.rate / 2, setting.rate / 200
        )

    return {"FGE": voted(setting.train(Course(steps, rate)), EqualVotes())}


def weight_averaging(setting: Setting) -> dict[str, Outcome]:
    """Izmailov et al. 2018: a high rate in the last quarter, one mean."""
    total = setting.total_steps
    first = schedules.share_of_steps(total, 0.75)

    def rate(step: int) -> float:
        share = np.clip((step - total / 2) / (total / 4), 0, 1)
        return setting.rate * (1 - share / 2)

    steps = schedules.last_steps(total, 10, max((total - first) // 10, 1))
    found = setting.train(Course(steps, rate))
    weights = zip(*(c.raw.weights for c in found), strict=True)
    means = [np.mean(arrays, axis=0) for arrays in weights]
    swapped = setting.loop.with_weights(means)
    return {"SWA": single(view(setting.loop, setting.data, swapped)[0])}


def separate(setting: Setting) -> dict[str, Outcome]:
    """Three networks, each with a third of the budget."""
    ends = schedules.restart_steps(setting.total_steps, 3)
    course = Course(ends, setting.cosine(ends), keep=0.0)
    return {"PE": voted(setting.train(course), EqualVotes())}


def oversampled(setting: Setting) -> dict[str, Outcome]:
    """A cosine on classes that were filled up to one size."""
    x, y = setting.data.train
    chosen = imbalance.oversample(y, seed=setting.seed)
    size = setting.task.batch_size
    chosen = np.random.default_rng(setting.seed).permutation(chosen)
    chosen = chosen[: len(chosen) // size * size]
    data = dataclasses.replace(setting.data, train=(x[chosen], y[chosen]))
    loop = compiled_loop(setting.task, data)
    filled = dataclasses.replace(setting, data=data, loop=loop)
    course = Course(
        [setting.total_steps], setting.cosine([setting.total_steps])
    )
    return {"oversampled": single(filled.train(course)[-1].raw)}


# By name. Those in the second group use the rates of plain and cosine: a user
# adds the callback to a script that is there.
RESTARTS = {
    **{
        f"restarts={num}": functools.partial(_restarts, num=num)
        for num in (2, 3, 6, 12, 24)
    },
    **{
        f"restarts={num}, keep=0.6": functools.partial(
            _restarts, num=num, keep=0.6
        )
        for num in (2, 3, 6)
    },
}
TUNED = {
    "plain": plain,
    "cosine": cosine,
    **RESTARTS,
    AUTO: auto_restarts,
    "PE": separate,
    "SSE": snapshots,
    "FGE": fast_geometric,
    "SWA": weight_averaging,
    "oversampled": oversampled,
}
ONLY_IMBALANCED = ("oversampled",)
ADDED = {
    "CBNN, plain": ("plain", plain),
    "CBNN, cosine": ("cosine", cosine),
    "CBNN of the paper, plain": ("plain", paper_plain),
    "CBNN of the paper, cosine": ("cosine", paper_cosine),
}
