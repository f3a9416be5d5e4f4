"""`export_onnx` and `export_triton`: the contract, and what failures leave."""

import json
import os
import pathlib
import re
import tempfile

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf
from google.protobuf import text_format
from helpers import dense_model, memory_ensemble
from tritonclient.grpc import model_config_pb2

import cbnn_keras
from cbnn_keras.export import export_onnx, export_triton, verify_artefact
from cbnn_keras.export import onnx as onnx_module
from cbnn_keras.export import triton as triton_module

layers = keras.layers
VOTES = [1.0, 2.5, 0.7]
NAMES = ["rot", "grün", "blau"]
ALL = ["probabilities", "class", "top_k", "members", "disagreement"]
X = np.random.default_rng(5).normal(0, 3, (40, 4)).astype("float32")


@keras.saving.register_keras_serializable("test_onnx")
class LogGamma(layers.Layer):
    """Of an op that tf2onnx does not know."""

    def call(self, x):
        return tf.math.lgamma(tf.abs(x) + 1)

    def compute_output_shape(self, shape):
        return shape


@pytest.fixture(scope="module")
def ensemble():
    keras.utils.set_random_seed(5)  # every class wins somewhere
    return memory_ensemble(dense_model(), VOTES)


@pytest.fixture(scope="module")
def broken():
    """An ensemble that has no counterpart in ONNX."""
    inputs = keras.Input((4,), name="values")
    hidden = LogGamma(name="odd")(layers.Dense(8)(inputs))
    outputs = layers.Dense(3, activation="softmax")(hidden)
    return memory_ensemble(keras.Model(inputs, outputs), VOTES)


@pytest.fixture(scope="module")
def full(ensemble, tmp_path_factory):
    """A file with all outputs, by name."""
    path = tmp_path_factory.mktemp("full") / "new" / "ensemble.onnx"
    artefact = export_onnx(
        ensemble, path, outputs=ALL, class_names=NAMES, top_k=2, verbose=0
    )
    assert artefact.path == path
    return artefact


def probabilities_of_members(ensemble, x=X):
    """With NumPy, in double precision, shape `(members, samples, classes)`."""
    found = []
    for member in ensemble.member_models():
        w, b, w_out, b_out = member.get_weights()
        logits = np.maximum(x.astype("float64") @ w + b, 0) @ w_out + b_out
        exponentials = np.exp(logits)
        found.append(exponentials / exponentials.sum(axis=1, keepdims=True))
    return np.array(found)


def average(members, votes=VOTES):
    return np.average(members, axis=0, weights=votes)


def run(path, x=X, name="input"):
    session = onnxruntime.InferenceSession(path)
    outputs = [output.name for output in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, {name: x}), strict=True))


