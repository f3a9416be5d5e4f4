"""The order of samples in a pass, from its key and nothing else.

Up to `LARGE` samples all indices are shuffled at once. Above, none is kept: a
permutation that has a formula says which sample comes at a position, and a
pass computes the indices block by block.

The formula is a Feistel network. Samples lie in a grid of about as many rows
as columns; in turns, a sample's row is moved on by a number that its column
and a part of the key give, and its column by one that its row gives. Each turn
can be undone, so that no two samples meet. The grid has up to a row more than
there are samples for: what ends up there is moved again until it is among them.
"""

import math
from collections.abc import Callable

import tensorflow as tf

from cbnn_keras.data import sharding

# Up to here a pass keeps its indices in memory, and has always had them so.
LARGE = 2**24
# Indices that are computed at once.
_BLOCK = 2**16
# Turns of the network; three pairs leave nothing of the order that is seen.
_NUM_TURNS = 6


def index_blocks(
    num_samples: int, shuffle: bool | int, next_key: Callable[[], tf.Tensor]
) -> tf.data.Dataset:
    """One pass: vectors of indices, int64.

    Args:
        num_samples: n.
        shuffle: Whether to shuffle.
        next_key: Called when the pass starts; gives its key, shape `(2,)`.
    """
    start = tf.data.Dataset.range(1)
    if num_samples <= LARGE:
        return start.map(
            lambda _: _all_at_once(num_samples, shuffle, next_key())
        )
    return start.flat_map(
        lambda _: blocks_of_pass(num_samples, shuffle, next_key())
    )


def blocks_of_pass(
    num_samples: int, shuffle: bool | int, key: tf.Tensor
) -> tf.data.Dataset:
    """The same for a key that is known."""
    if num_samples <= LARGE:
        order = _all_at_once(num_samples, shuffle, key)
        return tf.data.Dataset.from_tensors(order)

    def block(start: tf.Tensor) -> tf.Tensor:
        stop = tf.minimum(start + _BLOCK, num_samples)
        positions = tf.range(start, stop, dtype=tf.int64)
        return permuted(positions, num_samples, key) if shuffle else positions

    return tf.data.Dataset.range(0, num_samples, _BLOCK).map(block)


def shard_batches(
    num_samples: int,
    shuffle: bool | int,
    key: tf.Tensor,
    part: sharding.Part,
    batch_size: int,
) -> tf.data.Dataset:
    """The samples of a process, of a pass in which each device has its own.

    Every batch has as many of each device's samples. A last one that does not
    divide is filled up with samples that count nothing, and the others count
    more, as in `sharding.local_part`.

    Args:
        num_samples: n, of all processes.
        shuffle: Whether each device's samples are shuffled.
        key: Of the pass.
        part: Which process it is.
        batch_size: Of all devices together, a multiple of their number.

    Returns:
        Vectors of indices, int64, and of the share that each counts by where
        the loss is a mean, float32.
    """
    num_full, num_left = divmod(num_samples, batch_size)
    piece = batch_size // part.num_devices
    at_once = max(_BLOCK // batch_size, 1)

    def full(first: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        stop = tf.minimum(first + at_once, num_full)
        positions = tf.range(first * piece, stop * piece)
        index, _ = _of_devices(positions, num_samples, shuffle, key, part)
        # A row for each batch, in it the devices one after the other.
        rows = tf.reshape(index, [len(index), -1, piece])
        rows = tf.reshape(
            tf.transpose(rows, [1, 0, 2]), [-1, len(index) * piece]
        )
        return rows, tf.ones_like(rows, tf.float32)

    batches = tf.data.Dataset.range(0, num_full, at_once).map(full).unbatch()
    if not num_left:
        return batches
    own = -(-num_left // part.num_devices)
    positions = tf.range(num_full * piece, num_full * piece + own)
    positions = tf.cast(positions, tf.int64)
    index, is_there = _of_devices(positions, num_samples, shuffle, key, part)
    share = tf.cast(is_there, tf.float32) * (own * part.num_devices / num_left)
    last = [tf.reshape(x, [-1]) for x in (index, share)]
    return batches.concatenate(tf.data.Dataset.from_tensors(tuple(last)))


def _of_devices(
    positions: tf.Tensor,
    num_samples: int,
    shuffle: bool | int,
    key: tf.Tensor,
    part: sharding.Part,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Samples at positions of a pass through those of each device.

    And whether there is one, or the first ones come again.
    """
    index, is_there = [], []
    for device, own in part.shards(num_samples).items():
        num = own.stop - own.start
        found = positions % num
        if shuffle:
            # The order of all samples, where one device has all.
            is_only = part.num_devices == 1
            own_key = (
                key
                if is_only
                else sample_seed(key, tf.constant(device, tf.int64))
            )
            found = permuted(found, num, own_key)
        index.append(own.start + found)
        is_there.append(positions < num)
    return index, is_there


def permuted(
    positions: tf.Tensor, num_samples: int, key: tf.Tensor
) -> tf.Tensor:
    """Which sample comes at each position of a pass.

    Args:
        positions: int64, each from 0 to below `num_samples`.
        num_samples: n, up to 2^40.
        key: Shape `(2,)`: seed and pass. Each gives another permutation.
    """
    num_columns = math.isqrt(num_samples - 1) + 1
    num_rows = -(-num_samples // num_columns)
    keys = tf.random.stateless_uniform(
        [_NUM_TURNS], key, minval=None, maxval=None, dtype=tf.uint32
    )

    def once(number: tf.Tensor) -> tf.Tensor:
        row = tf.cast(number // num_columns, tf.uint32)
        column = tf.cast(number % num_columns, tf.uint32)
        for turn in range(0, _NUM_TURNS, 2):
            row = (row + _mixed(column ^ keys[turn]) % num_rows) % num_rows
            step = _mixed(row ^ keys[turn + 1]) % num_columns
            column = (column + step) % num_columns
        return tf.cast(row, tf.int64) * num_columns + tf.cast(column, tf.int64)

    def is_outside(number: tf.Tensor) -> tf.Tensor:
        return number >= num_samples

    (found,) = tf.while_loop(
        lambda number: tf.reduce_any(is_outside(number)),
        lambda number: (tf.where(is_outside(number), once(number), number),),
        (once(positions),),
    )
    return found


def with_key(dataset: tf.data.Dataset, key: tf.Tensor) -> tf.data.Dataset:
    """Puts the key of a pass to each of its elements."""
    return tf.data.Dataset.zip(
        dataset, tf.data.Dataset.from_tensors(key).repeat()
    )


def sample_seed(key: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """A key of one sample, or of one device, from that of the pass."""
    return tf.random.experimental.stateless_fold_in(key, index)


def _all_at_once(
    num_samples: int, shuffle: bool | int, key: tf.Tensor
) -> tf.Tensor:
    indices = tf.range(num_samples, dtype=tf.int64)
    if not shuffle:
        return indices
    return tf.random.experimental.stateless_shuffle(indices, key)


def _mixed(number: tf.Tensor) -> tf.Tensor:
    """A hash of 32 bits: the last step of MurmurHash3, a bijection."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        number ^= tf.bitwise.right_shift(number, tf.constant(shift, tf.uint32))
        number *= tf.constant(factor, tf.uint32)
    return number
