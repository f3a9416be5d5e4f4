"""Data for the command line: arrays and lists in files."""

import contextlib
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from cbnn_keras.models.foreign import Foreign, can_compute
from cbnn_keras.support import arrays
from cbnn_keras.support.faults import RunError, shortened
from cbnn_keras.support.files import MAX_BYTES

_TEXT_BYTES = 2**24  # of a file of priors or names: millions of classes


def load_inputs(path: pathlib.Path, max_bytes: int = MAX_BYTES) -> Any:
    """The array `x` of an `.npz` file, or all arrays but `y`, by name.

    Args:
        path: The file.
        max_bytes: What its arrays may take.

    Raises:
        RunError: If the file is no such file, or too large.
    """
    return _inputs(path, _load(path, "x=...", max_bytes))


def load_labelled(
    path: pathlib.Path, max_bytes: int = MAX_BYTES
) -> tuple[Any, np.ndarray]:
    """Inputs as `load_inputs` gives them, and `y` of the same `.npz` file.

    Args:
        path: The file.
        max_bytes: What its arrays may take.

    Raises:
        RunError: If the file is no such file, or too large.
    """
    found = _load(path, "x=..., y=...", max_bytes)
    if "y" not in found:
        raise RunError(
            f"{path} holds no labels `y`, only {', '.join(sorted(found))}. "
            "Write one with np.savez(path, x=..., y=...)."
        )
    return _inputs(path, found), found["y"]


@contextlib.contextmanager
def faults_of_data(
    data: Mapping[pathlib.Path, Any], models: Sequence[keras.Model]
) -> Iterator[None]:
    """Names data that a model cannot compute with, whatever it raises.

    Args:
        data: The inputs of each file; without any, errors pass.
        models: What the inputs are for.

    Raises:
        RunError: In place of what neither the package nor the system says, and
            of what is said when a model cannot compute with the first sample.
    """
    try:
        yield
    except (ImportError, OSError, RunError):
        raise
    except Exception as error:
        guilty = [
            path
            for path, inputs in data.items()
            if not all(can_compute(model, _first(inputs)) for model in models)
        ]
        if not data or (isinstance(error, ValueError) and not guilty):
            raise
        named = ", ".join(map(str, guilty or data))
        raise RunError(
            f"The model cannot compute with {named} ({shortened(error)}). "
            "Give data as the model was trained on."
        ) from error


def _first(inputs: Any) -> Any:
    return keras.tree.map_structure(lambda array: array[:1], inputs)


@contextlib.contextmanager
def faults_of(path: pathlib.Path | None) -> Iterator[None]:
    """Names the file whose content does not fit, if there is one."""
    try:
        yield
    except RunError:
        raise
    except ValueError as error:
        if path is None:
            raise
        raise RunError(f"{path}: {shortened(error)}") from error


def _load(
    path: pathlib.Path, content: str, max_bytes: int
) -> dict[str, np.ndarray]:
    try:
        found = arrays.read_npz(path, max_bytes)
    except RunError:  # says what is wrong
        raise
    except Exception as error:  # of bytes that someone else chose
        is_pickled = "Object arrays" in str(error)
        raise RunError(
            f"{path} is not an .npz file of arrays ({shortened(error)}). Write "
            f"one with np.savez(path, {content})."
            + (" Texts are arrays of strings: x.astype(str)." * is_pickled)
        ) from error
    for name, array in found.items():
        if not array.ndim:
            raise RunError(
                f"{path}: {name!r} is a single value. Every array must have a "
                "row for each sample; leave others out."
            )
        if not len(array):
            raise RunError(
                f"{path}: {name!r} has no rows. Give one sample at least."
            )
    _check_lengths(path, {name: len(array) for name, array in found.items()})
    return found


def _check_lengths(path: pathlib.Path, lengths: dict[str, int]) -> None:
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} {n}" for name, n in lengths.items())
        raise RunError(
            f"{path}: the arrays have different numbers of rows: {listed}. "
            "Every array must have a row for each sample; leave others out."
        )


def _inputs(path: pathlib.Path, found: dict[str, np.ndarray]) -> Any:
    # Keras knows strings only as objects, which `np.savez` would pickle.
    inputs = {
        name: array.astype(object) if array.dtype.kind in "US" else array
        for name, array in found.items()
        if name != "y"
    }
    if not inputs:
        raise RunError(f"{path} holds no array `x`.")
    return inputs["x"] if set(inputs) == {"x"} else inputs


def load_priors(path: pathlib.Path) -> np.ndarray:
    """The numbers of an `.npy` file, or of a text file, one in each line.

    Raises:
        RunError: If the file is no such file, or if they cannot be shares.
    """
    try:
        if path.suffix == ".npy":
            priors = arrays.read_npy(path, _TEXT_BYTES)
        else:
            texts = _read_text(path).split()
            priors = np.array([float(text) for text in texts])
        if priors.ndim != 1 or priors.dtype.kind not in "biuf":
            raise ValueError(f"an array of shape {priors.shape}")
        if not len(priors) or not np.all(np.isfinite(priors) & (priors >= 0)):
            raise ValueError("shares of classes are finite and not below 0")
    except RunError:  # says what is wrong
        raise
    except Exception as error:  # of bytes that someone else chose
        raise RunError(
            f"{path} holds no priors ({shortened(error)}). Write them with "
            "np.save('priors.npy', class_priors(labels)), or one number per "
            "line."
        ) from error
    return priors


def read_lines(path: pathlib.Path | None) -> list[str] | None:
    """The lines of a text file in UTF-8, or None without one.

    Raises:
        RunError: If it is in another encoding, or has control characters.
    """
    if path is None:
        return None
    try:
        text = _read_text(path)
    except UnicodeDecodeError as error:
        raise RunError(f"{path} is not in UTF-8 ({error}).") from error
    lines = text.rstrip().split("\n") if text.strip() else []
    lines = [line.removesuffix("\r") for line in lines]
    for number, line in enumerate(lines, start=1):
        if re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", line):
            raise RunError(
                f"{path}: line {number} has a control character in it. Write "
                "names as text, one in each line."
            )
    return lines


def _read_text(path: pathlib.Path) -> str:
    with arrays.opened(path) as file:
        content = file.read(_TEXT_BYTES + 1)
    if len(content) > _TEXT_BYTES:
        raise RunError(
            f"{path} has more than {_TEXT_BYTES} bytes, and is not read. Is it "
            "the right file?"
        )
    return content.decode("utf-8-sig")


def load_preprocess(
    path: pathlib.Path, max_bytes: int = MAX_BYTES
) -> keras.Model:
    """The model of a `.keras` file, as one that someone else made.

    Args:
        path: The file; a link that the user names is the user's own.
        max_bytes: What the model may take.

    Raises:
        RunError: If the file is no such file, or its model cannot compute.
    """
    model = Foreign(max_bytes=max_bytes).load(path.resolve())
    if not can_compute(model):
        raise RunError(
            f"{path} describes a model that cannot compute. Use a file whose "
            "model was called on data before it was saved."
        )
    return model
