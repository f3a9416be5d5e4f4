"""BatchNorm's statistics for weights that no training step has made.

An average of weights, or a point between two checkpoints, has activations of
its own: the moving statistics have to be collected anew.
"""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras import replicas
from cbnn_keras.training_state import generators_kept


def recompute_statistics(model: keras.Model, batches: Iterable[Any]) -> None:
    """Sets mean and variance of each BatchNorm layer to those of the data.

    One pass in training mode, in which each batch is normalised by itself.
    Layers that are frozen keep their statistics, as they do in training.

    Args:
        model: Built. Its weights and random generators stay as they are.
        batches: Inputs of the model, in random order.
    """
    layers = _batch_norms(model)
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    with generators_kept(model):
        try:
            for layer in layers:
                layer.momentum = 0.0  # moving statistics = the last batch's
            moments = _collect(model, layers, batches)
        finally:
            for layer, momentum in zip(layers, momenta, strict=True):
                layer.momentum = momentum
    for layer, (mean, variance) in zip(layers, moments, strict=True):
        layer.moving_mean.assign(mean)
        layer.moving_variance.assign(variance)


def _batch_norms(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    return [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.trainable
    ]


def _collect(
    model: keras.Model,
    layers: list[keras.layers.BatchNormalization],
    batches: Iterable[Any],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Mean and variance over all samples, by the law of total variance."""
    step = _forward(model)
    num_samples = 0
    sums: list[list[Any]] = [[0.0, 0.0] for _ in layers]
    for x in batches:
        step(x)
        size = int(tf.shape(tf.nest.flatten(x)[0])[0])
        num_samples += size
        for layer, total in zip(layers, sums, strict=True):
            mean = _value(layer.moving_mean)
            total[0] += size * mean
            total[1] += size * (_value(layer.moving_variance) + mean**2)
    means = [total[0] / num_samples for total in sums]
    return [
        (np.asarray(mean), np.maximum(total[1] / num_samples - mean**2, 0))
        for mean, total in zip(means, sums, strict=True)
    ]


def _forward(model: keras.Model) -> Callable[[Any], None]:
    """A pass in training mode, in a function that knows the new momenta."""

    def forward(x: Any) -> None:
        model(x, training=True)

    if replicas.is_distributed(model):
        # The same batch on each: their statistics then are the same, too.
        strategy = model.distribute_strategy
        return tf.function(lambda x: strategy.run(forward, args=(x,)))
    return tf.function(forward, reduce_retracing=True)


def _value(variable: keras.Variable) -> np.ndarray:
    return keras.ops.convert_to_numpy(variable).astype(np.float64)
