"""Tests of a model without its training: weights, architecture, copies."""

import io
import json
import re
import time
import zipfile

import h5py
import keras
import numpy as np
import pytest
from helpers import (
    Undescribed,
    blobs,
    dense_model,
    one_step,
    same,
    text_model,
)

from cbnn_keras.models import copying
from cbnn_keras.models.foreign import Foreign
from cbnn_keras.support.faults import RunError

LOSS = "sparse_categorical_crossentropy"


def wide_model():
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def shy_model():
    model = Undescribed([keras.layers.Dense(3)])
    model(np.zeros((1, 4)))
    return model


# --- Weights ---


@pytest.mark.parametrize(
    "optimizer",
    [
        *("adam", "adafactor"),
        *(
            pytest.param(name, marks=pytest.mark.large)
            for name in ("sgd", "adamw", "lion")
        ),
    ],
)
def test_weights_take_no_more_room_than_those_of_an_uncompiled_model(
    tmp_path, optimizer
):
    model = wide_model()
    model.compile(optimizer, LOSS, metrics=["accuracy"])
    one_step(model)
    copying.save_weights(model, tmp_path / "a.weights.h5")
    uncompiled = wide_model()
    uncompiled.save_weights(tmp_path / "b.weights.h5")
    sizes = [(tmp_path / f"{n}.weights.h5").stat().st_size for n in "ab"]
    assert sizes[0] <= sizes[1]
    # Keras alone reads them, into a model that was never compiled.
    uncompiled.load_weights(tmp_path / "a.weights.h5")
    assert same(model.get_weights(), uncompiled.get_weights())


def test_loading_weights_leaves_the_optimizer_alone(tmp_path):
    model = wide_model()
    model.compile("adam", LOSS)
    one_step(model)
    path = tmp_path / "a.weights.h5"
    copying.save_weights(model, path)
    saved = model.get_weights()
    one_step(model)
    moved = model.get_weights()
    slots = [v.numpy() for v in model.optimizer.variables]
    copying.load_weights(model, path)
    assert same(model.get_weights(), saved)
    assert not same(saved, moved)
    assert same([v.numpy() for v in model.optimizer.variables], slots)


def pretrained(loss=LOSS):
    """A model around one that was trained on its own."""
    part = dense_model(loss=loss)
    one_step(part, 4, 3)
    model = stack(part, keras.layers.Dense(3, activation="softmax"))
    model.compile("sgd", LOSS)
    return model, part


def test_pretrained_part_leaves_its_optimizer_behind(tmp_path):
    model, part = pretrained()
    plain = stack(
        stack(dense(8), dense(3)),
        dense(3),
    )
    copying.save_weights(model, tmp_path / "a.weights.h5")
    plain.save_weights(tmp_path / "b.weights.h5")
    sizes = [(tmp_path / f"{n}.weights.h5").stat().st_size for n in "ab"]
    assert sizes[0] <= sizes[1]
    plain.load_weights(tmp_path / "a.weights.h5")
    assert same(plain.get_weights(), model.get_weights())
    assert part.compiled and part.optimizer.iterations == 1


class Nested(keras.Model):
    """Keeps a layer in a list within a list."""

    def __init__(self):
        super().__init__()
        self.blocks = [[keras.layers.Dense(3)]]

    def call(self, x):
        return self.blocks[0][0](x)


def test_layers_without_weights_in_the_file_are_not_passed_over(tmp_path):
    """Keras only warns, and leaves them what they were."""
    model, path = Nested(), tmp_path / "a.weights.h5"
    model(np.zeros((1, 4)))
    copying.save_weights(model, path)
    copying.load_weights(model, path)
    with h5py.File(path, "a") as file:
        del file["blocks"]["container"]
    with pytest.raises(ValueError, match="Skipping nested container"):
        copying.load_weights(model, path)


# --- The architecture on disk ---


