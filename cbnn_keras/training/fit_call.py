"""The arguments of `model.fit`, for a `fit` with `weighted` in front of it."""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# What `weighted` takes of them, and what it takes beside them.
_OF_PIPELINE = (
    *("batch_size", "sample_weight", "shuffle"),
    *("augment", "seed", "num_samples"),
)


def divided(
    callback: keras.callbacks.Callback, x: Any, y: Any, options: dict[str, Any]
) -> tuple[tuple[Any, Any, dict[str, Any]], dict[str, Any]]:
    """What `weighted` is to be given, and what is left for `model.fit`.

    Args:
        callback: Is put in front of the callbacks, which may read its logs.
        x: As `model.fit` takes it.
        y: Likewise.
        options: The other arguments of `model.fit` and of `weighted`.

    Returns:
        `(x, y, options)` of `weighted`, and the options of `model.fit`.

    Raises:
        ValueError: For arrays that cannot be split, and for class weights of a
            dataset.
    """
    given = {k: v for k, v in options.items() if v is not None}
    share = given.pop("validation_split", 0)
    by_class = given.pop("class_weight", None)
    weights = given.pop("sample_weight", None)
    if share and "validation_data" not in given:
        training, held_out = _split((x, y, weights), share)
        x, y, weights = training
        # As Keras does: without weights there is nothing in third place.
        given["validation_data"] = held_out[: 2 if weights is None else 3]
    if by_class is not None:
        weights = _of_classes(y, by_class, weights)
    if weights is not None:
        given["sample_weight"] = weights
    if "batch_size" in given:  # which Keras takes for validation too
        given.setdefault("validation_batch_size", given["batch_size"])
    pipeline = {k: given.pop(k) for k in _OF_PIPELINE if k in given}
    others = keras.tree.flatten(given.pop("callbacks", []))
    others = [other for other in others if other is not callback]
    # The pipeline shuffles; without this Keras warns that it does not.
    left = {**given, "shuffle": False, "callbacks": [callback, *others]}
    return (x, y, pipeline), left


def _split(arrays: tuple[Any, ...], share: Any) -> tuple[Any, Any]:
    """Arrays without their last share, and that share, as Keras splits them."""
    parts = [part for part in keras.tree.flatten(arrays) if part is not None]
    if any(isinstance(part, tf.data.Dataset) for part in parts):
        raise ValueError(
            f"fit(validation_split={share!r}): only arrays can be split, not a "
            "dataset. Give `validation_data=`, with `dataset.take(...)`, and "
            "`dataset.skip(...)` to train on."
        )
    num_samples = len(parts[0])
    num_kept = math.floor(num_samples * (1 - share)) if 0 < share < 1 else 0
    if not 0 < num_kept < num_samples:
        raise ValueError(
            f"fit(validation_split={share!r}): must be a share between 0 and 1 "
            f"that leaves some of the {num_samples} samples on either side."
        )
    first, second = (
        keras.tree.map_structure(
            lambda part, where=where: None if part is None else part[where],
            arrays,
        )
        for where in (slice(num_kept), slice(num_kept, None))
    )
    return first, second


def _of_classes(y: Any, by_class: Any, weights: Any) -> np.ndarray:
    """One weight a sample, from those of the classes."""
    if y is None:
        raise ValueError(
            "fit(class_weight=...): a dataset has its labels inside. Give "
            "`sample_weight=`, one number for each sample."
        )
    if not isinstance(by_class, dict):
        raise ValueError(
            f"fit(class_weight={by_class!r:.100}): must be a dict of weights "
            "by class, such as {0: 1.0, 1: 5.0}."
        )
    labels = np.asarray(y)
    labels = labels.reshape(len(labels), -1)
    if labels.shape[1] > 1:
        labels = labels.argmax(axis=1)[:, None]
    found = [by_class.get(int(label), 1.0) for label in labels[:, 0]]
    return np.array(found) * (1.0 if weights is None else np.asarray(weights))
