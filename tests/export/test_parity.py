"""Every kind of model says the same in each format and runtime as in Keras.

None of the runtimes imports this package, and TensorFlow's C API is called
without TensorFlow's Python.
"""

import functools
import os
import shutil

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from conftest import FULL, PRIORS
from consumers import (
    MODEL_SERVER,
    run_model_server,
    run_native,
    run_node,
    run_openvino,
)
from export_helpers import (
    NAMES,
    X,
    assert_outputs,
    opened,
    run_onnx,
    worked_out,
)
from helpers import header, memory_ensemble, round_at, text_model
from tensorflow_serving.apis import prediction_log_pb2

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.export import (
    export_litert,
    export_onnx,
    export_saved_model,
    onnx_conversion,
)
from cbnn_keras.runs.run import MemoryRun

VOTES = [1.0, 2.5]
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


def mixed():
    """Inputs of many types, of which most have the same shape."""
    inputs = {
        "pixels": keras.Input((3,), dtype="uint8", name="pixels"),
        "amounts": keras.Input((3,), name="amounts"),
        "item": keras.Input((1,), dtype="int64", name="item"),
        "flags": keras.Input((3,), dtype="bool", name="flags"),
    }
    features = [
        layers.Rescaling(1 / 255)(inputs["pixels"]),
        inputs["amounts"],
        layers.Flatten()(layers.Embedding(5, 2)(inputs["item"])),
        keras.ops.cast(inputs["flags"], "float32"),
    ]
    x = layers.BatchNormalization()(layers.Concatenate()(features))
    x = layers.Dense(16, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(5, activation="softmax")(x))


