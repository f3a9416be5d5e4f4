"""Tests of which class the model in training predicts."""

import functools

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from cbnn_keras import metrics
from cbnn_keras.models.classifier import Classifier
from cbnn_keras.training.scoring import Scorer


def passing_on(num_outputs, *, dtype="float32", **compile):
    """A model whose outputs are its inputs."""
    inputs = keras.Input((num_outputs,), dtype=dtype)
    model = keras.Model(inputs, layers.Identity(dtype=dtype)(inputs))
    model.compile("sgd", "mse", **compile)
    return model


def predicted_by(scores, classifier, *, batch_size=4, dtype="float32"):
    scorer = Scorer(passing_on(scores.shape[1], dtype=dtype), classifier)
    scores = scores.astype(dtype)
    return classes_by(
        scorer,
        [scores[i : i + batch_size] for i in range(0, len(scores), batch_size)],
    )


def classes_by(scorer, batches):
    """Predicted classes; what the labels are does not matter for them."""
    batches = list(batches)
    sizes = [len(tf.nest.flatten(x)[0]) for x in batches]
    return scorer.score(iter(batches), np.zeros(sum(sizes), int)).classes


def strictly_largest(row):
    """The class whose score is larger than every other, or -1."""
    for i, score in enumerate(row):
        if all(score > other for j, other in enumerate(row) if j != i):
            return i
    return -1


def test_predicted_classes_of_several_classes():
    # Few values, so that many rows are tied, in two and in three places.
    scores = np.random.default_rng(0).integers(0, 4, size=(100, 3)) / 4
    expected = [strictly_largest(row) for row in scores]
    assert set(expected) == {-1, 0, 1, 2}
    found = predicted_by(scores, Classifier(3, False, False), batch_size=7)
    assert found.tolist() == expected
    logits = predicted_by(scores - 2, Classifier(3, False, True))
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
    found = predicted_by(np.array([row]), Classifier(3, False, False))
    assert found.tolist() == [winner]


