"""ONNX files, with the weights in a second one where there are too many."""

import os
import pathlib
import re
from typing import Any

from cbnn_keras.export import placing
from cbnn_keras.support import extras
from cbnn_keras.support.files import fingerprint

# What a protocol buffer can hold in bytes, with room for the graph.
_LIMIT = 2**31 - 2**24


def save(model: Any, path: pathlib.Path) -> None:
    """Writes a model; above 2 GB its weights to `<name>.<hash>.data`.

    With a name of its own for each content, the weights of a model can be put
    beside those of the one that it is about to replace.
    """
    onnx = extras.need("onnx", "onnx")
    size = sum(tensor_bytes(tensor) for tensor in model.graph.initializer)
    if size < _LIMIT:
        onnx.save_model(model, str(path))
        return
    plain = path.with_name("weights.data")
    onnx.save_model(
        model,
        str(path),
        save_as_external_data=True,
        location=plain.name,
        size_threshold=1024,
    )
    final = f"{path.name}.{fingerprint(plain).sha256[:12]}.data"
    plain.rename(path.with_name(final))
    model = onnx.load_model(str(path), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = final
    onnx.save_model(model, str(path))


def move(source: pathlib.Path, destination: pathlib.Path) -> None:
    """Renames a file and its weights, in place of those that are there.

    The weights go first, so that at every moment there is a complete model.
    """
    old, new = data_files(destination), data_files(source)
    for path in new:
        os.replace(path, destination.with_name(path.name))
    os.replace(source, destination)
    for path in old:
        if path.name not in {p.name for p in new}:
            path.unlink(missing_ok=True)


def num_bytes(path: pathlib.Path) -> int:
    files = [path, *data_files(path)]
    return sum(placing.num_bytes(file) for file in files)


def data_files(path: pathlib.Path) -> list[pathlib.Path]:
    """The files of weights that belong to a model that an export wrote."""
    pattern = re.compile(re.escape(path.name) + r"\.[0-9a-f]{12}\.data")
    return sorted(p for p in path.parent.iterdir() if pattern.fullmatch(p.name))


def tensor_bytes(tensor: Any) -> int:
    return len(tensor.raw_data) or tensor.ByteSize()
