"""Tests of `config.pbtxt`, against Triton's own proto."""

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from cbnn_keras.export.triton_config import config_text

FLOAT = onnx.TensorProto.FLOAT
INT64 = onnx.TensorProto.INT64
STRING = onnx.TensorProto.STRING


def onnx_file(path, inputs, outputs):
    """A file with these tensors, `(name, type, shape)`, and nothing in it."""
    graph = onnx.helper.make_graph(
        [],
        "graph",
        [onnx.helper.make_tensor_value_info(*value) for value in inputs],
        [onnx.helper.make_tensor_value_info(*value) for value in outputs],
    )
    onnx.save_model(onnx.helper.make_model(graph), str(path))
    return path


def parse_triton(text):
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def test_triton_config_of_every_output(tmp_path):
    file = onnx_file(
        tmp_path / "model.onnx",
        [
            ("image", onnx.TensorProto.UINT8, ["batch", "image_1", None, 3]),
            ("item", INT64, ["batch"]),
        ],
        [
            ("probabilities", FLOAT, ["batch", 10]),
            ("class", STRING, ["batch"]),
            ("top_k_classes", STRING, ["batch", 5]),
            ("members", FLOAT, ["batch", 3, 10]),
            ("disagreement", FLOAT, ["batch"]),
        ],
    )
    config = parse_triton(config_text('my "model"', file, 16, has_labels=True))
    assert config.name == 'my "model"'
    assert config.backend == "onnxruntime"
    assert config.max_batch_size == 16
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert [(i.name, list(i.dims)) for i in config.input] == [
        ("image", [-1, -1, 3]),
        ("item", [1]),
    ]
    assert [(o.name, list(o.dims)) for o in config.output] == [
        ("probabilities", [10]),
        ("class", [1]),
        ("top_k_classes", [5]),
        ("members", [3, 10]),
        ("disagreement", [1]),
    ]
    # Where clients see a dimension that the file lacks, it is taken away.
    for tensor in (*config.input, *config.output):
        assert tensor.HasField("reshape") == (
            tensor.name in ("item", "class", "disagreement")
        )
        assert list(tensor.reshape.shape) == []
    labels = {o.name: o.label_filename for o in config.output}
    assert labels.pop("probabilities") == "labels.txt"
    assert set(labels.values()) == {""}


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float32", "TYPE_FP32"),
        ("float16", "TYPE_FP16"),
        ("float64", "TYPE_FP64"),
        ("uint8", "TYPE_UINT8"),
        ("uint16", "TYPE_UINT16"),
        ("uint32", "TYPE_UINT32"),
        ("uint64", "TYPE_UINT64"),
        ("int8", "TYPE_INT8"),
        ("int16", "TYPE_INT16"),
        ("int32", "TYPE_INT32"),
        ("int64", "TYPE_INT64"),
        ("bool", "TYPE_BOOL"),
        ("object", "TYPE_STRING"),
    ],
)
def test_triton_has_its_own_names_for_types(tmp_path, dtype, expected):
    elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    tensors = [("x", elem_type, ["batch", 2])]
    file = onnx_file(tmp_path / "model.onnx", tensors, tensors)
    config = parse_triton(config_text("m", file, 1, has_labels=True))
    for [tensor] in (config.input, config.output):
        name = model_config_pb2.DataType.Name(tensor.data_type)
        assert (tensor.name, name) == ("x", expected)


def test_weights_beside_the_file_are_not_needed(tmp_path):
    """They may be gigabytes."""
    tensor = onnx.numpy_helper.from_array(np.ones((300, 2), "float32"), "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "graph",
        [onnx.helper.make_tensor_value_info("x", FLOAT, ["batch", 300])],
        [onnx.helper.make_tensor_value_info("y", FLOAT, ["batch", 2])],
        [tensor],
    )
    path = tmp_path / "model.onnx"
    onnx.save_model(
        onnx.helper.make_model(graph),
        str(path),
        save_as_external_data=True,
        location="weights.data",
    )
    (tmp_path / "weights.data").unlink()
    config = parse_triton(config_text("m", path, 1, has_labels=False))
    assert list(config.input[0].dims) == [300]
