"""Tests of an ensemble as one function with named inputs and outputs.

Most members are tables: an embedding of sample numbers, whose rows are the
probabilities that the member gives, as written here.
"""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from export_helpers import ALL, serving_graph, tables
from helpers import blobs, dense_model, memory_ensemble, text_model

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.export.graph import by_name, trace
from cbnn_keras.version import __version__

layers = keras.layers
X = blobs(12)[0]


def outputs_of(graph, *arrays):
    # Eagerly: tracing takes longer, and the tests of the formats do that.
    outputs = graph.function().python_function(*map(tf.constant, arrays))
    return {name: tensor.numpy() for name, tensor in outputs.items()}


def answers(ensemble, **options):
    """All outputs for all samples of an ensemble of tables."""
    options = {"outputs": ALL, **options}
    graph = serving_graph(ensemble, **options)
    num_samples = graph.model.weights[0].shape[0]
    samples = np.arange(num_samples, dtype="int32")
    found = outputs_of(graph, samples)
    assert list(found) == graph.options.output_names
    # Every artefact is compared with this, so it must say the same.
    expected = graph.reference({"sample": samples})
    for name, array in found.items():
        if array.dtype != object:
            np.testing.assert_allclose(array, expected[name], atol=1e-6)
    return found


def assert_answers(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(
            found[name], values, rtol=0, atol=1e-6, err_msg=name
        )


# --- Outputs ---

MEMBERS = [
    [[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]],
    [[0.2, 0.7, 0.1], [0.3, 0.3, 0.4], [0.1, 0.2, 0.7]],
    [[0.5, 0.4, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]],
]
VOTES = [1.0, 2.0, 5.0]  # of 8: 0.125, 0.25, 0.625
SOFT = {
    # Sample 0, class 0: 0.125 * 0.6 + 0.25 * 0.2 + 0.625 * 0.5 = 0.4375, ...
    "probabilities": [
        [0.4375, 0.4625, 0.1],
        [0.1625, 0.6375, 0.2],
        [0.225, 0.25, 0.525],
    ],
    "class": [1, 1, 2],
    "top_k_classes": [[1, 0, 2], [1, 2, 0], [2, 1, 0]],
    "top_k_probabilities": [
        [0.4625, 0.4375, 0.1],
        [0.6375, 0.2, 0.1625],
        [0.525, 0.25, 0.225],
    ],
    "members": np.transpose(MEMBERS, (1, 0, 2)),
    # The first and the third say 0 of sample 0, the second 2 of sample 1.
    "disagreement": [0.125 + 0.625, 0.25, 0.0],
}


def test_outputs_of_members_that_are_known():
    found = answers(tables(MEMBERS, VOTES))
    assert_answers(found, SOFT)
    assert {name: str(array.dtype) for name, array in found.items()} == {
        "probabilities": "float32",
        "class": "int64",
        "top_k_classes": "int64",
        "top_k_probabilities": "float32",
        "members": "float32",
        "disagreement": "float32",
    }


BINARY = [[[0.9], [0.4], [0.5], [0.1]], [[0.2], [0.6], [0.5], [0.3]]]


def test_outputs_of_one_sigmoid():
    members = np.array(BINARY)
    logits = np.log(members / (1 - members))
    ensemble = tables(logits, [3.0, 1.0], is_binary=True, from_logits=True)
    expected = {
        # 0.75 * 0.9 + 0.25 * 0.2, ...; one half is not more than one half.
        "probabilities": [[0.725], [0.45], [0.5], [0.15]],
        "class": [1, 0, 0, 0],
        "top_k_classes": [[1, 0], [0, 1], [0, 1], [0, 1]],
        "top_k_probabilities": [
            [0.725, 0.275],
            [0.55, 0.45],
            [0.5, 0.5],
            [0.85, 0.15],
        ],
        "members": np.transpose(BINARY, (1, 0, 2)),
        "disagreement": [0.25, 0.25, 0, 0],
    }
    assert_answers(answers(ensemble), expected)


# Division by 1/4, 1/2, 1/4 is multiplication by 1, 1/2, 1, but for a factor
# that goes with the division by the sum.
PRIORS = [0.25, 0.5, 0.25]
THRESHOLDED = {
    # Sample 0: 0.4375, 0.4625 / 2, 0.1 of 0.76875, ...
    "probabilities": np.array(
        [[0.4375, 0.23125, 0.1], [0.1625, 0.31875, 0.2], [0.225, 0.125, 0.525]]
    )
    / [[0.76875], [0.68125], [0.875]],
    "class": [0, 1, 2],
    "top_k_classes": [[0, 1], [1, 2], [2, 0]],
    "top_k_probabilities": np.array(
        [[0.4375, 0.23125], [0.31875, 0.2], [0.525, 0.225]]
    )
    / [[0.76875], [0.68125], [0.875]],
    "members": SOFT["members"],
    # The second says 1 of sample 0 (0.2, 0.35, 0.1). Of sample 1 the first
    # (0.2, 0.25, 0.3) and the second (0.3, 0.15, 0.4) say 2 now.
    "disagreement": [0.25, 0.125 + 0.25, 0.0],
}


def test_outputs_follow_the_priors():
    ensemble = tables(MEMBERS, VOTES)
    for priors in (PRIORS, np.array([10, 20, 10])):
        found = answers(ensemble, priors=priors, top_k=2)
        assert_answers(found, THRESHOLDED)
        assert found["probabilities"].dtype == np.float32
    alone = answers(ensemble.take([10]), priors=PRIORS)
    # 0.6, 0.3 / 2, 0.1 of 0.85
    np.testing.assert_allclose(
        alone["probabilities"][0], np.array([0.6, 0.15, 0.1]) / 0.85, atol=1e-6
    )
    assert not alone["disagreement"].any()


def test_priors_of_one_sigmoid():
    ensemble = tables(BINARY, [3.0, 1.0], is_binary=True)
    # p / (1/4) to (1 - p) / (3/4): 3 p / (1 + 2 p)
    second = np.array([2.175 / 2.45, 1.35 / 1.9, 1.5 / 2, 0.45 / 1.3])
    expected = {
        "probabilities": second[:, None],
        "class": [1, 1, 1, 0],
        "top_k_classes": [[1], [1], [1], [0]],
        "top_k_probabilities": [*second[:3, None], [1 - second[3]]],
        "members": np.transpose(BINARY, (1, 0, 2)),
        # More than 1/4 is for class 1: all but 0.2 of sample 0 and 0.1 of 3.
        "disagreement": [0.25, 0, 0, 0.25],
    }
    found = answers(ensemble, priors=[0.75, 0.25], top_k=1)
    assert_answers(found, expected)


def test_ties_go_to_the_lower_class():
    # Of sample 0 both say the same; of sample 1 one says 2, the other 1.
    members = [[[0.5, 0.5, 0], [0.25, 0, 0.75]], [[0.5, 0.5, 0], [0, 0.75, 0]]]
    found = answers(tables(members, [2.0, 2.0]), voting="hard")
    assert found["probabilities"].tolist() == [[1, 0, 0], [0, 0.5, 0.5]]
    assert found["class"].tolist() == [0, 1]
    assert found["top_k_classes"].tolist() == [[0, 1, 2], [1, 2, 0]]
    assert found["disagreement"].tolist() == [0, 0.5]
    found = answers(tables(members, [2.0, 2.0]))
    assert found["class"].tolist() == [0, 1]  # 0.375 twice
    assert found["top_k_classes"].tolist() == [[0, 1, 2], [1, 2, 0]]


def test_top_k_is_at_most_the_number_of_classes():
    ensemble = tables(MEMBERS, VOTES)
    for given, used in ((1, 1), (2, 2), (3, 3), (4, 3), (1000, 3)):
        graph = serving_graph(ensemble, outputs=["top_k"], top_k=given)
        found = outputs_of(graph, np.arange(3, dtype="int32"))
        assert list(found) == ["top_k_classes", "top_k_probabilities"]
        for name in found:
            np.testing.assert_allclose(
                found[name], np.array(SOFT[name])[:, :used], atol=1e-6
            )


def test_top_k_is_five_by_default():
    members = np.resize([0.0, 0.01, 0.05], (1, 1, 51))  # many equal ones
    found = answers(tables(members, [1.0]), outputs=["top_k"])
    assert found["top_k_classes"].tolist() == [[2, 5, 8, 11, 14]]


def test_class_names_take_the_place_of_numbers():
    names = ["a cat", "größer", "猫"]
    graph = serving_graph(
        tables(MEMBERS, VOTES), outputs=ALL, class_names=names, top_k=2
    )
    found = outputs_of(graph, np.arange(3, dtype="int32"))
    texts = [name.encode() for name in names]
    assert found["class"].tolist() == [texts[i] for i in (1, 1, 2)]
    assert found["top_k_classes"].tolist() == [
        [texts[i] for i in row] for row in ((1, 0), (1, 2), (2, 1))
    ]
    np.testing.assert_allclose(
        found["probabilities"], SOFT["probabilities"], atol=1e-6
    )
    assert graph.metadata()["labels"] == names


@pytest.mark.parametrize(
    ("outputs", "names"),
    [
        ("class", ["class"]),
        (["disagreement", "probabilities"], ["probabilities", "disagreement"]),
        (
            reversed(ALL),
            [
                "probabilities",
                "class",
                "top_k_classes",
                "top_k_probabilities",
                "members",
                "disagreement",
            ],
        ),
    ],
)
def test_outputs_come_in_one_order_however_they_are_given(outputs, names):
    graph = serving_graph(tables(MEMBERS, VOTES), outputs=outputs)
    assert graph.options.output_names == names
    found = outputs_of(graph, np.arange(3, dtype="int32"))
    assert list(found) == names
    others = graph.function(["members", "class"]).python_function(tf.range(3))
    assert set(others) == {"members", "class"}


# --- Inputs ---


def softmax_model(inputs):
    """Of inputs in any structure, all of which matter."""
    flat = [
        layers.Flatten()(keras.ops.cast(tensor, "float32"))
        for tensor in keras.tree.flatten(inputs)
    ]
    joined = layers.Concatenate()(flat) if len(flat) > 1 else flat[0]
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(joined))


