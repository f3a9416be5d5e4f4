"""ONNX files in half precision and in eight bits."""

import json
import re
import subprocess
import sys

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf
from helpers import dense_model, memory_ensemble

from cbnn_keras import CBNNCallback
from cbnn_keras.commands import demo
from cbnn_keras.export import (
    export_onnx,
    onnx_conversion,
    onnx_files,
    onnx_precisions,
)
from cbnn_keras.export.graph import ServingGraph

layers = keras.layers
VOTES = [1.0, 2.5, 0.7]
ALL = ["probabilities", "class", "top_k", "members", "disagreement"]
PRECISIONS = ["float32", "float16", "int8"]


def calibration(precision, x):
    """Data for those that need them, to verify with for the others."""
    name = "calibration_data" if precision == "int8" else "sample_data"
    return {name: x}


def run(path, inputs, *names):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # half precision has no kernel for some ops
    session = onnxruntime.InferenceSession(path, options)
    return session.run(list(names) or ["probabilities"], inputs)


def graphs(graph):
    """A graph and those in the bodies of its loops and branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs(attribute.g)


def operations(path):
    return {
        node.op_type
        for graph in graphs(onnx.load(path).graph)
        for node in graph.node
    }


# --- Real images ---


def digits_cnn():
    """About 100,000 parameters, most of them in one layer."""
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1), name="image"),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.BatchNormalization(momentum=0.9),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(190, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(2e-3), "sparse_categorical_crossentropy"
    )
    return model


class Digits:
    """A trained ensemble of three, in all precisions."""

    def __init__(self, folder):
        keras.utils.set_random_seed(0)
        (x, y), _, (self.x, self.y) = demo.load_digits(seed=0)
        callback = CBNNCallback(num_checkpoints=3)
        train = callback.weighted(x, y, batch_size=32, seed=1)
        model = digits_cnn()
        self.num_parameters = model.count_params()
        assert 280_000 < 3 * self.num_parameters < 320_000
        model.fit(train, epochs=6, callbacks=[callback], verbose=0)
        self.ensemble = callback.ensemble()
        assert len(self.ensemble) == 3
        self.paths, self.artefacts = {}, {}
        for precision in PRECISIONS:
            path = folder / f"{precision}.onnx"
            self.artefacts[precision] = export_onnx(
                self.ensemble,
                path,
                precision=precision,
                verbose=0,
                **calibration(precision, x[:300]),
            )
            self.paths[precision] = path
        self.size = {p: path.stat().st_size for p, path in self.paths.items()}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return Digits(tmp_path_factory.mktemp("digits"))


def test_half_precision_has_half_the_size(digits):
    num_bytes = 3 * 4 * digits.num_parameters
    assert 1 < digits.size["float32"] / num_bytes < 1.03  # little but weights
    assert digits.size["float16"] / digits.size["float32"] < 0.52


def test_eight_bits_are_at_most_a_third_of_the_size(digits):
    assert digits.size["int8"] / digits.size["float32"] < 1 / 3


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_accuracy_is_that_of_full_precision(digits, precision):
    expected = digits.ensemble.predict(digits.x, verbose=0).argmax(axis=1)
    assert np.mean(expected == digits.y) > 0.95  # it did learn
    (found,) = run(digits.paths[precision], {"image": digits.x})
    found = found.argmax(axis=1)
    num_correct = np.sum(found == digits.y), np.sum(expected == digits.y)
    assert abs(num_correct[0] - num_correct[1]) <= 2  # of 360
    assert np.mean(found == expected) >= 0.99


def test_full_precision_gives_the_same_probabilities(digits):
    expected = digits.ensemble.predict(digits.x, verbose=0)
    (found,) = run(digits.paths["float32"], {"image": digits.x})
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_file_is_valid(digits, precision):
    path = str(digits.paths[precision])
    onnx.checker.check_model(path, full_check=True)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_interface_is_the_same(digits, precision):
    model = onnx.load(digits.paths[precision])
    for (value,), name, sizes in [
        (model.graph.input, "image", ["batch", 8, 8, 1]),
        (model.graph.output, "probabilities", ["batch", 10]),
    ]:
        tensor = value.type.tensor_type
        assert value.name == name
        assert tensor.elem_type == onnx.TensorProto.FLOAT
        assert [d.dim_param or d.dim_value for d in tensor.shape.dim] == sizes
    (metadata,) = [
        p.value for p in model.metadata_props if p.key == "precision"
    ]
    assert json.loads(metadata) == precision
    assert {o.domain: o.version for o in model.opset_import}[""] == 17


@pytest.mark.parametrize(
    ("precision", "kind"), [("float16", np.float16), ("int8", np.int8)]
)
def test_weights_are_kept_in_less(digits, precision, kind):
    model = onnx.load(digits.paths[precision])
    arrays = map(onnx.numpy_helper.to_array, model.graph.initializer)
    large = [array for array in arrays if array.size > 1000]
    # Kernels of (3, 3, 16, 32), (512, 190) and (190, 10), of three members.
    assert len(large) == 9
    assert {array.dtype for array in large} == {np.dtype(kind)}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_calibration_data_are_what_is_compared(digits, precision):
    parity = digits.artefacts[precision].parity
    assert parity.num_samples == 300
    assert parity.agreement > 0.99
    bounds = {
        "float32": (0, 1e-5),
        "float16": (1e-5, 2e-2),
        "int8": (1e-4, 0.3),
    }
    low, high = bounds[precision]
    assert low < parity.max_difference < high


# --- How it is calibrated ---


def test_ranges_are_those_of_all_calibration_data(tmp_path):
    """Also of the last sample, in a batch that is not full."""
    x = np.random.default_rng(0).uniform(-1, 2, (70, 4)).astype("float32")
    x[-1, 0] = 41.0
    path = tmp_path / "a.onnx"
    ensemble = memory_ensemble(dense_model(), [1.0])
    export_onnx(ensemble, path, precision="int8", calibration_data=x, verbose=0)
    model = onnx.load(path)
    constants = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
    }
    (node,) = [
        node
        for node in model.graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] == "input"
    ]
    scale, zero = (constants[name] for name in node.input[1:])
    # 255 steps from the smallest value, -1, to the largest.
    np.testing.assert_allclose(scale, (41 - x.min()) / 255, rtol=1e-5)
    assert zero == round(-x.min() / scale)


def test_weights_have_a_scale_for_each_channel(digits):
    model = onnx.load(digits.paths["int8"])
    sizes = {
        tensor.name: int(np.prod(tensor.dims))
        for tensor in model.graph.initializer
    }
    scales = {
        sizes[node.input[1]]
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and sizes.get(node.input[0], 0)
    }
    # Outputs of the layers.
    assert {16, 32, 190, 10} <= scales


def test_batches_are_all_of_the_data():
    data = {"a": np.arange(70), "b": np.arange(140).reshape(70, 2)}
    reader = onnx_precisions._Batches(data)
    batches = list(iter(reader.get_next, None))
    assert [len(batch["a"]) for batch in batches] == [32, 32, 6]
    for name, array in data.items():
        together = np.concatenate([batch[name] for batch in batches])
        np.testing.assert_array_equal(together, array)
    assert reader.get_next() is None


# --- Names ---


def test_names_in_eight_bits_are_short(digits):
    """Long ones would take more space than the weights of a small model."""
    graph = onnx.load(digits.paths["int8"]).graph
    public = {"image", "probabilities"}
    for node in graph.node:
        assert node.name == ""
        for name in (*node.input, *node.output):
            assert name in public or re.fullmatch(r"\d*", name)
    assert not graph.value_info


def loop_model():
    """Its GRU becomes a loop."""
    return keras.Sequential(
        [
            keras.Input((6, 5), name="series"),
            layers.GRU(7),
            layers.Dense(3, activation="softmax"),
        ]
    )


def test_names_in_loops_are_short(tmp_path):
    path = tmp_path / "a.onnx"
    ensemble = memory_ensemble(loop_model(), VOTES)
    x = np.random.default_rng(0).normal(size=(40, 6, 5)).astype("float32")
    artefact = export_onnx(
        ensemble, path, precision="int8", calibration_data=x, verbose=0
    )
    assert artefact.parity.agreement >= 0.95
    found = list(graphs(onnx.load(path).graph))
    assert len(found) == 4  # and the bodies of three loops
    allowed = re.compile(r"series|probabilities|\d*")
    for graph in found:
        for value in (*graph.input, *graph.output, *graph.initializer):
            assert allowed.fullmatch(value.name)
        for node in graph.node:
            for name in (*node.input, *node.output):
                assert allowed.fullmatch(name)
    expected = ensemble.predict(x, verbose=0)
    np.testing.assert_allclose(
        run(path, {"series": x})[0], expected, rtol=0, atol=0.02
    )


def test_an_input_may_be_called_by_a_number(tmp_path):
    """As columns of a table often are."""
    inputs = keras.Input((4,), name="5")
    outputs = layers.Dense(3, activation="softmax")(layers.Dense(8)(inputs))
    ensemble = memory_ensemble(keras.Model(inputs, outputs), VOTES)
    x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    path = tmp_path / "a.onnx"
    export_onnx(ensemble, path, precision="int8", calibration_data=x, verbose=0)
    (found,) = run(path, {"5": x})
    np.testing.assert_allclose(
        found, ensemble.predict(x, verbose=0), rtol=0, atol=0.05
    )


# --- Other models ---


def text_model():
    inputs = keras.Input((12,), dtype="int32", name="tokens")
    x = layers.Embedding(50, 16)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))
    x = layers.Dense(32, activation="gelu")(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(5, activation="softmax")(x))


def gru_model():
    return keras.Sequential(
        [
            keras.Input((12,), dtype="int32", name="tokens"),
            layers.Embedding(50, 8, mask_zero=True),
            layers.GRU(7),
            layers.Dense(5, activation="softmax"),
        ]
    )


def lstm_model():
    return keras.Sequential(
        [
            keras.Input((12,), dtype="int32", name="tokens"),
            layers.Embedding(50, 8),
            layers.LSTM(7),
            layers.Dense(5, activation="softmax"),
        ]
    )


@keras.saving.register_keras_serializable("test_precisions")
class MaxOrMin(layers.Layer):
    """A branch that reads what is outside of it."""

    def call(self, x):
        y = tf.transpose(x, [0, 2, 1])
        return tf.cond(
            tf.shape(x)[0] > 0,
            lambda: tf.reduce_max(y, axis=2),
            lambda: tf.reduce_min(y, axis=2),
        )

    def compute_output_shape(self, shape):
        return shape[0], shape[2]


def branch_model():
    return keras.Sequential(
        [
            keras.Input((12,), dtype="int32", name="tokens"),
            layers.Embedding(50, 8),
            MaxOrMin(),
            layers.Dense(5, activation="softmax"),
        ]
    )


TOKENS = np.random.default_rng(0).integers(0, 50, (64, 12)).astype("int32")
RUN_ALONE = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
tokens = numpy.load(sys.argv[2])
numpy.save(sys.argv[3], session.run(["probabilities"], {"tokens": tokens})[0])
"""