def test_binary_predicted_classes():
    just_above = np.nextafter(np.float32(0.5), np.float32(1))
    just_below = np.nextafter(np.float32(0.5), np.float32(0))
    scores = np.array([0.0, 1e-30, just_below, 0.5, just_above, 1.0])
    found = predicted_by(scores[:, None], Classifier(2, True, False))
    assert found.tolist() == [0, 0, 0, -1, 1, 1]
    logits = np.array([-50, -1e-30, -0.0, 0.0, 1e-30, 0.5, 50])
    found = predicted_by(logits[:, None], Classifier(2, True, True))
    assert found.tolist() == [0, 0, -1, -1, 1, 1, 1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_predicted_classes_in_other_precisions(dtype):
    scores = np.array([[0.25, 0.75, 0], [0.5, 0.5, 0], [1, 0.5, 0.25]])
    found = predicted_by(
        scores,
        Classifier(3, False, False),
        dtype=ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype,
    )
    assert found.tolist() == [1, -1, 0]
    binary = predicted_by(
        np.array([[0.25], [0.5], [0.75]]),
        Classifier(2, True, False),
        dtype=ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype,
    )
    assert binary.tolist() == [0, -1, 1]


def test_float64_ties_are_not_made_by_rounding():
    row = np.array([[0.3, np.nextafter(0.3, 1), 0.2]])
    found = predicted_by(row, Classifier(3, False, False), dtype="float64")
    assert found.tolist() == [1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("num_outputs", [1, 3])
def test_outputs_that_are_not_finite(bad, num_outputs):
    scores = np.full((9, num_outputs), 0.25)
    scores[6, -1] = bad
    classifier = Classifier(max(num_outputs, 2), num_outputs == 1, False)
    with pytest.raises(FloatingPointError, match="outputs are not finite"):
        predicted_by(scores, classifier)
    finite = predicted_by(scores[:6], classifier)
    assert len(finite) == 6


@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("num_outputs", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_losses_are_those_of_the_labels(from_logits, num_outputs, dtype):
    """Against the likelihood that `metrics` computes sample by sample."""
    generator = np.random.default_rng(3)
    scores = generator.normal(scale=4, size=(20, num_outputs))
    scores[1] = [30.0] + [-30.0] * (num_outputs - 1)
    if not from_logits:
        scores = 1 / (1 + np.exp(-scores))
        scores /= scores.sum(axis=1, keepdims=True) if num_outputs > 1 else 1
    scores = scores.astype(dtype)
    labels = np.arange(20) % max(num_outputs, 2)
    labels[1] = 0 if num_outputs == 1 else 1  # clipped at 1e-7
    probabilities = scores.astype("float64")
    if from_logits and num_outputs == 1:
        probabilities = 1 / (1 + np.exp(-probabilities))
    elif from_logits:
        exponentials = np.exp(probabilities)
        probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    classifier = Classifier(max(num_outputs, 2), num_outputs == 1, from_logits)
    scorer = Scorer(passing_on(num_outputs, dtype=dtype), classifier)
    found = scorer.score([scores[:8], scores[8:]], labels).losses
    expected = [
        metrics.negative_log_likelihood(row[None], label[None])
        for row, label in zip(probabilities, labels, strict=True)
    ]
    assert max(expected) > 16  # the clipped one
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


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
    assert classes_by(scorer, [batch, batch]).tolist() == [1, 0, 1, 0]


def test_scoring_follows_the_weights_and_changes_nothing():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Dense(3, activation="softmax"),
        ]
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
    found = classes_by(scorer, [x[:8], x[8:16], x[16:]])
    for old, new in zip(before, everything(), strict=True):
        np.testing.assert_array_equal(old, new, strict=True)
    np.testing.assert_array_equal(
        found, model.predict(x, verbose=0).argmax(axis=1)
    )
    # The same scorer after the weights have changed.
    model.layers[-1].set_weights([np.zeros((8, 3)), np.array([0.0, 2.0, 1.0])])
    assert classes_by(scorer, [x]).tolist() == [1] * 20


def test_scoring_is_compiled_where_the_model_is():
    model = passing_on(3, jit_compile=True)
    scorer = Scorer(model, Classifier(3, False, False))
    scores = np.array([[1, 2, 0], [1, 1, 0], [0, 0, 1]], "float32")
    assert classes_by(scorer, [scores, scores]).tolist() == [1, -1, 2] * 2


@pytest.mark.parametrize(
    ("sizes", "traced"),
    [([4, 4, 2], [None]), ([4, 4, 4], [4]), ([3], [3])],
)
def test_a_smaller_last_batch_is_no_second_trace(sizes, traced):
    found = []

    class Noting(layers.Layer):
        def call(self, x):
            found.append(x.shape[0])
            return x

    inputs = keras.Input((3,))
    model = keras.Model(inputs, Noting()(inputs))
    model.compile("sgd", "mse")
    scorer = Scorer(model, Classifier(3, False, False))
    found.clear()
    scores = np.eye(3, dtype="float32")[np.arange(sum(sizes)) % 3]
    for _ in range(2):
        batches = tf.split(scores, sizes)
        assert classes_by(scorer, batches).tolist() == scores.argmax(1).tolist()
    assert found == traced


def test_scoring_does_not_pass_through_predict_or_evaluate():
    model = passing_on(3)
    model.predict = model.evaluate = functools.partial(pytest.fail, "called")
    scorer = Scorer(model, Classifier(3, False, False))
    assert classes_by(scorer, [np.eye(3, dtype="float32")]).tolist() == [
        0,
        1,
        2,
    ]


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
    classes_by(scorer, [np.eye(3, dtype="float32")])
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
    found = classes_by(scorer, [tf.zeros((size, 2)) for size in sizes])
    expected = np.repeat([0, 1, 2, 0, 1][:num_batches], sizes)
    np.testing.assert_array_equal(found, expected)


def test_outputs_that_are_not_finite_on_any_replica():
    scorer = replicated(
        lambda: keras.Sequential([keras.Input((3,)), keras.layers.ReLU()])
    )
    batches = [np.ones((2, 3), "float32") for _ in range(5)]
    classes_by(scorer, iter(batches))
    batches[4][1, 2] = np.inf
    with pytest.raises(FloatingPointError, match="not finite"):
        classes_by(scorer, iter(batches))
