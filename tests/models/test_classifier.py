"""Tests of what a model's outputs mean and of which class wins."""

import functools

import keras
import ml_dtypes
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from keras import layers, losses

from cbnn_keras.models.classifier import (
    Classifier,
    Scorer,
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


LOGITS = np.array([[1, 2, -3], [0, 0, 0], [80, -80, 79], [1e4, 0, -1e4]])


def test_logits_of_several_classes_get_their_softmax():
    found = Classifier(3, False, True).probabilities(LOGITS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(
        found, scipy.special.softmax(LOGITS, axis=1), atol=1e-7
    )
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)


def test_a_binary_logit_gets_its_sigmoid():
    logits = np.array([[-100.0], [-2], [0], [2], [100]])
    found = Classifier(2, True, True).probabilities(logits)
    assert found.dtype == np.float32
    assert found.shape == (5, 1)
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-logits)), atol=1e-7)


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", ml_dtypes.bfloat16]
)
def test_probabilities_stay_as_they_are(is_binary, dtype):
    values = np.array([[0.25], [0.5], [1.0]]).astype(dtype)
    found = Classifier(2, is_binary, False).probabilities(values)
    assert found.dtype == np.float32
    assert found.tolist() == [[0.25], [0.5], [1.0]]


def test_half_precision_logits_get_a_float32_softmax():
    logits = np.array([[10.0, 0.0, -10.0]], "float16")
    found = Classifier(3, False, True).probabilities(logits)
    # exp(-20) = 2e-9 is 0 in float16.
    np.testing.assert_allclose(
        found, scipy.special.softmax(logits.astype(float), axis=1), rtol=1e-5
    )


# Winners.


def passing_on(num_outputs, *, dtype="float32", **compile):
    """A model whose outputs are its inputs."""
    inputs = keras.Input((num_outputs,), dtype=dtype)
    model = keras.Model(inputs, layers.Identity(dtype=dtype)(inputs))
    model.compile("sgd", "mse", **compile)
    return model


def winners_of(scores, classifier, *, batch_size=4, dtype="float32"):
    scorer = Scorer(passing_on(scores.shape[1], dtype=dtype), classifier)
    scores = scores.astype(dtype)
    return scorer.winners(
        scores[i : i + batch_size] for i in range(0, len(scores), batch_size)
    )


def strict_winner(row):
    """The class whose score is larger than every other, or -1."""
    for i, score in enumerate(row):
        if all(score > other for j, other in enumerate(row) if j != i):
            return i
    return -1


def test_winners_of_several_classes():
    # Few values, so that many rows are tied, in two and in three places.
    scores = np.random.default_rng(0).integers(0, 4, size=(100, 3)) / 4
    expected = [strict_winner(row) for row in scores]
    assert set(expected) == {-1, 0, 1, 2}
    found = winners_of(scores, Classifier(3, False, False), batch_size=7)
    assert found.tolist() == expected
    logits = winners_of(scores - 2, Classifier(3, False, True))
    assert logits.tolist() == expected


@pytest.mark.parametrize(
    ("row", "winner"),
    [
        ([0.2, 0.5, 0.3], 1),
        ([0.5, 0.5, 0.0], -1),
        ([0.0, 0.5, 0.5], -1),
        ([0.3, 0.3, 0.4], 2),
        ([0.0, 0.0, 0.0], -1),
        ([0.3, np.nextafter(np.float32(0.3), np.float32(1)), 0.2], 1),
    ],
)
def test_winner_of_a_row(row, winner):
    found = winners_of(np.array([row]), Classifier(3, False, False))
    assert found.tolist() == [winner]


