"""Tests of the arithmetic of CBNN."""

import dataclasses
import math
from fractions import Fraction
from typing import NamedTuple

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits, load_iris, make_classification
from sklearn.ensemble import AdaBoostClassifier
from sklearn.tree import DecisionTreeClassifier

from cbnn_keras import boosting
from cbnn_keras.boosting import (
    Booster,
    exponential_loss,
    is_better_than_chance,
    is_within_budget,
    stage_error,
    stage_normaliser,
    stage_vote,
    update_weights,
)
from cbnn_keras.boosting_policies import Boosting
from cbnn_keras.data.sample_weights import SampleWeights

# The same examples on every machine; no deadline, as CI machines stall.
reproducible = settings(derandomize=True, deadline=None, max_examples=100)

LOG3 = math.log(3)


def bits(text):
    """`"1101"` -> which samples are right."""
    return np.array([letter == "1" for letter in text])


# --- Values worked out by hand ---


@pytest.mark.parametrize(
    ("weights", "correct", "expected"),
    [
        ([0.1, 0.2, 0.3, 0.4], "1010", 0.6),  # 0.2 + 0.4
        ([0.25, 0.25, 0.25, 0.25], "1110", 0.25),
        ([0.25, 0.25, 0.25, 0.25], "1111", 0.0),
        ([0.25, 0.25, 0.25, 0.25], "0000", 1.0),
        ([0.0, 0.5, 0.5], "011", 0.0),  # a sample without weight costs nothing
    ],
)
def test_error_is_the_weight_of_the_misclassified(weights, correct, expected):
    error = stage_error(np.array(weights), bits(correct))
    assert error == pytest.approx(expected, rel=1e-15, abs=0)


@pytest.mark.parametrize(
    ("error", "num_classes", "smallest_weight", "expected"),
    [
        (1 / 4, 2, 0.0, LOG3),  # (3/4) / (1/4) = 3, log(2 - 1) = 0
        (1 / 4, 4, 0.0, math.log(9)),  # 3 * (4 - 1)
        (1 / 5, 3, 0.0, math.log(8)),  # 4 * (3 - 1)
        (1 / 20, 100, 0.0, math.log(1881)),  # 19 * 99, the paper's 7.54
        # At chance, e = 1 - 1/k: (1 - e) / e = 1 / (k - 1), so log(1).
        (1 / 2, 2, 0.0, 0.0),
        (2 / 3, 3, 0.0, 0.0),
        (9 / 10, 10, 0.0, 0.0),
        # Worse than chance: (1/4) / (3/4) = 1/3.
        (3 / 4, 2, 0.0, -LOG3),
        # Perfect: half a sample, 0.05, is wrong: 0.95 / 0.05 = 19.
        (0.0, 2, 0.1, math.log(19)),
        (0.0, 3, 0.5, math.log(6)),  # 0.75 / 0.25 * (3 - 1)
        # Less than half a sample counts as half a sample ...
        (0.04, 2, 0.1, math.log(19)),
        # ... and more than half counts as it is: 0.94 / 0.06.
        (0.06, 2, 0.1, math.log(47 / 3)),
    ],
)
def test_vote(error, num_classes, smallest_weight, expected):
    vote = stage_vote(error, num_classes, smallest_weight)
    assert vote == pytest.approx(expected, rel=1e-14, abs=1e-15)


def test_vote_has_no_floor_unless_given_one():
    # 1e-9 is below half of any sample of a set that would fit into memory.
    expected = math.log(999_999_999)  # (1 - 1e-9) / 1e-9
    assert stage_vote(1e-9, 2) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("num_classes", [2, 3, 7, 10, 11, 19, 100, 1000])
def test_error_exactly_at_chance_is_not_better_than_chance(num_classes):
    # Both roundings of the same number: for some k they differ, as for 3.
    assert not is_better_than_chance(1 - 1 / num_classes, num_classes)
    assert not is_better_than_chance(
        (num_classes - 1) / num_classes, num_classes
    )


@pytest.mark.parametrize(
    ("error", "num_classes", "expected"),
    [
        (0.0, 2, True),
        (0.499, 2, True),
        (0.501, 2, False),
        (0.501, 3, True),  # the same error, but chance is 2/3 here
        (0.899, 10, True),
        (0.901, 10, False),
        (1.0, 1000, False),
    ],
)
def test_better_than_chance(error, num_classes, expected):
    assert is_better_than_chance(error, num_classes) is expected


