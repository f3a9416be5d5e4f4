"""Arrays of all kinds as `tf.data` takes them."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf


def lists_to_tuples(structure: Any) -> Any:
    """Lists to tuples, as Keras does: tf.data stacks a list into a tensor."""
    if isinstance(structure, (list, tuple)):
        return tuple(lists_to_tuples(part) for part in structure)
    if isinstance(structure, dict):
        return {key: lists_to_tuples(part) for key, part in structure.items()}
    return structure


def single_array(y: Any) -> Any:
    if isinstance(y, dict) or (
        isinstance(y, (list, tuple)) and y and getattr(y[0], "shape", ())
    ):
        raise ValueError(
            "weighted(x, y): y must be one array of labels; received "
            f"{type(y).__name__} of {len(y)}. CBNN boosts one classification "
            "output."
        )
    return y


def as_tensor(array: Any) -> tf.Tensor:
    # On the CPU, where the pipeline runs: a GPU would be filled with the data.
    with tf.device("CPU:0"):
        if isinstance(array, tf.SparseTensor) or hasattr(array, "toarray"):
            raise ValueError(
                "weighted(x, y): sparse inputs are not supported. Make them "
                "dense (`tf.sparse.to_dense`, `.toarray()`)."
            )
        if tf.is_tensor(array):
            return tf.identity(array)
        values = np.asarray(array)
        if values.dtype == np.float64:  # as Keras does with arrays
            values = values.astype(keras.config.floatx())
        try:
            return tf.convert_to_tensor(values)
        except ValueError as error:
            raise ValueError(
                f"weighted(x, y): {type(array).__name__} of dtype "
                f"{values.dtype} is no array of numbers or of strings alone "
                f"({error}). Give columns of different kinds as a dict: "
                "`{name: column.to_numpy() for name, column in x.items()}`."
            ) from None
