"""`config.pbtxt` of a model in a Triton repository."""

import pathlib
from typing import Any

from cbnn_keras.export.placing import MARK
from cbnn_keras.export.tf_serving import quoted
from cbnn_keras.support import extras


def config_text(
    name: str, model: pathlib.Path, max_batch_size: int, *, has_labels: bool
) -> str:
    """The configuration of an ONNX file, read off the file itself.

    Args:
        name: What the directory of the model is called.
        model: The ONNX file.
        max_batch_size: How many samples Triton may put together.
        has_labels: Whether there is a `labels.txt` beside it, for Triton's
            classification extension.
    """
    labels = '  label_filename: "labels.txt"\n' if has_labels else ""
    onnx = extras.need("onnx", "onnx")
    graph = onnx.load_model(str(model), load_external_data=False).graph
    tensors = "".join(
        _TENSOR.format(
            kind=kind,
            name=quoted(value.name),
            type=_TRITON_TYPES[value.type.tensor_type.elem_type],
            dims=_dimensions(value),
            extra=labels if value.name == "probabilities" else "",
        )
        for kind, values in (("input", graph.input), ("output", graph.output))
        for value in values
    )
    return (
        f"{MARK}\n"
        f"name: {quoted(name)}\n"
        'backend: "onnxruntime"\n'
        f"max_batch_size: {max_batch_size}\n"
        f"{tensors}"
        "dynamic_batching {\n"
        "  max_queue_delay_microseconds: 500\n"
        "}\n"
    )


def _dimensions(value: Any) -> str:
    """The dimensions without that of the batch; -1 for those that are open.

    Triton wants at least one, so clients see `(batch, 1)` where there is none.
    """
    _, *dimensions = value.type.tensor_type.shape.dim
    if not dimensions:
        return "dims: [ 1 ]\n  reshape { shape: [ ] }"
    sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in dimensions]
    return f"dims: [ {', '.join(map(str, sizes))} ]"


_TENSOR = """{kind} {{
  name: {name}
  data_type: {type}
  {dims}
{extra}}}
"""
# By the number of the type in ONNX.
_TRITON_TYPES = {
    1: "TYPE_FP32",
    2: "TYPE_UINT8",
    3: "TYPE_INT8",
    4: "TYPE_UINT16",
    5: "TYPE_INT16",
    6: "TYPE_INT32",
    7: "TYPE_INT64",
    8: "TYPE_STRING",
    9: "TYPE_BOOL",
    10: "TYPE_FP16",
    11: "TYPE_FP64",
    12: "TYPE_UINT32",
    13: "TYPE_UINT64",
}