@pytest.mark.parametrize(
    ("error", "vote", "deviation_rate", "expected"),
    [
        (1 / 4, LOG3, 1.0, 1 / 2),  # 3/4 * 1/3 + 1/4
        (1 / 4, math.log(9), 0.5, 1 / 2),  # exp(-log(9) / 2) = 1/3, as above
        (1 / 5, math.log(8), 1 / 3, 3 / 5),  # 4/5 * 1/2 + 1/5
        (0.0, math.log(19), 1.0, 1 / 19),  # perfect: exp(-log(19)) alone
        (1.0, LOG3, 1.0, 1.0),  # nothing right, so nothing shrinks
        (1 / 4, LOG3, 0.0, 1.0),  # eta = 0: nothing shrinks
        (1 / 4, 0.0, 1.0, 1.0),  # no vote: nothing shrinks
    ],
)
def test_normaliser(error, vote, deviation_rate, expected):
    normaliser = stage_normaliser(error, vote, deviation_rate)
    assert normaliser == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("weights", "correct", "vote", "deviation_rate", "expected"),
    [
        # Right: 1/4 * 1/3 = 1/12. Sum 3/12 + 1/4 = 1/2.
        ([1 / 4] * 4, "1110", LOG3, 1.0, [1 / 6, 1 / 6, 1 / 6, 1 / 2]),
        # exp(-log(4) / 2) = 1/2: 0.5, 0.15, 0.1, which sum to 0.75.
        ([0.5, 0.3, 0.2], "011", math.log(4), 0.5, [2 / 3, 1 / 5, 2 / 15]),
        # eta = 0, all right and all wrong: every weight changes alike.
        ([0.5, 0.3, 0.2], "011", math.log(4), 0.0, [0.5, 0.3, 0.2]),
        ([0.5, 0.3, 0.2], "111", math.log(4), 0.5, [0.5, 0.3, 0.2]),
        ([0.5, 0.3, 0.2], "000", math.log(4), 0.5, [0.5, 0.3, 0.2]),
        # Without weight before, without weight after; 1/6 + 1/2 = 2/3.
        ([0.0, 0.5, 0.5], "010", LOG3, 1.0, [0.0, 1 / 4, 3 / 4]),
    ],
)
def test_update(weights, correct, vote, deviation_rate, expected):
    updated = update_weights(
        np.array(weights), bits(correct), vote, deviation_rate
    )
    np.testing.assert_allclose(updated, expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("weights", "true_class_votes", "total_vote", "expected"),
    [
        # Shares of the votes 1 and 0.
        ([0.5, 0.5], [2.0, 0.0], 2.0, (math.exp(-1) + 1) / 2),
        # Shares 3/4 and 1/4, under a distribution that is not uniform.
        (
            [0.25, 0.75],
            [3.0, 1.0],
            4.0,
            0.25 * math.exp(-0.75) + 0.75 * math.exp(-0.25),
        ),
        ([0.2, 0.8], [5.0, 5.0], 5.0, math.exp(-1)),  # all right: the least
        ([0.2, 0.8], [0.0, 0.0], 5.0, 1.0),  # all wrong: the most
    ],
)
def test_exponential_loss(weights, true_class_votes, total_vote, expected):
    loss = exponential_loss(
        np.array(weights), np.array(true_class_votes), total_vote
    )
    assert loss == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("votes", "deviation_rate", "reserved_vote", "expected"),
    [
        ([1.0, 0.5], 0.5, 0.0, True),  # 1.5 < 2
        ([1.0, 1.0], 0.5, 0.0, False),  # 2 is not below 2
        ([1.0, 0.5], 0.5, 0.25, True),  # 1.75 < 2
        ([1.0, 0.5], 0.5, 0.5, False),  # 2 is not below 2
        ([], 0.5, 1.75, True),
        ([], 0.5, 2.5, False),
        ([1e300], 0.0, 1e300, True),  # eta = 0: no limit
    ],
)
def test_budget(votes, deviation_rate, reserved_vote, expected):
    assert is_within_budget(votes, deviation_rate, reserved_vote) is expected


# --- SAMME, as scikit-learn does it ---


class RecordingTree(DecisionTreeClassifier):
    """Keeps the weights AdaBoost gives it, which AdaBoost does not show."""

    def fit(self, x, y, sample_weight=None):
        self.sample_weight_ = sample_weight / sample_weight.sum()
        return super().fit(x, y, sample_weight=sample_weight)


