"""Tests of members merged into one ordinary Keras model."""

import dataclasses
import inspect
import io
import re
import subprocess
import sys
import warnings
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    Undescribed,
    blobs,
    dense_model,
    header,
    memory_ensemble,
    round_at,
    text_model,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.ensemble import merging
from cbnn_keras.models import copying, keras_internals
from cbnn_keras.models.classifier import Classifier
from cbnn_keras.runs.run import MemoryRun

X, _ = blobs(40)
TEXTS = np.array(["blue red", "pink", "green blue red", "red"])


def two_inputs(structure):
    inputs = [keras.Input((2,), name=name) for name in ("left", "right")]
    joined = keras.ops.concatenate(inputs, axis=1)
    outputs = keras.layers.Dense(3, activation="softmax")(joined)
    if structure is dict:
        inputs = {tensor.name: tensor for tensor in inputs}
    return keras.Model(inputs, outputs)


def deferred_model():
    """Learns the shape of its input when it is called."""
    model = keras.Sequential(
        [
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model(X[:2])
    return model


def mixed_model():
    keras.config.set_dtype_policy("mixed_bfloat16")
    return dense_model()


def nested_model():
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(3, activation="softmax")(dense_model()(inputs))
    return keras.Model(inputs, outputs)


def last_layer(units, activation=None):
    layer = keras.layers.Dense(units, activation=activation)
    return keras.Sequential([keras.Input((4,)), layer])


SOFTMAX = Classifier(3, is_binary=False, from_logits=False)
BINARY = Classifier(2, is_binary=True, from_logits=False)
CASES = {
    "sequential": (dense_model, X, SOFTMAX),
    "deferred": (deferred_model, X, SOFTMAX),
    "nested": (nested_model, X, SOFTMAX),
    "list": (lambda: two_inputs(list), [X[:, :2], X[:, 2:]], SOFTMAX),
    "dict": (
        lambda: two_inputs(dict),
        {"right": X[:, 2:], "left": X[:, :2]},
        SOFTMAX,
    ),
    "text": (text_model, TEXTS, SOFTMAX),
    "binary": (lambda: last_layer(1, "sigmoid"), X, BINARY),
    "logits": (lambda: last_layer(3), X, Classifier(3, False, True)),
    "binary logits": (lambda: last_layer(1), X, Classifier(2, True, True)),
    "mixed precision": (mixed_model, X, SOFTMAX),
}


def make(case, votes=(1.0, 2.5, 0.7)):
    build, x, classifier = CASES[case]
    if case == "text":
        x = tf.constant(x)
    options = dataclasses.asdict(classifier)
    del options["num_classes"]
    return memory_ensemble(build(), votes, **options), x


def weighted_layers(model):
    return [layer.name for layer in model.layers if layer.count_params()]


def compare(found, expected):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-6
    assert len(np.unique(expected, axis=0)) > 1


# --- The same predictions ---


HARD = ["sequential", "text", "binary", "binary logits", "mixed precision"]


@pytest.mark.parametrize(
    ("case", "voting"),
    [(case, "soft") for case in CASES] + [(case, "hard") for case in HARD],
)
def test_merged_model_predicts_as_the_ensemble(case, voting):
    ensemble, x = make(case)
    merged = ensemble.as_model(voting=voting)
    expected = ensemble.predict(x, voting=voting, verbose=0)
    # Half precision is rounded elsewhere in a graph than without one.
    is_half = case == "mixed precision"
    found = merged.predict(x, verbose=0) if is_half else merged(x)
    compare(np.asarray(found), expected)
    assert merged.output.dtype == "float32"
    if voting == "hard":  # shares of 1, 2.5 and 0.7 in 4.2
        shares = {0, 10, 25, 7, 35, 17, 32, 42}
        assert set(np.round(42 * expected.ravel()).astype(int)) <= shares


def test_probabilities_are_averaged_and_not_logits():
    """Two members, two classes: sigmoid(0) and sigmoid(log 9)."""
    members = [last_layer(1), last_layer(1)]
    for member, bias in zip(members, (0.0, np.log(9)), strict=True):
        member.set_weights([np.zeros((4, 1)), np.array([bias])])
    classifier = Classifier(2, is_binary=True, from_logits=True)
    merged = merging.merge(members, np.array([3.0, 1.0]), classifier)
    # (3 * 1/2 + 1 * 9/10) / 4 = 0.6
    np.testing.assert_allclose(merged(X[:1]), [[0.6]], rtol=1e-6)


# --- What it is made of ---


@pytest.mark.parametrize(
    ("case", "names"),
    [
        ("sequential", ["dense", "dense_1"]),
        ("dict", ["dense"]),
        # With the name of the part: another may have layers of these names.
        ("nested", ["sequential_dense_1", "sequential_dense_2", "dense"]),
    ],
)
def test_names_are_unique_and_the_output_is_called_probabilities(case, names):
    ensemble, _ = make(case)
    merged = ensemble.as_model(voting="hard")
    operations = [operation.name for operation in merged.operations]
    assert len(set(operations)) == len(operations)
    assert merged.output_names == ["probabilities"]
    assert merged.name == "checkpoint_ensemble"
    assert sorted(weighted_layers(merged)) == sorted(
        f"member_{number}_{name}" for name in names for number in range(3)
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("member_1_last", ["member_0_last", "member_1_last_again"]),
        ("shared_last", ["member_0_last", "member_1_last"]),
        ("vote_0", ["member_0_last", "member_1_last"]),
    ],
)
def test_an_input_keeps_its_name(name, expected):
    """Those who call the model as a server know it by that name."""
    inputs = keras.Input((4,), name=name)
    outputs = layers.Dense(3, activation="softmax", name="last")(inputs)
    merged = check_merged(keras.Model(inputs, outputs), X, num=2)
    assert merged.input.name == name
    assert weighted_layers(merged) == expected


def test_an_input_is_not_called_as_the_output():
    inputs = keras.Input((4,), name="probabilities")
    model = keras.Model(inputs, last(inputs))
    with pytest.raises(
        ValueError,
        match="^An input of the model is called 'probabilities', which is the "
        r"name of the output. Give it another name: inputs=keras.Input\(..., "
        r'name="another"\).$',
    ):
        merging.merge(changed(model, 2), VOTES[:2], SOFTMAX)
    members = changed(model, 2)
    expected = mean_of(members, VOTES[:2], X)
    other = keras.Input((4,), name="another")
    merged = merging.merge(members, VOTES[:2], SOFTMAX, inputs=other)
    compare(np.asarray(merged(X)), expected)
    assert merged.input.name == "another"


def test_merged_model_has_copies_of_its_own():
    ensemble, x = make("sequential")
    expected = ensemble.predict(x, verbose=0)
    name = ensemble.model.name
    merged = ensemble.as_model()
    merged.set_weights([np.zeros_like(w) for w in merged.get_weights()])
    np.testing.assert_array_equal(ensemble.predict(x, verbose=0), expected)
    assert ensemble.model.name == name


# --- What members have in common ---

VOTES = np.array([1.0, 2.5, 0.7])
SERIES = np.random.default_rng(2).normal(size=(5, 6, 4)).astype("float32")
TOKENS = np.array(
    [[1, 2, 3, 0, 0], [4, 5, 6, 1, 2], [1, 0, 0, 0, 0], [2, 6, 0, 0, 0]],
    dtype="int32",
)
IMAGES = np.random.default_rng(3).integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)


