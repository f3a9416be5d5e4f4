"""The sample weights that a callback holds, and the pipelines that use them."""

from typing import Any

import tensorflow as tf

from cbnn_keras.data.pipelines import (
    EXPLICIT_FORM,
    indexed_pipeline,
    weighted_pipeline,
)
from cbnn_keras.data.sample_weights import SampleWeights


class WeightHolder:
    """What a callback has to do with the data: it makes the pipelines."""

    _weights: SampleWeights | None = None

    def weighted(self, x: Any, y: Any = None, **options: Any) -> Any:
        """`cbnn_keras.weighted` for this callback; takes its arguments."""
        dataset, weights = weighted_pipeline(x, y, **options)
        self._hold(weights)
        return dataset

    def attach_index(
        self,
        dataset: tf.data.Dataset,
        *,
        num_samples: int | None = None,
        sample_weight: Any = None,
    ) -> tf.data.Dataset:
        """For a pipeline of your own: `(x, y)` samples -> `(index, x, y)`.

        Attach the index before shuffling and look the weights up per batch,
        after the last `prefetch`. Samples that are blended (MixUp, CutMix) are
        to have their labels and weights blended alike:

            cbnn = CBNNCallback("runs/a", score_data=(x, y))

            def mix(index, x, y):
                share = tf.random.uniform([])
                other = tf.reverse(index, [0])
                x = share * x + (1 - share) * tf.reverse(x, [0])
                y = share * y + (1 - share) * tf.reverse(y, [0])
                return x, y, share, index, other

            def weigh(x, y, share, index, other):
                weight = share * cbnn.look_up(index)
                return x, y, weight + (1 - share) * cbnn.look_up(other)

            train = cbnn.attach_index(dataset).shuffle(10_000).batch(128)
            train = train.map(mix).prefetch(tf.data.AUTOTUNE).map(weigh)

        Resuming replays an epoch bit for bit only if the pipeline does so.

        Args:
            dataset: Single samples `(x, y)`, in the order of `score_data`.
            num_samples: Their number, where the dataset does not know it.
            sample_weight: Weights to start from, shape `(num_samples,)`.
        """
        indexed, weights = indexed_pipeline(
            dataset, num_samples=num_samples, sample_weight=sample_weight
        )
        self._hold(weights)
        return indexed

    def look_up(self, index: tf.Tensor) -> tf.Tensor:
        """The weights of samples by index, mean 1, float32."""
        return self._held_weights().look_up(index)

    @property
    def sample_weights(self) -> tf.Variable:
        """n * omega of the pipeline in use, mean 1, shape `(num_samples,)`.

        Where each of several processes has samples of its own, it is of
        those. Then, and above 2^24 samples, it is a copy, made when it is first
        read, which takes 4 bytes a sample: what is written to it changes no
        batch.
        """
        return self._held_weights().variable

    def _hold(self, weights: SampleWeights) -> None:
        weights.owner = self
        self._weights = weights

    def _held_weights(self) -> SampleWeights:
        if self._weights is None:
            raise ValueError(
                f"{type(self).__name__}: there are no sample weights yet. "
                + EXPLICIT_FORM
            )
        return self._weights
