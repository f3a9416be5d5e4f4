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
from cbnn_keras.data.labelled import split_labels
from cbnn_keras.ensemble.ensemble import CheckpointEnsemble
from cbnn_keras.metrics import SMALLEST_PROBABILITY
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.run import Run
from cbnn_keras.support import files


@dataclasses.dataclass(frozen=True)
class HardestSamples:
    """Training samples, the hardest first, all of shape `(num,)`.

    Attributes:
        index: Positions in the training data.
        weight: See `final_weights`; the mean over all samples is 1.
        num_mistakes: In how many rounds the checkpoint was wrong.
        num_rounds: Of how many.
        label: The class that each was given, if it is known.
        decisions: The class that each member says, if it is known, shape
            `(num_members, num)`.
    """

    index: NDArray[np.int64]
    weight: NDArray[np.float64]
    num_mistakes: NDArray[np.int64]
    num_rounds: int
    label: NDArray[np.int64] | None = None
    decisions: NDArray[np.int64] | None = None


def hardest_samples(
    run: Run | CheckpointEnsemble | str | os.PathLike[str],
    num: int | None = None,
    *,
    opinions: "Suspects | None" = None,
) -> HardestSamples:
    """The training samples with the largest weights.

    Of equal weights, the one that more checkpoints were wrong about comes
    first, then the one that a later checkpoint was wrong about, so that methods
    that leave weights alone have a ranking too.

    Args:
        run: A run, its ensemble or its directory.
        num: How many; all by default.
        opinions: What `suspects` found in the training data, to have labels
            and what the members say of them too.

    Example:

    >>> from cbnn_keras.runs.run import MemoryRun
    >>> run = MemoryRun({"num_classes": 2, "num_samples": 3, "settings":
    ...     {"deviation_rate": 1.0, "expected_error": 0.05}})
    >>> run.add_round({"step": 1, "is_final": False}, np.array([1, 0, 1]), None)
    >>> run.add_round({"step": 2, "is_final": True}, np.array([1, 1, 0]), None)
    >>> hardest_samples(run)
    HardestSamples(index=array([1, 2, 0]), weight=array([1.5 , 0.75, 0.75]),
        num_mistakes=array([1, 1, 0]), num_rounds=2, label=None, decisions=None)
    """
    if num is not None and num < 1:
        raise ValueError(f"hardest_samples(num={num}): at least 1.")
    found = as_run(run)
    if opinions is not None and not found.is_trained_on(opinions.given):
        raise ValueError(
            "hardest_samples(opinions=...): those must be of the training "
            "data, in their order, which these are not."
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
        None if opinions is None else opinions.given[order],
        None if opinions is None else opinions.decisions[:, order],
    )


@dataclasses.dataclass(frozen=True)
class Suspects:
    """How likely the label of each sample is wrong.

    Attributes:
        ranking: Positions of all samples, the most suspicious first.
        quality: Between 0 and 1 for each sample, in the order of the data; the
            lower, the more suspicious.
        is_suspect: Whether the ensemble takes the label for less likely than a
            guess: p(label) < 1/k.
        given: The labels, as class indices.
        predicted: The class that the ensemble predicts.
        margin: Probability of the label minus that of the next best class.
        agreement: Share of the votes for the predicted class.
        weight: See `final_weights` if the data are those of training, else 1.
        decisions: The class that each member predicts, shape
            `(num_members, num_samples)`.
    """

    ranking: NDArray[np.int64]
    quality: NDArray[np.float64]
    is_suspect: NDArray[np.bool_]
    given: NDArray[np.int64]
    predicted: NDArray[np.int64]
    margin: NDArray[np.float64]
    agreement: NDArray[np.float64]
    weight: NDArray[np.float64]
    decisions: NDArray[np.int64]

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes a row a sample, in the order of the data.

        The first columns are those of cleanlab's `label_issues`, so that
        `CleanLearning().fit(x, y, label_issues=pandas.read_csv(path))` trains
        without the suspects. Sort by `rank`, from 1, to see them first.
        """
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
        ensemble: Or the directory of its run. All members are best; of an
            ensemble that was selected, only its members are asked.
        x: Inputs, or a `tf.data.Dataset` of batches `(x, y)`. The training data
            in their order, without augmentation, or any others, whose weights
            are then taken to be equal.
        y: Labels, in any of the formats of training.
        batch_size: As in `CheckpointEnsemble.predict`.
        verbose: 0 for no progress bar.
    """
    if not isinstance(ensemble, CheckpointEnsemble):
        ensemble = CheckpointEnsemble.load(ensemble)
    inputs, labels = split_labels(ensemble.classifier, x, y)
    weights = weights_of(ensemble.run, labels)
    members = ensemble.member_probabilities(inputs, batch_size, verbose)
    return rank_suspects(members, ensemble.votes, labels, weights)


def rank_suspects(
    members: Iterable[np.ndarray],
    votes: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
) -> Suspects:
    """`suspects`, from probabilities.

    Args:
        members: Those of each member, shape `(num_samples, num_classes)`, or
            one column if binary.
        votes: Shape `(num_members,)`.
        labels: Class indices, shape `(num_samples,)`.
        weights: See `final_weights`.
    """
    opinions = _Opinions(labels, votes)
    for probabilities in members:
        opinions.add(metrics.class_columns(probabilities))
    return opinions.suspects(weights)


class _Opinions:
    """What members say about labels, without keeping all they say."""

    def __init__(self, labels: np.ndarray, votes: np.ndarray) -> None:
        self._labels = labels
        self._shares = votes / votes.sum()
        self._average: Any = 0.0
        self._log_margin: Any = 0.0
        self._decisions: list[np.ndarray] = []

    def add(self, probabilities: np.ndarray) -> None:
        share = self._shares[len(self._decisions)]
        self._average = self._average + share * probabilities
        of_label, of_next = _rivals(probabilities, self._labels)
        self._log_margin = self._log_margin + share * _log_ratio(
            of_label, of_next
        )
        self._decisions.append(metrics.predicted_classes(probabilities))

    def suspects(self, weights: np.ndarray) -> Suspects:
        of_label, of_next = _rivals(self._average, self._labels)
        score = (_log_ratio(of_label, of_next) + self._log_margin) / 2 - np.log(
            np.maximum(weights, SMALLEST_PROBABILITY)
        )
        predicted = metrics.predicted_classes(self._average)
        decisions = np.array(self._decisions)
        return Suspects(
            ranking=np.argsort(score, kind="stable"),
            quality=1 / (1 + np.exp(-score)),
            # A guess is not below a guess, in float32 either.
            is_suspect=of_label < (1 - 1e-6) / self._average.shape[1],
            given=self._labels,
            predicted=predicted,
            margin=of_label - of_next,
            agreement=self._shares @ (decisions == predicted),
            weight=weights,
            decisions=decisions,
        )


def as_run(source: Run | CheckpointEnsemble | str | os.PathLike[str]) -> Run:
    """The run itself, of whatever stands for it; a directory is verified."""
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
    sample is. Those that the user gave no weight have 1.
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
