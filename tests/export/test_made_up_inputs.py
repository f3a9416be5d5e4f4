"""Tests of inputs that are made up from what a model's layers expect."""

import keras
import numpy as np
import pytest
from export_helpers import serving_graph
from helpers import memory_ensemble, text_model
from hypothesis import given, settings
from hypothesis import strategies as st

from cbnn_keras.export.made_up_inputs import plausible_inputs

layers = keras.layers
NUM = 200  # enough for every one of a few values to occur


def model_of(*parts, shape=(3,), dtype="float32"):
    """A Functional model of layers one after the other."""
    inputs = keras.Input(shape, dtype=dtype)
    x = inputs
    for part in parts:
        x = part(x)
    return keras.Model(inputs, x)


def made_up(model, num=NUM):
    """For a model with one input; the model must be able to take it."""
    [array] = plausible_inputs(model, num)
    outputs = keras.ops.convert_to_numpy(model(keras.ops.array(array)))
    assert len(outputs) == num
    assert np.isfinite(outputs).all()
    return array


def values(array):
    return set(array.ravel().tolist())


# --- By what reads them, or by dtype alone ---


def as_float(x):
    return keras.ops.cast(x, "float32")


@pytest.mark.parametrize(
    ("parts", "shape", "dtype", "expected"),
    [
        (lambda: [layers.Embedding(7, 2)], (3,), "uint8", range(7)),
        (lambda: [layers.Embedding(7, 2)], (3,), "float32", range(7)),
        # Behind layers without weights, within models and layers.
        (
            lambda: (
                [layers.Reshape((3, 1)), layers.Flatten()]
                + [layers.Dropout(0.5), layers.Embedding(5, 2)]
            ),
            *((3,), "int32", range(5)),
        ),
        (
            lambda: [
                keras.Sequential(
                    [keras.Input((3,), dtype="int32"), layers.Embedding(5, 2)]
                )
            ],
            *((3,), "int32", range(5)),
        ),
        (lambda: [Tokens()], (3,), "float32", range(5)),
        (lambda: [Classifier()], (3,), "int32", range(5)),
        (
            lambda: [layers.CategoryEncoding(6, output_mode="multi_hot")],
            *((3,), "int32", range(6)),
        ),
        (
            lambda: [
                layers.IntegerLookup(
                    vocabulary=[10, 20, 30],
                    num_oov_indices=0,
                    output_mode="multi_hot",
                )
            ],
            *((3,), "int64", [10, 20, 30]),
        ),
        (
            lambda: [
                layers.StringLookup(
                    vocabulary=["red", "blue"],
                    num_oov_indices=0,
                    output_mode="count",
                )
            ],
            *((3,), "string", ["red", "blue"]),
        ),
        (lambda: [text_model()], (), "string", ["red", "green", "blue"]),
        # By dtype alone.
        (lambda: [as_float], (30,), "uint8", range(256)),
        (lambda: [as_float], (3,), "int8", [0, 1]),
        (lambda: [as_float], (3,), "int64", [0, 1]),
        (lambda: [as_float], (3,), "bool", [False, True]),
        (
            lambda: [layers.Hashing(3), layers.Embedding(3, 2)],
            *((2,), "string", ["a", "b"]),
        ),
    ],
)
def test_every_value_is_one_that_is_expected(parts, shape, dtype, expected):
    found = made_up(model_of(*parts(), shape=shape, dtype=dtype))
    kind = np.dtype(object if dtype == "string" else dtype)
    assert (found.dtype, found.shape) == (kind, (NUM, *shape))
    assert values(found) == set(expected)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    size=st.integers(1, 70_000),
    num=st.integers(1, 40),
    dtype=st.sampled_from(["int32", "int64", "float32"]),
)
def test_every_index_is_one_of_the_embedding(size, num, dtype):
    inputs = keras.Input((2,), dtype=dtype)
    model = keras.Model(inputs, layers.Embedding(size, 1)(inputs))
    [found] = plausible_inputs(model, num)
    assert (found.shape, found.dtype) == ((num, 2), np.dtype(dtype))
    assert ((found >= 0) & (found < size)).all()
    np.testing.assert_array_equal(found, found.astype("int64"))