def three_classes():
    return make_classification(
        300, n_informative=6, n_classes=3, flip_y=0.2, random_state=5
    )


def two_classes():
    return make_classification(200, flip_y=0.2, random_state=7)


@pytest.mark.parametrize(
    ("load", "depth"),
    [
        (lambda: load_digits(return_X_y=True), 1),
        (lambda: load_digits(return_X_y=True), 3),
        (lambda: load_iris(return_X_y=True), 1),
        (three_classes, 2),
        (two_classes, 1),
    ],
    ids=["digits-1", "digits-3", "iris-1", "three-2", "two-1"],
)
@pytest.mark.parametrize("is_uniform", [True, False])
def test_deviation_rate_one_is_samme_of_scikit_learn(load, depth, is_uniform):
    x, y = load()
    distribution = np.random.default_rng(3).uniform(0.5, 2.0, len(y))
    if is_uniform:
        distribution = np.ones(len(y))
    distribution /= distribution.sum()
    num_rounds = 12
    boosted = AdaBoostClassifier(
        RecordingTree(max_depth=depth),
        n_estimators=num_rounds,
        learning_rate=1.0,
        random_state=0,
    ).fit(x, y, sample_weight=distribution)
    # Otherwise scikit-learn stopped early, or clipped a perfect stage.
    assert len(boosted.estimators_) == num_rounds
    assert boosted.estimator_errors_.min() > 1e-3

    booster = Booster(
        distribution, len(boosted.classes_), Boosting(deviation_rate=1.0)
    )
    for tree, error, vote in zip(
        boosted.estimators_,
        boosted.estimator_errors_,
        boosted.estimator_weights_,
        strict=True,
    ):
        np.testing.assert_allclose(
            booster.distribution, tree.sample_weight_, rtol=1e-12
        )
        stage = booster.add(tree.predict(x) == y)
        assert stage.error == pytest.approx(error, rel=1e-12)
        assert stage.vote == pytest.approx(vote, rel=1e-12)
    np.testing.assert_allclose(
        booster.votes, boosted.estimator_weights_, rtol=1e-12
    )


# --- Properties ---


class Rounds(NamedTuple):
    """What a run feeds to a `Booster`."""

    correct: np.ndarray  # (num_rounds, num_samples)
    num_classes: int
    deviation_rate: float
    distribution: np.ndarray

    def booster(self):
        return Booster(
            self.distribution, self.num_classes, Boosting(self.deviation_rate)
        )


@st.composite
def distributions(draw, num_samples):
    counts = draw(
        hnp.arrays(np.int64, num_samples, elements=st.integers(0, 1000))
    )
    # One sample alone is no data set to boost on.
    assume(np.count_nonzero(counts) >= 2)
    return counts / counts.sum()


@st.composite
def rounds(draw, *, is_uniform=False):
    num_samples = draw(st.integers(2, 12))
    num_rounds = draw(st.integers(1, 6))
    uniform = np.full(num_samples, 1 / num_samples)
    return Rounds(
        correct=draw(hnp.arrays(np.bool_, (num_rounds, num_samples))),
        num_classes=draw(st.integers(2, 20)),
        deviation_rate=draw(st.floats(0, 1)),
        distribution=uniform
        if is_uniform
        else draw(st.one_of(st.just(uniform), distributions(num_samples))),
    )


def vote_sums(stages, correct):
    """Votes for the right class of each sample, and all votes, by a loop."""
    for_truth = [0.0] * correct.shape[1]
    total = 0.0
    for stage, row in zip(stages, correct, strict=False):
        total += stage.vote
        for sample, is_correct in enumerate(row):
            for_truth[sample] += stage.vote if is_correct else 0.0
    return for_truth, total


@reproducible
@given(rounds(), st.booleans())
def test_theorem_1_loss_is_below_the_bound(case, has_final):
    booster = case.booster()
    stages = []
    num_checked = 0
    for index, correct in enumerate(case.correct):
        is_final = has_final and index == len(case.correct) - 1
        stages.append(booster.add(correct, is_final=is_final))
        for_truth, total = vote_sums(stages, case.correct)
        if case.deviation_rate * total >= 1:
            break
        if total == 0:
            assert stages[-1].exponential_loss == 1.0
            continue
        loss = sum(
            weight * math.exp(-votes / total)
            for weight, votes in zip(case.distribution, for_truth, strict=True)
        )
        assert stages[-1].exponential_loss == pytest.approx(loss, rel=1e-12)
        assert loss <= stages[-1].bound * (1 + 1e-12)
        num_checked += 1
    assume(num_checked)


