"""Tests of the tools for classes of unequal sizes."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cbnn_keras.imbalance import (
    checked_priors,
    class_priors,
    inverse_priors,
    oversample,
    step_imbalance,
    threshold,
)

# The same examples on every machine; no deadline, as CI machines stall.
reproducible = settings(deadline=None, derandomize=True, max_examples=60)


def labels_of(*counts, seed=0):
    """So many samples of each class, mixed."""
    labels = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(seed).permutation(labels)


def one_hot(labels):
    return np.eye(labels.max() + 1)[labels]


FORMS = {
    "integers": lambda labels: labels,
    "list": lambda labels: labels.tolist(),
    "column": lambda labels: labels[:, None].astype("uint8"),
    "floats": lambda labels: labels.astype("float32"),
    "one-hot": one_hot,
}


# --- Step imbalance ---


@pytest.mark.parametrize("form", FORMS)
def test_step_imbalance_of_the_paper(form):
    # 20 of 100 classes keep 5 of 50 images, as 50 of 500 in CIFAR-100.
    labels = labels_of(*[50] * 100)
    keep = step_imbalance(FORMS[form](labels), seed=3)
    counts = np.bincount(labels[keep], minlength=100)
    assert sorted(counts) == [5] * 20 + [50] * 80
    assert keep.dtype == np.int64
    assert (np.diff(keep) > 0).all()  # in order, and none twice
    np.testing.assert_array_equal(keep, step_imbalance(labels, seed=3))


@pytest.mark.parametrize(
    ("counts", "share", "ratio", "num_rare", "kept"),
    [
        # round(0.2 * 8) = round(1.6) = 2 classes; 40 / 10 = 4
        ([40] * 8, 0.2, 10, 2, 4),
        # round(0.34 * 3) = round(1.02) = 1; round(20 / 8) = round(2.5) = 2
        ([20] * 3, 0.34, 8, 1, 2),
        # round(0.7 * 4) = round(2.8) = 3; 9 / 1.5 = 6
        ([9] * 4, 0.7, 1.5, 3, 6),
        ([5, 5], 0.5, 100, 1, 1),  # 0.05, but one at least
        ([5, 5], 0.5, 1, 1, 5),
    ],
)
def test_sizes_worked_out_by_hand(counts, share, ratio, num_rare, kept):
    labels = labels_of(*counts)
    keep = step_imbalance(labels, minority_share=share, ratio=ratio, seed=0)
    found = np.bincount(labels[keep])
    expected = [kept] * num_rare + [counts[0]] * (len(counts) - num_rare)
    assert sorted(found) == sorted(expected)


def test_classes_without_samples_do_not_count():
    labels = 3 * labels_of(10, 10)  # classes 0 and 3 of 0..3
    keep = step_imbalance(labels, minority_share=0.5, ratio=5, seed=1)
    assert sorted(np.bincount(labels[keep])) == [0, 0, 2, 10]


def test_the_seed_chooses_classes_and_samples():
    labels = labels_of(*[20] * 10)
    results = [step_imbalance(labels, seed=seed) for seed in range(20)]
    classes = {
        tuple(np.flatnonzero(np.bincount(labels[keep]) == 2))
        for keep in results
    }
    assert len(classes) > 10
    assert {c for pair in classes for c in pair} == set(range(10))


some_labels = st.lists(st.integers(1, 30), min_size=2, max_size=8).map(
    lambda counts: labels_of(*counts, seed=sum(counts))
)


@reproducible
@given(
    some_labels,
    st.floats(0.05, 0.95),
    st.floats(1, 50),
    st.integers(0, 99),
)
def test_rare_classes_shrink_and_others_stay(labels, share, ratio, seed):
    counts = np.bincount(labels)
    num_rare = round(share * len(counts))
    assume(0 < num_rare < len(counts))
    options = {"minority_share": share, "ratio": ratio, "seed": seed}
    keep = step_imbalance(labels, **options)
    assert len(set(keep)) == len(keep)
    found = np.bincount(labels[keep], minlength=len(counts))
    small = [max(1, round(count / ratio)) for count in counts]
    is_untouched = found == counts
    assert ((found == small) | is_untouched).all()
    assert (found < counts).sum() <= num_rare
    assert is_untouched.sum() >= len(counts) - num_rare
    for label in np.flatnonzero(is_untouched):
        assert set(np.flatnonzero(labels == label)) <= set(keep)
    np.testing.assert_array_equal(keep, step_imbalance(labels, **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minority_share": 0}, r"minority_share=0\): between 0 and 1, both"),
        ({"minority_share": 1.0}, r"minority_share=1\.0\): between 0 and 1"),
        ({"minority_share": np.nan}, r"minority_share=nan\): between"),
        ({"ratio": 0.5}, r"^step_imbalance\(ratio=0\.5\): 1 or more\.$"),
        ({"ratio": np.inf}, r"ratio=inf\): 1 or more"),
        ({"ratio": np.nan}, r"ratio=nan\): 1 or more"),
        (
            {},  # round(0.2 * 2) = round(0.4) = 0
            r"^step_imbalance\(minority_share=0\.2\): of 2 classes that makes "
            r"0 rare ones\. There must be one at least, and one that stays",
        ),
        ({"minority_share": 0.9}, "of 2 classes that makes 2 rare ones"),
    ],
)
def test_step_imbalance_that_cannot_be_made(options, message):
    with pytest.raises(ValueError, match=message):
        step_imbalance(labels_of(5, 5), seed=0, **options)


# --- Oversampling ---


@pytest.mark.parametrize("form", FORMS)
def test_oversampling_worked_out_by_hand(form):
    labels = np.array([1, 0, 1, 2, 1])
    # Three of class 1, and samples 1 and 3 are alone in theirs.
    found = oversample(FORMS[form](labels), seed=0)
    assert found.tolist() == [0, 1, 1, 1, 2, 3, 3, 3, 4]
    assert found.dtype == np.int64


@reproducible
@given(some_labels, st.integers(0, 99))
def test_oversampled_classes_are_of_one_size(labels, seed):
    found = oversample(labels, seed=seed)
    counts = np.bincount(labels)
    assert (np.bincount(labels[found]) == counts.max()).all()
    assert set(found) == set(range(len(labels)))
    largest = labels == counts.argmax()
    assert (np.bincount(found)[largest] == 1).all()
    assert (np.diff(found) >= 0).all()
    np.testing.assert_array_equal(found, oversample(labels, seed=seed))


def test_samples_are_drawn_with_replacement():
    labels = labels_of(20, 200)
    times = np.bincount(oversample(labels, seed=0))[labels == 0]
    assert times.sum() == 200
    assert times.max() > 12  # ten on average
    others = np.bincount(oversample(labels, seed=1))[labels == 0]
    assert (times != others).any()


def test_balanced_classes_and_empty_ones_stay():
    assert oversample([0, 1, 1, 0], seed=0).tolist() == [0, 1, 2, 3]
    # Class 1 of three has no samples.
    assert oversample([0, 2, 2], seed=0).tolist() == [0, 0, 1, 2]


# --- Priors ---


@pytest.mark.parametrize("form", FORMS)
def test_priors_are_shares(form):
    found = class_priors(FORMS[form](np.array([0, 2, 2, 1, 2])))
    np.testing.assert_allclose(found, [0.2, 0.2, 0.6], rtol=1e-15)
    assert found.dtype == np.float64


def test_classes_that_the_labels_lack_have_no_share():
    assert class_priors([0, 1, 1, 0], 4).tolist() == [0.5, 0.5, 0, 0]
    assert class_priors([[0, 1, 0]]).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], r"^Labels have shape \(0,\): give one integer or one one-hot row"),
        (3, r"^Labels have shape \(\): give one integer"),
        (np.zeros((2, 2, 2)), r"^Labels have shape \(2, 2, 2\): give one"),
        (["a", "b"], r"^Labels must be numbers, not <U1"),
        ([0, -1], r"integers in 0\.\.0, .*; sample 1 has -1"),
        ([0, 0.5], r"integers in 0\.\.0, .*; sample 1 has 0\.5"),
        ([0, np.nan, 1], r"sample 1 has nan"),
        ([[0.5, 0.5]], r"must be one-hot; sample 0"),
    ],
)
def test_what_is_no_label_is_refused(labels, message):
    for function in (
        class_priors,
        lambda labels: oversample(labels, seed=0),
        lambda labels: step_imbalance(labels, seed=0),
    ):
        with pytest.raises(ValueError, match=message):
            function(labels)


def test_labels_above_the_number_of_classes_are_refused():
    with pytest.raises(ValueError, match=r"in 0\.\.1, .*; sample 2 has 2"):
        class_priors([0, 1, 2], 2)
    with pytest.raises(ValueError, match=r"Labels have shape \(1, 3\), but"):
        class_priors([[0, 0, 1]], 2)


def test_priors_may_be_counts():
    assert checked_priors([30, 10]).tolist() == [0.75, 0.25]
    assert checked_priors(np.array([3, 1], "uint8"), 2).tolist() == [0.75, 0.25]


def test_inverse_priors_do_not_overflow():
    # 1 / 1e-6 is more than half precision holds.
    found = inverse_priors([0.999999, 1e-6])
    np.testing.assert_allclose(found, [1e-6 / 0.999999, 1], rtol=1e-12)


BAD_PRIORS = [
    ([0.5, 0.5], r"^priors have the shape \(2,\), but there are 3 classes: "),
    ([[0.2, 0.3, 0.5]], r"^priors have the shape \(1, 3\), but there are 3"),
    (0.5, r"^priors have the shape \(\), but there are 3 classes"),
    ([0.5, 0.5, 0], r"^priors must be positive and finite; class 2 has 0\.0\."),
    ([-1, 1, 1], r"^priors must be positive and finite; class 0 has -1\."),
    ([1, np.nan, 1], r"^priors must be positive .*; class 1 has nan\."),
    ([1, 1, np.inf], r"^priors must be positive .*; class 2 has inf\."),
    (["a", "b", "c"], r"^priors must be numbers, not <U1\.$"),
]


@pytest.mark.parametrize(("priors", "message"), BAD_PRIORS)
def test_priors_that_are_none_are_refused(priors, message):
    with pytest.raises(ValueError, match=message):
        checked_priors(priors, 3)


@pytest.mark.parametrize("priors", [0.5, [[0.5, 0.5]], [1.0], []])
def test_priors_are_a_list_of_two_or_more(priors):
    with pytest.raises(ValueError, match="give one number per class"):
        threshold([[0.5, 0.5]], priors)


# --- Thresholding ---


@pytest.mark.parametrize(
    ("row", "priors", "expected"),
    [
        # 0.7 / 0.7, 0.2 / 0.2, 0.1 / 0.1: all alike
        ([0.7, 0.2, 0.1], [0.7, 0.2, 0.1], [1 / 3, 1 / 3, 1 / 3]),
        # 0.6 / 0.8 = 0.75, 0.3 / 0.1 = 3, 0.1 / 0.1 = 1: of 4.75
        ([0.6, 0.3, 0.1], [0.8, 0.1, 0.1], [3 / 19, 12 / 19, 4 / 19]),
        ([1, 0, 0], [0.98, 0.01, 0.01], [1, 0, 0]),
        ([0.9, 0.1], [9, 1], [0.5, 0.5]),
        # One column: 0.25 / 0.2 = 1.25 to 0.75 / 0.8 = 0.9375, of 2.1875
        ([0.25], [0.8, 0.2], [1.25 / 2.1875]),
        ([0], [0.8, 0.2], [0]),
        ([1], [0.8, 0.2], [1]),
    ],
)
def test_thresholds_worked_out_by_hand(row, priors, expected):
    found = threshold([row], priors)
    np.testing.assert_allclose(found, [expected], rtol=1e-14)
    assert found.dtype == np.float64


rows = hnp.arrays(np.float64, (5, 4), elements=st.floats(0.001, 1)).map(
    lambda array: array / array.sum(axis=1, keepdims=True)
)
positive = st.lists(st.floats(0.001, 1), min_size=4, max_size=4)


@reproducible
@given(rows, positive)
def test_thresholded_rows_sum_to_one(probabilities, priors):
    found = threshold(probabilities, priors)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)
    # Ratios are those of p / pi, whatever the priors sum to.
    plain = probabilities / priors
    plain /= plain.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, plain, rtol=1e-9)


@reproducible
@given(rows)
def test_equal_priors_change_nothing(probabilities):
    for priors in ([0.25] * 4, [7] * 4):
        found = threshold(probabilities, priors)
        np.testing.assert_allclose(found, probabilities, rtol=1e-12)


@reproducible
@given(rows, st.floats(0.001, 0.999))
def test_one_column_is_the_second_of_two(probabilities, prior):
    second = probabilities[:, :1]
    both = np.concatenate([1 - second, second], axis=1)
    priors = [1 - prior, prior]
    np.testing.assert_allclose(
        threshold(second, priors), threshold(both, priors)[:, 1:], rtol=1e-9
    )


@pytest.mark.parametrize(
    ("probabilities", "priors", "message"),
    [
        (
            [[0.5, 0.5]],
            [1, 1, 1],
            r"^threshold\(\): probabilities of shape \(1, 2\) do not fit 3 "
            r"priors\. Give \(num_samples, 3\)\.$",
        ),
        ([[0.5]], [1, 1, 1], r"shape \(1, 1\) do not fit 3 priors"),
        ([0.5, 0.5], [1, 1], r"\(2,\) do not fit 2 .* 2\), or one column\.$"),
        (
            [[-3.0, 5.0]],
            [1, 1],
            r"^threshold\(\): probabilities must be between 0 and 1; found -3 "
            r"to 5\. Apply softmax or sigmoid to logits first\.$",
        ),
        ([[2.0]], [1, 1], "must be between 0 and 1; found 2 to 2"),
        ([[0.5, 0.5]], [1, 0], r"^priors must be .* class 1 has 0\."),
    ],
)
def test_what_cannot_be_thresholded(probabilities, priors, message):
    with pytest.raises(ValueError, match=message):
        threshold(probabilities, priors)
