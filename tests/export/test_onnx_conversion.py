"""A serving graph as an ONNX model: what tf2onnx alone would get wrong."""

import logging
import math
import os
import warnings

import keras
import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
import tensorflow as tf
from export_helpers import serving_graph, softmax
from helpers import dense_model, memory_ensemble, text_model

from cbnn_keras.export import onnx_conversion

layers = keras.layers
VOTES = [1.0, 2.5]
RNG = np.random.default_rng(3)


def converted(model, **options):
    """The ONNX model of an ensemble, and the weights of its members."""
    ensemble = memory_ensemble(model, VOTES)
    proto = onnx_conversion.to_onnx(serving_graph(ensemble, **options))
    onnx.checker.check_model(proto, full_check=True)
    weights = [member.get_weights() for member in ensemble.member_models()]
    return proto, weights


def run(proto, **inputs):
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return session.run(["probabilities"], inputs)[0]


def sequential(*parts, dtype="float32", shape=(4,)):
    return keras.Sequential(
        [
            keras.Input(shape, dtype=dtype),
            *parts,
            layers.Dense(3, activation="softmax"),
        ]
    )


def voted(members):
    """The vote-weighted mean, in double precision."""
    return np.average(members, axis=0, weights=VOTES)


def operations(graph):
    """Types of all nodes, those in the bodies of loops included."""
    found = set()
    for node in graph.node:
        found.add(node.op_type)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found |= operations(attribute.g)
    return found


def input_names(proto):
    return [value.name for value in proto.graph.input]


def assert_close(actual, expected):
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)
    # A constant answer would prove nothing.
    assert np.ptp(expected, axis=0).max() > 1e-2


# --- Inputs, outputs and names ---


def test_every_dimension_has_a_number_or_a_name():
    inputs = {
        "picture": keras.Input((None, None, 2), name="picture"),
        "series": keras.Input((None, 3), name="series"),
        "age": keras.Input((1,), name="age"),
    }
    parts = [
        layers.GlobalAveragePooling2D()(inputs["picture"]),
        layers.GlobalAveragePooling1D()(inputs["series"]),
        inputs["age"],
    ]
    outputs = layers.Dense(4, activation="softmax")(layers.Concatenate()(parts))
    proto, weights = converted(
        keras.Model(inputs, outputs),
        outputs=["members", "class", "disagreement", "top_k", "probabilities"],
        top_k=3,
    )

    def shapes(values):
        return {
            value.name: [
                size.dim_param or size.dim_value
                for size in value.type.tensor_type.shape.dim
            ]
            for value in values
        }

    assert shapes(proto.graph.input) == {
        "age": ["batch", 1],
        "picture": ["batch", "picture_1", "picture_2", 2],
        "series": ["batch", "series_1", 3],
    }
    assert shapes(proto.graph.output) == {
        "probabilities": ["batch", 4],
        "class": ["batch"],
        "top_k_classes": ["batch", 3],
        "top_k_probabilities": ["batch", 3],
        "members": ["batch", 2, 4],
        "disagreement": ["batch"],
    }
    assert not proto.graph.value_info

    data = {
        "picture": RNG.normal(size=(3, 5, 6, 2)).astype("float32"),
        "series": RNG.normal(size=(3, 7, 3)).astype("float32"),
        "age": RNG.normal(size=(3, 1)).astype("float32"),
    }
    features = np.concatenate(
        [
            data["picture"].mean(axis=(1, 2)),
            data["series"].mean(axis=1),
            data["age"],
        ],
        axis=1,
    )
    expected = voted([softmax(features @ w + b) for w, b in weights])
    assert_close(run(proto, **data), expected)


# --- Constants that layers hold ---


def test_constants_of_normalization_are_no_inputs():
    """tf2onnx makes required inputs of them."""
    model = keras.Sequential(
        [
            keras.Input((3,), name="values"),
            layers.Normalization(mean=[1.0, -2.0, 3.0], variance=[4, 9, 0.25]),
            layers.Dense(3, activation="softmax"),
        ]
    )
    proto, weights = converted(model)
    assert input_names(proto) == ["values"]
    x = RNG.normal(size=(5, 3)).astype("float32")
    normal = (x - [1, -2, 3]) / [2, 3, 0.5]
    expected = voted([softmax(normal @ w + b) for w, b in weights])
    assert_close(run(proto, values=x), expected)


@keras.saving.register_keras_serializable("test_conversion")
class ScaleOneByOne(layers.Layer):
    """Reads a constant in the body of a loop and nowhere else."""

    def build(self, shape):
        with tf.init_scope():  # a real tensor, not one of a graph
            self.scale = tf.constant([3.0, -1.0, 0.5, 2.0])

    def call(self, x):
        return tf.map_fn(lambda row: tf.tanh(row * self.scale), x)

    def compute_output_shape(self, shape):
        return shape