@reproducible
@given(rounds())
def test_bound_is_the_loss_without_the_mean(case):
    # The telescope in the proof of theorem 1:
    # prod Z = sum of omega_1i * exp(-eta * sum of lambda * correct).
    booster = case.booster()
    stages = []
    for correct in case.correct:
        stages.append(booster.add(correct))
        for_truth, _ = vote_sums(stages, case.correct)
        telescope = sum(
            weight * math.exp(-case.deviation_rate * votes)
            for weight, votes in zip(case.distribution, for_truth, strict=True)
        )
        assert stages[-1].bound == pytest.approx(telescope, rel=1e-12)
    assume(booster.votes)


@reproducible
@given(rounds())
def test_theorem_2_every_member_lowers_the_bound(case):
    booster = case.booster()
    bound = 1.0
    num_checked = 0
    for correct in case.correct:
        stage = booster.add(correct)
        # 1 - Z = (1 - e) * (1 - exp(-eta * lambda)), which float64 cannot tell
        # from 0 where eta * lambda is about 1e-16.
        if stage.vote * case.deviation_rate > 1e-12:
            assert stage.normaliser < 1
            assert stage.bound < bound
            num_checked += 1
        else:
            assert stage.normaliser == pytest.approx(1, rel=1e-11)
        bound = stage.bound
    assume(num_checked)


@reproducible
@given(rounds(is_uniform=True))
def test_weights_stay_within_a_factor_of_each_other(case):
    booster = case.booster()
    for correct in case.correct:
        booster.add(correct)
        # By multiplication: a quotient of weights may overflow.
        limit = math.exp(case.deviation_rate * sum(booster.votes))
        largest = booster.distribution.min() * limit * (1 + 1e-12)
        assert booster.distribution.max() <= largest
    assume(booster.votes)


@reproducible
@given(rounds())
def test_weights_stay_a_distribution(case):
    booster = case.booster()
    for correct in case.correct:
        booster.add(correct)
        assert booster.distribution.shape == case.distribution.shape
        assert booster.distribution.dtype == np.float64
        assert np.isfinite(booster.distribution).all()
        assert (booster.distribution >= 0).all()
        assert booster.distribution.sum() == pytest.approx(1, rel=1e-12)
    assume(booster.votes)


@reproducible
@given(rounds(), st.randoms(use_true_random=False))
def test_order_of_samples_does_not_matter(case, random):
    order = list(range(len(case.distribution)))
    random.shuffle(order)
    permuted = case._replace(
        correct=case.correct[:, order], distribution=case.distribution[order]
    )
    booster, other = case.booster(), permuted.booster()
    for correct, other_correct in zip(
        case.correct, permuted.correct, strict=True
    ):
        stage, other_stage = booster.add(correct), other.add(other_correct)
        # Absolute: a vote near 0 is a difference of equal logarithms.
        assert other_stage.vote == pytest.approx(stage.vote, abs=1e-12)
        assert other_stage.bound == pytest.approx(stage.bound, rel=1e-12)
        np.testing.assert_allclose(
            other.distribution, booster.distribution[order], rtol=1e-12
        )
    assume(booster.votes)


@reproducible
@given(rounds(), st.data())
def test_zero_weight_equals_dropped_sample(case, data):
    num_extra = data.draw(st.integers(1, 4))
    extra = data.draw(hnp.arrays(np.bool_, (len(case.correct), num_extra)))
    # In front, so that it is not only the tail that is ignored.
    padded = case._replace(
        correct=np.hstack([extra, case.correct]),
        distribution=np.concatenate([np.zeros(num_extra), case.distribution]),
    )
    booster, other = case.booster(), padded.booster()
    for correct, other_correct in zip(
        case.correct, padded.correct, strict=True
    ):
        stage, other_stage = booster.add(correct), other.add(other_correct)
        assert other_stage.error == pytest.approx(stage.error, rel=1e-12)
        assert other_stage.vote == pytest.approx(stage.vote, abs=1e-12)
        assert other_stage.bound == pytest.approx(stage.bound, rel=1e-12)
        # The sum of votes nearly 0 has no digits the loss could share.
        if stage.is_member and sum(booster.votes) > 1e-3:
            assert other_stage.exponential_loss == pytest.approx(
                stage.exponential_loss, rel=1e-12
            )
        np.testing.assert_array_equal(other.distribution[:num_extra], 0)
        np.testing.assert_allclose(
            other.distribution[num_extra:], booster.distribution, rtol=1e-12
        )
    assume(booster.votes)


