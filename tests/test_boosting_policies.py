"""Tests of how methods vote and update; CBNN's own is in test_boosting.py."""

import math

import numpy as np
import pytest

from cbnn_keras.boosting import Booster
from cbnn_keras.boosting_policies import Boosting, BoostingFromFirst, EqualVotes

FIRST = np.array([0.25, 0.25, 0.25, 0.25])


def test_equal_votes_count_heads_and_leave_the_weights():
    booster = Booster(FIRST, 3, EqualVotes())
    # The second is worse than chance, and a member all the same.
    for number, correct in enumerate(["1110", "0000", "1111"], start=1):
        stage = booster.add(np.array([c == "1" for c in correct]))
        assert (stage.vote, stage.is_member) == (1.0, True)
        assert stage.error == correct.count("0") / 4
        assert (stage.normaliser, stage.bound) == (1.0, 1.0)
        assert stage.within_budget and booster.may_continue()
        assert booster.votes == [1.0] * number
    # Shares of right votes: 2/3 for three samples, 1/3 for the last.
    loss = (3 * math.exp(-2 / 3) + math.exp(-1 / 3)) / 4
    assert stage.exponential_loss == pytest.approx(loss, rel=1e-14)
    np.testing.assert_array_equal(booster.distribution, FIRST)


def test_updates_from_the_first_weights_forget_the_round_before():
    booster = Booster(FIRST, 2, BoostingFromFirst(deviation_rate=1.0))
    booster.add(np.array([True, True, True, False]))
    # By hand: e = 1/4, lambda = log 3; 1/3 of the weight for what is right.
    np.testing.assert_allclose(booster.distribution, [1 / 6] * 3 + [1 / 2])
    stage = booster.add(np.array([False, True, True, True]))
    # e = 1/6 of the weights of now, lambda = log 5, applied to 1/4 each:
    # 1/4 and three times 1/20, divided by their sum of 2/5.
    assert stage.vote == pytest.approx(math.log(5))
    np.testing.assert_allclose(booster.distribution, [5 / 8] + [1 / 8] * 3)
    assert booster.may_continue()  # there is no stop rule
    assert not stage.within_budget  # log 3 + log 5 > 1, recorded all the same


def test_chance_is_no_member_when_boosting_from_the_first():
    booster = Booster(FIRST, 2, BoostingFromFirst(deviation_rate=1.0))
    stage = booster.add(np.array([True, True, False, False]))
    assert (stage.vote, stage.is_member) == (0.0, False)
    np.testing.assert_array_equal(booster.distribution, FIRST)


def test_theorem_1_speaks_of_cbnn_alone():
    policies = [Boosting(), BoostingFromFirst(0.1), EqualVotes()]
    assert [p.has_bound for p in policies] == [True, False, False]


def test_without_a_rate_not_a_bit_of_the_weights_changes():
    """Dividing by their sum would change some: it is 1 - 1e-16 here."""
    first = np.array([0.1, 0.2, 0.3, 0.15, 0.25]) / 1.0000000000000002
    assert first.sum() != 1
    booster = Booster(first, 2, Boosting(deviation_rate=0.0))
    stage = booster.add(np.array([True, True, True, True, False]))
    assert stage.is_member
    assert (stage.normaliser, stage.bound) == (1, 1)
    assert booster.distribution.tobytes() == first.tobytes()
