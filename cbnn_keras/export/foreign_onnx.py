"""An ONNX file of somebody else, looked through before it is opened."""

import math
import pathlib
from collections.abc import Iterator
from typing import Any

from rich.filesize import decimal

from cbnn_keras.support import extras
from cbnn_keras.support.faults import RunError, faults_named
from cbnn_keras.support.files import open_regular

_ADVICE = (
    "Give what `cbnn export` wrote, and do not load it elsewhere unless you "
    "know who made it."
)


def check_onnx(path: pathlib.Path, max_bytes: int) -> None:
    """Refuses an ONNX file that would read other files or fill the memory.

    Args:
        path: The file.
        max_bytes: What it may take, on disk and in memory.

    Raises:
        RunError: If its weights are in a file that is elsewhere or a link, if
            it is too large, or if it cannot be read.
    """
    onnx = extras.need("onnx", "onnx")
    size = _size(path)
    check_total(path, size, max_bytes)
    with faults_named(path, _ADVICE), open_regular(path) as file:
        model = onnx.load_model_from_string(file.read(max_bytes))
        sizes: dict[str, int] = {}
        total = 0
        for tensor in _tensors(model):
            total += _declared_bytes(onnx, tensor)
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                _check_external(path, tensor, sizes)
    check_total(path, max(total, size + sum(sizes.values())), max_bytes)


def _size(path: pathlib.Path) -> int:
    with open_regular(path) as file:
        return file.seek(0, 2)


def _tensors(message: Any) -> Iterator[Any]:
    """All tensors of a model, in graphs within nodes and in functions too."""
    waiting = [message]
    while waiting:  # not by recursion, which files can make too deep
        found = waiting.pop()
        if found.DESCRIPTOR.name == "TensorProto":
            yield found
            continue
        for field, value in found.ListFields():
            if field.message_type is not None:
                is_list = hasattr(value, "__len__")
                waiting.extend(value if is_list else [value])


def _declared_bytes(onnx: Any, tensor: Any) -> int:
    number = math.prod(max(size, 0) for size in tensor.dims)
    if tensor.data_type == onnx.TensorProto.STRING:
        return number * 64
    try:
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, ValueError):
        return number * 16  # the largest there is
    return number * max(kind.itemsize, 1)


def _check_external(
    path: pathlib.Path, tensor: Any, sizes: dict[str, int]
) -> None:
    """Raises a `RunError` for weights that are not in a file beside this one.

    Args:
        path: The model.
        tensor: One whose values are in another file.
        sizes: Gets the size of that file.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    name = entries.get("location", "")
    if name in ("", ".", "..") or "/" in name or "\\" in name:
        raise RunError(
            f"{path} has weights in {name!r}, which is not a file beside it. "
            f"{_ADVICE}"
        )
    if name not in sizes:
        sizes[name] = _size(path.with_name(name))
    offset = int(entries.get("offset", 0))
    length = int(entries.get("length", 0))
    if offset < 0 or length < 0 or offset + length > sizes[name]:
        raise RunError(
            f"{path} has weights in bytes {offset} to {offset + length} of "
            f"{name}, which has {sizes[name]}. {_ADVICE}"
        )


def check_total(path: pathlib.Path, total: int, max_bytes: int) -> None:
    """Raises a `RunError` if an artefact would take more than is allowed."""
    if total > max_bytes:
        raise RunError(
            f"{path} would take {decimal(total)}, more than the "
            f"{decimal(max_bytes)} allowed. If you know who made it, give a "
            "larger max_bytes (--max-bytes)."
        )