@pytest.mark.filterwarnings("ignore:.*does not support masking")
def test_model_within_that_is_called_with_a_mask():
    inner = keras.Sequential([keras.Input((3, 2)), layers.Rescaling(0.1)])
    found = made_up(model_of(layers.Masking(), inner, shape=(3, 2)))
    assert 5 < found.max() <= 10


@keras.saving.register_keras_serializable("test_samples")
class Tokens(keras.layers.Layer):
    """A layer of the user around an embedding."""

    def __init__(self, **options):
        super().__init__(**options)
        self.embedding = layers.Embedding(5, 2)

    def build(self, shape):
        self.embedding.build(shape)

    def call(self, x):
        return keras.ops.mean(self.embedding(x), axis=1)

    def compute_output_shape(self, shape):
        return (shape[0], 2)


@keras.saving.register_keras_serializable("test_samples")
class Classifier(keras.Model):
    """A model of the user around that."""

    def __init__(self, **options):
        super().__init__(**options)
        self.tokens = Tokens()
        self.last = layers.Dense(3, activation="softmax")

    def call(self, x):
        return self.last(self.tokens(x))


def test_normalization_takes_what_it_normalises():
    means, deviations = np.array([100.0, -3.0]), np.array([10.0, 0.5])
    layer = layers.Normalization(mean=means, variance=deviations**2)
    found = made_up(model_of(layer, shape=(2,)), 2000)
    assert found.dtype == np.float32
    # Means of 2000 have deviations 45 times smaller.
    np.testing.assert_allclose(found.mean(axis=0), means, atol=1)
    np.testing.assert_allclose(found.std(axis=0), deviations, rtol=0.1)


@pytest.mark.parametrize(
    ("scale", "offset", "low", "high"),
    [
        # To 0 ... 1, or to -1 ... 1 with an offset below 0.
        (1 / 255, 0.0, 0, 255),
        (1 / 127.5, -1.0, 0, 255),
        ([0.5, 2.0, 1.0], [0.0, 1.0, -2.0], [0, -0.5, 1], [2, 0, 3]),
    ],
)
def test_rescaling_takes_what_it_scales_to_about_one(scale, offset, low, high):
    found = made_up(model_of(layers.Rescaling(scale, offset=offset)))
    assert found.dtype == np.float32
    width = np.subtract(high, low)
    assert (found >= low).all()
    assert (found <= high).all()
    assert (found.min(axis=0) < low + 0.05 * width).all()
    assert (found.max(axis=0) > high - 0.05 * width).all()


def test_the_first_reader_on_the_way_counts():
    model = model_of(
        layers.Rescaling(1 / 10), layers.Normalization(mean=5.0, variance=1.0)
    )
    assert 9 < made_up(model).max() <= 10


def test_what_is_behind_weights_does_not_count():
    model = model_of(layers.Dense(3), layers.Rescaling(1 / 255))
    assert np.abs(made_up(model)).max() < 6


# --- Shapes, several inputs ---


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), ()),
        ((None,), (32,)),
        ((None, None, 3), (32, 32, 3)),
        ((5, None), (5, 32)),
    ],
)
def test_open_dimensions_get_a_size(shape, expected):
    inputs = keras.Input(shape)
    [found] = plausible_inputs(keras.Model(inputs, inputs * 2), 4)
    assert found.shape == (4, *expected)


