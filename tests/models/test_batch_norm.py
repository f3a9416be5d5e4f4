"""BatchNorm's statistics against NumPy and against Keras' own training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from cbnn_keras.data.indexed import ArraySamples
from cbnn_keras.models import engine
from cbnn_keras.models.batch_norm import (
    StatisticsRecomputer,
    recompute_statistics,
)
from cbnn_keras.support.processes import Alone


def model_with(*layers):
    return keras.Sequential([keras.Input((4,)), *layers])


def samples(num=101):
    generator = np.random.default_rng(0)
    return generator.normal(2, 3, size=(num, 4)).astype("float32")


def test_statistics_are_those_of_all_samples():
    layer = keras.layers.BatchNormalization()
    model = model_with(layer)
    x = samples()
    # Batches of 32, 32, 32 and 5: the last one counts less.
    recompute_statistics(model, np.split(x, [32, 64, 96]))
    np.testing.assert_allclose(layer.moving_mean, x.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance, x.var(axis=0), rtol=1e-4)
    assert layer.momentum == 0.99


def test_sparse_inputs_count_as_dense_ones_do():
    dense = keras.layers.Dense(3)
    layer = keras.layers.BatchNormalization()
    inputs = keras.Input((4,), sparse=True)
    model = keras.Model(inputs, layer(dense(inputs)))
    x = np.where(samples() > 3, samples(), 0)
    batches = [tf.sparse.from_dense(part) for part in np.split(x, [32, 96])]
    recompute_statistics(model, batches)
    seen = x @ np.array(dense.kernel) + np.array(dense.bias)
    np.testing.assert_allclose(layer.moving_mean, seen.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(
        layer.moving_variance, seen.var(axis=0), rtol=1e-4
    )


def test_parts_of_several_processes_are_put_together(monkeypatch):
    """Each has two; they are added in the order of processes."""
    x = samples(120)
    pieces = np.split(x, [30, 50, 90])

    def statistics(processes):
        layer = keras.layers.BatchNormalization()
        model = model_with(layer)
        recompute = StatisticsRecomputer(model)
        monkeypatch.setattr(
            type(engine.in_use()), "processes", lambda _: processes
        )
        recompute.from_parts([[part] for part in processes.parts])
        return np.concatenate([layer.moving_mean, layer.moving_variance])

    class Two(Alone):
        """One whose partner says `others`."""

        parts, others, place = pieces[:2], [], 0

        def exchange(self, message):
            self.said = message
            return [*self.others[: self.place], message] + [
                *self.others[self.place :]
            ]

    first, second = Two(), Two()
    second.parts, second.place = pieces[2:], 1
    for process in (first, second):  # to learn what each says
        statistics(process)
    first.others, second.others = [second.said], [first.said]
    one, other = statistics(first), statistics(second)
    assert np.array_equal(one, other)
    np.testing.assert_allclose(one[:4], x.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(one[4:], x.var(axis=0), rtol=1e-4)


def test_statistics_of_a_later_layer_see_normalised_batches():
    first, second = (keras.layers.BatchNormalization() for _ in range(2))
    dense = keras.layers.Dense(3)
    model = model_with(first, keras.layers.ReLU(), dense, second)
    batches = np.split(samples(96), 3)
    before = dense.get_weights()
    recompute_statistics(model, batches)
    activations = []
    for x in batches:
        normalised = (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-3)
        kernel, bias = before
        activations.append(np.maximum(normalised, 0) @ kernel + bias)
    activations = np.concatenate(activations)
    np.testing.assert_allclose(
        second.moving_mean, activations.mean(axis=0), atol=1e-5
    )
    np.testing.assert_allclose(
        second.moving_variance, activations.var(axis=0), rtol=1e-3
    )
    for one, other in zip(before, dense.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_frozen_layers_keep_their_statistics():
    layer = keras.layers.BatchNormalization(trainable=False)
    inner = keras.layers.BatchNormalization()
    model = model_with(layer, model_with(inner))
    recompute_statistics(model, [samples()])
    np.testing.assert_array_equal(layer.moving_mean, np.zeros(4))
    assert np.abs(keras.ops.convert_to_numpy(inner.moving_mean)).max() > 1


def test_random_generators_and_other_models_are_left_alone():
    dropout = keras.layers.Dropout(0.5, seed=1)
    model = model_with(dropout, keras.layers.BatchNormalization())
    state = keras.ops.convert_to_numpy(dropout.seed_generator.state)
    recompute_statistics(model, [samples()])
    np.testing.assert_array_equal(dropout.seed_generator.state, state)
    plain = model_with(keras.layers.Dense(2))

    def nothing():
        raise RuntimeError("no pass is needed")
        yield

    recompute_statistics(plain, nothing())


def test_layer_that_is_called_twice_sees_both_inputs():
    layer = keras.layers.BatchNormalization()
    first, second = keras.Input((4,)), keras.Input((4,))
    outputs = keras.layers.Add()([layer(first), layer(second)])
    model = keras.Model([first, second], outputs)
    x = samples(96)
    batches = [(x[i : i + 32], x[i : i + 32] + 10) for i in (0, 32, 64)]
    recompute_statistics(model, batches)
    everything = np.concatenate([x, x + 10])
    np.testing.assert_allclose(
        layer.moving_mean, everything.mean(axis=0), rtol=1e-4
    )
    np.testing.assert_allclose(
        layer.moving_variance, everything.var(axis=0), rtol=1e-4
    )


def test_other_state_of_training_is_put_back():
    dense = keras.layers.SpectralNormalization(keras.layers.Dense(3))
    model = model_with(dense, keras.layers.BatchNormalization())
    before = dense.get_weights()
    recompute_statistics(model, [samples()])
    for one, other in zip(before, dense.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_layer_in_a_function_of_the_models_own_is_named():
    class Compiled(keras.Model):
        def __init__(self):
            super().__init__()
            self.norm = keras.layers.BatchNormalization(name="hidden")

        @tf.function
        def call(self, x, training=False):
            return self.norm(x, training=training)

    model = Compiled()
    model(samples(), training=True)  # traced before anybody watches
    with pytest.warns(UserWarning, match="'hidden' could not be recomputed"):
        recompute_statistics(model, [samples()])


def test_layer_that_is_never_in_training_mode_is_named_and_kept():
    class Tuned(keras.Model):
        def __init__(self):
            super().__init__()
            self.norm = keras.layers.BatchNormalization(name="pretrained")

        def call(self, x, training=False):
            return self.norm(x, training=False)

    model = Tuned()
    model(samples())
    model.norm.moving_mean.assign([3.0] * model.norm.moving_mean.shape[0])
    with pytest.warns(
        UserWarning,
        match="'pretrained' could not be recomputed: it is not called in "
        "training mode, or .* It keeps those that it has",
    ):
        recompute_statistics(model, [samples()])
    np.testing.assert_array_equal(model.norm.moving_mean, 3.0)


def test_nothing_is_left_behind_after_an_error():
    layer = keras.layers.BatchNormalization(momentum=0.7)
    model = model_with(layer)

    def broken():
        yield samples()
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        recompute_statistics(model, broken())
    np.testing.assert_array_equal(layer.moving_mean, np.zeros(4))
    assert "_moments" not in vars(layer)


def test_one_trace_serves_weights_that_change():
    class Counting(keras.layers.Layer):
        num_traces = 0

        def call(self, x):
            self.num_traces += 1
            return x

    counting = Counting()
    dense = keras.layers.Dense(3)
    layer = keras.layers.BatchNormalization()
    model = model_with(counting, dense, layer)
    recompute = StatisticsRecomputer(model)
    x = samples(96)
    counting.num_traces = 0
    for factor in (1.0, -2.0, 0.5):
        kernel = factor * np.arange(12, dtype="float32").reshape(4, 3)
        dense.set_weights([kernel, np.full(3, factor)])
        recompute(np.split(x, 3))
        seen = x @ kernel + factor
        np.testing.assert_allclose(
            layer.moving_mean, seen.mean(axis=0), rtol=1e-4
        )
        np.testing.assert_allclose(
            layer.moving_variance, seen.var(axis=0), rtol=1e-3
        )
    assert counting.num_traces == 1


def test_training_goes_on_with_its_own_momentum():
    layer = keras.layers.BatchNormalization(momentum=0.5)
    model = model_with(layer, keras.layers.Dense(1))
    model.compile("sgd", "mse")
    x = samples(20)
    model.train_on_batch(x, np.zeros(20))  # traces the step
    recompute_statistics(model, [x])
    before = keras.ops.convert_to_numpy(layer.moving_mean)
    model.train_on_batch(x + 1, np.zeros(20))
    np.testing.assert_allclose(
        layer.moving_mean, before * 0.5 + (x + 1).mean(axis=0) * 0.5, rtol=1e-4
    )


def test_shuffled_inputs_are_all_samples_in_one_random_order():
    x = np.arange(50)
    examples = ArraySamples(x, x)
    first, second = (
        np.concatenate(list(examples.shuffled_inputs(8, True)))
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
    assert sorted(first) == list(x)
    assert list(first) != list(x)
