"""A SavedModel of somebody else, looked through before it is loaded."""

import math
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from rich.filesize import decimal
from tensorflow.core.protobuf import saved_model_pb2

from cbnn_keras.export.foreign_operations import (
    SAVER_OPERATIONS,
    TABLE_FROM_FILE,
    reason_to_refuse_node,
)
from cbnn_keras.support.faults import RunError, faults_named
from cbnn_keras.support.files import open_regular

_GRAPH = "saved_model.pb"
# All that `export_saved_model` writes. TensorFlow would read others too.
_FILES = re.compile(
    r"saved_model\.pb|fingerprint\.pb|assets/[^/]+|assets\.extra/[^/]+"
    r"|variables/variables\.(index|data-\d{5}-of-\d{5})"
)
_STRING_BYTES = 24  # of a string in a tensor, however short
# A graph takes more memory than its file: nodes of two bytes take a hundred.
_GRAPH_GROWTH = 16
_ADVICE = (
    "Give what `cbnn export` wrote, and do not load it elsewhere unless you "
    "know who made it."
)


def check_saved_model(directory: pathlib.Path, max_bytes: int) -> None:
    """Refuses a SavedModel that would do more than compute.

    Args:
        directory: Holds `saved_model.pb`.
        max_bytes: What it may take in memory and on disk.

    Raises:
        RunError: If it has ops that touch files, other processes or Python, if
            it has links or files that no export writes, if it is too large, or
            if it cannot be read.
    """
    sizes = file_sizes(directory, max_bytes)
    for name in sizes:
        if not _FILES.fullmatch(name):
            raise RunError(
                f"{directory / name} is a file that no export writes. {_ADVICE}"
            )
    path = directory / _GRAPH
    limit = max_bytes // _GRAPH_GROWTH
    if sizes.get(_GRAPH, 0) > limit:
        raise RunError(
            f"{path} has {decimal(sizes[_GRAPH])}, more than the "
            f"{decimal(limit)} allowed for a graph. If you know who made it, "
            "give a larger max_bytes (--max-bytes)."
        )
    with faults_named(path, _ADVICE), open_regular(path) as file:
        content = saved_model_pb2.SavedModel.FromString(file.read(limit))
    graphs = content.meta_graphs
    if len(graphs) != 1 or not graphs[0].HasField("object_graph_def"):
        raise RunError(
            f"{path} has {len(graphs)} graphs or none that TensorFlow 2 "
            f"saved. {_ADVICE}"
        )
    [graph] = graphs
    with faults_named(path, _ADVICE):
        _check_operations(path, graph)
        _check_assets(path, graph, sizes)
        _check_constants(path, graph, max_bytes)
    with faults_named(directory / "variables", _ADVICE):
        _check_variables(directory, sizes, max_bytes)


def file_sizes(directory: pathlib.Path, max_bytes: int) -> dict[str, int]:
    """The size of each file in a directory, by its name within.

    Raises:
        RunError: If there is a link, or if all together are too large.
    """
    sizes = {}
    for above, directories, names in os.walk(directory):
        for name in (*directories, *names):
            if os.path.islink(os.path.join(above, name)):
                raise RunError(
                    f"{os.path.join(above, name)} is a link, which may lead "
                    f"anywhere. {_ADVICE}"
                )
        for name in names:
            path = pathlib.Path(above, name)
            key = path.relative_to(directory).as_posix()
            sizes[key] = path.lstat().st_size
    if sum(sizes.values()) > max_bytes:
        raise RunError(
            f"{directory} has {decimal(sum(sizes.values()))}, more than the "
            f"{decimal(max_bytes)} allowed. If you know who made it, give a "
            "larger max_bytes (--max-bytes)."
        )
    return sizes


def _check_operations(path: pathlib.Path, graph: Any) -> None:
    """Raises a `RunError` that names the ops which reach out."""
    savers = _saver_functions(graph)
    called = set()
    for function, node in _nodes(graph):
        called |= _called(node) if function is not None else set()
    found: dict[str, str] = {}
    for function, node in _nodes(graph):
        reason = reason_to_refuse_node(node)
        if function is not None:
            name = function.signature.name
            if node.op in SAVER_OPERATIONS and name in savers:
                continue
            if node.op == TABLE_FROM_FILE and name not in called:
                if _reads_asset(graph, function, node):
                    continue
        if reason is not None:
            where = "the graph" if function is None else f"function {name!r}"
            found.setdefault(node.op, f"{node.op} in {where}, which {reason}")
    if found:
        *others, last = sorted(found.values())[:5]
        listed = f"{'; '.join(others)}; and {last}" if others else last
        raise RunError(
            f"{path} is not loaded. A SavedModel is a program, and this one "
            f"has the op {listed}. {_ADVICE}"
        )


