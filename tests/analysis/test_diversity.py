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
def predicted_classes(draw):
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
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_array_equal(np.diag(found), 1)
    assert np.abs(found).max() <= 1


def test_constant_member_correlates_with_nothing():
    """Without a warning about a division by zero."""
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet([1, 1, 1], (3, 7))
    probabilities[1] = 1 / 3
    found = diversity.pairwise_correlation(probabilities)
    np.testing.assert_array_equal(found[1], [0, 1, 0])
    np.testing.assert_array_equal(found[:, 1], [0, 1, 0])
    expected = np.corrcoef(probabilities[0].ravel(), probabilities[2].ravel())
    assert found[0, 2] == pytest.approx(expected[0, 1], abs=1e-6)


@pytest.mark.parametrize("shape", [(3, 4), (0, 3, 2)])
def test_other_shapes_have_no_correlation(shape):
    message = (
        r"pairwise_correlation takes probabilities of shape \(num_members, "
        r"num_samples, num_classes\), not \("
    )
    with pytest.raises(ValueError, match=message):
        diversity.pairwise_correlation(np.zeros(shape))


# --- Disagreement ---


@reproducible
@given(predicted_classes())
def test_disagreement_by_loop(chosen):
    found = diversity.pairwise_disagreement(chosen)
    num_members, num_samples = chosen.shape
    for i in range(num_members):
        for j in range(num_members):
            differing = sum(
                chosen[i, s] != chosen[j, s] for s in range(num_samples)
            )
            assert found[i, j] == differing / num_samples


@pytest.mark.parametrize("shape", [(4,), (3, 0)])
def test_other_shapes_have_no_disagreement(shape):
    message = (
        r"pairwise_disagreement takes classes of shape \(num_members, "
        r"num_samples\), not \("
    )
    with pytest.raises(ValueError, match=message):
        diversity.pairwise_disagreement(np.zeros(shape))


# --- The mean ---


def test_mean_of_pairs_leaves_the_diagonal_out():
    matrix = np.array([[9.0, 1, 2], [1, 9, 6], [2, 6, 9]])
    assert diversity.mean_of_pairs(matrix) == 3
    assert np.isnan(diversity.mean_of_pairs(np.ones((1, 1))))
