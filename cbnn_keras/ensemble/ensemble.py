"""The ensemble that a run leaves: predict, evaluate, select, save, merge."""

import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, Unpack

import keras
import numpy as np
from numpy.typing import ArrayLike

from cbnn_keras.cascades import Cascade
from cbnn_keras.data.conversion import numbered_as
from cbnn_keras.data.labelled import as_pair, check_same_length
from cbnn_keras.ensemble import cascading, joining, merging, selection
from cbnn_keras.ensemble.distilling import Distilling
from cbnn_keras.ensemble.keras_metrics import KerasMetrics, labels_of
from cbnn_keras.ensemble.loading import (
    ModelNeededError,  # noqa: F401  (to be had here too)
    checked_objects,
    load_model,
    voting_members,
    warn_of_missing,
    warn_of_unfinished,
)
from cbnn_keras.ensemble.members import CACHE_BYTES, check_has_members
from cbnn_keras.ensemble.predicting import PredictOptions
from cbnn_keras.ensemble.quality import checked_quality
from cbnn_keras.ensemble.souping import Souping
from cbnn_keras.ensemble.voting import checked_priors
from cbnn_keras.metrics import accuracy, negative_log_likelihood
from cbnn_keras.models.foreign import Foreign
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.support import arguments
from cbnn_keras.support.files import MAX_BYTES