def _nodes(graph: Any) -> Iterator[tuple[Any, Any]]:
    """All nodes, each with its function, or with None."""
    for node in graph.graph_def.node:
        yield None, node
    for function in graph.graph_def.library.function:
        for node in function.node_def:
            yield function, node


def _called(node: Any) -> set[str]:
    """The functions that a node could call."""
    names = {node.op}
    for value in node.attr.values():
        names.add(value.func.name)
        names.update(function.name for function in value.list.func)
    return names


def _saver_functions(graph: Any) -> set[str]:
    """Functions that nothing but the saver of the variables calls.

    TensorFlow's Python never does: it reads the variables by itself.
    """
    saver = graph.saver_def
    ends = {saver.save_tensor_name.split(":")[0], saver.restore_op_name}
    by_saver, by_others = set(), set(graph.object_graph_def.concrete_functions)
    for function, node in _nodes(graph):
        if function is None and node.name in ends:
            by_saver |= _called(node)
        else:
            by_others |= _called(node)
    for gradient in graph.graph_def.library.gradient:
        by_others |= {gradient.function_name, gradient.gradient_func}
    # Grappler puts functions with this mark in the places of others.
    by_others |= {
        function.signature.name
        for function in graph.graph_def.library.function
        if "api_implements" in function.attr
    }
    return by_saver - by_others


def _reads_asset(graph: Any, function: Any, node: Any) -> bool:
    """Whether a table is read from a file of the SavedModel, and no other.

    So if the name of the file is an argument that the loader binds to an asset.
    """
    name = function.signature.name
    if name not in graph.object_graph_def.concrete_functions:
        return False
    bound = graph.object_graph_def.concrete_functions[name].bound_inputs
    arguments = [argument.name for argument in function.signature.input_arg]
    if len(node.input) < 2 or node.input[1] not in arguments:
        return False
    position = arguments.index(node.input[1]) - len(arguments) + len(bound)
    if position < 0:
        return False
    thing = graph.object_graph_def.nodes[bound[position]]
    return thing.WhichOneof("kind") == "asset"


def _check_assets(
    path: pathlib.Path, graph: Any, sizes: dict[str, int]
) -> None:
    """Raises a `RunError` for an asset that is no file of the SavedModel."""
    for asset in graph.asset_file_def:
        if f"assets/{asset.filename}" not in sizes:
            raise RunError(
                f"{path} names the asset {asset.filename!r}, which is not in "
                f"its directory of assets. {_ADVICE}"
            )


def _check_constants(path: pathlib.Path, graph: Any, max_bytes: int) -> None:
    """Raises a `RunError` if constants would be larger than allowed.

    One value can stand for all of a tensor, whatever its shape.
    """
    total = 0
    for _, node in _nodes(graph):
        for value in node.attr.values():
            for tensor in (value.tensor, *value.list.tensor):
                sizes = [max(d.size, 0) for d in tensor.tensor_shape.dim]
                total += math.prod(sizes) * _item_bytes(tensor.dtype)
    _check_total(path, "constants", total, max_bytes)


def _check_variables(
    directory: pathlib.Path, sizes: dict[str, int], max_bytes: int
) -> None:
    """Raises a `RunError` if variables claim more than there is of them."""
    if "variables/variables.index" not in sizes:
        return
    prefix = directory / "variables" / "variables"
    reader = tf.train.load_checkpoint(str(prefix))
    types = reader.get_variable_to_dtype_map()
    on_disk = in_memory = 0
    for name, shape in reader.get_variable_to_shape_map().items():
        number, kind = math.prod(shape), types[name].as_datatype_enum
        in_memory += number * _item_bytes(kind)
        on_disk += number * (1 if kind == _STRING else _item_bytes(kind))
    _check_total(prefix, "variables", in_memory, max_bytes)
    there = sum(n for k, n in sizes.items() if k.startswith("variables/"))
    if on_disk > there:
        raise RunError(
            f"{prefix} has {decimal(there)}, but its variables would take "
            f"{decimal(on_disk)}: it is damaged, or not what it says. {_ADVICE}"
        )


def _check_total(
    path: pathlib.Path, what: str, total: int, max_bytes: int
) -> None:
    if total > max_bytes:
        raise RunError(
            f"The {what} of {path} would take {decimal(total)}, more than the "
            f"{decimal(max_bytes)} allowed. If you know who made it, give a "
            "larger max_bytes (--max-bytes)."
        )


_STRING = tf.string.as_datatype_enum


def _item_bytes(kind: int) -> int:
    try:
        size = tf.as_dtype(kind).size
    except TypeError:  # one that TensorFlow does not know
        size = None
    # Strings, and what has no size of its own.
    return size or _STRING_BYTES
