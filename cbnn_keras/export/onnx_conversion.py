"""A serving graph -> an ONNX model, with tf2onnx and what it lacks."""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.export import onnx_branches
from cbnn_keras.export.graph import ServingGraph, trace
from cbnn_keras.support import extras
from cbnn_keras.support.aliases import Json

OPSET = 17  # tf2onnx stops at 18, which adds transpositions around pooling
_LARGE_MODEL = 2**24  # bytes
_LARGE_WEIGHT = 2**14


def to_onnx(graph: ServingGraph, precision: str = "float32") -> Any:
    """Converts a graph, in float32.

    Args:
        graph: What to convert.
        precision: What the metadata say the file computes in, if it is to be
            converted further. For `"int8"` a cascade has no branches yet, see
            `onnx_branches`.

    Returns:
        An `onnx.ModelProto` with all its weights in it, however large.

    Raises:
        ValueError: If an op has no counterpart in ONNX; names op and layer.
    """
    weights = _weights_apart(graph)
    specs = [*graph.input_specs.values(), *map(_spec, weights.items())]
    function = graph.function(weights=list(weights.values()), is_flat=True)
    traced = trace(function, specs)
    try:
        with _fast():
            model = _convert(function, specs)
    except Exception:  # of whatever kind: one of tf2onnx's optimisers failed
        model = _convert(function, specs)
    _check_operations(model, graph)
    arrays = {
        name: keras.ops.convert_to_numpy(variable)
        for name, variable in weights.items()
    }
    _make_constant(model, _constants_of_layers(traced) | arrays)
    _fold(model)
    if precision == "int8":  # whose tools do not look into branches
        onnx_branches.let_all_stay(model)
    else:
        onnx_branches.make_branches(model)
    _clean(model, graph.metadata(precision))
    return model


def _convert(function: Any, specs: list[tf.TensorSpec]) -> Any:
    convert = extras.need("tf2onnx.convert", "onnx")
    with extras.quiet():
        model, _ = convert.from_function(
            function,
            input_signature=specs,
            opset=OPSET,
            custom_op_handlers={"Erfc": (_convert_erfc, [])},
            custom_rewriter=[_widen_scalars],
        )
    return model


def _weights_apart(graph: ServingGraph) -> dict[str, keras.Variable]:
    """Weights that take no part in the conversion, by name.

    tf2onnx needs sixty times their size in memory, and fails above 2 GB. So
    the weights of large models stay out of the graph until it is converted.
    """
    sizes = [
        (v, keras.ops.convert_to_numpy(v).nbytes) for v in graph.model.weights
    ]
    if sum(size for _, size in sizes) < _LARGE_MODEL:
        return {}
    prefix = "weight"
    while any(name.startswith(prefix) for name in graph.input_specs):
        prefix += "_"
    large = [v for v, size in sizes if size >= _LARGE_WEIGHT]
    return {f"{prefix}_{number}": v for number, v in enumerate(large)}


def _spec(item: tuple[str, keras.Variable]) -> tf.TensorSpec:
    name, variable = item
    return tf.TensorSpec(variable.shape, variable.dtype, name=name)


def _constants_of_layers(traced: Any) -> dict[str, np.ndarray]:
    """Tensors that layers hold, such as a fixed mean of `Normalization`.

    They are no variables, and tf2onnx makes inputs of them.
    """
    return {
        inner.name: outer.numpy()
        for outer, inner in traced.graph.captures
        if outer.dtype != tf.resource
    }


def _make_constant(model: Any, arrays: dict[str, np.ndarray]) -> None:
    """Makes constants of inputs, or nothing where no node reads them."""
    onnx = extras.need("onnx", "onnx")
    read = {name for node in _nodes(model.graph) for name in node.input}
    for name, array in arrays.items():
        if name in read:
            tensor = onnx.numpy_helper.from_array(array, name)
            model.graph.initializer.append(tensor)
    kept = [value for value in model.graph.input if value.name not in arrays]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _fold(model: Any) -> None:
    """Does now what nodes would do with a constant each time.

    For kernels of convolutions, which ONNX has in another order.
    """
    onnx = extras.need("onnx", "onnx")
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    folded = []
    for index, node in enumerate(graph.node):
        given = [tensors.get(name) for name in node.input]
        if node.op_type not in ("Transpose", "Reshape") or None in given:
            continue
        array, *shape = [onnx.numpy_helper.to_array(tensor) for tensor in given]
        if node.op_type == "Reshape":
            array = array.reshape(*shape)
        else:
            array = array.transpose(
                onnx.helper.get_node_attr_value(node, "perm")
            )
        tensors[node.output[0]] = graph.initializer.add()
        tensors[node.output[0]].CopyFrom(
            onnx.numpy_helper.from_array(
                np.ascontiguousarray(array), node.output[0]
            )
        )
        folded.append(index)
    for index in reversed(folded):
        del graph.node[index]
    read = {name for node in _nodes(graph) for name in node.input}
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name not in read:
            del graph.initializer[index]


