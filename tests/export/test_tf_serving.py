"""Tests of what TensorFlow Serving wants, against its own protos."""

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format, unknown_fields, wrappers_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2

from cbnn_keras.export import tf_serving

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


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    number=st.integers(1, 15),
    content=st.one_of(
        st.binary(max_size=300),
        # Lengths where the coding changes.
        st.sampled_from([127, 128, 129, 16383, 16384, 2**21 - 1, 2**21]).map(
            lambda size: b"y" * size
        ),
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


def models_of(text):
    message = model_server_config_pb2.ModelServerConfig()
    text_format.Parse(text, message)
    return message.model_config_list.config


def make_models(directory, *names):
    for name in names:
        (directory / name).mkdir(parents=True)
        (directory / name / "saved_model.pb").touch()


def test_config_lists_all_models_and_the_new_one(tmp_path):
    make_models(tmp_path, "b/1", "b/2", "a/10", "c d/3")
    (tmp_path / "empty" / "1").mkdir(parents=True)
    (tmp_path / "run" / "members").mkdir(parents=True)
    (tmp_path / "a" / ".cbnn-export-x" / "model").mkdir(parents=True)
    (tmp_path / "notes.txt").touch()
    text = tf_serving.models_config(tmp_path, "/models", new_model="new")
    assert [
        (model.name, model.base_path, model.model_platform)
        for model in models_of(text)
    ] == [
        ("a", "/models/a", "tensorflow"),
        ("b", "/models/b", "tensorflow"),
        ("c d", "/models/c d", "tensorflow"),
        ("new", "/models/new", "tensorflow"),
    ]
    assert text.startswith("# Written by cbnn export.\n")
    again = tf_serving.models_config(tmp_path, "/models", new_model="a")
    assert [model.name for model in models_of(again)] == ["a", "b", "c d"]


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
def test_directory_as_the_server_sees_it(tmp_path, base, expected):
    text = tf_serving.models_config(tmp_path, base, new_model="m")
    [model] = models_of(text)
    assert model.base_path == (expected or str(tmp_path / "m"))


@pytest.mark.parametrize("name", ['a"b', "it's", "日本", "a\\b", "a\nb", "{x}"])
def test_strange_names(tmp_path, name):
    make_models(tmp_path, f"{name}/1")
    text = tf_serving.models_config(tmp_path, "/models", new_model="z")
    found = {(model.name, model.base_path) for model in models_of(text)}
    assert found == {(name, f"/models/{name}"), ("z", "/models/z")}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_is_read_as_it_was(text):
    message = model_server_config_pb2.ModelConfig()
    text_format.Parse(f"name: {tf_serving.quoted(text)}", message)
    assert message.name == text
