"""Accuracy on validation data of an ensemble that is still growing."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras import metrics
from cbnn_keras.data.labelled import as_pair, check_same_length, split_labels
from cbnn_keras.models.classifier import Classifier
from cbnn_keras.runs.manifest import Round

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

    def add_member(self, model: keras.Model, record: Round) -> None:
        """Takes a member in."""
        self._votes[record.step] = record.vote
        self._members[record.step] = self._predict(model)

    def accuracy(self, voters: list[int]) -> float:
        """The accuracy of the members of these steps."""
        votes = [self._votes[step] for step in voters]
        return self._accuracy([self._members[s] for s in voters], votes)

    def accuracy_with(self, voters: list[int], model: keras.Model) -> float:
        """Their accuracy together with a model that votes as the last one."""
        votes = [self._votes[step] for step in voters] or [1.0]
        members = [self._members[step] for step in voters]
        votes += votes[-1:] if members else []
        return self._accuracy([*members, self._predict(model)], votes)

    def _accuracy(self, members: list[np.ndarray], votes: list[float]) -> float:
        mean = metrics.weighted_mean(np.stack(members), votes)
        return metrics.accuracy(mean, self._labels)

    def _predict(self, model: keras.Model) -> np.ndarray:
        is_dataset = isinstance(self._inputs, tf.data.Dataset)
        size = None if is_dataset else self._batch_size
        found = self._classifier.predict(model, self._inputs, size)
        check_same_length(_NAME, len(self._labels), len(found))
        return found
