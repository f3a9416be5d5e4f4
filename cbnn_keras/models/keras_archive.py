"""The zip file that a `.keras` file is, judged before it is unpacked.

A zip file can claim any size for what is in it, name files anywhere, and hold
a thousand times its own size. Sizes are compared with a limit as they are
claimed, and with what is really there, before anything is held in memory.
"""

import collections
import io
import os
import stat
import struct
import zipfile
import zlib
from typing import IO, Any

from cbnn_keras.models.weight_files import check_hdf5
from cbnn_keras.support.faults import RunError, shortened

CONFIG = "config.json"
WEIGHTS = "model.weights.h5"
_REQUIRED = (CONFIG, WEIGHTS)
_FILES = {"metadata.json", *_REQUIRED}
_ASSETS = "assets/"
# Python's own objects are so many times larger than their text in JSON.
_CONFIG_GROWTH = 64
_LOCAL_HEADER = struct.Struct("<26xHH")  # ends with the lengths of two fields
_CHUNK = 2**20


def read_config(file: IO[bytes], max_bytes: int) -> bytes:
    """The text of the architecture, if the whole zip file is as it should be.

    Args:
        file: A `.keras` file, opened to read.
        max_bytes: How much it may hold, unpacked.

    Raises:
        ValueError: Says what is wrong, without the name of the file.
    """
    size = file.seek(0, os.SEEK_END)
    if size > max_bytes:
        raise ValueError(
            f"it has {size:,} bytes, above the limit of {max_bytes:,}"
        )
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        _check_names(entries)
        _check_sizes(entries, size, max_bytes)
        for entry in entries:
            _check_content(file, entry)
        weights = _opened(file, archive, archive.getinfo(WEIGHTS))
        _check_weights(weights, max_bytes)
        return archive.read(CONFIG)


def _opened(
    file: IO[bytes], archive: zipfile.ZipFile, entry: zipfile.ZipInfo
) -> IO[bytes]:
    """An entry to seek in; Python's own reader reads all again to go back."""
    if entry.compress_type != zipfile.ZIP_STORED:
        return io.BytesIO(archive.read(entry))
    return io.BufferedReader(
        _Part(file, _start_of_data(file, entry), entry.file_size)
    )


class _Part(io.RawIOBase):
    """A part of a file, as a file to read."""

    def __init__(self, file: IO[bytes], start: int, size: int) -> None:
        super().__init__()
        self._file = file
        self._start = start
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_CUR: self._position, os.SEEK_END: self._size}
        self._position = base.get(whence, 0) + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), max(self._size - self._position, 0))
        self._file.seek(self._start + self._position)
        content = self._file.read(wanted)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


def _check_weights(file: IO[bytes], max_bytes: int) -> None:
    """Raises a `ValueError` if the weights are not what Keras may read."""
    try:
        check_hdf5(file, max_bytes, name=f"{WEIGHTS} in it")
    except RunError as error:
        raise ValueError(shortened(error)) from error


def _check_names(entries: list[zipfile.ZipInfo]) -> None:
    names = collections.Counter(entry.filename for entry in entries)
    for name, num in names.items():
        if num > 1:
            raise ValueError(f"{name!r} is in it {num} times")
        if name not in _FILES and not _is_asset(name):
            raise ValueError(f"{name!r} is in it, which is no part of a model")
    for name in _REQUIRED:
        if name not in names:
            raise ValueError(f"{name} is not in it")


def _is_asset(name: str) -> bool:
    parts = name.removesuffix("/").split("/")
    return (
        name.startswith(_ASSETS)
        and not {"", ".", ".."} & set(parts)
        and not any(c in "\\:" or not c.isprintable() for c in name)
    )


def _check_sizes(
    entries: list[zipfile.ZipInfo], size: int, max_bytes: int
) -> None:
    """Compares what the entries claim with the limit and with the file."""
    total = sum(entry.file_size for entry in entries)
    if total > max_bytes:
        raise ValueError(
            f"it holds {total:,} bytes, above the limit of {max_bytes:,}"
        )
    for entry in entries:
        if entry.filename == CONFIG:
            limit = max_bytes // _CONFIG_GROWTH
            if entry.file_size > limit:
                raise ValueError(
                    f"{CONFIG} in it has {entry.file_size:,} bytes, above the "
                    f"limit of {limit:,}"
                )
        if entry.flag_bits & 0x1:
            raise ValueError(f"{entry.filename!r} in it is encrypted")
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise ValueError(f"{entry.filename!r} in it is a link")
    ordered = sorted(entries, key=lambda entry: entry.header_offset)
    starts = [*(entry.header_offset for entry in ordered), size]
    for entry, next_start in zip(ordered, starts[1:], strict=True):
        if _data_after_header(entry) > next_start:
            raise ValueError(f"{entry.filename!r} in it overlaps with others")


def _data_after_header(entry: zipfile.ZipInfo) -> int:
    header = _LOCAL_HEADER.size + len(entry.orig_filename)
    return entry.header_offset + header + entry.compress_size


def _check_content(file: IO[bytes], entry: zipfile.ZipInfo) -> None:
    """Compares the size that an entry claims with the one that it has."""
    if entry.compress_type == zipfile.ZIP_STORED:
        num_bytes = entry.compress_size
    elif entry.compress_type == zipfile.ZIP_DEFLATED:
        num_bytes = _inflated_bytes(file, entry)
    else:
        raise ValueError(f"{entry.filename!r} in it is packed in a rare way")
    if num_bytes != entry.file_size:
        raise ValueError(
            f"{entry.filename!r} in it is not of the size that it claims"
        )


def _start_of_data(file: IO[bytes], entry: zipfile.ZipInfo) -> int:
    file.seek(entry.header_offset)
    lengths = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    return entry.header_offset + _LOCAL_HEADER.size + sum(lengths)


def _inflated_bytes(file: IO[bytes], entry: zipfile.ZipInfo) -> int:
    """Unpacks an entry in pieces, at most to just above what it claims.

    Python's own reader unpacks all there is and then cuts it off.
    """
    file.seek(_start_of_data(file, entry))
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    left, found = entry.compress_size, 0
    packed = b""
    while not unpacker.eof and found <= entry.file_size:
        if not packed:
            packed = file.read(min(left, _CHUNK))
            left -= len(packed)
        piece = unpacker.decompress(packed, _CHUNK)
        if not packed and not piece:
            break  # it ends before its end
        found += len(piece)
        packed = unpacker.unconsumed_tail
    return found
