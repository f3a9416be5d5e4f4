"""The ensemble that a run leaves: predict, evaluate, select, save, merge."""

import contextlib
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from cbnn_keras import imbalance, metrics
from cbnn_keras.ensemble import merging, selection
from cbnn_keras.ensemble.validation import (
    EnsembleValidation,
    as_pair,
    split_labels,
)
from cbnn_keras.models import copying
from cbnn_keras.models.classifier import Classifier
from cbnn_keras.models.state import generators_kept
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.run import Record, Run
from cbnn_keras.support.console import Reporter


class CheckpointEnsemble:
    """The members of a run, averaged as probabilities with their votes.

    Holds one model and swaps the members' weights into it, so that memory does
    not grow with their number; what the model held before is put back after
    each call. `as_model` is the form with a copy of the model for each member.

    Get one from `CBNNCallback.ensemble()` or `CheckpointEnsemble.load(...)`.

    Attributes:
        members: The record of each member's round, in order of its step.
        votes: lambda of each member as computed, shape `(num_members,)`.
        classifier: How outputs of the model are read as probabilities.
    """

    def __init__(
        self, run: Run, model: keras.Model, steps: list[int] | None = None
    ) -> None:
        self._run = run
        self._model = model
        self._steps = list(run.members) if steps is None else steps
        if not self._steps:
            raise ValueError(
                "The run has no members yet: training ended before the first "
                "checkpoint. Train for longer, or take more checkpoints."
            )
        self.classifier = Classifier(
            run.header["num_classes"],
            run.header["is_binary"],
            run.header["from_logits"],
        )
        self.members: list[Record] = [run.round_at(s) for s in self._steps]
        self.votes = np.array([member["vote"] for member in self.members])

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        model: keras.Model | None = None,
    ) -> "CheckpointEnsemble":
        """Opens a run directory after checking every file against its hash.

        Args:
            directory: What `CBNNCallback` or `save` was given.
            model: Needed only for a subclassed model: one of the same class,
                built. Its weights are put back after each use.

        Raises:
            ValueError: If the directory is not a run, or a file is damaged.
        """
        run = RunDirectory.open(pathlib.Path(directory).absolute())
        run.verify()
        if model is None:
            model = _load_model(run)
        if not model.built:
            raise ValueError(
                "CheckpointEnsemble.load(model=...): the model has no weights "
                "yet. Build it first: call it on a batch of data."
            )
        return cls(run, model)

    @property
    def run(self) -> Run:
        """The run that the members are of."""
        return self._run

    @property
    def model(self) -> keras.Model:
        """The model that members are loaded into."""
        return self._model

    def __len__(self) -> int:
        return len(self._steps)

    def __repr__(self) -> str:
        votes = ", ".join(f"{vote:.3f}" for vote in self.votes)
        return f"CheckpointEnsemble({len(self)} members, votes {votes})"

    def predict(
        self,
        x: Any,
        *,
        batch_size: int | None = None,
        voting: str = "soft",
        priors: ArrayLike | None = None,
        verbose: int = 1,
    ) -> np.ndarray:
        """Probabilities of the ensemble.

        Args:
            x: Whatever the model's `predict` accepts; a dataset must give the
                same order in every pass.
            batch_size: As in `keras.Model.predict`.
            voting: `"soft"` averages probabilities, `"hard"` one-hot votes (the
                paper's equation; ties go to the lower class).
            priors: Shares of the classes in training, shape `(num_classes,)`,
                such as `imbalance.class_priors(labels)`: what was averaged is
                divided by them and by its sum, so that rare classes are not
                at a disadvantage. For soft voting only.
            verbose: 0 for no progress bar.

        Returns:
            Shape `(num_samples, num_classes)`, or `(num_samples, 1)`, the
            probability of class 1, for a model with one sigmoid output.
        """
        *_, last = self.staged_predict(
            x,
            batch_size=batch_size,
            voting=voting,
            priors=priors,
            verbose=verbose,
        )
        return last

    def staged_predict(
        self,
        x: Any,
        *,
        batch_size: int | None = None,
        voting: str = "soft",
        priors: ArrayLike | None = None,
        verbose: int = 1,
    ) -> Iterator[np.ndarray]:
        """Predictions of the first member, the first two, ..., all of them.

        Takes the arguments of `predict`; each member predicts once.
        """
        check_voting(voting)
        priors = checked_priors(priors, voting, self.classifier)
        outputs = self.member_probabilities(x, batch_size, verbose)
        return self._stages(outputs, voting, priors)

    def member_probabilities(
        self, x: Any, batch_size: int | None = None, verbose: int = 1
    ) -> Iterator[np.ndarray]:
        """Each member's own probabilities, one member after the other."""
        if hasattr(x, "__next__"):
            raise ValueError(
                "A generator can be read only once, but each member predicts "
                "in a pass of its own. Give arrays or a tf.data.Dataset."
            )
        if not isinstance(x, tf.data.Dataset):
            x = keras.tree.map_structure(_as_objects, x)
        return self._member_probabilities(x, batch_size, verbose)

    def _member_probabilities(
        self, x: Any, batch_size: int | None, verbose: int
    ) -> Iterator[np.ndarray]:
        steps = Reporter(verbose).track(
            self._steps, len(self._steps), "members predict"
        )
        for step in steps:
            with self.member(step) as model:
                outputs = model.predict(x, batch_size=batch_size, verbose=0)
            yield self.classifier.probabilities(outputs)

    def add_to(self, validation: EnsembleValidation) -> None:
        """Lets a validation that starts anew know each member."""
        for step, vote in zip(self._steps, self.votes, strict=True):
            with self.member(step) as model:
                validation.add_member(model, vote)

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int | None = None,
        voting: str = "soft",
        priors: ArrayLike | None = None,
        verbose: int = 1,
    ) -> dict[str, float]:
        """Accuracy and negative log-likelihood of the ensemble.

        Args:
            x: Inputs, or a `tf.data.Dataset` of batches `(x, y)` that come in
                the same order in every pass.
            y: Labels, in any of the formats of training.

        The other arguments are those of `predict`.

        Returns:
            `{"accuracy": ..., "negative_log_likelihood": ...}`
        """
        inputs, labels = split_labels(self.classifier, x, y)
        probabilities = self.predict(
            inputs,
            batch_size=batch_size,
            voting=voting,
            priors=priors,
            verbose=verbose,
        )
        return {
            "accuracy": metrics.accuracy(probabilities, labels),
            "negative_log_likelihood": metrics.negative_log_likelihood(
                probabilities, labels
            ),
        }

    def select(
        self,
        num: int | None = None,
        *,
        validation_data: Any = None,
        batch_size: int | None = None,
        verbose: int = 1,
    ) -> "CheckpointEnsemble":
        """A smaller ensemble, which often predicts better and always faster.

        Args:
            num: At most so many members, at equal intervals, the final model
                among them (section 3.2 of the paper).
            validation_data: `(x, y)` or a dataset of batches: greedy forward
                selection on accuracy from the final model on. Never less
                accurate on these data than the final model alone. Use data
                that training has not seen.
            batch_size: As in `predict`.
            verbose: 0 for no progress bar.

        Returns:
            A new ensemble over the same run; votes stay what they are.
        """
        if (num is None) == (validation_data is None):
            raise ValueError(
                "select() takes either `num` or `validation_data`; received "
                f"num={num} and validation_data="
                f"{'None' if validation_data is None else '...'}."
            )
        if num is not None:
            if num < 1:
                raise ValueError(f"select(num={num}): at least 1.")
            positions = selection.equally_spaced(len(self), min(num, len(self)))
        else:
            inputs, labels = split_labels(
                self.classifier, *as_pair(validation_data)
            )
            outputs = self.member_probabilities(inputs, batch_size, verbose)
            positions = selection.greedy(
                np.stack(list(outputs)), self.votes, labels
            )
        return CheckpointEnsemble(
            self._run, self._model, [self._steps[p] for p in positions]
        )

    def take(self, steps: Iterable[int]) -> "CheckpointEnsemble":
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
        return CheckpointEnsemble(self._run, self._model, chosen)

    def as_model(
        self,
        *,
        voting: str = "soft",
        priors: ArrayLike | None = None,
        inputs: Any = None,
    ) -> keras.Model:
        """One ordinary Keras model that holds a copy of every member.

        Its output `probabilities` equals `predict`. It needs Keras and not this
        package to be saved as `.keras`, loaded and served. It is not compiled;
        compile it to call its `evaluate`.

        Args:
            voting: `"soft"` or `"hard"`, see `predict`.
            priors: Likewise. They become constants of the model.
            inputs: `keras.Input`s in the structure that the model is called
                with; needed only for a subclassed model.
        """
        check_voting(voting)
        return merging.merge(
            self.member_models(),
            self.votes,
            self.classifier,
            voting=voting,
            priors=checked_priors(priors, voting, self.classifier),
            inputs=inputs,
        )

    def member_models(self) -> list[keras.Model]:
        """A copy of the model for each member, with its weights."""
        members = copying.copies(self._model, len(self))
        for step, member in zip(self._steps, members, strict=True):
            self._run.load_member(step, member)
        return members

    def in_float32(self) -> "CheckpointEnsemble":
        """These members, computed in float32 where training used less.

        Mixed precision is made for training on GPUs; few other runtimes
        compute in it, and none gains accuracy from it.
        """
        if copying.is_float32(self._model):
            return self
        [model] = copying.copies(self._model, 1, in_float32=True)
        return CheckpointEnsemble(self._run, model, self._steps)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes a run directory with these members and the run's rounds.

        Raises:
            ValueError: If the directory already holds a run.
        """
        target = RunDirectory.create(
            pathlib.Path(directory).absolute(),
            self._run.header,
            self._model,
            base=self._run.base,
        )
        for record in self._run.rounds:
            step = record["step"]
            correct = self._run.correct(step)
            if step not in self._steps:
                target.add_round(record, correct, None)
                continue
            with self.member(step) as model:
                target.add_round(record, correct, model)
        target.finish()

    def _stages(
        self,
        outputs: Iterator[np.ndarray],
        voting: str,
        priors: np.ndarray | None,
    ) -> Iterator[np.ndarray]:
        total, sum_of_votes = 0.0, 0.0
        for vote, probabilities in zip(self.votes, outputs, strict=True):
            if voting == "hard":
                probabilities = metrics.one_hot_votes(probabilities)
            total = total + vote * probabilities.astype(np.float64)
            sum_of_votes += vote
            average = total / sum_of_votes
            if priors is not None:
                average = imbalance.threshold(average, priors)
            yield average.astype(np.float32)

    @contextlib.contextmanager
    def member(self, step: int) -> Iterator[keras.Model]:
        """The model with a member's weights; its own are put back after it."""
        kept = [np.array(weight) for weight in self._model.get_weights()]
        try:
            with generators_kept(self._model):
                self._run.load_member(step, self._model)
                yield self._model
        finally:
            self._model.set_weights(kept)


