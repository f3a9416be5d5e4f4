"""What was exported, run by the programs that people will run it with.

None of them imports this package, and the first not even TensorFlow's Python.
"""

import pathlib
import shutil

import keras
import native_loader
import numpy as np
import pytest
import tensorflow as tf
from consumers import (
    MODEL_SERVER,
    replay_warmup,
    run_model_server,
    run_native,
    run_node,
    run_onnxruntime,
    run_openvino,
)
from helpers import text_model, trained
from test_ensemble import ensemble_of

from cbnn_keras.export import export_onnx, export_saved_model

BATCHES = [1, 2, 7, 120]  # all: a wrong weight may matter to few samples
SIGNATURES = [("serving_default", "probabilities"), ("members", "members")]
ONNX_RUNTIMES = [
    run_onnxruntime,
    run_openvino,
    pytest.param(run_node, marks=pytest.mark.servers),
]
WARMUP = "assets.extra/tf_serving_warmup_requests"


def assert_close(actual, expected):
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(actual.argmax(-1), expected.argmax(-1))


def assert_same(array, expected):
    """Bit for bit; strings are objects in TensorFlow's arrays."""
    assert array.dtype.kind == "S" or array.dtype == expected.dtype
    assert array.shape == expected.shape
    assert array.tolist() == expected.tolist()


def mixed_model():
    """Inputs of many types, of which most have the same shape."""
    layers, ops = keras.layers, keras.ops
    inputs = {
        "pixels": keras.Input((3,), dtype="uint8", name="pixels"),
        "amounts": keras.Input((3,), name="amounts"),
        "item": keras.Input((), dtype="int64", name="item"),
        "flags": keras.Input((3,), dtype="bool", name="flags"),
    }
    features = [
        layers.Rescaling(1 / 255)(inputs["pixels"]),
        inputs["amounts"],
        layers.Embedding(5, 2)(inputs["item"]),
        ops.cast(inputs["flags"], "float32"),
    ]
    hidden = layers.Dense(8, activation="relu")(ops.concatenate(features, 1))
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(hidden))


def mixed_inputs(num):
    generator = np.random.default_rng(0)
    return {
        "pixels": generator.integers(0, 256, (num, 3)).astype("uint8"),
        "amounts": generator.normal(size=(num, 3)).astype("float32"),
        "item": generator.integers(0, 5, num),
        "flags": generator.random((num, 3)) < 0.5,
    }


class Exported:
    """An ensemble in files, and what it should answer.

    Attributes:
        inputs: By the names that clients use.
        saved_model: The folder of the version.
        onnx: The file, unless the ensemble takes strings.
        probabilities: Of the Keras ensemble.
        members: Of each of its members, `(num_samples, num_members, k)`.
    """

    def __init__(self, folder, ensemble, inputs, x):
        self.inputs = inputs
        self.probabilities = ensemble.predict(x, verbose=0)
        members = list(ensemble.member_probabilities(x, verbose=0))
        self.members = np.stack(members, axis=1)
        # Were two members alike, one in the other's place would pass.
        assert len(members) >= 3
        assert np.abs(np.diff(self.members, axis=1)).max((0, 2)).min() > 1e-3
        artefact = export_saved_model(ensemble, folder / "ensemble", verbose=0)
        self.saved_model = pathlib.Path(artefact.path)
        self.onnx = folder / "ensemble.onnx"
        if all(array.dtype.kind != "U" for array in inputs.values()):
            export_onnx(ensemble, self.onnx, verbose=0)

    def first(self, num):
        return {name: array[:num] for name, array in self.inputs.items()}


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    keras.utils.set_random_seed(0)
    callback, _, x, _ = trained(num_checkpoints=4)
    folder = tmp_path_factory.mktemp("dense")
    # The model's input has no name of its own.
    return Exported(folder, callback.ensemble(), {"input": x}, x)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    keras.utils.set_random_seed(0)
    ensemble = ensemble_of(mixed_model(), [1.0, 2.0, 0.5])
    inputs = mixed_inputs(40)
    return Exported(tmp_path_factory.mktemp("mixed"), ensemble, inputs, inputs)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    keras.utils.set_random_seed(0)
    ensemble = ensemble_of(text_model(), [1.0, 2.0, 0.5])
    # Empty, unknown, not ASCII, and too long for TensorFlow's short form.
    x = np.array(["blue red", "", "pink", "grün red blue", "green " * 20])
    folder = tmp_path_factory.mktemp("text")
    return Exported(folder, ensemble, {"input": x}, tf.constant(x))


