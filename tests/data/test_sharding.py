"""Batches on several replicas count as on one; see also test_mirrored.py."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from cbnn_keras.data import sharding


def spread(size, num_replicas, *, is_averaged=True):
    """A batch whose sample i has x = {"a": [i], "b": i} and y = -i."""
    index = np.arange(size)
    weight = 1 + index.astype("float32")
    x, y, weight = sharding.spread(
        {"a": index[:, None], "b": index},
        tf.constant(-index),
        tf.constant(weight),
        num_replicas=tf.constant(num_replicas),
        is_averaged=tf.constant(is_averaged),
    )
    np.testing.assert_array_equal(x["a"][:, 0], x["b"])
    np.testing.assert_array_equal(x["b"], -y)
    return np.asarray(x["b"]), weight.numpy()


def pieces(values, num_replicas):
    """What TensorFlow gives to each replica."""
    size = -(-len(values) // num_replicas)
    return [values[i * size : (i + 1) * size] for i in range(num_replicas)]


@pytest.mark.parametrize("num_samples", [20, 19, 17, 5])
@pytest.mark.parametrize("num_replicas", [2, 3])
def test_pieces_are_those_of_tensorflow(num_samples, num_replicas):
    strategy = tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(num_replicas)],
        tf.distribute.ReductionToOneDevice(),
    )
    batch = tf.data.Dataset.range(num_samples).batch(64).map(lambda i: i)
    # A batch size that TensorFlow cannot see, as in the pipeline of `weighted`.
    hidden = tf.data.Dataset.from_tensors(0).flat_map(lambda _: batch)
    (found,) = strategy.experimental_distribute_dataset(hidden)
    expected = pieces(np.arange(num_samples), num_replicas)
    for a, b in zip(
        strategy.experimental_local_results(found), expected, strict=True
    ):
        np.testing.assert_array_equal(a, b)


@settings(deadline=None)
@given(size=st.integers(1, 70), num_replicas=st.integers(1, 9))
def test_the_mean_of_the_means_is_the_mean_of_the_batch(size, num_replicas):
    index, weight = spread(size, num_replicas)
    assert set(index) == set(range(size))
    loss = np.random.default_rng(size).normal(size=size)
    means = []
    for samples, weights in zip(
        pieces(index, num_replicas), pieces(weight, num_replicas), strict=True
    ):
        assert len(samples) > 0
        means.append(np.mean(weights * loss[samples]))
    expected = np.mean((1 + np.arange(size)) * loss)
    assert np.mean(means) == pytest.approx(expected, rel=1e-5, abs=1e-5)


@settings(deadline=None)
@given(size=st.integers(1, 70), num_replicas=st.integers(1, 9))
def test_the_sum_of_the_sums_is_the_sum_of_the_batch(size, num_replicas):
    index, weight = spread(size, num_replicas, is_averaged=False)
    total = np.zeros(size)
    np.add.at(total, index, weight)
    np.testing.assert_allclose(total, 1 + np.arange(size), rtol=1e-6)


@settings(deadline=None)
@given(size=st.integers(1, 70), num_replicas=st.integers(1, 9))
def test_nothing_is_repeated_without_need(size, num_replicas):
    index, weight = spread(size, num_replicas)
    is_enough = all(map(len, pieces(np.arange(size), num_replicas)))
    assert (len(index) == size) == is_enough
    # One sample less would leave a replica empty.
    if not is_enough:
        fewer = pieces(index[:-1], num_replicas)
        assert not all(map(len, fewer))
    if size % num_replicas == 0:
        np.testing.assert_array_equal(weight, 1 + np.arange(size))


def test_spreading_by_hand():
    # Five samples on two devices, pieces of 3 and 2: half the mean of three
    # times 1.2 is a fifth of their sum, and so is half that of two times 0.8.
    index, weight = spread(5, 2)
    np.testing.assert_array_equal(index, [0, 1, 2, 3, 4])
    np.testing.assert_allclose(weight, [1.2, 2.4, 3.6, 3.2, 4.0])
    # One sample on three devices: each has it.
    index, weight = spread(1, 3)
    np.testing.assert_array_equal(index, [0, 0, 0])
    np.testing.assert_allclose(weight, [1, 1, 1])


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 40),
    count=st.integers(1, 4),
    devices_each=st.integers(1, 3),
    is_averaged=st.booleans(),
)
def test_parts_of_processes_make_the_batch(
    size, count, devices_each, is_averaged
):
    """Each sample counts once, wherever it is, and padding counts nothing."""
    num_devices = count * devices_each
    rows, factors = [], []
    for index in range(count):
        part = sharding.Part(index, count, num_devices)
        found = sharding.local_part(
            tf.constant(size), part, tf.constant(is_averaged)
        )
        rows.append(found[0].numpy())
        factors.append(found[1].numpy())
    assert len({len(part) for part in rows}) == 1
    assert len(rows[0]) % devices_each == 0
    rows, factors = np.concatenate(rows), np.concatenate(factors)
    # In the order of the batch; what fills up comes last.
    assert rows[:size].tolist() == list(range(size))
    assert not factors[size:].any()
    assert len(rows) - size < num_devices
    # A mean over all rows of factor * loss is the mean over the samples.
    losses = np.random.default_rng(size).normal(size=size)
    weighted = factors * losses[rows]
    if is_averaged:
        np.testing.assert_allclose(weighted.mean(), losses.mean(), rtol=1e-5)
    else:
        np.testing.assert_allclose(weighted.sum(), losses.sum(), rtol=1e-5)


@pytest.mark.parametrize("num", [0, 1, 2, 7, 12])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_batches_are_shared_out_for_scoring(num, count):
    ranges = [sharding.own_range(num, i, count) for i in range(count)]
    found = [i for part in ranges for i in range(num)[part]]
    assert found == list(range(num))
    sizes = [part.stop - part.start for part in ranges]
    assert max(sizes) - min(sizes) <= 1
