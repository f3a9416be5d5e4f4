"""The members of a run: their votes, their weights, what each predicts."""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from cbnn_keras.calibration import CalibrationRecord
from cbnn_keras.data.labelled import (
    check_same_length,
    empty,
    split_labels,
)
from cbnn_keras.models import copying, engine
from cbnn_keras.models.foreign import Foreign, faults_of_model
from cbnn_keras.models.state import generators_kept
from cbnn_keras.runs.claims import LARGEST_VOTE, SMALLEST_VOTE
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.manifest import MODEL
from cbnn_keras.runs.run import Run
from cbnn_keras.runs.saving import saved_whole
from cbnn_keras.support.aliases import Json
from cbnn_keras.support.console import Reporter

CACHE_BYTES = 2**30


class Members:
    """Members of a run, around one model that their weights are loaded into.

    Args:
        run: The run that the members are of.
        model: What they are loaded into; it gets its own weights back.
        steps: The steps of the members, in order. Defaults to those that the
            run trusts.
        cache_bytes: How much of them is kept in memory once it was read.
        votes: Their votes. Defaults to those of the run.
        foreign: How the model was read from a file, if it was. None for a
            model that the user made.

    Attributes:
        run: The run that the members are of.
        model: The model that members are loaded into.
        foreign: As given: copies of the model are read in the same way.
        rounds: What each member's round left, in order of its step.
        votes: lambda of each member as computed, or what `select` has chosen
            instead, shape `(num_members,)`.
        classifier: How outputs of the model are read as probabilities.
    """

    def __init__(
        self,
        run: Run,
        model: keras.Model,
        steps: list[int] | None = None,
        cache_bytes: int = CACHE_BYTES,
        *,
        votes: ArrayLike | None = None,
        foreign: Foreign | None = None,
    ) -> None:
        self._steps = run.voters if steps is None else steps
        check_has_members(self._steps)
        self.run = run
        self.model = model
        self.foreign = foreign
        self._lender = _Lender(run, model, cache_bytes)
        self.classifier = run.header.classifier
        self.rounds = [run.round_at(step) for step in self._steps]
        if votes is None:
            votes = [run.vote(step) for step in self._steps]
        self.votes = np.array(votes)

    @property
    def members(self) -> list[Json]:
        """The record of each member's round, as in `CBNNCallback.history`."""
        return [record.to_json() for record in self.rounds]

    @property
    def calibration(self) -> CalibrationRecord | None:
        """What `calibrate` found, if it was for these members and votes."""
        found = self.run.calibration
        if found is None or not found.holds_for(self._steps, self.votes):
            return None
        return found

    def __len__(self) -> int:
        return len(self._steps)

    def __repr__(self) -> str:
        votes = ", ".join(f"{vote:.3f}" for vote in self.votes)
        return f"CheckpointEnsemble({len(self)} members, votes {votes})"

    @contextlib.contextmanager
    def member(self, step: int) -> Iterator[keras.Model]:
        """The model with a member's weights; its own are put back after it."""
        with self._lent() as load, generators_kept(self.model):
            yield load(step)

    def member_probabilities(
        self, x: Any, batch_size: int | None = None, verbose: int = 1
    ) -> Iterator[np.ndarray]:
        """Each member's own probabilities, one member after the other."""
        return self._member_probabilities(
            readable_inputs(x, batch_size), batch_size, verbose
        )

    def split_labels(
        self, x: Any, y: Any = None, name: str = "The data"
    ) -> tuple[Any, np.ndarray]:
        """Inputs and class indices; names of classes as training knew them.

        See `data.labelled.split_labels`.
        """
        names = self.run.header.class_names
        return split_labels(self.classifier, x, y, name, names)

    def take(self, steps: Iterable[int]) -> Self:
        """The ensemble of just the members of these steps.

        Raises:
            ValueError: If a step is not that of a member.
        """
        chosen = sorted({int(step) for step in steps})
        missing = [step for step in chosen if step not in self._steps]
        if missing or not chosen:
            raise ValueError(
                f"The ensemble has no members of the steps {missing}; it has "
                f"{self._steps}."
            )
        kept = [self._steps.index(step) for step in chosen]
        return self._with(chosen, self.votes[kept])

    def with_votes(self, votes: Mapping[int, float]) -> Self:
        """Members of the run with votes of your own, by their steps.

        Raises:
            ValueError: If a step is not that of a member of the run, or a vote
                not positive and finite.
        """
        chosen = {int(step): float(votes[step]) for step in sorted(votes)}
        missing = [step for step in chosen if step not in self.run.members]
        if missing or not chosen:
            raise ValueError(
                f"The run has no members of the steps {missing}; it has "
                f"{self.run.members}."
            )
        if not all(SMALLEST_VOTE <= v <= LARGEST_VOTE for v in chosen.values()):
            raise ValueError(
                f"with_votes({chosen}): votes must be positive, from "
                f"{SMALLEST_VOTE:g} to {LARGEST_VOTE:g}."
            )
        return self._with(list(chosen), list(chosen.values()))

    def member_models(self) -> list[keras.Model]:
        """A copy of the model for each member, with its weights."""
        members = copying.copies(
            self.model, len(self._steps), foreign=self.foreign
        )
        for step, member in zip(self._steps, members, strict=True):
            self.run.load_member(step, member)
        return members

    def in_float32(self) -> Self:
        """These members, computed in float32 where training used less.

        Mixed precision is made for training on GPUs; few other runtimes
        compute in it, and none gains accuracy from it.
        """
        if copying.is_float32(self.model):
            return self
        [model] = copying.copies(
            self.model, 1, in_float32=True, foreign=self.foreign
        )
        room = self._lender.cache_bytes
        return type(self)(
            self.run,
            model,
            self._steps,
            room,
            votes=self.votes,
            foreign=self.foreign,
        )

    def faults_of_model(self) -> contextlib.AbstractContextManager[None]:
        """Names the file of a model that was read and cannot compute."""
        path = getattr(self.run, "path", None)
        if self.foreign is None or path is None:  # it is the user's own
            return contextlib.nullcontext()
        return faults_of_model(path / MODEL, self.model)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes a run directory with these members and the run's rounds.

        The directory appears as a whole: whatever happens meanwhile leaves all
        of it or nothing, and it can be saved again.

        Args:
            directory: A new directory, or an empty one.

        Raises:
            RunError: If the directory holds a run, or anything else.
            OSError: If it cannot be written; says what to do.
        """
        path = pathlib.Path(directory).absolute()
        with saved_whole(path) as aside, self._lender.lent() as load:
            target = RunDirectory.create(
                aside,
                self.run.header,
                self.model,
                own_distribution=self.run.own_distribution,
            )
            for record in self.run.rounds:
                target.add_round(
                    record,
                    self.run.correct(record.step),
                    load(record.step) if record.step in self._steps else None,
                )
            votes = [float(vote) for vote in self.votes]
            if target.voters != self._steps or votes != [
                target.vote(step) for step in self._steps
            ]:
                # Whoever loads it gets these members with these votes.
                target.chosen_votes = dict(zip(self._steps, votes, strict=True))
            target.calibration = self.calibration
            target.finish()

    @contextlib.contextmanager
    def _lent(self) -> Iterator[Callable[[int], keras.Model]]:
        """The lent model; if it cannot compute, its file is named."""
        with self._lender.lent() as load, self.faults_of_model():
            yield load

    def _with(self, steps: list[int], votes: ArrayLike) -> Self:
        """Other members of the run, which were perhaps read already."""
        other = type(self)(
            self.run, self.model, steps, votes=votes, foreign=self.foreign
        )
        other._lender = self._lender
        return other

    def _member_probabilities(
        self, x: Any, batch_size: int | None, verbose: int
    ) -> Iterator[np.ndarray]:
        steps = Reporter(verbose).track(
            self._steps, len(self._steps), "members predict"
        )
        length = None
        for step in steps:
            # Before each `yield`: what comes next may well use the model.
            with self._lent() as load:
                found = self.classifier.predict(load(step), x, batch_size)
            length = len(found) if length is None else length
            check_same_length("The inputs", length, len(found))
            yield found


def check_has_members(steps: list[int]) -> None:
    """Raises a `ValueError` if a run has the members of no step."""
    if not steps:
        raise ValueError(
            "The run has no members yet: training ended before the first "
            "checkpoint. Train for longer, or take more checkpoints."
        )


class _Lender:
    """Swaps members' weights through one model, so that memory does not grow.

    What was read from the disk is kept up to a size, so that small repeated
    calls need not read it again. A run in memory is its own cache.

    Args:
        run: The run that the members are of.
        model: What they are loaded into; it gets its own weights back.
        cache_bytes: The room for members that were read.
    """

    def __init__(self, run: Run, model: keras.Model, cache_bytes: int) -> None:
        self.run = run
        self.model = model
        self.cache_bytes = cache_bytes
        self._free_bytes = cache_bytes
        self._cache: dict[int, list[np.ndarray]] = {}

    @contextlib.contextmanager
    def lent(self) -> Iterator[Callable[[int], keras.Model]]:
        """Lends the model out: gives a function that loads a member into it.

        The model's own weights are kept once and put back in the end.
        """
        engine.in_use().sync(self.model)
        kept = [np.array(weight) for weight in self.model.get_weights()]
        try:
            yield self._load
        finally:
            self.model.set_weights(kept)

    def _load(self, step: int) -> keras.Model:
        if step in self._cache:
            self.model.set_weights(self._cache[step])
            return self.model
        self.run.load_member(step, self.model)
        if self.run.is_on_disk:
            weights = [np.array(weight) for weight in self.model.get_weights()]
            num_bytes = sum(weight.nbytes for weight in weights)
            if num_bytes <= self._free_bytes:
                self._cache[step] = weights
                self._free_bytes -= num_bytes
        return self.model


def readable_inputs(x: Any, batch_size: int | None) -> Any:
    """Inputs in the form in which Keras reads them, pass after pass.

    Args:
        x: As in `predict`.
        batch_size: As in `predict`, where these inputs go with it.

    Raises:
        ValueError: For a generator, which can be read only once, and for
            inputs without a sample.
    """
    if hasattr(x, "__next__"):
        raise ValueError(
            "A generator can be read only once, but each member predicts "
            "in a pass of its own. Give arrays or a tf.data.Dataset."
        )
    if isinstance(x, tf.data.Dataset):
        if _is_empty(x):
            raise empty("The inputs")
        return x
    arrays = keras.tree.flatten(x)
    sizes = [tuple(getattr(array, "shape", ()))[:1] for array in arrays]
    if not arrays or (0,) in sizes:
        raise empty("The inputs")
    # Texts as objects, which is how Keras knows them.
    known = keras.tree.map_structure(
        lambda array: (
            array.astype(object)
            if isinstance(array, np.ndarray) and array.dtype.kind in "US"
            else array
        ),
        x,
    )
    return engine.in_use().repeatable(known, batch_size)


def _is_empty(dataset: tf.data.Dataset) -> bool:
    num_batches = int(dataset.cardinality())
    if num_batches == tf.data.UNKNOWN_CARDINALITY:
        return not any(True for _ in dataset.take(1))
    return num_batches == 0
