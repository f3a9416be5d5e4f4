"""Tests of `callback.fit`: `model.fit` with `weighted` in front of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import blobs, dense_model, same

from cbnn_keras import CBNNCallback
from cbnn_keras.baselines import SnapshotEnsemble


def ensemble_of(call, *, metrics=None, **options):
    """What a way to train leaves, from the same seeds."""
    keras.utils.set_random_seed(0)
    model = dense_model(metrics=metrics)
    cbnn = CBNNCallback.paper(num_checkpoints=3, **options)
    history = call(cbnn, model)
    return cbnn, model, history.history


def test_one_line_is_the_two_lines_it_stands_for():
    x, y = blobs()
    weights = np.arange(120) % 4 + 1.0

    def in_two(cbnn, model):
        train = cbnn.weighted(
            x, y, batch_size=20, sample_weight=weights, shuffle=False
        )
        return model.fit(train, epochs=4, callbacks=[cbnn], verbose=0)

    def in_one(cbnn, model):
        return cbnn.fit(
            model,
            x,
            y,
            batch_size=20,
            sample_weight=weights,
            shuffle=False,
            epochs=4,
            verbose=0,
        )

    one, model, logs = ensemble_of(in_one)
    two, other, expected = ensemble_of(in_two)
    assert same(model.get_weights(), other.get_weights())
    assert one.history == two.history and len(one.ensemble()) == 3
    np.testing.assert_equal(logs, expected)


def test_the_last_share_is_held_out_and_never_trained_on():
    x, y = blobs(100)
    spoiled = np.where(np.arange(100)[:, None] < 75, x, np.nan)

    def call(cbnn, model):
        inputs = {"a": spoiled[:, :2], "b": spoiled[:, 2:]}
        return cbnn.fit(
            model, inputs, y, validation_split=0.25, epochs=2, verbose=0
        )

    keras.utils.set_random_seed(0)
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    both = keras.layers.Concatenate()([a, b])
    outputs = keras.layers.Dense(3, activation="softmax")(both)
    model = keras.Model({"a": a, "b": b}, outputs)
    model.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy")
    cbnn = CBNNCallback(num_checkpoints=2)
    history = call(cbnn, model).history
    assert cbnn.sample_weights.shape == (75,)
    assert np.isfinite(history["loss"]).all()
    assert np.isnan(history["val_loss"]).all()


@pytest.mark.parametrize("as_labels", [np.array, keras.utils.to_categorical])
def test_class_weights_become_sample_weights(as_labels):
    x, y = blobs()
    weights = np.ones(120)
    weights[5] = 3
    name = "categorical_crossentropy"
    is_one_hot = as_labels is not np.array
    cbnn = CBNNCallback(num_checkpoints=1)
    model = dense_model(loss=name if is_one_hot else f"sparse_{name}")
    options = {"sample_weight": weights, "class_weight": {1: 2.0, 2: 0.5}}
    cbnn.fit(model, x, as_labels(y), verbose=0, **options)
    expected = np.array([1, 2, 0.5])[y] * weights
    found = cbnn.sample_weights.numpy()
    np.testing.assert_allclose(found, expected / expected.mean(), rtol=1e-6)


def test_other_callbacks_read_its_logs_and_arguments_go_on():
    seen = []

    class Reader(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append((epoch, logs["cbnn_members"]))

    def call(cbnn, model):
        x, y = blobs()
        return cbnn.fit(
            model,
            tf.data.Dataset.from_tensor_slices((x, y)),
            batch_size=40,
            callbacks=[Reader(), cbnn],
            initial_epoch=1,
            epochs=4,
            validation_data=(x[:50], y[:50]),
            verbose=0,
        )

    cbnn, _, history = ensemble_of(call)
    assert seen == [(1, 1), (2, 2), (3, 3)]
    assert [record["step"] for record in cbnn.history] == [3, 6, 9]
    assert len(history["val_loss"]) == 3


def test_validation_has_the_batches_of_training(monkeypatch):
    sizes = []
    monkeypatch.setattr(
        keras.Model,
        "fit",
        lambda self, x, **options: sizes.append(options),
    )
    x, y = blobs()
    cbnn = CBNNCallback()
    cbnn.fit(dense_model(), x, y, batch_size=7, callbacks=None)
    cbnn.fit(dense_model(), x, y, batch_size=7, validation_batch_size=9)
    assert sizes == [
        {"validation_batch_size": 7, "callbacks": [cbnn]},
        {"validation_batch_size": 9, "callbacks": [cbnn]},
    ]


@pytest.mark.large
def test_validation_data_may_have_names():
    x, y = blobs()
    names, weights = np.array(["b", "c", "a"]), np.arange(50) + 1.0
    held_out = slice(1, 51)

    def validated_by(labels, *more):
        def call(cbnn, model):
            return cbnn.fit(
                model,
                x,
                names[y],
                validation_data=(x[held_out], labels[held_out], *more),
                epochs=2,
                verbose=0,
            )

        return ensemble_of(call)[2]

    numbers = np.array([1, 2, 0])[y]
    np.testing.assert_equal(validated_by(names[y]), validated_by(numbers))
    np.testing.assert_equal(
        validated_by(names[y], weights), validated_by(numbers, weights)
    )


def test_a_baseline_has_it_too():
    x, y = blobs()
    model = dense_model()
    callback = SnapshotEnsemble(num_checkpoints=2, highest_rate=0.1)
    callback.fit(model, x, y, epochs=2, verbose=0)
    assert len(callback.ensemble()) == 2


def test_validation_data_go_before_a_share():
    x, y = blobs()
    cbnn = CBNNCallback(num_checkpoints=1)
    options = {"validation_split": 0.5, "validation_data": (x[:9], y[:9])}
    cbnn.fit(dense_model(), x, y, verbose=0, **options)
    assert cbnn.sample_weights.shape == (120,)
