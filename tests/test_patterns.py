"""Tests of the arithmetic by patterns, against that with a number a sample."""

import dataclasses
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbnn_keras import metrics, patterns
from cbnn_keras.boosting import Booster
from cbnn_keras.boosting_policies import Boosting, BoostingFromFirst, EqualVotes
from cbnn_keras.patterns import (
    GroupedWeights,
    PatternBooster,
    Patterns,
    begin_boosting,
    grouped,
    uniform,
)

reproducible = settings(derandomize=True, deadline=None, max_examples=150)


@pytest.fixture
def few_are_large(monkeypatch):
    """Patterns for tests that cannot have 2^24 samples."""
    monkeypatch.setattr(patterns, "LARGE", 3)
    monkeypatch.setattr(patterns, "_CHUNK", 5)  # several, and a short one


class Case(NamedTuple):
    correct: np.ndarray  # (num_rounds, num_samples)
    first: GroupedWeights
    num_classes: int
    policy: object
    has_final: bool

    def rounds(self):
        last = len(self.correct) - 1
        for number, correct in enumerate(self.correct):
            yield correct, self.has_final and number == last


@st.composite
def cases(draw):
    num_samples = draw(st.integers(2, 60))
    num_groups = draw(st.integers(1, 5))
    groups = draw(
        hnp.arrays(
            np.uint8, num_samples, elements=st.integers(0, num_groups - 1)
        )
    )
    # 0 is a weight too, but not of all.
    values = np.array(
        draw(
            st.lists(
                st.integers(0, 9), min_size=num_groups, max_size=num_groups
            )
        ),
        float,
    )
    values[groups[0]] += 1
    rate = draw(st.sampled_from([0.0, 0.01, 0.3, 1.0]))
    # Mostly right, mostly wrong (no member), or a coin.
    shares = draw(
        st.lists(st.sampled_from([0.1, 0.5, 0.9, 1.0]), min_size=1, max_size=12)
    )
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return Case(
        generator.random((len(shares), num_samples))
        < np.array(shares)[:, None],
        GroupedWeights(groups, values / values[groups].sum()),
        draw(st.integers(2, 10)),
        draw(
            st.sampled_from(
                [Boosting(rate), BoostingFromFirst(rate), EqualVotes()]
            )
        ),
        draw(st.booleans()),
    )


@reproducible
@given(cases())
def test_patterns_give_what_a_number_a_sample_gives(case):
    booster = PatternBooster(case.first, case.num_classes, case.policy)
    dense = Booster(case.first.dense(), case.num_classes, case.policy)
    for correct, is_final in case.rounds():
        assert booster.may_continue() == dense.may_continue()
        stage = dataclasses.asdict(booster.add(correct, is_final=is_final))
        expected = dataclasses.asdict(dense.add(correct, is_final=is_final))
        assert stage == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert stage["is_member"] == expected["is_member"]
        np.testing.assert_allclose(
            booster.distribution, dense.distribution, rtol=1e-12
        )
    np.testing.assert_allclose(booster.votes, dense.votes, rtol=1e-12)
    assert booster.bound == pytest.approx(dense.bound, rel=1e-12)


def test_votes_of_many_samples_and_rounds():
    """Where a sum of as many floats is no longer exact."""
    generator = np.random.default_rng(0)
    groups = generator.integers(0, 3, 300_000).astype(np.uint8)
    values = np.array([1.0, 2.5, 0.1])
    first = GroupedWeights(groups, values / values[groups].sum())
    booster = PatternBooster(first, 10, Boosting(0.05))
    dense = Booster(first.dense(), 10, Boosting(0.05))
    is_hard = generator.random(300_000)
    for share in np.linspace(0.5, 0.02, 12):
        correct = generator.random(300_000) > share * 2 * is_hard
        booster.add(correct)
        dense.add(correct)
    assert len(booster.votes) == 12
    np.testing.assert_allclose(booster.votes, dense.votes, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        booster.distribution, dense.distribution, rtol=1e-12
    )
    # 3 groups and 12 rounds have far more than 256 patterns.
    assert booster.weights.groups.dtype == np.uint16
    assert len(booster.weights.values) > 256


def all_reduce(num_hosts):
    """What adds counts over threads, each of which is a host."""
    barrier = threading.Barrier(num_hosts)
    counts = {}

    def exchange(own):
        counts[threading.get_ident()] = own
        barrier.wait()
        total = sum(counts.values())
        barrier.wait()
        return total

    return exchange