def test_each_input_has_a_reader_of_its_own():
    inputs = {
        "word": keras.Input((), dtype="string", name="word"),
        "age": keras.Input((1,), name="age"),
        "item": keras.Input((), dtype="int32", name="item"),
    }
    lookup = layers.StringLookup(vocabulary=["x", "y", "z"])
    parts = [
        layers.Embedding(4, 2)(lookup(inputs["word"])),
        layers.Normalization(mean=40.0, variance=4.0)(inputs["age"]),
        layers.Embedding(9, 2)(inputs["item"]),
    ]
    model = keras.Model(inputs, keras.ops.concatenate(parts, axis=1))
    # In the order in which Keras flattens dicts.
    age, item, word = plausible_inputs(model, NUM)
    assert abs(age.mean() - 40) < 1
    assert values(item) == set(range(9))
    assert values(word) <= {"x", "y", "z"}
    model.predict(
        {
            "age": age,
            "item": item,
            "word": keras.ops.convert_to_tensor(word.astype(str)),
        },
        verbose=0,
    )


@pytest.mark.parametrize("sizes", [(3, 40), (40, 3)])
def test_columns_of_one_input_with_embeddings_of_their_own(sizes):
    inputs = keras.Input((2,), dtype="int32")
    parts = [
        layers.Embedding(size, 2)(inputs[:, column])
        for column, size in enumerate(sizes)
    ]
    x = keras.ops.concatenate(parts, axis=1)
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(x))
    graph = serving_graph(memory_ensemble(model, [1.0, 2.0]))
    [found] = graph.samples(NUM).values()
    assert (found < sizes).all()


def test_inputs_that_go_through_one_layer():
    flatten = layers.Flatten()
    inputs = [keras.Input((1,), dtype="int32") for _ in range(2)]
    parts = [
        layers.Embedding(size, 2)(flatten(tensor))
        for tensor, size in zip(inputs, (40, 3), strict=True)
    ]
    model = keras.Model(inputs, keras.ops.concatenate(parts, axis=1))
    first, second = plausible_inputs(model, NUM)
    assert set(range(3)) < values(first) <= set(range(40))
    assert values(second) == set(range(3))


def test_input_that_is_part_of_another_model_too():
    inputs = keras.Input((3,))
    keras.Model(inputs, layers.Rescaling(1 / 255)(inputs))
    layer = layers.Normalization(mean=40.0, variance=4.0)
    found = made_up(keras.Model(inputs, layer(inputs)))
    assert abs(found.mean() - 40) < 1


def test_layer_that_is_part_of_another_model_too():
    """As `preprocess` that is exported with two ensembles."""
    reshape = layers.Reshape((3,))
    model_of(reshape, layers.Embedding(40, 2), dtype="int32")
    model = model_of(reshape, layers.Embedding(3, 2), dtype="int32")
    assert values(made_up(model)) == set(range(3))


def test_inputs_of_a_model_within():
    """As `preprocess` with several inputs."""
    inner = {
        "age": keras.Input((1,), name="age"),
        "city": keras.Input((1,), dtype="string", name="city"),
    }
    lookup = layers.StringLookup(vocabulary=["x", "y"], output_mode="one_hot")
    age = layers.Normalization(mean=40.0, variance=4.0)(inner["age"])
    joined = keras.ops.concatenate([age, lookup(inner["city"])], axis=1)
    preprocess = keras.Model(inner, joined)
    inputs = {
        "age": keras.Input((1,), name="age"),
        "city": keras.Input((1,), dtype="string", name="city"),
    }
    model = keras.Model(inputs, preprocess(inputs))
    age, city = plausible_inputs(model, NUM)
    assert abs(age.mean() - 40) < 1
    assert values(city) <= {"x", "y"}


def test_the_same_every_time():
    def make():
        return model_of(layers.Embedding(50, 2), dtype="int32")

    [first], [second] = (plausible_inputs(make(), 20) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.random.seed(5)  # nobody else's generator matters
    keras.utils.set_random_seed(5)
    [third] = plausible_inputs(make(), 20)
    np.testing.assert_array_equal(first, third)
