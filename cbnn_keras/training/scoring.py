"""What the model in training gets right: one pass over its samples."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.metrics import SMALLEST_PROBABILITY
from cbnn_keras.models import replicas
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


class Scorer:
    """Scores samples by a model that is being trained.

    A function of its own, so that nothing of `fit` is touched: no metric, no
    log, no weight. Under a strategy every replica takes its turn at a batch.
    """

    def __init__(self, model: keras.Model, classifier: Classifier) -> None:
        def scored(
            x: Any, labels: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            outputs = model(x, training=False)
            finite = tf.reduce_all(tf.math.is_finite(outputs))
            losses = _losses(outputs, labels, classifier)
            return _predicted(outputs, classifier), losses, finite

        self._strategy = model.distribute_strategy
        self.num_replicas = self._strategy.num_replicas_in_sync
        self._is_distributed = replicas.is_distributed(model)
        step = (
            (lambda *batch: self._strategy.run(scored, args=batch))
            if self._is_distributed
            else scored
        )
        self._step = (
            step
            if model.run_eagerly
            else tf.function(
                step, reduce_retracing=True, jit_compile=model.jit_compile
            )
        )

    def score(self, batches: Iterable[Any], labels: np.ndarray) -> Scores:
        """Scores every sample.

        Args:
            batches: Inputs in the order of the labels.
            labels: Class indices, shape `(num_samples,)`.

        Raises:
            FloatingPointError: If an output is not finite.
        """
        # Nothing is fetched before the last batch: a GPU is never waited for.
        pairs = _with_labels(batches, labels)
        if self._is_distributed:
            results = list(self._on_replicas(pairs))
        else:
            results = [self._step(x, y) for x, y in pairs]
        classes, losses, finite = zip(*results, strict=True)
        if not all(bool(is_finite) for is_finite in finite):
            raise FloatingPointError("the model's outputs are not finite")
        return Scores(
            np.concatenate([part.numpy() for part in classes]),
            np.concatenate([part.numpy() for part in losses]),
        )

    def _on_replicas(
        self, batches: Iterator[tuple[Any, tf.Tensor]]
    ) -> Iterator[tuple[tf.Tensor, ...]]:
        while group := list(itertools.islice(batches, self.num_replicas)):
            # Those for whom nothing is left do the last batch once more.
            shares = group + group[-1:] * (self.num_replicas - len(group))
            result = self._step(
                *(self._distributed(part) for part in zip(*shares, strict=True))
            )
            parts = map(self._strategy.experimental_local_results, result)
            yield from list(zip(*parts, strict=True))[: len(group)]

    def _distributed(self, shares: tuple[Any, ...]) -> Any:
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: shares[context.replica_id_in_sync_group]
        )


def _with_labels(
    batches: Iterable[Any], labels: np.ndarray
) -> Iterator[tuple[Any, tf.Tensor]]:
    start = 0
    for x in batches:
        stop = start + tf.nest.flatten(x)[0].shape[0]
        yield x, tf.constant(labels[start:stop], tf.int32)
        start = stop


def _predicted(outputs: tf.Tensor, classifier: Classifier) -> tf.Tensor:
    """Predicted classes, -1 where several scores are the largest."""
    if classifier.is_binary:
        # Two columns whose order is that of the two probabilities.
        threshold = 0.0 if classifier.from_logits else 0.5
        outputs = tf.concat([threshold - outputs, outputs - threshold], 1)
    best = tf.reduce_max(outputs, axis=1, keepdims=True)
    is_best = tf.equal(outputs, best)
    is_tie = tf.reduce_sum(tf.cast(is_best, tf.int32), axis=1) > 1
    classes = tf.argmax(outputs, axis=1, output_type=tf.int32)
    return tf.where(is_tie, -1, classes)


def _losses(
    outputs: tf.Tensor, labels: tf.Tensor, classifier: Classifier
) -> tf.Tensor:
    """-log p(label) of each sample, in float32."""
    values = tf.cast(outputs, tf.float32)
    if classifier.is_binary:
        opposite = -values if classifier.from_logits else 1 - values
        values = tf.concat([opposite, values], 1)
    if not classifier.from_logits:
        logs = tf.math.log(tf.maximum(values, SMALLEST_PROBABILITY))
    elif classifier.is_binary:
        logs = tf.math.log_sigmoid(values)
    else:
        logs = tf.nn.log_softmax(values)
    losses = -tf.gather(logs, labels, axis=1, batch_dims=1)
    return tf.minimum(losses, -np.log(SMALLEST_PROBABILITY))
