"""Each private name of Keras that the package needs still means what it did.

A test is called like the private name; if one fails, that name is what the
installed version of Keras has changed.
"""

import ast
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import cbnn_keras
from cbnn_keras.data.weighted_dataset import WeightedDataset
from cbnn_keras.models import keras_internals

layers = keras.layers
X = np.arange(8, dtype="float32").reshape(2, 4)


@pytest.fixture(autouse=True)
def broken(request):
    """What to say if the name of the test is no longer what it was."""
    name = request.node.name.removeprefix("test").removesuffix("_names")
    return f"Keras {keras.__version__} has changed the private name {name}"


def chain(make=keras.Sequential):
    parts = [layers.Dense(3, name="first"), layers.Dense(2, name="last")]
    if make is keras.Sequential:
        return keras.Sequential([keras.Input((4,)), *parts])
    inputs = x = keras.Input((4,))
    for part in parts:
        x = part(x)
    return make(inputs, x)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: x.astype("float64"),  # which Keras makes float32 of
        lambda x: [x, 1 - x],
        lambda x: {"a": x, "b": np.array(["red", "blue", "red"], object)},
    ],
)
def test_array_data_adapter(broken, make):
    x = make(np.arange(12, dtype="float32").reshape(3, 4))
    found = keras_internals.batches_of_arrays(x, 2)
    parts = keras.tree.flatten(x)
    for _ in range(2):  # as often as one likes
        batches = [keras.tree.flatten(batch) for batch in found]
        assert [len(batch[0]) for batch in batches] == [2, 1], broken
        for i, part in enumerate(parts):
            read = np.concatenate([batch[i].numpy() for batch in batches])
            text = part.dtype == object
            assert read.dtype == (object if text else np.float32), broken
            assert read.astype("U" if text else None).tolist() == part.tolist()
    assert keras_internals.batches_of_arrays(found, 1) is found, broken


def test_flatten_layers(broken):
    inner = chain()
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(1, name="head")(inner(inputs)))
    found = keras_internals.layers_within(model)
    assert found[0] is model, broken
    names = {layer.name for layer in found}
    assert {inner.name, "first", "last", "head"} <= names, broken


@keras.saving.register_keras_serializable("test_keras_internals")
class Plain(keras.Model):
    """A class of its own that changes nothing."""


class Doubled(keras.Model):
    def call(self, inputs, training=None, mask=None):
        return 2 * super().call(inputs, training=training, mask=mask)


class DoubledChain(keras.Sequential):
    def call(self, inputs, training=None, mask=None):
        return 2 * super().call(inputs, training=training, mask=mask)

    call.__qualname__ = "Sequential.call"  # a user's class may be called so


def test_keras_src_names(broken):
    """The module and the names of the `call` that plain models have."""
    for make in (keras.Sequential, keras.Model, Plain):
        assert keras_internals.is_plain_graph(chain(make)), broken
    for other in (chain(Doubled), DoubledChain(), layers.Dense(1), None):
        assert not keras_internals.is_plain_graph(other), broken


def test_keras_src_module(broken):
    """What Keras defines itself is known by its module."""
    known = [keras.Model.train_step, keras.losses.Huber, keras.losses.huber]
    assert all(map(keras_internals.is_of_keras, known)), broken
    assert not keras_internals.is_of_keras(chain)


def test_global_seed_generator(broken):
    """The generator behind `keras.random` goes on as if nothing had been."""
    keras.utils.set_random_seed(0)
    first = float(keras.random.uniform(()))
    expected = float(keras.random.uniform(()))
    keras.utils.set_random_seed(0)
    keras.utils.clear_session(free_memory=False)
    with keras_internals.global_generator_kept():
        keras.random.uniform(())
    keras.utils.set_random_seed(0)
    assert float(keras.random.uniform(())) == first, broken
    with keras_internals.global_generator_kept():
        keras.random.uniform(())
    assert float(keras.random.uniform(())) == expected, broken


