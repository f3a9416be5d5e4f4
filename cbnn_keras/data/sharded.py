"""Very many samples in arrays, of which each device has a range of its own.

A process then reads, keeps and scores the samples of its own devices, and
nothing of the others: arrays that are mapped from files, or read when they are
sliced, are read there only. Every batch has as many samples of each range, and
a range is shuffled in itself, so that it is all the same how the devices are
divided among processes.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from cbnn_keras.data import order
from cbnn_keras.data.conversion import as_labels, inputs_of, length
from cbnn_keras.data.indexed import (
    ArraySamples,
    Augment,
    Finish,
    Samples,
    Track,
    unfinished,
    untracked,
)
from cbnn_keras.data.sharding import Part


class ShardedSamples(Samples):
    """The samples of this process, of those that are given.

    Args:
        x: Inputs of all samples, of which the own ones are read.
        y: Labels, likewise where they are an array of numbers.
        part: Which process it is.
    """

    def __init__(self, x: Any, y: Any, part: Part) -> None:
        num_samples = length(y)
        inputs = inputs_of(x, num_samples)
        if {length(a) for a in tf.nest.flatten(inputs)} != {num_samples}:
            ArraySamples(x, y)  # says what is wrong
        self.num_samples = int(num_samples or 0)
        self.own = part.own(self.num_samples)
        self._start = self.own.start
        self._part = part
        # Names have numbers by what there is of them in all samples.
        labels, names = (y, None) if _are_numbers(y) else as_labels(y)
        self._held = ArraySamples(
            tf.nest.map_structure(self._sliced, inputs), self._sliced(labels)
        )
        self.class_names = names

    def training_batches(
        self,
        next_key: Callable[[], tf.Tensor],
        *,
        batch_size: int,
        shuffle: bool | int,
        augment: Augment | None,
        finish: Finish = unfinished,
    ) -> tf.data.Dataset:
        """As of all samples, but for the index, which comes with shares.

        See `order.shard_batches`.
        """
        start, num = self._start, self._part.count

        def one_pass(_: tf.Tensor) -> tf.data.Dataset:
            key = next_key()
            indices = order.shard_batches(
                self.num_samples, shuffle, key, self._part, batch_size
            )
            return indices if augment is None else order.with_key(indices, key)

        passes = tf.data.Dataset.range(1).flat_map(one_pass)
        if augment is None:
            batches = passes.map(
                lambda i, share: ((i, share), *self._held.take(i - start))
            )
            return batches.prefetch(tf.data.AUTOTUNE).map(finish)

        def one_sample(own: Any, key: tf.Tensor) -> Any:
            x, y = self._held.take(own[0] - start)
            return own, augment(x, order.sample_seed(key, own[0])), y

        batches = (
            passes.map(_repeated_key)
            .unbatch()
            .map(one_sample, num_parallel_calls=tf.data.AUTOTUNE)
            .batch(batch_size // num)
        )
        return batches.prefetch(tf.data.AUTOTUNE).map(finish)

    def num_batches(self, batch_size: int) -> int:
        return len(self._bounds(batch_size))

    def inputs(self, batch_size: int) -> Iterator[Any]:
        """The own ones, one device's after the other's."""
        bounds = tf.data.Dataset.from_tensor_slices(self._bounds(batch_size))
        yield from bounds.map(
            lambda ends: self._held.between(ends[0], ends[1]),
            num_parallel_calls=tf.data.AUTOTUNE,
        ).prefetch(tf.data.AUTOTUNE)

    def shuffled_parts(
        self, batch_size: int, shuffle: bool | int, num_batches: int
    ) -> list[Iterator[Any]]:
        """Of each device, so that together there are so many batches."""
        num = -(-num_batches // self._part.num_devices)
        return [
            itertools.islice(self._shuffled(own, batch_size, shuffle), num)
            for own in self._part.shards(self.num_samples).values()
        ]

    def labels(self, track: Track = untracked) -> np.ndarray:
        """The own ones."""
        return self._held.labels(track)

    def split(self, num: int, batch_size: int) -> tuple[Samples, Any]:
        raise ValueError(
            "weighted(validation_split=...): of very many samples each "
            "process reads its own. Split them yourself, and give "
            "`validation_data` to `fit`."
        )

    def _sliced(self, array: Any) -> Any:
        if self._part.count == 1:
            return array
        return getattr(array, "iloc", array)[self.own]

    def _bounds(self, batch_size: int) -> np.ndarray:
        """Where batches begin and end, among the own samples."""
        bounds = [
            (start, min(start + batch_size, shard.stop))
            for shard in self._part.shards(self.num_samples).values()
            for start in range(shard.start, shard.stop, batch_size)
        ]
        return np.array(bounds, np.int64) - self._start

    def _shuffled(
        self, own: slice, batch_size: int, shuffle: bool | int
    ) -> Iterator[Any]:
        num, key = own.stop - own.start, tf.constant([0, 0], tf.int64)
        blocks = order.blocks_of_pass(num, shuffle, key).rebatch(batch_size)
        first = own.start - self._start
        yield from blocks.map(
            lambda index: self._held.take(first + index)[0]
        ).prefetch(tf.data.AUTOTUNE)


def _are_numbers(y: Any) -> bool:
    dtype = getattr(y, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"


def _repeated_key(own: Any, key: tf.Tensor) -> Any:
    """A key for each sample of a batch."""
    return own, tf.tile(key[None], [tf.size(own[0]), 1])