@pytest.mark.parametrize(
    ("build", "precision"),
    [
        (text_model, "float16"),
        (text_model, "int8"),
        (gru_model, "float16"),
        (gru_model, "int8"),
        (lstm_model, "float16"),
        (lstm_model, "int8"),
        pytest.param(
            branch_model,
            "int8",
        ),
    ],
)
def test_models_of_sequences(build, precision, tmp_path):
    """In a process of its own: an abort must not end all tests."""
    ensemble = memory_ensemble(build(), VOTES)
    graph = ServingGraph(ensemble)
    path, tokens, answer = (
        tmp_path / name for name in ("a.onnx", "tokens.npy", "answer.npy")
    )
    onnx_files.save(onnx_conversion.to_onnx(graph), path)
    data = TOKENS if precision == "int8" else None
    onnx_precisions.convert(path, precision, graph, data)
    assert list(tmp_path.iterdir()) == [path]
    found = operations(path)
    assert ("Loop" in found) == (build is gru_model)
    assert ("If" in found) == (build is branch_model)
    np.save(tokens, TOKENS)
    subprocess.run(
        [sys.executable, "-c", RUN_ALONE, path, tokens, answer],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    found, expected = np.load(answer), ensemble.predict(TOKENS, verbose=0)
    bound = {"float16": 1e-3, "int8": 1e-2}[precision]
    assert np.abs(found - expected).max() < bound
    assert np.mean(found.argmax(axis=1) == expected.argmax(axis=1)) > 0.95


@pytest.mark.parametrize("build", [text_model, lstm_model])
def test_embeddings_are_in_eight_bits(build, tmp_path):
    """They are most of a model of texts."""
    path = tmp_path / "a.onnx"
    export_onnx(
        memory_ensemble(build(), VOTES),
        path,
        precision="int8",
        calibration_data=TOKENS,
        verbose=0,
    )
    tables = [
        tensor.data_type
        for tensor in onnx.load(path).graph.initializer
        if list(tensor.dims)[:1] == [50]
    ]
    assert tables == [onnx.TensorProto.UINT8] * 3 or (
        tables == [onnx.TensorProto.INT8] * 3
    )


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_all_outputs_with_names(precision, tmp_path):
    keras.utils.set_random_seed(5)
    ensemble = memory_ensemble(dense_model(), VOTES)
    x = np.random.default_rng(0).normal(0, 3, (60, 4)).astype("float32")
    path = tmp_path / "a.onnx"
    export_onnx(
        ensemble,
        path,
        precision=precision,
        outputs=ALL,
        class_names=["rot", "grün", "blau"],
        top_k=2,
        verbose=0,
        **calibration(precision, x),
    )
    check_all_outputs(path, ensemble, x, precision)


def check_all_outputs(path, ensemble, x, precision):
    names = [
        "probabilities",
        "class",
        "top_k_classes",
        "top_k_probabilities",
        "members",
        "disagreement",
    ]
    session = onnxruntime.InferenceSession(path)
    assert sorted(o.name for o in session.get_outputs()) == sorted(names)
    assert {o.shape[0] for o in session.get_outputs()} == {"batch"}
    found = dict(zip(names, run(path, {"input": x}, *names), strict=True))
    members = np.stack(list(ensemble.member_probabilities(x, verbose=0)), 1)
    expected = ensemble.predict(x, verbose=0)
    bound = {"float16": 5e-3, "int8": 0.05}[precision]
    assert np.abs(found["members"] - members).max() < bound
    assert np.abs(found["probabilities"] - expected).max() < bound
    # What depends on decisions goes with the probabilities of the same file.
    probabilities, members = found["probabilities"], found["members"]
    order = np.argsort(-probabilities, axis=1)
    labels = np.array(["rot", "grün", "blau"])
    assert found["class"].tolist() == labels[order[:, 0]].tolist()
    assert found["top_k_classes"].tolist() == labels[order[:, :2]].tolist()
    against = members.argmax(axis=2) != order[:, :1]
    np.testing.assert_allclose(
        found["disagreement"],
        against @ np.array(VOTES) / np.sum(VOTES),
        rtol=0,
        atol=1e-3,
    )
    assert 0 < against.mean() < 0.5


def test_bytes_through_a_preprocessing(tmp_path):
    inputs = keras.Input((8, 8, 1), name="image")
    hidden = layers.Conv2D(4, 3, activation="relu")(inputs)
    outputs = layers.Dense(3, activation="softmax")(layers.Flatten()(hidden))
    ensemble = memory_ensemble(keras.Model(inputs, outputs), VOTES)
    raw = keras.Input((8, 8, 1), dtype="uint8", name="bytes")
    preprocess = keras.Model(raw, layers.Rescaling(1 / 255)(raw))
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (100, 8, 8, 1), "uint8")
    path = tmp_path / "a.onnx"
    export_onnx(
        ensemble,
        path,
        precision="int8",
        calibration_data=x,
        preprocess=preprocess,
        verbose=0,
    )
    (value,) = onnxruntime.InferenceSession(path).get_inputs()
    assert (value.name, value.type) == ("bytes", "tensor(uint8)")
    assert value.shape == ["batch", 8, 8, 1]
    expected = ensemble.predict(x.astype("float32") / 255, verbose=0)
    (found,) = run(path, {"bytes": x})
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.02)
    assert np.ptp(expected, axis=0).max() > 0.05


