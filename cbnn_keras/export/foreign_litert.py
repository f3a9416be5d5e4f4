"""A LiteRT file of somebody else, looked through before it is opened.

That it is well-formed LiteRT's interpreter checks itself, before it runs it.
"""

import math
import pathlib
from collections.abc import Iterator
from typing import Any

from cbnn_keras.export.foreign_onnx import check_total
from cbnn_keras.export.litert_conversion import IDENTIFIER, METADATA
from cbnn_keras.export.metadata import metadata_from_bytes
from cbnn_keras.support import extras
from cbnn_keras.support.aliases import Json
from cbnn_keras.support.faults import RunError, faults_named
from cbnn_keras.support.files import open_regular

# Of one kind: a thousand times those of large models. Tensors of all subgraphs
# together, as entries may be one and the same table.
_MOST_PARTS = 2**20
# Bytes of an element, by the name of its type; of others the largest there is.
_SIZES = {"FLOAT32": 4, "FLOAT16": 2, "INT8": 1, "UINT8": 1, "INT32": 4}
_LARGEST_SIZE = 16
_ADVICE = (
    "Give what `cbnn export` wrote, and do not load it elsewhere unless you "
    "know who made it."
)


def is_litert(path: pathlib.Path) -> bool:
    """Whether a file says of itself that it is one of LiteRT."""
    with open_regular(path) as file:
        return file.read(8)[4:] == IDENTIFIER


def checked_litert(path: pathlib.Path, max_bytes: int) -> bytes:
    """The content of a LiteRT file that may be opened.

    Args:
        path: The file.
        max_bytes: What it may take, on disk and in memory.

    Raises:
        RunError: If it has ops that are not LiteRT's own, which may do
            anything, or weights in other files; if it is too large; or if it
            cannot be read.
    """
    schema = extras.need("ai_edge_litert.schema_py_generated", "litert")
    with faults_named(path, _ADVICE), open_regular(path) as file:
        size = file.seek(0, 2)
        check_total(path, size, max_bytes)
        file.seek(0)
        content = file.read(max_bytes)
        model = schema.Model.GetRootAs(content)
        custom = schema.BuiltinOperator.CUSTOM
        for code in _parts(model, "OperatorCodes"):
            number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
            if number == custom or code.CustomCode():
                name = (code.CustomCode() or b"").decode(errors="replace")
                raise RunError(
                    f"{path} has the op {name!r}, which is not one of "
                    f"LiteRT's own. {_ADVICE}"
                )
        total = num_tensors = 0
        for subgraph in _parts(model, "Subgraphs"):
            num_tensors += 1 + subgraph.TensorsLength()
            if num_tensors > _MOST_PARTS:
                raise ValueError("more than a million tensors")
            for tensor in _parts(subgraph, "Tensors"):
                if tensor.ExternalBuffer():
                    raise RunError(f"{path} has weights elsewhere. {_ADVICE}")
                total += _declared_bytes(schema, tensor)
        check_total(path, max(size, total), max_bytes)
    return content


def litert_metadata(path: pathlib.Path, content: bytes) -> Json:
    """What a file says about itself; nothing if no export wrote it.

    Raises:
        RunError: If it cannot be read.
    """
    schema = extras.need("ai_edge_litert.schema_py_generated", "litert")
    with faults_named(path, _ADVICE):
        model = schema.Model.GetRootAs(content)
        for entry in _parts(model, "Metadata"):
            if entry.Name() == METADATA.encode():
                found = model.Buffers(entry.Buffer()).DataAsNumpy()
                return metadata_from_bytes(path, found.tobytes())
    return {}


def _parts(owner: Any, name: str) -> Iterator[Any]:
    """The entries of a vector of tables."""
    num = getattr(owner, f"{name}Length")()
    if num > _MOST_PARTS:
        raise ValueError(f"{num} {name}")
    return (getattr(owner, name)(index) for index in range(num))


def _declared_bytes(schema: Any, tensor: Any) -> int:
    if tensor.ShapeIsNone():
        return 0
    number = math.prod(max(int(size), 0) for size in tensor.ShapeAsNumpy())
    sizes = {getattr(schema.TensorType, k): v for k, v in _SIZES.items()}
    return number * sizes.get(tensor.Type(), _LARGEST_SIZE)
