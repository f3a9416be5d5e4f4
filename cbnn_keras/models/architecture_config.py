"""The text of an architecture, judged before Keras acts on it.

Keras turns every object of the text that names a class into an instance of
that class, wherever the object stands. So every object is looked at, and only
classes that models are made of may be named: what a file says must never
become code, a path that is opened, or a module that is imported. Nothing here
relies on checks of Keras, which differ between its versions.
"""

import builtins
import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from cbnn_keras.models import keras_parts
from cbnn_keras.support.aliases import Json

CustomObjects = Mapping[str, Any]

_DEEPEST = 200
_LONGEST_NAME = 1000  # it is in every operation of a graph
_NUMBERS_AND_TEXTS = {
    *("bool", "string", "str", "bfloat16"),
    *(f"float{bits}" for bits in (16, 32, 64)),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("complex64", "complex128"),
}
_ARRAYS = {"__numpy__", "__tensor__"}
_OTHER_VALUES = {"__keras_tensor__", "__slice__", "__ellipsis__", "__bytes__"}
# Settings that layers make lists of that length of, as they are built.
_LENGTHS = ("ngrams", "num_oov_indices")
_BYTES_OF_AN_ITEM = 64
# What Keras takes for a layer beside its weights, at least for large ones.
_BYTES_OF_A_LAYER = 2**19
_FREE_LAYERS = 32  # which take less than Keras itself
# Settings that some layers take for the path of a file.
_PATHS = ("vocabulary", "idf_weights")


class UnknownClassesError(ValueError):
    """The text names classes or functions that are not known here.

    Attributes:
        names: What they are called.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"it has classes of its maker: {', '.join(names)}")
        self.names = names


class OpenedByModule(dict[str, Any]):
    """Classes and functions that were opened by the name of their module.

    Nobody looked at each of them: a file chooses among them, but not what a
    function is called with.

    Attributes:
        doubled: Names that stand for two of them, and so for none.
    """

    doubled: frozenset[str] = frozenset()


def parse(text: bytes) -> Json:
    """The objects of JSON that a text holds; a name may be given only once."""

    def unique(pairs: list[tuple[str, Any]]) -> Json:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"an object in its text has two {twice!r}")
        return found

    config = json.loads(text, object_pairs_hook=unique)
    if not isinstance(config, dict):
        raise ValueError("its text is not an object of JSON")
    return config


def check(config: Json, custom_objects: CustomObjects, max_bytes: int) -> None:
    """Raises a `ValueError` for an architecture that Keras must not act on.

    Args:
        config: What `parse` gave.
        custom_objects: Classes and functions of the user by name, beside those
            that are registered with Keras.
        max_bytes: How much memory layers, and the lists that they make, may
            take.
    """
    unknown: list[str] = []
    num_layers = 0
    for node in _objects(config):
        num_layers += keras_parts.is_layer(node)
        if (num_layers - _FREE_LAYERS) * _BYTES_OF_A_LAYER > max_bytes:
            raise ValueError(
                f"it has {num_layers:,} layers or more, which take more than "
                f"{max_bytes:,} bytes"
            )
        if len(str(node.get("name", ""))) > _LONGEST_NAME:
            raise ValueError(
                f"a name in it has more than {_LONGEST_NAME:,} characters"
            )
        if node is not config and node.get("compile_config"):
            raise ValueError(
                "it has a compiled model within the model, which would be "
                "compiled again"
            )
        if "class_name" in node:
            _check_object(node, custom_objects, max_bytes, unknown)
    if unknown:
        raise UnknownClassesError(sorted(set(unknown)))


def allocates_while_built(config: Json) -> bool:
    """Whether layers hold arrays that are neither weights nor in the text."""
    for node in _objects(config):
        settings = node.get("config")
        if isinstance(settings, dict) and (
            settings.get("stateful")
            or (
                node.get("class_name") == "Normalization"
                and settings.get("mean") is not None
            )
        ):
            return True
    return False


def _objects(config: Json) -> Iterator[Json]:
    """Every object of the text that Keras can come to."""
    # The model's own training is left out as it is loaded.
    content = {k: v for k, v in config.items() if k != "compile_config"}
    yield config
    waiting: list[tuple[Any, int]] = [(v, 1) for v in content.values()]
    while waiting:
        value, depth = waiting.pop()
        if depth > _DEEPEST:
            raise ValueError(f"its text is nested more than {_DEEPEST} deep")
        if isinstance(value, dict):
            yield value
            waiting.extend((inner, depth + 1) for inner in value.values())
        elif isinstance(value, list):
            waiting.extend(
                (inner, depth + 1)
                for inner in value
                if isinstance(inner, (dict, list))
            )


def _check_object(
    node: Json,
    custom_objects: CustomObjects,
    max_bytes: int,
    unknown: list[str],
) -> None:
    name = node["class_name"]
    if not isinstance(name, str):
        raise ValueError("the name of a class in it is not a text")
    if name.startswith("__"):
        _check_value(name, node)
        return
    if "module" not in node or "config" not in node:
        raise ValueError(f"{name!r} in it is in a format of old versions")
    if name == "function":
        _check_function(node, custom_objects, unknown)
    else:
        _check_class(node, custom_objects, max_bytes, unknown)


def _check_value(name: str, node: Json) -> None:
    """Arrays, slices and the like, which are objects of JSON too."""
    if name in _ARRAYS:
        content = node.get("config")
        if not isinstance(content, dict) or not (
            _is_text_of(_NUMBERS_AND_TEXTS, content.get("dtype"))
            and _is_array(content.get("value"))
        ):
            raise ValueError(
                "it has an array of objects, which can hide anything"
            )
    elif name not in _OTHER_VALUES:
        raise ValueError(
            "it has a lambda, which is code"
            if name == "__lambda__"
            else f"it has a value of the kind {name!r}, which no model needs"
        )


def _is_text_of(texts: set[str], value: Any) -> bool:
    return isinstance(value, str) and value in texts


def _is_array(value: Any) -> bool:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting.extend(item)
        elif not isinstance(item, (str, int, float)):
            return False
    return True


def _check_function(
    node: Json, custom_objects: CustomObjects, unknown: list[str]
) -> None:
    name, module = node["config"], node["module"]
    if _is_opened(name, custom_objects):
        return
    # Keras goes by the one or the other, depending on where it stands.
    registered = node.get("registered_name")
    if not isinstance(name, str) or registered not in (None, name, "function"):
        raise ValueError(f"it names a function {name!r} under another name")
    if module == "builtins" and not hasattr(builtins, name):
        # Where Keras says that functions of a user are, too.
        module = module if hasattr(keras.activations, name) else None
    if not keras_parts.is_of_keras(module) and module != "builtins":
        unknown.append(_full_name(module, name))
        return
    if not keras_parts.is_function(module, name):
        raise ValueError(
            f"it names the function {_full_name(module, name)}, which is no "
            "part of a model"
        )


def _check_class(
    node: Json,
    custom_objects: CustomObjects,
    max_bytes: int,
    unknown: list[str],
) -> None:
    name, module, config = node["class_name"], node["module"], node["config"]
    registered = node.get("registered_name", name)
    is_lambda = name == "Lambda" and registered in (None, name)
    if keras_parts.is_of_keras(module) and is_lambda:
        function = _function_of(config)
        if _is_given(function, custom_objects):
            _check_arguments(function, config, custom_objects)
            return  # code that the user has given, and none in the file
        if function is not None:
            unknown.append(function)
            return
    if keras_parts.is_of_keras(module) and name in keras_parts.CODE:
        raise ValueError(
            f"it has a layer {name}, which is code or loads code from elsewhere"
        )
    if _is_opened(registered, custom_objects):
        return
    if not keras_parts.is_of_keras(module) or registered not in (None, name):
        unknown.append(_full_name(module, name))
        return
    if not keras_parts.is_part_of_models(module, name):
        raise ValueError(
            f"it names {_full_name(module, name)}, which is no part of a model"
        )
    if not isinstance(config, dict):
        raise ValueError(f"the settings of {name} in it are no object of JSON")
    for setting in _PATHS:
        if not _is_literal(config.get(setting)):
            raise ValueError(
                f"{name} in it has its {setting} in a file elsewhere"
            )
    for setting in _LENGTHS:
        length = config.get(setting)
        if isinstance(length, int) and length * _BYTES_OF_AN_ITEM > max_bytes:
            raise ValueError(
                f"{name} in it has {setting}={length:,}, which takes more "
                f"than {max_bytes:,} bytes"
            )


def _function_of(config: Any) -> str | None:
    """What the function of a Lambda layer is called, if it is a user's."""
    node = config.get("function") if isinstance(config, dict) else None
    if not isinstance(node, dict) or node.get("class_name") != "function":
        return None
    name, module = node.get("config"), node.get("module")
    is_name = isinstance(name, str) and not hasattr(builtins, name)
    return name if is_name and not keras_parts.is_of_keras(module) else None


