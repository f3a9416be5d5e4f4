"""Members averaged in weights, a "soup" (Wortsman et al. 2022).

Members of one trajectory often lie in one basin of the loss: the average of
their weights is as good as the average of their predictions, and costs what
one of them costs. Between members that started anew there is a barrier.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import keras
import numpy as np
from numpy.typing import ArrayLike

from cbnn_keras import metrics
from cbnn_keras.data.indexed import Track
from cbnn_keras.data.labelled_samples import LabelledSamples
from cbnn_keras.models import engine
from cbnn_keras.models.batch_norm import StatisticsRecomputer
from cbnn_keras.models.classifier import Classifier
from cbnn_keras.runs.run import Run

Weights = list[np.ndarray]
# Of the way from one member to another.
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
# Enough for statistics of BatchNorm, also where there are more samples.
_NUM_BATCHES = 200


def averaged(members: Sequence[Weights], votes: ArrayLike) -> Weights:
    """The vote-weighted mean of each of the weights.

    In float64; what are no floats, such as counts, are those of the last one.

    Example:

    >>> averaged([[np.array([0.0, 4.0])], [np.array([3.0, 1.0])]], [2.0, 1.0])
    [array([1., 3.])]
    """
    return [
        metrics.weighted_mean(np.stack(parts), votes).astype(parts[-1].dtype)
        if np.issubdtype(parts[-1].dtype, np.floating)
        or parts[-1].dtype.name == "bfloat16"
        else parts[-1]
        for parts in zip(*members, strict=True)
    ]


def greedy(
    members: Sequence[Weights],
    votes: np.ndarray,
    loss: Callable[[Weights], float],
    own_losses: Sequence[float],
    track: Track,
) -> list[int]:
    """Positions of members whose average has the smallest loss found.

    From the best one on, in the order of their own losses, a member is taken
    where that makes the average better; the result is never worse than the
    best member.

    Args:
        members: The weights of each.
        votes: Its share among those that are taken.
        loss: Of an average.
        own_losses: Of each member by itself.
        track: Shows the progress.

    Example:

    >>> from cbnn_keras.data.indexed import untracked
    >>> weights = [[np.array(w)] for w in (1.0, -2.0, 9.0)]
    >>> losses = [abs(float(w)) for [w] in weights]
    >>> greedy(weights, np.ones(3), lambda w: abs(w[0]), losses, untracked)
    [0, 1]
    """
    first, *others = np.argsort(own_losses, kind="stable").tolist()
    chosen, best = [first], own_losses[first]
    for position in track(others, len(others)):
        trial = sorted([*chosen, position])
        found = loss(averaged([members[i] for i in trial], votes[trial]))
        if found < best:
            chosen, best = trial, found
    return chosen


class Tasting:
    """How good weights are, in one model.

    Args:
        model: Gets the weights; its own are to be kept by the caller.
        classifier: How its outputs are read.
        data: What BatchNorm's statistics are recomputed on.
        judges: What weights are judged on.
        batch_size: Of the batches that the statistics are of.
    """

    def __init__(
        self,
        model: keras.Model,
        classifier: Classifier,
        data: LabelledSamples,
        judges: LabelledSamples,
        batch_size: int,
    ) -> None:
        self._model = model
        self._classifier = classifier
        self._data = data
        self._labels = judges.labels
        self._inputs = engine.in_use().repeatable(judges.inputs, None)
        self._batch_size = batch_size
        self._recompute = StatisticsRecomputer(model)

    def own_loss(self, weights: Weights) -> float:
        """The negative log-likelihood with just these weights."""
        self._model.set_weights(weights)
        found = self._classifier.predict(self._model, self._inputs)
        return metrics.negative_log_likelihood(found, self._labels)

    def loss(self, weights: Weights) -> float:
        """The same, after statistics of BatchNorm were made to fit them."""
        self.put(weights)
        return self.own_loss(self._model.get_weights())

    def put(self, weights: Weights) -> None:
        """Puts an average into the model, with statistics that fit it."""
        self._model.set_weights(weights)
        batches = self._data.samples.shuffled_inputs(self._batch_size, True)
        self._recompute(itertools.islice(batches, _NUM_BATCHES))

    def way(self, first: Weights, second: Weights) -> str:
        """The losses from one member to another, for a message."""
        losses = [
            self.loss(averaged([first, second], [1 - share, share]))
            if 0 < share < 1
            else self.own_loss(second if share else first)
            for share in _SHARES
        ]
        return ", ".join(f"{loss:.4g}" for loss in losses)


def why_not_one_cycle(run: Run, steps: Sequence[int]) -> str | None:
    """Why members are not on one trajectory, or None if they are.

    Args:
        run: Theirs.
        steps: Of the members.
    """
    if run.header.method == "parallel":
        return "its members are of networks that were trained separately"
    restarts = run.header.settings.own.get("restarts")
    cycles = run.auto_cycles
    if cycles is not None:
        first = min(cycles.starts, default=math.inf)
        if steps[-1] <= first:
            return None  # of the cycle before the first restart
        return (
            f"it was trained with restarts={restarts}: members after step "
            f"{first} started anew"
        )
    if restarts is not None:
        return (
            f"it was trained with restarts={restarts}: each member started anew"
        )
    return None
