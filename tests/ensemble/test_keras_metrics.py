"""Tests that `evaluate` gives the metrics that the model was compiled with."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import blobs, dense_model, trained

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.ensemble.keras_metrics import KerasMetrics
from cbnn_keras.models.classifier import Classifier

X, Y = blobs(60, seed=3)


@pytest.fixture(scope="module")
def plain():
    """An ensemble of a model without metrics; not to be changed."""
    keras.utils.set_random_seed(0)
    return trained()[0].ensemble()


def expected_of(ensemble, metrics, y):
    """By another route: one merged model, which Keras evaluates."""
    merged = ensemble.as_model()
    merged.compile(loss=lambda y, p: p[:, 0] * 0, metrics=metrics)
    found = merged.evaluate(X, y, verbose=0, return_dict=True)
    return {k: v for k, v in found.items() if k != "loss"}


def share_of_class_0(y_true, y_pred):
    return keras.ops.mean(y_pred[:, 0])


def test_compiled_metrics_are_those_of_the_ensemble():
    names = ["accuracy", "sparse_top_k_categorical_accuracy", share_of_class_0]
    top = keras.metrics.SparseTopKCategoricalAccuracy(k=2, name="top_2")
    model = dense_model(metrics=[*names, top])
    cbnn, *_ = trained(model=model)
    ensemble = cbnn.ensemble()
    counted = [np.array(v) for v in top.variables]
    found = ensemble.evaluate(X, Y, verbose=0)
    other = keras.metrics.SparseTopKCategoricalAccuracy(k=2, name="top_2")
    expected = expected_of(ensemble, [*names, other], Y)
    assert list(found)[:2] == ["accuracy", "negative_log_likelihood"]
    assert set(found) == {*expected, "negative_log_likelihood"}
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-6), name
    # The metric of the user has counted nothing of it.
    for old, new in zip(counted, top.variables, strict=True):
        np.testing.assert_array_equal(old, new)


def test_metrics_are_computed_in_full_precision():
    # Probabilities that half precision cannot tell from 0.
    probabilities = np.array([[1 - 1e-8, 1e-8, 0], [3e-5, 1, 0]], "float32")
    labels = np.array([1, 0])
    model = dense_model(metrics=["sparse_categorical_crossentropy"])
    classifier = Classifier(3, is_binary=False, from_logits=False)
    # Keras clips at 1e-7.
    expected = -np.mean(np.log([1e-7, 3e-5]))
    for policy in ("float32", "mixed_float16"):
        keras.config.set_dtype_policy(policy)
        judge = KerasMetrics(model, [], classifier, lambda: labels)
        found = judge.values(probabilities)
        [value] = found.values()
        assert value == pytest.approx(expected, rel=1e-4), policy


def test_without_compiled_metrics_it_is_as_before(plain):
    found = plain.evaluate(X, Y, verbose=0)
    assert list(found) == ["accuracy", "negative_log_likelihood"]


def test_a_dataset_is_read_for_labels_only_where_there_are_metrics(plain):
    passes = []

    def count(y):
        passes.append(1)
        return y

    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(60)
    data = data.map(
        lambda x, y: (
            x,
            tf.ensure_shape(tf.numpy_function(count, [y], y.dtype), [60]),
        )
    )
    plain.evaluate(data, verbose=0)
    without = len(passes)
    plain.evaluate(data, verbose=0, metrics=["accuracy"])
    assert len(passes) - without == without + 1


@pytest.mark.large
def test_one_hot_labels_in_a_dataset():
    x, y = blobs()
    hot = keras.utils.to_categorical
    model = dense_model(
        loss="categorical_crossentropy", metrics=["accuracy", "auc"]
    )
    cbnn, *_ = trained(data=(x, hot(y)), model=model)
    ensemble = cbnn.ensemble()
    data = tf.data.Dataset.from_tensor_slices((X, hot(Y))).batch(7)
    found = ensemble.evaluate(data, verbose=0)
    expected = expected_of(ensemble, ["auc"], hot(Y))
    assert found["auc"] == pytest.approx(expected["auc"], abs=1e-6)


@pytest.mark.parametrize("num_outputs", [1, 3])
def test_metrics_of_a_model_that_ends_in_logits(num_outputs):
    is_binary = num_outputs == 1
    name = "Binary" if is_binary else "SparseCategorical"
    loss = getattr(keras.losses, f"{name}Crossentropy")(from_logits=True)
    metric = getattr(keras.metrics, f"{name}Crossentropy")(from_logits=True)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(num_outputs)]
    )
    model.compile(keras.optimizers.Adam(0.1), loss, metrics=[metric])
    x, y = blobs(num_classes=2 if is_binary else 3)
    data = x, (y[:, None] if is_binary else y)
    cbnn, *_ = trained(data=data, model=model)
    y = data[1][:60]
    found = cbnn.ensemble().evaluate(data[0][:60], y, verbose=0)
    # The cross-entropy of logits is the likelihood of what they stand for.
    likelihood = found.pop("negative_log_likelihood")
    assert found[metric.name] == pytest.approx(likelihood, rel=1e-4)


@pytest.mark.large
def test_metrics_can_be_given_to_a_run_that_was_loaded(tmp_path):
    trained(tmp_path / "run", model=dense_model(metrics=["accuracy"]))
    loaded = CheckpointEnsemble.load(tmp_path / "run")
    name = "sparse_top_k_categorical_accuracy"
    assert name not in loaded.evaluate(X, Y, verbose=0)
    found = loaded.evaluate(X, Y, verbose=0, metrics=[name])
    assert found[name] == 1.0  # of three classes, one is among five
    with pytest.raises(ValueError, match="a metric cannot be computed from"):
        loaded.evaluate(X, Y, verbose=0, metrics=["precision"])
