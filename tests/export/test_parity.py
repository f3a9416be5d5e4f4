"""Every kind of model says the same in each format as in Keras."""

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from helpers import header

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.export import export_onnx, export_saved_model, onnx_conversion
from cbnn_keras.runs.run import MemoryRun

VOTES = [1.0, 2.5, 0.7]
layers = keras.layers


def images(size, high=255.0):
    generator = np.random.default_rng(0)
    return generator.uniform(0, high, (32, size, size, 3)).astype("float32")


def tokens():
    return np.random.default_rng(0).integers(0, 50, (32, 12)).astype("int32")


def application(name, size=32, **options):
    build = getattr(keras.applications, name)
    return lambda: build(
        input_shape=(size, size, 3), weights=None, classes=10, **options
    )


def sequential_cnn():
    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Rescaling(1 / 255),
            layers.RandomFlip(),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Dropout(0.5),
            layers.Flatten(),
            layers.Dense(5, activation="softmax"),
        ]
    )


def resnet():
    inputs = keras.Input((16, 16, 3), name="image")
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(inputs)
    for stride in (1, 2):
        y = x
        for step in (stride, 1):
            y = layers.BatchNormalization()(y)
            y = layers.Activation("relu")(y)
            y = layers.Conv2D(8, 3, step, "same", use_bias=False)(y)
        x = layers.Conv2D(8, 1, stride, use_bias=False)(x) if stride > 1 else x
        x = layers.Add()([x, y])
    x = layers.GlobalAveragePooling2D()(layers.BatchNormalization()(x))
    return keras.Model(inputs, layers.Dense(5, activation="softmax")(x))


def text_attention():
    inputs = keras.Input((12,), dtype="int32", name="tokens")
    x = layers.Embedding(50, 16)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))
    x = layers.Dense(32, activation="gelu")(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(5, activation="softmax")(x))


def gru():
    return keras.Sequential(
        [
            keras.Input((12,), dtype="int32"),
            layers.Embedding(50, 8, mask_zero=True),
            layers.GRU(16),
            layers.Dense(5, activation="softmax"),
        ]
    )


def tabular():
    inputs = {
        "age": keras.Input((1,), name="age"),
        "income": keras.Input((3,), name="income"),
        "city": keras.Input((1,), dtype="int64", name="city"),
    }
    city = layers.Flatten()(layers.Embedding(20, 4)(inputs["city"]))
    joined = layers.Concatenate()([inputs["age"], inputs["income"], city])
    x = layers.Dense(16, activation="relu")(layers.BatchNormalization()(joined))
    return keras.Model(inputs, layers.Dense(5, activation="softmax")(x))


def table():
    generator = np.random.default_rng(0)
    return {
        "age": generator.normal(size=(32, 1)).astype("float32"),
        "income": generator.normal(size=(32, 3)).astype("float32"),
        "city": generator.integers(0, 20, (32, 1)),
    }


