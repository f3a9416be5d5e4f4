"""Exports of a run directory, with options that are files."""

import json
import pathlib

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
from helpers import blobs, trained

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.commands import export as export_module
from cbnn_keras.commands.export import (
    default_output,
    export_run,
    verify_run,
)
from cbnn_keras.commands.inputs import load_priors

X, Y = blobs()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    keras.utils.set_random_seed(0)
    directory = tmp_path_factory.mktemp("runs") / "blobs"
    trained(directory, num_checkpoints=4)
    return directory


@pytest.fixture
def files(tmp_path):
    """What a user would have at hand."""
    (tmp_path / "labels.txt").write_text("rot\ngrün\nblau\n", encoding="utf-8")
    (tmp_path / "priors.txt").write_text("0.5\n0.25\n2.5e-1\n")
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    pixels = keras.Input((4,), dtype="uint8", name="pixels")
    scaled = keras.layers.Rescaling(4 / 255, offset=-2)(pixels)
    keras.Model(pixels, scaled).save(tmp_path / "front.keras")
    return tmp_path


def probabilities(path, x, name="input"):
    session = onnxruntime.InferenceSession(path)
    return session.run(["probabilities"], {name: x})[0]


def metadata(path):
    """Without what ONNX Runtime's quantisation adds."""
    return {
        entry.key: json.loads(entry.value)
        for entry in onnx.load(path).metadata_props
        if not entry.key.startswith("onnx.")
    }


# --- Where to ---


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        ("saved_model", "exports/digits"),
        ("onnx", "exports/digits.onnx"),
        ("triton", "exports/triton/digits"),
    ],
)
def test_default_outputs(format, expected):
    for run in ("runs/digits", "runs/digits/", "/data/runs/digits"):
        output = default_output(pathlib.Path(run), format)
        assert output == pathlib.Path(expected)


def test_the_name_of_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path / "digits")
    output = default_output(pathlib.Path("."), "onnx")
    assert output == pathlib.Path("exports/digits.onnx")


def test_the_name_of_the_folder_above(tmp_path, monkeypatch):
    (tmp_path / "digits/members").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "digits/members")
    output = default_output(pathlib.Path(".."), "onnx")
    assert output == pathlib.Path("exports/digits.onnx")


@pytest.mark.parametrize("format", ["saved_model", "onnx", "triton"])
def test_the_default_is_used(format, run, monkeypatch):
    """`test_cli.py` has the real ones."""
    monkeypatch.setattr(
        export_module,
        f"export_{format}",
        lambda ensemble, path, **options: path,
    )
    path = export_run(run, format=format)
    assert path == default_output(run, format)


# --- Options ---


def test_options_reach_the_onnx_file(run, files):
    output = files / "out/a.onnx"
    artefact = export_run(
        run,
        format="onnx",
        output=output,
        num_members=2,
        outputs=["probabilities", "class", "top_k"],
        top_k=2,
        class_names=files / "labels.txt",
        data=files / "data.npz",
    )
    assert artefact.path == output
    assert artefact.parity.num_samples == 120
    found = metadata(output)
    ensemble = CheckpointEnsemble.load(run)
    assert len(ensemble) == 4
    # At equal intervals, the last one among them.
    steps = [int(member["step"]) for member in ensemble.members]
    assert len(found["members"]) == 2
    assert found["members"][-1] == steps[-1]
    assert set(found["members"]) < set(steps)
    assert found["labels"] == ["rot", "grün", "blau"]
    assert found["outputs"] == ["probabilities", "class", "top_k"]
    assert found["top_k"] == 2
    assert found["precision"] == "float32"
    chosen = ensemble.take(found["members"])
    expected = chosen.predict(X, verbose=0)
    np.testing.assert_allclose(
        probabilities(output, X), expected, rtol=0, atol=1e-5
    )
    parity = verify_run(output, run, data=files / "data.npz")
    assert parity.num_samples == 120


def test_data_calibrate_eight_bits(run, files):
    output = files / "a.onnx"
    artefact = export_run(
        run,
        format="onnx",
        output=output,
        precision="int8",
        data=files / "data.npz",
    )
    assert metadata(output)["precision"] == "int8"
    assert artefact.parity.num_samples == 120
    constants = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in onnx.load(output).graph.initializer
    }
    (scale,) = {
        float(constants[node.input[1]])
        for node in onnx.load(output).graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] == "input"
    }
    np.testing.assert_allclose(scale, np.ptp(X) / 255, rtol=1e-5)
    verify_run(output, run, data=files / "data.npz")


def test_a_preprocessing_is_put_in_front(run, files):
    output = files / "a.onnx"
    export_run(
        run, format="onnx", output=output, preprocess=files / "front.keras"
    )
    pixels = np.random.default_rng(0).integers(0, 256, (9, 4), "uint8")
    expected = CheckpointEnsemble.load(run).predict(
        (pixels * (4 / 255) - 2).astype("float32"), verbose=0
    )
    found = probabilities(output, pixels, "pixels")
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    with pytest.raises(
        ValueError,
        match=r"exported with `preprocess`\. Give it here too: on the command "
        r"line as --preprocess FILE\.keras",
    ):
        verify_run(output, run)
    verify_run(output, run, preprocess=files / "front.keras")


