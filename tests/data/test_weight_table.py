"""Tests of the variables that batches look their weights up in."""

import numpy as np
import pytest
import tensorflow as tf

from cbnn_keras import patterns
from cbnn_keras.data import weight_table
from cbnn_keras.data.weight_table import DenseTable, GroupedTable
from cbnn_keras.patterns import GroupedWeights


def weights_of(num_groups, num_samples=700):
    """Group i has i + 1 times the weight of group 0."""
    numbers = np.arange(num_samples) * 7 % num_groups
    groups = numbers.astype(np.min_scalar_type(num_groups - 1))
    values = np.arange(1.0, num_groups + 1)
    return GroupedWeights(groups, values / values[groups].sum())


@pytest.fixture
def grouped_table(monkeypatch):
    monkeypatch.setattr(weight_table, "_BLOCK", 64)  # 11, the last not full
    monkeypatch.setattr(weight_table, "_NUM_ROWS", 3)
    return GroupedTable(weights_of(1))


# The bytes of a number become more, and fewer again where a run starts anew.
@pytest.mark.parametrize("sizes", [(2, 3), (3, 300, 600), (600, 1)])
def test_a_lookup_is_n_omega(grouped_table, sizes):
    index = np.array([699, 0, 3, 3, 256, 311])
    seen = tf.data.Dataset.range(1).map(lambda _: grouped_table.look_up(index))
    for size in sizes:
        weights = weights_of(size)
        grouped_table.assign(weights)
        expected = (700 * weights.dense()).astype("f4")
        (found,) = seen
        np.testing.assert_array_equal(found, expected[index])
        np.testing.assert_array_equal(
            grouped_table.distribution, weights.dense()
        )


@pytest.mark.parametrize("num_groups", [4, 300])
def test_a_process_looks_its_own_samples_up_by_the_index_of_all(
    num_groups, monkeypatch
):
    """With weights that have the mean 1 over all; 300 of them are no groups."""
    monkeypatch.setattr(patterns, "LARGE", 100)
    omega = weights_of(num_groups).dense()
    table = weight_table.weight_table(omega, slice(200, 500))
    is_dense = num_groups > 256
    assert isinstance(table, DenseTable if is_dense else GroupedTable)
    index = np.array([200, 499, 311])
    expected = (700 * omega).astype("f4")
    np.testing.assert_array_equal(table.look_up(index), expected[index])
    np.testing.assert_array_equal(table.variable, expected[200:500])


def test_a_lookup_takes_indices_of_any_shape(grouped_table):
    weights = weights_of(5)
    grouped_table.assign(weights)
    expected = (700 * weights.dense()).astype("f4")
    assert grouped_table.look_up(tf.constant(8)).numpy() == expected[8]
    index = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(grouped_table.look_up(index), expected[index])


def test_the_variable_is_made_for_those_who_ask_and_follows(grouped_table):
    for size in (4, 9):
        weights = weights_of(size)
        grouped_table.assign(weights)
        found = grouped_table.variable
        assert isinstance(found, tf.Variable)
        assert "CPU:0" in found.device and found.dtype == tf.float32
        np.testing.assert_array_equal(
            found, (700 * weights.dense()).astype("f4")
        )
    assert grouped_table.variable is found


def test_what_becomes_of_the_groups_later_is_not_seen(grouped_table):
    """A booster changes them in place before it is time."""
    weights = weights_of(3)
    grouped_table.assign(weights)
    before = grouped_table.look_up(np.arange(700)).numpy()
    weights.groups[:] = 0
    np.testing.assert_array_equal(grouped_table.look_up(np.arange(700)), before)


def test_which_table(monkeypatch):
    assert isinstance(weight_table.weight_table(np.full(4, 0.25)), DenseTable)
    monkeypatch.setattr(patterns, "LARGE", 3)
    few = weight_table.weight_table(np.full(4, 0.25))
    assert isinstance(few, GroupedTable)
    own = weight_table.weight_table(np.arange(300) / 44850)
    assert isinstance(own, DenseTable)
