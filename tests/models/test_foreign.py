"""Models from files that someone else made."""

import contextlib
import os
import sys

import keras
import numpy as np
import pytest
from helpers import dense_model, same, text_model
from hostile_architectures import (
    code_writing,
    edit_config,
    edit_text,
    layer_of,
    saved,
)
from keras import layers, ops

from cbnn_keras.models import copying
from cbnn_keras.models.foreign import Foreign, RebuildError
from cbnn_keras.support.faults import RunError

SMALL = Foreign(max_bytes=2**24)


def chain(*parts, shape=(4,), **options):
    """Layers one after the other, behind an input."""
    return keras.Sequential([keras.Input(shape, **options), *parts])


@pytest.fixture
def path(tmp_path):
    """The file of a small model."""
    model = chain(layers.Rescaling(2.0), layers.Dense(3))
    return saved(model, tmp_path / "model.keras")


# --- What is watched while a file is read ---

_EVENTS = None


def _watch(event, args):
    if _EVENTS is not None:
        _EVENTS.append((event, args))


@pytest.fixture(scope="module")
def _hook():
    sys.addaudithook(_watch)  # which cannot be taken away again


@pytest.fixture
def watched(_hook):
    """Gives what Python opens, imports and executes within a context."""

    @contextlib.contextmanager
    def watching():
        global _EVENTS
        _EVENTS = events = []
        try:
            yield events
        finally:
            _EVENTS = None

    return watching


DOES = {"open", "import", "exec", "compile", "os.system", "subprocess.Popen"}


def refused(path, message, foreign=SMALL, watched=contextlib.nullcontext):
    """Asserts that a file is refused, and named, before Keras has it."""
    with (
        pytest.MonkeyPatch.context() as patch,
        watched() as events,
        pytest.raises(RunError, match=message) as caught,
    ):
        for name in ("load_model", "deserialize_keras_object"):
            patch.setattr(keras.saving, name, pytest.fail)
        foreign.load(path)
    assert str(path) in str(caught.value)
    assert not isinstance(caught.value, RebuildError) or "known" in message
    return events


def instance(module, name, **config):
    return {
        "module": module,
        "class_name": name,
        "config": config,
        "registered_name": None,
    }


# --- Code ---


def test_code_hidden_in_an_array_of_objects_is_refused(path, tmp_path):
    hidden = code_writing(tmp_path / "marker")
    array = {
        "class_name": "__numpy__",
        "config": {"value": hidden, "dtype": "object"},
    }

    def hide(config):
        layer_of(config, "Rescaling")["config"]["scale"] = array

    edit_config(path, hide)
    refused(path, "model.keras cannot be read .*array of objects")
    # What Keras makes of it: not run as the file is read, but with the copy.
    model = keras.saving.load_model(path, compile=False, safe_mode=True)
    assert not (tmp_path / "marker").exists()
    with pytest.raises(RunError, match="it has a layer Lambda, which is code"):
        copying.copies(model, 1, foreign=SMALL)
    assert not (tmp_path / "marker").exists()
    copying.copies(model, 1)
    assert (tmp_path / "marker").exists()


def test_lambda_is_refused(tmp_path):
    model = chain(layers.Lambda(lambda x: 2 * x))
    refused(saved(model, tmp_path / "a.keras"), "a layer Lambda, which is code")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (instance("keras.layers", "TFSMLayer", filepath="/"), "TFSMLayer"),
        (
            instance("keras.layers", "Activation", activation=None)
            | {"class_name": "function", "config": "get_file"},
            r"function keras\.layers\.get_file, which is no part",
        ),
        (instance("keras.utils", "get_file"), r"keras\.utils\.get_file"),
        (instance("os", "system"), r"not known here: os\.system"),
        (instance("antigravity", "A"), r"not known here: antigravity\.A"),
        (
            instance("keras.layers", "StringLookup", vocabulary="/etc/passwd"),
            "its vocabulary in a file",
        ),
    ],
)
def test_nothing_is_opened_imported_or_run(path, watched, part, message):
    def add(config):
        config["config"]["layers"].append(part)

    edit_config(path, add)
    events = refused(path, message, watched=watched)
    done = [(event, args[0]) for event, args in events if event in DOES]
    # The file itself, and then what was opened as a number.
    assert [name for _, name in done if not isinstance(name, int)] == [
        str(path)
    ]
    assert {event for event, _ in done} == {"open"}