def unnamed(*shape):
    return keras.Input(shape)


def named(name, *shape, **options):
    return keras.Input(shape, name=name, **options)


# What Keras says when a model is made with other names than its keys.
other_keys = pytest.mark.filterwarnings("ignore:When providing `inputs` as a d")


@other_keys
@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: unnamed(4), ["input"]),
        (lambda: named("image", 4), ["image"]),
        (lambda: [named("left", 4), unnamed(2)], ["left", "input"]),
        (
            lambda: [unnamed(4), named("right", 2), unnamed(3)],
            ["input_0", "right", "input_1"],
        ),
        # Keys are what clients know, and are taken in Keras' order.
        (lambda: {"b": named("first", 4), "a": named("second", 2)}, ["a", "b"]),
        (lambda: {"age": unnamed(1)}, ["age"]),
        (
            lambda: [{"x": named("u", 2)}, [named("v", 1), named("w", 3)]],
            ["u", "v", "w"],
        ),
        # What looks made up but is not stays what it is, and so does what is
        # called like a layer of the merged model.
        (lambda: named("keras_tensor_of_mine", 4), ["keras_tensor_of_mine"]),
        (lambda: named("vote_0", 4), ["vote_0"]),
    ],
)
def test_inputs_have_the_names_of_the_user(make, names):
    graph = serving_graph(memory_ensemble(softmax_model(make()), [1.0, 2.0]))
    assert list(graph.input_specs) == names
    tensors = keras.tree.flatten(graph.model.input)
    for name, tensor in zip(names, tensors, strict=True):
        spec = graph.input_specs[name]
        assert (spec.name, tuple(spec.shape)) == (name, tensor.shape)
        assert spec.dtype == tf.float32
    assert list(graph.samples(5)) == names


