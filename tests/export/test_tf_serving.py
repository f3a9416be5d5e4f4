"""Tests of what servers want beside a model, against their own protos."""

import ast
import json
import logging
import shlex
import subprocess
import sys
import warnings

import numpy as np
import onnx
import pytest
import tensorflow as tf
from google.protobuf import text_format, unknown_fields, wrappers_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2
from tritonclient.grpc import model_config_pb2

from cbnn_keras.export import tf_serving
from cbnn_keras.support import extras

# --- Warm-up requests ---


def read_warmup(path):
    return [
        prediction_log_pb2.PredictionLog.FromString(record.numpy())
        for record in tf.data.TFRecordDataset(str(path))
    ]


INPUTS = {
    "pixels": np.arange(24, dtype="uint8").reshape(3, 2, 4) * 10,
    "item": np.array([-(2**40), 0, 2**62]),
    "flags": np.array([[True], [False], [True]]),
    "text": np.array(["grün", "", "a\nb" * 100], object),
    "bytes": np.array([b"\xff\x00", b"x", b""], object),
    "amount": np.array([0.1, -np.inf, 3e38], "float32"),
    "small": np.array([[-128], [0], [127]], "int8"),
    "half": np.array([0.5, 1, 2], "float16"),
    "double": np.array([0.1, 0.2, 0.3]),
}


def test_warmup_requests_hold_the_same_arrays(tmp_path):
    path = tmp_path / "requests"
    tf_serving.write_warmup(
        path, INPUTS, model="größe", endpoints=["serving_default", "members"]
    )
    logs = read_warmup(path)
    found = []
    for log in logs:
        assert log.WhichOneof("log_type") == "predict_log"
        request = log.predict_log.request
        found.append(request.model_spec.signature_name)
        assert request.model_spec.name == "größe"
        assert not request.model_spec.HasField("version")
        assert set(request.inputs) == set(INPUTS)
        size = 1 if len(found) % 2 else 3
        for name, array in INPUTS.items():
            tensor = tf.make_ndarray(request.inputs[name])
            expected = array[:size]
            assert tensor.shape == expected.shape
            if array.dtype == object:
                texts = [tf.compat.as_bytes(text) for text in expected]
                assert tensor.tolist() == texts
            else:
                assert tensor.dtype == array.dtype
                np.testing.assert_array_equal(tensor, expected)
    assert found == ["serving_default"] * 2 + ["members"] * 2
    # Nothing that the protos do not know.
    for log, record in zip(
        logs, tf.data.TFRecordDataset(str(path)), strict=True
    ):
        assert log.ByteSize() == len(record.numpy())
        log.DiscardUnknownFields()
        assert log.ByteSize() == len(record.numpy())


def test_a_single_sample_is_written_once(tmp_path):
    tf_serving.write_warmup(
        tmp_path / "requests",
        {"x": np.ones((1, 2), "float32")},
        model="m",
        endpoints=["serving_default"],
    )
    assert len(read_warmup(tmp_path / "requests")) == 1


LENGTHS = [0, 1, 126, 127, 128, 129, 16383, 16384, 16385, 2**21 - 1, 2**21]


@pytest.mark.parametrize("length", LENGTHS)
def test_fields_of_lengths_where_the_coding_changes(length):
    content = b"x" * length
    # Field 1 of this message is a string of bytes.
    expected = wrappers_pb2.BytesValue(value=content).SerializeToString()
    if length:  # protobuf leaves an empty one out
        assert tf_serving._field(1, content) == expected
    assert wrappers_pb2.BytesValue.FromString(
        tf_serving._field(1, content)
    ) == wrappers_pb2.BytesValue(value=content)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    number=st.integers(1, 15),
    content=st.one_of(
        st.binary(max_size=300),
        st.integers(16000, 17000).map(lambda size: b"y" * size),
    ),
)
def test_fields_are_those_of_protocol_buffers(number, content):
    message = wrappers_pb2.Int32Value()  # its field 1 is a number
    data = tf_serving._field(number, content)
    message.ParseFromString(data + tf_serving._field(number, b"end"))
    first, second = unknown_fields.UnknownFieldSet(message)
    assert (first.field_number, first.wire_type) == (number, 2)
    assert first.data == content
    assert second.data == b"end"


# --- models.config ---


def parse_config(path):
    message = model_server_config_pb2.ModelServerConfig()
    text_format.Parse(path.read_text(), message)
    return message.model_config_list.config


def make_models(folder, *names):
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "saved_model.pb").touch()