def test_classes_of_the_maker_are_named_and_can_be_opened(tmp_path):
    class Doubled(layers.Layer):
        def call(self, x):
            return 2 * x

    model = chain(Doubled(), layers.Dense(3))
    path = saved(model, tmp_path / "model.keras")
    refused(
        path,
        r"not known here: .*Doubled\. Open them by name, custom_objects="
        r"\{'Doubled': Doubled\}, or on the command line by the module that "
        r"defines them, --import my_module\.$",
    )
    opened = Foreign({"Doubled": Doubled})
    loaded = opened.load(path)
    assert type(loaded.layers[0]) is Doubled
    [copied] = copying.copies(loaded, 1, foreign=opened)
    assert same(copied.get_weights(), model.get_weights())


# --- The text ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("[" * 10**5, "recursion"),
        ("[]", "not an object of JSON"),
        ('{"a": 1, "a": 1}', "two 'a'"),
        ('{"a": ' + "9" * 5000 + "}", "cannot be read"),
        ('{"a": ' + "[" * 300 + "]" * 300 + "}", "nested more than 200"),
        ('{"a": "\\ud800"}\udce9'.encode("utf-8", "replace").decode(), "Extra"),
    ],
)
def test_text_that_is_no_architecture_is_refused(path, text, message):
    edit_text(path, lambda _: text)
    refused(path, message)


@pytest.mark.parametrize("text", ["{}", '{"class_name": "__ellipsis__"}'])
def test_text_without_a_model_is_refused(path, text):
    edit_text(path, lambda _: text)
    with pytest.raises(RebuildError, match=r"a model of .*model\.keras \("):
        SMALL.load(path)


def test_part_instead_of_a_model_is_refused(path):
    def take_part(config):
        layer = layer_of(config, "InputLayer")
        config.clear()
        config.update(layer)

    edit_config(path, take_part)
    with pytest.raises(
        RebuildError, match=r"model\.keras \(it describes a Inp"
    ):
        SMALL.load(path)


def test_what_keras_cannot_rebuild_is_named(path):
    def spoil(config):
        layer_of(config, "Dense")["config"]["units"] = "many"

    edit_config(path, spoil)
    with pytest.raises(
        RebuildError, match=r"a model of .*keras \(.*many.*\)\. Per"
    ):
        SMALL.load(path)


@pytest.mark.parametrize("kind", ["missing", "directory", "link", "text"])
def test_what_is_no_zip_file_is_refused(path, tmp_path, kind):
    other = tmp_path / "other.keras"
    if kind == "directory":
        other.mkdir()
    elif kind == "link":
        other.symlink_to(path)
    elif kind == "text":
        other.write_text("no zip file")
    messages = {
        "missing": "other.keras cannot be opened: No such file",
        "directory": "other.keras is not a file",
        "link": "other.keras is a link",
        "text": "other.keras cannot be read .*not a zip file.* maker you know",
    }
    refused(other, messages[kind])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "model.keras")
    refused(tmp_path / "model.keras", "is not a file")


# --- Sizes ---

TOO_LARGE = "asks for more than 16,777,216 bytes of memory.*max_bytes"


def set_in(class_name, **settings):
    def edit(config):
        layer_of(config, class_name)["config"].update(settings)
        for layer in config["config"]["layers"]:
            layer.pop("build_config", None)  # it would have to agree

    return edit