@pytest.mark.parametrize("name", ["probabilities", "class", "top_k_classes"])
def test_one_name_for_an_input_and_an_output_is_refused(name):
    model = softmax_model(named(name, 4))
    ensemble = memory_ensemble(model, [1.0])
    with pytest.raises(
        ValueError,
        match=rf"^{name} would be the name of both an input and an output\. "
        r"Give the input another one: inputs=keras\.Input\(\.\.\., "
        r'name="another"\)\.$',
    ):
        serving_graph(ensemble, outputs=ALL)
    graph = serving_graph(ensemble, outputs=ALL, inputs=named("another", 4))
    assert list(graph.input_specs) == ["another"]


def test_an_input_called_input_beside_one_without_a_name():
    model = softmax_model([named("input", 4), unnamed(2)])
    specs = serving_graph(memory_ensemble(model, [1.0])).input_specs
    assert [tuple(spec.shape) for spec in specs.values()] == [
        (None, 4),
        (None, 2),
    ]


# --- preprocess and inputs ---


def image_ensemble():
    """Takes (2, 2) images of floats around zero."""
    model = keras.Sequential(
        [
            keras.Input((2, 2), name="image"),
            layers.Flatten(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    return memory_ensemble(model, [1.0, 2.0])


PIXELS = np.random.default_rng(3).integers(0, 256, (6, 2, 2)).astype("uint8")


def scaled():
    return PIXELS.astype("float32") / 100 - 1


def scaling(**options):
    return layers.Rescaling(1 / 100, offset=-1, **options)


def sequential_scaling():
    return keras.Sequential(
        [keras.Input((2, 2), dtype="uint8", name="bytes"), scaling()]
    )


def functional_scaling():
    inputs = keras.Input((2, 2), dtype="uint8", name="raw")
    return keras.Model(inputs, scaling()(inputs))


def flat_scaling():
    """From another shape."""
    inputs = keras.Input((4,), dtype="uint8", name="flat")
    return keras.Model(inputs, layers.Reshape((2, 2))(scaling()(inputs)))


@pytest.mark.parametrize(
    ("make", "shape", "name", "dtype"),
    [
        # A layer alone does not say what it takes: what the model takes.
        (scaling, (2, 2), "image", tf.float32),
        (sequential_scaling, (2, 2), "bytes", tf.uint8),
        (functional_scaling, (2, 2), "raw", tf.uint8),
        (flat_scaling, (4,), "flat", tf.uint8),
    ],
)
def test_preprocess_is_put_in_front(make, shape, name, dtype):
    ensemble = image_ensemble()
    expected = ensemble.predict(scaled(), verbose=0)
    graph = serving_graph(ensemble, preprocess=make())
    [(found, spec)] = graph.input_specs.items()
    assert (found, spec.dtype) == (name, dtype)
    assert tuple(spec.shape) == (None, *shape)
    arrays = PIXELS.reshape(-1, *shape).astype(dtype.as_numpy_dtype)
    outputs = outputs_of(graph, arrays)
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-6)
    reference = graph.reference({name: arrays})
    np.testing.assert_allclose(reference["probabilities"], expected, atol=1e-6)
    assert graph.metadata()["has_preprocess"] is True


class WithoutTraining(keras.layers.Layer):
    """Its `call` has no argument `training`."""

    def call(self, x):
        return 2 * x


class OnlyInference(keras.layers.Layer):
    """Does something else while a model is trained."""

    def call(self, x, training=None):
        return x * 0 if training else 2 * x


@pytest.mark.parametrize(
    "make",
    [
        WithoutTraining,
        lambda: keras.Sequential([OnlyInference(), keras.layers.Dropout(0.9)]),
    ],
)
def test_preprocess_is_called_as_for_prediction(make):
    ensemble = memory_ensemble(dense_model(), [1.0, 2.0])
    graph = serving_graph(ensemble, preprocess=make())
    expected = ensemble.predict(2 * X, verbose=0)
    found = outputs_of(graph, X)["probabilities"]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(
        graph.reference({"input": X})["probabilities"], expected, atol=1e-6
    )


@pytest.mark.parametrize("structure", [list, dict])
def test_preprocess_of_a_model_with_several_inputs(structure):
    # One input from the client, two for the model.
    parts = {"left": named("left", 2), "right": named("right", 2)}
    if structure is list:
        parts = list(parts.values())
    ensemble = memory_ensemble(softmax_model(parts), [1.0, 2.0])
    whole = keras.Input((4,), name="whole")
    halves = [whole[:, :2] * 3, whole[:, 2:] + 1]
    given = [3 * X[:, :2], X[:, 2:] + 1]
    if structure is dict:
        halves = dict(zip(("left", "right"), halves, strict=True))
        given = dict(zip(("left", "right"), given, strict=True))
    graph = serving_graph(ensemble, preprocess=keras.Model(whole, halves))
    assert list(graph.input_specs) == ["whole"]
    expected = ensemble.predict(given, verbose=0)
    found = outputs_of(graph, X)["probabilities"]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(
        graph.reference({"whole": X})["probabilities"], expected, atol=1e-6
    )


def wrong_shape():
    inputs = keras.Input((7,))
    return keras.Model(inputs, layers.Reshape((7, 1))(inputs))


def two_outputs():
    inputs = keras.Input((2, 2))
    return keras.Model(inputs, [inputs * 1, inputs * 2])


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (lambda: {"preprocess": wrong_shape()}, "(None, 7, 1)"),
        (lambda: {"preprocess": two_outputs()}, "(None, 2, 2), (None, 2, 2)"),
        (lambda: {"inputs": keras.Input((2, 3))}, "(None, 2, 3)"),
    ],
)
def test_shapes_that_the_model_cannot_take_are_refused(options, given):
    with pytest.raises(
        ValueError,
        match=r"^The model takes inputs of shape \[\(None, 2, 2\)\], "
        rf"but `preprocess` or `inputs` give it \[{re.escape(given)}\]\.$",
    ):
        serving_graph(image_ensemble(), **options())


