"""Files of weights, judged before anything in them is read.

An HDF5 file can name other files, and declare arrays that are far larger than
what it stores. Keras writes neither: the files it writes for weights are groups
and plain arrays of numbers, each under one name.
"""

import math
import os
import pathlib
from typing import IO, Any

import h5py

from cbnn_keras.support import files
from cbnn_keras.support.faults import RunError, faults_named

# Far more than any model has.
_MOST_OBJECTS = 200_000
_MOST_ATTRIBUTES = 16
_DEEPEST = 200
_LARGEST_ATTRIBUTE = 2**16  # bytes, and also items

_PLAIN_LAYOUTS = (h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS)
_PLAIN_ATTRIBUTES = (
    *(h5py.h5t.STRING, h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.ENUM),
)
# Booleans, integers, floats, complex numbers; the last are those that NumPy
# does not know, as bfloat16.
_NUMBERS = "biufcV"


def check_hdf5(
    source: pathlib.Path | IO[bytes],
    max_bytes: int | None = None,
    *,
    name: str | os.PathLike[str] | None = None,
) -> None:
    """Refuses an HDF5 file that is not as Keras writes them, unread.

    That is one with links of any kind but plain names, with arrays that are
    stored elsewhere, in chunks or by filters, that overlap or are larger than
    the file, or with anything but numbers in them.

    Args:
        source: The file, or where it is. A file is left open.
        max_bytes: What its arrays may take in memory, or None for as much as
            the file has.
        name: What to call the file in messages, for one without a path.

    Raises:
        RunError: If it is not such a file; names it.
    """
    if isinstance(source, pathlib.Path):
        with files.open_regular(source) as file:
            check_hdf5(file, max_bytes, name=name or source)
        return
    named = name or str(getattr(source, "name", "the file of weights"))
    with faults_named(named):
        num_bytes = source.seek(0, os.SEEK_END)
        source.seek(0)
        with h5py.File(source, "r") as content:
            declared = _declared_bytes(content, num_bytes)
        if max_bytes is not None and declared > max_bytes:
            raise RunError(
                f"{named} declares arrays of {declared:,} bytes, more than "
                f"max_bytes={max_bytes:,}. Give a larger `max_bytes=` if you "
                "know who made it."
            )
        source.seek(0)


def _declared_bytes(content: h5py.File, num_bytes: int) -> int:
    """What the arrays of a file take in memory; raises if one is not plain."""
    declared = 0
    seen = {h5py.h5o.get_info(content.id).addr}
    pending: list[tuple[h5py.Group, int]] = [(content, 0)]
    _check_attributes(content)
    while pending:
        group, depth = pending.pop()
        if depth > _DEEPEST:
            raise ValueError(f"groups are nested more than {_DEEPEST} deep")
        for key in group:
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                raise ValueError(f"{_path(group, key)} is a link")
            part = group[key]
            address = h5py.h5o.get_info(part.id).addr
            if address in seen:
                raise ValueError(f"{_path(group, key)} has another name too")
            seen.add(address)
            if len(seen) > _MOST_OBJECTS:
                raise ValueError(f"there are more than {_MOST_OBJECTS} objects")
            _check_attributes(part)
            if isinstance(part, h5py.Group):
                pending.append((part, depth + 1))
            else:
                declared += _array_bytes(part, num_bytes)
            if declared > num_bytes:
                raise ValueError(
                    f"it declares arrays of more than {num_bytes:,} bytes, "
                    "its size"
                )
    return declared


def _array_bytes(array: Any, num_bytes: int) -> int:
    if not isinstance(array, h5py.Dataset) or array.shape is None:
        raise ValueError(f"{array.name} is no array")
    creation = array.id.get_create_plist()
    if (
        creation.get_layout() not in _PLAIN_LAYOUTS
        or creation.get_external_count()
        or creation.get_nfilters()
    ):
        raise ValueError(
            f"{array.name} is stored in chunks, compressed or elsewhere"
        )
    dtype = array.dtype
    if dtype.kind not in _NUMBERS or dtype.names or dtype.subdtype:
        raise ValueError(f"{array.name} holds {dtype}, not numbers")
    declared = math.prod(array.shape) * dtype.itemsize
    # None for one that is in its header.
    start = array.id.get_offset() or 0
    if array.id.get_storage_size() < declared or start + declared > num_bytes:
        raise ValueError(
            f"{array.name} declares {declared:,} bytes that are not stored"
        )
    return declared


def _check_attributes(part: Any) -> None:
    number = h5py.h5a.get_num_attrs(part.id)
    if number > _MOST_ATTRIBUTES:
        raise ValueError(f"{part.name} has {number} attributes")
    for index in range(number):
        attribute = h5py.h5a.open(part.id, index=index)
        items = attribute.get_space().get_simple_extent_npoints()
        size = max(attribute.get_storage_size(), items)
        kind = attribute.get_type().get_class()
        if size > _LARGEST_ATTRIBUTE or kind not in _PLAIN_ATTRIBUTES:
            raise ValueError(
                f"{part.name} has an attribute that is no short text or number"
            )


def _path(group: h5py.Group, key: str) -> str:
    return f"{group.name.rstrip('/')}/{key}"
