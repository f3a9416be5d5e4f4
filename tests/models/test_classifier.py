"""Tests of what a model's outputs mean."""

import keras
import ml_dtypes
import numpy as np
import pytest
import scipy.special
from keras import layers, losses

from cbnn_keras.models.classifier import (
    Classifier,
    averages_loss,
    describe_classifier,
)

BATCH = np.zeros((2, 4), "float32")


def sequential(*ends):
    return keras.Sequential([keras.Input((4,)), *ends])


def functional(*ends):
    inputs = keras.Input((4,))
    x = layers.Dense(5, activation="relu")(inputs)
    for end in ends:
        x = end(x)
    return keras.Model(inputs, x)


def nested(*ends):
    """A Functional model in a Sequential one in a Functional one."""
    inputs = keras.Input((4,))
    return keras.Model(inputs, keras.Sequential([functional(*ends)])(inputs))


def second_output(*ends):
    """Takes the second output of a model; the first one is linear."""
    inputs = keras.Input((4,))
    x = features = layers.Dense(5)(inputs)
    for end in ends:
        x = end(x)
    both = keras.Model(inputs, [features, x])
    outer = keras.Input((4,))
    return keras.Model(outer, both(outer)[1])


class Subclassed(keras.Model):
    def __init__(self, *ends):
        super().__init__()
        self.ends = list(ends)

    def call(self, x):
        for end in self.ends:
            x = end(x)
        return x


SHAPES = (sequential, functional, nested, second_output)


def custom_loss(y_true, y_pred):
    return losses.sparse_categorical_crossentropy(y_true, y_pred)


class CustomLoss(losses.Loss):
    def call(self, y_true, y_pred):
        return custom_loss(y_true, y_pred)


def described(model, loss, **options):
    model.compile("sgd", loss)
    return describe_classifier(model, BATCH, **options)


# Logits or probabilities.


@pytest.mark.parametrize("shape", SHAPES)
def test_a_softmax_end_gives_probabilities(shape):
    for ends in (
        [layers.Dense(3, activation="softmax")],
        [layers.Dense(3), layers.Softmax()],
        [layers.Dense(3), layers.Activation("softmax")],
    ):
        found = described(shape(*ends), "sparse_categorical_crossentropy")
        assert found == Classifier(3, is_binary=False, from_logits=False)
        # The end alone says it too, where the loss does not.
        assert described(shape(*ends), custom_loss) == found


@pytest.mark.parametrize("shape", SHAPES)
def test_a_linear_end_gives_logits(shape):
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    for end in (layers.Dense(3), layers.Dense(3, activation="linear")):
        found = described(shape(end), loss)
        assert found == Classifier(3, is_binary=False, from_logits=True)
        assert described(shape(end), custom_loss) == found


@pytest.mark.parametrize(
    ("loss", "from_logits"),
    [
        ("sparse_categorical_crossentropy", False),
        ("categorical_crossentropy", False),
        ("categorical_focal_crossentropy", False),
        (losses.sparse_categorical_crossentropy, False),
        (losses.CategoricalCrossentropy(), False),
        (losses.CategoricalCrossentropy(from_logits=True), True),
        (losses.CategoricalFocalCrossentropy(from_logits=True), True),
        (["sparse_categorical_crossentropy"], False),
        ([losses.SparseCategoricalCrossentropy(from_logits=True)], True),
    ],
)
@pytest.mark.parametrize("end", ["unknown", "subclassed"])
def test_the_loss_says_it_where_the_end_does_not(loss, from_logits, end):
    # `Identity` has no activation; a subclassed model shows no last layer.
    model = (
        sequential(layers.Dense(3), layers.Identity())
        if end == "unknown"
        else Subclassed(layers.Dense(3))
    )
    found = described(model, loss)
    assert found == Classifier(3, is_binary=False, from_logits=from_logits)


@pytest.mark.parametrize(
    ("end", "loss", "from_logits"),
    [
        ("sigmoid", "binary_crossentropy", False),
        ("sigmoid", losses.BinaryCrossentropy(), False),
        ("sigmoid", custom_loss, False),
        ("sigmoid", "mse", False),
        ("sigmoid", losses.MeanSquaredError(), False),
        ("linear", losses.BinaryCrossentropy(from_logits=True), True),
        ("linear", losses.BinaryFocalCrossentropy(from_logits=True), True),
        ("linear", "hinge", True),
        ("linear", custom_loss, True),
    ],
)
def test_one_output_is_binary(end, loss, from_logits):
    model = sequential(layers.Dense(1, activation=end))
    found = described(model, loss)
    assert found == Classifier(2, is_binary=True, from_logits=from_logits)


@pytest.mark.parametrize("loss", [custom_loss, CustomLoss(), None])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Subclassed(layers.Dense(3, activation="softmax")),
        lambda: sequential(layers.Dense(3), layers.Identity()),
        lambda: sequential(layers.Dense(3, activation="tanh")),
    ],
)
def test_where_nothing_says_it_there_is_no_guess(make, loss):
    name = {custom_loss: "custom_loss", None: "NoneType"}.get(
        loss, "CustomLoss"
    )
    with pytest.raises(
        ValueError,
        match=rf"cannot tell.*its loss \('{name}'\) nor.*"
        "Pass `from_logits=True` or `from_logits=False`",
    ):
        described(make(), loss)


