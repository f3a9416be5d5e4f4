"""Tests of reading labels."""

import re

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbnn_keras.labels import class_indices

# The same examples on every machine; no deadline, as CI machines stall.
reproducible = settings(derandomize=True, deadline=None, max_examples=100)


def assert_indices(indices, expected):
    assert isinstance(indices, np.ndarray)
    assert indices.dtype == np.int64
    assert indices.shape == (len(expected),)
    assert indices.tolist() == expected


@pytest.mark.parametrize(
    "labels",
    [
        [2, 0, 1, 2],
        (2, 0, 1, 2),
        np.array([2, 0, 1, 2]),
        np.array([2, 0, 1, 2], np.int8),
        np.array([2, 0, 1, 2], np.uint8),
        np.array([2, 0, 1, 2], np.uint64),
        [2.0, 0.0, 1.0, 2.0],
        np.array([2, 0, 1, 2], np.float16),
        np.array([2, 0, 1, 2], np.float32),
        [[2], [0], [1], [2]],
        np.array([[2], [0], [1], [2]], np.float32),
        [[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]],
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        np.eye(3, dtype=np.uint8)[[2, 0, 1, 2]],
        np.eye(3, dtype=np.float32)[[2, 0, 1, 2]],
        np.eye(3, dtype=np.bool_)[[2, 0, 1, 2]],
    ],
)
def test_accepted_formats(labels):
    indices = class_indices(labels, 3, is_binary=False)
    assert_indices(indices, [2, 0, 1, 2])


@pytest.mark.parametrize(
    "labels",
    [
        [0, 1, 1],
        [0.0, 1.0, 1.0],
        [False, True, True],
        [[0], [1], [1]],
        [[0.0], [1.0], [1.0]],
        [[False], [True], [True]],
    ],
)
@pytest.mark.parametrize("is_binary", [True, False])
def test_accepted_formats_of_two_classes(labels, is_binary):
    indices = class_indices(labels, 2, is_binary=is_binary)
    assert_indices(indices, [0, 1, 1])


@pytest.mark.parametrize("shape", [(0,), (0, 1), (0, 3)])
def test_no_samples_have_no_indices(shape):
    assert_indices(class_indices(np.empty(shape), 3, is_binary=False), [])


def test_one_sample_is_not_mistaken_for_a_column():
    assert_indices(class_indices([[0, 0, 1]], 3, is_binary=False), [2])
    assert_indices(class_indices([[2]], 3, is_binary=False), [2])


def test_narrow_integers_do_not_wrap_around_many_classes():
    # 200 as int8 is -56 and 300 as uint8 is 44.
    labels = np.array([0, 200], np.uint8)
    assert_indices(class_indices(labels, 300, is_binary=False), [0, 200])
    with pytest.raises(ValueError, match=r"sample 1 has -56, and 1 of 2"):
        class_indices(labels.astype(np.int8), 300, is_binary=False)


@reproducible
@given(st.data(), st.integers(2, 20))
def test_every_format_gives_the_same_indices(data, num_classes):
    indices = data.draw(
        hnp.arrays(
            np.int64,
            st.integers(1, 10),
            elements=st.integers(0, num_classes - 1),
        )
    )
    one_hot = np.zeros((len(indices), num_classes))
    for row, index in zip(one_hot, indices, strict=True):
        row[index] = 1
    for labels in (indices, indices[:, None], indices.astype(float), one_hot):
        found = class_indices(labels, num_classes, is_binary=False)
        assert_indices(found, indices.tolist())


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        (["cat", "dog", "cat"], "<U3"),
        (["0", "1", "0"], "<U1"),  # digits of text are text
        ([b"cat", b"dog"], "|S3"),
        ([["cat"], ["dog"]], "<U3"),
        (np.array(["cat", "dog"], object), "object"),
        ([0, None, 1], "object"),
        ([1j, 0j], "complex128"),
    ],
)
def test_labels_that_are_no_numbers_are_refused(labels, dtype):
    with pytest.raises(
        ValueError,
        match=(
            rf"^Labels must be numbers, not {re.escape(dtype)}\. Map class "
            r"names to 0\.\.2 first, e\.g\. with "
            r"`np\.unique\(y, return_inverse=True\)`\.$"
        ),
    ):
        class_indices(labels, 3, is_binary=False)