def test_open_dimensions_take_what_is_given():
    inputs = keras.Input((None, 2), name="sequence")
    pooled = layers.GlobalAveragePooling1D()(inputs)
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(pooled))
    ensemble = memory_ensemble(model, [1.0, 2.0])
    assert serving_graph(ensemble).input_specs["sequence"].shape[1] is None
    graph = serving_graph(ensemble, inputs=keras.Input((5, 2), name="five"))
    assert graph.input_specs["five"].shape.as_list() == [None, 5, 2]


# --- sample_data ---


def test_samples_are_the_first_of_the_users_data():
    graph = serving_graph(
        memory_ensemble(dense_model(), [1.0]), sample_data=X.astype("float64")
    )
    found = graph.samples(5)
    assert list(found) == ["input"]
    assert found["input"].dtype == np.float32
    np.testing.assert_array_equal(found["input"], X[:5])
    assert len(graph.samples(1000)["input"]) == len(X)


def two_inputs(structure):
    inputs = [named("upper", 4), named("lower", 2)]
    if structure is dict:
        inputs = {"b": named("b", 4), "a": named("a", 2)}
    return softmax_model(structure(inputs))


@pytest.fixture(scope="module")
def graphs():
    """Of models that differ in what they take; none is changed."""
    keras.utils.set_random_seed(0)
    models = {
        "one": dense_model(),
        "text": text_model(),
        **{kind: two_inputs(kind) for kind in (list, tuple, dict)},
    }
    return {
        name: serving_graph(memory_ensemble(model, [1.0, 2.0]))
        for name, model in models.items()
    }