def test_config_lists_all_models_beside_it(tmp_path):
    make_models(tmp_path, "b/1", "b/2", "a/10", "c d/3")
    (tmp_path / "empty" / "1").mkdir(parents=True)
    (tmp_path / "run" / "members").mkdir(parents=True)
    (tmp_path / "a" / ".cbnn-export-x" / "model").mkdir(parents=True)
    (tmp_path / "notes.txt").touch()
    config = tmp_path / "models.config"
    tf_serving.write_models_config(config, "/models")
    entries = parse_config(config)
    assert [(e.name, e.base_path, e.model_platform) for e in entries] == [
        ("a", "/models/a", "tensorflow"),
        ("b", "/models/b", "tensorflow"),
        ("c d", "/models/c d", "tensorflow"),
    ]
    assert config.read_text().startswith("# Written by cbnn export.\n")
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == [
        "models.config",
        "notes.txt",
    ]


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("/models", "/models/m"),
        ("/models/", "/models/m"),
        ("/", "/m"),
        ("s3://bucket/x", "s3://bucket/x/m"),
        ("", None),  # where it is
    ],
)
def test_folder_as_the_server_sees_it(tmp_path, base, expected):
    make_models(tmp_path, "m/1")
    tf_serving.write_models_config(tmp_path / "models.config", base)
    [entry] = parse_config(tmp_path / "models.config")
    assert entry.base_path == (expected or str(tmp_path / "m"))


def test_config_without_models(tmp_path):
    tf_serving.write_models_config(tmp_path / "models.config", "")
    assert not parse_config(tmp_path / "models.config")


@pytest.mark.parametrize(
    "name",
    [
        'a"b',
        "it's",
        "größe",
        "日本",
        "back\\slash",
        "new\nline",
        "{name}",
        "%s",
        "# no comment",
        "😀",
    ],
)
def test_strange_names(tmp_path, name):
    make_models(tmp_path, f"{name}/1", "z/1")
    tf_serving.write_models_config(tmp_path / "models.config", "/models")
    found = {
        (e.name, e.base_path) for e in parse_config(tmp_path / "models.config")
    }
    assert found == {(name, f"/models/{name}"), ("z", "/models/z")}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_is_read_as_it_was(text):
    message = model_server_config_pb2.ModelConfig()
    text_format.Parse(f"name: {tf_serving._text(text)}", message)
    assert message.name == text


def test_config_is_written_anew(tmp_path):
    config = tmp_path / "models.config"
    make_models(tmp_path, "a/1")
    for names in (["a"], ["a", "b"]):
        tf_serving.check_replaceable(config)
        tf_serving.write_models_config(config, "/models")
        assert [entry.name for entry in parse_config(config)] == names
        if names == ["a"]:
            make_models(tmp_path, "b/1")


def test_config_of_somebody_else_is_left_alone(tmp_path):
    config = tmp_path / "models.config"
    tf_serving.check_replaceable(config)  # not there
    for text in ("", "model_config_list {}\n", "\n# Written by cbnn export.\n"):
        config.write_text(text)
        with pytest.raises(
            ValueError,
            match=rf"^{config} was not written by `cbnn export` and is left "
            r"alone\. Move it away, or add the model to it yourself\.$",
        ):
            tf_serving.check_replaceable(config)


@pytest.mark.parametrize("kind", ["latin1", "folder"])
def test_config_that_is_no_text_is_left_alone(tmp_path, kind):
    config = tmp_path / "models.config"
    if kind == "folder":
        config.mkdir()
    else:
        config.write_bytes("# größe".encode("latin1"))
    # A UnicodeDecodeError is a ValueError as well.
    with pytest.raises(ValueError, match="was not written by `cbnn export`"):
        tf_serving.check_replaceable(config)


