"""Tests of the choice of members."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from sklearn.metrics import accuracy_score
from strategies import ensembles

from cbnn_keras import metrics
from cbnn_keras.ensemble import selection

# The same examples on every machine; no deadline, as CI machines stall.
reproducible = settings(derandomize=True, deadline=None, max_examples=150)


def quality(probabilities, votes, labels, chosen):
    """Accuracy, then likelihood, of some members, by loop and scikit-learn."""
    mean = sum(votes[i] * probabilities[i] for i in chosen)
    mean = mean / sum(votes[i] for i in chosen)
    if mean.shape[1] == 1:
        mean = np.hstack([1 - mean, mean])
    of_label = [max(row[y], 1e-7) for row, y in zip(mean, labels, strict=True)]
    likelihood = np.mean(np.log(of_label))
    return accuracy_score(labels, mean.argmax(axis=1)), likelihood


# --- Equal intervals ---


@pytest.mark.parametrize(
    ("num_members", "num", "expected"),
    [
        (12, 6, [1, 3, 5, 7, 9, 11]),
        (6, 6, [0, 1, 2, 3, 4, 5]),
        (6, 1, [5]),
        (1, 1, [0]),
        (9, 3, [2, 5, 8]),
        (10, 4, [2, 4, 6, 9]),  # 1.5, 4, 6.5, 9: halves to the even one
        (5, 4, [0, 2, 3, 4]),  # 0.25, 1.5, 2.75, 4
    ],
)
def test_equal_intervals_worked_out_by_hand(num_members, num, expected):
    assert selection.equally_spaced(num_members, num) == expected


def test_equal_intervals_of_any_number():
    for num_members in range(1, 41):
        for num in range(1, num_members + 1):
            positions = selection.equally_spaced(num_members, num)
            assert len(positions) == num
            assert positions[0] >= 0 and positions[-1] == num_members - 1
            # From before the first member on, no interval is off by more than
            # the rounding of its two ends.
            gaps = np.diff([-1, *positions])
            assert min(gaps) >= 1
            assert np.abs(gaps - num_members / num).max() <= 1


# --- Accuracy and likelihood ---


def greedy(probabilities, votes, labels):
    """By accuracy."""

    def accuracy(found):
        return metrics.accuracy(found, labels)

    return selection.greedy(probabilities, votes, labels, accuracy)


@reproducible
@given(ensembles())
def test_greedy_is_never_worse_than_the_final_model(ensemble):
    chosen = greedy(*ensemble)
    final = len(ensemble[1]) - 1
    assert chosen == sorted(set(chosen)) and chosen[-1] == final
    assert quality(*ensemble, chosen)[0] >= quality(*ensemble, [final])[0]


@reproducible
@given(ensembles(min_members=2))
def test_greedy_begins_with_the_best_pair(ensemble):
    final = len(ensemble[1]) - 1
    alone = quality(*ensemble, [final])
    best, partner = max(
        (quality(*ensemble, [i, final]), i) for i in range(final)
    )
    chosen = greedy(*ensemble)
    if best > alone:
        assert partner in chosen
    else:
        assert chosen == [final]


@reproducible
@given(ensembles())
def test_greedy_stops_where_no_further_member_helps(ensemble):
    num_members = len(ensemble[1])
    chosen = greedy(*ensemble)
    reached = quality(*ensemble, chosen)
    for other in set(range(num_members)) - set(chosen):
        assert quality(*ensemble, [*chosen, other]) <= reached


@reproducible
@given(ensembles())
def test_greedy_is_a_chain_of_improvements(ensemble):
    chosen = greedy(*ensemble)
    final = chosen[-1]
    # Some order of the others improves on the final model at every step.
    chains = (
        [quality(*ensemble, [final, *order[:n]]) for n in range(len(chosen))]
        for order in itertools.permutations(chosen[:-1])
    )
    assert any(
        all(a < b for a, b in itertools.pairwise(chain)) for chain in chains
    )


def test_greedy_worked_out_by_hand():
    """Three members, four samples of class 1, each sure of itself."""
    right_on = [{0, 1, 3}, {0}, {1, 2}]
    probabilities = np.array(
        [[[0.9 if i in right else 0.1] for i in range(4)] for right in right_on]
    )
    labels = np.ones(4, dtype=int)
    # The last alone gets 2. Member 0 outvotes it, and gets 3 (0, 1, 3); member
    # 1 outvotes it too, and gets 1. All three get 2: on sample 3, 3.0 votes are
    # for the right class and 3.5 against.
    votes = np.array([3.0, 2.0, 1.5])
    assert greedy(probabilities, votes, labels) == [0, 2]


def test_greedy_leaves_a_member_out_that_is_wrong_throughout():
    sure, wrong = np.full((5, 1), 0.9), np.full((5, 1), 0.2)
    probabilities = np.stack([wrong, sure])
    labels = np.ones(5, dtype=int)
    assert greedy(probabilities, np.ones(2), labels) == [1]
    # And takes the equal that has the higher likelihood.
    probabilities = np.stack(
        [np.full((5, 1), 0.8), np.full((5, 1), 0.95), sure]
    )
    assert greedy(probabilities, np.ones(3), labels) == [1, 2]


# --- Votes by likelihood ---


def losses(probabilities, votes, labels):
    """-log p(label) of each sample, by a loop."""
    mean = sum(v * p for v, p in zip(votes, probabilities, strict=True))
    mean = mean / sum(votes)
    if mean.shape[1] == 1:
        mean = np.hstack([1 - mean, mean])
    return np.array(
        [
            -np.log(max(row[y], 1e-7))
            for row, y in zip(mean, labels, strict=True)
        ]
    )


@reproducible
@given(ensembles())
def test_votes_by_likelihood_are_those_of_a_loop(ensemble):
    probabilities, votes, labels = ensemble
    expected, one = list(votes), np.mean(votes)
    for _ in range(4):
        before = losses(probabilities, expected, labels)
        others = [
            [v + one * (i == j) for j, v in enumerate(expected)]
            for i in range(len(votes))
        ]
        after = [losses(probabilities, other, labels) for other in others]
        best = min(range(len(votes)), key=lambda i: after[i].mean())
        gains = before - after[best]
        if len(gains) < 2:
            break
        if gains.mean() <= gains.std(ddof=1) / len(gains) ** 0.5 + 1e-12:
            break
        expected = others[best]
    else:
        assert_allclose = np.testing.assert_allclose
        found = selection.by_likelihood(probabilities, votes, labels, 4)
        assert_allclose(found, expected)


@reproducible
@given(ensembles())
def test_labels_are_never_less_likely_by_chosen_votes(ensemble):
    probabilities, votes, labels = ensemble
    found = selection.by_likelihood(*ensemble)
    assert (found >= votes).all()  # nobody loses one
    gained = (found - votes).sum() / np.mean(votes)
    assert gained == pytest.approx(round(gained)) and round(gained) <= 25
    before = losses(probabilities, votes, labels).mean()
    assert losses(probabilities, found, labels).mean() <= before + 1e-12


def test_what_held_out_data_cannot_tell_apart_stays():
    """Better on ten samples and worse on nine, by the same amount."""
    first = np.array([[0.6, 0.4]] * 19)
    second = np.array([[0.7, 0.3]] * 10 + [[0.5, 0.5]] * 9)
    members = np.stack([first, second])
    votes, labels = np.array([1.0, 1.0]), np.zeros(19, int)
    assert selection.by_likelihood(members, votes, labels).tolist() == [1, 1]
    # Better on all of them: by how much hardly varies, so that it counts.
    clear = np.stack([first, np.array([[0.7, 0.3]] * 19)])
    found = selection.by_likelihood(clear, votes, labels)
    assert found.tolist() == [1, 26]