@pytest.mark.parametrize("num_hosts", [1, 2, 5])
def test_hosts_that_exchange_counts_agree_to_the_last_bit(num_hosts):
    generator = np.random.default_rng(1)
    groups = np.sort(generator.integers(0, 2, 1000)).astype(np.uint8)
    values = np.array([1.0, 4.0]) / np.array([1.0, 4.0])[groups].sum()
    correct = generator.random((5, 1000)) < [[0.6], [0.8], [0.1], [0.9], [0.95]]
    alone = PatternBooster(GroupedWeights(groups, values), 3, Boosting(0.2))
    expected = [alone.add(row) for row in correct]
    assert [stage.is_member for stage in expected] == [True, True, False] + [
        True
    ] * 2
    exchange = all_reduce(num_hosts)

    def host(part):
        # Group 1 does not occur on the first of several, nor every pattern.
        own = GroupedWeights(groups[part], values)
        booster = PatternBooster(own, 3, Boosting(0.2), exchange)
        return [booster.add(row[part]) for row in correct], booster.distribution

    parts = np.array_split(np.arange(1000), num_hosts)
    with ThreadPoolExecutor(num_hosts) as threads:
        found = list(threads.map(host, parts))
    assert all(stages == expected for stages, _ in found)
    np.testing.assert_array_equal(
        np.concatenate([omega for _, omega in found]), alone.distribution
    )