def _is_given(name: str | None, custom_objects: CustomObjects) -> bool:
    """Whether the user gave a function, be it by the name in its code.

    Keras calls one that is registered `package>name`, and finds it by that.
    """
    return name in custom_objects or any(
        inspect.isfunction(value)
        and keras.saving.get_registered_name(value) == name
        for value in custom_objects.values()
    )


def _check_arguments(
    name: str | None, config: Json, custom_objects: CustomObjects
) -> None:
    """Sees that it was the user who let a file choose what a call is given."""
    is_by_module = isinstance(custom_objects, OpenedByModule)
    if is_by_module and config.get("arguments"):
        raise ValueError(
            f"it has a Lambda that calls {name!r} with arguments of the file's "
            "choice; if that is meant, open the function by its name, in "
            f"Python: custom_objects={{{name!r}: ...}}"
        )


def _is_literal(value: Any) -> bool:
    """Whether there are values or nothing, and not the name of a file."""
    if isinstance(value, dict) and value.get("class_name") in _ARRAYS:
        value = value["config"]["value"]
    return value is None or isinstance(value, list)


def _is_opened(name: Any, custom_objects: CustomObjects) -> bool:
    """Whether the user gave it or registered it in this process."""
    if not isinstance(name, str):
        return False
    if name in getattr(custom_objects, "doubled", ()):
        raise ValueError(
            f"it names {name!r}, and there are two of that name in what was "
            "imported: import one module only"
        )
    found = keras.saving.get_registered_object(name, dict(custom_objects))
    return found is not None


def _full_name(module: Any, name: str) -> str:
    return f"{module}.{name}" if isinstance(module, str) else name
