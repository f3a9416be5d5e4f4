"""What the members of a run say of labelled data, and how good that is."""

import dataclasses
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbnn_keras import metrics
from cbnn_keras.analysis import calibration, diversity, performance
from cbnn_keras.analysis.calibration import Calibration
from cbnn_keras.calibration import CalibrationRecord, prediction_sets


@dataclasses.dataclass(frozen=True)
class Labelled:
    """Data that a run is judged by.

    Attributes:
        name: What people call them, such as the name of a file.
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
        name: What people call it.
        error: Share of the samples that it is wrong about.
        before: Calibration of its probabilities.
        after: Calibration after temperature scaling, each half of the samples
            with the temperature of the other half.
        temperature: The mean of the two temperatures.
    """

    name: str
    error: float
    before: Calibration
    after: Calibration
    temperature: float


@dataclasses.dataclass(frozen=True)
class Sets:
    """How good the sets of a calibrated ensemble are.

    Attributes:
        coverage: Share of the samples whose label is in their set.
        size: Number of classes in a set, on average.
        empty: Share of the sets that have no class.
    """

    coverage: float
    size: float
    empty: float


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What the members say of labelled data.

    Attributes:
        data: Inputs and labels as they were given.
        is_training: Whether the run was trained on them.
        is_certain: Whether there is no doubt about that.
        last: What the last member is: the final model, if training is over.
        labels: Class indices, shape `(num_samples,)`.
        probabilities: What each member predicts, shape `(num_members,
            num_samples, num_classes)`, or one column if binary.
        votes: The members' votes, shape `(num_members,)`.
        calibration: What the run was calibrated with, if it was for them.
    """

    data: Labelled
    is_training: bool
    is_certain: bool
    last: str
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    votes: NDArray[np.float64]
    calibration: CalibrationRecord | None = None

    @functools.cached_property
    def ensemble_probabilities(self) -> np.ndarray:
        return metrics.weighted_mean(self.probabilities, self.votes)

    @functools.cached_property
    def calibrated(self) -> Calibration | None:
        """The ensemble with the calibration that the run keeps, if any."""
        scaled = self._scaled
        if scaled is None:
            return None
        return calibration.calibration(scaled, self.labels)

    @functools.cached_property
    def sets(self) -> Sets | None:
        """The sets that the run was calibrated for, if it was for some."""
        scaled, record = self._scaled, self.calibration
        if scaled is None or record is None or record.threshold is None:
            return None
        found = prediction_sets(scaled, record.threshold)
        sizes = found.sum(axis=1)
        return Sets(
            coverage=float(found[np.arange(len(found)), self.labels].mean()),
            size=float(sizes.mean()),
            empty=float((sizes == 0).mean()),
        )

    @functools.cached_property
    def _scaled(self) -> np.ndarray | None:
        if self.calibration is None:
            return None
        return self.calibration.scaling(self.ensemble_probabilities)

    @functools.cached_property
    def models(self) -> list[Model]:
        """The last member, the plain average, and the ensemble."""
        predictions = {
            self.last: self.probabilities[-1],
            "plain average": self.probabilities.mean(axis=0),
            "ensemble": self.ensemble_probabilities,
        }
        return [self._judge(name, p) for name, p in predictions.items()]

    @functools.cached_property
    def gained_and_lost(self) -> tuple[int, int]:
        """Number of samples that only the ensemble, and only the last, gets."""
        by_ensemble, by_last = (
            metrics.predicted_classes(p) == self.labels
            for p in (self.ensemble_probabilities, self.probabilities[-1])
        )
        return (
            int((by_ensemble & ~by_last).sum()),
            int((by_last & ~by_ensemble).sum()),
        )

    @functools.cached_property
    def likelihood_gain(self) -> tuple[float, float]:
        """By how much -log p(label) falls from the last member to the ensemble.

        The mean over the samples, and its standard error.
        """
        rows = np.arange(len(self.labels))
        last, ensemble = (
            -np.log(
                np.maximum(
                    metrics.class_columns(p)[rows, self.labels],
                    metrics.SMALLEST_PROBABILITY,
                )
            )
            for p in (self.probabilities[-1], self.ensemble_probabilities)
        )
        gains = last - ensemble
        return float(gains.mean()), float(gains.std() / len(gains) ** 0.5)

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
            metrics.predicted_classes(self.probabilities)
        )

    def _judge(self, name: str, probabilities: np.ndarray) -> Model:
        scaled, temperatures = calibration.scale_by_halves(
            probabilities, self.labels
        )
        return Model(
            name=name,
            error=1 - metrics.accuracy(probabilities, self.labels),
            before=calibration.calibration(probabilities, self.labels),
            after=calibration.calibration(scaled, self.labels),
            temperature=float(np.mean(temperatures)),
        )
