"""How a batch is divided: what several replicas need to make of it the same."""

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