@pytest.mark.large
def test_same_model_gives_the_same_bytes_at_any_time(tmp_path):
    model = dense_model(metrics=["accuracy"])
    copying.save_architecture(model, tmp_path / "a.keras")
    time.sleep(2.1)  # zip archives count every other second
    copying.save_architecture(model, tmp_path / "b.keras")
    first, second = ((tmp_path / f"{n}.keras").read_bytes() for n in "ab")
    assert first == second


def shared_layers():
    """Two pairs of wrappers, each around one layer."""
    pair = [keras.layers.Activation(name) for name in ("relu", "tanh")]
    return keras.Sequential(
        [
            keras.Input((3, 4)),
            *(keras.layers.TimeDistributed(layer) for layer in pair * 2),
        ]
    )


def test_same_script_gives_the_same_bytes(tmp_path):
    """Keras writes the addresses of what layers have in common."""
    models = []
    for name in "ab":
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        models.append(shared_layers())  # kept, so that addresses differ
        copying.save_architecture(models[-1], tmp_path / f"{name}.keras")
    first, second = ((tmp_path / f"{n}.keras").read_bytes() for n in "ab")
    assert first == second


def test_what_layers_have_in_common_stays_in_common(tmp_path):
    def numbers(path):
        with zipfile.ZipFile(path) as archive:
            text = archive.read("config.json").decode()
        return re.findall(r'"shared_object_id": (\d+)', text)

    model = shared_layers()
    copying.save_architecture(model, tmp_path / "a.keras")
    model.save(tmp_path / "b.keras")
    ours, theirs = numbers(tmp_path / "a.keras"), numbers(tmp_path / "b.keras")
    # The two layers and the policy they have: one number for one address.
    assert len(set(theirs)) >= 3
    pairs = set(zip(ours, theirs, strict=True))
    assert len(pairs) == len(set(ours)) == len(set(theirs))


def test_architecture_holds_nothing_of_the_training(tmp_path):
    def loss_of_the_user(y_true, y_pred):
        return keras.losses.sparse_categorical_crossentropy(y_true, y_pred)

    model = dense_model(loss=loss_of_the_user, metrics=["accuracy"])
    one_step(model, 4, 3)
    optimizer = model.optimizer
    path = tmp_path / "model.keras"
    copying.save_architecture(model, path)
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
        metadata = json.loads(archive.read("metadata.json"))
        weights = h5py.File(io.BytesIO(archive.read("model.weights.h5")))
    assert not config.get("compile_config")
    assert "loss_of_the_user" not in json.dumps(config)
    assert metadata == {"keras_version": keras.__version__}
    sizes = []
    weights.visititems(lambda _, node: sizes.append(getattr(node, "size", 0)))
    assert sum(sizes) == model.count_params()
    loaded = copying.load_architecture(path)
    assert loaded.compiled is False
    assert same(loaded.get_weights(), model.get_weights())
    # Neither is anything of it lost for the model that goes on training.
    assert model.compiled and model.optimizer is optimizer
    one_step(model, 4, 3)
    assert int(optimizer.iterations) == 2


def test_architecture_holds_nothing_of_the_training_of_a_part(tmp_path):
    def loss_of_the_user(y_true, y_pred):
        return keras.losses.sparse_categorical_crossentropy(y_true, y_pred)

    model, part = pretrained(loss_of_the_user)
    path = tmp_path / "model.keras"
    copying.save_architecture(model, path)
    with zipfile.ZipFile(path) as archive:
        assert b"loss_of_the_user" not in archive.read("config.json")
    loaded = copying.load_architecture(path)
    assert same(loaded.get_weights(), model.get_weights())
    assert not loaded.layers[0].compiled
    assert part.compiled and part.optimizer.iterations == 1


