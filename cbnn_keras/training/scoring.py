"""What the model in training gets right: one pass over its samples."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.models import replicas
from cbnn_keras.models.classifier import Classifier


class Scorer:
    """Finds the predicted classes of a model that is being trained.

    A function of its own, so that nothing of `fit` is touched: no metric, no
    log, no weight. Under a strategy every replica takes its turn at a batch.
    """

    def __init__(self, model: keras.Model, classifier: Classifier) -> None:
        threshold = 0.0 if classifier.from_logits else 0.5

        def predicted(x: Any) -> tuple[tf.Tensor, tf.Tensor]:
            scores = model(x, training=False)
            finite = tf.reduce_all(tf.math.is_finite(scores))
            if classifier.is_binary:
                # Two columns whose order is that of the two probabilities.
                scores = tf.concat([threshold - scores, scores - threshold], 1)
            best = tf.reduce_max(scores, axis=1, keepdims=True)
            is_best = tf.equal(scores, best)
            is_tie = tf.reduce_sum(tf.cast(is_best, tf.int32), axis=1) > 1
            classes = tf.argmax(scores, axis=1, output_type=tf.int32)
            return tf.where(is_tie, -1, classes), finite

        self._strategy = model.distribute_strategy
        self.num_replicas = self._strategy.num_replicas_in_sync
        self._is_distributed = replicas.is_distributed(model)
        step = (
            (lambda x: self._strategy.run(predicted, args=(x,)))
            if self._is_distributed
            else predicted
        )
        self._step = (
            step
            if model.run_eagerly
            else tf.function(
                step, reduce_retracing=True, jit_compile=model.jit_compile
            )
        )

    def predicted_classes(self, batches: Iterable[Any]) -> np.ndarray:
        """The predicted class of every sample; -1 where scores are tied.

        Raises:
            FloatingPointError: If an output is not finite.
        """
        # Nothing is fetched before the last batch: a GPU is never waited for.
        if self._is_distributed:
            results = list(self._on_replicas(iter(batches)))
        else:
            results = [self._step(x) for x in batches]
        if not all(bool(finite) for _, finite in results):
            raise FloatingPointError("the model's outputs are not finite")
        return np.concatenate([classes.numpy() for classes, _ in results])

    def _on_replicas(
        self, batches: Iterator[Any]
    ) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        while group := list(itertools.islice(batches, self.num_replicas)):
            # Those for whom nothing is left do the last batch once more.
            shares = group + group[-1:] * (self.num_replicas - len(group))
            result = self._step(
                self._strategy.experimental_distribute_values_from_function(
                    lambda context, shares=shares: shares[
                        context.replica_id_in_sync_group
                    ]
                )
            )
            classes, finite = map(
                self._strategy.experimental_local_results, result
            )
            yield from list(zip(classes, finite, strict=True))[: len(group)]
