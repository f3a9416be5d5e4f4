"""Arrays in files of a run, judged before room is made for them.

As `np.save` and `np.savez` write them, and nothing else that these formats
allow: no pickles, no compression, no second header. What is wrong raises
whatever NumPy raises, or a `ValueError`; whoever reads a file names it.
"""

import io
import os
import zipfile
from typing import IO, Any

import numpy as np

from cbnn_keras.support.arrays import read_array


def npy_bytes(array: np.ndarray) -> memoryview:
    """The content of an `.npy` file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getbuffer()


def read_npy(file: IO[bytes], shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Reads an `.npy` file that holds just such an array."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    array = read_array(file, size)
    if (array.shape, array.dtype) != (shape, np.dtype(dtype)):
        raise ValueError(
            f"an array of shape {array.shape} and type {array.dtype}, where "
            f"{shape} and {np.dtype(dtype)} belong"
        )
    return array


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
                arrays[name] = read_array(part, entry.file_size)
    return arrays
