"""ONNX models in half precision and in eight bits."""

import itertools
import pathlib
from typing import Any

import numpy as np

from cbnn_keras.export import onnx_branches, onnx_files
from cbnn_keras.export.graph import ServingGraph, by_name
from cbnn_keras.export.options import check_data
from cbnn_keras.support import extras

PRECISIONS = ("float32", "float16", "int8")
_BATCH_SIZE = 32


def check(precision: str, calibration_data: Any) -> None:
    """Raises a `ValueError` for what does not go together."""
    if precision not in PRECISIONS:
        raise ValueError(
            f"precision must be one of {', '.join(PRECISIONS)}, not "
            f"{precision!r}."
        )
    if precision == "int8" and calibration_data is None:
        raise ValueError(
            "precision='int8' needs calibration_data: some hundred real "
            "inputs, from which the range of every activation is taken."
        )
    if precision != "int8" and calibration_data is not None:
        raise ValueError(
            f"calibration_data is for precision='int8', not {precision!r}. Use "
            "sample_data to verify with real inputs."
        )
    if calibration_data is not None:
        check_data("calibration_data", calibration_data)


def convert(
    path: pathlib.Path,
    precision: str,
    graph: ServingGraph,
    calibration_data: Any,
) -> None:
    """Replaces an ONNX file in float32 by one in less.

    Args:
        path: The file.
        precision: `"float16"` or `"int8"`.
        graph: What the file was converted from.
        calibration_data: Real inputs, for `"int8"`.

    Raises:
        ValueError: If the file has more than 2 GB, which the tools cannot read.
    """
    if onnx_files.data_files(path):
        raise ValueError(
            f"precision={precision!r} is for models up to 2 GB. Export fewer "
            "members (`ensemble.select`), or float32."
        )
    with extras.quiet():
        if precision == "float16":
            _to_float16(path)
        else:
            _to_int8(path, by_name(graph.input_specs, calibration_data))


def _to_float16(path: pathlib.Path) -> None:
    onnx = extras.need("onnx", "onnx")
    float16 = extras.need("onnxruntime.transformers.float16", "onnx")
    model = onnx.load_model(str(path))
    converted = float16.convert_float_to_float16(
        model, keep_io_types=True, disable_shape_infer=False
    )
    # It puts the casts of inputs last, where the format wants order.
    names = {value.name for value in converted.graph.input}
    nodes = sorted(
        converted.graph.node,
        key=lambda node: node.op_type != "Cast" or node.input[0] not in names,
    )
    del converted.graph.node[:]
    converted.graph.node.extend(nodes)
    onnx_files.save(converted, path)


def _to_int8(path: pathlib.Path, data: dict[str, np.ndarray]) -> None:
    """Static quantisation: weights by channel, activations by tensor."""
    quantization = extras.need("onnxruntime.quantization", "onnx")
    shape_inference = extras.need(
        "onnxruntime.quantization.shape_inference", "onnx"
    )
    prepared = path.with_name("prepared.onnx")
    shape_inference.quant_pre_process(
        str(path), str(prepared), skip_symbolic_shape=True
    )
    quantization.quantize_static(
        str(prepared),
        str(path),
        _Batches(data),
        quant_format=quantization.QuantFormat.QDQ,
        # What has weights. Sums and pools in eight bits would save no space,
        # little time, and cost most of the agreement.
        op_types_to_quantize=_operations_with_weights(path),
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )
    prepared.unlink()
    onnx = extras.need("onnx", "onnx")
    model = onnx.load_model(str(path))
    onnx_branches.let_samples_leave(model)
    onnx_branches.make_branches(model)
    _shorten_names(model)
    onnx_files.save(model, path)


def _shorten_names(model: Any) -> None:
    """Numbers all names but those of inputs and outputs.

    In a small model in eight bits they take more space than the weights.
    """
    public = (*model.graph.input, *model.graph.output)
    names = {value.name: value.name for value in public}
    taken = set(names)
    numbers = map(str, itertools.count())

    def short(name: str) -> str:
        if name and name not in names:
            names[name] = next(n for n in numbers if n not in taken)
        return names.get(name, name)

    def rename(graph: Any) -> None:
        for value in (*graph.initializer, *graph.input, *graph.output):
            value.name = short(value.name)
        for node in graph.node:
            node.name = ""
            node.input[:] = [short(name) for name in node.input]
            node.output[:] = [short(name) for name in node.output]
            for attribute in node.attribute:
                if attribute.HasField("g"):  # the body of a loop or a branch
                    rename(attribute.g)
        del graph.value_info[:]

    rename(model.graph)


def _operations_with_weights(path: pathlib.Path) -> list[str]:
    onnx = extras.need("onnx", "onnx")
    model = onnx.load_model(str(path))
    operations = ["Conv", "ConvTranspose", "Gemm", "MatMul"]
    # ONNX Runtime 1.31 aborts the process if the body of a loop or a branch
    # reads a quantised Gather.
    has_bodies = onnx_branches.has_marks(model) or any(
        attribute.HasField("g")
        for node in model.graph.node
        for attribute in node.attribute
    )
    return operations if has_bodies else [*operations, "Gather"]


class _Batches:
    """Calibration data as ONNX Runtime reads them."""

    def __init__(self, data: dict[str, np.ndarray]) -> None:
        num = len(next(iter(data.values())))
        self._batches = iter(
            {name: a[i : i + _BATCH_SIZE] for name, a in data.items()}
            for i in range(0, num, _BATCH_SIZE)
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)