@pytest.fixture
def exported(request):
    """The one that the test was parametrized with."""
    return request.getfixturevalue(request.param)


# --- TensorFlow's C API, as TensorFlow Serving uses it ---


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("signature", "output"), SIGNATURES)
def test_native_loader_gives_the_same(dense, signature, output, batch):
    outputs = run_native(dense.saved_model, signature, dense.first(batch))
    assert list(outputs) == [output]
    assert_close(outputs[output], getattr(dense, output)[:batch])


@pytest.mark.parametrize(("signature", "output"), SIGNATURES)
@pytest.mark.parametrize("exported", ["mixed", "text"], indirect=True)
def test_native_loader_takes_every_type(exported, signature, output):
    outputs = run_native(exported.saved_model, signature, exported.inputs)
    assert list(outputs) == [output]
    assert_close(outputs[output], getattr(exported, output))
    # The inputs matter.
    assert len(np.unique(outputs[output], axis=0)) >= 4


def flip_a_byte(folder):
    (path,) = folder.glob("variables/variables.data*")
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)


def cut_the_graph(folder):
    path = folder / "saved_model.pb"
    path.write_bytes(path.read_bytes()[:-100])


def forget_the_weights(folder):
    shutil.rmtree(folder / "variables")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip_a_byte, "(?i)checksum"),
        (cut_the_graph, "status 11"),  # INTERNAL
        (forget_the_weights, "status 9"),  # FAILED_PRECONDITION
    ],
)
def test_native_loader_sees_damage(dense, tmp_path, damage, message):
    folder = tmp_path / "1"
    shutil.copytree(dense.saved_model, folder)
    damage(folder)
    with pytest.raises(RuntimeError, match=message):
        run_native(folder, "serving_default", dense.inputs)


@pytest.mark.parametrize(
    ("signature", "inputs", "message"),
    [
        ("serving", {"input": np.ones((2, 4), "float32")}, "there are: .*memb"),
        ("members", {"other": np.ones((2, 4), "float32")}, "not .'other'"),
        ("members", {"input": np.ones((2, 4), "int32")}, "(?i)float"),
        ("members", {"input": np.ones((2, 3), "float32")}, "(?i)size|matmul"),
    ],
)
def test_native_loader_refuses(dense, signature, inputs, message):
    with pytest.raises(RuntimeError, match=message):
        run_native(dense.saved_model, signature, inputs)


# --- Warm-up requests ---


@pytest.mark.parametrize("exported", ["dense", "mixed", "text"], indirect=True)
def test_warmup_requests_run(exported):
    replayed = replay_warmup(exported.saved_model)
    assert "serving_default" in {signature for signature, _, _ in replayed}
    for _, inputs, outputs in replayed:
        (batch,) = {len(x) for x in inputs.values()}
        (probabilities,) = outputs.values()
        assert batch == len(probabilities) > 0
        np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("exported", ["dense", "mixed", "text"], indirect=True)
def test_warmup_requests_are_what_serving_reads(exported):
    from tensorflow_serving.apis import prediction_log_pb2

    records = tf.data.TFRecordDataset(exported.saved_model / WARMUP)
    replayed = replay_warmup(exported.saved_model)
    for record, (signature, inputs, _) in zip(records, replayed, strict=True):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        assert log.WhichOneof("log_type") == "predict_log"
        expected = log.predict_log.request
        assert signature == expected.model_spec.signature_name
        assert inputs.keys() == expected.inputs.keys()
        for name, array in inputs.items():
            assert_same(array, tf.make_ndarray(expected.inputs[name]))


