"""BatchNorm's statistics for weights that no training step has made.

An average of weights, or a point between two checkpoints, has activations of
its own: the moving statistics have to be collected anew.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from cbnn_keras.models import engine, keras_internals
from cbnn_keras.models.engine_interface import Moments
from cbnn_keras.models.state import generators_kept

# Of each layer: sums of means, of squares, and of the samples they are of.
_Sums = list[list[Any]]


def recompute_statistics(model: keras.Model, batches: Iterable[Any]) -> None:
    """Sets mean and variance of each BatchNorm layer to those of the data.

    One pass in training mode, in which each batch is normalised by itself.
    Layers that are frozen keep their statistics, as they do in training.

    Args:
        model: Built. All else in it stays as it is, random generators and
            other layers that change in training included.
        batches: Inputs of the model, in random order.
    """
    StatisticsRecomputer(model)(batches)


class StatisticsRecomputer:
    """`recompute_statistics` of one model, for many weights in turn.

    The pass is traced once and serves every call.

    Args:
        model: Built. Which of its layers are frozen is read here.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._layers = _batch_norms(model)
        self._forward = engine.in_use().training_pass(model, self._layers)

    def __call__(self, batches: Iterable[Any]) -> None:
        """Sets the statistics for the weights that the model has now."""
        self._recompute([batches], lambda sums: sums)

    def from_parts(self, parts: Sequence[Iterable[Any]]) -> None:
        """The same, where each process has some parts of the batches.

        Parts are added in the order of processes, so that it is all the same
        which process has which; all have as many.
        """
        self._recompute(parts, _of_all_processes)

    def _recompute(
        self,
        parts: Sequence[Iterable[Any]],
        exchange: Callable[[list["_Sums"]], list["_Sums"]],
    ) -> None:
        if not self._layers:
            return
        kept = [np.array(weight) for weight in self._model.get_weights()]
        with generators_kept(self._model):
            try:
                sums = [_collect(self._forward, part) for part in parts]
            finally:
                self._model.set_weights(kept)
        statistics = _statistics(exchange(sums))
        for layer, found in zip(self._layers, statistics, strict=True):
            if found is None:
                warnings.warn(
                    f"The statistics of the layer {layer.name!r} could not be "
                    "recomputed: it is not called in training mode, or inside "
                    "a `tf.function` of the model's own. It keeps those that "
                    "it has.",
                    stacklevel=3,
                )
                continue
            layer.moving_mean.assign(found[0])
            layer.moving_variance.assign(found[1])


def _batch_norms(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    return [
        layer
        for layer in keras_internals.layers_within(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.trainable
    ]


def _collect(
    forward: Callable[[Any], Moments], batches: Iterable[Any]
) -> _Sums:
    sums: _Sums = []
    for x in batches:
        size = keras.tree.flatten(x)[0].shape[0]  # sparse ones have no `len`
        moments = forward(x)
        sums = sums or [[0.0, 0.0, 0] for _ in moments]
        for calls, total in zip(moments, sums, strict=True):
            for mean, variance in calls:
                mean, variance = _array(mean), _array(variance)
                total[0] += size * mean
                total[1] += size * (variance + mean**2)
                total[2] += size
    return sums


def _of_all_processes(own: list[_Sums]) -> list[_Sums]:
    """Exchanges what was collected, as numbers one behind the other."""
    numbers = [
        np.atleast_1d(np.asarray(entry, np.float64))
        for part in own
        for layer in part
        for entry in layer
    ]
    message = np.concatenate([entry.ravel() for entry in numbers]).tobytes()
    found = []
    for answer in engine.in_use().processes().exchange(message):
        values = iter(
            np.split(
                np.frombuffer(answer), np.cumsum([e.size for e in numbers])[:-1]
            )
        )
        found += [
            [[next(values) for _ in layer] for layer in part] for part in own
        ]
    return found


def _statistics(
    parts: list[_Sums],
) -> list[tuple[np.ndarray, np.ndarray] | None]:
    """Mean and variance over all samples, by the law of total variance.

    None for a layer that was not seen.
    """
    totals: _Sums = [
        [sum(entries) for entries in zip(*layer, strict=True)]
        for layer in zip(*parts, strict=True)
    ]
    return [
        (mean / num, np.maximum(square / num - (mean / num) ** 2, 0))
        if num
        else None
        for mean, square, num in totals
    ]


def _array(tensor: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(tensor).astype(np.float64)
