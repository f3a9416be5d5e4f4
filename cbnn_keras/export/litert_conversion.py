"""A serving graph -> the bytes of a LiteRT file, with TensorFlow's converter.

LiteRT was called TensorFlow Lite, and its files still end in `.tflite`.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.export.endpoints import errors_of_the_system, holder
from cbnn_keras.export.graph import ServingGraph, by_name, trace
from cbnn_keras.support import extras
from cbnn_keras.support.aliases import Json

METADATA = "cbnn_keras"  # the name of the buffer that they are in
IDENTIFIER = b"TFL3"  # bytes 4 to 7 of every file
# What the format can hold in bytes, with room for the graph.
_LIMIT = 2**31 - 2**24
_MOST_CALIBRATED = 500  # samples: each is run on its own


def to_litert(
    graph: ServingGraph,
    precision: str = "float32",
    calibration_data: Any = None,
    *,
    batch_size: int | None = None,
) -> bytes:
    """Converts a graph to ops that are built into LiteRT.

    Args:
        graph: What to convert.
        precision: `"float32"`, `"float16"` or `"int8"`. Inputs and outputs
            stay as they are.
        calibration_data: Real inputs, for `"int8"`.
        batch_size: The first dimension of all inputs, if it is to be fixed.

    Raises:
        ValueError: If an op has no counterpart in LiteRT; names op and layer.
    """
    _check_size(graph)
    specs = [
        tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype, name)
        for name, spec in graph.input_specs.items()
    ]
    traced = trace(graph.function(), specs)
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [traced], holder(graph, [traced])
    )
    if precision != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if precision == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if precision == "int8":
        data = by_name(graph.input_specs, calibration_data)
        converter.representative_dataset = lambda: _one_by_one(data)
    try:
        with extras.quiet(), extras.silenced(), errors_of_the_system():
            content = converter.convert()
    except OSError:
        raise
    except Exception as error:  # of whatever kind the converter's parts raise
        raise ValueError(_explanation(str(error), traced, graph)) from error
    return _with_metadata(content, graph.metadata(precision))


def _check_size(graph: ServingGraph) -> None:
    size = sum(
        keras.ops.convert_to_numpy(v).nbytes for v in graph.model.weights
    )
    if size > _LIMIT:
        raise ValueError(
            "A LiteRT file holds at most 2 GB, and the weights alone have "
            f"{size / 1e9:.1f}. Export fewer members (`ensemble.select`), or "
            "an ONNX file."
        )


def _one_by_one(data: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    num = len(next(iter(data.values())))
    for index in range(min(num, _MOST_CALIBRATED)):
        yield {k: array[index : index + 1] for k, array in data.items()}


def _explanation(said: str, traced: Any, graph: ServingGraph) -> str:
    """What the converter could not do, by op and layer."""
    definition = traced.graph.as_graph_def()
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes += function.node_def
    named = set(re.findall(r"'tf\.(\w+)' op", said))
    unknown = {
        node.op: graph.layer_of(node.name)
        for node in reversed(nodes)
        if node.op in named
    }
    listed = ", ".join(
        f"{op} (in the layer {layer!r})"
        for op, layer in sorted(unknown.items())
    )
    reason = listed or "the model: " + " ".join(said.split())[:300]
    return (
        f"LiteRT's converter cannot convert {reason}. Use another layer there, "
        "put that step in front of the model on the client's side (texts have "
        "to become numbers there), or export a SavedModel or ONNX. Nothing was "
        "written."
    )


def _with_metadata(content: bytes, metadata: Json) -> bytes:
    """The same model with a buffer of JSON in it."""
    schema = extras.need("ai_edge_litert.schema_py_generated", "litert")
    flatbuffers = extras.need("flatbuffers", "litert")

    class Builder(flatbuffers.Builder):  # type: ignore[name-defined]
        """Puts bytes where LiteRT wants weights: at multiples of 16."""

        def StartVector(self, size: int, num: int, alignment: int) -> Any:
            return super().StartVector(
                size, num, 16 if size == 1 else alignment
            )

    model = schema.ModelT.InitFromPackedBuf(content, 0)
    buffer, entry = schema.BufferT(), schema.MetadataT()
    buffer.data = np.frombuffer(json.dumps(metadata).encode(), np.uint8)
    entry.name, entry.buffer = METADATA, len(model.buffers)
    model.buffers.append(buffer)
    model.metadata = [*(model.metadata or []), entry]
    builder = Builder(len(content) + len(buffer.data))
    builder.Finish(model.Pack(builder), IDENTIFIER)
    return bytes(builder.Output())