@pytest.mark.parametrize("where", [0, 9, 40, -2])
def test_damaged_warmup_request_is_seen(dense, tmp_path, where):
    data = bytearray((dense.saved_model / WARMUP).read_bytes())
    data[where] ^= 4
    (tmp_path / "requests").write_bytes(data)
    with pytest.raises(ValueError, match="checksum|cut off"):
        list(native_loader.records(tmp_path / "requests"))


@pytest.mark.parametrize(
    "array",
    [
        np.float32([[1, -2.5], [0, 3]]),
        np.float64(0.1),
        np.int32([-1, 2**31 - 1]),
        np.int64([-(2**40), 5, 0]),
        np.uint8([[255], [3]]),
        np.array([True, False]),
        np.array([b"", "grün".encode()], object),
        np.zeros((0, 4), "float32"),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_the_reader_reads_tensors_as_tensorflow_does(array):
    proto = tf.make_tensor_proto(array)
    assert_same(native_loader.tensor(proto.SerializeToString()), array)
    field = {
        "float32": proto.float_val,
        "float64": proto.double_val,
        "int64": proto.int64_val,
        "bool": proto.bool_val,
        "object": proto.string_val,
    }.get(array.dtype.name, proto.int_val)
    proto.ClearField("tensor_content")
    del field[:]
    field.extend(array.ravel().tolist())
    assert_same(native_loader.tensor(proto.SerializeToString()), array)


@pytest.mark.parametrize("value", [0.5, 0.0, -3, True, "red"])
def test_the_reader_repeats_a_single_value(value):
    proto = tf.make_tensor_proto(value, shape=[2, 3])
    array = native_loader.tensor(proto.SerializeToString())
    assert_same(array, tf.make_ndarray(proto))


# --- ONNX ---


@pytest.mark.parametrize("exported", ["dense", "mixed"], indirect=True)
def test_onnx_file_is_valid(exported):
    import onnx

    onnx.checker.check_model(str(exported.onnx), full_check=True)
    model = onnx.load(str(exported.onnx))
    assert {o.domain: o.version for o in model.opset_import}[""] == 17
    names = [value.name for value in model.graph.input]
    assert sorted(names) == sorted(exported.inputs)
    assert [value.name for value in model.graph.output] == ["probabilities"]
    for value in (*model.graph.input, *model.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("run", ONNX_RUNTIMES)
@pytest.mark.parametrize("exported", ["dense", "mixed"], indirect=True)
def test_onnx_file_gives_the_same(exported, run, batch):
    outputs = run(exported.onnx, exported.first(batch))
    assert list(outputs) == ["probabilities"]
    assert_close(outputs["probabilities"], exported.probabilities[:batch])


@pytest.mark.parametrize("exported", ["dense", "mixed"], indirect=True)
def test_openvino_reads_the_saved_model(exported):
    outputs = run_openvino(exported.saved_model, exported.inputs)
    assert_close(outputs["probabilities"], exported.probabilities)


# --- TensorFlow Serving itself, where there is one ---


@pytest.mark.servers
@pytest.mark.skipif(  # before anything is exported
    not shutil.which(MODEL_SERVER), reason=f"{MODEL_SERVER} is not on PATH"
)
@pytest.mark.parametrize("exported", ["dense", "mixed", "text"], indirect=True)
def test_model_server_gives_the_same(exported):
    probabilities, members = run_model_server(
        exported.saved_model.parent,
        [(signature, exported.first(7)) for signature, _ in SIGNATURES],
    )
    assert_close(probabilities, exported.probabilities[:7])
    assert_close(members, exported.members[:7])