def changed(model, num, frozen=()):
    """Copies with weights of their own in all but the frozen layers."""
    members = copying.copies(model, num)
    generator = np.random.default_rng(4)
    for member in members:
        kept = {
            id(weight)
            for layer in keras_internals.layers_within(member)
            if layer.name in frozen
            for weight in layer.weights
        }
        for weight in member.weights:
            if id(weight) not in kept:
                # Variances stay positive.
                noise = np.abs(generator.normal(0, 0.3, weight.shape))
                weight.assign(keras.ops.convert_to_numpy(weight) + noise)
    return members


def mean_of(members, votes, x):
    """The vote-weighted mean of one member after the other."""
    if isinstance(x, np.ndarray) and x.dtype.kind == "U":
        x = tf.constant(x)
    parts = [
        np.asarray(member(x, training=False)).astype("float64")
        for member in members
    ]
    return np.average(parts, axis=0, weights=votes)


def check_members(members, x):
    """Merges them, which takes them apart, and compares predictions."""
    votes = VOTES[: len(members)]
    expected = mean_of(members, votes, x)
    merged = merging.merge(members, votes, SOFTMAX)
    if isinstance(x, np.ndarray) and x.dtype.kind == "U":
        x = tf.constant(x)
    compare(np.asarray(merged(x, training=False)), expected)
    return merged


def check_merged(model, x, *, frozen=(), num=3):
    return check_members(changed(model, num, frozen), x)


def sizes(merged):
    """The number of parameters by the owner that the names tell."""
    found = {}
    for layer in merged.layers:
        if layer.count_params():
            owner = re.match("shared|member_[0-9]", layer.name)[0]
            found[owner] = found.get(owner, 0) + layer.count_params()
    return found


def last(x):
    return layers.Dense(3, activation="softmax", name="last")(x)


def chain():
    """4 * 5 + 5 and 4 * 5 numbers, then 5 * 3 + 3."""
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(5, activation="tanh", name="first"),
            layers.BatchNormalization(name="norm"),
            layers.Dropout(0.5),
            layers.Dense(3, activation="softmax", name="last"),
        ]
    )


def residual():
    inputs = keras.Input((4,))
    x = layers.Dense(4, name="first")(inputs)
    x = layers.Add()([x, inputs])
    side = layers.Dense(2, name="side")(inputs)
    return keras.Model(inputs, last(layers.Concatenate()([side, x])))


@keras.saving.register_keras_serializable("test_merging")
class Named(keras.Model):
    """A class of its own that changes nothing."""


@keras.saving.register_keras_serializable("test_merging")
class Doubled(keras.Model):
    """A graph, and something that is not in the graph."""

    def call(self, inputs, training=None, mask=None):
        return 2 * super().call(inputs, training=training, mask=mask)


def backbone(make=keras.Model):
    """25 numbers and 20."""
    chain = [
        layers.Dense(5, activation="tanh"),
        layers.BatchNormalization(),
        layers.Dropout(0.5),
    ]
    if make == "deferred":
        return keras.Sequential(chain, name="backbone")
    if issubclass(make, keras.Sequential):
        return make([keras.Input((4,)), *chain], name="backbone")
    inputs = x = keras.Input((4,))
    for layer in chain:
        x = layer(x)
    return make(inputs, x, name="backbone")


def transfer(make=keras.Model, training=False):
    """The idiom of transfer learning."""
    inputs = keras.Input((4,))
    x = backbone(make)(inputs, training=training)
    return keras.Model(inputs, last(layers.Dropout(0.5)(x)))


def siamese():
    inputs = keras.Input((4,))
    twin = layers.Dense(3, activation="tanh", name="first")
    halves = [twin(inputs[:, :2]), twin(inputs[:, 2:])]
    return keras.Model(inputs, last(layers.Concatenate()(halves)))