@reproducible
@given(rounds(), st.floats(0, 20))
def test_normaliser_equals_its_definition(case, vote):
    # Eq. 7, which theorem 2 turns into the closed form.
    for correct in case.correct:
        definition = sum(
            weight * math.exp(-case.deviation_rate * vote * is_correct)
            for weight, is_correct in zip(
                case.distribution, correct, strict=True
            )
        )
        normaliser = stage_normaliser(
            stage_error(case.distribution, correct), vote, case.deviation_rate
        )
        assert normaliser == pytest.approx(definition, rel=1e-12)


@reproducible
@given(rounds())
def test_deviation_rate_one_brings_a_member_down_to_chance(case):
    # SAMME: under the new weights the old stage is worth nothing.
    booster = Booster(
        case.distribution, case.num_classes, Boosting(deviation_rate=1.0)
    )
    num_checked = 0
    for correct in case.correct:
        stage = booster.add(correct)
        if stage.is_member and stage.error > 0:
            error = stage_error(booster.distribution, correct)
            chance = 1 - 1 / case.num_classes
            assert error == pytest.approx(chance, rel=1e-12)
            num_checked += 1
    assume(num_checked)


# --- Booster ---


def test_booster_of_three_rounds_by_hand():
    # Four samples, k = 2, eta = 1. Lambda = log((1-e)/e), exp(-lambda) its
    # inverse.
    booster = Booster(np.full(4, 1 / 4), 2, Boosting(deviation_rate=1.0))

    first = booster.add(bits("1110"))
    assert first.error == pytest.approx(1 / 4)
    assert first.vote == pytest.approx(math.log(3))
    assert first.normaliser == pytest.approx(1 / 2)  # 3/4 * 1/3 + 1/4
    assert first.bound == pytest.approx(1 / 2)
    # One member: its share is 1 on three samples and 0 on the last.
    assert first.exponential_loss == pytest.approx((3 * math.exp(-1) + 1) / 4)
    np.testing.assert_allclose(
        booster.distribution, [1 / 6, 1 / 6, 1 / 6, 1 / 2]
    )

    second = booster.add(bits("0111"))
    assert second.error == pytest.approx(1 / 6)
    assert second.vote == pytest.approx(math.log(5))
    assert second.normaliser == pytest.approx(1 / 3)  # 5/6 * 1/5 + 1/6
    assert second.bound == pytest.approx(1 / 6)
    # 1/6 * 3; 1/6 * 1/5 * 3, twice; 1/2 * 1/5 * 3.
    weights = [1 / 2, 1 / 10, 1 / 10, 3 / 10]
    np.testing.assert_allclose(booster.distribution, weights)

    third = booster.add(bits("1011"), is_final=True)
    assert third.error == pytest.approx(1 / 10)
    assert third.vote == pytest.approx(math.log(9))
    assert third.normaliser == pytest.approx(1 / 5)  # 9/10 * 1/9 + 1/10
    assert third.bound == pytest.approx(1 / 30)
    # The final model is not followed by training: its weights stay.
    np.testing.assert_allclose(booster.distribution, weights)
    # log 3 + log 5 + log 9 in all; each sample lacks what got it wrong.
    total = math.log(135)
    shares = [math.log(27), math.log(15), math.log(135), math.log(45)]
    loss = sum(math.exp(-share / total) for share in shares) / 4
    assert third.exponential_loss == pytest.approx(loss)
    votes = [math.log(3), math.log(5), math.log(9)]
    np.testing.assert_allclose(booster.votes, votes)
    stages = (first, second, third)
    assert all(stage.is_member for stage in stages)
    assert [stage.is_final for stage in stages] == [False, False, True]


