"""Modules that a user names on the command line, with `--import`.

To import a module runs its code, so that only the user's own words name one:
never a file of a run.
"""

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from cbnn_keras.models.architecture_config import OpenedByModule
from cbnn_keras.models.keras_parts import PARTS
from cbnn_keras.support.faults import shortened


def imported_objects(modules: Sequence[str]) -> OpenedByModule:
    """What modules define that an architecture may name, by its name.

    That is classes that models are made of, and functions that are defined in
    the module or in its package. Modules are looked for in the working
    directory first. Of what has the same name as something else, nothing is
    opened; an architecture that names it is refused.

    Raises:
        ValueError: If a module cannot be imported.
    """
    found, doubled = OpenedByModule(), set()
    for name in modules:
        for value in vars(_imported(name)).values():
            if not _is_for_models(value, name.partition(".")[0]):
                continue
            key = keras.saving.get_registered_name(value)
            if found.setdefault(key, value) is not value:
                doubled.add(key)
    for key in doubled:
        del found[key]
    found.doubled = frozenset(doubled)
    return found


def _imported(name: str) -> Any:
    try:
        with _working_directory_first():
            return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"--import {name}: {shortened(error)}. Give the name of a module, "
            "without .py, that is installed or in the working directory "
            f"({os.getcwd()})."
        ) from error
    except Exception as error:  # of the user's module
        raise ValueError(
            f"--import {name}: the module fails with {type(error).__name__}: "
            f"{shortened(error)}."
        ) from error


@contextlib.contextmanager
def _working_directory_first() -> Iterator[None]:
    kept = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = kept


def _is_for_models(value: Any, package: str) -> bool:
    if inspect.isclass(value):
        is_of_keras = value.__module__.partition(".")[0] == "keras"
        return issubclass(value, PARTS) and not is_of_keras
    return (
        inspect.isfunction(value)
        and value.__name__.isidentifier()  # not that of a lambda
        and value.__module__.partition(".")[0] == package
    )