UPPER, LOWER = X, -X[:, :2]


@pytest.mark.parametrize(
    ("structure", "data", "expected"),
    [
        (list, (UPPER, LOWER), {"upper": UPPER, "lower": LOWER}),
        (tuple, [UPPER, LOWER], {"upper": UPPER, "lower": LOWER}),
        # By name, whatever the structure and the order.
        (
            list,
            {"lower": LOWER, "upper": UPPER},
            {"upper": UPPER, "lower": LOWER},
        ),
        (dict, {"b": UPPER, "a": LOWER}, {"a": LOWER, "b": UPPER}),
        (dict, [LOWER, UPPER], {"a": LOWER, "b": UPPER}),
    ],
)
def test_data_in_the_structure_of_the_inputs(graphs, structure, data, expected):
    found = by_name(graphs[structure].input_specs, data)
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("data", [X.tolist(), {"input": X}, tf.constant(X)])
def test_data_of_a_single_input(graphs, data):
    found = by_name(graphs["one"].input_specs, data)["input"]
    assert (found.dtype, found.shape) == (np.float32, X.shape)
    np.testing.assert_array_equal(found, X)


@pytest.mark.parametrize(
    "texts",
    [
        ["red blue", "grün"],
        np.array(["red blue", "grün"]),
        tf.constant(["red blue", "grün"]),
    ],
)
def test_texts_as_data(graphs, texts):
    found = by_name(graphs["text"].input_specs, texts)["input"]
    assert (found.dtype, found.shape) == (object, (2,))
    assert [tf.compat.as_str(text) for text in found] == ["red blue", "grün"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            [UPPER],
            r"^The data have 1 arrays, but the graph has 2 inputs "
            r"\(upper, lower\)\.$",
        ),
        ([UPPER, LOWER, LOWER], "^The data have 3 arrays, but .* 2 inputs"),
        ({"upper": UPPER}, "^The data have 1 arrays"),
        (UPPER, "^The data have 1 arrays"),
        (
            [LOWER, UPPER],
            r"^The data for the input 'upper' have the shape \(12, 2\), but "
            r"the graph takes \(None, 4\)\.$",
        ),
        ([UPPER, LOWER[0]], r"'lower' have the shape \(2,\), .* \(None, 2\)"),
        (
            [UPPER, LOWER[:3]],
            r"^The data must have the same number of samples, at least one, "
            r"for every input\.$",
        ),
        ([UPPER[:0], LOWER[:0]], "^The data must have .* at least one"),
    ],
)
def test_data_that_do_not_fit_are_refused(graphs, data, message):
    with pytest.raises(ValueError, match=message):
        by_name(graphs[list].input_specs, data)


