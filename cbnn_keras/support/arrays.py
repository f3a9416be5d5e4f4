"""Arrays in files of NumPy, judged by their headers before they are read."""

import io
import math
import os
import pathlib
import zipfile
from typing import IO, Any

import numpy as np
from rich.filesize import decimal

from cbnn_keras.support.faults import RunError
from cbnn_keras.support.files import open_regular

_KINDS = "biufUS"  # booleans, integers, floats and texts
_TEXT_BYTES = 64  # of a text as a Python object, at least
_LONGEST_HEADER = 1000  # bytes; NumPy writes about a hundred
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}


class NoArrayError(ValueError):
    """A file, or an entry of one, holds no array that can be used."""


def opened(path: pathlib.Path) -> io.BufferedReader:
    """Opens a file that the user named, be it by a link; no pipe or device."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise RunError(f"{path} is not a file. Give the name of a file.")
    return open_regular(pathlib.Path(os.path.realpath(path)))


def read_npz(path: pathlib.Path, max_bytes: int) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file by name.

    Args:
        path: The file.
        max_bytes: What all arrays together may take.

    Raises:
        RunError: If they would take more.
        NoArrayError, or whatever a parser raises: If it is no such file.
    """
    with opened(path) as file:
        if file.read(6) == b"\x93NUMPY":
            raise NoArrayError("it is one array, an .npy file")
        file.seek(0)
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            names = [entry.filename.removesuffix(".npy") for entry in entries]
            if len(set(names)) != len(names):
                raise NoArrayError("two arrays have the same name")
            total = sum(entry.file_size for entry in entries)
            _check_room(path, total, max_bytes)
            arrays = {}
            for name, entry in zip(names, entries, strict=True):
                arrays[name] = _read_entry(path, archive, entry, max_bytes)
    return arrays


def _read_entry(
    path: pathlib.Path,
    archive: zipfile.ZipFile,
    entry: zipfile.ZipInfo,
    max_bytes: int,
) -> np.ndarray:
    is_plain = entry.compress_type in _METHODS and not entry.flag_bits & 1
    if not is_plain or not entry.filename.endswith(".npy"):
        raise NoArrayError(f"{entry.filename!r} is not an array")
    with archive.open(entry) as file:
        return _within(path, read_array(file, entry.file_size), max_bytes)


def read_npy(path: pathlib.Path, max_bytes: int) -> np.ndarray:
    """The array of an `.npy` file.

    Args:
        path: The file.
        max_bytes: What the array may take.

    Raises:
        RunError: If it would take more.
        NoArrayError, or whatever a parser raises: If it is no such file.
    """
    with opened(path) as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        _check_room(path, size, max_bytes)
        return _within(path, read_array(file, size), max_bytes)


def _within(
    path: pathlib.Path, array: np.ndarray, max_bytes: int
) -> np.ndarray:
    """The array, if there is also room for its texts as Python's objects."""
    if array.dtype.kind in "US":
        _check_room(path, array.size * _TEXT_BYTES, max_bytes)
    return array


def read_array(file: IO[bytes], size: int) -> np.ndarray:
    """An array, after its header was compared with the size of the file.

    Args:
        file: As `np.save` writes it, at its beginning.
        size: The number of bytes of all of it.

    Raises:
        NoArrayError, or whatever NumPy raises: If it is no array of numbers or
            texts.
    """
    # Bounded: a header can claim 4 GB, which NumPy would make room for.
    start = io.BytesIO(file.read(min(size, _LONGEST_HEADER)))
    version = np.lib.format.read_magic(start)
    read_header: Any = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:
        raise NoArrayError(f"its version is {version}")
    shape, is_fortran, kind = read_header(start, _LONGEST_HEADER)
    if kind.hasobject:
        raise NoArrayError("Object arrays cannot be loaded safely")
    is_known = kind.kind in _KINDS and 0 < kind.itemsize
    if not is_known or (kind.kind == "f" and kind.itemsize > 8):
        raise NoArrayError(
            f"an array of type {kind} is neither numbers nor text"
        )
    number = math.prod(shape)
    header = start.tell()
    if min(shape, default=0) < 0 or number * kind.itemsize != size - header:
        raise NoArrayError(
            f"an array of shape {shape} and type {kind} does not take "
            f"{size - header} bytes"
        )
    content = _read_exactly(file, size - header, start.read())
    array = np.frombuffer(content, dtype=kind)
    array = array.reshape(shape, order="F" if is_fortran else "C")
    return array.astype(kind.newbyteorder("="), copy=False)


def _read_exactly(file: IO[bytes], size: int, start: bytes) -> bytearray:
    """So many bytes, in memory that an array can be changed in.

    Args:
        file: Where they are, but for those that were read already.
        size: How many.
        start: What was read already.
    """
    content = bytearray(size)
    content[: len(start)] = start
    rest = memoryview(content)[len(start) :]
    while rest:
        count = file.readinto(rest)  # type: ignore[attr-defined]
        if not count:
            raise NoArrayError("it ends too soon")
        rest = rest[count:]
    return content


def _check_room(path: pathlib.Path, needed: int, max_bytes: int) -> None:
    if needed > max_bytes:
        raise RunError(
            f"{path} would take {decimal(needed)} in memory, more than the "
            f"{decimal(max_bytes)} allowed. Give fewer samples, or a larger "
            "--max-bytes."
        )