def test_model_is_as_before_where_saving_fails(tmp_path):
    model = dense_model()
    optimizer = model.optimizer
    with pytest.raises(OSError, match="[Uu]nable|No such file"):
        copying.save_weights(model, tmp_path / "none/a.weights.h5")
    assert model.compiled and model.optimizer is optimizer
    plain = stack(dense())
    before = set(vars(plain))
    copying.save_weights(plain, tmp_path / "a.weights.h5")
    assert set(vars(plain)) == before


def test_saving_leaves_one_file(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("an older one")
    copying.save_architecture(dense_model(), path)
    assert list(tmp_path.iterdir()) == [path]
    assert zipfile.is_zipfile(path)


def test_keras_opens_the_file_as_one_of_its_own(tmp_path):
    model = dense_model()
    copying.save_architecture(model, tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    x, _ = blobs(10)
    np.testing.assert_array_equal(
        loaded.predict(x, verbose=0), model.predict(x, verbose=0)
    )


def test_vocabulary_is_kept(tmp_path):
    model = text_model()
    copying.save_architecture(model, tmp_path / "model.keras")
    loaded = copying.load_architecture(tmp_path / "model.keras")
    assert loaded.layers[0].get_vocabulary() == [
        *("", "[UNK]"),  # Keras' own, then by frequency
        *("red", "green", "blue"),
    ]
    words = keras.ops.convert_to_tensor(["blue red", "pink", "green blue red"])
    np.testing.assert_array_equal(loaded(words), model(words))


def test_lambda_of_a_stranger_is_not_run(tmp_path):
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Lambda(lambda x: x[:, :3])]
    )
    model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="a layer Lambda, which is code"):
        copying.load_architecture(tmp_path / "model.keras")


# --- Copies ---


def test_copies_have_weights_of_their_own():
    model = dense_model()
    one_step(model, 4, 3)
    first, second = copying.copies(model, 2)
    expected = model.get_weights()
    assert same(first.get_weights(), expected)
    assert same(second.get_weights(), expected)
    first.set_weights([np.zeros_like(w) for w in expected])
    assert same(second.get_weights(), expected)
    assert same(model.get_weights(), expected)


def test_model_that_cannot_be_described_is_not_copied():
    with pytest.raises(
        ValueError,
        match="^Keras cannot copy Undescribed. Give Undescribed a `get_config`",
    ):
        copying.copies(shy_model(), 1)


def test_a_copy_that_is_refused_says_why():
    with pytest.raises(RunError, match=r"bytes, above the limit of 10\)"):
        copying.copies(dense_model(), 1, foreign=Foreign(max_bytes=10))


def test_a_full_disk_is_no_fault_of_the_model(monkeypatch):
    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keras.saving, "save_model", fail)
    with pytest.raises(OSError, match=r"No space left.* set TMPDIR to another"):
        copying.copies(dense_model(), 1)
    reason = copying.why_not_rebuilt(shy_model())
    assert "No space left" in reason and "get_config" not in reason


def test_class_that_is_in_no_module_is_copied():
    class Local(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    model = Local()
    model(np.zeros((1, 4)))
    [copy] = copying.copies(model, 1)
    assert type(copy) is Local
    assert same(copy.get_weights(), model.get_weights())


# --- Copies in float32 ---

HALF_PRECISION = ["mixed_float16", "mixed_bfloat16", "float16", "bfloat16"]
X, _ = blobs(20)


def deep_model(policy):
    """With parts in parts, one of them in a wrapper."""
    keras.config.set_dtype_policy(policy)
    part = keras.Input((8,))
    inner = keras.Model(part, dense(4)(keras.layers.Dropout(0.5)(part)))
    # The usual start of its weights is not to be had in bfloat16.
    recurrent = keras.layers.SimpleRNN(2, recurrent_initializer="ones")
    model = stack(
        stack(dense(8, activation="relu"), keras.layers.BatchNormalization()),
        inner,
        keras.layers.Reshape((2, 2)),
        keras.layers.TimeDistributed(dense(3)),
        keras.layers.Bidirectional(recurrent),
        dense(3, activation="softmax"),
    )
    keras.config.set_dtype_policy("float32")
    return model


def policies(model):
    """Those of layers: a model has one too, which does nothing."""
    containers = (keras.Model, keras.layers.InputLayer)
    return {
        layer.dtype_policy.name
        for layer in model._flatten_layers()
        if not isinstance(layer, containers)
    }


def outputs(model):
    return np.asarray(model(X, training=False)).astype("float64")


def as_float32(weights):
    return [weight.astype("float32") for weight in weights]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        *((policy, False) for policy in HALF_PRECISION),
        *(("float32", True), ("float64", True)),
    ],
)
def test_precision_of_a_model(policy, expected):
    assert copying.is_float32(deep_model(policy)) is expected