def _clean(model: Any, metadata: Json) -> None:
    """Names inputs and outputs as promised, and adds the metadata."""
    for value in (*model.graph.input, *model.graph.output):
        dimensions = value.type.tensor_type.shape.dim
        for axis, dimension in enumerate(dimensions):
            if axis == 0:
                dimension.dim_param = "batch"
            elif not dimension.HasField("dim_value"):
                dimension.dim_param = f"{value.name}_{axis}"
    del model.graph.value_info[:]  # has other names for the batch
    model.graph.name = "checkpoint_ensemble"
    model.producer_name = "cbnn_keras"
    model.producer_version = metadata["cbnn_keras_version"]
    model.doc_string = ""
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=json.dumps(value))


def _check_operations(model: Any, graph: ServingGraph) -> None:
    """Raises a `ValueError` for what tf2onnx passed on without a word."""
    onnx = extras.need("onnx", "onnx")
    domains = {entry.domain for entry in model.opset_import}
    unknown: dict[str, str] = {}
    for node in _nodes(model.graph):
        is_known = node.domain in domains and onnx.defs.has(
            node.op_type, domain=node.domain
        )
        if not is_known:
            unknown.setdefault(node.op_type, graph.layer_of(node.name))
    if unknown:
        listed = ", ".join(
            f"{op} (in the layer {layer!r})" for op, layer in unknown.items()
        )
        raise ValueError(
            f"tf2onnx cannot convert {listed}. Use another layer there, put "
            "that step in front of the model on the client's side, or export a "
            "SavedModel. Nothing was written."
        )


def _nodes(graph: Any) -> Iterator[Any]:
    """All nodes of a graph, also in the bodies of loops and branches."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _convert_erfc(graph: Any, node: Any, name: str, args: Any) -> None:
    """erfc(x) = 1 - erf(x), which exact GELU is made of."""
    dtype = graph.get_dtype(node.output[0])
    erf = graph.make_node("Erf", node.input[:1], dtypes=[dtype])
    kind = np.float64 if dtype == _DOUBLE else np.float32
    one = graph.make_const(f"{name}/one", np.array(1, dtype=kind))
    outputs, shape = node.output, graph.get_shape(node.output[0])
    graph.remove_node(name)
    graph.make_node(
        "Sub",
        [one.output[0], erf.output[0]],
        name=name,
        outputs=outputs,
        shapes=[shape],
        dtypes=[dtype],
    )


_DOUBLE = 11  # onnx.TensorProto.DOUBLE


def _widen_scalars(graph: Any, nodes: list[Any]) -> list[Any]:
    """Gives the constants of sums a dimension.

    Over one without, after a convolution, the optimiser of tf2onnx that removes
    transpositions fails, and all of them would stay.
    """
    for node in nodes:
        has_dimensions = node.type in ("Add", "AddV2") and graph.get_shape(
            node.output[0]
        )
        for index, term in enumerate(node.inputs if has_dimensions else []):
            if term.is_const() and graph.get_shape(node.input[index]) == []:
                value = term.get_tensor_value(as_list=False)
                name = f"{node.name}/wide_{index}"
                wide = graph.make_const(name, np.reshape(value, 1))
                graph.replace_input(
                    node, node.input[index], wide.output[0], index
                )
    return graph.get_nodes()


@contextlib.contextmanager
def _fast() -> Iterator[None]:
    """Keeps tf2onnx from copying the graph before each of its optimisers.

    It does so to continue without one that fails.
    """
    name = "TF2ONNX_CATCH_ERRORS"
    before = os.environ.get(name)
    os.environ[name] = "FALSE"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
