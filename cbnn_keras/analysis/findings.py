"""What there is to say about a run, as numbers."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbnn_keras import metrics
from cbnn_keras.analysis import diversity, samples
from cbnn_keras.analysis.class_weights import ClassWeights, weights_by_class
from cbnn_keras.analysis.evaluation import Evaluation, Labelled
from cbnn_keras.ensemble import CheckpointEnsemble, ModelNeededError
from cbnn_keras.runs.run import Run
from cbnn_keras.support.files import MAX_BYTES

Source = CheckpointEnsemble | str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Scrutiny:
    """Labels that were looked at, with what they are labels of.

    Attributes:
        data: The data: those of training, if they are there.
        is_training: Whether they are those of training.
        suspects: How likely each label is wrong.
    """

    data: Labelled
    is_training: bool
    suspects: samples.Suspects


@dataclasses.dataclass(frozen=True)
class Findings:
    """What was found out about one run.

    Attributes:
        name: The name of the run, as short as can be among the others.
        location: The path of its directory, or its method if it is in memory.
        run: Rounds, members and settings.
        steps: The members' steps.
        ensemble: The members; None without data, as are the next two.
        evaluation: How good the members are on data that were not trained on,
            or on the training data if there are no others.
        scrutiny: A look at the labels of the training data, or of the others
            if those are not there.
        by_class: Average weights; None without the training data.
        notes: What people should know about the run or the data.
    """

    name: str
    location: str
    run: Run
    steps: list[int]
    ensemble: CheckpointEnsemble | None = None
    evaluation: Evaluation | None = None
    scrutiny: Scrutiny | None = None
    by_class: ClassWeights | None = None
    notes: tuple[str, ...] = ()

    @functools.cached_property
    def weights(self) -> NDArray[np.float64]:
        """How much boosting has raised each weight: `final_weights`."""
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
    """Finds out what the data allow, for each run.

    Args:
        sources: Directories of runs, or ensembles.
        data: The training data of the runs, in order and not augmented, and
            data that were not trained on. Which is which is found out by the
            labels, whose hash is in the run.
        batch_size: Number of samples that are predicted at once, as in
            `CheckpointEnsemble.predict`.
        verbose: 0 for no progress bars.

    Raises:
        ValueError: If labels do not fit, or if more than one of the data sets
            is not that of a run.
    """
    names = short_names([_location(source) for source in sources])
    if not data:
        return [
            _without_data(name, source)
            for name, source in zip(names, sources, strict=True)
        ]
    ensembles = [as_ensemble(source) for source in sources]
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
        found.append(_with_data(name, _location(source), ensemble, evaluations))
    return found


def _without_data(name: str, source: Source) -> Findings:
    run = samples.as_run(source)
    steps = run.voters
    if isinstance(source, CheckpointEnsemble):
        steps = [record.step for record in source.rounds]
    if not steps:
        raise ValueError(
            f"{source}: the run has no members yet. Wait until training has "
            "come to its first checkpoint."
        )
    notes = tuple(_notes_of(run))
    return Findings(name, _location(source), run, steps, notes=notes)


def _notes_of(run: Run) -> Iterator[str]:
    if not run.rounds[-1].is_final:
        yield "The run is not finished: there will be more members."
    elif run.rounds[-1].step not in run.members:
        yield (
            "The model at the end of training is not a member: it was no "
            "better than chance on the weighted training set."
        )


def as_ensemble(
    source: Source,
    max_bytes: int = MAX_BYTES,
    custom_objects: Mapping[str, Any] | None = None,
) -> CheckpointEnsemble:
    """The ensemble of a run directory, or the one that was given.

    Args:
        source: The ensemble, or where its run is.
        max_bytes: What the run may take, see `CheckpointEnsemble.load`.
        custom_objects: Classes of the user by name, likewise.
    """
    if isinstance(source, CheckpointEnsemble):
        return source
    try:
        return CheckpointEnsemble.load(
            source, max_bytes=max_bytes, custom_objects=custom_objects
        )
    except ModelNeededError as error:
        raise ValueError(
            f"{error} Then, in Python: write_report([ensemble], 'report.html', "
            "data=[Labelled('test', x, y)])."
        ) from error


def _location(source: Source) -> str:
    if not isinstance(source, CheckpointEnsemble):
        return str(pathlib.Path(source).absolute())
    path = getattr(source.run, "path", None)
    method = source.run.header.method
    return f"{method} run" if path is None else str(path)


def short_names(locations: Sequence[str]) -> list[str]:
    """The last parts of paths, as many as tell them apart.

    Example:

    >>> short_names(["runs/a/cbnn", "runs/b/cbnn"])
    ['a/cbnn', 'b/cbnn']
    >>> short_names(["runs/a", "runs/a"])
    ['runs/a (1)', 'runs/a (2)']
    """
    parts = [pathlib.PurePath(location).parts for location in locations]
    for num in range(1, max(map(len, parts)) + 2):
        names = [str(pathlib.PurePath(*part[-num:])) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({i})" for i, name in enumerate(locations, start=1)]


def _check_same_classes(
    names: Sequence[str], ensembles: list[CheckpointEnsemble]
) -> None:
    numbers = [e.run.header.num_classes for e in ensembles]
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
        labels = ensemble.split_labels(data.x, data.y)[1]
    except ValueError as error:
        raise ValueError(f"{data.name}: {error}") from error
    if len(labels) < 2:
        raise ValueError(f"{data.name} must have two samples at least.")
    _check_inputs(ensemble, data)
    return labels


def _check_inputs(ensemble: CheckpointEnsemble, data: Labelled) -> None:
    """Refuses arrays that do not fit, before Keras does in its own words."""
    expected = {
        tensor.name: tuple(tensor.shape[1:])
        for tensor in getattr(ensemble.model, "inputs", None) or []
    }
    if isinstance(data.x, dict) and expected and {*data.x} != {*expected}:
        raise ValueError(
            f"{data.name} holds {', '.join(sorted(data.x))}, but the inputs of "
            f"the model are {', '.join(sorted(expected))}. Give one array for "
            "each by its name, or just `x` if there is one, and nothing else "
            "but `y`."
        )
    if isinstance(data.x, np.ndarray) and len(expected) == 1:
        [shape] = expected.values()
        found = data.x.shape[1:]
        fits = [a in (None, b) for a, b in zip(shape, found, strict=False)]
        if len(found) == len(shape) and not all(fits):
            raise ValueError(
                f"{data.name}: samples have the shape {found}, but the model "
                f"takes {shape}."
            )


def _evaluate(
    ensemble: CheckpointEnsemble,
    data: Labelled,
    labels: np.ndarray,
    has_own_labels: bool,
    batch_size: int | None,
    verbose: int,
) -> Evaluation:
    members = ensemble.member_probabilities(data.x, batch_size, verbose)
    probabilities = np.stack(list(members))
    is_training = has_own_labels and _is_as_recorded(
        ensemble, probabilities[-1], labels
    )
    num_trained_on = ensemble.run.header.num_samples
    return Evaluation(
        data=data,
        is_training=is_training,
        is_certain=is_training or len(labels) != num_trained_on,
        last=_last(ensemble),
        labels=labels,
        probabilities=probabilities,
        votes=ensemble.votes,
        calibration=ensemble.calibration,
    )


def _is_as_recorded(
    ensemble: CheckpointEnsemble, last: np.ndarray, labels: np.ndarray
) -> bool:
    """Whether the last member is right where the run says that it is.

    Labels may be those of training by chance, if classes take turns.
    """
    is_right = metrics.predicted_classes(last) == labels
    recorded = ensemble.run.correct(ensemble.rounds[-1].step)
    # Rounding may turn a tie; other inputs change much more.
    return bool(np.mean(is_right == recorded) > 0.99)


def _last(ensemble: CheckpointEnsemble) -> str:
    is_one_run = ensemble.run.header.method != "parallel"
    is_final = ensemble.rounds[-1].is_final
    return "final model" if is_final and is_one_run else "last member"


def _with_data(
    name: str,
    location: str,
    ensemble: CheckpointEnsemble,
    evaluations: list[Evaluation],
) -> Findings:
    run, steps = ensemble.run, [r.step for r in ensemble.rounds]
    on_training = [e for e in evaluations if e.is_training]
    # One that only has the labels of training comes last.
    on_unseen = sorted(
        (e for e in evaluations if not e.is_training),
        key=lambda e: run.is_trained_on(e.labels),
    )
    notes = [_doubt(run, e) for e in on_unseen if not e.is_certain]
    found = Findings(
        name, location, run, steps, ensemble, notes=(*_notes_of(run), *notes)
    )
    if not evaluations:
        return found
    return dataclasses.replace(
        found,
        evaluation=(on_unseen or on_training)[0],
        scrutiny=_scrutinise(run, (on_training or on_unseen)[0]),
        by_class=weights_by_class(
            found.weights, on_training[0].labels, run.header.num_classes
        )
        if on_training
        else None,
    )


def _doubt(run: Run, evaluation: Evaluation) -> str:
    name = evaluation.data.name
    if run.is_trained_on(evaluation.labels):
        return (
            f"The labels of {name} are those of training, but the last member "
            "is right on other samples than it was then. If these are the "
            "training data, the inputs have changed, perhaps by preprocessing; "
            "they are taken for data that were not trained on."
        )
    return (
        f"{name} has as many samples as the training set. If these are the "
        "training data, give them in the order of training; they are taken for "
        "data that were not trained on."
    )


def _scrutinise(run: Run, evaluation: Evaluation) -> Scrutiny:
    weights = np.ones(len(evaluation.labels))
    if evaluation.is_training:
        weights = samples.final_weights(run)
    suspects = samples.rank_suspects(
        evaluation.probabilities, evaluation.votes, evaluation.labels, weights
    )
    return Scrutiny(evaluation.data, evaluation.is_training, suspects)