def backbone_twice():
    inputs, part = keras.Input((4,)), backbone()
    return keras.Model(
        inputs, last(layers.Concatenate()([part(inputs), part(-inputs)]))
    )


def several_outputs(structure):
    """One of which is the input as it is."""
    inputs = keras.Input((4,))
    outputs = [layers.Dense(2)(inputs), inputs, layers.Dense(3)(inputs)]
    if structure is dict:
        outputs = dict(zip("zxy", outputs, strict=True))
    part = keras.Model(inputs, outputs, name="backbone")
    found = part(inputs)
    if structure is dict:
        found = [found[key] for key in "zxy"]
    return keras.Model(inputs, last(layers.Concatenate()(found)))


def states():
    inputs = keras.Input((6, 4))
    x, *state = layers.LSTM(
        3, return_sequences=True, return_state=True, name="first"
    )(inputs)
    x = layers.LSTM(3)(x, initial_state=state)
    return keras.Model(inputs, last(x))


def attention():
    inputs = keras.Input((6, 4))
    x = layers.MultiHeadAttention(2, 3, dropout=0.1, name="first")(
        inputs, inputs
    )
    return keras.Model(inputs, last(layers.GlobalAveragePooling1D()(x)))


def operations():
    inputs = keras.Input((4,))
    x = keras.ops.relu(layers.Dense(4, name="first")(inputs)) * 2 + inputs
    total = keras.ops.sum(x, axis=-1, keepdims=True)
    return keras.Model(inputs, last(keras.ops.concatenate([x, total], -1)))


def several_inputs(structure):
    """Given in an order that is not that of the alphabet."""
    right, left = (keras.Input((2,), name=name) for name in ("right", "left"))
    x = layers.Dense(4, name="first")(layers.Concatenate()([right, left]))
    inputs = {"right": right, "left": left}
    if structure is not dict:
        inputs = structure(inputs.values())
    return keras.Model(inputs, last(x))


def part_of_several_inputs(declared, given, *, frozen_only=True):
    """A part that knows its inputs in one structure and gets another."""
    names = ("right", "left") if declared is list else ("left", "right")
    tensors = [keras.Input((2,), name=name) for name in names]
    x = layers.Dense(5, name="first")(layers.Concatenate()(tensors))
    if not frozen_only:
        x = layers.Dense(4)(layers.Dropout(0.5)(x))
    if declared is dict:
        tensors = dict(zip(names, tensors, strict=True))
    part = keras.Model(tensors, x, name="backbone")
    inputs = keras.Input((4,))
    halves = [inputs[:, :2], inputs[:, 2:]]
    if given is dict:
        halves = dict(zip(names, halves, strict=True))
    return keras.Model(inputs, last(part(given(halves))))


def squeezed():
    """A part for (n, 4) that is given (n, 4, 1), which Keras puts right."""
    inputs = keras.Input((4,))
    x = backbone()(keras.ops.expand_dims(inputs, axis=-1))
    return keras.Model(inputs, last(x))


def frozen_text_model():
    model = text_model()
    model.layers[1].name, model.layers[-1].name = "first", "last"
    return model


def normalization():
    norm = layers.Normalization(name="norm")
    norm.adapt(X * 3 + 1)
    return keras.Sequential(
        [keras.Input((4,)), norm, layers.Dense(4, name="first")]
        + [layers.Dense(3, activation="softmax")]
    )


def masked(recurrent, *between):
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(7, 4, mask_zero=True, name="first")(inputs)
    for layer in between:
        x = layer(x)
    return keras.Model(inputs, last(recurrent(x)))


def with_part(part):
    inputs = keras.Input((4,))
    part.name = "first"
    return keras.Model(inputs, last(part(inputs)))


def bytes_for_a_part():
    inputs = keras.Input((4, 4, 3))
    x = layers.Flatten()(keras.ops.square(inputs))
    part = keras.Model(inputs, layers.Dense(5, name="first")(x / 1e5))
    inputs = keras.Input((4, 4, 3), dtype="uint8")
    return keras.Model(inputs, last(part(inputs)))


def augmented_bytes():
    inputs = keras.Input((4, 4, 3), dtype="uint8")
    x = layers.RandomRotation(0.1)(layers.RandomFlip()(inputs))
    x = layers.Flatten()(layers.Rescaling(1 / 255)(x))
    return keras.Model(inputs, last(layers.Dense(5, name="first")(x)))