def head(units, activation=None):
    return keras.Sequential(
        [
            keras.Input((16, 16, 3), name="image"),
            layers.Conv2D(8, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(units, activation=activation),
        ]
    )


def ensemble_of(model, x, **options):
    """Members as after training: each knows the data, and in its own way."""
    run = MemoryRun(header(model, **options))
    generator = np.random.default_rng(1)
    first = model.get_weights()
    norms = [
        layer
        for layer in model.layers
        if isinstance(layer, layers.BatchNormalization)
    ]
    fixed = [  # not trained, and Keras reads them when a model is loaded
        (layer, layer.get_weights())
        for layer in model.layers
        if isinstance(layer, layers.Normalization)
    ]
    for step, vote in enumerate(VOTES, start=1):
        model.set_weights([_moved(weight, generator) for weight in first])
        for layer, weights in fixed:
            layer.set_weights(weights)
        for layer in norms:
            layer.momentum = 0.0  # the statistics of the next batch alone
        model(x, training=True)
        make_unsure(model, x)
        record = {"step": step, "vote": vote, "is_final": False}
        run.add_round(record, np.ones(8, dtype=bool), model)
    return CheckpointEnsemble(run, model)


def make_unsure(model, x):
    """Scales the last layer so that scores are zero, give or take a half.

    Sure models say 0 and 1, whatever an export does to them.
    """
    last = [layer for layer in model.layers if layer.weights][-1]
    activation, last.activation = last.activation, keras.activations.linear
    is_sequential = isinstance(model, keras.Sequential)
    inputs = model.inputs[0] if is_sequential else model.input
    scores = np.array(keras.Model(inputs, last.output)(x, training=False))
    last.activation = activation
    kernel, bias = last.get_weights()
    scores = scores.reshape(len(scores), -1)
    factor = 0.5 / scores.std(axis=0).mean()
    bias = factor * (bias - scores.mean(axis=0))
    last.set_weights([factor * kernel, bias])


def _moved(weight, generator):
    """Other values of the size that they have; no zeros."""
    if weight.dtype.kind != "f":
        return weight
    if np.ptp(weight) == 0:  # biases, gammas, statistics
        centre = float(weight.flat[0]) if weight.size else 0.0
        centre = 0.2 if 0 < centre < 1e-3 else centre  # ConvNeXt's LayerScale
        return centre + generator.uniform(0, 0.2, weight.shape)
    return weight * np.exp(generator.normal(0, 0.2, weight.shape))


CASES = {
    "sequential_cnn": (sequential_cnn, lambda: images(16), {}),
    "resnet": (resnet, lambda: images(16, 1.0), {}),
    "text": (text_attention, tokens, {}),
    "gru": (gru, tokens, {}),
    "tabular": (tabular, table, {}),
    "binary": (
        lambda: head(1, "sigmoid"),
        lambda: images(16, 1.0),
        {"is_binary": True},
    ),
    "logits": (lambda: head(5), lambda: images(16, 1.0), {"from_logits": True}),
    "binary_logits": (
        lambda: head(1),
        lambda: images(16, 1.0),
        {"is_binary": True, "from_logits": True},
    ),
    "MobileNetV3Small": (
        application("MobileNetV3Small"),
        lambda: images(32),
        {},
    ),
    "EfficientNetB0": (application("EfficientNetB0"), lambda: images(32), {}),
    "EfficientNetV2B0": (
        application("EfficientNetV2B0"),
        lambda: images(32),
        {},
    ),
    "DenseNet121": (
        application("DenseNet121"),
        lambda: images(32, 1.0),
        {},
    ),
    "ConvNeXtTiny": (application("ConvNeXtTiny"), lambda: images(32), {}),
}
BIG = {name for name in CASES if name[0].isupper()}


def named(inputs):
    """One array for each input of the artefact."""
    if isinstance(inputs, dict):
        return inputs
    return {"": inputs}


def check(run, names, x, expected):
    """Batches of 1, 2 and 7 through another runtime."""
    arrays = named(x)
    if list(arrays) == [""]:
        arrays = {names[0]: arrays[""]}
    assert sorted(arrays) == sorted(names)
    for size in (1, 2, 7):
        found = run({name: a[:size] for name, a in arrays.items()})
        assert found.shape == expected[:size].shape
        assert np.abs(found - expected[:size]).max() <= 1e-5
        np.testing.assert_array_equal(winners(found), winners(expected[:size]))


def winners(probabilities):
    if probabilities.shape[1] == 1:
        return probabilities[:, 0] > 0.5
    return probabilities.argmax(axis=1)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, marks=pytest.mark.large if c in BIG else ())
        for c in CASES
    ],
)
def test_saved_model_and_onnx_say_what_keras_says(case, tmp_path):
    build, make_inputs, options = CASES[case]
    known = make_inputs()
    x = keras.tree.map_structure(lambda array: array[:7], known)
    ensemble = ensemble_of(build(), known, **options)
    members = np.stack(list(ensemble.member_probabilities(x, verbose=0)))
    assert np.ptp(members, axis=0).max() > 1e-2  # members do differ
    expected = ensemble.predict(x, verbose=0)
    assert np.ptp(expected, axis=0).max() > 1e-4  # and so do samples

    options = {"sample_data": known, "verbose": 0}
    folder = export_saved_model(ensemble, tmp_path / case, **options).path
    loaded = tf.saved_model.load(str(folder))
    serve = loaded.signatures["serving_default"]
    names = list(serve.structured_input_signature[1])
    check(
        lambda batch: serve(
            **{name: tf.constant(array) for name, array in batch.items()}
        )["probabilities"].numpy(),
        names,
        x,
        expected,
    )

    file = tmp_path / "ensemble.onnx"
    export_onnx(ensemble, file, **options)
    session = onnxruntime.InferenceSession(file)
    check(
        lambda batch: session.run(["probabilities"], batch)[0],
        [i.name for i in session.get_inputs()],
        x,
        expected,
    )
    for value in (*session.get_inputs(), *session.get_outputs()):
        assert value.shape[0] == "batch"


@pytest.mark.large
@pytest.mark.parametrize("case", [c for c in CASES if c not in BIG])
def test_onnx_of_large_models_is_converted_without_weights(
    case, tmp_path, monkeypatch
):
    """As with those of more than 2 GB, with models that are quick to try."""
    monkeypatch.setattr(onnx_conversion, "_LARGE_MODEL", 0)
    monkeypatch.setattr(onnx_conversion, "_LARGE_WEIGHT", 0)
    build, make_inputs, options = CASES[case]
    known = make_inputs()
    ensemble = ensemble_of(build(), known, **options)
    artefact = export_onnx(
        ensemble, tmp_path / "x.onnx", sample_data=known, verbose=0
    )
    assert artefact.parity.max_difference <= 1e-5
    assert artefact.parity.num_samples == 32
    session = onnxruntime.InferenceSession(artefact.path)
    assert len(session.get_inputs()) == (3 if case == "tabular" else 1)
