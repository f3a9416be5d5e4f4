"""Accuracy on validation data of an ensemble that is still growing."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras import calibration, metrics
from cbnn_keras.data.labelled import (
    are_finite,
    as_pair,
    check_same_length,
    split_labels,
)
from cbnn_keras.models.classifier import Classifier
from cbnn_keras.runs.manifest import Round
from cbnn_keras.runs.run import labels_id

_NAME = "validation_data=..."


class RunningAccuracy:
    """Accuracy of the members so far, each of which predicts once.

    Args:
        data: `(x, y)` or a dataset of batches, in the order of every pass.
        classifier: How outputs and labels are read.
        batch_size: The size of a batch of arrays.
        class_names: Those of training, where labels are names.
    """

    def __init__(
        self,
        data: Any,
        classifier: Classifier,
        batch_size: int,
        class_names: list[str] | None = None,
    ) -> None:
        self._inputs, self._labels = split_labels(
            classifier, *as_pair(data), _NAME, class_names
        )
        self._classifier = classifier
        self._batch_size = batch_size
        self._votes: dict[int, float] = {}
        self._members: dict[int, np.ndarray] = {}

    def predict(self, model: keras.Model) -> np.ndarray:
        """What a model says of the validation samples."""
        is_dataset = isinstance(self._inputs, tf.data.Dataset)
        size = None if is_dataset else self._batch_size
        found = self._classifier.predict(model, self._inputs, size)
        check_same_length(_NAME, len(self._labels), len(found))
        return found

    @property
    def has_finite_inputs(self) -> bool:
        """Whether no input is NaN or infinite, by reading all of them."""
        return are_finite(self._inputs)

    @property
    def label_entropy(self) -> float:
        """The loss of knowing nothing but how frequent classes are."""
        counts = np.bincount(self._labels)
        shares = counts[counts > 0] / len(self._labels)
        return float(-(shares * np.log(shares)).sum())

    @property
    def labels_id(self) -> str:
        """A hash that tells these labels from others."""
        return labels_id(self._labels, np.empty(0))

    def loss(self, probabilities: np.ndarray) -> float:
        """The mean of -log p(label), at the temperature that makes it least.

        So that a model that has become too sure is not taken for a worse one.

        Raises:
            ValueError: If a probability is not finite.
        """
        if not np.isfinite(probabilities).all():
            raise ValueError(
                f"{_NAME}: what the model says of some samples is not finite. "
                "Look for NaN in their inputs."
            )
        temperature = calibration.fit_temperature(probabilities, self._labels)
        return metrics.negative_log_likelihood(
            calibration.scale(probabilities, temperature), self._labels
        )

    def add_member(self, probabilities: np.ndarray, record: Round) -> None:
        """Takes a member in, by what `predict` gave."""
        self._votes[record.step] = record.vote
        self._members[record.step] = probabilities

    def accuracy(self, voters: list[int]) -> float:
        """The accuracy of the members of these steps."""
        votes = [self._votes[step] for step in voters]
        return self._accuracy([self._members[s] for s in voters], votes)

    def accuracy_with(self, voters: list[int], model: keras.Model) -> float:
        """Their accuracy together with a model that votes as the last one."""
        votes = [self._votes[step] for step in voters] or [1.0]
        members = [self._members[step] for step in voters]
        votes += votes[-1:] if members else []
        return self._accuracy([*members, self.predict(model)], votes)

    def _accuracy(self, members: list[np.ndarray], votes: list[float]) -> float:
        mean = metrics.weighted_mean(np.stack(members), votes)
        return metrics.accuracy(mean, self._labels)
