"""All that there is to say about a run, as numbers."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbnn_keras import boosting, selection
from cbnn_keras.analysis import (
    calibration,
    diversity,
    performance,
    samples,
)
from cbnn_keras.analysis.calibration import Calibration
from cbnn_keras.analysis.class_weights import ClassWeights, weights_by_class
from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.run import Run
from cbnn_keras.validation import split_labels

Source = CheckpointEnsemble | str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Labelled:
    """Data that a run is judged by.

    Attributes:
        name: For people, such as that of a file.
        x: Inputs of the model.
        y: Labels, in any of the formats of training.
    """

    name: str
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Model:
    """How good one predictor is.

    Attributes:
        name: For people.
        error: Share of the samples, between 0 and 1.
        before: Calibration of its probabilities.
        after: That after temperature scaling, each half of the samples with
            the temperature of the other half.
        temperature: The mean of the two.
    """

    name: str
    error: float
    before: Calibration
    after: Calibration
    temperature: float


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What the members say of labelled data.

    Attributes:
        data: Inputs and labels as they were given.
        is_training: Whether the run was trained on them.
        labels: Class indices, shape `(num_samples,)`.
        probabilities: Shape `(num_members, num_samples, num_classes)`, or one
            column if binary.
        votes: Shape `(num_members,)`.
    """

    data: Labelled
    is_training: bool
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    votes: NDArray[np.float64]

    @functools.cached_property
    def ensemble_probabilities(self) -> np.ndarray:
        return boosting.combine_probabilities(self.probabilities, self.votes)

    @functools.cached_property
    def models(self) -> list[Model]:
        """The final model, the plain average, and the ensemble."""
        predictions = {
            "final model": self.probabilities[-1],
            "plain average": self.probabilities.mean(axis=0),
            "ensemble": self.ensemble_probabilities,
        }
        return [self._judge(name, p) for name, p in predictions.items()]

    @functools.cached_property
    def gained_and_lost(self) -> tuple[int, int]:
        """Samples that only the ensemble, and only the final model, gets."""
        by_ensemble, by_final = (
            boosting.predicted_classes(p) == self.labels
            for p in (self.ensemble_probabilities, self.probabilities[-1])
        )
        return (
            int((by_ensemble & ~by_final).sum()),
            int((by_final & ~by_ensemble).sum()),
        )

    @functools.cached_property
    def member_errors(self) -> NDArray[np.float64]:
        return performance.member_errors(self.probabilities, self.labels)

    @functools.cached_property
    def stage_errors(self) -> NDArray[np.float64]:
        return performance.stage_errors(
            self.probabilities, self.votes, self.labels
        )

    @functools.cached_property
    def size_errors(self) -> NDArray[np.float64]:
        return performance.size_errors(
            self.probabilities, self.votes, self.labels
        )

    @functools.cached_property
    def correlation(self) -> NDArray[np.float64]:
        return diversity.pairwise_correlation(self.probabilities)

    @functools.cached_property
    def disagreement(self) -> NDArray[np.float64]:
        return diversity.pairwise_disagreement(
            boosting.predicted_classes(self.probabilities)
        )

    def _judge(self, name: str, probabilities: np.ndarray) -> Model:
        scaled, temperatures = calibration.scale_by_halves(
            probabilities, self.labels
        )
        return Model(
            name=name,
            error=1 - selection.accuracy(probabilities, self.labels),
            before=calibration.calibration(probabilities, self.labels),
            after=calibration.calibration(scaled, self.labels),
            temperature=float(np.mean(temperatures)),
        )


@dataclasses.dataclass(frozen=True)
class Training:
    """What there is to see in the training data.

    Attributes:
        by_class: Average weights.
        is_same: Whether the final member is right on the samples that the run
            says it is right on; if not, these are not quite its inputs.
    """

    by_class: ClassWeights
    is_same: bool


@dataclasses.dataclass(frozen=True)
class Scrutiny:
    """Labels that were looked at, with what they are labels of.

    Attributes:
        data: Those of training, if they are there.
        is_training: Whether they are.
        suspects: In the order of the data.
    """

    data: Labelled
    is_training: bool
    suspects: samples.Suspects


@dataclasses.dataclass(frozen=True)
class Findings:
    """All of it for one run.

    Attributes:
        name: Of the run, as short as can be among the others.
        place: Where it is, as it was given.
        run: Rounds, members and settings.
        steps: Of the members.
        ensemble: None where there are no data to predict, as the next two.
        evaluation: On data that were not trained on, if there are any.
        scrutiny: Of the training data, if they are there.
        training: None without the training data.
    """

    name: str
    place: str
    run: Run
    steps: list[int]
    ensemble: CheckpointEnsemble | None = None
    evaluation: Evaluation | None = None
    scrutiny: Scrutiny | None = None
    training: Training | None = None

    @functools.cached_property
    def weights(self) -> NDArray[np.float64]:
        """n * omega in the end."""
        return samples.final_weights(self.run)

    @functools.cached_property
    def mistakes_disagreement(self) -> NDArray[np.float64]:
        """Share of training samples that just one of two members gets right.

        It needs no data: runs keep what members got right.
        """
        return diversity.pairwise_disagreement(
            [self.run.correct(step) for step in self.steps]
        )