def test_perfect_stage_is_half_a_sample_wrong_for_its_vote_only():
    # The smallest positive weight is 1/4: e counts as 1/8, (7/8) / (1/8) = 7.
    # Z uses e = 0 as it is: exp(-log(7) / 2). With 1/8 it would be 0.456.
    distribution = np.array([0.0, 0.25, 0.25, 0.5])
    booster = Booster(distribution, 2, Boosting(deviation_rate=0.5))
    stage = booster.add(bits("1111"))
    assert stage.error == 0.0
    assert stage.vote == pytest.approx(math.log(7), rel=1e-14)
    assert stage.normaliser == pytest.approx(1 / math.sqrt(7), rel=1e-14)
    assert stage.exponential_loss == pytest.approx(math.exp(-1), rel=1e-14)
    assert stage.is_member
    np.testing.assert_allclose(booster.distribution, distribution, rtol=1e-14)


def test_floor_follows_the_current_weights():
    # eta = 1, k = 2: 1/6, 1/6, 1/6, 1/2 after the first round. A perfect
    # second stage counts as 1/12 wrong, and not as 1/8: 11, and not 7.
    booster = Booster(np.full(4, 1 / 4), 2, Boosting(deviation_rate=1.0))
    booster.add(bits("1110"))
    stage = booster.add(bits("1111"))
    assert stage.vote == pytest.approx(math.log(11), rel=1e-14)


def test_deviation_rate_zero_changes_no_weight():
    # Bit-identical, so that the run is that of plain Keras. Weights that are
    # powers of 2 sum to exactly 1.
    distribution = np.array([0.5, 0.25, 0.125, 0.125])
    booster = Booster(distribution, 3, Boosting(deviation_rate=0.0))
    for correct in ("1000", "1111", "0111"):
        stage = booster.add(bits(correct))
        assert stage.is_member and stage.normaliser == 1.0
        np.testing.assert_array_equal(booster.distribution, distribution)
    assert booster.bound == 1.0
    assert stage.within_budget and booster.may_continue()


@pytest.mark.parametrize(
    ("correct", "num_classes"),
    [
        ("1100", 2),  # e = 1/2, exactly at chance
        ("1000", 2),  # e = 3/4
        ("1000", 4),  # e = 3/4, exactly at chance
        ("0000", 10),  # e = 1, where the vote would be -infinity
    ],
)
def test_stage_no_better_than_chance_is_not_a_member(correct, num_classes):
    booster = Booster(
        np.full(4, 0.25), num_classes, Boosting(deviation_rate=0.5)
    )
    stage = booster.add(bits(correct))
    assert stage.error == bits(correct).tolist().count(False) / 4
    assert not stage.is_member
    assert (stage.vote, stage.normaliser, stage.bound) == (0.0, 1.0, 1.0)
    assert stage.exponential_loss == 1.0
    assert booster.votes == []
    np.testing.assert_array_equal(booster.distribution, np.full(4, 0.25))


def test_no_member_amid_members_leaves_their_state_alone():
    booster = Booster(np.full(4, 0.25), 2, Boosting(deviation_rate=0.5))
    member = booster.add(bits("1110"))
    weights, votes = booster.distribution.copy(), list(booster.votes)
    stage = booster.add(bits("0001"))
    assert not stage.is_member
    assert (stage.vote, stage.normaliser) == (0.0, 1.0)
    assert stage.bound == member.bound
    assert stage.exponential_loss == member.exponential_loss
    assert booster.votes == votes
    np.testing.assert_array_equal(booster.distribution, weights)


def test_final_stage_records_but_does_not_reweight():
    distribution = np.array([0.1, 0.2, 0.3, 0.4])
    booster = Booster(distribution, 2, Boosting(deviation_rate=0.5))
    # e = 0.2: lambda = log(4), exp(-lambda / 2) = 1/2, Z = 0.8 / 2 + 0.2.
    stage = booster.add(bits("1011"), is_final=True)
    assert stage.error == pytest.approx(0.2)
    assert stage.vote == pytest.approx(math.log(4))
    assert stage.normaliser == pytest.approx(0.6)
    assert stage.bound == pytest.approx(0.6)
    assert stage.is_member
    np.testing.assert_array_equal(booster.distribution, distribution)


@pytest.mark.parametrize("correct", ["1100", "1000", "0000"])
def test_lone_final_model_is_a_member_even_if_no_better_than_chance(correct):
    booster = Booster(np.full(4, 0.25), 2, Boosting(deviation_rate=0.01))
    booster.add(bits("0001"))  # no member either
    stage = booster.add(bits(correct), is_final=True)
    assert stage.is_member
    assert stage.vote == 1.0
    # The bound has gained nothing: theorem 2 needs a positive lambda.
    assert (stage.normaliser, stage.bound) == (1.0, 1.0)
    assert booster.votes == [1.0]
    num_right = bits(correct).sum()
    loss = (num_right * math.exp(-1) + 4 - num_right) / 4
    assert stage.exponential_loss == pytest.approx(loss, rel=1e-14)
    np.testing.assert_array_equal(booster.distribution, np.full(4, 0.25))


