"""A model on several replicas; see also test_mirrored.py."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from cbnn_keras.models import replicas


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
