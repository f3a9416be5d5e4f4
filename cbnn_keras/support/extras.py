"""Packages that only some users need, imported where they are used."""

import contextlib
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any


def need(module: str, extra: str) -> Any:
    """Imports an optional package, or says how to install it."""
    # From 1.29 on ONNX Runtime reports its use to its makers unless told not to
    # before it is loaded. An export is nobody else's business.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"This needs {module.partition('.')[0]}: pip install "
            f'"cbnn-keras[{extra}]". ({error})'
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hides what converters log; what matters is checked afterwards."""
    kept = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(kept)


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Hides what libraries in C++ write to standard error."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