# --- What does not go together ---


@pytest.mark.parametrize(
    ("precision", "has_data", "message"),
    [
        (
            "int8",
            False,
            r"precision='int8' needs calibration_data: some hundred real "
            "inputs, from which the range of every activation is taken",
        ),
        (
            "float32",
            True,
            r"calibration_data is for precision='int8', not 'float32'\. Use "
            "sample_data to verify with real inputs",
        ),
        ("float16", True, "is for precision='int8', not 'float16'"),
        (
            "bfloat16",
            False,
            "precision='bfloat16'; choose from float32, float16, int8",
        ),
    ],
)
def test_wrong_options_are_refused(precision, has_data, message, tmp_path):
    data = np.zeros((3, 4)) if has_data else None
    with pytest.raises(ValueError, match=message):
        onnx_precisions.check(precision, data)
    # Before any work is done, and in the function that users call.
    with pytest.raises(ValueError, match=message):
        export_onnx(
            None,
            tmp_path / "new/a.onnx",
            precision=precision,
            calibration_data=data,
        )
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_right_options_are_not(precision):
    data = np.zeros((3, 4)) if precision == "int8" else None
    onnx_precisions.check(precision, data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros((3, 5)), r"'input' have the shape \(3, 5\); the graph takes"),
        (np.zeros((0, 4)), "at least one"),
        ({"a": np.zeros((3, 4)), "b": np.zeros((3, 4))}, "have 2 arrays"),
    ],
)
def test_calibration_data_must_fit(data, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_onnx(
            memory_ensemble(dense_model(), VOTES),
            tmp_path / "a.onnx",
            precision="int8",
            calibration_data=data,
            verbose=0,
        )
    assert not any(tmp_path.iterdir())


def test_other_sample_data_verify_what_calibration_data_made(tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    artefact = export_onnx(
        memory_ensemble(dense_model(), VOTES),
        tmp_path / "a.onnx",
        precision="int8",
        calibration_data=x,
        sample_data=x[:9],
        verbose=0,
    )
    assert artefact.parity.num_samples == 9


def test_stages_of_a_conversion_are_shown(tmp_path, capfd):
    x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    ensemble = memory_ensemble(dense_model(), VOTES)
    export_onnx(
        ensemble,
        tmp_path / "a.onnx",
        precision="int8",
        calibration_data=x,
    )
    shown, errors = capfd.readouterr()
    assert errors == ""
    assert shown.splitlines()[:4] == [
        "merging the members ...",
        "converting to ONNX (minutes for large models) ...",
        "converting to int8 ...",
        "comparing it with the Keras ensemble ...",
    ]
    export_onnx(
        ensemble,
        tmp_path / "a.onnx",
        precision="int8",
        calibration_data=x,
        verbose=0,
    )
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["a.onnx"]
