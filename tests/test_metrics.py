"""Tests of what probabilities say and how good they are."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss, recall_score
from strategies import ensembles

from cbnn_keras import boosting, metrics
from cbnn_keras.metrics import (
    RunningMean,
    disagreement,
    one_hot_votes,
    predicted_classes,
    weighted_mean,
)

# The same examples on every machine; no deadline, as CI machines stall.
reproducible = settings(derandomize=True, deadline=None, max_examples=150)


@reproducible
@given(
    hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=1, max_dims=3, max_side=5),
        elements=st.floats(0, 1),
    ),
    st.floats(1e-3, 1e3),
)
def test_equal_votes_give_the_plain_mean(probabilities, vote):
    combined = weighted_mean(probabilities, np.full(len(probabilities), vote))
    np.testing.assert_allclose(
        combined, probabilities.mean(axis=0), rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("shape", [(5,), (4, 3), (4, 1), (2, 3, 4)])
def test_weighted_mean_equals_a_loop(shape):
    generator = np.random.default_rng(0)
    probabilities = generator.uniform(size=(3, *shape))
    votes = [0.5, 2.0, 7.5]
    expected = np.zeros(shape)
    for index in np.ndindex(*shape):
        for vote, member in zip(votes, probabilities, strict=True):
            expected[index] += vote * member[index] / 10  # 0.5 + 2 + 7.5
    combined = weighted_mean(probabilities, votes)
    assert combined.shape == shape
    np.testing.assert_allclose(combined, expected, rtol=1e-14)


def test_one_member_is_its_own_ensemble():
    probabilities = np.array([[[0.9, 0.1], [0.25, 0.75]]])
    combined = weighted_mean(probabilities, [7.54])
    np.testing.assert_array_equal(combined, probabilities[0])


def test_only_the_shares_of_the_votes_matter():
    probabilities = np.random.default_rng(1).uniform(size=(2, 5, 3))
    np.testing.assert_allclose(
        weighted_mean(probabilities, [1.0, 3.0]),
        weighted_mean(probabilities, [10.0, 30.0]),
        rtol=1e-14,
    )


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ([0.2, 0.7, 0.1], [0, 1, 0]),
        ([0.2, 0.4, 0.4], [0, 1, 0]),  # a tie goes to the lower class
        ([0.4, 0.2, 0.4], [1, 0, 0]),
        ([0.25, 0.25, 0.25, 0.25], [1, 0, 0, 0]),
        ([0, 0, 1], [0, 0, 1]),  # integers: one-hot already
        # One column is class 1 of two: at a half, class 0 is the lower.
        ([0.5], [0]),
        ([0.5000001], [1]),
        ([0.4999999], [0]),
        ([0.0], [0]),
        ([1.0], [1]),
    ],
)
def test_one_hot_votes(probabilities, expected):
    np.testing.assert_array_equal(one_hot_votes(probabilities), expected)


@pytest.mark.parametrize("shape", [(6, 1), (6, 3), (2, 6, 1), (2, 6, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_hot_votes_keep_shape_and_dtype(shape, dtype):
    values = np.random.default_rng(2).uniform(size=shape).astype(dtype)
    votes = one_hot_votes(values)
    assert votes.shape == shape
    assert votes.dtype == dtype


def test_one_hot_votes_of_integers_are_floats():
    # They are averaged next, and are to be probabilities in any case.
    assert one_hot_votes([[0, 1], [1, 0]]).dtype == np.float64


def test_hard_voting_counts_the_votes():
    # Sample 0: classes 0, 1, 1 with votes 3, 1, 1. Sample 1: 2, 2, 0.
    probabilities = [
        [[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]],
        [[0.1, 0.9, 0.0], [0.0, 0.1, 0.9]],
        [[0.3, 0.6, 0.1], [0.8, 0.1, 0.1]],
    ]
    combined = weighted_mean(one_hot_votes(probabilities), [3, 1, 1])
    expected = [[3 / 5, 2 / 5, 0], [1 / 5, 0, 4 / 5]]
    np.testing.assert_allclose(combined, expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ([0.2, 0.7, 0.1], 1),
        ([0.2, 0.4, 0.4], 1),  # a tie goes to the lower class
        ([0.4, 0.2, 0.4], 0),
        ([0.25, 0.25, 0.25, 0.25], 0),
        ([0, 0, 1], 2),
        # One column is class 1 of two: at a half, class 0 is the lower.
        ([0.5], 0),
        ([0.5000001], 1),
        ([0.4999999], 0),
        ([0.0], 0),
        ([1.0], 1),
    ],
)
def test_predicted_class(probabilities, expected):
    found = predicted_classes(probabilities)
    assert found.dtype == np.int64 and found.shape == ()
    assert found == expected
    # Of any number of rows, in any number of dimensions.
    rows = np.tile(np.array(probabilities), (2, 3, 1))
    np.testing.assert_array_equal(
        predicted_classes(rows), np.full((2, 3), expected)
    )


@reproducible
@given(
    hnp.arrays(
        np.float32,
        st.tuples(*[st.integers(1, 4)] * 3),
        elements=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]),
    )
)
def test_predicted_class_is_the_one_that_is_voted_for(probabilities):
    found = predicted_classes(probabilities)
    votes = one_hot_votes(probabilities)
    assert found.shape == probabilities.shape[:-1]
    for index in np.ndindex(*found.shape):
        if votes.shape[-1] == 1:
            assert votes[index][0] == found[index]
        else:
            assert list(votes[index]) == [
                float(c == found[index]) for c in range(votes.shape[-1])
            ]


# Three members of votes 3, 1 and 4, and four samples; in the comments the
# classes that the members say, ties to the lower one.
THREE_MEMBERS = [
    [[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.4, 0.4, 0.2], [1, 0, 0]],  # 0 2 0 0
    [[0.1, 0.9, 0.0], [0.0, 0.1, 0.9], [0.3, 0.3, 0.4], [1, 0, 0]],  # 1 2 2 0
    [[0.3, 0.6, 0.1], [0.8, 0.1, 0.1], [0.0, 0.5, 0.5], [1, 0, 0]],  # 1 0 1 0
]


@pytest.mark.parametrize(
    ("winners", "expected"),
    [
        # Not for class 1: 3 of 8. Not for 2: 4. Not for 1: 3 + 1. All for 0.
        ([1, 2, 1, 0], [3 / 8, 4 / 8, 4 / 8, 0.0]),
        # Not for 0: 1 + 4; 3 + 1; 1 + 4. None for 2.
        ([0, 0, 0, 2], [5 / 8, 4 / 8, 5 / 8, 1.0]),
    ],
)
def test_disagreement_of_three_members(winners, expected):
    found = disagreement(THREE_MEMBERS, [3, 1, 4], winners)
    np.testing.assert_array_equal(found, expected)  # eighths are exact
    # Only shares of the votes matter.
    other = disagreement(THREE_MEMBERS, [0.3, 0.1, 0.4], winners)
    np.testing.assert_allclose(other, expected, rtol=0, atol=1e-15)


def test_disagreement_of_binary_members():
    # Classes 1 0 0 and 1 1 0: the half is class 0.
    members = [[[0.9], [0.1], [0.5]], [[0.6], [0.8], [0.2]]]
    found = disagreement(members, [3.0, 1.0], [1, 0, 0])
    np.testing.assert_array_equal(found, [0.0, 0.25, 0.0])
    found = disagreement(members, [3.0, 1.0], [0, 1, 1])
    np.testing.assert_array_equal(found, [1.0, 0.75, 1.0])


def test_one_member_agrees_with_itself():
    members = np.random.default_rng(3).uniform(size=(1, 20, 3))
    winners = members[0].argmax(axis=1)
    np.testing.assert_array_equal(disagreement(members, [0.7], winners), 0)


@reproducible
@given(
    hnp.arrays(
        np.int64,
        st.tuples(st.integers(1, 5), st.integers(1, 6)),
        elements=st.integers(0, 3),
    ),
    st.data(),
)
def test_disagreement_is_the_loss_in_votes(classes, data):
    num_members, num_samples = classes.shape
    votes = data.draw(
        st.lists(st.floats(0.1, 10), min_size=num_members, max_size=num_members)
    )
    winners = data.draw(
        hnp.arrays(np.int64, num_samples, elements=st.integers(0, 3))
    )
    found = disagreement(np.eye(4)[classes], votes, winners)
    assert found.shape == (num_samples,)
    for i in range(num_samples):
        against = sum(
            vote
            for vote, member in zip(votes, classes, strict=True)
            if member[i] != winners[i]
        )
        assert found[i] == pytest.approx(against / sum(votes), abs=1e-14)


# Their shares sum to a little less and to a little more than 1.
@pytest.mark.parametrize("votes", [[4.2, 7.4], [4.3, 5.4]])
def test_members_of_one_mind_do_not_disagree_at_all(votes):
    members = np.tile([[0.1, 0.9], [0.8, 0.2]], (len(votes), 1, 1))
    np.testing.assert_array_equal(disagreement(members, votes, [1, 0]), [0, 0])


@reproducible
@given(ensembles())
def test_running_mean_is_the_mean_of_what_came_so_far(ensemble):
    probabilities, votes, _ = ensemble
    mean = RunningMean()
    for number, (p, vote) in enumerate(zip(probabilities, votes, strict=True)):
        so_far = weighted_mean(probabilities[: number + 1], votes[: number + 1])
        if number:  # nothing was added by asking
            np.testing.assert_allclose(
                mean.value_with(p, vote), so_far, atol=1e-15
            )
        added = mean.add(p, vote)
        np.testing.assert_array_equal(added, mean.value)
        np.testing.assert_allclose(mean.value, so_far, atol=1e-15)
        assert mean.value.dtype == np.float64


def test_equation_9_is_to_be_had_from_boosting_too():
    assert boosting.combine_probabilities is weighted_mean
    assert boosting.disagreement is disagreement


@reproducible
@given(ensembles())
def test_accuracy_and_likelihood_are_those_of_scikit_learn(ensemble):
    probabilities, _, labels = ensemble
    rows = probabilities[0]
    if rows.shape[1] == 1:
        rows = np.hstack([1 - rows, rows])
    expected = (
        accuracy_score(labels, rows.argmax(axis=1)),
        -log_loss(labels, rows.clip(1e-7), labels=np.arange(rows.shape[1])),
    )
    found = (
        metrics.accuracy(probabilities[0], labels),
        -metrics.negative_log_likelihood(probabilities[0], labels),
    )
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1], rel=1e-9)


def test_impossible_label_costs_as_much_as_keras_says():
    # -log(1e-7) = 7 log(10), for one sample of two; the other costs nothing.
    probabilities = np.array([[1.0, 0.0], [1.0, 0.0]], dtype=np.float32)
    loss = metrics.negative_log_likelihood(probabilities, np.array([0, 1]))
    assert loss == pytest.approx(7 * np.log(10) / 2, rel=1e-7)


@pytest.mark.parametrize(
    ("probabilities", "label", "expected"),
    [
        ([[0.5, 0.5]], 0, 1.0),  # ties go to the lower class
        ([[0.5, 0.5]], 1, 0.0),
        ([[0.5]], 0, 1.0),
        ([[0.5]], 1, 0.0),
        ([[0.51]], 1, 1.0),
        ([[0.2, 0.4, 0.4]], 1, 1.0),
    ],
)
def test_accuracy_of_ties(probabilities, label, expected):
    found = metrics.accuracy(np.array(probabilities), np.array([label]))
    assert found == expected


# --- Greedy forward selection ---


@settings(max_examples=50)
@given(st.integers(1, 200), st.integers(0, 2**32 - 1), st.sampled_from([7, 64]))
def test_class_error_is_one_minus_the_mean_recall(num, seed, chunk):
    """Of scikit-learn, over the classes that there are."""
    generator = np.random.default_rng(seed)
    labels = generator.choice(6, num, p=[0.6, 0.2, 0.1, 0.05, 0.05, 0])
    predicted = np.where(generator.random(num) < 0.6, labels, labels[::-1])
    weights = generator.random(num) + 0.1
    expected = 1 - recall_score(
        labels,
        predicted,
        labels=np.unique(labels),
        average="macro",
        sample_weight=weights,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "_CHUNK", chunk)
        found = metrics.class_error(predicted == labels, labels, weights)
    assert found == pytest.approx(expected, abs=1e-12)
