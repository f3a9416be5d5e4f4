"""The classes and functions of the user that a model is made of.

A model that was made in this process has them at hand, whether or not they are
registered with Keras: to copy it, nothing has to be looked up by name.
"""

import contextlib
import inspect
import json
from collections.abc import Iterator
from typing import Any

import keras

from cbnn_keras.models import keras_internals
from cbnn_keras.support.aliases import NamedObjects

_DEEPEST = 3  # a layer, what it was given, and what that was given


@contextlib.contextmanager
def named_objects(model: keras.Model) -> Iterator[NamedObjects]:
    """What Keras needs to know by name to read what it writes meanwhile.

    Functions get names of their own for that time: those that are lambdas have
    none, and two may have the same.

    Raises:
        ValueError: If two classes have the same name.
    """
    parts = _own_parts(model)
    classes = [part for part in parts if inspect.isclass(part)]
    functions = [part for part in parts if not inspect.isclass(part)]
    named: NamedObjects = {}
    for part in classes:
        name = keras.saving.get_registered_name(part)
        if named.setdefault(name, part) is not part:
            raise ValueError(
                f"The model has two classes that are called {name!r}, which "
                "Keras cannot tell apart. Rename one of them."
            )
    kept = [function.__name__ for function in functions]
    try:
        for number, function in enumerate(functions):
            function.__name__ = f"function_{number}_of_the_model"
            named[function.__name__] = function
        yield named
    finally:
        for function, name in zip(functions, kept, strict=True):
            function.__name__ = name


def has_own_parts(model: keras.Model) -> bool:
    """Whether a model has classes or functions that are not Keras' own."""
    return bool(_own_parts(model))


def has_lambda(model: keras.Model) -> bool:
    """Whether the description of a model has functions without a name.

    Others, which a layer makes by itself, are made again with the layer.
    """
    lambdas = [
        part
        for part in _own_parts(model)
        if getattr(part, "__name__", "") == "<lambda>"
    ]
    if not lambdas:
        return False
    try:
        # With names, as Keras asks for the source of those without.
        with named_objects(model):
            names = [function.__name__ for function in lambdas]
            config = keras.saving.serialize_keras_object(model.get_config())
            text = json.dumps(config, default=str)
    except Exception:  # of the user's classes, or of Keras
        return True
    return any(f'"{name}"' in text for name in names)


def _own_parts(model: keras.Model) -> list[Any]:
    """Classes and functions of the user, each once."""
    found: dict[int, Any] = {}
    for layer in keras_internals.layers_within(model):
        for part in _parts_of(layer, 0):
            if not keras_internals.is_of_keras(part) and not (
                inspect.isfunction(part) and _is_registered(part)
            ):
                found[id(part)] = part
    return list(found.values())


def _is_registered(part: Any) -> bool:
    return keras.saving.get_registered_name(part) != part.__name__


def _parts_of(value: Any, depth: int) -> Iterator[Any]:
    """A function, or the class of an object and what the object holds."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _parts_of(item, depth)
    elif isinstance(value, dict):
        yield from _parts_of(list(value.values()), depth)
    elif inspect.isfunction(value):
        yield value
    elif hasattr(value, "get_config") and not inspect.isclass(value):
        yield type(value)
        if depth < _DEEPEST:
            for inner in list(vars(value).values()):
                # Layers within are found by themselves.
                if not isinstance(inner, keras.layers.Layer):
                    yield from _parts_of(inner, depth + 1)