def test_options_reach_the_saved_model(run, files):
    artefact = export_run(
        run,
        format="saved_model",
        output=files / "served/blobs",
        serving_config="/models",
        voting="hard",
        class_names=files / "labels.txt",
    )
    text = (files / "served/models.config").read_text()
    assert 'base_path: "/models/blobs"' in text
    extra = artefact.path / "assets.extra/cbnn_keras.json"
    found = json.loads(extra.read_text())
    assert (found["voting"], found["labels"][1]) == ("hard", "grün")


@pytest.mark.parametrize("format", ["saved_model", "onnx", "triton"])
def test_options_are_passed_on(format, run, files, monkeypatch):
    """None is lost on the way, and defaults are those of the functions."""
    seen = {}

    def export(ensemble, path, **options):
        seen.update(options, path=path, steps=len(ensemble))
        return "artefact"

    for name in ("export_saved_model", "export_onnx", "export_triton"):
        monkeypatch.setattr(
            export_module, name, export if name.endswith(format) else None
        )
    more = {"serving_config": ""} if format == "saved_model" else {}
    if format != "saved_model":
        more["precision"] = "float16"
    found = export_run(
        run,
        format=format,
        output=files / "out",
        num_members=3,
        outputs=["class"],
        top_k=4,
        voting="hard",
        priors=files / "priors.txt",
        class_names=files / "labels.txt",
        preprocess=files / "front.keras",
        data=files / "data.npz",
        tolerance=0.25,
        **more,
    )
    assert found == "artefact"
    assert seen.pop("preprocess").input_shape == (None, 4)
    np.testing.assert_array_equal(seen.pop("sample_data"), X)
    assert seen.pop("priors").tolist() == [0.5, 0.25, 0.25]
    if format != "saved_model":
        more["calibration_data"] = None
    assert seen == {
        "path": files / "out",
        "steps": 3,
        "outputs": ["class"],
        "top_k": 4,
        "voting": "hard",
        "class_names": ["rot", "grün", "blau"],
        "tolerance": 0.25,
        **more,
    }


def test_eight_bits_need_data(run, tmp_path):
    with pytest.raises(ValueError, match="int8' needs calibration_data"):
        export_run(
            run, format="onnx", output=tmp_path / "a.onnx", precision="int8"
        )
    assert not any(tmp_path.iterdir())


# --- Other files ---


def test_priors_of_a_file(run, files):
    np.save(files / "priors.npy", [2, 1, 1])
    assert load_priors(files / "priors.npy").tolist() == [2, 1, 1]
    output = files / "a.onnx"
    export_run(run, format="onnx", output=output, priors=files / "priors.npy")
    assert metadata(output)["priors"] == [0.5, 0.25, 0.25]
    weighted = CheckpointEnsemble.load(run).predict(X, verbose=0) * [1, 2, 2]
    np.testing.assert_allclose(
        probabilities(output, X),
        weighted / weighted.sum(axis=1, keepdims=True),
        rtol=0,
        atol=1e-5,
    )
    verify_run(output, run)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"class_names": "no.txt"}, FileNotFoundError, r"no\.txt"),
        ({"priors": "no.npy"}, FileNotFoundError, r"no\.npy"),
        ({"priors": "no.txt"}, FileNotFoundError, r"no\.txt"),
        ({"preprocess": "no.keras"}, ValueError, r"no\.keras"),
        ({"data": "no.npz"}, ValueError, r"no\.npz is not an \.npz file"),
        ({"num_members": 0}, ValueError, r"select\(num=0\): at least 1"),
    ],
)
def test_missing_files_are_named(options, error, message, run, tmp_path):
    options = {
        name: tmp_path / value if isinstance(value, str) else value
        for name, value in options.items()
    }
    with pytest.raises(error, match=message):
        export_run(
            run, format="onnx", output=tmp_path / "new/a.onnx", **options
        )
    assert not any(tmp_path.iterdir())


def test_labels_must_fit_the_classes(run, tmp_path):
    labels = tmp_path / "labels.txt"
    labels.write_text("a\nb\n")
    with pytest.raises(ValueError, match="2 class_names, .* for 3 classes"):
        export_run(
            run,
            format="onnx",
            output=tmp_path / "a.onnx",
            class_names=labels,
        )
    assert list(tmp_path.iterdir()) == [labels]


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path} holds no run"):
        export_run(tmp_path, format="onnx")
    with pytest.raises(ValueError, match=f"{tmp_path} holds no run"):
        verify_run(tmp_path, tmp_path)


def test_a_folder_without_an_export(run, tmp_path):
    with pytest.raises(ValueError, match="neither a SavedModel, nor an ONNX"):
        verify_run(tmp_path, run)