@pytest.mark.parametrize(
    ("model", "edit"),
    [
        (lambda: chain(layers.Dense(3)), set_in("Dense", units=10**12)),
        (lambda: chain(layers.Dense(3)), set_in("Dense", units=2**21)),
        (
            lambda: chain(layers.Embedding(9, 3)),
            set_in("Embedding", input_dim=10**9, output_dim=1000),
        ),
        (
            lambda: chain(layers.Dense(3)),
            set_in("InputLayer", batch_shape=[None, 10**12]),
        ),
        (
            lambda: chain(layers.RepeatVector(2)),
            set_in("RepeatVector", n=10**12),
        ),
        (
            lambda: chain(layers.UpSampling1D(2), shape=(4, 1)),
            set_in("UpSampling1D", size=2**30),
        ),
        (
            lambda: chain(
                layers.LSTM(3, stateful=True), shape=(2, 2), batch_size=2
            ),
            set_in("InputLayer", batch_shape=[10**9, 2, 2]),
        ),
        (
            lambda: chain(layers.Normalization(mean=1.0, variance=1.0)),
            set_in("InputLayer", batch_shape=[None, 10**9]),
        ),
        (
            lambda: chain(layers.BatchNormalization()),
            set_in("InputLayer", batch_shape=[None, 2**21]),
        ),
    ],
    ids=[
        *("dense", "dense that fits a sample", "embedding", "input"),
        *("tensor", "tensor of two axes", "state", "constant", "statistics"),
    ],
)
def test_model_above_the_limit_is_refused(tmp_path, model, edit, peak):
    path = saved(model(), tmp_path / "model.keras")
    edit_config(path, edit)
    with pytest.raises(RunError, match=TOO_LARGE) as caught:
        SMALL.load(path)
    assert not isinstance(caught.value, RebuildError)
    assert peak() < 2**27


def test_many_layers_above_the_limit_are_refused(tmp_path):
    model = chain(*(layers.Dense(1000) for _ in range(5)), shape=(1000,))
    path = saved(model, tmp_path / "model.keras")
    loaded = Foreign(max_bytes=2**25).load(path)
    assert same(loaded.get_weights(), model.get_weights())
    with pytest.raises(RunError, match="it has 20,.* above the limit"):
        SMALL.load(path)
    # Each layer fits, and so does the file, but not all layers together.
    small = chain(*(layers.Dense(1) for _ in range(5)), shape=(1000,))
    path = saved(small, path)

    def grow(config):
        for layer in config["config"]["layers"][1:]:
            layer["config"]["units"] = 1000
            del layer["build_config"]

    edit_config(path, grow)
    with pytest.raises(RunError, match=TOO_LARGE):
        SMALL.load(path)


def test_part_of_a_part_above_the_limit_is_refused(tmp_path):
    inner = chain(layers.Dense(3), shape=(3,))
    path = saved(
        chain(chain(inner, shape=(3,)), shape=(3,)), tmp_path / "a.keras"
    )

    def grow(config):
        part = layer_of(layer_of(config, "Sequential"), "Sequential")
        layer_of(part, "Dense")["config"]["units"] = 10**10

    edit_config(path, grow)
    with pytest.raises(RunError, match=TOO_LARGE):
        SMALL.load(path)


@pytest.fixture
def peak():
    """How much the peak of this process' memory has grown, in bytes."""
    resource = pytest.importorskip("resource")

    def used():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    before = used()
    return lambda: used() - before


# --- Models of every kind are read ---


def functional_of_operations():
    x = keras.Input((4,))
    y = ops.mean(ops.square(x) * 2 + 1, axis=-1, keepdims=True)
    y = ops.concatenate([x[:, 1:], y, ops.ones_like(x)], axis=-1)
    y = ops.relu(y) - ops.expand_dims(ops.max(x, axis=1), -1)
    return keras.Model(x, layers.Dense(3, activation=ops.tanh)(y))


def several_inputs():
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    shared = layers.Dense(4)
    joined = layers.Add()([shared(a), shared(b)])
    return keras.Model({"a": a, "b": b}, layers.Dense(2)(joined))


def attention():
    x = keras.Input((5, 8))
    y = layers.LayerNormalization()(layers.MultiHeadAttention(2, 4)(x, x))
    return keras.Model(x, layers.Dense(2)(layers.GlobalMaxPooling1D()(y)))


