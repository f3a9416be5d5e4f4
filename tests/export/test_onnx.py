"""`export_onnx`: the contract, and what failures leave."""

import json
import os
import re

import keras
import numpy as np
import onnx
import pytest
import tensorflow as tf
from conftest import FULL
from export_helpers import X, run_onnx, serving_graph, tree, worked_out
from helpers import memory_ensemble

import cbnn_keras
from cbnn_keras.export import export_onnx
from cbnn_keras.export import onnx as onnx_module

layers = keras.layers


@keras.saving.register_keras_serializable("test_onnx")
class LogGamma(layers.Layer):
    """Of an op that tf2onnx does not know."""

    def call(self, x):
        return tf.math.lgamma(tf.abs(x) + 1)

    def compute_output_shape(self, shape):
        return shape


@pytest.fixture(scope="module")
def broken():
    """An ensemble that has no counterpart in ONNX."""
    inputs = keras.Input((4,), name="values")
    hidden = LogGamma(name="odd")(layers.Dense(8)(inputs))
    outputs = layers.Dense(3, activation="softmax")(hidden)
    return memory_ensemble(keras.Model(inputs, outputs), [1.0, 2.5])


# --- The file ---


def test_the_file_says_what_is_in_it(ensemble, full_onnx):
    model = onnx.load(full_onnx.path)
    found = {p.key: json.loads(p.value) for p in model.metadata_props}
    assert found == serving_graph(ensemble, **FULL).metadata()
    assert model.producer_name == "cbnn_keras"
    assert model.producer_version == cbnn_keras.__version__
    assert model.graph.name == "checkpoint_ensemble"
    onnx.checker.check_model(model, full_check=True)
    assert {o.domain: o.version for o in model.opset_import}[""] == 17


# --- What the user is told ---


def test_stages_size_and_parity_are_shown(
    ensemble, converted_before, tmp_path, capfd
):
    path = tmp_path / "a.onnx"
    artefact = export_onnx(ensemble, path)
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
    assert artefact.path == path
    assert artefact.num_bytes == path.stat().st_size
    assert artefact.parity.num_samples == 10  # 1 + 2 + 7
    assert artefact.parity.agreement == 1.0
    assert 0 <= artefact.parity.max_difference <= 1e-5
    # Real samples are all compared.
    artefact = export_onnx(ensemble, path, sample_data=X, verbose=0)
    assert artefact.parity.num_samples == 40
    assert capfd.readouterr() == ("", "")


# --- Where it goes ---


def test_a_file_is_replaced(ensemble, converted_before, tmp_path):
    path = tmp_path / "a.onnx"
    path.write_bytes(b"what was there before")
    (tmp_path / "b.onnx").write_bytes(b"another one")
    export_onnx(ensemble, path, verbose=0)
    assert sorted(tree(tmp_path)) == ["a.onnx", "b.onnx"]
    assert (tmp_path / "b.onnx").read_bytes() == b"another one"
    np.testing.assert_allclose(
        run_onnx(path, {"input": X})["probabilities"],
        worked_out(ensemble)["probabilities"],
        rtol=0,
        atol=1e-5,
    )


def test_the_path_may_be_relative_and_a_string(
    ensemble, converted_before, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    artefact = export_onnx(ensemble, "deep/er/a.onnx", verbose=0)
    assert artefact.path == tmp_path / "deep/er/a.onnx"
    assert sorted(tree(tmp_path)) == ["deep", "deep/er", "deep/er/a.onnx"]


def test_a_new_file_can_be_read_by_others(ensemble, converted_before, tmp_path):
    """The directory that it was written to cannot."""
    mask = os.umask(0o022)
    try:
        export_onnx(ensemble, tmp_path / "new/a.onnx", verbose=0)
    finally:
        os.umask(mask)
    assert (tmp_path / "new/a.onnx").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o755


def test_a_directory_is_not_a_file(ensemble, tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(
        ValueError,
        match=rf"{tmp_path} is a directory; an ONNX export is a file\. Give a "
        r"name for it, such as ensemble\.onnx",
    ):
        export_onnx(ensemble, tmp_path, verbose=0)
    assert tree(tmp_path) == {"mine": b"x"}


# --- Failures ---


def fail_in_to_onnx(monkeypatch, error):
    def to_onnx(graph, precision):
        raise error("it failed")

    monkeypatch.setattr(onnx_module.onnx_conversion, "to_onnx", to_onnx)


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

    monkeypatch.setattr(onnx_module.onnx_precisions, "convert", convert)


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
    before = tree(tmp_path)
    fail(monkeypatch, error)
    for name in ("a.onnx", "new/deep/a.onnx"):
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
    convert = onnx_module.onnx_conversion.to_onnx

    def to_onnx(graph, precision):
        model = convert(graph, precision)
        change(model)
        return model

    monkeypatch.setattr(onnx_module.onnx_conversion, "to_onnx", to_onnx)


def lose_a_bias(model):
    """Of one member alone."""
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.shape == (3,):
            changed = np.zeros_like(array)
            tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))
            return
    raise AssertionError("no bias")


def rename_an_output(model):
    name = model.graph.output[0].name
    node = onnx.helper.make_node("Identity", [name], ["other"])
    model.graph.node.append(node)
    model.graph.output[0].name = "other"


def use_an_unknown_op(model):
    model.graph.node[0].op_type = "NoSuchOp"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lose_a_bias,
            r"The export does not match the Keras ensemble: max \|delta p\| "
            r"\d\.\de-0[1234], .* of 10 samples; allowed are 1e-05 and 100% of "
            r"\d+ samples that are clear\.",
        ),
        (rename_an_output, r"output '\w+' has the shape None"),
        (use_an_unknown_op, r"ONNX Runtime cannot open a\.onnx: .*NoSuchOp"),
    ],
)
def test_a_wrong_conversion_is_never_left(
    change, message, ensemble, converted_before, tmp_path, monkeypatch
):
    (tmp_path / "a.onnx").write_bytes(b"the previous one")
    before = tree(tmp_path)
    tampered(change, monkeypatch)
    with pytest.raises(ValueError, match=message):
        export_onnx(ensemble, tmp_path / "a.onnx", verbose=0)
    assert tree(tmp_path) == before


def test_a_larger_tolerance_lets_it_pass(
    ensemble, converted_before, tmp_path, monkeypatch
):
    tampered(lose_a_bias, monkeypatch)
    artefact = export_onnx(
        ensemble, tmp_path / "a.onnx", tolerance=0.5, verbose=0
    )
    assert 1e-4 < artefact.parity.max_difference < 0.5
