"""What a SavedModel is made of, and so what TensorFlow's converters read."""

import contextlib
import errno
import keyword
import os
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from cbnn_keras.export.graph import ServingGraph
from cbnn_keras.support.faults import shortened


def check_input_names(graph: ServingGraph, what: str) -> None:
    """Raises a `ValueError` for names that endpoints cannot have.

    Args:
        graph: What is exported.
        what: What it becomes, as the beginning of a sentence.
    """
    for name in graph.input_specs:
        is_possible = name.isascii() and name.isidentifier()
        if not is_possible or keyword.iskeyword(name):
            raise ValueError(
                f"{what} cannot have an input called {name!r}. Use "
                "letters, digits and underscores: inputs=keras.Input(..., "
                'name="another").'
            )


def holder(graph: ServingGraph, endpoints: Iterable[Any]) -> tf.Module:
    """An object that holds what endpoints read: variables and tables.

    Not the Keras model: of its variables TensorFlow would save copies, which
    are restored in Python and nowhere else.

    Args:
        graph: What the endpoints were traced from.
        endpoints: Concrete functions.
    """
    module = tf.Module()
    module.used = [endpoint.variables for endpoint in endpoints]
    module.tables = [
        part
        for part in tf.train.TrackableView(graph.model).descendants()
        if isinstance(part, tf.saved_model.experimental.TrackableResource)
    ]
    return module


@contextlib.contextmanager
def errors_of_the_system() -> Iterator[None]:
    """Makes TensorFlow's errors in writing what Python's own would be."""
    try:
        yield
    except tf.errors.OpError as error:
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            if os.strerror(number) in error.message:
                raise OSError(number, os.strerror(number)) from error
        raise OSError(shortened(error)) from error
