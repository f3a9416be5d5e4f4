"""Samples of which each process has its own, and nothing of the others.

It reads, keeps, augments and scores them. `ShardedArrays` are given as a whole
in every process, and read where they are its own: each device has a contiguous
range of them, every batch has as many samples of each range, and a range is
shuffled in itself, so that it is all the same how the devices are divided among
processes. `ShardedDataset` is what a process alone has been given.
"""

import abc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from cbnn_keras.data import order
from cbnn_keras.data.conversion import as_labels, inputs_of, length
from cbnn_keras.data.dataset_samples import DatasetSamples
from cbnn_keras.data.indexed import (
    ArraySamples,
    Augment,
    Finish,
    Samples,
    Track,
    finished,
    unfinished,
    untracked,
)
from cbnn_keras.data.sharding import Part
from cbnn_keras.support.processes import Processes


class ShardedSamples(Samples):
    """The samples of this process, by their index among those of all.

    Training batches are as of all samples, but for the index, which comes with
    shares: see `order.shard_batches`.
    """

    own: slice
    _held: ArraySamples | DatasetSamples

    def labels(self, track: Track = untracked) -> np.ndarray:
        """The own ones."""
        return self._held.labels(track)

    def split(self, num: int, batch_size: int) -> tuple[Samples, Any]:
        raise ValueError(
            "weighted(validation_split=...): each process reads samples of its "
            "own. Split them yourself, and give `validation_data` to `fit`."
        )

    @abc.abstractmethod
    def num_batches(self, batch_size: int) -> int: ...

    @abc.abstractmethod
    def shuffled_parts(
        self, batch_size: int, shuffle: bool | int, num_batches: int
    ) -> list[Iterator[Any]]: ...