class ModelNeededError(ValueError):
    """A run whose model cannot be built without the user's own code."""


def _load_model(run: RunDirectory) -> keras.Model:
    if not run.has_model:
        raise ModelNeededError(
            f"{run.path} holds no architecture, because the model is "
            "subclassed. Build a model of that class, call it once on data, "
            "and pass it: CheckpointEnsemble.load(directory, model=model)."
        )
    try:
        return run.load_model()
    except (TypeError, ValueError) as error:
        raise ModelNeededError(
            f"The architecture in {run.path} cannot be rebuilt here. For a "
            "model with classes of your own, import them and decorate them "
            "with `@keras.saving.register_keras_serializable()`, or pass a "
            "built model: CheckpointEnsemble.load(directory, model=model). "
            f"Keras: {error}"
        ) from error


def _as_objects(array: Any) -> Any:
    """Texts in the form in which Keras reads them."""
    is_text = isinstance(array, np.ndarray) and array.dtype.kind in "US"
    return array.astype(object) if is_text else array


def check_voting(voting: str) -> None:
    if voting not in ("soft", "hard"):
        raise ValueError(f"voting must be 'soft' or 'hard', not {voting!r}.")


def checked_priors(
    priors: ArrayLike | None, voting: str, classifier: Classifier
) -> np.ndarray | None:
    """Priors that sum to 1, if there are any.

    Raises:
        ValueError: If they do not fit the classes or the voting.
    """
    if priors is None:
        return None
    if voting == "hard":
        raise ValueError(
            "priors are for voting='soft': they divide probabilities, and "
            "voting='hard' counts decisions. Leave one of the two out."
        )
    return imbalance.checked_priors(priors, classifier.num_classes)
