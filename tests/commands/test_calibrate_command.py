"""`cbnn calibrate`, and what other commands then say."""

import json
import shlex
import shutil

import keras
import numpy as np
import pytest
from helpers import blobs, trained

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.commands import cli
from cbnn_keras.export.runtimes import OnnxRuntime


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("calibrate") / "run"
    keras.utils.set_random_seed(0)
    trained(directory, num_checkpoints=3, epochs=2)
    return directory


@pytest.fixture
def run(trained_run, tmp_path):
    return shutil.copytree(trained_run, tmp_path / "run")


@pytest.fixture
def data(tmp_path):
    x, y = blobs(60)
    x = x + np.random.default_rng(0).normal(0, 1, x.shape).astype("float32")
    np.savez(tmp_path / "val.npz", x=x, y=y)
    return tmp_path / "val.npz"


def call(*arguments):
    return cli.main(list(map(str, arguments)))


def test_as_a_user_types_it(run, data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("calibrate", "run", "--data", data, "--coverage", 0.9) == 0
    printed = capsys.readouterr().out
    record = CheckpointEnsemble.load(run).calibration
    with np.load(data) as arrays:
        x, y = arrays["x"], arrays["y"]
    again = CheckpointEnsemble.load(run).calibrate(
        (x, y), coverage=0.9, verbose=0
    )
    assert record == again
    assert f"temperature {record.temperature:.3f} from 60 samples" in printed
    assert "It is kept in run, for predictions and exports." in printed
    assert f"of a probability of {record.threshold:.4f} at least" in printed
    assert call("inspect", "run") == 0
    assert (
        f"Calibrated: temperature {record.temperature:.3f} from 60 samples, "
        "sets of coverage 0.9\n"
    ) in capsys.readouterr().out
    assert call("inspect", "run", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["calibration"] == record.to_json()
    # What was printed as the next command.
    assert "cbnn export run --outputs probabilities,set" in printed
    onnx = ["export", "run", "--format", "onnx", "--output", "m.onnx"]
    assert call(*onnx, "--outputs", "probabilities,set", "--data", data) == 0
    assert call("verify", "m.onnx", "--run", "run", "--data", data) == 0
    found = OnnxRuntime(tmp_path / "m.onnx").run({"input": x})
    np.testing.assert_allclose(
        found["probabilities"],
        CheckpointEnsemble.load(run).predict(x, verbose=0),
        atol=1e-5,
    )


def test_the_next_command_can_be_typed(run, data, tmp_path, capsys):
    run = run.rename(tmp_path / "my run")
    assert call("calibrate", run, "--data", data, "--coverage", 0.9) == 0
    [command] = [
        line.split("at least: ")[1]
        for line in capsys.readouterr().out.splitlines()
        if "at least: " in line
    ]
    assert shlex.split(command)[2:4] == [str(run), "--outputs"]


def test_exports_that_are_not_calibrated(run, data, tmp_path, capsys):
    assert call("calibrate", run, "--data", data) == 0
    onnx = ["export", run, "--format", "onnx", "--output"]
    assert call(*onnx, tmp_path / "raw.onnx", "--uncalibrated") == 0
    assert "Not calibrated" not in capsys.readouterr().out
    assert call(*onnx, tmp_path / "one.onnx", "--members", 1) == 0
    assert (
        "Not calibrated: the calibration of the run is of other members or "
        "votes than those that are exported."
    ) in capsys.readouterr().out
    for name in ("raw.onnx", "one.onnx"):
        assert "calibration" not in OnnxRuntime(tmp_path / name).metadata


def test_the_members_it_is_for_are_named(run, data, tmp_path, capsys):
    ensemble = CheckpointEnsemble.load(run)
    with np.load(data) as arrays:
        ensemble.take([ensemble.rounds[-1].step]).calibrate(
            (arrays["x"], arrays["y"]), verbose=0
        )
    assert call("inspect", run) == 0
    last = ensemble.rounds[-1].step
    assert (
        f"; only for the members of steps {last} with votes "
        f"{ensemble.votes[-1]:.3f}\n"
    ) in capsys.readouterr().out
    onnx = ["export", run, "--format", "onnx", "--output", tmp_path / "m.onnx"]
    assert call(*onnx) == 0
    assert "Not calibrated: " in capsys.readouterr().out


def test_a_share_is_said(run, tmp_path, capsys):
    """A quarter of the labels is any, whatever the members say."""
    generator = np.random.default_rng(1)
    x = 8 * blobs(800, seed=9)[0]
    p = CheckpointEnsemble.load(run).predict(x, verbose=0)
    y = (p.cumsum(axis=1) > generator.random((len(p), 1))).argmax(axis=1)
    y = np.where(generator.random(800) < 0.25, generator.integers(0, 3, 800), y)
    np.savez(tmp_path / "val.npz", x=x, y=y)
    assert call("calibrate", run, "--data", tmp_path / "val.npz") == 0
    record = CheckpointEnsemble.load(run).calibration
    assert 0.1 < record.share < 0.4
    expected = (
        f"temperature {record.temperature:.3f} and share {record.share:.3f} "
        "from 800 samples"
    )
    assert expected in capsys.readouterr().out
    assert call("inspect", run) == 0
    assert f"Calibrated: {expected}\n" in capsys.readouterr().out
    assert call("inspect", run, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["calibration"]["share"] == record.share


@pytest.mark.parametrize(
    ("change", "arguments", "message", "code"),
    [
        ({}, ["--coverage", "2"], "calibrate(coverage=2.0): coverage must", 1),
        ({"y": None}, [], "holds no labels `y`", 2),
        ({"y": np.full(60, 7)}, [], "val.npz: ", 2),
        ({"x": np.zeros((60, 9), "float32")}, [], "cannot compute with", 2),
    ],
)
def test_what_is_refused(run, data, change, arguments, message, code, capsys):
    with np.load(data) as arrays:
        content = {**arrays, **change}
    np.savez(data, **{k: v for k, v in content.items() if v is not None})
    before = (run / "manifest.json").read_bytes()
    assert call("calibrate", run, "--data", data, *arguments) == code
    assert message in capsys.readouterr().err
    assert (run / "manifest.json").read_bytes() == before
