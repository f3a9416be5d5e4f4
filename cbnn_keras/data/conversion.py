"""Arrays in the forms that people have them in -> tensors.

Lists, data frames and class names, on the way to what TensorFlow gathers from.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

_NUM_SHOWN = 5  # sizes in a message


def as_inputs(x: Any, y: Any) -> Any:
    """The inputs as tensors, in the structure that Keras would see.

    A list or tuple is a structure of several inputs, as in Keras, unless it
    holds what cannot be one: numbers, texts, rows, or one array a sample.
    """
    return tf.nest.map_structure(as_tensor, inputs_of(x, length(y)))


def as_labels(y: Any) -> tuple[tf.Tensor, list[str] | None]:
    """Labels as numbers, and the names of the classes if they had names.

    Class i is the i-th name in alphabetical order. What is True or False is 1
    or 0.

    Raises:
        ValueError: If there is more than one array of labels.
    """
    if isinstance(y, dict) or (
        isinstance(y, (list, tuple)) and y and getattr(y[0], "shape", ())
    ):
        raise ValueError(
            "weighted(x, y): y must be one array of labels; received "
            f"{type(y).__name__} of {len(y)}. CBNN boosts one "
            "classification output."
        )
    if tf.is_tensor(y) and y.dtype not in (tf.string, tf.bool):
        return as_tensor(y), None
    values = np.asarray(y)
    if values.dtype == np.bool_:
        return as_tensor(values.astype(np.int32)), None
    if not are_names(values):
        return as_tensor(values), None
    return _numbered(values)


def are_names(y: Any) -> bool:
    """Whether labels are texts, or Python objects that can be."""
    return np.asarray(y).dtype.kind in "OSU"


def numbered_as(y: Any, class_names: list[str] | None) -> Any:
    """Labels with the numbers that names of classes had in training.

    Args:
        y: Labels, which are given back if they are no names.
        class_names: The name of each class, or None where they are not known.

    Raises:
        ValueError: For a name that is none of these.
    """
    if not are_names(y):
        return y
    numbers, given = as_labels(np.asarray(y))
    if given is None:
        return numbers.numpy()
    if class_names is None:
        raise ValueError(
            "The labels are names of classes, such as "
            f"{given[0]!r:.80}, and which numbers they had in training is not "
            "known here. Give the numbers."
        )
    numbers_of = {name: number for number, name in enumerate(class_names)}
    for name in given:
        if name not in numbers_of:
            raise ValueError(
                f"No class of training is called {name!r:.80}; there are "
                f"{listed(class_names)}."
            )
    return np.array([numbers_of[name] for name in given])[numbers.numpy()]


def _numbered(values: np.ndarray) -> tuple[tf.Tensor, list[str] | None]:
    flat = values.ravel().tolist()
    if flat and all(isinstance(v, (bool, int, float)) for v in flat):
        # Numbers in a column of Python objects, as pandas has them.
        return as_labels(np.array(flat).reshape(values.shape))
    texts = [v.decode() if isinstance(v, bytes) else v for v in flat]
    if not all(isinstance(text, str) for text in texts):
        wrong = next(i for i, t in enumerate(texts) if not isinstance(t, str))
        raise ValueError(
            "Labels must be numbers, or names of classes; "
            f"sample {wrong} has {flat[wrong]!r:.80}."
        )
    names, numbers = np.unique(np.array(texts, str), return_inverse=True)
    return as_tensor(numbers.reshape(values.shape)), names.tolist()


def shown_sizes(sizes: list[int | None]) -> str:
    """First axes for a message, however many there are."""
    if len(sizes) <= _NUM_SHOWN:
        return str(sizes)
    first = ", ".join(map(str, sizes[:_NUM_SHOWN]))
    return f"[{first}, ... ({len(sizes)} in all)]"


def listed(names: list[Any]) -> str:
    """Classes for a message, however many there are."""
    shown = ", ".join(f"{name!r:.40}" for name in names[:10])
    return shown if len(names) <= 10 else f"{shown}, ... ({len(names)} in all)"


def length(y: Any) -> int | None:
    """How many entries an array or a list has, if it is one."""
    shape = getattr(y, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    return len(y) if isinstance(y, (list, tuple)) else None


def inputs_of(x: Any, num: int | None) -> Any:
    """The structure of inputs, with arrays instead of lists of samples."""
    if isinstance(x, dict):
        return {name: inputs_of(part, num) for name, part in x.items()}
    if not isinstance(x, (list, tuple)):
        return x
    if _holds_samples(x, num):
        return _array_of_list(x)
    # Tuples, as Keras does: tf.data stacks a list into a tensor.
    return tuple(inputs_of(part, num) for part in x)


def _holds_samples(x: list[Any] | tuple[Any, ...], num: int | None) -> bool:
    """Whether the elements of a list are samples, and not inputs."""
    if not x or isinstance(x[0], dict):
        return False
    shape = getattr(x[0], "shape", None)
    if shape is not None:
        # Inputs have an entry for each sample.
        return len(x) == num and not (len(shape) and shape[0] == num)
    if isinstance(x[0], (list, tuple)):
        # Two lists of n numbers are two inputs; n lists are n samples.
        is_row = not any(hasattr(value, "shape") for value in x[0])
        return is_row and (len(x) == num or len(x[0]) != num)
    return True


def _array_of_list(x: list[Any] | tuple[Any, ...]) -> np.ndarray:
    try:
        return np.asarray(x)
    except ValueError:  # NumPy: "inhomogeneous shape"
        raise ValueError(
            f"weighted(x, y): x is a {type(x).__name__} of {len(x)} samples "
            "that are not equally long. Make them so, for example with "
            "`keras.utils.pad_sequences(x)`, or give a `tf.RaggedTensor` "
            "(`tf.ragged.constant(x)`)."
        ) from None


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
                f"({error!s:.200}). Give columns of different kinds as a dict: "
                "`{name: column.to_numpy() for name, column in x.items()}`."
            ) from None
