"""Classes of the user that take less than Keras gives them back.

Many layers are written as `def __init__(self, units): super().__init__()`.
Keras describes them by all arguments, `trainable` and `dtype` among them, and
then cannot make them again, because they do not take these.
"""

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from cbnn_keras.models import keras_internals
from cbnn_keras.support.aliases import Json, NamedObjects

_OF_ALL_LAYERS = ("name", "trainable", "dtype")


def revivable(custom_objects: Mapping[str, Any]) -> NamedObjects:
    """Classes and functions by name, as Keras can make models of them."""
    return {
        name: _Revived(value) if _takes_less(value) else value
        for name, value in custom_objects.items()
    }


@contextlib.contextmanager
def quiet_builds() -> Iterator[None]:
    """Without the warning that a layer has no `build` of its own.

    Keras builds it before its first call, which then builds what is within.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`build\(\)` was called on layer")
        yield


class _Revived:
    """Stands in for a class where Keras makes an object of its config."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self.__name__ = kind.__name__
        self.__module__ = kind.__module__

    def from_config(self, config: Json) -> Any:
        taken = inspect.signature(self._kind).parameters
        left = {
            name: config[name]
            for name in _OF_ALL_LAYERS
            if name in config and name not in taken
        }
        given = {k: value for k, value in config.items() if k not in left}
        made = self._kind(**given)
        if "dtype" in left:
            made.dtype_policy = keras.dtype_policies.get(left["dtype"])
        if not left.get("trainable", True):
            made.trainable = False
        return made


def _takes_less(kind: Any) -> bool:
    is_class = inspect.isclass(kind)
    if not (is_class and issubclass(kind, keras.layers.Layer)):
        return False
    if not keras_internals.is_of_keras(getattr(kind, "from_config", None)):
        return False  # the user knows better
    taken = inspect.signature(kind).parameters
    takes_all = any(
        one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values()
    )
    return not takes_all and any(name not in taken for name in _OF_ALL_LAYERS)
