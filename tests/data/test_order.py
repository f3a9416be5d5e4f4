"""Tests of the order of a pass that no memory is needed for."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cbnn_keras.data import order
from cbnn_keras.data.indexed import ArraySamples

reproducible = settings(derandomize=True, deadline=None, max_examples=60)
KEYS = st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
TURNS = 6


def mixed(number):
    number ^= number >> 16
    number = number * 0x85EBCA6B % 2**32
    number ^= number >> 13
    number = number * 0xC2B2AE35 % 2**32
    return number ^ number >> 16


def reference(position, num_samples, keys):
    """The same by Python's integers, one position at a time."""
    columns = math.isqrt(num_samples - 1) + 1
    rows = math.ceil(num_samples / columns)
    while True:
        row, column = divmod(position, columns)
        for turn in range(0, TURNS, 2):
            row = (row + mixed(column ^ keys[turn])) % rows
            column = (column + mixed(row ^ keys[turn + 1])) % columns
        position = row * columns + column
        if position < num_samples:
            return position


def keys_of(key):
    return tf.random.stateless_uniform(
        [TURNS], key, minval=None, maxval=None, dtype=tf.uint32
    ).numpy()


def whole(num_samples, key):
    positions = tf.range(num_samples, dtype=tf.int64)
    return order.permuted(positions, num_samples, tf.constant(key)).numpy()


@reproducible
@given(st.integers(1, 3000), KEYS)
def test_it_is_a_permutation(num_samples, key):
    found = whole(num_samples, key)
    assert np.array_equal(np.sort(found), np.arange(num_samples))


@reproducible
@given(st.integers(1, 2**40), KEYS, st.data())
def test_it_is_the_formula(num_samples, key, data):
    chosen = st.integers(0, num_samples - 1)
    positions = data.draw(st.lists(chosen, min_size=1, max_size=5))
    found = order.permuted(
        tf.constant(positions, tf.int64), num_samples, tf.constant(key)
    )
    keys = [int(part) for part in keys_of(key)]
    expected = [reference(p, num_samples, keys) for p in positions]
    assert found.numpy().tolist() == expected


def test_seed_and_pass_both_decide():
    orders = [tuple(whole(50, key)) for key in ((1, 0), (1, 1), (0, 1), (2, 0))]
    assert len(set(orders)) == 4
    assert tuple(whole(50, (1, 0))) == orders[0]


# Chi-square tests with fixed keys: an honest shuffle fails one in a thousand.


def test_every_sample_comes_everywhere():
    """Sample by position, over many keys."""

    @tf.function
    def at(seed):
        positions = tf.range(7, dtype=tf.int64)
        return order.permuted(positions, 7, tf.stack([seed, 0]))

    counts = np.zeros((7, 7))
    for seed in range(2000):
        counts[np.arange(7), at(tf.constant(seed)).numpy()] += 1
    # Rows and columns have their sums, so that 6 * 6 counts are free.
    assert stats.chisquare(counts.ravel(), ddof=12).pvalue > 1e-3


def test_neighbours_part():
    """Where the neighbour of a sample comes, as seen from the sample."""
    found = whole(100_003, (5, 9)).astype(np.int64)
    distances = np.diff(found) % 100_003
    counts, _ = np.histogram(distances, 50, (0, 100_003))
    assert stats.chisquare(counts).pvalue > 1e-3
    # And parts of the pass have parts of the samples alike.
    parts = np.arange(100_003) * 10 // 100_003
    table = np.zeros((10, 10))
    np.add.at(table, (parts, found * 10 // 100_003), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-3


# What a pass is made of.


@pytest.fixture
def few_are_large(monkeypatch):
    monkeypatch.setattr(order, "LARGE", 20)
    monkeypatch.setattr(order, "_BLOCK", 8)


def one_pass(num_samples, key=(3, 1), augment=None, shuffle=True):
    samples = ArraySamples(np.arange(num_samples), np.arange(num_samples))
    batches = samples.training_batches(
        lambda: tf.constant(key, tf.int64),
        batch_size=5,
        shuffle=shuffle,
        augment=augment,
    )
    return [index.tolist() for index, _, _ in batches.as_numpy_iterator()]


@pytest.mark.parametrize("augment", [None, lambda x, seed: x])
def test_a_pass_of_many_samples(few_are_large, augment):
    batches = one_pass(37, augment=augment)
    assert [len(batch) for batch in batches] == [5] * 7 + [2]
    assert sum(batches, []) == whole(37, (3, 1)).tolist()
    assert one_pass(37, (3, 2), augment) != batches
    unshuffled = one_pass(37, augment=augment, shuffle=False)
    assert sum(unshuffled, []) == list(range(37))


@pytest.mark.parametrize("augment", [None, lambda x, seed: x])
def test_a_pass_of_few_samples_is_in_the_order_that_it_was(augment):
    """So that runs which were begun earlier resume to the same bits."""
    expected = tf.random.experimental.stateless_shuffle(
        tf.range(37, dtype=tf.int64), tf.constant([3, 1], tf.int64)
    )
    assert sum(one_pass(37, augment=augment), []) == expected.numpy().tolist()
