"""What sees to it that every batch has the weights it is to have."""

import warnings

from cbnn_keras.data.pipelines import EXPLICIT_FORM
from cbnn_keras.data.sample_weights import SampleWeights

_NUM_CHECKED = 10  # executions of a fit whose lookups are counted


class LookupGuard:
    """Sees to it that each batch looks its weights up, and not too early.

    Args:
        weights: The weights that the pipeline of `fit` is to look up.
        allows_early: Whether a batch may look its weights up before its turn,
            because the gate sees to it or because the pipeline is the user's.
    """

    def __init__(self, weights: SampleWeights, *, allows_early: bool) -> None:
        self._weights = weights
        self._allows_early = allows_early
        self._before_fit = weights.num_lookups
        self._before_epoch = self._before_fit
        self._num_checked = 0

    def epoch_begins(self) -> None:
        self._before_epoch = self._weights.num_lookups

    def check(self, num_steps: int, num_batches: int | None = None) -> None:
        """Raises a `ValueError` if lookups and steps do not go together.

        Args:
            num_steps: How many steps the `fit` has made.
            num_batches: How many of them are of this epoch, while it lasts.
                Then only the first ones of a `fit` are checked.
        """
        if num_batches is not None:
            if self._num_checked == _NUM_CHECKED:
                return
            self._num_checked += 1
        num_lookups = self._weights.num_lookups
        if num_lookups - self._before_fit < num_steps:
            message = _NOT_OUR_BATCH if num_steps == 1 else _FROZEN_WEIGHTS
            raise ValueError(message + EXPLICIT_FORM)
        num_new = num_lookups - self._before_epoch
        if not self._allows_early and num_new > (num_batches or num_new):
            raise ValueError(_LOOKS_AHEAD + EXPLICIT_FORM)


class GateKeeper:
    """Holds batches back in front of the next update, on several devices.

    Args:
        weights: The weights whose gate is kept.
    """

    def __init__(self, weights: SampleWeights) -> None:
        self._gate = weights.gate
        self._is_holding = True

    def step_begins(self, num_batches: int, *, is_first: bool) -> None:
        """Lets the batches of a step through.

        Args:
            num_batches: How many of the epoch there are up to the next update.
            is_first: Whether this is the first step of an epoch. Its pass is
                announced here and no sooner: another callback may read the
                pipeline before.
        """
        if not self._is_holding:
            return
        if is_first:
            self._gate.announce(num_batches)
        self._gate.step_begins()

    def step_ends(self) -> None:
        if self._is_holding and self._gate.has_given_up:
            self._is_holding = False
            warnings.warn(_GATE_GAVE_UP, stacklevel=2)
        self._gate.step_ends()

    def hold_after(self, num_batches: int) -> None:
        """Lets the pass go on, up to so many of its batches."""
        if self._is_holding:
            self._gate.hold_after(num_batches)

    def epoch_ends(self) -> None:
        if self._is_holding:
            self._gate.release()


_NOT_OUR_BATCH = (
    "The first batch of `fit` did not come from the pipeline of "
    "this callback, so its samples have no weights. "
)

_LOOKS_AHEAD = (
    "Batches look their weights up before their turn, so some "
    "would have old ones. Remove `.prefetch(...)` and "
    "`num_parallel_calls` from what is done to the pipeline after it was made; "
    "it prefetches by itself. "
)

_GATE_GAVE_UP = (
    "A step lasted for long while a batch was held back for the "
    "next update of the weights, and probably waited for it. Nothing is held "
    "back any more, so that some batches will have old weights. Remove "
    "`.shuffle(...)` and the like from what is done to the pipeline after it "
    "was made; it shuffles by itself."
)

_FROZEN_WEIGHTS = (
    "Batches of this epoch did not look their weights up, which "
    "are frozen. Remove `.cache()` from what is done to the pipeline after it "
    "was made; cache the samples that it is made of. "
)