def test_constants_that_only_a_loop_reads_are_kept():
    model = keras.Sequential(
        [
            keras.Input((4,), name="values"),
            ScaleOneByOne(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    proto, weights = converted(model)
    assert input_names(proto) == ["values"]
    assert "Loop" in operations(proto.graph)
    x = RNG.normal(size=(5, 4)).astype("float32")
    scaled = np.tanh(x * [3.0, -1.0, 0.5, 2.0])
    expected = voted([softmax(scaled @ w + b) for w, b in weights])
    assert_close(run(proto, values=x), expected)


# --- What tf2onnx lacks ---


def test_gelu_is_exact():
    model = keras.Sequential(
        [
            keras.Input((4,), name="values"),
            layers.Dense(6, activation="gelu"),
            layers.Dense(3, activation="softmax"),
        ]
    )
    proto, weights = converted(model)
    found = operations(proto.graph)
    assert "Erf" in found and "Erfc" not in found
    x = RNG.normal(0, 3, (9, 4)).astype("float32")
    erf = np.vectorize(math.erf)

    def member(w, b, w_out, b_out):
        hidden = x @ w + b
        hidden = hidden / 2 * (1 + erf(hidden / math.sqrt(2)))
        return softmax(hidden @ w_out + b_out)

    assert_close(run(proto, values=x), voted([member(*w) for w in weights]))


@keras.saving.register_keras_serializable("test_conversion")
class ErrorFunction(layers.Layer):
    def call(self, x):
        return tf.math.erfc(x)

    def compute_output_shape(self, shape):
        return shape


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_erfc_keeps_its_precision(dtype):
    """ONNX Runtime has no Erf of doubles; ONNX' own evaluator has."""
    model = keras.Sequential(
        [
            keras.Input((3,), name="values"),
            ErrorFunction(dtype=dtype),
            layers.Dense(3, activation="softmax"),
        ]
    )
    proto, weights = converted(model)
    x = RNG.normal(size=(5, 3)).astype("float32")
    evaluator = onnx.reference.ReferenceEvaluator(proto)
    (found,) = evaluator.run(["probabilities"], {"values": x})
    erfc = np.vectorize(math.erfc)
    expected = voted([softmax(erfc(x) @ w + b) for w, b in weights])
    assert_close(found, expected)
    # The one of `1 - erf` has the type of the layer.
    (node,) = [node for node in proto.graph.node if node.op_type == "Erf"]
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in onnx.shape_inference.infer_shapes(proto).graph.value_info
    }
    assert types[node.output[0]] == {"float32": 1, "float64": 11}[dtype]


def grouped_convolution(x, kernel, groups):
    """`valid` padding, by the definition: each group has its channels."""
    height, width = x.shape[1] - 2, x.shape[2] - 2
    filters = kernel.shape[-1]
    outputs = np.zeros((len(x), height, width, filters))
    for f in range(filters):
        group = f // (filters // groups)
        channels = np.arange(kernel.shape[2]) + group * kernel.shape[2]
        for i in range(height):
            for j in range(width):
                patch = x[:, i : i + 3, j : j + 3, channels]
                outputs[:, i, j, f] = (patch * kernel[..., f]).sum((1, 2, 3))
    return outputs


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("kind", ["grouped", "depthwise", "separable"])
def test_grouped_convolutions_are_convolutions(kind, is_large, monkeypatch):
    """Keras compiles the first in a function of its own."""
    if is_large:
        monkeypatch.setattr(onnx_conversion, "_LARGE_MODEL", 0)
        monkeypatch.setattr(onnx_conversion, "_LARGE_WEIGHT", 100)
    layer = {
        "grouped": lambda: layers.Conv2D(6, 3, groups=2, use_bias=False),
        "depthwise": lambda: layers.DepthwiseConv2D(3, use_bias=False),
        "separable": lambda: layers.SeparableConv2D(6, 3, use_bias=False),
    }[kind]()
    model = keras.Sequential(
        [
            keras.Input((5, 6, 4), name="image"),
            layer,
            layers.GlobalMaxPooling2D(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    proto, weights = converted(model)
    assert "Conv" in operations(proto.graph)
    groups = {
        attribute.i
        for node in proto.graph.node
        if node.op_type == "Conv"
        for attribute in node.attribute
        if attribute.name == "group"
    }
    assert max(groups) == {"grouped": 2}.get(kind, 4)
    # Kernels are in the order of ONNX, and there once.
    kinds = [node.op_type for node in proto.graph.node]
    assert kinds.count("Transpose") == 1  # of the images
    assert "Reshape" not in kinds
    names = {tensor.name for tensor in proto.graph.initializer}
    assert names <= {name for node in proto.graph.node for name in node.input}
    x = RNG.normal(size=(5, 5, 6, 4)).astype("float32")

    def member(kernel, *others):
        if kind == "grouped":
            y = grouped_convolution(x, kernel, 2)
        else:
            y = grouped_convolution(x, kernel.transpose(0, 1, 3, 2), 4)
        if kind == "separable":
            y = y @ others[0][0, 0]
        return softmax(y.max(axis=(1, 2)) @ others[-2] + others[-1])

    assert_close(run(proto, image=x), voted([member(*w) for w in weights]))


# --- Ops without a counterpart ---


@keras.saving.register_keras_serializable("test_conversion")
class LogGamma(layers.Layer):
    def call(self, x):
        return tf.math.lgamma(tf.abs(x) + 1)

    def compute_output_shape(self, shape):
        return shape


@keras.saving.register_keras_serializable("test_conversion")
class Fourier(LogGamma):
    def call(self, x):
        return tf.math.real(tf.signal.fft(tf.cast(x, tf.complex64)))


@keras.saving.register_keras_serializable("test_conversion")
class InALoop(LogGamma):
    def call(self, x):
        return tf.map_fn(super().call, x)


def behind_weights():
    return sequential(layers.Dense(4), LogGamma(name="odd"))


def in_front():
    """In all members alike: computed once, as a layer of none of them."""
    inner = [keras.Input((4,)), Fourier(name="odd")]
    return sequential(keras.Sequential(inner, name="inner"), layers.Dense(4))


def in_a_loop():
    return sequential(layers.Dense(4), InALoop(name="odd"))


def with_a_tokenizer():
    model = text_model()
    model.layers[0].name = "odd"
    return model


@pytest.mark.parametrize(
    ("build", "operation", "layer"),
    [
        (behind_weights, "Lgamma", "odd"),
        (in_front, "FFT", "inner_odd"),
        (in_a_loop, "Lgamma", "odd"),
        (with_a_tokenizer, "StaticRegexReplace", "odd"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_an_unknown_op_is_named_with_its_layer(build, operation, layer):
    message = (
        rf"tf2onnx cannot convert .*\b{operation} \(in the layer '{layer}'\)"
        r".* export a SavedModel\. Nothing was written\."
    )
    with pytest.raises(ValueError, match=message) as error:
        converted(build())
    # Once for each op, however many members and nodes there are.
    assert str(error.value).count(operation + " (") == 1
    assert "member_" not in str(error.value)
    assert "shared_" not in str(error.value)


def test_an_unknown_op_of_preprocess_is_named_with_its_layer():
    with pytest.raises(ValueError, match="layer 'shared_front'"):
        converted(dense_model(), preprocess=LogGamma(name="shared_front"))


# --- Large models: weights that take no part in the conversion ---


@pytest.fixture
def all_models_are_large(monkeypatch):
    monkeypatch.setattr(onnx_conversion, "_LARGE_MODEL", 0)
    monkeypatch.setattr(onnx_conversion, "_LARGE_WEIGHT", 100)


def mixed_layers():
    """All that keeps weights in its own way: constants, loops, statistics."""
    normalization = layers.Normalization(name="normal")
    normalization.adapt(RNG.normal(size=(20, 30)))
    return keras.Sequential(
        [
            keras.Input((12, 30), name="values"),
            normalization,
            layers.Conv1D(8, 3, groups=2),
            layers.BatchNormalization(),
            layers.GRU(9),
            layers.Dense(7, activation="gelu"),
            layers.Dense(3, activation="softmax"),
        ]
    )


@pytest.mark.large
def test_large_weights_take_another_way_to_the_same_model(
    all_models_are_large, monkeypatch
):
    model = mixed_layers()
    x = RNG.normal(size=(4, 12, 30)).astype("float32")
    proto, weights = converted(model)
    assert input_names(proto) == ["values"]
    large = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in proto.graph.initializer
        if tensor.name.startswith("weight_")
    }
    expected = [w for member in weights for w in member if w.nbytes >= 100]
    # A mean and a variance are in the layer, and its weights are not read.
    expected = [w for w in expected if w.shape != (30,)]
    assert len(expected) >= 8
    found = sorted((a.shape, a.tobytes()) for a in large.values())
    assert found == sorted((a.shape, a.tobytes()) for a in expected)

    monkeypatch.setattr(onnx_conversion, "_LARGE_MODEL", 2**30)
    plain, _ = converted(model)
    assert not any(
        t.name.startswith("weight_") for t in plain.graph.initializer
    )
    np.testing.assert_allclose(
        run(proto, values=x), run(plain, values=x), rtol=0, atol=1e-6
    )


def test_the_limit_is_that_of_all_weights_together(monkeypatch):
    # Two members of 4 * 8 + 8 + 8 * 3 + 3 = 67 numbers.
    monkeypatch.setattr(onnx_conversion, "_LARGE_WEIGHT", 1)
    for limit, is_large in ((2 * 67 * 4, True), (2 * 67 * 4 + 1, False)):
        monkeypatch.setattr(onnx_conversion, "_LARGE_MODEL", limit)
        proto, _ = converted(dense_model())
        names = [tensor.name for tensor in proto.graph.initializer]
        assert ("weight_0" in names) == is_large


def test_an_input_may_be_called_like_a_weight(all_models_are_large):
    model = keras.Sequential(
        [
            keras.Input((4,), name="weight_0"),
            layers.Dense(30),
            layers.Dense(3, activation="softmax"),
        ]
    )
    proto, _ = converted(model)
    assert input_names(proto) == ["weight_0"]


# --- What was set before is set afterwards ---

VARIABLE = "TF2ONNX_CATCH_ERRORS"


@pytest.fixture
def settings_put_back():
    yield
    tf.config.run_functions_eagerly(False)
    logging.disable(logging.NOTSET)


@pytest.fixture
def spy(monkeypatch):
    """Makes tf2onnx fail in its first attempts, and sees what it is told."""
    import tf2onnx.convert

    convert = tf2onnx.convert.from_function

    def from_function(*arguments, **options):
        warnings.warn("what converters say", UserWarning, stacklevel=1)
        logging.getLogger("tf2onnx").critical("and log")
        from_function.seen.append(os.environ.get(VARIABLE))
        if len(from_function.seen) <= from_function.num_failures:
            raise from_function.error("the converter failed")
        return convert(*arguments, **options)

    from_function.seen, from_function.num_failures = [], 0
    from_function.error = IndexError
    monkeypatch.setattr(tf2onnx.convert, "from_function", from_function)
    return from_function


@pytest.mark.parametrize("num_failures", [0, 1, 2])
@pytest.mark.parametrize(
    ("variable", "is_eager", "level"),
    [(None, False, logging.NOTSET), ("TRUE", True, logging.INFO)],
)
def test_settings_of_the_process_are_kept(
    num_failures,
    variable,
    is_eager,
    level,
    spy,
    caplog,
    monkeypatch,
    settings_put_back,
):
    spy.num_failures = num_failures
    monkeypatch.delenv(VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)
    graph = serving_graph(memory_ensemble(dense_model(), VOTES))
    logging.disable(level)
    tf.config.run_functions_eagerly(is_eager)
    environment, filters = dict(os.environ), list(warnings.filters)
    if num_failures == 2:
        with pytest.raises(IndexError, match="the converter failed"):
            onnx_conversion.to_onnx(graph)
    else:
        onnx.checker.check_model(
            onnx_conversion.to_onnx(graph), full_check=True
        )
    # Fast, and if that fails once more without optimisers that fail.
    assert spy.seen == ["FALSE", variable][: num_failures + 1]
    assert caplog.messages == []
    assert dict(os.environ) == environment
    assert tf.config.functions_run_eagerly() == is_eager
    assert logging.root.manager.disable == level
    assert warnings.filters == filters


def test_an_interrupt_is_no_reason_to_try_again(spy):
    spy.num_failures, spy.error = 1, KeyboardInterrupt
    graph = serving_graph(memory_ensemble(dense_model(), VOTES))
    with pytest.raises(KeyboardInterrupt, match="the converter failed"):
        onnx_conversion.to_onnx(graph)
    assert spy.seen == ["FALSE"]
    assert VARIABLE not in os.environ


def test_a_number_added_to_a_convolution(spy):
    """One without a dimension makes an optimiser of tf2onnx fail."""
    inputs = keras.Input((5, 6, 4), name="image")
    hidden = layers.Conv2D(6, 3, use_bias=False)(inputs) + 0.25
    hidden = layers.Conv2D(5, 1, use_bias=False)(hidden)
    pooled = layers.GlobalMaxPooling2D()(hidden)
    outputs = layers.Dense(3, activation="softmax")(pooled)
    proto, weights = converted(keras.Model(inputs, outputs))
    assert len(spy.seen) == 1
    kinds = [node.op_type for node in proto.graph.node]
    assert kinds.count("Transpose") == 1  # of the images, once
    x = RNG.normal(size=(5, 5, 6, 4)).astype("float32")

    def member(kernel, mix, w, b):
        y = (grouped_convolution(x, kernel, 1) + 0.25) @ mix[0, 0]
        return softmax(y.max(axis=(1, 2)) @ w + b)

    assert_close(run(proto, image=x), voted([member(*w) for w in weights]))
