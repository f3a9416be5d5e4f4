"""What a training step of a model would do with a batch, without doing it.

A model may have a `train_step` of its own, so that only calling it tells what
it makes of a batch. Its gradients are caught on their way to the optimizer, and
whatever else the step changes is put back.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.models import engine
from cbnn_keras.models.state import process_generators_kept


def step_gradients(model: keras.Model, batch: Any) -> list[np.ndarray]:
    """The gradients that `train_step` hands to an optimizer.

    Nothing is traced and nothing is left behind: weights, optimizers, metrics
    and generators are as they were, bit for bit. Random numbers that do not
    come from TensorFlow's global generators are the same in every call.

    Args:
        model: Compiled and built.
        batch: What `fit` would give to `train_step`.

    Returns:
        One array for each gradient, or two, values and indices, where it is
        sparse; none for a step that uses no optimizer of the model.
    """
    with _left_alone(model):
        return engine.in_use().step_gradients(model, _optimizers(model), batch)


@contextlib.contextmanager
def _left_alone(model: keras.Model) -> Iterator[None]:
    """Puts back whatever a step changes."""
    variables = [
        *model.variables,
        *model.metrics_variables,
        *(v for one in _optimizers(model) for v in one.variables),
        *(v for v in _held(model) if isinstance(v, tf.Variable)),
    ]
    kept = [np.array(keras.ops.convert_to_numpy(v)) for v in variables]
    try:
        with process_generators_kept():
            yield
    finally:
        for variable, value in zip(variables, kept, strict=True):
            # Not where nothing was changed: replicas have values of their own.
            now = np.asarray(keras.ops.convert_to_numpy(variable))
            if now.tobytes() != value.tobytes():
                variable.assign(value)


def _optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    values = [model.optimizer, *_held(model)]
    found = [v for v in values if isinstance(v, keras.optimizers.Optimizer)]
    return list({id(one): one for one in found}.values())


def _held(model: keras.Model) -> list[Any]:
    """What a model and its layers hold, also in lists and dicts."""
    found: list[Any] = []
    seen: set[int] = set()  # one may hold itself
    waiting: list[Any] = [model]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, keras.layers.Layer):
            waiting.extend(vars(value).values())
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple, set)):
            waiting.extend(value)
        else:
            found.append(value)
    return found
