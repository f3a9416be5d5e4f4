"""The training samples, each with an index that always means the same one.

`Samples` give three views: shuffled training batches that carry their indices,
un-augmented inputs in the order of the index (to score them), and the labels in
that order. `ArraySamples` hold arrays; a `tf.data.Dataset` is in
`dataset_samples.py`. What the samples weigh is in `sample_weights.py`.
"""

import abc
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from cbnn_keras.data import order
from cbnn_keras.data.conversion import as_inputs, as_labels, shown_sizes

Augment = Callable[[Any, tf.Tensor], Any]
# Makes of a batch (index, x, y) what a dataset is to give.
Finish = Callable[[tf.Tensor, Any, tf.Tensor], Any]
# Wraps an iterable of batches to show its progress: (iterable, total) -> same.
Track = Callable[[Iterable[Any], int | None], Iterable[Any]]

# Bytes of a batch that takes longer to hand over to another thread than to
# gather.
_LIGHT_BATCH = 2**18


def untracked(iterable: Iterable[Any], total: int | None) -> Iterable[Any]:
    return iterable


def unfinished(index: tf.Tensor, x: Any, y: tf.Tensor) -> Any:
    return index, x, y


class Samples(abc.ABC):
    """Samples addressed by index.

    Attributes:
        num_samples: n.
        class_names: The names of the classes, where labels had names.
        own: The samples that this process has, or None if it has all: inputs
            in the order of the index, and labels, are of these.
    """

    num_samples: int
    class_names: list[str] | None = None
    own: slice | None = None

    @property
    def num_given(self) -> int:
        """How many were given in this process: all, or its own alone."""
        return self.num_samples

    @abc.abstractmethod
    def training_batches(
        self,
        next_key: Callable[[], tf.Tensor],
        *,
        batch_size: int,
        shuffle: bool | int,
        augment: Augment | None,
        finish: Finish = unfinished,
    ) -> tf.data.Dataset:
        """Batches `(index, x, y)` of one pass, a new order every pass.

        Args:
            next_key: Called when a pass starts; gives its seed, shape `(2,)`.
            batch_size: Samples per batch; the last one may be smaller.
            shuffle: Whether to shuffle, or the size of the buffer to use.
            augment: `augment(x, seed)` for single samples; the seed derives
                from the key and the index alone.
            finish: What is done to a batch last of all, in the thread that
                waits for it: what was prefetched is older.
        """

    @abc.abstractmethod
    def inputs(self, batch_size: int) -> Iterator[Any]:
        """Batches of x, un-augmented, in the order of the index."""

    def shuffled_inputs(
        self, batch_size: int, shuffle: bool | int
    ) -> Iterator[Any]:
        """Batches of x, un-augmented, in an order that is always the same.

        Args:
            batch_size: Samples per batch; the last one may be smaller.
            shuffle: Whether to shuffle, or the size of the buffer to use.
        """
        batches = self.training_batches(
            lambda: tf.constant([0, 0], tf.int64),
            batch_size=batch_size,
            shuffle=shuffle,
            augment=None,
            finish=lambda index, x, y: x,
        )
        yield from batches.prefetch(tf.data.AUTOTUNE)

    def shuffled_parts(
        self, batch_size: int, shuffle: bool | int, num_batches: int
    ) -> list[Iterator[Any]]:
        """So many of `shuffled_inputs`; of several devices, each one's."""
        batches = self.shuffled_inputs(batch_size, shuffle)
        return [itertools.islice(batches, num_batches)]

    def num_batches(self, batch_size: int) -> int:
        """How many `inputs` gives."""
        return -(-self.num_samples // batch_size)

    @abc.abstractmethod
    def labels(self, track: Track = untracked) -> np.ndarray:
        """All y in the order of the index."""

    @abc.abstractmethod
    def split(self, num: int, batch_size: int) -> tuple["Samples", Any]:
        """The first samples, and the others as `fit` takes them to validate.

        Args:
            num: How many come first.
            batch_size: Of the others, where they come in batches.
        """


class ArraySamples(Samples):
    """Samples in arrays: NumPy, tensors or data frames, in any nest for x."""

    def __init__(self, x: Any, y: Any) -> None:
        self._y, self.class_names = as_labels(y)
        self._x = as_inputs(x, y)
        sizes = [
            int(a.shape[0]) if a.shape.rank else None
            for a in tf.nest.flatten((self._x, self._y))
        ]
        if set(sizes) == {0}:
            raise ValueError(
                "weighted(x, y): x and y are empty. Give at least one sample."
            )
        if len(set(sizes)) != 1 or sizes[0] is None:
            raise ValueError(
                "weighted(x, y): every array needs one entry per sample along "
                "its first axis; received first axes of "
                f"{shown_sizes(sizes[:-1])} for x and {sizes[-1]} for y."
            )
        self.num_samples = sizes[0]
        self._num_bytes = sum(
            _num_bytes(array) for array in tf.nest.flatten((self._x, self._y))
        )
        self._in_batches: dict[int, tf.data.Dataset] = {}

    def training_batches(
        self,
        next_key: Callable[[], tf.Tensor],
        *,
        batch_size: int,
        shuffle: bool | int,
        augment: Augment | None,
        finish: Finish = unfinished,
    ) -> tf.data.Dataset:
        # All of it is shuffled: with arrays no buffer is needed.
        if augment is None:
            # Whole batches at once. Every function in a pipeline costs
            # milliseconds each time that Keras makes an iterator, twice an
            # epoch: so as few as can be.
            blocks = order.index_blocks(self.num_samples, shuffle, next_key)
            indices = blocks.rebatch(batch_size)
            if self._num_bytes * batch_size <= _LIGHT_BATCH * self.num_samples:
                return indices.map(lambda i: finish(i, *self.take(i)))
            return finished(indices.map(lambda i: (i, *self.take(i))), finish)

        def one_pass(_: tf.Tensor) -> tf.data.Dataset:
            key = next_key()
            blocks = order.blocks_of_pass(self.num_samples, shuffle, key)
            return order.with_key(blocks.unbatch(), key)

        def one_sample(index: tf.Tensor, key: tf.Tensor) -> Any:
            x, y = self.take(index)
            return index, augment(x, order.sample_seed(key, index)), y

        return finished(
            tf.data.Dataset.range(1)
            .flat_map(one_pass)
            .map(one_sample, num_parallel_calls=tf.data.AUTOTUNE)
            .batch(batch_size),
            finish,
        )

    def inputs(self, batch_size: int) -> Iterator[Any]:
        # One dataset for all passes: to make it traces a function.
        if batch_size not in self._in_batches:
            self._in_batches[batch_size] = _slices(
                self._x, self.num_samples, batch_size
            )
        yield from self._in_batches[batch_size]

    def labels(self, track: Track = untracked) -> np.ndarray:
        return self._y.numpy()

    def split(self, num: int, batch_size: int) -> tuple[Samples, Any]:
        first, others = (
            tf.nest.map_structure(lambda a: a[part], (self._x, self._y))  # noqa: B023
            for part in (slice(num), slice(num, None))
        )
        return ArraySamples(*first), others

    def between(self, start: tf.Tensor, stop: tf.Tensor) -> Any:
        """Inputs from one position to another."""
        return tf.nest.map_structure(lambda array: array[start:stop], self._x)

    def take(self, index: tf.Tensor) -> tuple[Any, tf.Tensor]:
        """Inputs and labels by index."""
        return tf.nest.map_structure(
            lambda array: tf.gather(array, index), (self._x, self._y)
        )


def _slices(x: Any, num_samples: int, batch_size: int) -> tf.data.Dataset:
    """All samples in order, in batches of which the last may be smaller."""
    starts = tf.data.Dataset.range(0, num_samples, batch_size)
    return starts.map(
        lambda start: tf.nest.map_structure(
            lambda array: array[start : start + batch_size], x
        ),
        num_parallel_calls=tf.data.AUTOTUNE,
    ).prefetch(tf.data.AUTOTUNE)


def finished(
    batches: tf.data.Dataset, finish: Callable[..., Any]
) -> tf.data.Dataset:
    """Prefetches batches, and does the last thing to them after that."""
    return batches.prefetch(tf.data.AUTOTUNE).map(finish)


def _num_bytes(tensor: tf.Tensor) -> int:
    # A text has no fixed size; most are not much longer than this.
    # An int of Python: one of 32 bits would overflow.
    return int(tf.size(tensor, tf.int64)) * (tensor.dtype.size or 256)