# The model, data for it, and its frozen layers.
SHARED = {
    "sequential": (chain, X, ["first", "norm"]),
    "functional": (residual, X, ["first", "side"]),
    "nested functional": (transfer, X, ["backbone"]),
    "nested deferred": (lambda: transfer("deferred"), X, ["backbone"]),
    "nested class": (lambda: transfer(Named), X, ["backbone"]),
    "nested class with a call": (lambda: transfer(Doubled), X, ["backbone"]),
    # `predict` says training=False, and that counts.
    "training=True": (lambda: transfer(training=True), X, ["backbone"]),
    "layer used twice": (siamese, X, ["first"]),
    "part used twice": (backbone_twice, X, ["backbone"]),
    "list of outputs": (lambda: several_outputs(list), X, ["backbone"]),
    "dict of outputs": (lambda: several_outputs(dict), X, ["backbone"]),
    "layer with several outputs": (states, SERIES, ["first"]),
    "attention": (attention, SERIES, ["first"]),
    "keras.ops": (operations, X, ["first"]),
    "tuple of inputs": (
        lambda: several_inputs(tuple),
        (X[:, :2], X[:, 2:]),
        ["first"],
    ),
    "dict of inputs": (
        lambda: several_inputs(dict),
        {"left": X[:, 2:], "right": X[:, :2]},
        ["first"],
    ),
    **{
        f"{declared.__name__} given as {given.__name__}": (
            lambda d=declared, g=given: part_of_several_inputs(d, g),
            X,
            ["first"],
        )
        for declared in (list, dict)
        for given in (list, tuple, dict)
    },
    "other rank": (squeezed, X, ["backbone"]),
    "text": (frozen_text_model, TEXTS, ["first"]),
    "normalization": (normalization, X, ["norm", "first"]),
    "mask through dropout": (
        lambda: masked(layers.LSTM(3), layers.Dropout(0.5)),
        TOKENS,
        ["first"],
    ),
    "mask of a frozen layer": (
        lambda: masked(layers.GRU(3, name="second"), layers.Dropout(0.5)),
        TOKENS,
        ["first", "second"],
    ),
    "mask of a part": (
        lambda: masked(
            keras.Sequential([keras.Input((5, 4)), layers.GRU(3)]),
            layers.SpatialDropout1D(0.5),
        ),
        TOKENS,
        ["first"],
    ),
    # Squares of numbers above 15 are too large for a byte.
    "bytes for a part": (bytes_for_a_part, IMAGES, ["first"]),
    "augmented bytes": (augmented_bytes, IMAGES, ["first"]),
    "model of the user": (lambda: with_part(Registered(5)), X, ["first"]),
}


@pytest.mark.filterwarnings(
    # Keras' own, of models that are right.
    "ignore:The structure of `inputs`:UserWarning",
    "ignore:Layer .* was passed an input with a mask:UserWarning",
)
@pytest.mark.parametrize("case", SHARED)
def test_what_members_have_in_common_is_held_once(case):
    build, x, frozen = SHARED[case]
    model = build()
    parts = [
        layer
        for layer in keras_internals.layers_within(model)
        if layer.name in frozen
    ]
    num_shared = sum(part.count_params() for part in parts)
    num_own = model.count_params() - num_shared
    merged = check_merged(model, x, frozen=frozen)
    expected = {f"member_{number}": num_own for number in range(3)}
    assert num_shared and num_own
    assert sizes(merged) == {"shared": num_shared, **expected}
    names = [operation.name for operation in merged.operations]
    assert len(set(names)) == len(names)
    # Nor are states of layers for training in it.
    if case in ("sequential", "nested functional", "nested deferred"):
        assert len(merged.variables) == len(merged.weights)


@pytest.mark.parametrize("number", range(8))
def test_a_layer_is_shared_only_if_all_of_its_weights_are_equal(number):
    """By the last of the numbers of one weight."""
    members = copying.copies(chain(), 2)
    weight = members[1].weights[number]
    values = keras.ops.convert_to_numpy(weight).copy()
    values.flat[-1] += 0.5
    weight.assign(values)
    # Of the weights, 0 and 1 are of the first layer, 2 to 5 of the second.
    num_shared = 0 if number < 2 else 25 if number < 6 else 45
    merged = check_members(members, X)
    assert sizes(merged).get("shared", 0) == num_shared
    assert merged.count_params() == 2 * 63 - num_shared


@pytest.mark.parametrize("voting", ["soft", "hard"])
@pytest.mark.parametrize("classifier", [SOFTMAX, Classifier(3, False, True)])
def test_members_that_are_all_equal_are_one(voting, classifier):
    model = last_layer(3, None if classifier.from_logits else "softmax")
    expected = classifier.predict(model, X)
    if voting == "hard":
        expected = np.eye(3)[expected.argmax(axis=1)]
    merged = merging.merge(
        copying.copies(model, 3), VOTES, classifier, voting=voting
    )
    assert sizes(merged) == {"shared": 15}
    compare(np.asarray(merged(X)), expected)


def test_layer_that_is_used_twice_is_shared_as_far_as_its_inputs_are():
    inputs = keras.Input((4,))
    twice = layers.Dense(4, activation="tanh", name="first")
    x = twice(layers.Dense(4, name="between")(twice(inputs)))
    merged = check_merged(keras.Model(inputs, last(x)), X, frozen=["first"])
    assert sizes(merged) == {
        "shared": 20,  # its first use
        "member_0": 20 + 15,
        "member_1": 20 + 20 + 15,
        "member_2": 20 + 20 + 15,
    }


@pytest.mark.parametrize("how", ["keyword", "second argument", "in a list"])
def test_layer_is_not_shared_if_only_its_first_input_is_the_same(how):
    inputs = keras.Input((6, 4))
    x = layers.Dense(4, name="before")(inputs)
    if how == "keyword":
        state = [x[:, 0], x[:, 1]]
        x = layers.LSTM(4, name="first")(inputs, initial_state=state)
    elif how == "second argument":
        x = layers.MultiHeadAttention(2, 3, name="first")(inputs, x)
    else:
        x = with_pair()([inputs, x])
    if len(x.shape) == 3:
        x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, last(x))
    merged = check_merged(model, SERIES, frozen=["first"])
    # Four gates of (4 + 4 + 1) * 4; as above; 8 * 4 + 4.
    size = {"keyword": 144, "second argument": 118, "in a list": 36}[how]
    assert sizes(merged) == {
        f"member_{number}": 20 + size + 15 for number in range(3)
    }


def with_pair():
    pair = [keras.Input((6, 4)), keras.Input((6, 4))]
    x = layers.Dense(4)(layers.Concatenate()(pair))
    return keras.Model(pair, x, name="first")


