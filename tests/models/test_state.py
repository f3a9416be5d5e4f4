"""Tests of what training is resumed from, as arrays."""

import io

import keras
import numpy as np
import pytest
from helpers import blobs, dense_model, one_step, same

from cbnn_keras.models import state as training_state

LOSS = "sparse_categorical_crossentropy"
X, Y = blobs()


def training_model(optimizer="adam"):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3, activation="softmax", dtype="float32"),
        ]
    )
    model.compile(optimizer, LOSS)
    return model


def everything(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [np.array(keras.ops.convert_to_numpy(v)) for v in variables]


@pytest.mark.parametrize(
    "optimizer",
    [
        *("adam", "accumulation"),
        *(
            pytest.param(name, marks=pytest.mark.large)
            for name in ("sgd", "lion", "loss scaling")
        ),
    ],
)
def test_training_goes_on_as_if_it_had_never_stopped(optimizer):
    def build():
        chosen = {
            "loss scaling": lambda: keras.optimizers.LossScaleOptimizer(
                keras.optimizers.Adam()
            ),
            "accumulation": lambda: keras.optimizers.Adam(
                gradient_accumulation_steps=3, use_ema=True
            ),
        }
        return training_model(chosen.get(optimizer, lambda: optimizer)())

    first = build()
    for _ in range(2):
        one_step(first, 4, 3)
    # As through a file.
    file = io.BytesIO()
    np.savez(file, **training_state.capture_state(first))
    file.seek(0)
    second = build()
    assert not same(everything(second), everything(first))
    with np.load(file, allow_pickle=False) as arrays:
        training_state.restore_state(second, dict(arrays))
    assert same(everything(second), everything(first))
    one_step(first, 4, 3)
    one_step(second, 4, 3)
    assert same(everything(second), everything(first))


def test_generators_of_dropout_are_part_of_the_state():
    model = training_model()
    one_step(model, 4, 3)
    dropout = model.layers[2]
    before = np.array(dropout.seed_generator.state)
    arrays = training_state.capture_state(model)
    one_step(model, 4, 3)
    after = np.array(dropout.seed_generator.state)
    training_state.restore_state(model, arrays)
    assert not np.array_equal(after, before)
    np.testing.assert_array_equal(dropout.seed_generator.state, before)


def test_state_is_a_copy():
    model = training_model()
    one_step(model, 4, 3)
    arrays = training_state.capture_state(model)
    kept = {name: array.copy() for name, array in arrays.items()}
    one_step(model, 4, 3)
    assert same(list(arrays.values()), list(kept.values()))


def test_bfloat16_is_kept_bit_for_bit():
    keras.config.set_dtype_policy("bfloat16")
    first, second = training_model(), training_model()
    one_step(first, 4, 3)
    file = io.BytesIO()
    np.savez(file, **training_state.capture_state(first))
    file.seek(0)
    assert first.weights[0].dtype == "bfloat16"
    with np.load(file, allow_pickle=False) as arrays:
        training_state.restore_state(second, dict(arrays))
    assert same(everything(second), everything(first))


def test_state_of_another_width_is_refused_and_nothing_changed():
    arrays = training_state.capture_state(training_model())
    other = dense_model(num_classes=4)
    before = everything(other)
    with pytest.raises(
        ValueError,
        match=r"with other variables than the model and its optimizer have "
        r"now \(\d+ then, \d+ now; first difference: model/\d+\)",
    ):
        training_state.restore_state(other, arrays)
    assert same(everything(other)[: len(before)], before)


def test_state_of_another_optimizer_is_refused():
    # SGD: iterations and rate; Adam: two slots more for each of 4 weights.
    arrays = training_state.capture_state(dense_model(optimizer="sgd"))
    with pytest.raises(
        ValueError,
        match=r"\(6 then, 14 now; first difference: optimizer/\d+\)",
    ):
        training_state.restore_state(dense_model(), arrays)


@pytest.mark.parametrize("policy", ["float32", "bfloat16"])
@pytest.mark.parametrize("where", ["weights", "optimizer"])
def test_nan_is_found_wherever_it_is(policy, where):
    keras.config.set_dtype_policy(policy)
    model = training_model()
    model.optimizer.build(model.trainable_variables)
    assert not training_state.has_nan(model)
    owner = model if where == "weights" else model.optimizer
    variable = owner.variables[-1]
    variable.assign(np.full(variable.shape, np.inf))  # a bound, a scale
    assert not training_state.has_nan(model)
    variable.assign(np.full(variable.shape, np.nan))
    assert training_state.has_nan(model)


def test_state_of_another_dtype_is_refused():
    """Of equal shape, it would be read as other numbers."""
    model = dense_model()
    arrays = training_state.capture_state(model)
    arrays["model/0"] = arrays["model/0"].view(np.int32)
    with pytest.raises(ValueError, match="other variables.*model/0"):
        training_state.restore_state(model, arrays)


def test_other_layers_frozen_than_when_it_was_left():
    model = dense_model()
    one_step(model, 4, 3)
    kept = training_state.capture_state(model)
    model.layers[0].trainable = False
    with pytest.raises(
        ValueError, match="other layers were frozen when the run"
    ):
        training_state.restore_state(model, kept)
    # Versions before this one did not keep it.
    del kept["trained"]
    model.layers[0].trainable = True
    training_state.restore_state(model, kept)
