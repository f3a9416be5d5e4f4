"""What the model in training gets right: one pass over its samples."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from cbnn_keras.data import sharding
from cbnn_keras.data.indexed import Samples, Track
from cbnn_keras.metrics import SMALLEST_PROBABILITY
from cbnn_keras.models import engine, replicas
from cbnn_keras.models.classifier import Classifier


@dataclasses.dataclass(frozen=True)
class Scores:
    """What a model says of every sample.

    Attributes:
        classes: Predicted classes, shape `(num_samples,)`; -1 where scores are
            tied.
        losses: -log p(label), with p clipped as in `metrics`, same shape.
    """

    classes: np.ndarray
    losses: np.ndarray


@dataclasses.dataclass(frozen=True)
class Scored:
    """What a process has found out of its part of the samples.

    Attributes:
        part: Which of all samples; those of all processes are all.
        correct: Which of them are right.
        losses: The loss of each, float32.
    """

    part: slice
    correct: np.ndarray
    losses: np.ndarray


class Scorer:
    """Scores samples by a model that is being trained.

    A function of its own, so that nothing of `fit` is touched: no metric, no
    log, no weight. Under a strategy every replica takes its turn at a batch.
    """

    def __init__(self, model: keras.Model, classifier: Classifier) -> None:
        def scored(outputs: Any, labels: Any) -> tuple[Any, Any, Any]:
            finite = ops.all(ops.isfinite(outputs))
            losses = _losses(outputs, labels, classifier)
            return _predicted(outputs, classifier), losses, finite

        self._model = model
        self._inference = engine.in_use().inference(model, scored)
        self.num_replicas = replicas.num_replicas(model)

    def score(self, batches: Iterable[Any], labels: np.ndarray) -> Scores:
        """Scores every sample.

        Args:
            batches: Inputs in the order of the labels.
            labels: Class indices, shape `(num_samples,)`.

        Raises:
            FloatingPointError: If an output is not finite.
        """
        engine.in_use().sync(self._model)
        # Nothing is fetched before the last batch: a GPU is never waited for.
        results = self._inference(
            _with_labels(batches, labels), num_samples=len(labels)
        )
        if not results:  # others have all of them
            return Scores(np.zeros(0, np.int32), np.zeros(0, np.float32))
        classes, losses, finite = zip(*results, strict=True)
        if not all(bool(is_finite) for is_finite in finite):
            raise FloatingPointError("the model's outputs are not finite")
        return Scores(_joined(classes), _joined(losses))

    def score_all(
        self,
        samples: Samples,
        labels: np.ndarray,
        batch_size: int,
        track: Track,
    ) -> "Scored":
        """Scores the samples that are this process's to score.

        Args:
            samples: The training samples.
            labels: Class indices of those that the process has.
            batch_size: Samples that are scored at once.
            track: Shows the progress.

        Raises:
            FloatingPointError: If an output is not finite.
        """
        processes = engine.in_use().processes()
        num_batches = samples.num_batches(batch_size)
        if samples.own is not None:  # its own, and no others
            batches = track(samples.inputs(batch_size), num_batches)
            scores = self.score(batches, labels)
            return Scored(samples.own, scores.classes == labels, scores.losses)
        own = sharding.own_range(num_batches, processes.index, processes.count)
        # To the very end, where a pass of another length is noticed.
        stop = None if own.stop == num_batches else own.stop
        batches = itertools.islice(samples.inputs(batch_size), own.start, stop)
        part = slice(own.start * batch_size, own.stop * batch_size)
        labels = labels[part]
        scores = self.score(track(batches, own.stop - own.start), labels)
        return Scored(part, scores.classes == labels, scores.losses)


def _joined(parts: Iterable[Any]) -> np.ndarray:
    return np.concatenate([ops.convert_to_numpy(part) for part in parts])


def _with_labels(
    batches: Iterable[Any], labels: np.ndarray
) -> Iterator[tuple[Any, np.ndarray]]:
    start = 0
    for x in batches:
        stop = start + keras.tree.flatten(x)[0].shape[0]
        yield x, tf.constant(labels[start:stop], tf.int32)
        start = stop


def _predicted(outputs: Any, classifier: Classifier) -> Any:
    """Predicted classes, -1 where several scores are the largest."""
    if classifier.is_binary:
        # Two columns whose order is that of the two probabilities.
        threshold = 0.0 if classifier.from_logits else 0.5
        outputs = ops.concatenate([threshold - outputs, outputs - threshold], 1)
    best = ops.max(outputs, axis=1, keepdims=True)
    is_best = ops.cast(ops.equal(outputs, best), "int32")
    is_tie = ops.sum(is_best, axis=1) > 1
    classes = ops.cast(ops.argmax(outputs, axis=1), "int32")
    return ops.where(is_tie, -1, classes)


def _losses(outputs: Any, labels: Any, classifier: Classifier) -> Any:
    """-log p(label) of each sample, in float32."""
    values = ops.cast(outputs, "float32")
    if classifier.is_binary:
        opposite = -values if classifier.from_logits else 1 - values
        values = ops.concatenate([opposite, values], 1)
    if not classifier.from_logits:
        logs = ops.log(ops.maximum(values, SMALLEST_PROBABILITY))
    elif classifier.is_binary:
        logs = ops.log_sigmoid(values)
    else:
        logs = ops.log_softmax(values)
    # `take_along_axis` takes TensorFlow long to trace.
    is_label = ops.equal(
        np.arange(logs.shape[1], dtype="int32"), labels[:, None]
    )
    own = ops.sum(ops.where(is_label, logs, 0.0), axis=1)
    return ops.minimum(-own, -np.log(SMALLEST_PROBABILITY))