def test_binary_winners():
    just_above = np.nextafter(np.float32(0.5), np.float32(1))
    just_below = np.nextafter(np.float32(0.5), np.float32(0))
    scores = np.array([0.0, 1e-30, just_below, 0.5, just_above, 1.0])
    found = winners_of(scores[:, None], Classifier(2, True, False))
    assert found.tolist() == [0, 0, 0, -1, 1, 1]
    logits = np.array([-50, -1e-30, -0.0, 0.0, 1e-30, 0.5, 50])
    found = winners_of(logits[:, None], Classifier(2, True, True))
    assert found.tolist() == [0, 0, -1, -1, 1, 1, 1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_winners_in_other_precisions(dtype):
    scores = np.array([[0.25, 0.75, 0], [0.5, 0.5, 0], [1, 0.5, 0.25]])
    found = winners_of(
        scores,
        Classifier(3, False, False),
        dtype=ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype,
    )
    assert found.tolist() == [1, -1, 0]
    binary = winners_of(
        np.array([[0.25], [0.5], [0.75]]),
        Classifier(2, True, False),
        dtype=ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype,
    )
    assert binary.tolist() == [0, -1, 1]


def test_float64_ties_are_not_made_by_rounding():
    row = np.array([[0.3, np.nextafter(0.3, 1), 0.2]])
    found = winners_of(row, Classifier(3, False, False), dtype="float64")
    assert found.tolist() == [1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("num_outputs", [1, 3])
def test_outputs_that_are_not_finite(bad, num_outputs):
    scores = np.full((9, num_outputs), 0.25)
    scores[6, -1] = bad
    classifier = Classifier(max(num_outputs, 2), num_outputs == 1, False)
    with pytest.raises(FloatingPointError, match="outputs are not finite"):
        winners_of(scores, classifier)
    finite = winners_of(scores[:6], classifier)
    assert len(finite) == 6


@pytest.mark.parametrize("structure", [dict, tuple])
def test_scoring_several_inputs(structure):
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    outputs = layers.Subtract()([a, b])
    inputs = {"a": a, "b": b} if structure is dict else [a, b]
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    first = np.array([[3, 2, 1], [3, 2, 1]], "float32")
    second = np.array([[3, 0, 0], [0, 0, 0]], "float32")
    batch = {"a": first, "b": second} if structure is dict else (first, second)
    scorer = Scorer(model, Classifier(3, False, True))
    assert scorer.winners([batch, batch]).tolist() == [1, 0, 1, 0]


def test_scoring_follows_the_weights_and_changes_nothing():
    model = sequential(
        layers.Dense(8, activation="relu"),
        layers.BatchNormalization(),
        layers.Dropout(0.5),
        layers.Dense(3, activation="softmax"),
    )
    model.compile(
        "adam", "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    x = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
    y = np.arange(20) % 3
    model.fit(x, y, verbose=0)
    scorer = Scorer(model, Classifier(3, False, False))

    def everything():
        state = model.variables + model.optimizer.variables
        state += model.metrics_variables
        return [np.array(v) for v in state]

    before = everything()
    assert any("seed_generator" in v.path for v in model.variables)
    found = scorer.winners([x[:8], x[8:16], x[16:]])
    for old, new in zip(before, everything(), strict=True):
        np.testing.assert_array_equal(old, new, strict=True)
    np.testing.assert_array_equal(
        found, model.predict(x, verbose=0).argmax(axis=1)
    )
    # The same scorer after the weights have changed.
    model.layers[-1].set_weights([np.zeros((8, 3)), np.array([0.0, 2.0, 1.0])])
    assert scorer.winners([x]).tolist() == [1] * 20


def test_scoring_is_compiled_where_the_model_is():
    model = passing_on(3, jit_compile=True)
    scorer = Scorer(model, Classifier(3, False, False))
    scores = np.array([[1, 2, 0], [1, 1, 0], [0, 0, 1]], "float32")
    assert scorer.winners([scores, scores]).tolist() == [1, -1, 2] * 2


def test_scoring_does_not_pass_through_predict_or_evaluate():
    model = passing_on(3)
    model.predict = model.evaluate = functools.partial(pytest.fail, "called")
    scorer = Scorer(model, Classifier(3, False, False))
    assert scorer.winners([np.eye(3, dtype="float32")]).tolist() == [0, 1, 2]


class ReplicaLogits(keras.layers.Layer):
    """Logits for which the number of the replica is the predicted class."""

    def call(self, x):
        context = tf.distribute.get_replica_context()  # none when it is built
        number = context.replica_id_in_sync_group if context else 0
        return tf.one_hot(tf.fill([tf.shape(x)[0]], number), 3)


def test_a_strategy_of_one_device_scores_on_that_device():
    places = []

    class Placed(keras.layers.Layer):
        def call(self, x):
            places.append(tf.identity(x).device)
            return x

    with tf.distribute.OneDeviceStrategy("CPU:1").scope():
        model = keras.Sequential([keras.Input((3,)), Placed()])
        model.compile(loss="sparse_categorical_crossentropy")
    scorer = Scorer(model, Classifier(3, is_binary=False, from_logits=True))
    places.clear()
    scorer.winners([np.eye(3, dtype="float32")])
    assert places
    assert all(place.endswith("CPU:1") for place in places)


def replicated(make):
    strategy = tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(3)], tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
        model = make()
        model.compile(loss="sparse_categorical_crossentropy")
    return Scorer(model, Classifier(3, is_binary=False, from_logits=True))


@pytest.mark.parametrize("num_batches", [1, 2, 3, 4, 5])
def test_every_replica_scores_its_batches(num_batches):
    scorer = replicated(
        lambda: keras.Sequential([keras.Input((2,)), ReplicaLogits()])
    )
    assert scorer.num_replicas == 3
    sizes = [4, 4, 4, 4, 1][:num_batches]
    winners = scorer.winners(tf.zeros((size, 2)) for size in sizes)
    expected = np.repeat([0, 1, 2, 0, 1][:num_batches], sizes)
    np.testing.assert_array_equal(winners, expected)


def test_outputs_that_are_not_finite_on_any_replica():
    scorer = replicated(
        lambda: keras.Sequential([keras.Input((3,)), keras.layers.ReLU()])
    )
    batches = [np.ones((2, 3), "float32") for _ in range(5)]
    scorer.winners(iter(batches))
    batches[4][1, 2] = np.inf
    with pytest.raises(FloatingPointError, match="not finite"):
        scorer.winners(iter(batches))


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
