"""Tests of how different members are, against NumPy's own correlation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbnn_keras.analysis import diversity

# The same examples on every machine; no deadline, as CI machines stall.
reproducible = settings(derandomize=True, deadline=None, max_examples=100)


@st.composite
def members(draw):
    """Probabilities of some members; one column where k is 2, at times."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_classes = draw(st.integers(2, 4))
    shape = (draw(st.integers(1, 5)), draw(st.integers(2, 12)))
    probabilities = generator.dirichlet(np.full(num_classes, 0.7), shape)
    if num_classes == 2 and draw(st.booleans()):
        probabilities = probabilities[..., 1:]
    return probabilities


@st.composite
def decisions(draw):
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (draw(st.integers(1, 6)), draw(st.integers(1, 12)))
    return generator.integers(0, draw(st.integers(2, 4)), shape)


# --- Correlation ---


@reproducible
@given(members())
def test_correlation_of_each_pair_is_that_of_numpy(probabilities):
    found = diversity.pairwise_correlation(probabilities)
    for i, first in enumerate(probabilities):
        for j, second in enumerate(probabilities):
            expected = np.corrcoef(first.ravel(), second.ravel())[0, 1]
            assert found[i, j] == pytest.approx(expected, abs=1e-9)


@reproducible
@given(members())
def test_correlation_is_symmetric_and_within_its_bounds(probabilities):
    found = diversity.pairwise_correlation(probabilities)
    assert found.shape == (len(probabilities), len(probabilities))
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_array_equal(np.diag(found), 1)
    assert np.abs(found).max() <= 1


def test_correlation_worked_out_by_hand():
    # Means 1/2; deviations (1, 1, -1, -1)/2 and (1, -1, 1, -1)/2 have the
    # product 0, and (3, 1, -1, -3)/10 with the first (3+1+1+3)/20 = 0.4, which
    # is divided by the lengths 1 and sqrt(0.2).
    members = np.array(
        [
            [[1.0, 1.0], [0.0, 0.0]],
            [[1.0, 0.0], [1.0, 0.0]],
            [[0.8, 0.6], [0.4, 0.2]],
        ]
    )
    found = diversity.pairwise_correlation(members)
    third = 0.4 / np.sqrt(0.2)
    # With the second: (3 - 1 - 1 + 3)/20 = 0.2.
    expected = [[1, 0, third], [0, 1, third / 2], [third, third / 2, 1]]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("value", [1 / 3, 0.1, 0.7])
def test_constant_member_correlates_with_nothing(value):
    """Without a warning about a division by zero."""
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet([1, 1, 1], (3, 7))
    probabilities[1] = value
    found = diversity.pairwise_correlation(probabilities)
    np.testing.assert_array_equal(found[1], [0, 1, 0])
    np.testing.assert_array_equal(found[:, 1], [0, 1, 0])
    expected = np.corrcoef(probabilities[0].ravel(), probabilities[2].ravel())
    assert found[0, 2] == pytest.approx(expected[0, 1], abs=1e-6)


def test_one_column_correlates_as_two_do():
    """Of the probability of class 0, deviations only change their sign."""
    of_one = np.random.default_rng(1).uniform(size=(4, 9, 1))
    both = np.concatenate([1 - of_one, of_one], axis=-1)
    # Not so of their mean, which is 1/2 over two columns: centre them first.
    shifted = both - both.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(
        diversity.pairwise_correlation(of_one),
        diversity.pairwise_correlation(shifted),
        atol=1e-12,
    )


@reproducible
@given(members())
def test_order_of_samples_does_not_matter_to_correlation(probabilities):
    kept = probabilities.copy()
    order = np.random.default_rng(0).permutation(probabilities.shape[1])
    np.testing.assert_allclose(
        diversity.pairwise_correlation(probabilities[:, order]),
        diversity.pairwise_correlation(probabilities),
        atol=1e-9,
    )
    np.testing.assert_array_equal(probabilities, kept)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4, 5), (0, 3, 2)])
def test_other_shapes_have_no_correlation(shape):
    message = (
        r"pairwise_correlation: probabilities of shape \(num_members, "
        r"num_samples, num_classes\), not \("
    )
    with pytest.raises(ValueError, match=message):
        diversity.pairwise_correlation(np.zeros(shape))


# --- Disagreement ---


@reproducible
@given(decisions())
def test_disagreement_is_a_metric(chosen):
    found = diversity.pairwise_disagreement(chosen)
    num_members, num_samples = chosen.shape
    for i in range(num_members):
        assert found[i, i] == 0
        for j in range(num_members):
            differing = sum(
                chosen[i, s] != chosen[j, s] for s in range(num_samples)
            )
            assert found[i, j] == differing / num_samples
            assert found[i, j] == found[j, i]
            for k in range(num_members):
                assert found[i, k] <= found[i, j] + found[j, k] + 1e-12


@reproducible
@given(decisions())
def test_order_of_samples_does_not_matter_to_disagreement(chosen):
    order = np.random.default_rng(0).permutation(chosen.shape[1])
    np.testing.assert_array_equal(
        diversity.pairwise_disagreement(chosen[:, order]),
        diversity.pairwise_disagreement(chosen),
    )


def test_disagreement_on_what_is_right():
    is_right = np.array([[True, True, False, False], [True, False] * 2])
    found = diversity.pairwise_disagreement(is_right)
    np.testing.assert_array_equal(found, [[0, 0.5], [0.5, 0]])


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4), (0, 3), (3, 0)])
def test_other_shapes_have_no_disagreement(shape):
    message = (
        r"pairwise_disagreement: decisions of shape \(num_members, "
        r"num_samples\), not \("
    )
    with pytest.raises(ValueError, match=message):
        diversity.pairwise_disagreement(np.zeros(shape))


# --- The mean ---


def test_mean_of_pairs_leaves_the_diagonal_out():
    matrix = np.array([[9.0, 1, 2], [1, 9, 6], [2, 6, 9]])
    assert diversity.mean_of_pairs(matrix) == 3
    assert np.isnan(diversity.mean_of_pairs(np.ones((1, 1))))
