"""Tests of the errors of members, stages and sizes, and of times."""

import numpy as np
import pytest
from scipy.stats import binomtest

from cbnn_keras.analysis import performance

# --- Errors ---


def test_errors_worked_out_by_hand():
    """Three members, two samples of class 0 and one of class 1."""
    probabilities = np.array(
        [
            [[0.9, 0.1], [0.4, 0.6], [0.9, 0.1]],  # wrong: 2nd and 3rd
            [[0.4, 0.6], [0.4, 0.6], [0.1, 0.9]],  # wrong: 1st and 2nd
            [[0.8, 0.2], [0.9, 0.1], [0.6, 0.4]],  # wrong: 3rd
        ]
    )
    votes, labels = np.array([1.0, 1.0, 2.0]), np.array([0, 0, 1])
    third = 1 / 3
    found = performance.member_errors(probabilities, labels)
    np.testing.assert_allclose(found, [2 * third, 2 * third, third])
    # First two, p(0): 0.65, 0.4, 0.5 -> a tie goes to class 0: two wrong.
    # All, p(0): (0.9+0.4+1.6)/4, (0.4+0.4+1.8)/4, (0.9+0.1+1.2)/4 = 0.55.
    found = performance.stage_errors(probabilities, votes, labels)
    np.testing.assert_allclose(found, [2 * third, 2 * third, third])
    # Of two at equal intervals, 0.5 and 2: positions 0 and 2;
    # p(0) of the third sample: (0.9 + 1.2)/3 = 0.7.
    found = performance.size_errors(probabilities, votes, labels)
    np.testing.assert_allclose(found, [third, third, third])
    # One column, that of class 1, is as two.
    of_one = probabilities[..., 1:]
    found = performance.stage_errors(of_one, votes, labels)
    np.testing.assert_allclose(found, [2 * third, 2 * third, third])


def test_sizes_are_at_equal_intervals_and_hold_the_final_model():
    # Each of four members is right on a sample of its own, and sure of it.
    probabilities = np.stack([np.full((4, 2), 0.5)] * 4)
    for member in range(4):
        probabilities[member, member] = [0.0, 1.0]
    labels = np.ones(4, dtype=int)
    found = performance.size_errors(probabilities, np.ones(4), labels)
    # Every 4/num-th: 3 | 1, 3 | 0.33, 1.67, 3 | all.
    np.testing.assert_allclose(found, [0.75, 0.5, 0.25, 0])


# --- Times ---


@pytest.mark.parametrize(
    ("accuracies", "targets", "expected"),
    [
        ([0.2, 0.5, 0.8, 0.9], [0.2, 0.21, 0.8, 0.9], [10, 20, 30, 40]),
        ([0.5, 0.5, 0.5, 0.5], [0.5, 0.51], [10, np.nan]),  # first of equals
        ([0.5, 0.9, 0.1, 0.6], [0.55, 0.9, 0.95], [20, 20, np.nan]),
        ([0.5, 0.6, 0.7, 0.8], [0.9, 0.0, 0.6], [np.nan, 10, 20]),
        ([np.nan, 0.4, np.nan, 0.6], [0.3, 0.5, 0.9], [20, 40, np.nan]),
        ([], [0.0], [np.nan]),
    ],
)
def test_time_to_accuracy_worked_out_by_hand(accuracies, targets, expected):
    times = [10, 20, 30, 40][: len(accuracies)]
    found = performance.time_to_accuracy(times, accuracies, targets)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("times", "accuracies", "shapes"),
    [
        ([1, np.nan, 2], [0.1, 0.2, 0.3], r"\(3,\) and \(3,\)"),
        ([1, 2], [0.1, 0.2, 0.3], r"\(2,\) and \(3,\)"),
        ([[1, 2]], [[0.1, 0.2]], r"\(1, 2\) and \(1, 2\)"),
    ],
)
def test_unordered_times_are_refused(times, accuracies, shapes):
    message = (
        "time_to_accuracy takes times in increasing order and one accuracy for "
        f"each; received shapes {shapes}"
    )
    with pytest.raises(ValueError, match=message):
        performance.time_to_accuracy(times, accuracies, [0.2])


@pytest.mark.parametrize(
    ("gained", "lost", "tolerance"),
    [
        (0, 4, 1e-9),
        (9, 2, 1e-9),
        (122, 125, 1e-9),
        (560, 440, 1e-9),  # the largest that is computed exactly
        (600, 501, 1e-3),
        (5_000, 5_000, 1e-3),
    ],
)
def test_sign_test_is_the_binomial_test(gained, lost, tolerance):
    expected = binomtest(gained, gained + lost).pvalue
    found = performance.sign_test(gained, lost)
    assert found == pytest.approx(expected, abs=tolerance)
    assert performance.sign_test(0, 0) == 1
