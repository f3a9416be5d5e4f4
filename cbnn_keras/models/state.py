"""Everything that training is resumed from, as arrays.

All of `model.variables`, the states of seed generators among them, which no
Keras format saves, and those of the optimizer.
"""

import contextlib
import random
from collections.abc import Iterator

import keras
import numpy as np

from cbnn_keras.models import engine, keras_internals

_TRAINED = "trained"  # beside `model/...` and `optimizer/...`
_RANDOM = "random/"  # in front of generators of the backend


def capture_state(model: keras.Model) -> dict[str, np.ndarray]:
    """Copies of the model's and the optimizer's variables.

    Raises:
        FloatingPointError: If one holds NaN: nothing could be resumed from it.
    """
    engine.in_use().sync(model)
    arrays = {}
    for name, variable in _variables(model).items():
        value = keras.ops.convert_to_numpy(variable)
        if np.isnan(value).any():
            raise FloatingPointError(f"{variable.path} holds NaN")
        arrays[name] = np.array(_storable(value))
    arrays[_TRAINED] = _is_trained(model)
    for name, array in engine.in_use().random_state().items():
        arrays[_RANDOM + name] = array
    return arrays


def restore_state(model: keras.Model, arrays: dict[str, np.ndarray]) -> None:
    """Puts back what `capture_state` took.

    Raises:
        ValueError: If the variables are not those that were captured, or if
            others of them are trained.
    """
    arrays = dict(arrays)
    generators = {
        name.removeprefix(_RANDOM): arrays.pop(name)
        for name in list(arrays)
        if name.startswith(_RANDOM)
    }
    now = _is_trained(model)
    trained = arrays.pop(_TRAINED, now)  # older versions do not say
    # Of another number of variables, the number is what is said below.
    if trained.shape == now.shape and not np.array_equal(trained, now):
        raise ValueError(
            "resume=True: other layers were frozen when the run was left. "
            "Freeze and unfreeze as before, or start in a new directory."
        )
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    variables = _variables(model)
    values = {
        name: keras.ops.convert_to_numpy(variable)
        for name, variable in variables.items()
    }
    found = {name: _kind(_storable(value)) for name, value in values.items()}
    saved = {name: _kind(array) for name, array in arrays.items()}
    if found != saved:
        changed = sorted(dict(found.items() ^ saved.items()))
        raise ValueError(
            "resume=True: the run was left with other variables "
            f"than the model and its optimizer have now ({len(saved)} then, "
            f"{len(found)} now; first difference: {changed[0]}). Build and "
            "compile the model as before, or start in a new directory."
        )
    for name, variable in variables.items():
        variable.assign(arrays[name].view(values[name].dtype))
    engine.in_use().set_random_state(generators)


def _is_trained(model: keras.Model) -> np.ndarray:
    """Which of the model's variables are trained, by position."""
    trained = {id(variable) for variable in model.trainable_variables}
    return np.array([id(variable) in trained for variable in model.variables])


def has_nan(model: keras.Model) -> bool:
    """Whether a variable of the model or its optimizer holds NaN."""
    engine.in_use().sync(model)
    variables = [*model.variables, *model.optimizer.variables]
    values = map(keras.ops.convert_to_numpy, variables)
    return any(bool(np.isnan(value).any()) for value in values)


@contextlib.contextmanager
def generators_kept(model: keras.Model) -> Iterator[None]:
    """Puts the states of random generators back after inference.

    Some layers are random then too, as those of Monte Carlo dropout, and would
    go on from another state in training.
    """
    engine.in_use().sync(model)
    drawn = engine.in_use().random_state()
    weights = {id(weight) for weight in model.weights}
    states = [v for v in model.variables if id(v) not in weights]
    kept = [np.array(keras.ops.convert_to_numpy(state)) for state in states]
    try:
        yield
    finally:
        for state, value in zip(states, kept, strict=True):
            state.assign(value)
        engine.in_use().set_random_state(drawn)


@contextlib.contextmanager
def process_generators_kept() -> Iterator[None]:
    """Puts generators of Python, NumPy, Keras and its backend back."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    drawn = engine.in_use().random_state()
    try:
        with keras_internals.global_generator_kept():
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        engine.in_use().set_random_state(drawn)


def _variables(model: keras.Model) -> dict[str, keras.Variable]:
    # By position: paths hold names that Keras makes up anew in each session.
    named = {f"model/{i}": v for i, v in enumerate(model.variables)}
    for i, variable in enumerate(model.optimizer.variables):
        named[f"optimizer/{i}"] = variable
    return named


def _storable(array: np.ndarray) -> np.ndarray:
    """The bits of a bfloat16, of which NumPy's files know nothing."""
    is_bfloat16 = array.dtype.name == "bfloat16"
    return array.view(np.uint16) if is_bfloat16 else array


def _kind(array: np.ndarray) -> tuple[tuple[int, ...], str]:
    return array.shape, array.dtype.str
