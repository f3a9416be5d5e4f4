"""ONNX files in half precision and in eight bits."""

import functools
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
from export_helpers import X, run_onnx, serving_graph
from helpers import memory_ensemble

from cbnn_keras import CBNNCallback
from cbnn_keras.commands import demo
from cbnn_keras.export import (
    export_onnx,
    onnx_conversion,
    onnx_files,
    onnx_precisions,
)

layers = keras.layers
VOTES = [1.0, 2.5]
PRECISIONS = ["float32", "float16", "int8"]


def calibration(precision, x):
    """Data for those that need them, to verify with for the others."""
    name = "calibration_data" if precision == "int8" else "sample_data"
    return {name: x}


def graphs(graph):
    """A graph and those in the bodies of its loops and branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs(attribute.g)


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

    def __init__(self, directory):
        keras.utils.set_random_seed(0)
        (x, y), _, (self.x, self.y) = demo.load_digits(seed=0)
        callback = CBNNCallback.paper(num_checkpoints=3)
        train = callback.weighted(x, y, batch_size=32, seed=1)
        model = digits_cnn()
        self.num_parameters = model.count_params()
        assert 280_000 < 3 * self.num_parameters < 320_000
        model.fit(train, epochs=4, callbacks=[callback], verbose=0)
        self.ensemble = callback.ensemble()
        assert len(self.ensemble) == 3
        self.paths, self.artefacts = {}, {}
        for precision in PRECISIONS:
            path = directory / f"{precision}.onnx"
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


@pytest.mark.large
def test_the_size_is_a_half_and_at_most_a_third(digits):
    num_bytes = 3 * 4 * digits.num_parameters
    assert 1 < digits.size["float32"] / num_bytes < 1.03  # little but weights
    assert digits.size["float16"] / digits.size["float32"] < 0.52
    assert digits.size["int8"] / digits.size["float32"] < 1 / 3


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_accuracy_is_that_of_full_precision(digits, precision):
    expected = digits.ensemble.predict(digits.x, verbose=0).argmax(axis=1)
    assert np.mean(expected == digits.y) > 0.95  # it did learn
    found = run_onnx(digits.paths[precision], {"image": digits.x})
    found = found["probabilities"].argmax(axis=1)
    num_correct = np.sum(found == digits.y), np.sum(expected == digits.y)
    assert abs(num_correct[0] - num_correct[1]) <= 2  # of 360
    assert np.mean(found == expected) >= 0.99


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_interface_is_the_same(digits, precision):
    model = onnx.load(digits.paths[precision])
    onnx.checker.check_model(model, full_check=True)
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


def test_ranges_are_those_of_all_calibration_data(
    ensemble, converted_before, tmp_path, capfd
):
    """Also of the last sample, in a batch that is not full."""
    x = np.random.default_rng(0).uniform(-1, 2, (70, 4)).astype("float32")
    x[-1, 0] = 41.0
    path = tmp_path / "a.onnx"
    artefact = export_onnx(
        ensemble, path, precision="int8", calibration_data=x, sample_data=x[:9]
    )
    model = onnx.load(path)
    constants = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
    }
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] == "input":
            scale, zero = (constants[name] for name in node.input[1:])
    # 255 steps from the smallest value, -1, to the largest.
    np.testing.assert_allclose(scale, (41 - x.min()) / 255, rtol=1e-5)
    assert zero == round(-x.min() / scale)
    # Other data verify what these made.
    assert artefact.parity.num_samples == 9
    shown, errors = capfd.readouterr()
    assert errors == ""
    assert shown.splitlines()[:4] == [
        "merging the members ...",
        "converting to ONNX (minutes for large models) ...",
        "converting to int8 ...",
        "comparing it with the Keras ensemble ...",
    ]
    assert list(tmp_path.iterdir()) == [path]


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


# --- Names ---


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
BUILDS = [text_model, gru_model, lstm_model, branch_model]
RUN_ALONE = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
tokens = numpy.load(sys.argv[2])
numpy.save(sys.argv[3], session.run(["probabilities"], {"tokens": tokens})[0])
"""


@pytest.fixture(scope="module")
def converted():
    """The graph of a model and its ONNX model in float32, made once."""

    @functools.cache
    def convert(build):
        keras.utils.set_random_seed(0)
        ensemble = memory_ensemble(build(), VOTES)
        graph = serving_graph(ensemble)
        expected = ensemble.predict(TOKENS, verbose=0)
        return graph, onnx_conversion.to_onnx(graph), expected

    return convert


