"""The arguments of `model.fit`, for a `fit` with `weighted` in front of it."""

from typing import Any

import keras
import tensorflow as tf

from cbnn_keras.data.conversion import numbered_as
from cbnn_keras.data.weighted_dataset import WeightedDataset
from cbnn_keras.support.aliases import Keywords

# What `weighted` takes of them, and what it takes beside them.
_OF_PIPELINE = (
    *("batch_size", "sample_weight", "class_weight", "validation_split"),
    *("shuffle", "augment", "seed", "num_samples", "sharded"),
)


def divided(
    callback: keras.callbacks.Callback, options: Keywords
) -> tuple[Keywords, Keywords]:
    """What `weighted` is to be given, and what is left for `model.fit`.

    Args:
        callback: Is put in front of the callbacks, which may read its logs.
        options: The arguments of `model.fit` and of `weighted`.
    """
    given = {k: v for k, v in options.items() if v is not None}
    if "validation_data" in given:  # which Keras prefers
        given.pop("validation_split", None)
    if "batch_size" in given:  # which Keras takes for validation too
        given.setdefault("validation_batch_size", given["batch_size"])
    pipeline = {k: given.pop(k) for k in _OF_PIPELINE if k in given}
    others = keras.tree.flatten(given.pop("callbacks", []))
    others = [other for other in others if other is not callback]
    return pipeline, {**given, "callbacks": [callback, *others]}


def validated(left: Keywords, train: WeightedDataset) -> Keywords:
    """What is left for `model.fit`, with validation data that fit `train`.

    They are those that were held out, or those that were given, with numbers
    for names of classes.
    """
    data = left.get("validation_data")
    if train.validation_data is not None:
        data = train.validation_data
    elif isinstance(data, (tuple, list)) and len(data) > 1:
        x, y, *weights = data
        data = (x, numbered_as(y, train.class_names), *weights)
    return left if data is None else {**left, "validation_data": data}


def held_out(left: Keywords) -> Any:
    """What `model.fit` validates on, or None: `(x, y)` or a dataset."""
    data = left.get("validation_data")
    steps = left.get("validation_steps")
    if isinstance(data, tf.data.Dataset) and steps is not None:
        return data.take(steps)  # it may have no end
    if isinstance(data, tuple) and len(data) == 3:
        return data[:2]
    return data
