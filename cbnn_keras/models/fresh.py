"""Weights and optimizer slots as they were before any training."""

import random
from typing import Any

import keras
import numpy as np

from cbnn_keras.models import engine, keras_internals, replicas
from cbnn_keras.support.faults import shortened


def fresh_weights(
    model: keras.Model, inputs: Any, seed: int
) -> list[np.ndarray]:
    """Weights that the model's own layers draw anew.

    Args:
        model: What to draw weights for; it is left as it is.
        inputs: A batch of its inputs, to build a model that has no shapes yet.
        seed: Equal seeds give equal weights.

    Returns:
        An array for each of `model.weights`.

    Raises:
        ValueError: If Keras cannot make a model like this one.
    """

    def draw() -> list[np.ndarray]:
        # What has no seed of its own takes it from Python's generator.
        kept = random.getstate()
        random.seed(seed)
        try:
            clone = _untrained(model, random.Random(seed))
            if len(clone.weights) != len(model.weights):
                clone(engine.in_use().tensors(inputs))
            return [np.array(weight) for weight in clone.get_weights()]
        finally:
            random.setstate(kept)

    try:
        drawn = replicas.outside_strategies(draw)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise ValueError(
            f"Keras cannot draw fresh weights for {type(model).__name__}. Give "
            "the class a `get_config`, or build the model from layers "
            f"(Functional or Sequential). Keras: {shortened(error)}"
        ) from error
    if [w.shape for w in drawn] != [tuple(w.shape) for w in model.weights]:
        raise ValueError(
            f"A new {type(model).__name__} made from its `get_config` has "
            "other weights than this one. Let `get_config` give all arguments "
            "of its constructor."
        )
    return drawn


def _untrained(model: keras.Model, seeds: random.Random) -> keras.Model:
    if not keras_internals.is_plain_graph(model):
        return keras.models.clone_model(model)
    return keras.models.clone_model(
        model, clone_function=lambda layer: _untrained_layer(layer, seeds)
    )


def _untrained_layer(
    layer: keras.layers.Layer, seeds: random.Random
) -> keras.layers.Layer:
    config = _with_other_seeds(layer.get_config(), seeds)
    return type(layer).from_config(config)


def _with_other_seeds(node: Any, seeds: random.Random) -> Any:
    """A config in which seeds that the user chose are others.

    They would draw the same weights again and again.
    """
    if isinstance(node, dict):
        return {
            key: seeds.randrange(2**31)
            if key == "seed" and isinstance(value, int)
            else _with_other_seeds(value, seeds)
            for key, value in node.items()
        }
    if isinstance(node, (list, tuple)):
        return type(node)(_with_other_seeds(value, seeds) for value in node)
    return node


def starts_anew(model: keras.Model) -> list[bool]:
    """Which of `model.weights` a restart draws anew.

    Those that are trained, and the statistics of BatchNorm layers that are not
    frozen. What else a layer keeps, such as the mean that a Normalization was
    adapted to, stays.
    """
    anew = {id(variable) for variable in model.trainable_variables}
    for layer in keras_internals.layers_within(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            if layer.trainable:
                anew |= {id(layer.moving_mean), id(layer.moving_variance)}
    return [id(variable) in anew for variable in model.weights]


def reset_optimizer(model: keras.Model) -> None:
    """Gives the optimizer the slots that it would begin with.

    The learning rate stays; and so does the count of steps where the rate is
    a schedule of it.
    """
    optimizer = model.optimizer
    config = optimizer.get_config()

    def make() -> list[np.ndarray]:
        fresh = type(optimizer).from_config(config)
        fresh.build(model.trainable_variables)
        return [keras.ops.convert_to_numpy(v) for v in fresh.variables]

    inner = getattr(optimizer, "inner_optimizer", optimizer)
    kept = {"learning_rate"}
    if isinstance(inner.get_config().get("learning_rate"), dict):
        kept.add("iteration")
    for variable, value in zip(
        optimizer.variables, replicas.outside_strategies(make), strict=True
    ):
        if variable.name not in kept:
            variable.assign(value)
