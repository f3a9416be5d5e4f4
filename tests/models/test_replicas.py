"""Batches on several replicas count as on one; see also test_mirrored.py."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from cbnn_keras.models import replicas


def spread(size, num_replicas, *, is_averaged=True):
    """A batch whose sample i has x = {"a": [i], "b": i} and y = -i."""
    index = np.arange(size)
    weight = 1 + index.astype("float32")
    x, y, weight = replicas.spread(
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


@given(size=st.integers(1, 70), num_replicas=st.integers(1, 9))
def test_the_sum_of_the_sums_is_the_sum_of_the_batch(size, num_replicas):
    index, weight = spread(size, num_replicas, is_averaged=False)
    total = np.zeros(size)
    np.add.at(total, index, weight)
    np.testing.assert_allclose(total, 1 + np.arange(size), rtol=1e-6)


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


def test_variables_made_in_a_scope_are_not_mirrored():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        mirrored = tf.Variable(1.0)
        plain = replicas.outside_strategies(lambda: tf.Variable(1.0))
    assert isinstance(mirrored, tf.distribute.DistributedValues)
    assert not isinstance(plain, tf.distribute.DistributedValues)
    assert plain.device.endswith("CPU:0")


def test_an_error_outside_the_scope_is_not_lost():
    with pytest.raises(ZeroDivisionError):
        replicas.outside_strategies(lambda: 1 / 0)


def test_which_models_are_distributed():
    def model():
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])

    assert not replicas.is_distributed(model())
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        distributed = model()
    assert replicas.is_distributed(distributed)


class Collector(keras.layers.Layer):
    """What each replica may collect, of several kinds."""

    def build(self, shape):
        for name, dtype in (
            ("mean", "float32"),
            ("half", "float16"),
            ("count", "int32"),
        ):
            weight = self.add_weight(
                shape=(2,), dtype=dtype, trainable=False, name=name
            )
            setattr(self, name, weight)
        self.kernel = self.add_weight(shape=(2,), name="kernel")

    def call(self, x):
        return x


def test_means_over_the_replicas():
    strategy = tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(3)], tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
        layer = Collector()
        model = keras.Sequential([keras.Input((2,)), layer])
    for i in range(3):
        for weight in (layer.mean, layer.half, layer.count, layer.kernel):
            weight.value.values[i].assign([i, 4 * i])
    replicas.average_statistics(model)
    for weight, expected in (
        (layer.mean, [[1, 4]] * 3),
        (layer.half, [[1, 4]] * 3),
        (layer.count, [[0, 0], [1, 4], [2, 8]]),  # no mean of integers
        (layer.kernel, [[0, 0], [1, 4], [2, 8]]),  # training keeps it alike
    ):
        found = [copy.numpy() for copy in weight.value.values]
        np.testing.assert_array_equal(found, expected)
        assert found[0].dtype == weight.dtype


def test_a_model_on_one_device_is_left_alone():
    layer = Collector()
    model = keras.Sequential([keras.Input((2,)), layer])
    layer.mean.assign([1, 2])
    replicas.average_statistics(model)
    np.testing.assert_array_equal(layer.mean, [1, 2])