def mixed_precision():
    kept = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return chain(
            layers.Conv2D(2, 3),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(3, dtype="float32"),
            shape=(8, 8, 3),
        )
    finally:
        keras.config.set_dtype_policy(kept)


def frequencies():
    vectorize = layers.TextVectorization(output_mode="tf_idf")
    vectorize.adapt(["red green", "green blue"])
    return chain(vectorize, layers.Dense(2), shape=(1,), dtype="string")


def adapted():
    normalize = layers.Normalization()
    normalize.adapt(np.random.default_rng(0).normal(size=(9, 4)))
    return chain(normalize, layers.Dense(2))


def built_by_data():
    model = keras.Sequential([layers.Dense(3), layers.Dropout(0.5, seed=1)])
    model(np.zeros((1, 4)))
    return model


KINDS = {
    "sequential": dense_model,
    "binary": lambda: chain(layers.Dense(1, "sigmoid")),
    "operations": functional_of_operations,
    "several inputs": several_inputs,
    "attention": attention,
    "mixed precision": mixed_precision,
    "texts": text_model,
    "frequencies": frequencies,
    "adapted": adapted,
    "built by data": built_by_data,
    "nested": lambda: chain(chain(chain(layers.Dense(2)))),
    "lookups": lambda: chain(
        layers.StringLookup(vocabulary=["a", "b"]),
        layers.Embedding(4, 2),
        dtype="string",
    ),
    "constants": lambda: chain(
        layers.Normalization(mean=[1.0, 2.0, 3.0], variance=[1.0] * 3),
        layers.Rescaling([1.0, 2.0, 3.0], offset=np.ones(3)),
        layers.ReLU(max_value=float("inf")),
        layers.Masking(float("nan")),
        shape=(2, 3),
    ),
    "recurrent": lambda: chain(
        layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
        layers.TimeDistributed(layers.Dense(2)),
        layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)]),
        shape=(5, 4),
    ),
    "stateful": lambda: chain(
        layers.LSTM(3, stateful=True), shape=(5, 4), batch_size=4
    ),
    "images": lambda: chain(
        layers.RandomFlip(),
        layers.RandomRotation(0.1),
        layers.Pipeline([layers.RandomCrop(6, 6), layers.Resizing(4, 4)]),
        layers.SpectralNormalization(layers.Conv2D(2, 3)),
        layers.GroupNormalization(1),
        shape=(8, 8, 3),
    ),
    "own settings": lambda: chain(
        layers.Dense(
            2,
            activation=keras.activations.silu,
            kernel_initializer=keras.initializers.HeNormal(
                keras.random.SeedGenerator(3)
            ),
            kernel_regularizer="l2",
            kernel_constraint=keras.constraints.MaxNorm(2),
            dtype=keras.DTypePolicy("bfloat16"),
        )
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_every_kind_are_read(tmp_path, kind):
    model = KINDS[kind]()
    loaded = SMALL.load(saved(model, tmp_path / "model.keras"))
    [copied] = copying.copies(loaded, 1, foreign=SMALL)
    for other in (loaded, copied):
        kinds = [[type(part) for part in m.layers] for m in (model, other)]
        assert kinds[0] == kinds[1]
        assert same(other.get_weights(), model.get_weights())
        assert not other.compiled


@pytest.mark.large
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("EfficientNetB0", 32),
        ("ConvNeXtTiny", 32),
        ("MobileNetV3Small", 32),
        ("InceptionResNetV2", 75),
        ("NASNetMobile", 32),
        ("ResNet50", 32),
    ],
)
def test_models_of_keras_applications_are_read(tmp_path, name, size):
    build = getattr(keras.applications, name)
    model = build(weights=None, classes=3, input_shape=(size, size, 3))
    loaded = Foreign().load(saved(model, tmp_path / "model.keras"))
    assert same(loaded.get_weights(), model.get_weights())


def test_file_of_keras_itself_is_read(tmp_path):
    model = dense_model()
    model.save(tmp_path / "model.keras")
    loaded = SMALL.load(tmp_path / "model.keras")
    assert same(loaded.get_weights(), model.get_weights())
    assert not loaded.compiled