@pytest.mark.parametrize("policy", HALF_PRECISION)
@pytest.mark.parametrize(
    "around",
    [
        lambda layer: layer,
        lambda layer: stack(stack(layer)),
        lambda layer: keras.layers.TimeDistributed(layer),
    ],
)
def test_one_layer_of_half_precision_is_found(policy, around):
    layer = around(dense(dtype=policy))
    shape = (4,) if not isinstance(layer, keras.layers.Wrapper) else (2, 4)
    model = keras.Sequential([keras.Input(shape), layer])
    assert not copying.is_float32(model)


@pytest.mark.parametrize("policy", HALF_PRECISION)
def test_copy_in_float32_is_the_model_built_in_float32(policy):
    model = deep_model(policy)
    before, names = model.get_weights(), policies(model)
    [copy] = copying.copies(model, 1, in_float32=True)
    assert policies(copy) == {"float32"}
    assert copying.is_float32(copy)
    # Each number of half precision is one of float32.
    assert same(copy.get_weights(), as_float32(before))
    other = deep_model("float32")
    other.set_weights(as_float32(before))
    np.testing.assert_allclose(outputs(copy), outputs(other), rtol=1e-6)
    assert copy.outputs[0].dtype == "float32"
    # Which is not what the model itself says.
    assert np.abs(outputs(model) - outputs(other)).max() > 1e-5
    np.testing.assert_allclose(outputs(model), outputs(other), atol=0.05)
    assert same(model.get_weights(), before)
    assert policies(model) == names


def test_copies_have_the_precision_of_the_model_unless_told():
    model = deep_model("mixed_bfloat16")
    [copy] = copying.copies(model, 1)
    assert policies(copy) == policies(model) == {"mixed_bfloat16"}
    np.testing.assert_array_equal(outputs(copy), outputs(model))


def test_copy_in_float32_of_a_model_in_training_leaves_that_alone():
    keras.config.set_dtype_policy("mixed_float16")
    model = dense_model()
    one_step(model, 4, 3)
    optimizer, names = model.optimizer, policies(model)
    first, second = copying.copies(model, 2, in_float32=True)
    assert model.compiled and model.optimizer is optimizer
    assert policies(model) == names == {"mixed_float16"}
    assert keras.config.dtype_policy().name == "mixed_float16"
    assert not first.compiled
    first.set_weights([np.zeros_like(w) for w in first.get_weights()])
    assert same(second.get_weights(), model.get_weights())


def test_texts_and_integers_stay_what_they_are():
    keras.config.set_dtype_policy("mixed_float16")
    model = text_model()
    keras.config.set_dtype_policy("float32")
    [copy] = copying.copies(model, 1, in_float32=True)
    assert copy.inputs[0].dtype == "string"
    words = keras.ops.convert_to_tensor(["blue red", "pink", "green blue red"])
    tokens = copy.layers[0](words)
    assert tokens.dtype == "int64"
    np.testing.assert_array_equal(tokens, model.layers[0](words))
    plain = text_model()
    plain.set_weights(model.get_weights())
    np.testing.assert_array_equal(copy(words), plain(words))
    assert not np.array_equal(np.asarray(model(words)), plain(words))