def tree(folder):
    """All that is in a folder, hidden or not, byte for byte."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        if path.is_file()
        else None
        for path in pathlib.Path(folder).rglob("*")
    }


# --- The file ---


def test_the_file_is_valid(full):
    onnx.checker.check_model(str(full.path), full_check=True)
    model = onnx.load(full.path)
    assert {o.domain: o.version for o in model.opset_import}[""] == 17


def test_the_file_says_what_is_in_it(full):
    expected = {
        "cbnn_keras_version": cbnn_keras.__version__,
        "members": [1, 2, 3],
        "votes": [1.0, 2.5, 0.7],
        "voting": "soft",
        "priors": None,
        "num_classes": 3,
        "labels": ["rot", "grün", "blau"],
        "outputs": ALL,
        "top_k": 2,
        "has_preprocess": False,
        "precision": "float32",
    }
    properties = onnx.load(full.path).metadata_props
    assert {p.key: json.loads(p.value) for p in properties} == expected
    # As servers see it.
    session = onnxruntime.InferenceSession(full.path)
    texts = session.get_modelmeta().custom_metadata_map
    assert {k: json.loads(text) for k, text in texts.items()} == expected


def test_outputs_follow_the_priors(ensemble, tmp_path):
    priors = np.array([0.1, 0.6, 0.3])
    artefact = export_onnx(
        ensemble, tmp_path / "a.onnx", outputs=ALL, priors=priors, verbose=0
    )
    raw = probabilities_of_members(ensemble)
    members = raw / priors
    weighted = average(raw) / priors
    probabilities = weighted / weighted.sum(axis=1, keepdims=True)
    winners = probabilities.argmax(axis=1)
    assert (winners != average(raw).argmax(axis=1)).any()
    against = average(members.argmax(axis=2) != winners)
    found = run(artefact.path)
    np.testing.assert_allclose(
        found["probabilities"], probabilities, rtol=0, atol=1e-5
    )
    np.testing.assert_array_equal(found["class"], winners)
    np.testing.assert_array_equal(found["top_k_classes"][:, 0], winners)
    np.testing.assert_allclose(
        found["members"], raw.transpose(1, 0, 2), rtol=0, atol=1e-5
    )
    np.testing.assert_allclose(found["disagreement"], against, atol=1e-6)
    texts = {p.key: p.value for p in onnx.load(artefact.path).metadata_props}
    assert json.loads(texts["priors"]) == pytest.approx([0.1, 0.6, 0.3])
    verify_artefact(artefact.path, ensemble, sample_data=X, verbose=0)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_priors_of_one_sigmoid(precision, tmp_path):
    inputs = keras.Input((4,), name="input")
    outputs = layers.Dense(1, activation="sigmoid")(inputs)
    model = keras.Model(inputs, outputs)
    ensemble = memory_ensemble(model, VOTES, is_binary=True)
    mean = average(list(ensemble.member_probabilities(X, verbose=0)))
    # One in a hundred thousand is more than half precision can divide by.
    for priors in ([0.9, 0.1], [0.99999, 0.00001]):
        first, second = (1 - mean) / priors[0], mean / priors[1]
        path = tmp_path / "a.onnx"
        export_onnx(
            ensemble,
            path,
            priors=priors,
            precision=precision,
            tolerance=0.05,
            verbose=0,
        )
        np.testing.assert_allclose(
            run(path)["probabilities"],
            second / (first + second),
            rtol=0,
            atol=1e-4 if precision == "float32" else 0.05,
        )


@pytest.mark.parametrize("batch", [1, 2, 40])
def test_all_outputs_are_what_numpy_says(full, ensemble, batch):
    members = probabilities_of_members(ensemble)[:, :batch]
    probabilities = average(members)
    order = np.argsort(-probabilities, axis=1)
    against = members.argmax(axis=2) != order[:, 0]
    names = np.array(NAMES)
    found = run(full.path, X[:batch])
    assert sorted(found) == [
        "class",
        "disagreement",
        "members",
        "probabilities",
        "top_k_classes",
        "top_k_probabilities",
    ]
    assert found["class"].tolist() == names[order[:, 0]].tolist()
    assert found["top_k_classes"].tolist() == names[order[:, :2]].tolist()
    for name, expected in {
        "probabilities": probabilities,
        "top_k_probabilities": -np.sort(-probabilities, axis=1)[:, :2],
        "members": members.transpose(1, 0, 2),
        "disagreement": np.array(VOTES) @ against / np.sum(VOTES),
    }.items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-5)


def test_the_data_are_not_trivial(ensemble):
    """Or the comparison above would prove nothing."""
    members = probabilities_of_members(ensemble)
    assert np.unique(average(members).argmax(axis=1)).size == 3
    disagreement = members.argmax(axis=2) != average(members).argmax(axis=1)
    assert 0 < disagreement.mean() < 0.5


def test_classes_are_numbers_without_names(ensemble, tmp_path):
    export_onnx(
        ensemble,
        tmp_path / "a.onnx",
        outputs=["class", "top_k"],
        verbose=0,
    )
    expected = average(probabilities_of_members(ensemble))
    found = run(tmp_path / "a.onnx")
    assert found["class"].dtype == found["top_k_classes"].dtype == np.int64
    np.testing.assert_array_equal(found["class"], expected.argmax(axis=1))
    # No more than there are classes, of the five that are the default.
    order = np.argsort(-expected, axis=1)
    np.testing.assert_array_equal(found["top_k_classes"], order)


def test_hard_votes_count_decisions(ensemble, tmp_path):
    export_onnx(ensemble, tmp_path / "a.onnx", voting="hard", verbose=0)
    members = probabilities_of_members(ensemble)
    expected = average(np.eye(3)[members.argmax(axis=2)])
    found = run(tmp_path / "a.onnx")["probabilities"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_clients_can_send_bytes(tmp_path):
    """Behind a preprocessing, with its own shape and type."""
    inputs = keras.Input((4, 4, 1), name="image")
    outputs = layers.Dense(3, activation="softmax")(layers.Flatten()(inputs))
    ensemble = memory_ensemble(keras.Model(inputs, outputs), VOTES)
    raw = keras.Input((8, 8, 1), dtype="uint8", name="bytes")
    front = layers.AveragePooling2D(2)(layers.Rescaling(1 / 255)(raw))
    preprocess = keras.Model(raw, front)
    path = tmp_path / "a.onnx"
    export_onnx(ensemble, path, preprocess=preprocess, verbose=0)

    x = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), "uint8")
    pooled = x.reshape(5, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(5, 16) / 255
    logits = [
        pooled @ w + b
        for w, b in (m.get_weights() for m in ensemble.member_models())
    ]
    sums = [np.exp(a).sum(axis=1, keepdims=True) for a in logits]
    expected = average(np.exp(logits) / sums)
    found = run(path, x, "bytes")["probabilities"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    (value,) = onnxruntime.InferenceSession(path).get_inputs()
    assert (value.type, value.shape) == ("tensor(uint8)", ["batch", 8, 8, 1])


# --- What the user is told ---


def test_the_artefact_is_described(full):
    assert full.num_bytes == full.path.stat().st_size
    assert full.parity.num_samples == 10  # 1 + 2 + 7
    assert full.parity.agreement == 1.0
    assert 0 <= full.parity.max_difference <= 1e-5


def test_all_real_samples_are_compared(ensemble, tmp_path):
    artefact = export_onnx(
        ensemble, tmp_path / "a.onnx", sample_data=X, verbose=0
    )
    assert artefact.parity.num_samples == 40


def test_silence(ensemble, broken, tmp_path, capfd):
    export_onnx(ensemble, tmp_path / "a.onnx", verbose=0)
    with pytest.raises(ValueError, match="Lgamma"):
        export_onnx(broken, tmp_path / "a.onnx", verbose=0)
    assert capfd.readouterr() == ("", "")


def test_stages_size_and_parity_are_shown(ensemble, tmp_path, capfd):
    path = tmp_path / "a.onnx"
    export_onnx(ensemble, path)
    shown, errors = capfd.readouterr()
    assert errors == ""
    *stages, result = shown.splitlines()
    assert stages == [
        "merging the members ...",
        "converting to ONNX (minutes for large models) ...",
        "comparing it with the Keras ensemble ...",
    ]
    size = f"{path.stat().st_size / 1000:.1f} kB"
    assert re.fullmatch(
        re.escape(f"{path}: {size}, max |delta p| ")
        + r"\d\.\de-\d\d, the same class for 100\.0% of 10 samples\.",
        result,
    )


# --- Where it goes ---


def test_a_file_is_replaced(ensemble, tmp_path):
    path = tmp_path / "a.onnx"
    path.write_bytes(b"what was there before")
    (tmp_path / "b.onnx").write_bytes(b"another one")
    export_onnx(ensemble, path, verbose=0)
    assert sorted(tree(tmp_path)) == ["a.onnx", "b.onnx"]
    assert (tmp_path / "b.onnx").read_bytes() == b"another one"
    expected = average(probabilities_of_members(ensemble))
    np.testing.assert_allclose(
        run(path)["probabilities"], expected, rtol=0, atol=1e-5
    )


def test_the_path_may_be_relative_and_a_string(ensemble, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    artefact = export_onnx(ensemble, "deep/er/a.onnx", verbose=0)
    assert artefact.path == tmp_path / "deep/er/a.onnx"
    assert sorted(tree(tmp_path)) == ["deep", "deep/er", "deep/er/a.onnx"]


def test_a_new_file_can_be_read_by_others(ensemble, tmp_path):
    """The folder that it was written to cannot."""
    mask = os.umask(0o022)
    try:
        export_onnx(ensemble, tmp_path / "new/a.onnx", verbose=0)
    finally:
        os.umask(mask)
    assert (tmp_path / "new/a.onnx").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o755


def test_nothing_is_left_in_the_folder_for_temporary_files(
    ensemble, tmp_path, monkeypatch
):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    export_onnx(
        ensemble,
        tmp_path / "a.onnx",
        precision="int8",
        calibration_data=X,
        verbose=0,
    )
    assert tree(temporary) == {}


def test_a_folder_is_not_a_file(ensemble, tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(
        ValueError,
        match=rf"{tmp_path} is a folder; an ONNX export is a file\. Give a "
        r"name for it, such as ensemble\.onnx",
    ):
        export_onnx(ensemble, tmp_path, verbose=0)
    assert tree(tmp_path) == {"mine": b"x"}


# --- Failures ---


@pytest.fixture(scope="module")
def proto(ensemble):
    return onnx_module.conversion.to_onnx(onnx_module.ServingGraph(ensemble))


@pytest.fixture
def converted_before(proto, monkeypatch):
    """Saves the time of a conversion; `proto` is of `ensemble`."""

    def to_onnx(graph):
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        return copy

    monkeypatch.setattr(onnx_module.conversion, "to_onnx", to_onnx)


def fail_in_to_onnx(monkeypatch, error):
    def to_onnx(graph):
        raise error("it failed")

    monkeypatch.setattr(onnx_module.conversion, "to_onnx", to_onnx)


def fail_in_save(monkeypatch, error):
    def save(model, path):
        path.write_bytes(b"half of it")
        path.with_name("weights.data").write_bytes(b"and of the weights")
        raise error("it failed")

    monkeypatch.setattr(onnx_module.onnx_files, "save", save)


def fail_in_precision(monkeypatch, error):
    def convert(path, *arguments):
        path.write_bytes(b"half of it")
        path.with_name("prepared.onnx").write_bytes(b"a step of it")
        raise error("it failed")

    monkeypatch.setattr(onnx_module.precisions, "convert", convert)


def fail_in_compare(monkeypatch, error):
    def compare(runtime, *arguments, **options):
        assert runtime.run({"input": X})  # it has the file open
        raise error("it failed")

    monkeypatch.setattr(onnx_module, "compare", compare)


def fail_in_move(monkeypatch, error):
    def move(source, destination):
        raise error("it failed")

    monkeypatch.setattr(onnx_module.onnx_files, "move", move)


FAILURES = [
    fail_in_to_onnx,
    fail_in_save,
    fail_in_precision,
    fail_in_compare,
    fail_in_move,
]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("fail", FAILURES)
def test_a_failure_changes_nothing(
    fail, error, ensemble, converted_before, tmp_path, monkeypatch
):
    (tmp_path / "a.onnx").write_bytes(b"the previous one")
    (tmp_path / "a.onnx.0123456789ab.data").write_bytes(b"its weights")
    (tmp_path / "mine").mkdir()
    before = tree(tmp_path)
    fail(monkeypatch, error)
    for name in ("a.onnx", "new/deep/a.onnx", "mine/a.onnx"):
        with pytest.raises(error, match="it failed"):
            export_onnx(
                ensemble, tmp_path / name, precision="float16", verbose=0
            )
        assert tree(tmp_path) == before


def test_an_unknown_op_changes_nothing(broken, tmp_path):
    (tmp_path / "a.onnx").write_bytes(b"the previous one")
    before = tree(tmp_path)
    for name in ("a.onnx", "new/deep/a.onnx"):
        with pytest.raises(
            ValueError,
            match=r"tf2onnx cannot convert Lgamma \(in the layer 'odd'\)",
        ):
            export_onnx(broken, tmp_path / name, verbose=0)
        assert tree(tmp_path) == before


def tampered(change, monkeypatch):
    """Lets the converter make a mistake."""
    convert = onnx_module.conversion.to_onnx

    def to_onnx(graph):
        model = convert(graph)
        change(model)
        return model

    monkeypatch.setattr(onnx_module.conversion, "to_onnx", to_onnx)


def lose_a_bias(model):
    """Of one member alone."""
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.shape == (3,):
            changed = np.zeros_like(array)
            tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))
            return
    raise AssertionError("no bias")


def forget_an_output(model):
    del model.graph.output[-1]


def use_an_unknown_op(model):
    model.graph.node[0].op_type = "NoSuchOp"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lose_a_bias,
            r"The export does not match the Keras ensemble: max \|delta p\| "
            r"\d\.\de-0[123], .* of 10 samples; allowed are 1e-05 and 100% of "
            r"\d+ samples that are clear\.",
        ),
        (forget_an_output, r"output '\w+' has the shape None"),
        (use_an_unknown_op, r"ONNX Runtime cannot open a\.onnx: .*NoSuchOp"),
    ],
)
def test_a_wrong_conversion_is_never_left(
    change, message, ensemble, tmp_path, monkeypatch
):
    (tmp_path / "a.onnx").write_bytes(b"the previous one")
    before = tree(tmp_path)
    tampered(change, monkeypatch)
    with pytest.raises(ValueError, match=message):
        export_onnx(
            ensemble,
            tmp_path / "a.onnx",
            outputs=["members", "probabilities"],
            verbose=0,
        )
    assert tree(tmp_path) == before


def test_a_larger_tolerance_lets_it_pass(ensemble, tmp_path, monkeypatch):
    tampered(lose_a_bias, monkeypatch)
    artefact = export_onnx(
        ensemble, tmp_path / "a.onnx", tolerance=0.5, verbose=0
    )
    assert 1e-4 < artefact.parity.max_difference < 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int4"}, "precision='int4'; choose from float32, flo"),
        ({"outputs": ["labels"]}, r"outputs=\['labels'\]; choose, each once"),
        ({"class_names": ["a", "b"]}, "2 class_names, 2 of them different"),
        ({"voting": "loud"}, "voting must be 'soft' or 'hard', not 'loud'"),
        ({"sample_data": X[:, :3]}, r"'input' have the shape \(40, 3\)"),
    ],
)
def test_wrong_options_leave_nothing(options, message, ensemble, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_onnx(ensemble, tmp_path / "new/a.onnx", verbose=0, **options)
    assert tree(tmp_path) == {}


# --- A model of a Triton repository ---


def config_of(folder):
    text = (folder / "config.pbtxt").read_text()
    return text_format.Parse(text, model_config_pb2.ModelConfig())


@pytest.fixture
def exports_of_triton(ensemble, full, monkeypatch):
    """As `export_triton`, with a file that was converted before."""

    def write(ensemble, path, reporter, **options):
        path.write_bytes(full.path.read_bytes())
        return full.parity

    monkeypatch.setattr(triton_module, "write_onnx", write)


def test_versions_are_added(ensemble, tmp_path, exports_of_triton):
    folder = tmp_path / "repository" / "colours"
    for _ in range(2):
        artefact = export_triton(ensemble, folder, verbose=0)
    assert artefact.path == folder
    (folder / "9").mkdir()
    (folder / "notes").mkdir()
    export_triton(ensemble, folder, verbose=0)
    assert sorted(tree(folder)) == [
        "1",
        "1/model.onnx",
        "10",
        "10/model.onnx",
        "2",
        "2/model.onnx",
        "9",
        "config.pbtxt",
        "notes",
    ]
    assert artefact.num_bytes == (folder / "2/model.onnx").stat().st_size


def test_labels_are_for_the_probabilities(
    ensemble, tmp_path, exports_of_triton
):
    export_triton(ensemble, tmp_path / "a", class_names=NAMES, verbose=0)
    labels = (tmp_path / "a/labels.txt").read_text(encoding="utf-8")
    assert labels == "rot\ngrün\nblau\n"
    files = {o.name: o.label_filename for o in config_of(tmp_path / "a").output}
    assert files.pop("probabilities") == "labels.txt"
    assert files and set(files.values()) == {""}
    # Others have no labels.
    export_triton(ensemble, tmp_path / "b", verbose=0)
    assert not (tmp_path / "b/labels.txt").exists()
    assert not any(o.label_filename for o in config_of(tmp_path / "b").output)


def test_every_output_is_configured(ensemble, tmp_path, exports_of_triton):
    """Triton has no tensors of the batch's dimension alone."""
    export_triton(ensemble, tmp_path / "a", verbose=0)
    config = config_of(tmp_path / "a")
    found = {
        output.name: (
            model_config_pb2.DataType.Name(output.data_type),
            list(output.dims),
            output.HasField("reshape"),
        )
        for output in config.output
    }
    assert found == {
        "probabilities": ("TYPE_FP32", [3], False),
        "class": ("TYPE_STRING", [1], True),
        "top_k_classes": ("TYPE_STRING", [2], False),
        "top_k_probabilities": ("TYPE_FP32", [2], False),
        "members": ("TYPE_FP32", [3, 3], False),
        "disagreement": ("TYPE_FP32", [1], True),
    }