def test_final_model_no_better_than_chance_does_not_join_members():
    booster = Booster(np.full(4, 0.25), 2, Boosting(deviation_rate=0.01))
    member = booster.add(bits("1110"))
    stage = booster.add(bits("0001"), is_final=True)
    assert not stage.is_member
    assert stage.vote == 0.0
    assert stage.bound == member.bound
    assert booster.votes == [member.vote]


@reproducible
@given(rounds(), st.floats(0.01, 0.45))
def test_stop_rule_is_line_3_of_algorithm_1(case, expected_error):
    # 1 / eta, unlike the code; an eta of 0 has its own test.
    assume(case.deviation_rate > 1e-3)
    limit = 1 / case.deviation_rate
    booster = Booster(
        case.distribution,
        case.num_classes,
        Boosting(case.deviation_rate, expected_error),
    )
    sum_of_votes = math.log((1 - expected_error) / expected_error)
    sum_of_votes += math.log(case.num_classes - 1)  # lambda_0
    for correct in case.correct:
        assume(abs(sum_of_votes - limit) > 1e-9)  # may round either way
        assert booster.may_continue() == (sum_of_votes < limit)
        sum_of_votes += booster.add(correct).vote
    assume(abs(sum_of_votes - limit) > 1e-9)
    assert booster.may_continue() == (sum_of_votes < limit)


def test_stop_rule_expects_an_error_of_a_twentieth_unless_told():
    # k = 2: lambda_0 = log(0.95 / 0.05) = log(19).
    limit = math.log(19)
    weights = np.full(4, 0.25)
    assert Booster(weights, 2, Boosting(1 / (limit + 1e-6))).may_continue()
    assert not Booster(weights, 2, Boosting(1 / (limit - 1e-6))).may_continue()


def test_deviation_rate_is_a_hundredth_unless_told():
    stage = Booster(np.full(4, 0.25), 2, Boosting()).add(bits("1110"))
    expected = 0.75 * 3**-0.01 + 0.25  # exp(-0.01 * log(3))
    assert stage.normaliser == pytest.approx(expected, rel=1e-14)


def test_votes_may_pass_the_budget_by_the_one_not_yet_known():
    # 1/eta = 2, lambda_0 = log(0.6 / 0.4) = 0.41. First lambda: log(3) = 1.10,
    # so the rule allows another: 0.41 + 1.10 < 2. Weights after it: 0.211 for
    # the right, 0.366 for the wrong. Second lambda: log(0.789 / 0.211) = 1.32;
    # 1.10 + 1.32 > 2.
    booster = Booster(np.full(4, 0.25), 2, Boosting(0.5, expected_error=0.4))
    assert booster.add(bits("1110")).within_budget
    assert booster.may_continue()
    stage = booster.add(bits("0111"))
    assert stage.is_member
    assert not stage.within_budget
    assert not booster.may_continue()


def test_budget_of_a_stage_does_not_reserve_the_final_vote():
    # 1/eta = 2, lambda_0 = log(19) = 2.94: no checkpoint may follow, but the
    # theorem holds for what there is, log(3) = 1.10.
    booster = Booster(np.full(4, 0.25), 2, Boosting(0.5))
    assert not booster.may_continue()
    assert booster.add(bits("1110")).within_budget


@reproducible
@given(rounds(), st.booleans())
def test_replay_of_the_same_bits_is_bit_identical(case, has_final):
    # From the same array: a Booster that wrote to it would not start alike.
    before = case.distribution.copy()
    states = []
    for _ in range(2):
        booster = case.booster()
        stages = [
            booster.add(row, is_final=has_final and index == len(case.correct))
            for index, row in enumerate(case.correct, start=1)
        ]
        states.append((stages, booster.votes, booster.distribution.tobytes()))
    assert states[0] == states[1]
    np.testing.assert_array_equal(case.distribution, before)
    assume(booster.votes)


@pytest.mark.parametrize(("n", "k"), [(14, 2), (200, 2), (50_000, 100)])
def test_constant_prediction_on_balanced_classes_is_no_member(n, k):
    """Rounding of the sum of n weights must not let it pass."""
    booster = Booster(np.full(n, 1 / n), k, Boosting())
    assert not booster.add(np.arange(n) % k == 0).is_member


