"""Labelled data to judge an ensemble by, outside of training."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras import metrics
from cbnn_keras.labels import class_indices
from cbnn_keras.models.classifier import Classifier
from cbnn_keras.models.state import generators_kept


def as_pair(data: Any) -> tuple[Any, Any]:
    """`validation_data` in either of its forms -> `(x, y)`."""
    if isinstance(data, tf.data.Dataset):
        return data, None
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return data[0], data[1]
    raise ValueError(
        "validation_data must be `(x, y)` or a tf.data.Dataset of batches "
        f"(x, y); received {type(data).__name__}."
    )


def split_labels(
    classifier: Classifier, x: Any, y: Any = None
) -> tuple[Any, np.ndarray]:
    """Inputs for `predict` and the class index of each sample.

    Args:
        classifier: Says which labels fit.
        x: Inputs, or a `tf.data.Dataset` of batches `(x, y)`.
        y: Labels in any of the formats of training, or None with a dataset.
    """
    if isinstance(x, tf.data.Dataset):
        if y is not None:
            raise ValueError("A dataset brings its own labels; leave `y` out.")
        x, y = _split_dataset(x)
    elif y is None:
        raise ValueError(
            "The labels are missing: give `x, y` or a tf.data.Dataset of "
            "batches (x, y)."
        )
    labels = class_indices(
        y, classifier.num_classes, is_binary=classifier.is_binary
    )
    if not isinstance(x, tf.data.Dataset):
        sizes = {len(array) for array in keras.tree.flatten(x)}
        if sizes != {len(labels)}:
            raise ValueError(
                f"There are {len(labels)} labels for inputs of length "
                f"{', '.join(map(str, sorted(sizes)))}: give one label a "
                "sample."
            )
    return x, labels


class EnsembleValidation:
    """Accuracy of an ensemble that is still growing.

    Keeps the vote-weighted sum of the members' probabilities, so that each
    member predicts once.
    """

    def __init__(
        self, data: Any, classifier: Classifier, batch_size: int
    ) -> None:
        self._inputs, self._labels = split_labels(classifier, *as_pair(data))
        self._classifier = classifier
        self._batch_size = batch_size
        self._sum: Any = 0.0
        self._sum_of_votes = 0.0

    def add_member(self, model: keras.Model, vote: float) -> None:
        self._sum = self._sum + vote * self._predict(model)
        self._sum_of_votes += vote

    def accuracy(self) -> float:
        """Of the members so far."""
        return metrics.accuracy(self._sum / self._sum_of_votes, self._labels)

    def accuracy_with(self, model: keras.Model, vote: float) -> float:
        """Of the members so far together with a model that has this vote."""
        total = self._sum + vote * self._predict(model)
        mean = total / (self._sum_of_votes + vote)
        return metrics.accuracy(mean, self._labels)

    def _predict(self, model: keras.Model) -> np.ndarray:
        is_dataset = isinstance(self._inputs, tf.data.Dataset)
        with generators_kept(model):
            outputs = model.predict(
                self._inputs,
                batch_size=None if is_dataset else self._batch_size,
                verbose=0,
            )
        return self._classifier.probabilities(outputs).astype(np.float64)


def _split_dataset(dataset: tf.data.Dataset) -> tuple[Any, np.ndarray]:
    spec = dataset.element_spec
    is_pair = isinstance(spec, tuple) and len(spec) >= 2
    if not is_pair or getattr(spec[1], "shape", None) == ():
        raise ValueError(
            "The dataset must give batches (x, y): add `.batch(...)` to single "
            f"examples. Its elements are {spec}."
        )
    labels = dataset.map(lambda x, y, *_: y)
    first, second = (
        np.concatenate([y.numpy() for y in labels]) for _ in range(2)
    )
    # Members predict in separate passes: sample i must stay sample i.
    if not np.array_equal(first, second):
        raise ValueError(
            "The dataset gives its samples in another order in every pass, so "
            "members and labels would not match. Remove `.shuffle(...)`."
        )
    # A tuple of one: Keras would take a pair of inputs for (x, y).
    return dataset.map(lambda x, y, *_: (x,)), first