@pytest.mark.parametrize("size", [1, 64, 500])
def test_the_size_of_batches_is_configured(
    size, ensemble, tmp_path, exports_of_triton
):
    options = {} if size == 64 else {"max_batch_size": size}
    export_triton(ensemble, tmp_path / "a", verbose=0, **options)
    assert config_of(tmp_path / "a").max_batch_size == size


@pytest.mark.parametrize("size", [0, -1])
def test_batches_have_at_least_one_sample(size, ensemble, tmp_path):
    with pytest.raises(ValueError, match=rf"max_batch_size={size}; at least 1"):
        export_triton(
            ensemble, tmp_path / "new/a", max_batch_size=size, verbose=0
        )
    assert tree(tmp_path) == {}


def test_our_configuration_is_replaced(ensemble, tmp_path, exports_of_triton):
    folder = tmp_path / "a"
    export_triton(ensemble, folder, max_batch_size=3, verbose=0)
    export_triton(ensemble, folder, max_batch_size=4, verbose=0)
    assert config_of(folder).max_batch_size == 4
    first = (folder / "config.pbtxt").read_text().splitlines()[0]
    assert first == "# Written by cbnn export."


def test_a_configuration_of_the_user_is_left_alone(ensemble, tmp_path):
    config = tmp_path / "config.pbtxt"
    config.write_text('name: "mine"\n')
    with pytest.raises(
        ValueError,
        match=rf"{config} was not written by `cbnn export` and is left alone\. "
        "Move it away, or add the model to it yourself",
    ):
        export_triton(ensemble, tmp_path, verbose=0)
    assert tree(tmp_path) == {"config.pbtxt": b'name: "mine"\n'}