# --- Precision ---


def test_mixed_precision_is_computed_in_float32():
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = dense_model()
    ensemble = memory_ensemble(model, [1.0, 3.0])
    keras.config.set_dtype_policy("float32")
    graph = serving_graph(ensemble, outputs=["probabilities", "members"])
    members = []
    for member in ensemble.member_models():
        w, b, v, c = (np.float64(a) for a in member.get_weights())
        scores = np.exp(np.maximum(X @ w + b, 0) @ v + c)
        members.append(scores / scores.sum(axis=1, keepdims=True))
    found = outputs_of(graph, X)
    assert {array.dtype for array in found.values()} == {np.dtype("float32")}
    # Half precision is off by 1e-3.
    np.testing.assert_allclose(
        found["members"], np.stack(members, axis=1), rtol=0, atol=1e-6
    )
    expected = 0.25 * members[0] + 0.75 * members[1]
    np.testing.assert_allclose(
        found["probabilities"], expected, rtol=0, atol=1e-6
    )
    np.testing.assert_allclose(
        graph.reference({"input": X})["probabilities"], expected, atol=1e-6
    )
    # The user's ensemble goes on as it was.
    assert np.abs(ensemble.predict(X, verbose=0) - expected).max() > 1e-5


# --- Names of layers, metadata, reference ---


def test_nodes_belong_to_layers_of_the_user():
    inputs = keras.Input((4,), name="row")
    block = keras.Sequential(
        [keras.Input((4,)), layers.Dense(4, name="inner")], name="block"
    )
    x = layers.Dense(4, name="hidden", activation="tanh")(block(inputs))
    x = layers.Dense(3, name="shared_head", activation="softmax")(x)
    ensemble = memory_ensemble(keras.Model(inputs, x), [1.0, 2.0])
    graph = serving_graph(
        ensemble, preprocess=layers.Rescaling(2.0, name="front")
    )
    traced = graph.function().get_concrete_function(*graph.input_specs.values())
    owners = {
        (node.op, graph.layer_of(node.name))
        for node in traced.graph.as_graph_def().node
        if node.op in ("MatMul", "Tanh", "Softmax")
    }
    assert owners == {
        ("MatMul", "block_inner"),
        ("MatMul", "hidden"),
        ("MatMul", "shared_head"),
        ("Tanh", "hidden"),
        ("Softmax", "shared_head"),
    }
    assert graph.layer_of("checkpoint_ensemble_1/front_1/mul") == "front"
    assert graph.layer_of("a/node/of/none") == "a/node/of/none"


def test_nodes_belong_to_layers_that_keras_numbered():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(4, activation="tanh"),
            layers.Dense(4, activation="relu"),
            layers.Dense(3, activation="softmax"),
        ]
    )
    graph = serving_graph(memory_ensemble(model, [1.0, 2.0]))
    traced = graph.function().get_concrete_function(*graph.input_specs.values())
    owners = {
        (node.op, graph.layer_of(node.name))
        for node in traced.graph.as_graph_def().node
        if node.op in ("Tanh", "Relu", "Softmax")
    }
    assert owners == {
        ("Tanh", "dense"),
        ("Relu", "dense_1"),
        ("Softmax", "dense_2"),
    }