def test_a_single_sample_of_two_classes_gives_no_vote():
    """Half a sample wrong is an error of 1/2, which is chance."""
    stage = Booster(np.ones(1), 2, Boosting()).add(np.array([True]))
    assert (stage.is_member, stage.vote) == (False, 0.0)
    assert stage.exponential_loss == 1


def test_an_absurd_rate_leaves_weights_finite():
    weights = update_weights(np.full(4, 0.25), np.ones(4, bool), 3.0, 500.0)
    np.testing.assert_array_equal(weights, np.full(4, 0.25))


# --- Weights and rates at the ends of what a float64 can hold ---


@st.composite
def extreme_rounds(draw):
    """Weights from 5e-324 to 1.8e308 side by side, and any rate at all."""
    n = draw(st.integers(1, 8))
    any_number = st.floats(0, allow_infinity=False, allow_nan=False)
    special = st.sampled_from([0.0, 5e-324, 1e-320, 1e-300, 1.0, 1e308])
    weights = draw(st.lists(special | any_number, min_size=n, max_size=n))
    assume(any(weights))
    correct = st.lists(st.booleans(), min_size=n, max_size=n)
    rounds = draw(st.lists(correct, min_size=1, max_size=6))
    rate = draw(st.sampled_from([0.0, 0.01, 1.0, 1e3, 1e308]) | any_number)
    return weights, np.array(rounds), rate, draw(st.integers(2, 1000))


@reproducible
@given(extreme_rounds())
def test_extreme_weights_and_rates_give_numbers(case):
    given_weights, rounds, rate, num_classes = case
    weights = SampleWeights(len(given_weights), sample_weight=given_weights)
    # The shares, by exact arithmetic.
    exact = [Fraction(weight) for weight in given_weights]
    shares = [float(weight / sum(exact)) for weight in exact]
    np.testing.assert_allclose(
        weights.distribution, shares, rtol=1e-14, atol=5e-324
    )
    booster = Booster(weights.distribution, num_classes, Boosting(rate))
    for number, correct in enumerate(rounds, start=1):
        stage = booster.add(correct, is_final=number == len(rounds))
        assert np.isfinite(dataclasses.astuple(stage)).all()
        assert stage.vote >= 0
        assert 0 <= stage.bound <= 1 + 1e-12
        assert (booster.distribution >= 0).all()
        assert booster.distribution.sum() == pytest.approx(1)
        weights.assign(booster.distribution)
        assert np.isfinite(weights.variable).all()


def test_smallest_weight_there_is_gives_a_vote_that_is_a_number():
    """Half of 5e-324 is 0, and one divided by it infinite."""
    booster = Booster(np.array([5e-324, 1.0]), 2, Boosting())
    stage = booster.add(np.array([True, True]))
    # -log of the smallest float64 that is not denormal, 2 ** -1022.
    assert stage.vote == pytest.approx(1022 * math.log(2))


def test_perfect_where_it_weighs_changes_nothing_at_any_rate():
    """What is wrong weighs nothing: all that has a weight loses it alike."""
    weights = np.array([0.25, 0.75, 0.0])
    updated = update_weights(weights, bits("110"), 10.0, deviation_rate=1e4)
    np.testing.assert_array_equal(updated, weights)


def test_rate_of_a_ratio_gives_just_that_ratio():
    """One sample that all checkpoints get wrong, at the expected error."""
    num_samples, k, error = 20, 4, 0.05
    rate = boosting.rate_of_ratio(3.0, 5, error, k)
    correct = np.ones(num_samples, bool)
    correct[0] = False  # 1 of 20 samples is 5 %
    weights = np.full(num_samples, 1 / num_samples)
    vote = np.log(0.95 / 0.05) + np.log(k - 1)
    for _ in range(4):  # the final model changes nothing
        weights = weights * np.exp(-rate * vote * correct)
    assert weights[0] / weights[1] == pytest.approx(3.0)
    assert boosting.rate_of_ratio(1.0, 5, error, k) == 0


def test_the_only_checkpoint_has_its_vote_also_without_reweighting():
    booster = Booster(np.full(4, 0.25), 3, Boosting(deviation_rate=0.0))
    correct = np.array([True, True, True, False])
    stage = booster.add(correct, is_final=True)
    assert stage.vote == pytest.approx(np.log(3) + np.log(2))