class CheckpointEnsemble(Distilling, Souping):
    """The members of a run, averaged as probabilities with their votes.

    Holds one model and swaps the members' weights into it, so that memory does
    not grow with their number; what the model held before is put back after
    each call. Members that were read from a directory are kept in memory, up to
    `cache_bytes`, so that small repeated calls do not read the disk each time.
    `as_model` is the form with a copy of the model for each member.

    Get one from `CBNNCallback.ensemble()` or `CheckpointEnsemble.load(...)`.

    Attributes:
        run: The run that the members are of.
        model: The model that members are loaded into.
        rounds: What each member's round left, in order of its step.
        votes: lambda of each member as computed, or what `select` has chosen
            instead, shape `(num_members,)`.
        classifier: How outputs of the model are read as probabilities.
        calibration: What `calibrate` found, if it was for these members and
            votes, or None.
    """

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        model: keras.Model | None = None,
        cache_bytes: int = CACHE_BYTES,
        *,
        custom_objects: Mapping[str, Any] | None = None,
        max_bytes: int = MAX_BYTES,
        members: str = "trusted",
        allow_missing: bool = False,
    ) -> "CheckpointEnsemble":
        """Opens a run directory after checking every file against its hash.

        The directory may be from someone else: nothing in it is run as code,
        and nothing is taken into memory that is larger than `max_bytes`. A
        model that is read from the directory stays under these rules in every
        copy that is made of it, as `as_model` and exports do.

        Args:
            directory: What `CBNNCallback` or `save` was given.
            model: Needed only for a subclassed model: one of the same class,
                built. Its weights are put back after each use.
            cache_bytes: How much of the members is kept in memory once it was
                read. Defaults to 1 GB (2**30 bytes); 0 reads the disk in every
                call.
            custom_objects: Your own classes and functions that the
                architecture may name, `{name: class}`. What is registered with
                `@keras.saving.register_keras_serializable()` need not be here.
            max_bytes: How much room the run and its model may take. Defaults
                to 4 GB (`4 * 2**30` bytes).
            members: `"trusted"`, those whose training error is near that of
                the last one (all, in a run of `CBNNCallback.paper` or of a
                baseline, and in what `save` has written), or `"all"`.
            allow_missing: Whether members whose files are missing or damaged
                are left out, with a warning that names them. Defaults to False:
                such a run is refused.

        Raises:
            RunError: If the directory is not a run, or something is wrong with
                a file. A `ValueError`.
            ModelNeededError: If the model cannot be built without your code.
        """
        room = arguments.integer(
            "CheckpointEnsemble.load", "cache_bytes", cache_bytes, at_least=0
        )
        foreign = Foreign(
            checked_objects(custom_objects),
            arguments.integer(
                "CheckpointEnsemble.load", "max_bytes", max_bytes
            ),
        )
        run = RunDirectory.open(
            pathlib.Path(directory).absolute(), foreign.max_bytes
        )
        if allow_missing:
            warn_of_missing(run)
        run.verify()
        # Before the model: a run that has just begun holds none either.
        check_has_members(run.members)
        steps = voting_members(run, members)
        if model is None:
            made = load_model(run, foreign)
            ensemble = cls(run, made, steps, room, foreign=foreign)
            run.load_member(run.members[-1], made)  # to be the final model
        elif not model.built:
            raise ValueError(
                "CheckpointEnsemble.load(model=...): the model has no weights "
                "yet. Build it first: call it on a batch of data."
            )
        else:
            ensemble = cls(run, model, steps, room)
        if not run.is_finished:
            warn_of_unfinished(run)
        return ensemble

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        metrics: Sequence[Any] = (),
        **options: Unpack[PredictOptions],
    ) -> dict[str, float]:
        """Accuracy and negative log-likelihood, and metrics of Keras.

        Args:
            x: Inputs, or a `tf.data.Dataset` of batches `(x, y)` that come in
                the same order in every pass.
            y: Labels, in any of the formats of training.
            metrics: Metrics of Keras, as in `compile`, beside those that the
                model was compiled with. A run that was loaded is not compiled.
            **options: The other arguments of `predict`.

        Returns:
            `{"accuracy": ..., "negative_log_likelihood": ...}` and the metrics
            by name.
        """
        inputs, labels = self.split_labels(x, y, "evaluate()")
        found = self.predict(inputs, **options)
        check_same_length("evaluate()", len(labels), len(found))
        return self._judge(x, y, labels, metrics)(found)

    def _judge(
        self, x: Any, y: Any, labels: np.ndarray, metrics: Sequence[Any]
    ) -> Callable[[np.ndarray], dict[str, float]]:
        """All that `evaluate` says, of probabilities."""
        given = labels_of(x, y)
        of_keras = KerasMetrics(
            self.model,
            metrics,
            self.classifier,
            lambda: numbered_as(given(), self.run.header.class_names),
        )

        def judge(found: np.ndarray) -> dict[str, float]:
            own = {
                "accuracy": accuracy(found, labels),
                "negative_log_likelihood": negative_log_likelihood(
                    found, labels
                ),
            }
            return own | of_keras.values(found) | own

        return judge

    def select(
        self,
        num: int | None = None,
        *,
        validation_data: Any = None,
        by: Any = "likelihood",
        mode: str = "max",
        batch_size: int | None = None,
        verbose: int = 1,
    ) -> "CheckpointEnsemble":
        """Other members, or other votes, which may predict better or faster.

        Args:
            num: At most so many members, at equal intervals, the final model
                among them (section 3.2 of the paper).
            validation_data: `(x, y)` or a dataset of batches that training has
                not seen, to choose by.
            by: `"likelihood"`, the default: members gain votes, from the
                present ones on, as long as that makes the labels more likely by
                more than a standard error; also members of the run that were
                not trusted. See `selection.by_likelihood`. `"accuracy"`,
                another name of what `evaluate` gives, a metric of Keras, or a
                function of labels (class indices) and probabilities: from the
                final model on, members join as long as that makes it better,
                with the votes that they have. A thousand samples are too few
                to choose by accuracy.
            mode: Of `by`: `"max"` for what is to be large, or `"min"`.
            batch_size: As in `predict`.
            verbose: 0 for no progress bar.

        Returns:
            A new ensemble over the same run.
        """
        if (num is None) == (validation_data is None):
            raise ValueError(
                "select() takes either `num` or `validation_data`; received "
                f"num={num} and validation_data="
                f"{'None' if validation_data is None else '...'}."
            )
        if mode not in ("max", "min"):
            raise ValueError(
                f"select(mode={mode!r}): mode must be 'max' or 'min'."
            )
        if num is not None:
            wanted = min(arguments.integer("select", "num", num), len(self))
            positions = selection.equally_spaced(len(self), wanted)
            return self.take(self._steps[position] for position in positions)
        name = "select(validation_data=...)"
        x, y = as_pair(validation_data)
        inputs, labels = self.split_labels(x, y, name)
        is_likelihood = isinstance(by, str) and by == "likelihood"
        candidates = self._candidates() if is_likelihood else self
        outputs = np.stack(
            list(candidates.member_probabilities(inputs, batch_size, verbose))
        )
        check_same_length(name, len(labels), outputs.shape[1])
        if not is_likelihood:
            extra = [by] if isinstance(by, keras.metrics.Metric) else []
            judge = self._judge(x, y, labels, extra)
            quality = checked_quality(by, mode, labels, judge)
            positions = selection.greedy(outputs, self.votes, labels, quality)
            return self.take(self._steps[position] for position in positions)
        votes = selection.by_likelihood(outputs, candidates.votes, labels)
        chosen = np.flatnonzero(votes)
        steps = [candidates._steps[position] for position in chosen]
        return self._with(steps, votes[chosen])

    def _candidates(self) -> "CheckpointEnsemble":
        """All members of the run, those of this ensemble with their votes.

        Unless these were chosen by hand: then they are all there are.
        """
        if self._steps != self.run.voters:
            return self
        votes = dict(zip(self._steps, self.votes, strict=True))
        steps = list(self.run.members)
        return self._with(steps, [votes.get(step, 0.0) for step in steps])

    def cascade(
        self, validation_data: Any, *, loss: float = 0.001, **options: Any
    ) -> Cascade:
        """In which order to ask members, and when to stop, for an export.

        Args:
            validation_data: `(x, y)` or a dataset of batches that training has
                not seen.
            loss: Accuracy that may be lost; 0.001 is a tenth of a point.
            **options: See `cascading.choose_cascade`.
        """
        return cascading.choose_cascade(self, validation_data, loss, **options)

    def with_student(self, student: "CheckpointEnsemble") -> Self:
        """The members and a network that they taught, which votes as one more.

        For a cascade that asks the student first: it says most of what all say.
        In memory; export it, or save it.

        Args:
            student: What `distil` gave, of the members' architecture.

        Raises:
            ValueError: If it is another network.
        """
        run, step = joining.joined_run(self, student)
        votes = [*self.votes, run.round_at(step).vote]
        return type(self)(
            run,
            self.model,
            [*self._steps, step],
            votes=votes,
            foreign=self.foreign,
        )

    def as_model(
        self,
        *,
        voting: str = "soft",
        priors: ArrayLike | None = None,
        calibrated: bool = True,
        inputs: Any = None,
    ) -> keras.Model:
        """One ordinary Keras model that holds a copy of every member.

        Its output `probabilities` equals `predict`. It needs Keras and not this
        package to be saved as `.keras`, loaded and served. It is not compiled;
        compile it to call its `evaluate`.

        Args:
            voting: `"soft"` or `"hard"`, as in `predict`.
            priors: As in `predict`. They become constants of the model.
            calibrated: As in `predict`. So do temperature and share.
            inputs: `keras.Input`s in the structure that the model is called
                with; needed only for a subclassed model.
        """
        priors = checked_priors(voting, priors, self.classifier)
        with self.faults_of_model():
            return merging.merge(
                self.member_models(),
                self.votes,
                self.classifier,
                voting=voting,
                scaling=self.scaling(voting, calibrated),
                priors=priors,
                inputs=inputs,
            )
