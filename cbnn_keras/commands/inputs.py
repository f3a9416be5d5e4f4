"""Data for the command line: arrays and lists in files."""

import pathlib
import zipfile
from typing import Any

import numpy as np


def load_inputs(path: pathlib.Path) -> Any:
    """The array `x` of an `.npz` file, or all arrays but `y`, by name.

    Raises:
        ValueError: If the file is no such file.
    """
    return _inputs(path, _load(path, "x=..."))


def load_labelled(path: pathlib.Path) -> tuple[Any, np.ndarray]:
    """Inputs as `load_inputs` gives them, and `y` of the same `.npz` file.

    Raises:
        ValueError: If the file is no such file.
    """
    arrays = _load(path, "x=..., y=...")
    if "y" not in arrays:
        raise ValueError(
            f"{path} holds no labels `y`, only {', '.join(sorted(arrays))}. "
            "Write one with np.savez(path, x=..., y=...)."
        )
    return _inputs(path, arrays), arrays["y"]


def _load(path: pathlib.Path, content: str) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as opened:
            file = np.load(opened, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError("it is one array, an .npy file")
            arrays = {name: file[name] for name in file.files}
    except (EOFError, OSError, ValueError, zipfile.BadZipFile) as error:
        is_pickled = "Object arrays" in str(error)
        raise ValueError(
            f"{path} is not an .npz file of arrays ({error}). Write one with "
            f"np.savez(path, {content})."
            + (" Texts are arrays of strings: x.astype(str)." * is_pickled)
        ) from error
    for name, array in arrays.items():
        if not array.ndim:
            raise ValueError(
                f"{path}: {name!r} is a single value. Every array must have a "
                "row for each sample; leave others out."
            )
    return arrays


def _inputs(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> Any:
    # Keras knows strings only as objects, which `np.savez` would pickle.
    inputs = {
        name: array.astype(object) if array.dtype.kind in "US" else array
        for name, array in arrays.items()
        if name != "y"
    }
    if not inputs:
        raise ValueError(f"{path} holds no array `x`.")
    return inputs["x"] if set(inputs) == {"x"} else inputs


def load_priors(path: pathlib.Path) -> np.ndarray:
    """The numbers of an `.npy` file, or of a text file, one in each line.

    Raises:
        ValueError: If the file is no such file.
    """
    try:
        if path.suffix != ".npy":
            return np.array([float(text) for text in path.read_text().split()])
        with path.open("rb") as opened:
            return np.lib.format.read_array(opened, allow_pickle=False)
    except (EOFError, ValueError) as error:
        raise ValueError(
            f"{path} holds no priors ({error}). Write them with np.save("
            "'priors.npy', class_priors(labels)), or one number per line."
        ) from error


def read_lines(path: pathlib.Path | None) -> list[str] | None:
    """The lines of a text file in UTF-8, or None without one.

    Raises:
        ValueError: If it is in another encoding.
    """
    if path is None:
        return None
    try:
        return path.read_text("utf-8-sig").rstrip().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8 ({error}).") from error