def test_layers_that_members_share_have_the_users_name_too():
    model = dense_model()
    ensemble = memory_ensemble(model, [1.0])
    ensemble = CheckpointEnsemble(ensemble.run, model, [1, 1])
    graph = serving_graph(ensemble)
    names = [operation.name for operation in graph.model.operations]
    assert "shared_dense" in names
    assert graph.layer_of("x/shared_dense_2/MatMul") == "dense"


def test_name_of_a_preprocess_layer_is_not_cut():
    graph = serving_graph(
        tables(MEMBERS, VOTES),
        preprocess=layers.Identity(name="shared_lookup", dtype="int32"),
    )
    assert graph.layer_of("x/shared_lookup_1/Cast") == "shared_lookup"


def test_metadata():
    graph = serving_graph(
        tables(MEMBERS, VOTES),
        outputs=["disagreement", "top_k"],
        top_k=50,
        voting="hard",
    )
    assert graph.metadata() == {
        "cbnn_keras_version": __version__,
        "members": [10, 20, 30],
        "votes": [1.0, 2.0, 5.0],
        "voting": "hard",
        "priors": None,
        "num_classes": 3,
        "precision": "float32",
        "labels": None,
        "outputs": ["top_k", "disagreement"],
        "top_k": 3,
        "has_preprocess": False,
    }
    assert graph.metadata("int8")["precision"] == "int8"


def test_reference_knows_nothing_of_the_merged_model():
    ensemble = memory_ensemble(dense_model(), [1.0, 2.0])
    expected = ensemble.predict(X, verbose=0)
    members = list(ensemble.member_probabilities(X, verbose=0))
    graph = serving_graph(ensemble)
    for weight in graph.model.weights:
        weight.assign(keras.ops.zeros_like(weight))
    assert np.ptp(outputs_of(graph, X)["probabilities"]) == 0
    reference = graph.reference({"input": X})
    np.testing.assert_allclose(
        reference["probabilities"], expected, rtol=0, atol=1e-7
    )
    np.testing.assert_allclose(
        reference["members"], np.stack(members, axis=1), rtol=0, atol=1e-7
    )
    np.testing.assert_array_equal(reference["class"], expected.argmax(axis=1))
    np.testing.assert_array_equal(
        reference["columns"], reference["probabilities"]
    )


@keras.saving.register_keras_serializable("test_graph")
class Compiled(keras.layers.Layer):
    """Calls a function of its own, as Keras' grouped convolutions do."""

    def call(self, x):
        return tf.function(tf.sinh)(x)


def test_a_traced_graph_calls_no_other():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            Compiled(name="compiled"),
            layers.Dense(3, activation="softmax"),
        ]
    )
    graph = serving_graph(memory_ensemble(model, [1.0, 2.0]))
    traced = trace(graph.function(), list(graph.input_specs.values()))
    definition = traced.graph.as_graph_def()
    assert not definition.library.function
    [node] = [node for node in definition.node if node.op == "Sinh"]
    assert graph.layer_of(node.name) == "compiled"
    assert not tf.config.functions_run_eagerly()


@pytest.mark.parametrize("before", [False, True])
def test_tracing_leaves_tensorflow_as_it_was(before):
    def fails(x):
        raise ZeroDivisionError

    tf.config.run_functions_eagerly(before)
    try:
        with pytest.raises(ZeroDivisionError):
            trace(tf.function(fails, autograph=False), [tf.TensorSpec([None])])
        assert tf.config.functions_run_eagerly() is before
    finally:
        tf.config.run_functions_eagerly(False)


@pytest.mark.parametrize("name", ["vote_0", "average", "member_0_dense"])
def test_a_layer_in_front_may_be_called_like_one_of_the_merged_model(name):
    ensemble = memory_ensemble(dense_model(), [1.0, 2.0])
    graph = serving_graph(
        ensemble,
        preprocess=layers.Rescaling(2.0, name=name),
        priors=[0.5, 0.3, 0.2],
    )
    np.testing.assert_allclose(
        outputs_of(graph, X)["probabilities"],
        ensemble.predict(2 * X, priors=[0.5, 0.3, 0.2], verbose=0),
        atol=1e-6,
    )
