"""One model on several devices: its variables, its batches, its statistics.

`tf.distribute.MirroredStrategy` gives each device a replica of the model and a
piece of each batch. Some of what that does to training is put right here.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

T = TypeVar("T")


def outside_strategies(make: Callable[[], T]) -> T:
    """Makes variables on the host that no strategy mirrors.

    A scope belongs to the thread that entered it, and TensorFlow has no way to
    leave it for a while: so another thread makes them.
    """

    def on_host() -> T:
        with tf.device("CPU:0"):
            return make()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(on_host).result()


def is_distributed(model: keras.Model) -> bool:
    """Whether a strategy feeds the model, be it one of a single device."""
    default = outside_strategies(tf.distribute.get_strategy)
    return model.distribute_strategy is not default


def can_spread(x: Any) -> bool:
    """Whether samples of such inputs can be repeated."""
    kinds = (tf.Tensor, tf.RaggedTensor)
    return all(isinstance(part, kinds) for part in tf.nest.flatten(x))


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


def average_statistics(model: keras.Model) -> None:
    """Gives every replica the mean of what the replicas have collected.

    Such are the moving statistics of BatchNorm: each replica has its own, of
    its pieces of the batches, and a save would take the first one's.
    """
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return
    for variable in model.non_trainable_weights:
        if not keras.backend.is_float_dtype(variable.dtype):
            continue
        copies = strategy.experimental_local_results(variable.value)
        values = [keras.ops.convert_to_numpy(copy) for copy in copies]
        if any(not np.array_equal(value, values[0]) for value in values[1:]):
            mean = np.mean(values, axis=0, dtype=np.float64)
            variable.assign(mean.astype(values[0].dtype))