def test_compile_metrics(broken):
    """What a model was compiled with, each once."""
    metric = keras.metrics.MeanSquaredError()
    model = chain()
    assert keras_internals.compiled_metrics(model) == [], broken
    model.compile("sgd", "mse", metrics=["mae", metric])
    assert keras_internals.compiled_metrics(model) == ["mae", metric], broken
    model.compile("sgd", "mse", metrics={"last": ["mae"]}, weighted_metrics=[])
    assert keras_internals.compiled_metrics(model) == ["mae"], broken
    model.compile("sgd", "mse", weighted_metrics=["mae"], metrics=["mae"])
    assert keras_internals.compiled_metrics(model) == ["mae"], broken


def test_callback_list(broken):
    """The other callbacks of a `fit` are found by one of them."""
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen.extend(keras_internals.callbacks_of_fit().callbacks)

    model = chain()
    model.compile("sgd", "mse")
    callbacks = [Look(), keras.callbacks.TerminateOnNaN()]
    model.fit(X, X[:, :2], verbose=0, callbacks=callbacks)
    assert all(callback in seen for callback in callbacks), broken
    assert keras_internals.callbacks_of_fit() is None
    # A loop of the user's own has them in a list too.
    seen.clear()
    keras.callbacks.CallbackList(callbacks, model=model).on_train_begin()
    assert all(callback in seen for callback in callbacks), broken


def test_run_through_graph(broken):
    model = chain(keras.Model)
    called = []

    def call(operation, *args, **kwargs):
        called.append(operation.name)
        return operation(*args, **kwargs)

    outputs = keras_internals.run_through_graph(model, [X], call)
    assert called == ["first", "last"], broken
    [outputs] = keras.tree.flatten(outputs)
    np.testing.assert_array_equal(outputs, model(X), err_msg=broken)


def test_functional(broken):
    model = chain()
    model(X)
    graph = keras_internals.functional_graph(model)
    assert isinstance(graph, keras.Model) and graph is not model, broken
    assert [layer.name for layer in graph.layers[1:]] == ["first", "last"]
    plain = chain(keras.Model)
    assert keras_internals.functional_graph(plain) is plain, broken


def test_nodes_by_depth(broken):
    nodes = keras_internals.nodes_of(chain(keras.Model))
    names = [node.operation.name for node in nodes]
    assert sorted(names)[:1] + sorted(names)[2:] == ["first", "last"], broken
    for node in nodes:
        assert node.arguments.args or node.is_input, broken
        assert keras.tree.flatten(node.outputs), broken


def test_keras_history(broken):
    inputs = keras.Input((5, 4))
    layer = layers.LSTM(3, return_state=True)
    for position, tensor in enumerate(layer(inputs)):
        found = keras_internals.producer(tensor)
        assert found == (layer, position), broken


def test_inbound_nodes(broken):
    one, other = keras.Input((4,)), keras.Input((4,))
    layer = layers.Dense(4)
    first = layer(one)
    total = layers.Add()([layer(first), other])
    second, last = keras_internals.tensors_before(total)
    assert last is other, broken
    assert keras_internals.tensors_before(second) == [first], broken
    assert keras_internals.tensors_before(first) == [one], broken


def test_keras_mask(broken):
    found = layers.Embedding(3, 2, mask_zero=True)(np.array([[0, 1, 2]]))
    mask = keras_internals.mask_of(found)
    assert mask.numpy().tolist() == [[False, True, True]], broken
    plain = tf.constant([[[1.0], [5.0], [6.0]]])
    assert keras_internals.mask_of(plain) is None, broken
    keras_internals.set_mask(plain, tf.constant([[True, True, False]]))
    mean = layers.GlobalAveragePooling1D()(plain)
    np.testing.assert_array_equal(mean, [[3.0]], err_msg=broken)


