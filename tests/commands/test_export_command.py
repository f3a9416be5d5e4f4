"""Exports of a run directory, with options that are files."""

import ast
import json
import pathlib
import shlex
import subprocess

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
from helpers import blobs, trained

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.commands import cli
from cbnn_keras.commands.export import (
    default_output,
    export_run,
    next_commands,
    verify_run,
)
from cbnn_keras.support.faults import RunError

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


def test_the_name_of_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "digits/members").mkdir(parents=True)
    for current, run in (("digits", "."), ("digits/members", "..")):
        monkeypatch.chdir(tmp_path / current)
        output = default_output(pathlib.Path(run), "onnx")
        assert output == pathlib.Path("exports/digits.onnx")


# --- Options ---


def test_options_reach_the_onnx_file(run, files, monkeypatch, capsys):
    """The whole way: as typed, and then what it says to type."""
    monkeypatch.chdir(files)
    output = files / "out/a.onnx"
    options = (
        "--format onnx --output out/a.onnx --members 2 --top-k 2 --data "
        "data.npz --outputs probabilities,class,top_k --class-names labels.txt "
        "--priors priors.txt --tolerance 2e-05"
    )
    assert cli.main(["export", str(run), *options.split()]) == 0
    *_, verify, _ = capsys.readouterr().out.splitlines()
    assert verify.endswith("--data data.npz --tolerance 2e-05")
    assert cli.main(shlex.split(verify)[1:]) == 0
    assert "the same class for 100.0% of 120 samples" in capsys.readouterr().out
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
    assert found["priors"] == [0.5, 0.25, 0.25]
    chosen = ensemble.take(found["members"])
    weighted = chosen.predict(X, verbose=0) * [1, 2, 2]
    session = onnxruntime.InferenceSession(output)
    [probabilities] = session.run(["probabilities"], {"input": X})
    np.testing.assert_allclose(
        probabilities,
        weighted / weighted.sum(axis=1, keepdims=True),
        rtol=0,
        atol=1e-5,
    )


def test_a_cascade_as_typed(run, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    options = (
        "--format onnx --output a.onnx --cascade 0.9 --data data.npz "
        "--outputs class,members_used"
    )
    assert cli.main(["export", str(run), *options.split()]) == 0
    *_, verify, _ = capsys.readouterr().out.splitlines()
    assert cli.main(shlex.split(verify)[1:]) == 0
    assert "which needed up to" in capsys.readouterr().out
    found = metadata(files / "a.onnx")
    assert found["cascade"]["confidence"] == 0.9
    assert found["outputs"] == ["class", "members_used"]


def test_what_is_no_cascade(run, capsys):
    with pytest.raises(SystemExit):
        cli.main(["export", str(run), "--cascade", "soon"])
    assert (
        "'soon' is neither exact nor a confidence, such as 0.95"
        in capsys.readouterr().err
    )


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


def test_a_preprocessing_is_put_in_front(run, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    output = files / "a.onnx"
    options = "--format onnx --output a.onnx --preprocess front.keras"
    assert cli.main(["export", str(run), *options.split()]) == 0
    *_, verify, _ = capsys.readouterr().out.splitlines()
    pixels = np.random.default_rng(0).integers(0, 256, (9, 4), "uint8")
    expected = CheckpointEnsemble.load(run).predict(
        (pixels * (4 / 255) - 2).astype("float32"), verbose=0
    )
    session = onnxruntime.InferenceSession(output)
    [found] = session.run(["probabilities"], {"pixels": pixels})
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    with pytest.raises(
        ValueError,
        match=r"exported with `preprocess`\. Give it here too: on the command "
        r"line as --preprocess FILE\.keras",
    ):
        verify_run(output, run)
    assert cli.main(shlex.split(verify)[1:]) == 0


# --- Other files ---


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"class_names": "no.txt"}, RunError, r"no\.txt cannot be opened: No"),
        ({"priors": "no.npy"}, RunError, r"no\.npy cannot be opened: No such"),
        ({"priors": "no.txt"}, RunError, r"no\.txt cannot be opened: No such"),
        ({"preprocess": "no.keras"}, RunError, r"no\.keras cannot be opened"),
        ({"data": "no.npz"}, RunError, r"no\.npz cannot be opened: No such"),
        ({"num_members": 0}, ValueError, r"select\(num=0\): .*at least 1"),
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
    with pytest.raises(ValueError, match="one name per class, 3 in all, not 2"):
        export_run(
            run, format="onnx", output=tmp_path / "a.onnx", class_names=labels
        )
    assert list(tmp_path.iterdir()) == [labels]


def test_a_directory_without_a_run(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path} holds no run"):
        export_run(tmp_path, format="onnx")
    with pytest.raises(ValueError, match=f"{tmp_path} holds no run"):
        verify_run(tmp_path, tmp_path)


# --- What to type next ---


def test_what_was_given_is_given_again(tmp_path):
    """A tolerance was once forgotten, so that the next command failed."""
    verify, _ = next_commands(
        "onnx",
        tmp_path / "a.onnx",
        tmp_path / "run",
        preprocess=tmp_path / "front.keras",
        data=tmp_path / "data.npz",
        tolerance=2.5e-07,
    )
    assert shlex.split(verify) == [
        *("cbnn", "verify", str(tmp_path / "a.onnx")),
        *("--run", str(tmp_path / "run")),
        *("--preprocess", str(tmp_path / "front.keras")),
        *("--data", str(tmp_path / "data.npz")),
        *("--tolerance", "2.5e-07"),
    ]


def as_a_shell_reads(command):
    """What the program gets, whichever it is."""
    program = shlex.split(command)[0]
    script = f"{program}() {{ printf '%s\\0' \"$@\"; }}\n{command}"
    result = subprocess.run(
        ["bash", "-c", script], check=True, capture_output=True, text=True
    )
    assert not result.stderr
    return result.stdout.split("\0")[:-1]


@pytest.mark.parametrize("name", ["flowers", "two words", "$HOME", "it's;\""])
@pytest.mark.parametrize("format", ["saved_model", "onnx", "triton"])
def test_next_commands_of_any_name(tmp_path, format, name):
    run = tmp_path / f"run of {name}"
    path = tmp_path / name / "1"
    verify, serve = next_commands(format, path, run)
    words = as_a_shell_reads(verify)
    assert words == ["verify", str(path), "--run", str(run)]
    words = as_a_shell_reads(serve)
    if format == "saved_model":
        assert words == [
            *("run", "--rm", "-p", "8501:8501"),
            *("-v", f"{path.parent}:/models/{name}"),
            *("-e", f"MODEL_NAME={name}", "tensorflow/serving"),
        ]
    elif format == "onnx":
        constants = [
            node.value
            for node in ast.walk(ast.parse(words[1]))
            if isinstance(node, ast.Constant)
        ]
        assert (words[0], constants) == ("-c", [str(path)])
    else:
        assert words == ["--model-repository", str(path.parent)]
