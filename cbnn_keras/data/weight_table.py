"""Where batches look the weights of their samples up: variables on the host.

`DenseTable` has a number per sample. `GroupedTable` is for many samples of few
different weights: a byte per sample says which, or two where there are more
than 256 of them, and a short table has the numbers.
"""

import numpy as np
import tensorflow as tf

from cbnn_keras.models import replicas
from cbnn_keras.patterns import GroupedWeights, grouped

# Samples in a row of the table of groups, and rows that are written at once.
_BLOCK = 2**16
_NUM_ROWS = 16


class DenseTable:
    """A float32 per sample.

    Args:
        distribution: omega to begin with, shape `(num_samples,)`.
        own: The samples that are looked up; all by default.

    Attributes:
        distribution: omega, float64, of all samples.
        variable: n * omega, float32, of those that are looked up.
    """

    def __init__(
        self, distribution: np.ndarray, own: slice | None = None
    ) -> None:
        self.distribution = distribution
        self._own = own or slice(0, len(distribution))
        self.variable = _variable(self._mean_one(), name="sample_weights")

    def assign(self, weights: np.ndarray) -> None:
        """Sets omega; the next lookup sees it."""
        self.distribution = weights
        self.variable.assign(self._mean_one())

    def look_up(self, index: tf.Tensor) -> tf.Tensor:
        """n * omega of samples by index, float32."""
        return tf.gather(self.variable, _behind(self._own, index))

    def _mean_one(self) -> np.ndarray:
        own = self.distribution[self._own]
        return (len(self.distribution) * own).astype("f4")


class GroupedTable:
    """A group per sample, and a float32 per group.

    Groups lie in rows of bytes, a block of samples each, because rows are what
    TensorFlow writes in place: it copies all of a variable to write a slice.
    Numbers of two bytes have two such planes, one below the other.

    Args:
        weights: omega to begin with, of the samples that are looked up.
        own: Which those are; all by default.
        num_samples: n, where they are not all.
    """

    def __init__(
        self,
        weights: GroupedWeights,
        own: slice | None = None,
        num_samples: int | None = None,
    ) -> None:
        self._num_samples = len(weights.groups)
        self._own = own or slice(0, self._num_samples)
        self._num_all = num_samples or self._num_samples
        self._num_blocks = -(-self._num_samples // _BLOCK)
        empty = np.zeros((0, _BLOCK), np.uint8)
        self._planes = _variable(empty, shape=[None, _BLOCK])
        # What is added to an index in each plane, and what its bytes count.
        self._offsets = _variable(np.zeros(0, np.int64), shape=[None])
        self._places = _variable(np.zeros(0, np.int64), shape=[None])
        self._num_planes = 0
        self._table = _variable(np.zeros(0, "f4"), shape=[None])
        self._variable: tf.Variable | None = None
        self.assign(weights)

    @property
    def distribution(self) -> np.ndarray:
        """omega of those, float64; made whenever it is read."""
        return self._values[self._numbers()]

    @property
    def variable(self) -> tf.Variable:
        """n * omega of those, float32.

        A copy for those who ask, which `assign` keeps up to date: what is
        written to it changes no batch.
        """
        if self._variable is None:
            self._variable = _variable(
                self._mean_one()[self._numbers()], name="sample_weights"
            )
        return self._variable

    def assign(self, weights: GroupedWeights) -> None:
        """Sets omega; the next lookup sees it."""
        num_planes = weights.groups.dtype.itemsize
        if num_planes != self._num_planes:
            shape = num_planes * self._num_blocks, _BLOCK
            self._planes.assign(tf.zeros(shape, tf.uint8))
            planes = np.arange(num_planes)
            self._offsets.assign(planes * self._num_blocks * _BLOCK)
            self._places.assign(256**planes)
            self._num_planes = num_planes
        for plane in range(num_planes):
            for first in range(0, self._num_blocks, _NUM_ROWS):
                self._write(weights.groups, plane, first)
        self._values = weights.values
        self._table.assign(self._mean_one())
        if self._variable is not None:
            self._variable.assign(self._mean_one()[self._numbers()])

    def look_up(self, index: tf.Tensor) -> tf.Tensor:
        """n * omega of samples by index, float32."""
        place = tf.cast(_behind(self._own, index), tf.int64)
        place = place[..., None] + self._offsets
        cell = tf.stack([place // _BLOCK, place % _BLOCK], axis=-1)
        found = tf.cast(self._planes.gather_nd(cell), tf.int64)
        numbers = tf.reduce_sum(found * self._places, axis=-1)
        return tf.gather(self._table, numbers)

    def _write(self, groups: np.ndarray, plane: int, first: int) -> None:
        """Writes a few rows, from the block `first` on."""
        num_rows = min(_NUM_ROWS, self._num_blocks - first)
        part = groups[first * _BLOCK : (first + num_rows) * _BLOCK]
        rows = np.zeros((num_rows, _BLOCK), np.uint8)
        rows.ravel()[: len(part)] = part >> 8 * plane & 255
        start = plane * self._num_blocks + first
        self._planes.scatter_update(
            tf.IndexedSlices(rows, np.arange(start, start + num_rows))
        )

    def _mean_one(self) -> np.ndarray:
        return (self._num_all * self._values).astype("f4")

    def _numbers(self) -> np.ndarray:
        """The group of each sample, as it is looked up."""
        planes = self._planes.numpy().reshape(self._num_planes, -1)
        numbers = np.zeros(self._num_samples, np.int64)
        for place, plane in enumerate(planes):
            numbers += plane[: self._num_samples].astype(np.int64) << 8 * place
        return numbers


def weight_table(
    distribution: np.ndarray, own: slice | None = None
) -> DenseTable | GroupedTable:
    """The table for samples that begin with this omega.

    Args:
        distribution: Of all samples.
        own: Those that are looked up; all by default.
    """
    weights = grouped(distribution, own)
    if weights is None:
        return DenseTable(distribution, own)
    return GroupedTable(weights, own, len(distribution))


def _behind(own: slice, index: tf.Tensor) -> tf.Tensor:
    """Positions among the own samples."""
    return index - own.start if own.start else index


def _variable(value: np.ndarray, **options: object) -> tf.Variable:
    def make() -> tf.Variable:
        with tf.device("CPU:0"):
            return tf.Variable(value, trainable=False, **options)

    return replicas.outside_strategies(make)
