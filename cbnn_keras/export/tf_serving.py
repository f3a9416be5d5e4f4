"""What servers want beside a model: warm-up requests and configurations."""

import json
import os
import pathlib
import shlex
from typing import Any

import numpy as np
import tensorflow as tf

from cbnn_keras.support import extras

MARK = "# Written by cbnn export."


def write_warmup(
    path: pathlib.Path,
    inputs: dict[str, np.ndarray],
    *,
    model: str,
    endpoints: list[str],
) -> None:
    """Writes requests that TensorFlow Serving replays when it loads a model.

    One with a single sample and one with all of them for each endpoint.

    Args:
        path: `assets.extra/tf_serving_warmup_requests` of the SavedModel.
        inputs: Samples, by input name.
        model: The name that the model is served under.
        endpoints: Signatures of the SavedModel.
    """
    num = len(next(iter(inputs.values())))
    with tf.io.TFRecordWriter(str(path)) as writer:
        for endpoint in endpoints:
            for size in sorted({1, num}):
                batch = {name: a[:size] for name, a in inputs.items()}
                writer.write(_prediction_log(model, endpoint, batch))


def _prediction_log(
    model: str, endpoint: str, inputs: dict[str, np.ndarray]
) -> bytes:
    """tensorflow.serving.PredictionLog, without its package at run time.

    The fields are PredictionLog.predict_log = 6, PredictLog.request = 1,
    PredictRequest.model_spec = 1 and .inputs = 2 (a map: key = 1, value = 2),
    ModelSpec.name = 1 and .signature_name = 3.
    """
    spec = _field(1, model.encode()) + _field(3, endpoint.encode())
    request = _field(1, spec)
    for name, array in inputs.items():
        tensor = tf.make_tensor_proto(array).SerializeToString()
        request += _field(2, _field(1, name.encode()) + _field(2, tensor))
    return _field(6, _field(1, request))


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field of a protocol buffer."""
    length, size = b"", len(content)
    while size > 127:
        length += bytes([size % 128 + 128])
        size //= 128
    return bytes([number * 8 + 2]) + length + bytes([size]) + content


def check_replaceable(config: pathlib.Path) -> None:
    """Raises a `ValueError` if a file is not one that was written here."""
    is_ours = config.is_file() and config.read_bytes().startswith(MARK.encode())
    if config.exists() and not is_ours:
        raise ValueError(
            f"{config} was not written by `cbnn export` and is left alone. "
            "Move it away, or add the model to it yourself."
        )


def write_models_config(config: pathlib.Path, base: str) -> None:
    """Lists all models beside a `models.config` for TensorFlow Serving.

    Args:
        config: Where to write it.
        base: The folder of the models as the server sees it, or "" for where
            it is.
    """
    folders = sorted(
        {path.parents[1] for path in config.parent.glob("*/*/saved_model.pb")}
    )
    base = (base or str(config.parent)).rstrip("/")
    entries = "".join(
        _MODEL_ENTRY.format(
            name=_text(folder.name), path=_text(f"{base}/{folder.name}")
        )
        for folder in folders
    )
    replace_text(config, f"{MARK}\nmodel_config_list {{\n{entries}}}\n")


def replace_text(path: pathlib.Path, text: str) -> None:
    """Writes a file so that a crash leaves the old one or the new one."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text)
    os.replace(temporary, path)


_MODEL_ENTRY = """  config {{
    name: {name}
    base_path: {path}
    model_platform: "tensorflow"
  }}
"""


def _text(value: str) -> str:
    """A string of a protocol buffer in text form."""
    return json.dumps(value, ensure_ascii=False)


def triton_config(
    name: str, model: pathlib.Path, max_batch_size: int, *, has_labels: bool
) -> str:
    """`config.pbtxt` of an ONNX file, read off the file itself.

    Args:
        name: Of the folder of the model.
        model: The ONNX file.
        max_batch_size: Of what Triton may put together.
        has_labels: Whether there is a `labels.txt` beside it, for Triton's
            classification extension.
    """
    labels = '  label_filename: "labels.txt"\n' if has_labels else ""
    onnx = extras.need("onnx", "onnx")
    graph = onnx.load_model(str(model), load_external_data=False).graph
    tensors = "".join(
        _TENSOR.format(
            kind=kind,
            name=_text(value.name),
            type=_TRITON_TYPES[value.type.tensor_type.elem_type],
            dims=_dimensions(value),
            extra=labels if value.name == "probabilities" else "",
        )
        for kind, values in (("input", graph.input), ("output", graph.output))
        for value in values
    )
    return (
        f"name: {_text(name)}\n"
        'backend: "onnxruntime"\n'
        f"max_batch_size: {max_batch_size}\n"
        f"{tensors}"
        "dynamic_batching {\n"
        "  max_queue_delay_microseconds: 500\n"
        "}\n"
    )


def _dimensions(value: Any) -> str:
    """Without that of the batch; -1 for those that are open.

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


def next_commands(
    format: str,
    path: pathlib.Path,
    run: pathlib.Path,
    *,
    preprocess: pathlib.Path | None = None,
    data: pathlib.Path | None = None,
) -> list[str]:
    """What to type after an export."""
    verify = ["cbnn", "verify", str(path), "--run", str(run)]
    for option, file in (("--preprocess", preprocess), ("--data", data)):
        if file is not None:
            verify += [option, str(file)]
    name = path.parent.name
    serve = {
        "saved_model": [
            *("docker", "run", "--rm", "-p", "8501:8501"),
            *("-v", f"{path.parent}:/models/{name}"),
            *("-e", f"MODEL_NAME={name}", "tensorflow/serving"),
        ],
        "onnx": ["python", "-c", _PYTHON.format(path=str(path))],
        "triton": ["tritonserver", "--model-repository", str(path.parent)],
    }[format]
    return [shlex.join(verify), shlex.join(serve)]


_PYTHON = (
    "import onnxruntime as ort; "
    "print([i.name for i in ort.InferenceSession({path!r}).get_inputs()])"
)