def mixed_inputs():
    generator = np.random.default_rng(0)
    return {
        "pixels": generator.integers(0, 256, (32, 3)).astype("uint8"),
        "amounts": generator.normal(size=(32, 3)).astype("float32"),
        "item": generator.integers(0, 5, (32, 1)),
        "flags": generator.random((32, 3)) < 0.5,
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
        run.add_round(round_at(step, vote), np.ones(8, dtype=bool), model)
    run.finish()
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


def strings():
    # Empty, unknown, not ASCII, and too long for TensorFlow's short form.
    return np.array(["blue red", "", "pink", "grün red blue", "green " * 20])


CASES = {
    "sequential_cnn": (sequential_cnn, lambda: images(16), {}),
    "resnet": (resnet, lambda: images(16, 1.0), {}),
    "text": (text_attention, tokens, {}),
    "gru": (gru, tokens, {}),
    "mixed": (mixed, mixed_inputs, {}),
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
    "DenseNet121": (application("DenseNet121"), lambda: images(32, 1.0), {}),
    "ConvNeXtTiny": (application("ConvNeXtTiny"), lambda: images(32), {}),
}
SMALL = [name for name in CASES if not name[0].isupper()]
# Minutes each; others have the same kinds of layers.
LONGEST = ("EfficientNetV2B0", "DenseNet121")
all_networks = pytest.mark.skipif(
    "CBNN_ALL_NETWORKS" not in os.environ,
    reason="CBNN_ALL_NETWORKS is not set",
)


def _marks(case):
    if case in SMALL:
        return ()
    longest = [all_networks] if case in LONGEST else []
    return [pytest.mark.large, *longest]


ALL_CASES = [pytest.param(case, marks=_marks(case)) for case in CASES]


class Exported:
    """An ensemble in files, and what it should answer.

    Attributes:
        ensemble: It.
        options: What its exports were told.
        inputs: Seven samples, by the names that clients use.
        probabilities: What the Keras ensemble says of them.
        members: What each of its members says, `(7, num_members, k)`.
        saved_model: The directory of the version.
        run: Runs it.
        onnx: The file, unless the ensemble takes strings.
    """

    def __init__(self, case, directory):
        if case == "strings":
            known = x = strings()
            ensemble = memory_ensemble(text_model(), VOTES)
            asked = tf.constant(x)
        else:
            build, make_inputs, options = CASES[case]
            known = make_inputs()
            ensemble = ensemble_of(build(), known, **options)
            x = keras.tree.map_structure(lambda array: array[:7], known)
            asked = x
        self.probabilities = ensemble.predict(asked, verbose=0)
        members = list(ensemble.member_probabilities(asked, verbose=0))
        self.members = np.stack(members, axis=1)
        # Were members or samples alike, one in another's place would pass.
        assert np.abs(np.diff(self.members, axis=1)).max((0, 2)).min() > 1e-3
        assert np.ptp(self.probabilities, axis=0).max() > 1e-4
        self.ensemble = ensemble
        self.options = {"sample_data": known, "verbose": 0}
        self._directory = directory / case
        if case == "strings":
            name = self.run.inputs[0]
        else:
            self.onnx = directory / "ensemble.onnx"
            export_onnx(ensemble, self.onnx, **self.options)
            name = onnxruntime.InferenceSession(self.onnx).get_inputs()[0].name
        self.inputs = x if isinstance(x, dict) else {name: x}

    @functools.cached_property
    def saved_model(self):
        # Only where it is read: tests of the ONNX files do not wait for it.
        made = export_saved_model(
            self.ensemble, self._directory, **self.options
        )
        return made.path

    @functools.cached_property
    def run(self):
        return opened(self.saved_model)

    def batches(self):
        """Inputs of 1, 2 and 7 samples."""
        for size in (1, 2, 7):
            yield {name: array[:size] for name, array in self.inputs.items()}


@pytest.fixture(scope="module")
def exported_once(tmp_path_factory):
    @functools.cache
    def export(case):
        keras.utils.set_random_seed(0)
        return Exported(case, tmp_path_factory.mktemp(case))

    return export


@pytest.fixture
def exported(request, exported_once):
    """That of the case that the test was parametrized with."""
    return exported_once(request.param)


def check(found, expected):
    """The probabilities of a batch, or those of the members."""
    expected = expected[: len(found)]
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert np.abs(found - expected).max() <= 1e-5
    if expected.shape[-1] == 1:
        found, expected = found > 0.5, expected > 0.5
    np.testing.assert_array_equal(found.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("exported", [*ALL_CASES, "strings"], indirect=True)
@pytest.mark.large
def test_saved_model_says_what_keras_says(exported):
    for batch in exported.batches():
        check(exported.run(batch)["probabilities"], exported.probabilities)
        check(exported.run(batch, "members")["members"], exported.members)


@pytest.mark.parametrize("exported", ALL_CASES, indirect=True)
def test_onnx_says_what_keras_says(exported):
    for batch in exported.batches():
        found = run_onnx(exported.onnx, batch)
        assert list(found) == ["probabilities"]
        check(found["probabilities"], exported.probabilities)
    session = onnxruntime.InferenceSession(exported.onnx)
    for value in (*session.get_inputs(), *session.get_outputs()):
        assert value.shape[0] == "batch"


@pytest.mark.large
@pytest.mark.parametrize("exported", SMALL, indirect=True)
def test_litert_says_what_keras_says(exported, tmp_path):
    path = tmp_path / "a.tflite"
    options = exported.options | {"outputs": ["probabilities", "members"]}
    export_litert(exported.ensemble, path, **options)
    run = Interpreter(str(path)).get_signature_runner()
    is_single = 1 in {
        detail["shape_signature"][0]
        for detail in run.get_input_details().values()
    }
    for batch in list(exported.batches())[: 1 if is_single else None]:
        found = run(**batch)
        check(found["probabilities"], exported.probabilities)
        check(found["members"], exported.members)


@pytest.mark.parametrize("exported", ["resnet", "mixed"], indirect=True)
@pytest.mark.parametrize(
    "run", [run_openvino, pytest.param(run_node, marks=pytest.mark.servers)]
)
def test_other_runtimes_read_the_onnx_file(exported, run):
    for batch in exported.batches():
        found = run(exported.onnx, batch)
        assert list(found) == ["probabilities"]
        check(found["probabilities"], exported.probabilities)


@pytest.mark.parametrize("exported", ["resnet", "mixed"], indirect=True)
def test_openvino_reads_the_saved_model(exported):
    found = run_openvino(exported.saved_model, exported.inputs)
    check(found["probabilities"], exported.probabilities)


SERVED = pytest.mark.parametrize(
    "exported", ["resnet", "mixed", "strings"], indirect=True
)


@SERVED
def test_tensorflows_c_api_reads_the_saved_model(exported):
    """As TensorFlow Serving does, with its warm-up requests as well."""
    path = exported.saved_model / "assets.extra/tf_serving_warmup_requests"
    warmup = []
    for record in tf.data.TFRecordDataset(str(path)):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        request = log.predict_log.request
        inputs = {k: tf.make_ndarray(t) for k, t in request.inputs.items()}
        warmup.append((request.model_spec.signature_name, inputs))
    asked = [
        (signature, batch)
        for batch in exported.batches()
        for signature in ("serving_default", "members")
    ]
    answers = run_native(exported.saved_model, asked + warmup)
    for (signature, _), answer in zip(asked, answers, strict=False):
        name = "members" if signature == "members" else "probabilities"
        assert list(answer) == [name]
        check(answer[name], getattr(exported, name))
    assert len(warmup) == 4
    for (_, inputs), answer in zip(warmup, answers[len(asked) :], strict=True):
        [probabilities] = answer.values()
        assert {len(a) for a in inputs.values()} == {len(probabilities)}
        np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)


@SERVED
@pytest.mark.servers
@pytest.mark.skipif(  # before anything is exported
    not shutil.which(MODEL_SERVER), reason=f"{MODEL_SERVER} is not on PATH"
)
def test_model_server_says_what_keras_says(exported):
    probabilities, members = run_model_server(
        exported.saved_model.parent,
        [("serving_default", exported.inputs), ("members", exported.inputs)],
    )
    check(probabilities, exported.probabilities)
    check(members, exported.members)


# --- Every output, with names and priors ---


def test_the_data_are_not_trivial(ensemble):
    """Or the comparisons below would prove nothing."""
    plain, expected = worked_out(ensemble), worked_out(ensemble, priors=PRIORS)
    assert set(expected["class"]) == set(NAMES)
    assert (expected["class"] != plain["class"]).any()
    assert 0 < (expected["disagreement"] > 0).mean() < 0.5


def test_every_output_of_the_saved_model(ensemble, full_saved_model):
    expected = worked_out(ensemble, priors=PRIORS)
    assert_outputs(opened(full_saved_model.path)({"input": X}), expected)
    [found] = run_native(
        full_saved_model.path, [("serving_default", {"input": X})]
    )
    assert_outputs(found, expected)


def test_every_output_of_the_onnx_file(ensemble, full_onnx):
    expected = worked_out(ensemble, priors=PRIORS)
    assert_outputs(run_onnx(full_onnx.path, {"input": X}), expected)


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_every_output_in_less_than_float32(precision, ensemble, tmp_path):
    path = tmp_path / "a.onnx"
    data = "calibration_data" if precision == "int8" else "sample_data"
    options = {"precision": precision, data: X, "verbose": 0}
    export_onnx(ensemble, path, **options, **FULL)
    found = run_onnx(path, {"input": X})
    expected = worked_out(ensemble, priors=PRIORS)
    bound = {"float16": 5e-3, "int8": 0.05}[precision]
    for name in ("probabilities", "members"):
        assert np.abs(found[name] - expected[name]).max() < bound
    # What depends on predicted classes goes with the same file's own.
    probabilities, opinions = found["probabilities"], found["members"] / PRIORS
    order = np.argsort(-probabilities, axis=1)
    labels = np.array(NAMES)
    assert found["class"].tolist() == labels[order[:, 0]].tolist()
    assert found["top_k_classes"].tolist() == labels[order[:, :2]].tolist()
    against = opinions.argmax(axis=2) != order[:, :1]
    disagreement = against @ ensemble.votes / ensemble.votes.sum()
    np.testing.assert_allclose(
        found["disagreement"], disagreement, rtol=0, atol=1e-3
    )


def test_hard_votes_and_numbers_of_classes(ensemble, tmp_path):
    path, outputs = tmp_path / "a.onnx", ["probabilities", "class", "top_k"]
    export_onnx(ensemble, path, voting="hard", outputs=outputs, verbose=0)
    found = run_onnx(path, {"input": X})
    voted = np.eye(3)[worked_out(ensemble)["members"].argmax(axis=2)]
    expected = np.average(voted, axis=1, weights=ensemble.votes)
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-6)
    assert found["class"].dtype == found["top_k_classes"].dtype == np.int64
    np.testing.assert_array_equal(found["class"], expected.argmax(axis=1))
    # No more than there are classes, of the five that are the default.
    np.testing.assert_array_equal(
        np.sort(found["top_k_classes"]), np.tile(np.arange(3), (len(X), 1))
    )


@pytest.mark.large
@pytest.mark.parametrize("case", SMALL)
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
    assert len(session.get_inputs()) == (4 if case == "mixed" else 1)