def test_the_advice_for_class_names_works():
    _, labels = np.unique(["dog", "cat", "dog"], return_inverse=True)
    assert_indices(class_indices(labels, 2, is_binary=False), [1, 0, 1])


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ([0, 1, 3], r"sample 2 has 3, and 1 of 3 are outside"),
        ([1, 2, 3], r"sample 2 has 3, and 1 of 3 are outside"),  # from 1 on
        ([0, -1, -1], r"sample 1 has -1, and 2 of 3 are outside"),
        ([0, 1.5, 1], r"sample 1 has 1\.5, and 1 of 3 are outside"),
        ([0.2, 17.3], r"sample 0 has 0\.2, and 2 of 2 are outside"),
        ([0, np.nan, 1], r"sample 1 has nan, and 1 of 3 are outside"),
        ([np.inf, 0], r"sample 0 has inf, and 1 of 2 are outside"),
        ([[0], [1], [3]], r"sample 2 has 3, and 1 of 3 are outside"),
        ([[0], [np.nan]], r"sample 1 has nan, and 1 of 2 are outside"),
        # 2**64 - 1 is -1 where it is read as int64.
        (
            np.array([0, 2**64 - 1], np.uint64),
            r"sample 1 has 18446744073709551615, and 1 of 2 are outside",
        ),
    ],
)
def test_labels_that_are_no_class_are_refused(labels, found):
    with pytest.raises(
        ValueError,
        match=(
            r"^Labels must be integers in 0\.\.2, as many as the model has "
            rf"classes; {found}\. Map your classes to 0\.\.k-1 or give the "
            r"model as many outputs as there are classes\. CBNN is for "
            r"classification: there is no regression\.$"
        ),
    ):
        class_indices(labels, 3, is_binary=False)


def test_third_class_of_a_sigmoid_is_refused():
    with pytest.raises(ValueError, match=r"in 0\.\.1,.*sample 1 has 2, and 1"):
        class_indices([0, 2, 1], 2, is_binary=True)


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ([[1, 0, 0], [1, 1, 0]], r"sample 1 has \[1 1 0\]"),  # multi-hot
        ([[1, 0, 0], [0, 0, 0]], r"sample 1 has \[0 0 0\]"),  # no class
        ([[True, False, True]], r"sample 0 has \[ ?True False +True\]"),
        ([[0.9, 0.05, 0.05]], r"sample 0 has \[0\.9 +0\.05 0\.05\]"),  # soft
        ([[1, 0, 0], [0.5, 0.5, 0]], r"sample 1 has \[0\.5 0\.5 0\. \]"),
        # Sums to 1 all the same.
        ([[2, -1, 0]], r"sample 0 has \[ 2 -1  0\]"),
        ([[0, 1, np.nan]], r"sample 0 has \[ 0\.  1\. nan\]"),
        ([[0, 2, 0]], r"sample 0 has \[0 2 0\]"),
    ],
)
def test_rows_that_are_not_one_hot_are_refused(labels, found):
    with pytest.raises(
        ValueError,
        match=(
            rf"^Label rows must be one-hot; {found}\. Several labels a sample "
            r"and regression are not supported; for soft labels use the loss's "
            r"`label_smoothing`, and for MixUp see "
            r"`CBNNCallback\.attach_index`\.$"
        ),
    ):
        class_indices(labels, 3, is_binary=False)


def test_long_rows_are_abridged_in_the_message():
    labels = np.full((1, 1000), 1e-3)
    with pytest.raises(ValueError, match=r"0\.001 \.\.\. 0\.001") as caught:
        class_indices(labels, 1000, is_binary=False)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("labels", "shape"),
    [
        ([[0, 1], [1, 0]], r"\(2, 2\)"),  # one-hot rows of too few classes
        ([[0, 1, 0, 0]], r"\(1, 4\)"),  # and of too many
        (np.zeros((2, 3, 1)), r"\(2, 3, 1\)"),
        (np.zeros((2, 1, 3)), r"\(2, 1, 3\)"),
        (1, r"\(\)"),
    ],
)
def test_other_shapes_are_refused(labels, shape):
    with pytest.raises(
        ValueError,
        match=(
            rf"^Labels have shape {shape}, but the model has 3 outputs: give "
            r"integers of shape \(n,\) in 0\.\.2, or one-hot rows \(n, 3\)\.$"
        ),
    ):
        class_indices(labels, 3, is_binary=False)


@pytest.mark.parametrize(
    ("labels", "shape"),
    [
        ([[0, 1], [1, 0]], r"\(2, 2\)"),  # one-hot: its loss is not this one's
        (np.zeros((2, 3)), r"\(2, 3\)"),  # several labels a sample
    ],
)
def test_rows_for_a_sigmoid_are_refused(labels, shape):
    with pytest.raises(
        ValueError,
        match=(
            rf"^Labels have shape {shape}, but the model has one sigmoid "
            r"output: give integers of shape \(n,\) in 0\.\.1\.$"
        ),
    ):
        class_indices(labels, 2, is_binary=True)