def test_labels_of_the_user_are_left_alone(
    ensemble, tmp_path, exports_of_triton
):
    (tmp_path / "labels.txt").write_text("mine\n")
    with pytest.raises(ValueError, match="left alone"):
        export_triton(ensemble, tmp_path, class_names=NAMES, verbose=0)
    assert (tmp_path / "labels.txt").read_text() == "mine\n"


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("fail", [fail_in_save, fail_in_compare])
def test_a_failed_version_leaves_nothing(
    fail, error, ensemble, full, converted_before, tmp_path, monkeypatch
):
    fail(monkeypatch, error)
    with pytest.raises(error, match="it failed"):
        export_triton(ensemble, tmp_path / "new/a", verbose=0)
    assert tree(tmp_path) == {}

    with monkeypatch.context() as context:
        context.setattr(
            triton_module,
            "write_onnx",
            lambda e, path, r, **o: path.write_bytes(b"x") and full.parity,
        )
        context.setattr(
            triton_module.serving, "triton_config", lambda *a, **o: ""
        )
        export_triton(ensemble, tmp_path / "a", verbose=0)
    before = tree(tmp_path)
    with pytest.raises(error, match="it failed"):
        export_triton(ensemble, tmp_path / "a", class_names=NAMES, verbose=0)
    assert tree(tmp_path) == before


def test_an_unknown_op_leaves_no_version(broken, tmp_path):
    with pytest.raises(ValueError, match=r"Lgamma \(in the layer 'odd'\)"):
        export_triton(broken, tmp_path / "new/a", verbose=0)
    assert tree(tmp_path) == {}


def test_triton_gets_the_file_of_export_onnx(ensemble, tmp_path, capfd):
    """The whole way, with options."""
    artefact = export_triton(
        ensemble,
        tmp_path / "a",
        precision="float16",
        sample_data=X,
        class_names=NAMES,
    )
    assert artefact.parity.num_samples == 40
    expected = average(probabilities_of_members(ensemble))
    found = run(tmp_path / "a/1/model.onnx")["probabilities"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-2)
    shown, errors = capfd.readouterr()
    assert errors == ""
    assert "converting to float16 ..." in shown
    assert f"{tmp_path / 'a'}: " in shown.splitlines()[-1]