class ShardedArrays(ShardedSamples):
    """Arrays that every process is given, and reads its own part of.

    Args:
        x: Inputs of all samples, of which the own ones are read.
        y: Labels, likewise where they are an array of numbers.
        part: Which process it is.
    """

    def __init__(self, x: Any, y: Any, part: Part) -> None:
        num_samples = length(y)
        inputs = inputs_of(x, num_samples)
        lengths = {length(a) for a in tf.nest.flatten(inputs)}
        if not num_samples or lengths != {num_samples}:
            ArraySamples(x, y)  # says what is wrong
        self.num_samples = int(num_samples or 0)
        _check_enough(self.num_samples, part)
        self.own = part.own(self.num_samples)
        self._start = self.own.start
        self._part = part
        # Names have numbers by what there is of them in all samples.
        labels, names = (y, None) if _are_numbers(y) else as_labels(y)
        self._held: ArraySamples = ArraySamples(
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
            return finished(batches, finish)

        def one_sample(own: Any, key: tf.Tensor) -> Any:
            x, y = self._held.take(own[0] - start)
            return own, augment(x, order.sample_seed(key, own[0])), y

        batches = (
            passes.map(_repeated_key)
            .unbatch()
            .map(one_sample, num_parallel_calls=tf.data.AUTOTUNE)
            .batch(batch_size // num)
        )
        return finished(batches, finish)

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


class ShardedDataset(ShardedSamples):
    """A dataset that this process alone was given, its part of the samples.

    Those of process 0 have the first indices, those of process 1 the next
    ones. All parts are equally long, but for one sample, as batches need it.

    Args:
        held: The samples of this process.
        part: Which process it is.
        processes: All of them; every one has to come here.
    """

    def __init__(
        self, held: DatasetSamples, part: Part, processes: Processes
    ) -> None:
        sizes = processes.gather(np.array([held.num_samples]))
        _check_parts(sizes.tolist(), processes.exchange(held.head))
        self.num_samples = int(sizes.sum())
        _check_enough(self.num_samples, part)
        start = int(sizes[: part.index].sum())
        self.own = slice(start, start + held.num_samples)
        self._part = part
        self._held: DatasetSamples = held
        self.class_names = held.class_names

    @property
    def num_given(self) -> int:
        return self._held.num_samples

    def training_batches(
        self,
        next_key: Callable[[], tf.Tensor],
        *,
        batch_size: int,
        shuffle: bool | int,
        augment: Augment | None,
        finish: Finish = unfinished,
    ) -> tf.data.Dataset:
        num_own, num_full = self.num_given, self.num_samples // batch_size
        piece = batch_size // self._part.count
        share, num_last = self._last_batch(batch_size)
        num_filled = num_full * piece + num_last - num_own

        def one_pass(_: tf.Tensor) -> tf.data.Dataset:
            key = next_key()
            number = tf.constant(self._part.index, tf.int64)
            samples = self._held.one_pass(
                order.sample_seed(key, number), shuffle
            ).concatenate(self._held.first(num_filled))
            return order.with_key(samples.enumerate(), key)

        def one_sample(sample: Any, key: tf.Tensor) -> Any:
            position, (index, (x, y)) = sample
            index += self.own.start
            if augment is not None:
                x = augment(x, order.sample_seed(key, index))
            last = tf.where(position < num_own, share, 0.0)
            own_share = tf.where(position < num_full * piece, 1.0, last)
            return (index, own_share), x, y

        batches = (
            tf.data.Dataset.range(1)
            .flat_map(one_pass)
            .map(one_sample, num_parallel_calls=tf.data.AUTOTUNE)
            .batch(piece)
        )
        return finished(batches, finish)

    def num_batches(self, batch_size: int) -> int:
        return self._held.num_batches(batch_size)

    def inputs(self, batch_size: int) -> Iterator[Any]:
        """The own ones."""
        return self._held.inputs(batch_size)

    def shuffled_parts(
        self, batch_size: int, shuffle: bool | int, num_batches: int
    ) -> list[Iterator[Any]]:
        """One, so that those of all processes have so many batches."""
        num = -(-num_batches // self._part.count)
        return self._held.shuffled_parts(batch_size, shuffle, num)

    def _last_batch(self, batch_size: int) -> tuple[float, int]:
        """What a sample of a batch that does not divide counts.

        And how many this process has of them, those included that fill the
        batch up and count nothing: as many as the others.
        """
        num_left = self.num_samples % batch_size
        if not num_left:
            return 1.0, 0
        filled = -(-num_left // self._part.num_devices) * self._part.num_devices
        return filled / num_left, filled // self._part.count


def _check_parts(sizes: list[int], heads: list[bytes]) -> None:
    """Raises a `ValueError` in all processes if parts do not go together."""
    num = len(sizes)
    if max(sizes) - min(sizes) > 1:
        raise ValueError(
            "weighted(sharded=True): a dataset is the own part of its process, "
            "and parts have to be equally long, but for one sample; those of "
            f"processes 0 to {num - 1} have {', '.join(map(str, sizes))} "
            f"samples. Shorten them with `dataset.take({min(sizes)})`, or "
            f"divide one dataset with `dataset.shard({num}, "
            "jax.process_index())`."
        )
    for i, j in itertools.combinations(range(num), 2):
        if heads[i] == heads[j]:
            raise ValueError(
                "weighted(sharded=True): a dataset is the own part of its "
                f"process, but processes {i} and {j} begin with the same "
                "samples. Give each of them files of its own, or divide one "
                f"dataset with `dataset.shard({num}, jax.process_index())`."
            )


def _check_enough(num_samples: int, part: Part) -> None:
    if num_samples < part.num_devices:
        raise ValueError(
            f"weighted: each of {part.num_devices} devices has samples of its "
            f"own, but there are {num_samples} in all. Give more, or leave "
            "`sharded` out."
        )


def _are_numbers(y: Any) -> bool:
    dtype = getattr(y, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"


def _repeated_key(own: Any, key: tf.Tensor) -> Any:
    """A key for each sample of a batch."""
    return own, tf.tile(key[None], [tf.size(own[0]), 1])