@reproducible
@given(cases(), st.integers(1, 4))
def test_packed_bits_are_the_same(case, chunk):
    """Also of several chunks, the last of which fills no byte."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patterns, "_CHUNK", 8 * chunk)
        one, other = (
            PatternBooster(case.first, case.num_classes, case.policy)
            for _ in range(2)
        )
        for correct, is_final in case.rounds():
            assert one.add(correct, is_final=is_final) == other.add(
                np.packbits(correct), is_final=is_final
            )
            np.testing.assert_array_equal(one.distribution, other.distribution)


@pytest.mark.parametrize("num_hosts", [1, 2, 5])
def test_a_mean_of_losses_is_the_same_on_any_number_of_hosts(num_hosts):
    generator = np.random.default_rng(3)
    groups = generator.integers(0, 3, 5000).astype(np.uint8)
    values = np.array([1.0, 4.0, 0.0])
    first = GroupedWeights(groups, values / values[groups].sum())
    losses = generator.exponential(size=5000).astype("f4")
    losses[:3] = 0, 16.118, 1e-9
    correct = generator.random(5000) < 0.8
    exchange = all_reduce(num_hosts)

    def host(part):
        own = GroupedWeights(groups[part], first.values)
        booster = PatternBooster(own, 3, Boosting(0.2), exchange)
        before = booster.first_mean(losses[part], slice(None), exchange)
        booster.add(correct[part])  # which splits the groups
        half = len(part) // 2
        after = booster.first_mean(losses[part], slice(None), exchange)
        own = losses[part[half:]]
        rest = booster.first_mean(own, slice(half, None), exchange)
        return before, after, rest

    parts = np.array_split(np.arange(5000), num_hosts)
    with ThreadPoolExecutor(num_hosts) as threads:
        found = list(threads.map(host, parts))
    assert len(set(found)) == 1  # all hosts alike
    before, after, rest = found[0]
    expected = math.fsum(first.dense() * losses)
    assert before == after == pytest.approx(expected, rel=1e-12)
    alone = PatternBooster(first, 3, Boosting(0.2))
    assert before == alone.first_mean(losses, slice(None))
    halves = np.concatenate([part[len(part) // 2 :] for part in parts])
    assert rest == pytest.approx(
        math.fsum(first.dense()[halves] * losses[halves]), rel=1e-12
    )


@pytest.mark.parametrize("num_hosts", [1, 3])
def test_class_error_of_hosts_is_that_of_all(num_hosts):
    """Against the sum over samples, with a class that nobody has."""
    generator = np.random.default_rng(5)
    first = GroupedWeights(
        generator.integers(0, 2, 5000).astype(np.uint8),
        np.array([1.0, 3.0]) / 10_000,
    )
    labels = generator.choice(4, 5000, p=[0.9, 0.09, 0, 0.01])
    correct = generator.random(5000) < 0.7
    exchange = all_reduce(num_hosts)

    def host(part):
        own = GroupedWeights(first.groups[part], first.values)
        booster = PatternBooster(own, 4, Boosting(0.2), exchange)
        given = correct[part], labels[part], slice(None), exchange
        before = booster.first_class_error(*given)
        booster.add(correct[part])
        return before, booster.first_class_error(*given)

    parts = np.array_split(np.arange(5000), num_hosts)
    with ThreadPoolExecutor(num_hosts) as threads:
        found = {value for both in threads.map(host, parts) for value in both}
    assert len(found) == 1
    expected = metrics.class_error(correct, labels, first.dense())
    assert found.pop() == pytest.approx(expected, rel=1e-12)


def test_a_host_keeps_the_groups_of_its_own(few_are_large):
    omega = np.array([0.2, 0.1, 0.1, 0.2, 0.3, 0.0, 0.1])
    found = grouped(omega, slice(3, 6))
    assert found.values.tolist() == [0.0, 0.1, 0.2, 0.3]  # of all
    assert found.groups.tolist() == [2, 3, 0]
    many = grouped(uniform(7), slice(2, 4))
    assert many.groups.tolist() == [0, 0] and many.values.tolist() == [1 / 7]


def test_values_by_hand():
    """Two groups, two rounds; the working beside it."""
    groups = np.array([0, 0, 1, 1], np.uint8)
    first = GroupedWeights(groups, np.array([0.125, 0.375]))
    booster = PatternBooster(first, 2, BoostingFromFirst(1.0))
    # e = 0.25 -> lambda = log 3: what is right counts a third.
    stage = booster.add(np.array([False, False, True, True]))
    assert stage.error == 0.25
    assert stage.vote == pytest.approx(np.log(3))
    # (1/8, 1/8, 1/8, 1/8) / (1/2)
    np.testing.assert_allclose(booster.distribution, [0.25] * 4)
    # One of four equal weights: e = 0.25 again.
    stage = booster.add(np.array([False, True, True, True]))
    assert stage.error == 0.25
    assert stage.vote == pytest.approx(np.log(3))
    # From the first omega: 1/8, 1/24, 1/8, 1/8, together 5/12.
    np.testing.assert_allclose(booster.distribution, [0.3, 0.1, 0.3, 0.3])


def test_equal_votes_leave_every_bit_of_the_weights():
    groups = np.arange(50, dtype=np.uint8) % 3
    values = np.array([0.1, 0.7, 0.3]) / np.array([0.1, 0.7, 0.3])[groups].sum()
    booster = PatternBooster(GroupedWeights(groups, values), 4, EqualVotes())
    for seed in range(4):
        booster.add(np.random.default_rng(seed).random(50) < 0.7)
        np.testing.assert_array_equal(booster.distribution, values[groups])


def test_what_is_no_member_tells_no_samples_apart():
    first = GroupedWeights(np.zeros(8, np.uint8), np.array([0.125]))
    booster = PatternBooster(first, 2, Boosting())
    assert not booster.add(np.arange(8) < 2).is_member
    assert len(booster.weights.values) == 1
    assert booster.add(np.arange(8) < 6).is_member
    assert len(booster.weights.values) == 2


def test_the_first_weights_are_left_alone():
    groups = np.zeros(4, np.uint8)
    booster = PatternBooster(
        GroupedWeights(groups, np.array([0.25])), 2, Boosting()
    )
    booster.add(np.array([True, True, True, False]))
    assert groups.tolist() == [0] * 4
    assert booster.weights.groups.tolist() == [1, 1, 1, 0]


def test_a_pattern_that_occurs_nowhere_gets_no_number(few_are_large):
    numbered = Patterns(np.array([0, 0, 2, 2, 0, 2, 0], np.uint8), 3)
    correct = np.array([True, True, True, False, True, True, True])
    histogram = numbered.histogram(correct)
    assert histogram.tolist() == [[0, 4], [0, 0], [1, 2]]
    numbered.split(correct, histogram)
    assert numbered.num_patterns == 3
    assert numbered.numbers.tolist() == [0, 0, 2, 1, 0, 2, 0]


@pytest.mark.parametrize(
    ("num_patterns", "dtype"),
    [(256, np.uint8), (257, np.uint16), (65536, np.uint16), (65537, np.uint32)],
)
def test_numbers_take_as_few_bytes_as_will_do(num_patterns, dtype):
    """Every sample of a group is a pattern of its own in the end."""
    numbered = Patterns(np.zeros(num_patterns, np.uint8), 1)
    position = np.arange(num_patterns)
    for bit in range(17):
        correct = (position >> bit) % 2 == 1
        numbered.split(correct, numbered.histogram(correct))
    assert numbered.numbers.dtype == dtype
    assert sorted(numbered.numbers.tolist()) == position.tolist()


def test_groups_of_weights(few_are_large):
    found = grouped(np.array([0.2, 0.1, 0.1, 0.2, 0.3, 0.0, 0.1]))
    assert found.values.tolist() == [0.0, 0.1, 0.2, 0.3]
    assert found.groups.tolist() == [2, 1, 1, 2, 3, 0, 1]
    assert found.groups.dtype == np.uint8
    assert found.dense().tolist() == [0.2, 0.1, 0.1, 0.2, 0.3, 0.0, 0.1]


def test_few_samples_and_many_weights_are_not_grouped(few_are_large):
    assert grouped(np.full(3, 1 / 3)) is None
    assert grouped(np.arange(256.0)).groups.tolist() == list(range(256))
    assert grouped(np.arange(257.0)) is None


def test_uniform_weights_of_many_samples_take_no_memory():
    few, many = uniform(patterns.LARGE), uniform(patterns.LARGE + 1)
    assert few.flags.owndata and few.flags.writeable
    assert many.shape == (patterns.LARGE + 1,)
    assert many[-1] == 1 / (patterns.LARGE + 1)
    assert many.strides == (0,)  # one number, seen many times
    found = grouped(many)
    assert found.values.tolist() == [1 / (patterns.LARGE + 1)]
    assert not found.groups.any()


def test_which_arithmetic(few_are_large):
    assert isinstance(begin_boosting(uniform(3), 2, Boosting()), Booster)
    many = begin_boosting(uniform(4), 2, Boosting())
    assert isinstance(many, PatternBooster)
    own = begin_boosting(np.arange(300) / 44850, 2, Boosting())
    assert isinstance(own, Booster)
