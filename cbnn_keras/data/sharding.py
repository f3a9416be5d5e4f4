"""How a batch is divided: what several replicas need to make of it the same.

`spread` is for `tf.distribute`, whose replicas take a whole batch apart;
`local_part` for processes that each get their own part of it. Where each has
samples of its own, see `sharded.py`.
"""

import dataclasses
from typing import Any

import tensorflow as tf


def spread(
    x: Any,
    y: tf.Tensor,
    weight: tf.Tensor,
    *,
    num_replicas: tf.Tensor,
    is_averaged: tf.Tensor,
) -> tuple[Any, tf.Tensor, tf.Tensor]:
    """Makes a batch count the same on several replicas as on one.

    TensorFlow cuts a batch of r samples into pieces of ceil(r / R), so that
    the last of R replicas may get fewer, or none: BatchNorm turns an empty
    piece into NaN, in silence. And Keras averages each piece by itself, so
    that a sample in a short piece counts more.

    Here samples are repeated until no piece is empty, and the weights make up
    for repetitions and short pieces: the gradient is that of the whole batch,
    as far as samples do not meet in a layer (BatchNorm sees repetitions) or in
    the loss (a mean over the sum of the weights). Most batches need neither.

    Args:
        x: Inputs, `(r, ...)` in any structure.
        y: Labels, `(r, ...)`.
        weight: Weights, float32, `(r,)`.
        num_replicas: R, an integer scalar.
        is_averaged: Whether the loss of a piece is a mean and not a sum.
    """
    size = tf.shape(weight)[0]
    piece = -(-size // num_replicas)
    filled = tf.maximum(size, piece * (num_replicas - 1) + 1)
    position = tf.range(filled)
    source = position % size
    num_copies = filled // size + tf.cast(source < filled % size, tf.int32)
    own_piece = tf.minimum(piece, filled - position // piece * piece)
    share = tf.where(is_averaged, num_replicas * own_piece / size, 1.0)
    factor = share / tf.cast(num_copies, share.dtype)
    weight = tf.gather(weight, source) * tf.cast(factor, tf.float32)
    x, y = tf.cond(
        filled > size,
        lambda: tf.nest.map_structure(
            lambda array: tf.gather(array, source), (x, y)
        ),
        lambda: (x, y),
    )
    return x, y, weight


@dataclasses.dataclass(frozen=True)
class Part:
    """Which part of each batch a process takes.

    Attributes:
        index: Which process it is, from 0.
        count: How many there are.
        num_devices: How many devices they have together.
    """

    index: int
    count: int
    num_devices: int

    def own(self, num_samples: int) -> slice:
        """The samples of this process, where each device has its own."""
        return own_range(num_samples, self.index, self.count)

    def shards(self, num_samples: int) -> dict[int, slice]:
        """Those of each of its devices, by the number of the device."""
        num = self.num_devices // self.count
        return {
            device: own_range(num_samples, device, self.num_devices)
            for device in range(self.index * num, (self.index + 1) * num)
        }


def local_part(
    size: tf.Tensor, part: Part, is_averaged: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The samples of a batch that a process takes, and how they count.

    Parts are contiguous and of one size, a multiple of the devices: a batch
    that does not divide is filled up with its first samples, which count
    nothing, and the others count more where the loss is a mean. BatchNorm sees
    the repetitions.

    Args:
        size: r, the samples of the batch, an integer scalar.
        part: Which part.
        is_averaged: Whether the loss of a batch is a mean and not a sum.

    Returns:
        Positions in the batch, shape `(p,)`, and a factor for the weight of
        each, float32, shape `(p,)`.
    """
    filled = -(-size // part.num_devices) * part.num_devices
    num = filled // part.count
    position = tf.range(part.index * num, (part.index + 1) * num)
    share = tf.where(is_averaged, tf.cast(filled / size, tf.float32), 1.0)
    return position % size, tf.where(position < size, share, 0.0)


def own_range(num: int, index: int, count: int) -> slice:
    """Which of so many things one of several takes: as many as the others."""
    return slice(num * index // count, num * (index + 1) // count)