def test_text_is_replaced_as_a_whole(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def crash(source, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tf_serving.os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            tf_serving.replace_text(path, "new")
    assert path.read_text() == "old"
    tf_serving.replace_text(path, "newer")
    assert path.read_text() == "newer"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


# --- config.pbtxt of Triton ---


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


FLOAT = onnx.TensorProto.FLOAT
INT64 = onnx.TensorProto.INT64
STRING = onnx.TensorProto.STRING


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
    config = parse_triton(
        tf_serving.triton_config('my "model"', file, 16, has_labels=True)
    )
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


def test_triton_config_without_labels(tmp_path):
    file = onnx_file(
        tmp_path / "model.onnx",
        [("x", FLOAT, ["batch", 4])],
        [("probabilities", FLOAT, ["batch", 3])],
    )
    text = tf_serving.triton_config("m", file, 1, has_labels=False)
    [output] = parse_triton(text).output
    assert output.label_filename == ""


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
    config = parse_triton(
        tf_serving.triton_config("m", file, 1, has_labels=True)
    )
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
    config = parse_triton(
        tf_serving.triton_config("m", path, 1, has_labels=False)
    )
    assert list(config.input[0].dims) == [300]


# --- Packages that may be missing ---


def test_missing_package_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(
        ImportError,
        match=r'^This needs onnx: pip install "cbnn-keras\[onnx\]"\. \(.*onnx',
    ):
        tf_serving.triton_config("m", tmp_path / "m", 1, has_labels=False)
    monkeypatch.setitem(sys.modules, "onnx.checker", None)
    with pytest.raises(
        ImportError, match='^This needs onnx: pip .*"cbnn-keras'
    ):
        extras.need("onnx.checker", "onnx")


def test_package_that_is_there(monkeypatch):
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    assert extras.need("json", "onnx") is json
    assert extras.os.environ["ORT_DISABLE_TELEMETRY"] == "1"
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")  # the user's word counts
    extras.need("json", "onnx")
    assert extras.os.environ["ORT_DISABLE_TELEMETRY"] == "0"


@pytest.mark.parametrize("level", [0, 30])
def test_quiet_hides_logs_and_warnings_and_ends(level, caplog):
    logging.disable(level)
    try:
        with pytest.raises(ZeroDivisionError):
            with extras.quiet():
                logging.getLogger("tf2onnx").critical("hidden")
                warnings.warn("hidden", stacklevel=1)  # else an error here
                raise ZeroDivisionError
        logging.getLogger("tf2onnx").critical("seen")
        assert logging.root.manager.disable == level
    finally:
        logging.disable(logging.NOTSET)
    assert [record.message for record in caplog.records] == ["seen"]
    with pytest.warns(UserWarning, match="seen"):
        warnings.warn("seen", stacklevel=1)


# --- What to type next ---


def test_next_commands(tmp_path):
    version = tmp_path / "flowers" / "3"
    run = tmp_path / "runs" / "flowers"
    verify, serve = tf_serving.next_commands("saved_model", version, run)
    assert shlex.split(verify) == [
        "cbnn",
        "verify",
        str(version),
        "--run",
        str(run),
    ]
    assert shlex.split(serve) == [
        *("docker", "run", "--rm", "-p", "8501:8501"),
        *("-v", f"{version.parent}:/models/flowers"),
        *("-e", "MODEL_NAME=flowers", "tensorflow/serving"),
    ]
    verify, serve = tf_serving.next_commands("triton", version.parent, run)
    assert shlex.split(verify)[2] == str(version.parent)
    assert shlex.split(serve) == [
        "tritonserver",
        "--model-repository",
        str(tmp_path),
    ]


def test_next_command_of_an_onnx_file_is_python(tmp_path):
    path = tmp_path / "flowers.onnx"
    _, serve = tf_serving.next_commands("onnx", path, tmp_path)
    python, option, code = shlex.split(serve)
    assert (python, option) == ("python", "-c")
    compile(code, "command", "exec")
    assert f"InferenceSession({str(path)!r})" in code


def as_a_shell_reads(command):
    """What the program gets, whichever it is."""
    program = shlex.split(command)[0]
    script = f"{program}() {{ printf '%s\\0' \"$@\"; }}\n{command}"
    result = subprocess.run(
        ["bash", "-c", script], check=True, capture_output=True, text=True
    )
    assert not result.stderr
    return result.stdout.split("\0")[:-1]


@pytest.mark.parametrize("name", ["two words", "$HOME", 'a"b', "it's", "a;b"])
@pytest.mark.parametrize("format", ["saved_model", "onnx", "triton"])
def test_next_commands_of_strange_names(tmp_path, format, name):
    run = tmp_path / f"run of {name}"
    path = tmp_path / name / "1"
    verify, serve = tf_serving.next_commands(format, path, run)
    words = as_a_shell_reads(verify)
    assert words == ["verify", str(path), "--run", str(run)]
    words = as_a_shell_reads(serve)
    if format == "saved_model":
        assert f"{path.parent}:/models/{name}" in words
        assert f"MODEL_NAME={name}" in words
        assert words[-1] == "tensorflow/serving"
    elif format == "onnx":
        constants = [
            node.value
            for node in ast.walk(ast.parse(words[1]))
            if isinstance(node, ast.Constant)
        ]
        assert constants == [str(path)]
    else:
        assert words == ["--model-repository", str(path.parent)]