def test_outbound_nodes(broken):
    inputs = keras.Input((4,))
    readers = [layers.Dense(3), layers.Dense(2)]
    for reader in readers:
        reader(inputs)
    nodes = keras_internals.nodes_after(inputs)
    assert [node.operation for node in nodes] == readers, broken
    for node in nodes:
        assert keras.tree.flatten(node.arguments.args)[0] is inputs, broken


def test_keras_tensor_and_input_layer_names(broken):
    """Names that Keras makes up for what the user gave none."""
    unnamed = [keras.Input((4,)), keras.Input((4,))]
    computed = unnamed[0] * 2
    cloned = keras.models.clone_model(chain(keras.Model)).inputs
    deferred = keras.Sequential([layers.Dense(1)])
    deferred(X)
    for tensor in (*unnamed, computed, *cloned, *deferred.inputs):
        assert keras_internals.is_made_up_name(tensor.name), broken
    for name in ("image", "keras_tensor_of_mine", "my_input_layer", "input"):
        assert not keras_internals.is_made_up_name(name), broken


def test_moments(broken):
    layer = layers.BatchNormalization()
    layer.build((None, 4))
    with keras_internals.watched_moments([layer]) as noting:
        moments = noting(
            lambda: [layer(X, training=True), layer(X + 1, training=True)]
        )
        assert len(moments[0]) == 2, broken
    for (mean, variance), shift in zip(moments[0], (0, 1), strict=True):
        np.testing.assert_allclose(mean, X.mean(0) + shift, err_msg=broken)
        np.testing.assert_allclose(variance, X.var(0), err_msg=broken)
    assert "_moments" not in vars(layer)
    layer(X, training=True)
    assert len(moments[0]) == 2


def test_initial_epoch(broken):
    model = chain()
    model.compile("sgd", "mse")
    assert keras_internals.initial_epoch(model) is None, broken
    keras_internals.set_initial_epoch(model, 2)
    assert keras_internals.initial_epoch(model) == 2
    history = model.fit(X, X[:, :2], epochs=3, verbose=0)
    assert history.epoch == [2], broken
    keras_internals.set_initial_epoch(model, None)
    assert model.fit(X, X[:, :2], verbose=0).epoch == [0], broken


def test_src(broken):
    """Where Keras says that operations are."""
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.ops.mean(inputs, axis=1))
    text = keras.saving.serialize_keras_object(model)
    description = text["config"]["layers"][-1]
    module, name = description["module"], description["class_name"]
    found = keras_internals.private_operation(module, name)
    assert found is type(model.operations[-1]), broken
    assert keras_internals.private_operation(module, "mean") is None
    assert keras_internals.private_operation(module, "Operation") is None
    assert keras_internals.private_operation("keras.layers", "Dense") is None
    assert keras_internals.private_operation("keras.src.no", "Mean") is None


def test_saving_to_buffers(broken, tmp_path):
    """No private name, but an argument that Keras documents nowhere."""
    model, other = chain(), chain()
    buffer = keras_internals.NamedBuffer("a.weights.h5")
    keras.saving.save_weights(model, buffer)
    (tmp_path / "a.weights.h5").write_bytes(buffer.getvalue())
    other.load_weights(tmp_path / "a.weights.h5")
    buffer = keras_internals.NamedBuffer("a.keras")
    keras.saving.save_model(model, buffer)
    (tmp_path / "a.keras").write_bytes(buffer.getvalue())
    loaded = keras.saving.load_model(tmp_path / "a.keras")
    for found in (other, loaded):
        for weight, expected in zip(
            found.get_weights(), model.get_weights(), strict=True
        ):
            np.testing.assert_array_equal(weight, expected, err_msg=broken)


PRIVATE = {
    "_compile_metrics",
    "_flatten_layers",
    "_functional",
    "_inbound_nodes",
    "_initial_epoch",
    "_keras_history",
    "_moments",
    "_nodes_by_depth",
    "_outbound_nodes",
    "_run_through_graph",
}
PACKAGE = pathlib.Path(cbnn_keras.__file__).parent