@pytest.mark.parametrize(
    ("activation", "loss", "by_loss"),
    [
        ("linear", "sparse_categorical_crossentropy", False),
        ("linear", losses.CategoricalCrossentropy(), False),
        (
            "softmax",
            losses.SparseCategoricalCrossentropy(from_logits=True),
            True,
        ),
        ("sigmoid", losses.BinaryCrossentropy(from_logits=True), True),
    ],
)
def test_a_contradiction_is_refused_unless_the_user_decides(
    activation, loss, by_loss
):
    model = sequential(layers.Dense(3, activation=activation))
    with pytest.raises(
        ValueError,
        match=f"from_logits={by_loss}, but the last activation is "
        f"'{activation}'.*pass `from_logits=`",
    ):
        described(model, loss)
    for decision in (True, False):
        found = described(model, loss, from_logits=decision)
        assert found.from_logits is decision


def test_the_user_decides_where_nothing_says_it():
    model = Subclassed(layers.Dense(3))
    for decision in (True, False):
        found = described(model, custom_loss, from_logits=decision)
        assert found == Classifier(3, False, decision)


# What is no classifier.


@pytest.mark.parametrize(
    "loss",
    [
        "mse",
        "mae",
        "huber",
        "log_cosh",
        "mean_squared_logarithmic_error",
        "poisson",
        losses.MeanSquaredError(),
        losses.MeanAbsoluteError(),
        losses.Huber(),
        losses.LogCosh(),
        losses.mean_squared_error,
        losses.mean_absolute_error,
        losses.huber,
        losses.log_cosh,
    ],
)
def test_regression_is_refused(loss):
    model = sequential(layers.Dense(1))
    with pytest.raises(
        ValueError,
        match="compiled with '[a-z_]+' and has one output, which is "
        "regression.*binary_crossentropy",
    ):
        described(model, loss, from_logits=False)


@pytest.mark.parametrize("num_outputs", [2, 3])
def test_several_outputs_are_refused(num_outputs):
    inputs = keras.Input((4,))
    outputs = [layers.Dense(3, "softmax")(inputs) for _ in range(num_outputs)]
    model = keras.Model(inputs, outputs)
    with pytest.raises(
        ValueError,
        match=rf"one classification output; the model has {num_outputs}.*"
        r"keras.Model\(inputs, the_one_output\)",
    ):
        described(model, ["sparse_categorical_crossentropy"] * num_outputs)


def test_an_output_with_a_name_is_refused():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, {"label": layers.Dense(3)(inputs)})
    with pytest.raises(ValueError, match="the output is a structure"):
        described(model, {"label": "sparse_categorical_crossentropy"})


@pytest.mark.parametrize(
    ("end", "shape"),
    [
        (layers.Reshape((2, 3)), r"\(2, 2, 3\)"),
        (layers.Lambda(lambda x: x[:, 0]), r"\(2,\)"),
    ],
)
def test_outputs_that_are_no_rows_are_refused(end, shape):
    model = sequential(layers.Dense(6), end)
    with pytest.raises(
        ValueError, match=rf"shape \(batch, k\); the output is {shape}"
    ):
        described(model, "sparse_categorical_crossentropy")


def test_describing_builds_the_model():
    model = keras.Sequential([layers.Dense(3, "softmax")])
    assert not model.built
    found = described(model, "sparse_categorical_crossentropy")
    assert found.num_classes == 3
    assert model.built


# Probabilities.


def probabilities_of(outputs, classifier):
    """What a model with these outputs, as they are, predicts."""
    kind = outputs.dtype.name
    inputs = keras.Input(outputs.shape[1:], dtype=kind)
    model = keras.Model(inputs, layers.Identity(dtype=kind)(inputs))
    return classifier.predict(model, keras.ops.convert_to_tensor(outputs, kind))


LOGITS = np.array([[1.0, 2, -3], [0, 0, 0], [80, -80, 79], [1e4, 0, -1e4]])


def test_logits_of_several_classes_get_their_softmax():
    found = probabilities_of(LOGITS, Classifier(3, False, True))
    assert found.dtype == np.float32
    np.testing.assert_allclose(
        found, scipy.special.softmax(LOGITS, axis=1), atol=1e-7
    )
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)


def test_a_binary_logit_gets_its_sigmoid():
    logits = np.array([[-100.0], [-2], [0], [2], [100]])
    found = probabilities_of(logits, Classifier(2, True, True))
    assert found.dtype == np.float32
    assert found.shape == (5, 1)
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-logits)), atol=1e-7)


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", ml_dtypes.bfloat16]
)
def test_probabilities_stay_as_they_are(is_binary, dtype):
    values = np.array([[0.25], [0.5], [1.0]]).astype(dtype)
    found = probabilities_of(values, Classifier(2, is_binary, False))
    assert found.dtype == np.float32
    assert found.tolist() == [[0.25], [0.5], [1.0]]


def test_half_precision_logits_get_a_float32_softmax():
    logits = np.array([[10.0, 0.0, -10.0]], "float16")
    found = probabilities_of(logits, Classifier(3, False, True))
    # exp(-20) = 2e-9 is 0 in float16.
    np.testing.assert_allclose(
        found, scipy.special.softmax(logits.astype(float), axis=1), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("sparse_categorical_crossentropy", True),
        (keras.losses.sparse_categorical_crossentropy, True),
        (keras.losses.SparseCategoricalCrossentropy(), True),
        (keras.losses.SparseCategoricalCrossentropy(reduction="sum"), False),
        (keras.losses.SparseCategoricalCrossentropy(reduction=None), False),
        (keras.losses.SparseCategoricalCrossentropy(reduction="none"), False),
        ([keras.losses.BinaryCrossentropy(reduction="sum")], False),
    ],
)
def test_whether_the_loss_is_averaged(loss, expected):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model.compile(loss=loss)
    assert averages_loss(model) == expected
