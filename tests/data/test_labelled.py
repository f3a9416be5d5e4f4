"""Tests of labelled data in the forms that people have them in."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import blobs

from cbnn_keras.data.labelled import are_finite, as_pair, split_labels
from cbnn_keras.models.classifier import Classifier

X, Y = blobs()


def as_dataset(x, y, batch_size=7):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)


def test_pairs_and_datasets():
    assert as_pair((X, Y)) == (X, Y)
    assert as_pair([X, Y]) == (X, Y)
    dataset = as_dataset(X, Y)
    assert as_pair(dataset) == (dataset, None)


@pytest.mark.parametrize("data", [X, (X,), (X, Y, Y), {"x": X}, None])
def test_data_that_are_no_pair(data):
    with pytest.raises(
        ValueError,
        match=r"^validation_data must be `\(x, y\)` or a tf.data.Dataset of "
        rf"\(x, y\); received {type(data).__name__}",
    ):
        as_pair(data)


def test_a_dataset_without_end_is_refused():
    """It was once read for ever."""
    with pytest.raises(
        ValueError, match=r"^Mine: .*for ever.*`\.take\(validation_steps\)`"
    ):
        split_labels(
            Classifier(3, False, False), as_dataset(X, Y).repeat(), name="Mine"
        )


def test_what_is_no_number_is_found_in_floating_inputs_alone():
    wrong = X.astype("float64")
    wrong[-1, 0] = -np.inf
    texts = np.array(["nan"] * len(X))
    for x, expected in (
        (X, True),
        (wrong, False),
        ({"a": texts, "b": X}, True),
        ([texts, X, wrong], False),
        ((Y, Y), True),
    ):
        assert are_finite(x) is expected
    values = tf.constant([1.0, np.nan])
    sparse = tf.SparseTensor([[0, 1], [1, 0]], values, (2, 3))
    for x, expected in ((X, True), (wrong, False), (texts, True)):
        pairs, _ = split_labels(Classifier(3, False, False), as_dataset(x, Y))
        assert are_finite(pairs) is expected
    batches = tf.data.Dataset.from_tensors((sparse, [0, 1]))
    pairs, _ = split_labels(Classifier(3, False, False), batches)
    assert not are_finite(pairs)


def test_labels_and_inputs_of_a_dataset_stay_together():
    x, y = split_labels(Classifier(3, False, False), as_dataset(X, Y))
    np.testing.assert_array_equal(np.concatenate([b for (b,) in x]), X)
    np.testing.assert_array_equal(y, Y)


@pytest.mark.parametrize(
    "kind", ["array", "column", "list", "bytes", "objects", "dataset"]
)
def test_names_have_the_numbers_of_training(kind):
    names = ["owl", "ant", "cow"]  # not in the order of the alphabet
    chosen = Y > 0  # nobody is an owl
    y = np.array(names)[Y[chosen]]
    x = X[chosen]
    data = {
        "array": (x, y),
        "column": (x, y[:, None]),
        "list": (x, y.tolist()),
        "bytes": (x, y.astype("S")),
        "objects": (x, y.astype(object)),
        "dataset": (as_dataset(x, y),),
    }[kind]
    _, labels = split_labels(
        Classifier(3, False, False), *data, class_names=names
    )
    np.testing.assert_array_equal(labels, Y[chosen])


def test_numbers_are_taken_as_they_are_where_there_are_names():
    options = {"class_names": ["owl", "ant", "cow"]}
    for y in (Y, Y.astype(object)):
        _, labels = split_labels(Classifier(3, False, False), X, y, **options)
        np.testing.assert_array_equal(labels, Y)


@pytest.mark.parametrize(
    ("class_names", "message"),
    [
        (["a", "b", "c"], "^No class of training is called 'elk'; there are "),
        (None, "names of classes, such as 'elk', .* Give the numbers.$"),
    ],
)
def test_names_that_say_no_class_are_refused(class_names, message):
    with pytest.raises(ValueError, match=message):
        split_labels(
            Classifier(3, False, False),
            X,
            ["elk"] * len(X),
            class_names=class_names,
        )