def private_names(path):
    """Private names of Keras in a module, as attributes or as texts."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE:
            # An attribute of that name may be the module's own.
            owner = getattr(node.value, "id", None)
            if owner not in ("self", "cls"):
                yield node.attr
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if text in PRIVATE or text.startswith("keras.src"):
                yield text
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = getattr(node, "module", None) or ""
            names = {module, *(alias.name for alias in node.names)}
            yield from (n for n in names if n.startswith("keras.src"))


def test_private_names_are_in_one_module():
    found = {
        str(path.relative_to(PACKAGE)): sorted(set(private_names(path)))
        for path in PACKAGE.rglob("*.py")
    }
    own = found.pop("models/keras_internals.py")
    modules = ["", "backend.common", "models.", "trainers.data_adapters"]
    assert own == sorted(["keras.src." + m for m in modules] + [*PRIVATE])
    assert {path: names for path, names in found.items() if names} == {}


def test_variable_init(broken):
    found = []
    with keras_internals.watched_variables(lambda *kind: found.append(kind)):
        layers.Dense(3).build((None, 2))
        keras.Variable(np.zeros((4, 5), "float64"))
        keras.Variable(1, dtype="int32")
    layers.Dense(3).build((None, 7))  # nobody watches
    assert found == [
        ((2, 3), "float32"),
        ((3,), "float32"),
        ((4, 5), "float64"),
        ((), "int32"),
    ], broken


def test_initialize_with_initializer(broken):
    """A weight is known before it has a value."""
    seen = []

    def create(next_creator, **options):
        value = options["initial_value"]
        seen.append((keras_internals.declared_shape(value), options["dtype"]))
        return next_creator(**options)

    with tf.variable_creator_scope(create):
        model = chain()
        tf.Variable(lambda: tf.zeros((5, 6)), dtype="float32")
        tf.Variable([1, 2], dtype="int32")
    shapes = [shape for shape, _ in seen]
    assert shapes == [(4, 3), (3,), (3, 2), (2,), None, None], broken
    assert {dtype for _, dtype in seen[:4]} == {"float32"}, broken
    assert len(model.weights) == 4


def test_fit(broken):
    """`callbacks_of_fit` knows whether it reads, by its `callbacks`."""
    found = []
    # From a module that may stand between `fit` and who asks.
    names = {
        "__name__": "cbnn_keras.data.asking",
        "note": found.append,
        "ask": keras_internals.callbacks_of_fit,
    }
    asking = eval("lambda: note(ask(only_if_read=True))", names)
    batches = tf.data.Dataset.from_tensors((X, X[:, 0], X[:, 0]))
    dataset = WeightedDataset(batches, lambda: batches, asking)
    model, callback = chain(), keras.callbacks.Callback()
    model.compile("sgd", "mse")
    model.fit(dataset, validation_data=dataset, callbacks=[callback], verbose=0)
    model.evaluate(dataset, verbose=0)
    list(dataset)
    in_fit = [one for one in found if one is not None]
    assert in_fit and len(in_fit) < len(found), broken
    assert all(callback in one.callbacks for one in in_fit), broken
    assert found[-1] is None, broken


def test_data_adapters(broken):
    """`weighs_classes` knows what they map over a dataset."""
    mapped = []

    class Mapped(WeightedDataset):
        def map(self, map_func, *args, **more):
            mapped.append(map_func)
            return self

    batches = tf.data.Dataset.from_tensors((X, X[:, 0]))
    model = chain()
    model.compile("sgd", "mse")
    dataset = Mapped(batches, lambda: batches, lambda: None)
    model.fit(dataset, class_weight={0: 1.0}, verbose=0)
    assert [keras_internals.weighs_classes(m) for m in mapped] == [True], broken
    assert not keras_internals.weighs_classes(len)
    assert not keras_internals.weighs_classes(lambda x: x)
