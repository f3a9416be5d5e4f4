"""The samples that members fight with, and labels that are probably wrong."""

import csv
import dataclasses
import io
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbnn_keras import metrics
from cbnn_keras.ensemble.ensemble import CheckpointEnsemble
from cbnn_keras.metrics import SMALLEST_PROBABILITY
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.outputs import check_output
from cbnn_keras.runs.run import Run
from cbnn_keras.support import arguments, files
from cbnn_keras.support.failures import failures_explained


@dataclasses.dataclass(frozen=True)
class HardestSamples:
    """Training samples, the hardest first, all of shape `(num,)`.

    Attributes:
        index: Positions in the training data.
        weight: How much boosting has raised each weight, see `final_weights`;
            the mean over all samples is 1.
        num_mistakes: Number of rounds in which the checkpoint was wrong.
        num_rounds: Number of rounds there were.
        label: The class that each was given, if it is known.
        member_classes: The predicted class of each member, if it is known,
            shape `(num_members, num)`.
    """

    index: NDArray[np.int64]
    weight: NDArray[np.float64]
    num_mistakes: NDArray[np.int64]
    num_rounds: int
    label: NDArray[np.int64] | None = None
    member_classes: NDArray[np.int64] | None = None


def hardest_samples(
    run: Run | CheckpointEnsemble | str | os.PathLike[str],
    num: int | None = None,
    *,
    suspects: "Suspects | None" = None,
) -> HardestSamples:
    """The training samples with the largest weights.

    Where weights are equal, the one that more checkpoints were wrong about
    comes first, then the one that a later checkpoint was wrong about, so that
    methods that leave weights alone have a ranking too.

    Args:
        run: A run, its ensemble or its directory.
        num: How many samples; all by default.
        suspects: What the function `suspects` found in the training data, to
            have labels and predicted classes too.
    """
    if num is not None:
        num = arguments.integer("hardest_samples", "num", num)
    found = as_run(run)
    if suspects is not None and not found.is_trained_on(suspects.given):
        raise ValueError(
            "hardest_samples(suspects=...): these must be those of the "
            "training data, in their order, which they are not."
        )
    weights = final_weights(found)
    mistakes = np.zeros((len(found.rounds), len(weights)), dtype=bool)
    for row, record in zip(mistakes, found.rounds, strict=True):
        row[:] = ~found.correct(record.step)
    num_mistakes = mistakes.sum(axis=0)
    # The last key decides first; of the rounds, the last one.
    keys = [*mistakes, num_mistakes, weights]
    order = np.lexsort([-key.astype(np.float64) for key in keys])[:num]
    return HardestSamples(
        order,
        weights[order],
        num_mistakes[order],
        len(mistakes),
        None if suspects is None else suspects.given[order],
        None if suspects is None else suspects.member_classes[:, order],
    )