def test_layers_of_other_precision_stay_what_they_are():
    model = stack(dense(dtype="float16"), dense(dtype="float64"), dense())
    [copy] = copying.copies(model, 1, in_float32=True)
    assert [layer.compute_dtype for layer in copy.layers] == [
        *("float32", "float64", "float32")
    ]
    assert [str(weight.dtype) for weight in copy.weights] == [
        *("float32", "float32", "float64", "float64", "float32", "float32")
    ]


def test_casts_in_the_graph_are_to_float32():
    inputs = keras.Input((4,), dtype="bfloat16")
    x = keras.ops.cast(dense(dtype="mixed_float16")(inputs), "float16")
    model = keras.Model(inputs, x * 60_000)  # of which float16 has no double
    model.set_weights([np.ones((4, 3)), np.zeros(3)])
    [copy] = copying.copies(model, 1, in_float32=True)
    assert copy.inputs[0].dtype == copy.outputs[0].dtype == "float32"
    assert np.isinf(np.asarray(model(np.ones((1, 4))))).all()
    np.testing.assert_array_equal(copy(np.ones((1, 4))), [[240_000] * 3])


def test_copy_in_float32_of_what_cannot_be_described():
    with pytest.raises(
        ValueError,
        match="^Keras cannot copy Undescribed. Give Undescribed a `get_config`",
    ):
        copying.copies(shy_model(), 1, in_float32=True)


@keras.saving.register_keras_serializable("test_architecture")
class OfThatPolicy(keras.Model):
    """Its layers have the policy that is set when it is made."""

    def __init__(self, **options):
        super().__init__(**options)
        self.last = dense()

    def call(self, x):
        return self.last(x)


def test_layers_of_a_class_are_copied_in_float32():
    keras.config.set_dtype_policy("mixed_float16")
    model = OfThatPolicy()
    model(X)
    [copy] = copying.copies(model, 1, in_float32=True)
    assert copying.is_float32(copy)
    assert keras.config.dtype_policy().name == "mixed_float16"


def test_policies_by_the_path_of_a_layer_are_known():
    policy = keras.dtype_policies.DTypePolicyMap("mixed_bfloat16")
    model = stack(dense(dtype=policy))
    assert not copying.is_float32(model)
    [copy] = copying.copies(model, 1, in_float32=True)
    assert copy.layers[0].compute_dtype == "float32"


# --- The identity of an architecture ---


def stack(*layers):
    return keras.Sequential([keras.Input((4,)), *layers])


def two_branches(activation="relu", swap=False):
    inputs = {n: keras.Input((4,), name=n) for n in ("left", "right")}
    left = keras.layers.Dense(8, activation=activation)(inputs["left"])
    right = keras.layers.Dense(8)(inputs["right"])
    pair = [right, left] if swap else [left, right]
    joined = keras.ops.concatenate(pair)
    return keras.Model(inputs, keras.layers.Dense(3)(joined))


def with_dropout(seed=None):
    dense, dropout = keras.layers.Dense, keras.layers.Dropout
    start = keras.initializers.GlorotUniform(seed=seed)
    return stack(
        dense(3, kernel_initializer=start), dropout(0.5, seed=seed), dense(3)
    )


@pytest.mark.parametrize(
    "build",
    [dense_model, two_branches, with_dropout, text_model, shy_model],
)
def test_same_script_gives_the_same_identity(build):
    first, second = build(), build()
    # Keras makes up other names for the second.
    assert first.layers[-1].name != second.layers[-1].name
    identity = copying.architecture_id(first)
    assert copying.architecture_id(second) == identity
    assert len(identity) == 64


def test_identity_is_that_of_the_model_without_its_training():
    model = dense_model()
    before = copying.architecture_id(model)
    one_step(model, 4, 3)
    model.compile("sgd", "mse")
    assert copying.architecture_id(model) == before


