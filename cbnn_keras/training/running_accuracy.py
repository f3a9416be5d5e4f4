"""Accuracy on validation data of an ensemble that is still growing."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras import metrics
from cbnn_keras.data.labelled import as_pair, check_same_length, split_labels
from cbnn_keras.models.classifier import Classifier

_NAME = "validation_data=..."


class RunningAccuracy:
    """Accuracy of the members so far, each of which predicts once.

    Args:
        data: `(x, y)` or a dataset of batches, in the order of every pass.
        classifier: How outputs and labels are read.
        batch_size: The size of a batch of arrays.
    """

    def __init__(
        self, data: Any, classifier: Classifier, batch_size: int
    ) -> None:
        self._inputs, self._labels = split_labels(
            classifier, *as_pair(data), _NAME
        )
        self._classifier = classifier
        self._batch_size = batch_size
        self._mean = metrics.RunningMean()

    def add_member(self, model: keras.Model, vote: float) -> None:
        """Takes a member in."""
        self._mean.add(self._predict(model), vote)

    def accuracy(self) -> float:
        """The accuracy of the members so far."""
        return metrics.accuracy(self._mean.value, self._labels)

    def accuracy_with(self, model: keras.Model, vote: float) -> float:
        """The accuracy of the members together with a model of this vote."""
        mean = self._mean.value_with(self._predict(model), vote)
        return metrics.accuracy(mean, self._labels)

    def _predict(self, model: keras.Model) -> np.ndarray:
        is_dataset = isinstance(self._inputs, tf.data.Dataset)
        size = None if is_dataset else self._batch_size
        found = self._classifier.predict(model, self._inputs, size)
        check_same_length(_NAME, len(self._labels), len(found))
        return found
