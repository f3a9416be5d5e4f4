"""Keras' private names, each behind a function, in this module alone.

Keras may change them in any version. `tests/models/test_keras_internals.py` has
a test for each, called like the name, and says which one a version of Keras
broke.
"""

import contextlib
import inspect
import io
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state, masking
from keras.src.trainers.data_adapters import array_data_adapter

# Tensors are those of the backend in use.
Moments = list[tuple[Any, Any]]


def layers_within(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """The layer itself and all layers within it, however deep."""
    return list(layer._flatten_layers())


def private_operation(module: str, name: str) -> type | None:
    """A layer or operation that Keras has no public name for.

    Nothing is imported, and only the module that defines it has it.
    """
    is_private = module.startswith("keras.src.")
    owner = sys.modules.get(module) if is_private else None
    found = vars(owner).get(name) if owner else None
    is_own = getattr(found, "__module__", None) == module
    is_class = inspect.isclass(found) and issubclass(found, keras.Operation)
    return found if is_own and is_class else None


def is_of_keras(part: Any) -> bool:
    """Whether Keras itself defines a class or a function."""
    return str(getattr(part, "__module__", "")).startswith("keras.src.")


def is_plain_graph(operation: Any) -> bool:
    """Whether a model does what its layers do and nothing else.

    That is: whether its `call` is Keras' own, and not that of a class derived
    from a Sequential or Functional model.
    """
    call = type(operation).call if isinstance(operation, keras.Model) else None
    return (
        call is not None
        and call.__module__.startswith("keras.src.models.")
        and call.__qualname__ in ("Sequential.call", "Functional.call")
    )


def run_through_graph(
    model: keras.Model, inputs: list[Any], call: Callable[..., Any]
) -> Any:
    """Runs a Functional model with another way to call its operations.

    As Keras' `clone_model` does, which has no way to give back the outputs of a
    model that is part of another.

    Args:
        model: A Functional model.
        inputs: One tensor for each of its inputs, in flat order.
        call: Is called with each operation and its arguments.

    Returns:
        The outputs, in the structure of the model's.
    """
    return model._run_through_graph(
        inputs, operation_fn=lambda operation: operation, call_fn=call
    )


def functional_graph(model: keras.Model) -> keras.Model:
    """The Functional model that a Sequential one keeps, or the model itself."""
    return getattr(model, "_functional", model)


def symbolic_inputs(model: keras.Model) -> Any:
    """The inputs of a Functional or Sequential model as it is called, or None.

    None for a model that does not say them.
    """
    return getattr(functional_graph(model), "_inputs_struct", None)


def nodes_of(model: keras.Model) -> list[Any]:
    """The calls of operations that a Functional model is made of."""
    layers = model._nodes_by_depth.values()
    return [node for layer in layers for node in layer]


def producer(tensor: Any) -> tuple[Any, int]:
    """The operation that made a symbolic tensor, and which output it is."""
    history = tensor._keras_history
    return history.operation, history.tensor_index


def tensors_before(tensor: Any) -> list[Any]:
    """The symbolic tensors that the call got which made a tensor."""
    history = tensor._keras_history
    node = history.operation._inbound_nodes[history.node_index]
    return list(node.input_tensors)


def mask_of(tensor: Any) -> Any:
    """The mask that layers have put on a tensor, or None."""
    return masking.get_keras_mask(tensor)


def set_mask(tensor: Any, mask: Any) -> None:
    """Puts a mask on a tensor, for the layers that it is given to."""
    masking.set_keras_mask(tensor, mask)


def nodes_after(tensor: Any) -> list[Any]:
    """The calls that got an output of the operation that made a tensor."""
    return list(tensor._keras_history.operation._outbound_nodes)


def is_made_up_name(name: str) -> bool:
    """Whether Keras named a tensor because the user did not."""
    made_up = r"(keras_tensor|input_layer)(_\d+)?(CLONE)?"
    return re.fullmatch(made_up, name) is not None


@contextlib.contextmanager
def watched_moments(
    layers: list[keras.layers.BatchNormalization],
) -> Iterator[Callable[[Callable[[], Any]], list[Moments]]]:
    """Notes mean and variance of each call of each BatchNorm layer.

    The moving statistics would tell of the last call only.

    Yields:
        A function that calls another one and gives what the layers noted in
        it. Each thread has notes of its own: the replicas of a strategy take
        turns within a layer that is synchronised.
    """
    notes = threading.local()

    def watch(layer: Any, number: int) -> None:
        original = layer._moments

        def noted(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
            result = original(*args, **kwargs)
            notes.moments[number].append(result)
            return result

        vars(layer)["_moments"] = noted

    def noting(call: Callable[[], Any]) -> list[Moments]:
        notes.moments = [[] for _ in layers]
        call()
        return notes.moments

    try:
        for number, layer in enumerate(layers):
            watch(layer, number)
        yield noting
    finally:
        for layer in layers:
            vars(layer).pop("_moments", None)


@contextlib.contextmanager
def undistributed(model: keras.Model, distribution: Any) -> Iterator[None]:
    """Has variables of a model hold values of this process, on JAX.

    No distribution is set in it, and each variable, new ones too, has its
    layout again afterwards. The values of all processes must be equal then.
    """

    def variables() -> list[Any]:
        slots = getattr(model.optimizer, "variables", [])
        return [*model.variables, *slots]

    layouts = {id(variable): variable._layout for variable in variables()}
    for variable in variables():
        variable._layout = None
        variable._value = variable._value.addressable_data(0)
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(distribution)
        for variable in variables():
            layout = layouts.get(id(variable))
            if layout is None:
                layout = distribution.get_variable_layout(variable)
            variable._layout = layout
            variable._value = _everywhere(variable._value, layout)


def _everywhere(value: Any, layout: Any) -> Any:
    """A value of this process as one that all devices have."""
    import jax

    sharding = getattr(layout, "backend_layout", layout)
    copies = [
        jax.device_put(value, device) for device in sharding.addressable_devices
    ]
    return jax.make_array_from_single_device_arrays(
        value.shape, sharding, copies
    )


@contextlib.contextmanager
def watched_variables(
    check: Callable[[tuple[int, ...], str], None],
) -> Iterator[None]:
    """Tells of shape and dtype of variables before they take memory."""
    kind, name = keras.Variable, "__init__"
    original, is_own = kind.__init__, name in vars(kind)

    def watched(
        variable: Any, initializer: Any, *args: Any, **more: Any
    ) -> None:
        given = inspect.signature(original).bind(
            variable, initializer, *args, **more
        )
        shape = given.arguments.get("shape")
        if shape is None:
            shape = np.shape(initializer)
        dtype = keras.backend.standardize_dtype(
            given.arguments.get("dtype") or getattr(initializer, "dtype", None)
        )
        check(tuple(shape), dtype)
        original(variable, initializer, *args, **more)

    kind.__init__ = watched
    try:
        yield
    finally:
        if is_own:
            kind.__init__ = original
        else:
            del kind.__init__


def declared_shape(initial_value: Any) -> tuple[int, ...] | None:
    """The shape of a weight that is about to be made, before it has a value.

    Args:
        initial_value: What Keras gives TensorFlow for a variable: a function
            that makes the value and knows the weight that it is for.

    Returns:
        None if it is not such a function.
    """
    for cell in getattr(initial_value, "__closure__", None) or ():
        if isinstance(cell.cell_contents, keras.Variable):
            return tuple(cell.cell_contents.shape)
    return None


def initial_epoch(model: keras.Model) -> int | None:
    """The epoch that `fit` begins with whatever it is told, if any."""
    return model._initial_epoch


def set_initial_epoch(model: keras.Model, epoch: int | None) -> None:
    """Lets `fit` begin with an epoch, or with what it is told if None."""
    model._initial_epoch = epoch


@contextlib.contextmanager
def global_generator_kept() -> Iterator[None]:
    """Puts the generator of `keras.random` back, or away if it is a new one."""
    name = "global_seed_generator"
    before = global_state.get_global_attribute(name)
    kept = before and keras.ops.convert_to_numpy(before.state).copy()
    try:
        yield
    finally:
        if before is not None:
            before.state.assign(kept)
        global_state.set_global_attribute(name, before)


def callbacks_of_fit(
    *, only_if_read: bool = False
) -> keras.callbacks.CallbackList | None:
    """The callbacks of the `fit` that this is called in; None outside.

    Keras tells neither a callback nor a dataset of them, but their list is on
    the stack.

    Args:
        only_if_read: Whether it must be `fit` itself that asks for the batches
            of an epoch, and not `evaluate`, a callback or a loop within it.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if only_if_read and not _is_between_fit_and_data(frame):
            return None
        # Of a method of the list, and of `fit`; there it is a list of the
        # user's before the first epoch, when Keras builds the model.
        for name in ("self", "callbacks"):
            found = frame.f_locals.get(name)
            if isinstance(found, keras.callbacks.CallbackList):
                return found
        frame = frame.f_back
    return None


def _is_between_fit_and_data(frame: types.FrameType) -> bool:
    module = frame.f_globals.get("__name__", "")
    is_known = module.startswith(("keras.src.", "cbnn_keras.data."))
    return is_known and frame.f_code.co_name not in ("evaluate", "predict")


def batches_of_arrays(x: Any, batch_size: int | None) -> Any:
    """The dataset that TensorFlow's `predict` makes of arrays in each call.

    Anything that is not arrays is given back as it is.
    """
    if not array_data_adapter.can_convert_arrays((x, None, None)):
        return x
    arrays = array_data_adapter.ArrayDataAdapter(x, batch_size=batch_size)
    batches = arrays.get_tf_dataset()
    # Which it does not know by itself, and a pass has to end there.
    num_batches = tf.data.experimental.assert_cardinality(arrays.num_batches)
    return batches.apply(num_batches)


def compiled_metrics(model: keras.Model) -> list[Any]:
    """The metrics that a model was compiled with, as the user gave them."""
    compiled = getattr(model, "_compile_metrics", None)
    if compiled is None:
        return []
    given = [compiled._user_metrics, compiled._user_weighted_metrics]
    found = [m for m in keras.tree.flatten(given) if m is not None]
    # One that is weighted too would be computed twice.
    return [m for i, m in enumerate(found) if m not in found[:i]]


def weighs_classes(function: Any) -> bool:
    """Whether it is what `fit` maps over a dataset for its `class_weight`."""
    module = getattr(function, "__module__", None) or ""
    return module.startswith("keras.src.trainers.data_adapters")


class NamedBuffer(io.BytesIO):
    """A file in memory that Keras' functions for saving take for a path.

    They look at the name's ending and then hand the object on to what reads
    and writes files, which takes both.

    Args:
        name: The name, ending in `.weights.h5` or `.keras`.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __str__(self) -> str:
        return self._name