@dataclasses.dataclass(frozen=True)
class Suspects:
    """How likely the label of each sample is wrong.

    Every array has one value per sample, in the order of the data, but for
    `ranking` and `member_classes`.

    Attributes:
        ranking: Positions of all samples, the most suspicious first.
        quality: A score between 0 and 1; the lower, the more suspicious.
        is_suspect: Whether the ensemble takes the label for less likely than a
            guess: p(label) < 1/k.
        given: The labels, as class indices.
        predicted: The class that the ensemble predicts.
        margin: Probability of the label minus that of the next best class.
        agreement: Share of the votes for the predicted class.
        weight: How much boosting has raised the weight, see `final_weights`,
            if the data are those of training, else 1.
        member_classes: The predicted class of each member, shape
            `(num_members, num_samples)`.
    """

    ranking: NDArray[np.int64]
    quality: NDArray[np.float64]
    is_suspect: NDArray[np.bool_]
    given: NDArray[np.int64]
    predicted: NDArray[np.int64]
    margin: NDArray[np.float64]
    agreement: NDArray[np.floating]
    weight: NDArray[np.float64]
    member_classes: NDArray[np.int64]

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes one row per sample, in the order of the data.

        The first columns are those of cleanlab's `label_issues`, so that
        `CleanLearning().fit(x, y, label_issues=pandas.read_csv(path))` trains
        without the suspects. Sort by `rank`, from 1, to see them first.

        Raises:
            RunError: If the path is inside a run.
            OSError: If it cannot be written, as on a full disk.
        """
        check_output(path)
        rank = np.empty(len(self.ranking), dtype=np.int64)
        rank[self.ranking] = np.arange(1, len(self.ranking) + 1)
        columns = {
            "is_label_issue": self.is_suspect,
            "label_quality": self.quality,
            "given_label": self.given,
            "predicted_label": self.predicted,
            "index": np.arange(len(rank)),
            "rank": rank,
            "weight": self.weight,
            "margin": self.margin,
            "agreement": self.agreement,
        }
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        rows = zip(*(c.tolist() for c in columns.values()), strict=True)
        writer.writerows(rows)
        target = pathlib.Path(path)
        with failures_explained(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            files.replace_text(target, text.getvalue())


def suspects(
    ensemble: CheckpointEnsemble | str | os.PathLike[str],
    x: Any,
    y: Any = None,
    *,
    batch_size: int | None = None,
    verbose: int = 1,
) -> Suspects:
    """Ranks samples by how likely their label is wrong.

    A wrong label is one that members vote against, each of them clearly and
    all together, and that boosting has raised the weight of. So the score is
    the mean of two margins, of the ensemble and of the members on average,
    minus the logarithm of the weight. A margin is log(p(label) / p(next best)).
    Checkpoints from early in training have not learned wrong labels by heart
    yet, which is what makes them good witnesses.

    Args:
        ensemble: An ensemble, or the directory of its run. All members are
            best; if some were selected, only they are asked.
        x: Inputs, or a `tf.data.Dataset` of batches `(x, y)`. The training data
            in their order, without augmentation, or any others, whose weights
            are then taken to be equal.
        y: Labels, in any of the formats of training.
        batch_size: Number of samples that are predicted at once, as in
            `CheckpointEnsemble.predict`.
        verbose: 0 for no progress bar.
    """
    if not isinstance(ensemble, CheckpointEnsemble):
        ensemble = CheckpointEnsemble.load(ensemble)
    inputs, labels = ensemble.split_labels(x, y)
    weights = weights_of(ensemble.run, labels)
    members = ensemble.member_probabilities(inputs, batch_size, verbose)
    return rank_suspects(members, ensemble.votes, labels, weights)


def rank_suspects(
    members: Iterable[np.ndarray],
    votes: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
) -> Suspects:
    """Ranks samples as `suspects` does, from probabilities.

    Args:
        members: Probabilities of each member, one member after the other, shape
            `(num_samples, num_classes)`, or one column if binary. They are not
            kept.
        votes: The members' votes, shape `(num_members,)`.
        labels: Class indices, shape `(num_samples,)`.
        weights: How much boosting has raised each weight, see `final_weights`.
    """
    average, log_margin = metrics.RunningMean(), metrics.RunningMean()
    classes = []
    for vote, probabilities in zip(votes, members, strict=True):
        columns = metrics.class_columns(probabilities)
        average.add(columns, vote)
        log_margin.add(_log_ratio(*_rivals(columns, labels)), vote)
        classes.append(metrics.predicted_classes(columns))
    of_label, of_next = _rivals(average.value, labels)
    score = (_log_ratio(of_label, of_next) + log_margin.value) / 2 - np.log(
        np.maximum(weights, SMALLEST_PROBABILITY)
    )
    predicted = metrics.predicted_classes(average.value)
    member_classes = np.array(classes)
    return Suspects(
        ranking=np.argsort(score, kind="stable"),
        quality=1 / (1 + np.exp(-score)),
        # A guess is not below a guess, in float32 either.
        is_suspect=of_label < (1 - 1e-6) / average.value.shape[1],
        given=labels,
        predicted=predicted,
        margin=of_label - of_next,
        agreement=metrics.weighted_mean(member_classes == predicted, votes),
        weight=weights,
        member_classes=member_classes,
    )


def as_run(source: Run | CheckpointEnsemble | str | os.PathLike[str]) -> Run:
    """The run that a run, an ensemble or a directory, verified, stands for."""
    if isinstance(source, CheckpointEnsemble):
        return source.run
    if isinstance(source, Run):
        return source
    run = RunDirectory.open(pathlib.Path(source).absolute())
    run.verify()
    return run


def final_weights(run: Run) -> NDArray[np.float64]:
    """How much boosting has raised the weight of each sample, mean 1.

    n * omega after all rounds, shape `(num_samples,)`; relative to the user's
    own sample weights where there are any, which say nothing of how hard a
    sample is. Samples that the user gave no weight have 1.
    """
    first = run.first_distribution
    is_used = first > 0
    raised = np.ones(len(first))
    raised[is_used] = run.replay().distribution[is_used] / first[is_used]
    raised[is_used] /= raised[is_used].mean()
    return raised


def weights_of(run: Run, labels: np.ndarray) -> NDArray[np.float64]:
    """`final_weights` if the labels are those of training, else ones."""
    if run.is_trained_on(labels):
        return final_weights(run)
    return np.ones(len(labels))


def _rivals(
    probabilities: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of the label, and of the most probable other class."""
    rows = np.arange(len(labels))
    others = probabilities.copy()
    others[rows, labels] = -1
    return probabilities[rows, labels], others.max(axis=1)


def _log_ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.log(
        np.maximum(above, SMALLEST_PROBABILITY)
        / np.maximum(below, SMALLEST_PROBABILITY)
    )
