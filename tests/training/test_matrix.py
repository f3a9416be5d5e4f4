"""Every kind of model, label and input that is promised, end to end."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import blobs

from cbnn_keras import CBNNCallback, CheckpointEnsemble

layers = keras.layers
SPARSE = "sparse_categorical_crossentropy"


def stack(*more, units=3, activation="softmax", features=4):
    return [
        keras.Input((features,)),
        layers.Dense(8, activation="relu"),
        *more,
        layers.Dense(units, activation=activation),
    ]


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(8, activation="relu")
        self.drop = layers.Dropout(0.1)
        self.last = layers.Dense(3, activation="softmax")

    def call(self, x, training=False):
        return self.last(self.drop(self.hidden(x), training=training))


def functional():
    inputs = keras.Input((4,))
    hidden = layers.BatchNormalization()(layers.Dense(8)(inputs))
    outputs = layers.Dense(3, activation="softmax")(hidden)
    return keras.Model(inputs, outputs)


def dict_inputs():
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    joined = layers.Concatenate()([a, b])
    hidden = layers.Dense(8, activation="relu")(joined)
    outputs = layers.Dense(3, activation="softmax")(hidden)
    return keras.Model({"a": a, "b": b}, outputs)


def text_model(texts):
    words = layers.TextVectorization(output_sequence_length=4)
    words.adapt(texts)
    return keras.Sequential(
        [
            keras.Input((), dtype="string"),
            words,
            layers.Embedding(words.vocabulary_size(), 4),
            layers.GlobalAveragePooling1D(),
            layers.Dense(3, activation="softmax"),
        ]
    )


def table_model(x):
    normalise = layers.Normalization()
    normalise.adapt(x)
    return keras.Sequential(
        stack(layers.Dropout(0.1))[:1] + [normalise] + stack()[1:]
    )


def cases():
    x, y = blobs()
    one_hot = np.eye(3, dtype="float32")[y]
    binary = (y == 0).astype("float32")
    words = np.array(["red apple", "green pear tree", "blue plum"], object)[y]
    pictures = np.repeat(x[:, :, None, None], 4, 2)
    yield "sequential", keras.Sequential(stack()), x, y, SPARSE, {}
    unbuilt = keras.Sequential([layers.Dense(3, activation="softmax")])
    yield "sequential without Input", unbuilt, x, y, SPARSE, {}
    yield "functional", functional(), x, y, SPARSE, {}
    yield "subclassed", Subclassed(), x, y, SPARSE, {}
    yield (
        "one-hot",
        keras.Sequential(stack()),
        x,
        one_hot,
        "categorical_crossentropy",
        {},
    )
    column = keras.Sequential(stack())
    yield "labels in a column", column, x, y[:, None], SPARSE, {}
    sigmoid = keras.Sequential(stack(units=1, activation="sigmoid"))
    yield "binary", sigmoid, x, binary, "binary_crossentropy", {}
    yield (
        "binary logits",
        keras.Sequential(stack(units=1, activation=None)),
        x,
        binary[:, None],
        keras.losses.BinaryCrossentropy(from_logits=True),
        {},
    )
    yield (
        "logits",
        keras.Sequential(stack(activation=None)),
        x,
        y,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        {},
    )
    image = keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    yield "image", image, pictures, y, SPARSE, {}
    if keras.backend.backend() == "tensorflow":
        yield "text", text_model(words), words, y, SPARSE, {}
    yield "table", table_model(x), x, y, SPARSE, {}
    yield (
        "dict inputs",
        dict_inputs(),
        {"a": x[:, :2], "b": x[:, 2:]},
        y,
        SPARSE,
        {},
    )
    yield (
        "steps_per_execution",
        keras.Sequential(stack()),
        x,
        y,
        SPARSE,
        {"steps_per_execution": 4},
    )
    jit = keras.Sequential(stack(layers.BatchNormalization()))
    yield "jit_compile", jit, x, y, SPARSE, {"jit_compile": True}


NAMES = [
    "sequential",
    "sequential without Input",
    "functional",
    "subclassed",
    "one-hot",
    "labels in a column",
    "binary",
    "binary logits",
    "logits",
    "image",
    "text",
    "table",
    "dict inputs",
    "steps_per_execution",
    "jit_compile",
]


def skip_what_keras_cannot(name):
    """The matrix is run on other backends too: see test_backends.py."""
    backend = keras.backend.backend()
    if name == "text" and backend != "tensorflow":
        pytest.skip(f"Keras has no texts inside a model on {backend}")
    if name == "steps_per_execution" and backend == "torch":
        pytest.skip("Keras has no steps_per_execution on torch")


def case(name):
    """Builds only what is asked for; the models have state."""
    return next(rest for found, *rest in cases() if found == name)


def as_dataset(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y))


def train(directory, model, data, loss, compile, **options):
    model.compile(keras.optimizers.Adam(0.05), loss, **compile)
    cbnn = CBNNCallback(
        directory,
        num_checkpoints=3,
        members="all",
        largest_ratio=1.1,
        **options,
    )
    pipeline = cbnn.weighted(*data, batch_size=16, seed=2)
    model.fit(pipeline, epochs=5, callbacks=[cbnn], verbose=0)
    return cbnn


LARGE = {"jit_compile", "labels in a column", "binary logits", "logits"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.large] * (name in LARGE))
        for name in NAMES
    ],
)
@pytest.mark.large
def test_trains_saves_loads_and_predicts(name, tmp_path):
    skip_what_keras_cannot(name)
    model, x, y, loss, compile = case(name)
    cbnn = train(tmp_path / "run", model, (x, y), loss, compile)
    trained = cbnn.ensemble()
    result = trained.evaluate(x, y)
    assert result["accuracy"] > 0.5  # better than chance with three classes
    given = model if name == "subclassed" else None
    loaded = CheckpointEnsemble.load(tmp_path / "run", given)
    probabilities = loaded.predict(x)
    # What is loaded is not compiled, so XLA's rounding is not in it.
    tolerance = 1e-6 if name == "jit_compile" else 0
    np.testing.assert_allclose(
        probabilities, trained.predict(x), rtol=0, atol=tolerance
    )
    if probabilities.shape[1] > 1:
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert loaded.evaluate(x, y) == pytest.approx(result, abs=tolerance)
    assert len(loaded) == 3
    # 8 batches an epoch: T = 40, t = 14; hooks come every 4th batch with
    # steps_per_execution=4, so a crossed step is met at the next of them.
    expected = [16, 28, 40] if name == "steps_per_execution" else [14, 26, 40]
    assert [m["step"] for m in loaded.members] == expected


@pytest.mark.large
@pytest.mark.parametrize(
    "name", ["sequential", "one-hot", "text", "dict inputs"]
)
def test_a_dataset_gives_what_arrays_give(name):
    """Same order, so the same batches and, bit for bit, the same votes."""
    skip_what_keras_cannot(name)
    votes = []
    for convert in (lambda x, y: (x, y), lambda x, y: (as_dataset(x, y),)):
        keras.utils.set_random_seed(0)
        model, x, y, loss, compile = case(name)
        model.compile(keras.optimizers.Adam(0.05), loss, **compile)
        cbnn = CBNNCallback.paper(num_checkpoints=3)
        pipeline = cbnn.weighted(
            *convert(x, y), batch_size=16, shuffle=False, seed=2
        )
        model.fit(pipeline, epochs=5, callbacks=[cbnn], verbose=0)
        votes.append(cbnn.ensemble().votes)
    np.testing.assert_array_equal(*votes)


@pytest.mark.large
@pytest.mark.parametrize(
    "policy",
    ["mixed_bfloat16", "mixed_float16"],
)
def test_mixed_precision(policy, tmp_path):
    keras.config.set_dtype_policy(policy)
    model, x, y, loss, compile = case("functional")
    cbnn = train(tmp_path / "run", model, (x, y), loss, compile)
    loaded = CheckpointEnsemble.load(tmp_path / "run")
    probabilities = loaded.predict(x)
    assert probabilities.dtype == np.float32
    np.testing.assert_array_equal(probabilities, cbnn.ensemble().predict(x))
    assert loaded.evaluate(x, y)["accuracy"] > 0.5
    merged = loaded.as_model().predict(x, verbose=0)
    np.testing.assert_allclose(merged, probabilities, atol=1e-6)


def test_subclassed_model_without_a_callback_argument_is_built_by_us(tmp_path):
    """Such a model has no weights before `fit`; scoring needs them."""
    model = Subclassed()
    model.compile("adam", SPARSE)
    assert not model.built
    x, y = blobs()
    cbnn = CBNNCallback(tmp_path / "run", num_checkpoints=1)
    model.fit(cbnn.weighted(x, y), epochs=6, callbacks=[cbnn], verbose=0)
    with pytest.raises(ValueError, match="model=model"):
        CheckpointEnsemble.load(tmp_path / "run")


@pytest.mark.large
def test_members_of_a_text_model_keep_their_vocabulary(tmp_path):
    skip_what_keras_cannot("text")
    model, x, y, loss, compile = case("text")
    train(tmp_path / "run", model, (x, y), loss, compile)
    loaded = CheckpointEnsemble.load(tmp_path / "run")
    merged = loaded.as_model()
    merged.save(tmp_path / "merged.keras")
    again = keras.saving.load_model(tmp_path / "merged.keras")
    np.testing.assert_allclose(
        again.predict(tf.constant(x), verbose=0), loaded.predict(x), atol=1e-6
    )