@pytest.mark.parametrize("precision", ["float16", "int8"])
@pytest.mark.parametrize("build", BUILDS)
def test_models_of_sequences(build, precision, converted, tmp_path):
    """In a process of its own: an abort must not end all tests."""
    graph, proto, expected = converted(build)
    path, tokens, answer = (
        tmp_path / name for name in ("a.onnx", "tokens.npy", "answer.npy")
    )
    onnx_files.save(proto, path)
    data = TOKENS if precision == "int8" else None
    onnx_precisions.convert(path, precision, graph, data)
    assert list(tmp_path.iterdir()) == [path]
    np.save(tokens, TOKENS)
    subprocess.run(
        [sys.executable, "-c", RUN_ALONE, path, tokens, answer],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    found = np.load(answer)
    bound = {"float16": 1e-3, "int8": 1e-2}[precision]
    assert np.abs(found - expected).max() < bound
    assert np.mean(found.argmax(axis=1) == expected.argmax(axis=1)) > 0.95
    bodies = list(graphs(onnx.load(path).graph))
    has_bodies = build in (gru_model, branch_model)
    assert (len(bodies) > 1) == has_bodies
    if precision == "int8":
        check_eight_bits(bodies, has_embeddings=not has_bodies)


def check_eight_bits(bodies, *, has_embeddings):
    """Names are short in loops too, and so are embeddings, if they can be."""
    allowed = re.compile(r"tokens|probabilities|\d*")
    for graph in bodies:
        for value in (*graph.input, *graph.output, *graph.initializer):
            assert allowed.fullmatch(value.name)
        for node in graph.node:
            for name in (*node.input, *node.output):
                assert allowed.fullmatch(name)
    # They are most of a model of texts.
    tables = {
        tensor.data_type
        for tensor in bodies[0].initializer
        if list(tensor.dims)[:1] == [50]
    }
    eight_bits = {onnx.TensorProto.UINT8, onnx.TensorProto.INT8}
    assert tables and (tables <= eight_bits) == has_embeddings


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_priors_that_half_precision_cannot_divide_by(precision, tmp_path):
    inputs = keras.Input((4,), name="values")
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(inputs))
    ensemble = memory_ensemble(model, VOTES, is_binary=True)
    members = list(ensemble.member_probabilities(X, verbose=0))
    mean = np.average(members, axis=0, weights=VOTES)
    priors, path = [0.99999, 0.00001], tmp_path / "a.onnx"
    options = {"priors": priors, "precision": precision, "tolerance": 0.05}
    export_onnx(ensemble, path, verbose=0, **options)
    first, second = (1 - mean) / priors[0], mean / priors[1]
    np.testing.assert_allclose(
        run_onnx(path, {"values": X})["probabilities"],
        second / (first + second),
        rtol=0,
        atol=1e-4 if precision == "float32" else 0.05,
    )


def test_bytes_through_a_preprocessing(tmp_path):
    inputs = keras.Input((8, 8, 1), name="image")
    hidden = layers.Conv2D(4, 3, activation="relu")(inputs)
    outputs = layers.Dense(3, activation="softmax")(layers.Flatten()(hidden))
    ensemble = memory_ensemble(keras.Model(inputs, outputs), VOTES)
    # A name as columns of a table have it, and nodes in eight bits.
    raw = keras.Input((8, 8, 1), dtype="uint8", name="5")
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
    assert (value.name, value.type) == ("5", "tensor(uint8)")
    assert value.shape == ["batch", 8, 8, 1]
    expected = ensemble.predict(x.astype("float32") / 255, verbose=0)
    found = run_onnx(path, {"5": x})["probabilities"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.02)
    assert np.ptp(expected, axis=0).max() > 0.05


# --- What does not go together ---


@pytest.mark.parametrize(
    ("precision", "data", "message"),
    [
        (
            "int8",
            None,
            r"precision='int8' needs calibration_data: some hundred real "
            "inputs, from which the range of every activation is taken",
        ),
        (
            "float32",
            X,
            r"calibration_data is for precision='int8', not 'float32'\. Use "
            "sample_data to verify with real inputs",
        ),
        ("float16", X, "is for precision='int8', not 'float16'"),
        (
            "bfloat16",
            None,
            r"^precision must be one of float32, float16, int8, not "
            r"'bfloat16'\.$",
        ),
        (
            "int8",
            tf.data.Dataset.from_tensors(X),
            "^calibration_data must be arrays of inputs, .* not a tf.data.Data",
        ),
    ],
)
def test_wrong_options_are_refused_first(
    precision, data, message, ensemble, tmp_path
):
    with pytest.raises(ValueError, match=message):
        export_onnx(
            ensemble,
            tmp_path / "new/a.onnx",
            precision=precision,
            calibration_data=data,
        )
    assert not any(tmp_path.iterdir())


def test_calibration_data_must_fit(ensemble, converted_before, tmp_path):
    with pytest.raises(
        ValueError, match=r"'input' have the shape \(40, 3\), but the graph"
    ):
        export_onnx(
            ensemble,
            tmp_path / "a.onnx",
            precision="int8",
            calibration_data=X[:, :3],
            verbose=0,
        )
    assert not any(tmp_path.iterdir())