def test_identity_ignores_seeds():
    first, second = with_dropout(seed=1), with_dropout(seed=2)
    assert copying.architecture_id(first) == copying.architecture_id(second)


def dense(units=3, **options):
    return keras.layers.Dense(units, **options)


@pytest.mark.parametrize(
    "others",
    [
        # width
        lambda: (stack(dense(8), dense(3)), stack(dense(9), dense(3))),
        # activation
        lambda: (
            stack(dense(8, activation="relu"), dense(3)),
            stack(dense(8, activation="tanh"), dense(3)),
        ),
        # activation, where the layers bear its name
        lambda: (
            stack(dense(), keras.layers.Activation("relu", name="relu")),
            stack(dense(), keras.layers.Activation("tanh", name="tanh")),
        ),
        # order, with the same shapes of weights
        lambda: (
            stack(dense(), keras.layers.Dropout(0.5), dense()),
            stack(dense(), dense(), keras.layers.Dropout(0.5)),
        ),
        # wiring, with the same layers
        lambda: (two_branches(), two_branches(swap=True)),
        lambda: (two_branches(), two_branches("tanh")),
        # precision
        lambda: (
            stack(dense(dtype="float32")),
            stack(dense(dtype="mixed_float16")),
        ),
        # rate of dropout
        lambda: (
            stack(dense(), keras.layers.Dropout(0.5)),
            stack(dense(), keras.layers.Dropout(0.4)),
        ),
    ],
)
def test_other_architectures_have_another_identity(others):
    first, second = others()
    assert copying.architecture_id(first) != copying.architecture_id(second)


def test_names_given_by_the_user_do_not_count():
    first, second = stack(dense(name="a"), dense()), stack(dense(), dense())
    assert copying.architecture_id(first) == copying.architecture_id(second)


def test_layers_and_functions_in_a_config_count_by_what_they_are():
    """Their `str` holds an address, or a name that Keras made up."""

    class Net(keras.Model):
        def __init__(self, layer, function):
            super().__init__()
            self.layer, self.function = layer, function

        def call(self, x):
            return self.function(self.layer(x))

        def get_config(self):
            return {"layer": self.layer, "function": self.function}

    def identity(layer, function):
        model = Net(layer, function)
        model(np.zeros((1, 4)))
        return copying.architecture_id(model)

    relu, tanh = keras.activations.relu, keras.activations.tanh
    first = identity(dense(), relu)
    assert identity(dense(), relu) == first
    assert identity(dense(), tanh) != first
    assert identity(dense(activation="tanh"), relu) != first


def test_architecture_does_not_depend_on_the_batch_that_built_it():
    def built_with(batch_size):
        model = keras.Sequential([keras.layers.Dense(3)])
        model(np.zeros((batch_size, 4)))
        return copying.architecture_id(model)

    assert built_with(8) == built_with(16)


def test_architecture_does_not_depend_on_the_line_of_a_lambda():
    def with_lambda(source):
        function = eval(source, {"__name__": "elsewhere"})
        layers = [keras.Input((4,)), keras.layers.Lambda(function)]
        return copying.architecture_id(keras.Sequential(layers))

    assert with_lambda("lambda x: x") == with_lambda("\n\nlambda x: x".strip())


def test_what_is_frozen_is_no_part_of_the_architecture():
    def made(is_frozen):
        part = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5)])
        part.trainable = not is_frozen
        return keras.Sequential([part, keras.layers.Dense(3)])

    frozen, free = made(True), made(False)
    assert copying.architecture_id(frozen) == copying.architecture_id(free)
    # Nothing changes for what is not frozen, and runs of earlier versions that
    # were trained with frozen parts are known by what they were called.
    former = copying.architecture_id(frozen, as_frozen=True)
    assert former != copying.architecture_id(frozen)
    assert copying.architecture_id(
        free, as_frozen=True
    ) == copying.architecture_id(free)