def examine(
    sources: Sequence[Source],
    data: Sequence[Labelled] = (),
    *,
    batch_size: int | None = None,
    verbose: int = 1,
) -> list[Findings]:
    """Finds out all that the data allow, for each run.

    Args:
        sources: Directories of runs, or ensembles.
        data: The training data of the runs, in order and not augmented, and
            data that were not trained on. Which is which is found out by the
            labels, whose hash is in the run.
        batch_size: As in `CheckpointEnsemble.predict`.
        verbose: 0 for no progress bars.

    Raises:
        ValueError: If labels do not fit, or if more than one of the data sets
            is not that of a run.
    """
    names = short_names([_place(source) for source in sources])
    if not data:
        return [
            _without_data(name, source)
            for name, source in zip(names, sources, strict=True)
        ]
    ensembles = [_as_ensemble(source) for source in sources]
    _check_same_classes(names, ensembles)
    labels = [_labels(ensembles[0], one) for one in data]
    is_own = [[e.run.is_trained_on(y) for y in labels] for e in ensembles]
    unseen = [i for i in range(len(data)) if not any(own[i] for own in is_own)]
    if len(unseen) > 1:
        unknown = ", ".join(data[i].name for i in unseen)
        raise ValueError(
            f"The labels of {unknown} are not those of training: give one data "
            "set at most that the runs were not trained on. If one of them was "
            "trained on, its labels must be in the order of training."
        )
    found = []
    for name, source, ensemble, own in zip(
        names, sources, ensembles, is_own, strict=True
    ):
        evaluations = [
            _evaluate(ensemble, data[i], labels[i], own[i], batch_size, verbose)
            for i in range(len(data))
            if own[i] or i in unseen
        ]
        found.append(_with_data(name, _place(source), ensemble, evaluations))
    return found


def _without_data(name: str, source: Source) -> Findings:
    run = samples.as_run(source)
    steps = run.members
    if isinstance(source, CheckpointEnsemble):
        steps = [member["step"] for member in source.members]
    if not steps:
        raise ValueError(
            f"{source}: the run has no members yet. Wait until training has "
            "come to its first checkpoint."
        )
    return Findings(name, _place(source), run, steps)


def _as_ensemble(source: Source) -> CheckpointEnsemble:
    if isinstance(source, CheckpointEnsemble):
        return source
    return CheckpointEnsemble.load(source)


def _place(source: Source) -> str:
    if not isinstance(source, CheckpointEnsemble):
        return str(source)
    path = getattr(source.run, "path", None)
    return f"{source.run.header['method']} run" if path is None else str(path)


def short_names(places: Sequence[str]) -> list[str]:
    """The last parts of paths, as many as tell them apart.

    Example:

    >>> short_names(["runs/a/cbnn", "runs/b/cbnn"])
    ['a/cbnn', 'b/cbnn']
    >>> short_names(["runs/a", "runs/a"])
    ['runs/a (1)', 'runs/a (2)']
    """
    parts = [pathlib.PurePath(place).parts for place in places]
    for num in range(1, max(map(len, parts)) + 2):
        names = [str(pathlib.PurePath(*part[-num:])) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{place} ({i})" for i, place in enumerate(places, start=1)]


def _check_same_classes(
    names: Sequence[str], ensembles: list[CheckpointEnsemble]
) -> None:
    numbers = [e.run.header["num_classes"] for e in ensembles]
    if len(set(numbers)) > 1:
        found = ", ".join(
            f"{name} has {number}"
            for name, number in zip(names, numbers, strict=True)
        )
        raise ValueError(
            f"The runs have different numbers of classes ({found}), so the "
            "same data cannot be given to all. Make a report for each."
        )


def _labels(ensemble: CheckpointEnsemble, data: Labelled) -> np.ndarray:
    try:
        labels = split_labels(ensemble.classifier, data.x, data.y)[1]
    except ValueError as error:
        raise ValueError(f"{data.name}: {error}") from error
    if len(labels) < 2:
        raise ValueError(f"{data.name}: two samples at least.")
    return labels


def _evaluate(
    ensemble: CheckpointEnsemble,
    data: Labelled,
    labels: np.ndarray,
    is_training: bool,
    batch_size: int | None,
    verbose: int,
) -> Evaluation:
    members = ensemble.member_probabilities(data.x, batch_size, verbose)
    return Evaluation(
        data=data,
        is_training=is_training,
        labels=labels,
        probabilities=np.stack(list(members)),
        votes=ensemble.votes,
    )


def _with_data(
    name: str,
    place: str,
    ensemble: CheckpointEnsemble,
    evaluations: list[Evaluation],
) -> Findings:
    run, steps = ensemble.run, [m["step"] for m in ensemble.members]
    found = Findings(name, place, run, steps, ensemble)
    if not evaluations:
        return found
    on_training = [e for e in evaluations if e.is_training]
    on_unseen = [e for e in evaluations if not e.is_training]
    looked_at = (on_training or on_unseen)[0]
    return dataclasses.replace(
        found,
        evaluation=(on_unseen or on_training)[0],
        scrutiny=_scrutinise(run, looked_at),
        training=_look_at_training(run, steps[-1], on_training[0])
        if on_training
        else None,
    )


def _scrutinise(run: Run, evaluation: Evaluation) -> Scrutiny:
    suspects = samples.rank_suspects(
        evaluation.probabilities,
        evaluation.votes,
        evaluation.labels,
        samples.weights_of(run, evaluation.labels),
    )
    return Scrutiny(evaluation.data, evaluation.is_training, suspects)


def _look_at_training(
    run: Run, last_step: int, evaluation: Evaluation
) -> Training:
    labels = evaluation.labels
    predicted = boosting.predicted_classes(evaluation.probabilities[-1])
    is_as_recorded = (predicted == labels) == run.correct(last_step)
    return Training(
        weights_by_class(
            samples.final_weights(run), labels, run.header["num_classes"]
        ),
        # Rounding may turn a tie; other inputs change much more.
        is_same=bool(np.mean(is_as_recorded) > 0.99),
    )