@pytest.mark.filterwarnings(
    "ignore:Layer .* was passed an input with a mask:UserWarning"
)
def test_mask_that_is_given_to_a_part_is_passed_on():
    inputs = keras.Input((6, 4))
    part = keras.Sequential(
        [keras.Input((6, 4)), layers.GRU(3)], name="backbone"
    )
    mask = inputs[:, :, 0] > 0
    model = keras.Model(inputs, last(part(inputs, mask=mask)))
    merged = check_merged(model, SERIES, frozen=["backbone"])
    assert sizes(merged)["shared"] == 81
    # It says something.
    other = keras.Model(inputs, model.layers[-1](part(inputs)))
    assert np.abs(np.asarray(other(SERIES) - model(SERIES))).max() > 1e-3


def test_a_number_a_sample_is_taken_as_a_column():
    """Keras takes (n,) where (n, 1) is declared."""
    model = keras.Sequential(
        [
            keras.Input((1,)),
            layers.Dense(4, name="first"),
            layers.Dense(3, activation="softmax"),
        ]
    )
    merged = check_merged(model, X[:, :1], frozen=["first"])
    compare(np.asarray(merged(X[:, 0])), np.asarray(merged(X[:, :1])))


@pytest.mark.parametrize("kind", ["class of a dropout", "RandomCrop"])
def test_what_may_do_something_is_kept(kind):
    layer = Loud(0.5) if kind == "class of a dropout" else None
    model = keras.Sequential(
        [
            keras.Input((4, 4, 3)),
            layer or layers.RandomCrop(4, 4),
            layers.Flatten(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    merged = check_merged(model, IMAGES / np.float32(255))
    kept = type(model.layers[0])
    assert [type(layer) for layer in merged.layers].count(kept) == 1


@keras.saving.register_keras_serializable("test_merging")
class Loud(layers.Dropout):
    """Is a dropout and acts at inference."""

    def call(self, inputs, training=False):
        return 2 * inputs


# --- Layers for training ---

TRAINING_ONLY = sorted(merging._TRAINING_ONLY, key=lambda kind: kind.__name__)


def training_only(kind):
    """A layer that does much if it does anything."""
    options = {
        "rate": 0.5,
        "stddev": 1.0,
        "factor": 0.5,
        "height_factor": 0.5,
        "width_factor": 0.5,
    }
    if kind.__name__ == "RandomPosterization":
        options["factor"] = 1  # bit
    arguments = inspect.signature(kind).parameters.values()
    return kind(
        **{
            argument.name: options[argument.name]
            for argument in arguments
            if argument.default is argument.empty
            and argument.kind is not argument.VAR_KEYWORD
        }
    )


def images_for(kind, images):
    """In as many dimensions as the layer takes."""
    shapes = {"SpatialDropout1D": (16, 3), "SpatialDropout3D": (2, 2, 4, 3)}
    shape = shapes.get(kind.__name__, (4, 4, 3))
    return images.reshape(-1, *shape)


def test_all_the_dropouts_and_augmentations_of_keras_are_known():
    names = {
        name
        for name in dir(layers)
        if re.match("Random|AugMix|CutMix|MixUp|RandAugment", name)
        or "Dropout" in name
        or "Noise" in name
    }
    # At inference it crops, or should.
    assert names - {kind.__name__ for kind in TRAINING_ONLY} == {"RandomCrop"}


@pytest.mark.parametrize("kind", TRAINING_ONLY)
def test_keras_does_nothing_in_a_layer_for_training(kind):
    """To numbers outside of the range of images too."""
    values = np.random.default_rng(5).normal(100, 300, IMAGES.shape)
    x = images_for(kind, values.astype("float32"))
    found = np.asarray(training_only(kind)(x, training=False))
    assert found.dtype == x.dtype and found.shape == x.shape
    assert found.tobytes() == x.tobytes()


def test_layers_for_training_leave_nothing_in_the_file(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((4, 4, 3)),
            layers.RandomFlip(),
            layers.RandAugment(),
            layers.Flatten(),
            layers.AlphaDropout(0.5),
            layers.Dense(3, activation="softmax"),
        ]
    )
    assert len(model.variables) > len(model.weights) == 2  # states of seeds
    merged = check_merged(model, IMAGES / np.float32(255))
    merged.save(tmp_path / "merged.keras")
    saved = []

    def note(name, node):
        if isinstance(node, h5py.Dataset):
            saved.append(node.shape)

    with zipfile.ZipFile(tmp_path / "merged.keras") as archive:
        config = archive.read("config.json")
        assert b"Rand" not in config and b"Dropout" not in config
        with h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
            file.visititems(note)
    assert sorted(saved) == sorted([(48, 3), (3,)] * 3)


@pytest.mark.parametrize("kind", TRAINING_ONLY)
def test_layer_for_training_is_left_out_and_the_dtype_stays(kind):
    """Most make floats of bytes."""

    def build():
        inputs = keras.Input(x.shape[1:], dtype="uint8")
        scaled = layers.Rescaling(1 / 255, name="next")(layer(inputs))
        return keras.Model(inputs, last(layers.Flatten()(scaled)))

    x, layer = images_for(kind, IMAGES), training_only(kind)
    members = [build(), build()]
    expected = members[0].get_layer("next").input.dtype
    merged = check_members(members, x)
    assert kind not in {type(layer) for layer in merged.layers}
    assert len(merged.variables) == len(merged.weights) == 2 * 2
    # Once more, as each layer knows its former inputs as well.
    again = keras.Model.from_config(merged.get_config())
    found = [o.input.dtype for o in again.layers if o.name.endswith("_next")]
    assert set(found) == {expected}
    assert merged.input.dtype == "uint8"


@pytest.mark.parametrize("how", ["keyword", "dict"])
def test_layer_for_training_that_is_called_in_another_way_is_kept(how):
    inputs = keras.Input((4, 4, 3))
    if how == "keyword":
        x = layers.Dropout(0.5, name="kept")(inputs=inputs)
    else:
        pair = {"images": inputs, "labels": inputs[:, 0, 0]}
        x = layers.RandomFlip(name="kept")(pair)["images"]
    model = keras.Model(inputs, last(layers.Flatten()(x)))
    merged = check_merged(model, IMAGES / np.float32(255))
    assert sizes(merged) == {f"member_{number}": 147 for number in range(3)}
    assert merged.get_layer("shared_kept")


def test_dropout_that_computes_in_another_dtype_leaves_a_cast_behind():
    """Squares of numbers above 256 are infinite in half precision."""
    inputs = keras.Input((4,))
    x = layers.Dense(4, dtype="mixed_float16", name="first")(inputs)
    x = keras.ops.square(layers.Dropout(0.5, dtype="float32")(x))
    model = keras.Model(inputs, last(x / 1e6))
    model.layers[1].set_weights([300 * np.eye(4), 300 * np.ones(4)])
    merged = check_merged(model, X)
    assert np.isfinite(merged(X)).all()


@pytest.mark.filterwarnings(
    "ignore:Layer .* was passed an input with a mask:UserWarning"
)
@pytest.mark.parametrize("where", ["dropout", "part"])
def test_mask_is_handed_on_by_a_cast(where):
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(7, 4, mask_zero=True, dtype="float16")(inputs)
    if where == "dropout":
        recurrent = layers.LSTM(3, dtype="mixed_bfloat16")
        x = layers.Dropout(0.5)(x)
    else:
        recurrent = keras.Sequential([keras.Input((5, 4)), layers.LSTM(3)])
    check_merged(keras.Model(inputs, last(recurrent(x))), TOKENS)


def test_inputs_given_by_name_are_matched_by_name():
    members = changed(several_inputs(list), 2)
    x = {"right": X[:, :2], "left": X[:, 2:]}
    expected = mean_of(members, VOTES[:2], x)
    inputs = {name: keras.Input((2,), name=name) for name in x}
    merged = merging.merge(members, VOTES[:2], SOFTMAX, inputs=inputs)
    compare(np.asarray(merged(x)), expected)


# --- Any architecture ---


@st.composite
def chains(draw):
    """Layers, and for each which members have it in common.

    Members with the same number in the same place have the same weights.
    """
    num_members = draw(st.integers(1, 3))
    kinds = draw(
        st.lists(
            st.sampled_from(["dense", "norm", "dropout"]),
            min_size=1,
            max_size=4,
        )
    )
    kinds.append("last")
    versions = [
        draw(st.lists(st.integers(0, 1), min_size=num_members, max_size=3))[
            :num_members
        ]
        for _ in kinds
    ]
    bounds = st.integers(0, len(kinds) - 1)
    part = sorted([draw(bounds), draw(bounds)])
    return kinds, versions, part, draw(st.booleans()), draw(st.booleans())


NUM_WEIGHTS = {"dense": 4 * 4 + 4, "norm": 4 * 4, "last": 4 * 3 + 3}


def build_chain(kinds, part, is_sequential, has_skip):
    """The layers of the part are in a model of their own."""
    make = {
        "dense": lambda name: layers.Dense(4, activation="tanh", name=name),
        "norm": lambda name: layers.BatchNormalization(name=name),
        "dropout": lambda name: layers.Dropout(0.5, name=name),
        "last": lambda name: layers.Dense(3, activation="softmax", name=name),
    }
    made = [make[kind](f"layer_{i}") for i, kind in enumerate(kinds)]

    def run(chain, x):
        for layer in chain:
            x = layer(x)
        return x

    start, stop = part
    inputs = keras.Input((4,))
    inner = [keras.Input((4,)), *made[start:stop]]
    if start == stop:
        inner = layers.Identity()
    elif is_sequential:
        inner = keras.Sequential(inner)
    else:
        inner = keras.Model(inner[0], run(inner[1:], inner[0]))
    x = run([*made[:start], inner, *made[stop:-1]], inputs)
    return keras.Model(inputs, made[-1](x + inputs if has_skip else x)), made


@settings(derandomize=True, deadline=None, max_examples=30)
@given(chains())
def test_any_chain_is_merged_with_as_few_weights_as_it_has(case):
    kinds, versions, *shape = case
    members = []
    for number in range(len(versions[0])):
        member, made = build_chain(kinds, *shape)
        for i, layer in enumerate(made):
            generator = np.random.default_rng([i, versions[i][number]])
            layer.set_weights(
                [generator.uniform(0.1, 1, w.shape) for w in layer.weights]
            )
        members.append(member)
    merged = check_members(members, X)
    # What a member shares with another is what both begin with.
    expected = {"shared": 0}
    for i, kind in enumerate(kinds):
        beginnings = [
            tuple(
                version[number]
                for version, kind in zip(
                    versions[: i + 1], kinds[: i + 1], strict=True
                )
                if kind != "dropout"
            )
            for number in range(len(members))
        ]
        is_shared = len(set(beginnings)) == 1 < len(members)
        for beginning in set(beginnings):
            first = beginnings.index(beginning)
            owner = "shared" if is_shared else f"member_{first}"
            expected[owner] = expected.get(owner, 0) + NUM_WEIGHTS.get(kind, 0)
    found = sizes(merged)
    assert found == {owner: num for owner, num in expected.items() if num}


# --- The steps of merging ---


def test_inputs_are_like_those_of_the_model():
    tensors = [
        keras.Input((2,), name="one", batch_size=7),
        keras.Input((None, 3), name="two", dtype="int32"),
        keras.Input((), name="three", dtype="uint8"),
    ]
    structure = {"pair": tensors[:2], "three": tensors[2]}
    with warnings.catch_warnings(action="ignore"):  # of the name "pair"
        model = keras.Model(structure, tensors)
    inputs = merging.inputs_like(model)
    described = keras.tree.map_structure(
        lambda tensor: f"{tensor.name} {tensor.shape} {tensor.dtype}", inputs
    )
    assert described == {
        "pair": ["one (None, 2) float32", "two (None, None, 3) int32"],
        "three": "three (None,) uint8",
    }
    assert not {id(t) for t in keras.tree.flatten(inputs)} & set(
        map(id, tensors)
    )


@pytest.mark.parametrize(
    ("votes", "voting", "expected"),
    [
        # 3/4 * 0.6 + 1/4 * 0.1 and so on
        ([3.0, 1.0], "soft", [0.475, 0.35, 0.175]),
        ([0.03, 0.01], "soft", [0.475, 0.35, 0.175]),
        ([3.0, 1.0], "hard", [0.75, 0.25, 0.0]),
        ([7.0], "soft", [0.6, 0.3, 0.1]),
        ([7.0], "hard", [1.0, 0.0, 0.0]),
    ],
)
def test_votes_are_shares_of_their_sum(votes, voting, expected):
    rows = [[0.6, 0.3, 0.1], [0.1, 0.5, 0.4]][: len(votes)]
    inputs = [keras.Input((3,)) for _ in rows]
    output = merging.combine(inputs, np.array(votes), voting=voting)
    model = keras.Model(inputs, output)
    found = model([np.array([row], dtype="float32") for row in rows])
    np.testing.assert_allclose(found, [expected], rtol=1e-6)
    assert model.output_names == ["probabilities"]
    shares = [layer.name for layer in model.layers if "vote" in layer.name]
    assert shares == [f"vote_{number}" for number in range(len(votes))]


def test_names_of_shares_are_not_those_that_are_taken():
    inputs = [keras.Input((3,), name=name) for name in ("vote_1", "other")]
    taken = {"vote_1", "vote_1_again"}
    output = merging.combine(inputs, np.array([1.0, 3.0]), taken=taken)
    names = [layer.name for layer in keras.Model(inputs, output).layers]
    assert sorted(names) == sorted(
        ["vote_1", "other", "vote_0", "vote_1_again_again", "probabilities"]
    )


@pytest.mark.parametrize(
    ("rows", "priors", "expected"),
    [
        # 0.475 / 0.5, 0.35 / 0.4, 0.175 / 0.1 is 0.95, 0.875, 1.75: of 3.575
        (
            [[0.6, 0.3, 0.1], [0.1, 0.5, 0.4]],
            [0.5, 0.4, 0.1],
            [0.95 / 3.575, 0.875 / 3.575, 1.75 / 3.575],
        ),
        ([[0.8, 0.2]], [0.8, 0.2], [0.5, 0.5]),
        # 0.7 * 3/4 + 0.1 / 4 = 0.55: 0.55 / 0.2 to 0.45 / 0.8
        ([[0.7], [0.1]], [0.8, 0.2], [2.75 / (2.75 + 0.5625)]),
        ([[0.0]], [0.8, 0.2], [0.0]),
        ([[1.0]], [0.8, 0.2], [1.0]),
    ],
)
def test_the_mean_is_divided_by_the_priors(rows, priors, expected):
    # An input may be called like a layer that is only there with priors.
    names = ["average", "other"][: len(rows)]
    inputs = [keras.Input((len(rows[0]),), name=name) for name in names]
    output = merging.combine(
        inputs,
        np.array([3.0, 1.0][: len(rows)]),
        priors=np.array(priors),
        taken=set(names),
    )
    model = keras.Model(inputs, output)
    found = model([np.array([row], dtype="float32") for row in rows])
    np.testing.assert_allclose(found, [expected], rtol=1e-6)
    assert (model.output_names, output.dtype) == (["probabilities"], "float32")


@pytest.mark.parametrize("case", ["sequential", "binary"])
def test_merged_model_with_priors_predicts_as_the_ensemble(case, tmp_path):
    ensemble, x = make(case)
    keras.config.set_dtype_policy("float32")
    priors = np.array([0.7, 0.3] if "binary" in case else [0.7, 0.2, 0.1])
    merged = ensemble.as_model(priors=priors)
    members = np.stack(list(ensemble.member_probabilities(x, verbose=0)))
    mean = np.average(members.astype("float64"), 0, ensemble.votes)
    if mean.shape[1] == 1:
        mean = np.concatenate([1 - mean, mean], axis=1)
    expected = mean / priors
    expected /= expected.sum(axis=1, keepdims=True)
    expected = expected[:, 1:] if "binary" in case else expected
    compare(np.asarray(merged(x)), expected)
    compare(ensemble.predict(x, priors=priors, verbose=0), expected)
    assert all(
        type(operation).__module__.startswith("keras.")
        for operation in merged.operations
    )
    merged.save(tmp_path / "merged.keras")
    loaded = keras.saving.load_model(tmp_path / "merged.keras")
    compare(np.asarray(loaded(x)), expected)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([0.2, 0.7, 0.1], [0, 1, 0]),
        ([0.2, 0.4, 0.4], [0, 1, 0]),  # a tie goes to the lower class
        ([0.4, 0.2, 0.4], [1, 0, 0]),
        ([0.25, 0.25, 0.25, 0.25], [1, 0, 0, 0]),
        ([0.0, 0.0, 1.0], [0, 0, 1]),
        ([0.1, 0.3, 0.3, 0.3], [0, 1, 0, 0]),
        # One column is class 1 of two: at a half, class 0 is the lower.
        ([0.5], [0]),
        ([0.5000001], [1]),
        ([0.4999999], [0]),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_hard_vote_is_for_one_class(row, expected, dtype):
    inputs = keras.Input((len(row),), dtype=dtype)
    output = merging.combine([inputs], np.ones(1), voting="hard")
    model = keras.Model(inputs, output)
    found = model(np.array([row, row[::-1]], dtype=dtype))
    np.testing.assert_array_equal(found[0], expected)
    assert np.sum(found[1]) == np.sum(expected)


# --- Elsewhere ---

CHILD = """
import sys
import keras
import numpy as np
import tensorflow as tf
for name in sys.argv[1:]:
    with np.load(name + ".npz") as file:
        x = {key: tf.constant(file[key]) for key in file}
    if "left" not in x:
        x = list(x.values())
    if len(x) == 1:
        x = x[0]
    y = keras.saving.load_model(name + ".keras").predict(x, verbose=0)
    np.save(name + ".npy", y)
assert "cbnn_keras" not in sys.modules
"""


def by_name(inputs):
    """Arrays in any structure as what `np.savez` takes."""
    if isinstance(inputs, np.ndarray):
        inputs = [inputs]
    if isinstance(inputs, list):
        return {str(i): array for i, array in enumerate(inputs)}
    return inputs


@pytest.mark.large
def test_saved_model_opens_in_a_process_without_this_package(tmp_path):
    expected = {}
    for case, voting in (
        *((case, "soft") for case in CASES),
        *(("sequential", "hard"), ("binary logits", "hard")),
    ):
        ensemble, x = make(case)
        keras.config.set_dtype_policy("float32")
        name = str(tmp_path / f"{case} {voting}")
        np.savez(name + ".npz", **by_name(CASES[case][1]))
        ensemble.as_model(voting=voting).save(name + ".keras")
        expected[name] = ensemble.predict(x, voting=voting, verbose=0)
    for case, priors in (("logits", [0.7, 0.2, 0.1]), ("binary", [0.7, 0.3])):
        ensemble, x = make(case)
        name = str(tmp_path / f"{case} with priors")
        np.savez(name + ".npz", **by_name(x))
        ensemble.as_model(priors=priors).save(name + ".keras")
        expected[name] = ensemble.predict(x, priors=priors, verbose=0)
    for case in ("nested functional", "normalization", "mask through dropout"):
        build, x, frozen = SHARED[case]
        members = changed(build(), 3, frozen)
        name = str(tmp_path / case)
        np.savez(name + ".npz", x)
        expected[name] = mean_of(members, VOTES, x).astype("float32")
        merging.merge(members, VOTES, SOFTMAX).save(name + ".keras")
    subprocess.run([sys.executable, "-c", CHILD, *expected], check=True)
    for name, probabilities in expected.items():
        compare(np.load(name + ".npy"), probabilities)


# --- Subclassed models ---


@keras.saving.register_keras_serializable("test_merging")
class Registered(keras.Model):
    def __init__(self, units, **options):
        super().__init__(**options)
        self.units = units
        self.hidden = keras.layers.Dense(units, activation="relu")
        self.last = keras.layers.Dense(3, activation="softmax")

    def call(self, x):
        return self.last(self.hidden(x))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def subclassed(model):
    """An ensemble of two members of a model that has to be called first."""
    model(X[:2])
    run = MemoryRun(header(dense_model()))
    for step in (1, 2):
        model.set_weights([w + 0.3 * step for w in model.get_weights()])
        model(X[:2])
        run.add_round(round_at(step, float(step)), np.ones(8, bool), model)
    return CheckpointEnsemble(run, model)


def test_registered_class_is_merged_with_the_inputs_that_are_given(tmp_path):
    ensemble = subclassed(Registered(5))
    with pytest.raises(
        ValueError,
        match="^Registered is subclassed, so its inputs are not known. Pass "
        r"them: inputs=keras.Input\(...\).$",
    ):
        ensemble.as_model()
    merged = ensemble.as_model(inputs=keras.Input((4,)))
    expected = ensemble.predict(X, verbose=0)
    compare(merged.predict(X, verbose=0), expected)
    merged.save(tmp_path / "merged.keras")
    loaded = keras.saving.load_model(tmp_path / "merged.keras")
    compare(loaded.predict(X, verbose=0), expected)


def test_class_without_a_description_is_not_merged():
    model = Undescribed([keras.layers.Dense(3, activation="softmax")])
    ensemble = subclassed(model)
    with pytest.raises(
        ValueError,
        match="^Keras cannot copy Undescribed. Give Undescribed a "
        "`get_config` that returns all arguments of `__init__`",
    ):
        ensemble.as_model(inputs=keras.Input((4,)))


def test_names_that_would_become_the_same_are_told_apart():
    """The layer b_c of a part a, and the layer c of a part a_b."""
    inputs = x = keras.Input((4,))
    for part, layer in (("a", "b_c"), ("a_b", "c")):
        dense = layers.Dense(4, name=layer)
        x = keras.Sequential([keras.Input((4,)), dense], name=part)(x)
    merged = check_merged(keras.Model(inputs, last(x)), X, num=1)
    assert weighted_layers(merged) == [
        *("member_0_a_b_c", "member_0_a_b_c_again", "member_0_last")
    ]
