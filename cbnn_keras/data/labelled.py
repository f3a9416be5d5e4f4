"""Labelled data in the forms that people have them in."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.data.conversion import numbered_as
from cbnn_keras.labels import class_indices
from cbnn_keras.models.classifier import Classifier


def as_pair(data: Any, name: str = "validation_data") -> tuple[Any, Any]:
    """Inputs and labels from either of their forms, `(x, y)` or a dataset.

    Args:
        data: `(x, y)`, or a dataset, which is given back with None.
        name: The argument that it was given as, for the message.
    """
    if isinstance(data, tf.data.Dataset):
        return data, None
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return data[0], data[1]
    raise ValueError(
        f"{name} must be `(x, y)` or a tf.data.Dataset of (x, y); received "
        f"{type(data).__name__}."
    )


def split_labels(
    classifier: Classifier,
    x: Any,
    y: Any = None,
    name: str = "The data",
    class_names: list[str] | None = None,
) -> tuple[Any, np.ndarray]:
    """Inputs for `predict` and the class index of each sample.

    Args:
        classifier: Says which labels fit.
        x: Inputs, or a `tf.data.Dataset` of batches `(x, y)`.
        y: Labels in any of the formats of training, or None with a dataset.
        name: What messages call them.
        class_names: Those of training, where they are known: labels can then
            be names.

    Raises:
        ValueError: If there are no labels, or not one for each sample, or one
            that is no class.
    """
    if isinstance(x, tf.data.Dataset):
        if y is not None:
            raise ValueError("A dataset brings its own labels; leave `y` out.")
        x, y = _split_dataset(x, name)
    elif y is None:
        raise ValueError(
            "The labels are missing: give `x, y` or a tf.data.Dataset of "
            "batches (x, y)."
        )
    labels = class_indices(
        numbered_as(y, class_names),
        classifier.num_classes,
        is_binary=classifier.is_binary,
    )
    if not isinstance(x, tf.data.Dataset):
        sizes = {len(array) for array in keras.tree.flatten(x)}
        if sizes != {len(labels)}:
            raise ValueError(
                f"There are {len(labels)} labels for inputs of length "
                f"{', '.join(map(str, sorted(sizes)))}: give one label "
                "per sample."
            )
    if not len(labels):
        raise empty(name)
    return x, labels


def are_finite(inputs: Any) -> bool:
    """Whether no floating input of `split_labels` is NaN or infinite."""
    if isinstance(inputs, tf.data.Dataset):
        return all(
            bool(tf.reduce_all(tf.math.is_finite(tensor)))
            for batch in inputs
            for tensor in tf.nest.flatten(batch, expand_composites=True)
            if tensor.dtype.is_floating
        )
    arrays = [np.asarray(array) for array in keras.tree.flatten(inputs)]
    # Without an array of booleans as long; NaN is the extreme of what has it.
    return all(
        np.isfinite([array.min(), array.max()]).all()
        for array in arrays
        if array.dtype.kind == "f" and array.size
    )


def empty(name: str) -> ValueError:
    """The error for data without a sample."""
    return ValueError(f"{name}: there are no samples. Give at least one.")


def check_same_length(name: str, first: int, second: int) -> None:
    """Raises a `ValueError` for two passes that are not equally long."""
    if first != second:
        raise ValueError(
            f"{name}: one pass gave {first} samples and the next {second}, but "
            "each member predicts in a pass of its own. Give a dataset that is "
            "the same in every pass; `.cache()` keeps what the first one gave."
        )


def _split_dataset(
    dataset: tf.data.Dataset, name: str
) -> tuple[Any, np.ndarray]:
    spec = dataset.element_spec
    is_pair = isinstance(spec, tuple) and len(spec) >= 2
    if not is_pair or getattr(spec[1], "shape", None) == ():
        raise ValueError(
            "The dataset must give batches (x, y): add `.batch(...)` to single "
            f"samples. Its elements are {spec}."
        )
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            f"{name}: the dataset repeats for ever, and all of its samples are "
            "used. Remove `.repeat()`, or take as many batches as there are "
            "to be: `.take(validation_steps)`."
        )
    labels = dataset.map(lambda x, y, *_: y)
    passes = [[y.numpy() for y in labels] for _ in range(2)]
    if not all(passes):
        raise empty(name)
    first, second = map(np.concatenate, passes)
    check_same_length(name, len(first), len(second))
    # Members predict in separate passes: sample i must stay sample i.
    if not np.array_equal(first, second):
        raise ValueError(
            "The dataset gives its samples in another order in every pass, so "
            "members and labels would not match. Remove `.shuffle(...)`."
        )
    # A tuple of one: Keras would take a pair of inputs for (x, y).
    return dataset.map(lambda x, y, *_: (x,)), first
