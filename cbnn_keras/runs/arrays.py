"""Arrays in files of a run, judged before room is made for them.

As `np.save` and `np.savez` write them, and nothing else that these formats
allow: no pickles, no compression, no second header. What is wrong raises
whatever NumPy raises, or a `ValueError`; whoever reads a file names it.
"""

import io
import math
import os
import zipfile
from typing import IO, Any

import numpy as np

_LONGEST_HEADER = 1000  # bytes; NumPy writes about a hundred


def npy_bytes(array: np.ndarray) -> memoryview:
    """The content of an `.npy` file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getbuffer()


def read_npy(file: IO[bytes], shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Reads an `.npy` file that holds just such an array."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return _read(file, size, (shape, np.dtype(dtype)))


def read_npz(file: IO[bytes]) -> dict[str, np.ndarray]:
    """Reads an `.npz` file, whose arrays take no more room than the file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > size:
            raise ValueError(f"its arrays do not fit into {size:,} bytes")
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                raise ValueError(f"{name!r} is compressed or encrypted")
            if name == entry.filename or name in arrays:
                raise ValueError(f"{entry.filename!r} is no array, or twice")
            with archive.open(entry) as part:
                arrays[name] = _read(part, entry.file_size)
    return arrays


def _read(
    file: IO[bytes],
    size: int,
    expected: tuple[tuple[int, ...], np.dtype] | None = None,
) -> np.ndarray:
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"an array of format {version}")
    shape, _, dtype = np.lib.format.read_array_header_1_0(
        file, max_header_size=_LONGEST_HEADER
    )
    if dtype.hasobject:
        raise ValueError("an array of objects, which are never unpickled")
    declared = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or declared != size - file.tell():
        raise ValueError(
            f"an array of shape {shape} and type {dtype} in {size:,} bytes"
        )
    if expected not in (None, (shape, dtype)):
        raise ValueError(
            f"an array of shape {shape} and type {dtype}, where "
            f"{expected[0]} and {expected[1]} belong"
        )
    file.seek(0)
    return np.lib.format.read_array(
        file, allow_pickle=False, max_header_size=_LONGEST_HEADER
    )
