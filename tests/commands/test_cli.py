"""The command `cbnn`, as typed."""

import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
from helpers import (
    blobs,
    dense_model,
    fake_onnxruntime_web,
    header,
    round_at,
    scored_run,
    trained,
)

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.boosting_policies import Boosting
from cbnn_keras.commands import cli, demo
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.manifest import Settings
from cbnn_keras.trust import Trust
from cbnn_keras.version import __version__


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cli") / "run"
    cbnn, _, _, _ = trained(directory, num_checkpoints=3)
    return directory, cbnn.history


def test_inspect_shows_every_member(run, capsys):
    directory, history = run
    assert cli.main(["inspect", str(directory)]) == 0
    printed = capsys.readouterr().out
    assert "complete, 3 members, 3 classes, 120 training samples" in printed
    rows = [line for line in printed.splitlines() if "kB" in line]
    assert len(rows) == 3
    for row, record in zip(rows, history, strict=True):
        cells = [cell.strip() for cell in row.strip("│").split("│")]
        size = (directory / f"members/{record['step']}.weights.h5").stat()
        assert cells == [
            str(record["step"]),
            str(record["epoch"] + 1),
            f"{record['error']:.4f}",
            f"{record['vote']:.3f}",
            f"{record['normaliser']:.4f}",
            f"{record['bound']:.4f}",
            f"{size.st_size / 1000:.1f} kB",
        ]
    assert "method cbnn" in printed and "deviation_rate 0.01" in printed


def test_inspect_says_nothing_of_weights_that_stayed(tmp_path, capsys):
    directory = tmp_path / "run"
    trained(directory, epochs=2, num_checkpoints=2, deviation_rate=0.0)
    assert cli.main(["inspect", str(directory)]) == 0
    printed = capsys.readouterr().out
    assert "vote" in printed and "kB" in printed
    assert "bound" not in printed and "1.0000" not in printed


def test_inspect_as_json(run, capsys):
    directory, history = run
    assert cli.main(["inspect", str(directory), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["is_finished"] is True
    assert content["header"]["num_classes"] == 3
    for found, record in zip(content["rounds"], history, strict=True):
        assert {name: found[name] for name in record} == record
        assert found["bytes"] > 0


def test_inspect_marks_what_is_no_member(tmp_path, capsys):
    model = dense_model()
    run = RunDirectory.create(tmp_path / "run", header(model), model)
    record = round_at(5, 0.0, error=1.0, is_member=False)
    run.add_round(record, np.zeros(8, dtype=bool), None)
    assert cli.main(["inspect", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert "not finished, 0 members" in printed
    assert "no member" in printed and "not kept" in printed


def test_inspect_shows_the_votes_that_count(tmp_path, capsys):
    margin = Settings(Boosting(trust=Trust(margin=0.0)))
    run = scored_run(tmp_path / "run", settings=margin)
    assert cli.main(["inspect", str(run.path)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("not trusted") == 3 - len(run.voters) > 0
    ensemble = CheckpointEnsemble(run, dense_model(), run.members)
    ensemble.with_votes({4: 7.125, 12: 1.0}).save(tmp_path / "chosen")
    assert cli.main(["inspect", str(tmp_path / "chosen")]) == 0
    printed = capsys.readouterr().out
    assert "7.125" in printed and "not trusted" not in printed


def test_inspect_names_a_damaged_file(run, tmp_path, capsys):
    shutil.copytree(run[0], tmp_path / "run")
    member = next((tmp_path / "run/members").iterdir())
    member.write_bytes(b"x" + member.read_bytes()[1:])
    assert cli.main(["inspect", str(tmp_path / "run")]) == 2
    assert str(member) in capsys.readouterr().err


@pytest.mark.large
def test_a_terminal_without_unicode_still_shows_the_table(run, tmp_path):
    """And nothing of what TensorFlow logs while it is loaded."""
    shutil.copytree(run[0], tmp_path / "läuf [bold]")
    result = subprocess.run(
        [sys.executable, "-m", "cbnn_keras", "inspect", "läuf [bold]"],
        cwd=tmp_path,
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "40"},
        check=True,
    )
    assert b"l\\xe4uf [bold]: complete, 3 members" in result.stdout
    assert result.stderr == b""


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        ("inspect nowhere", "nowhere holds no run", 2),
        ("demo --epochs 0", "--epochs must be at least 1; received 0.", 1),
        ("demo --directory /", "/ has no directory above it, where", 1),
        ("demo --directory {run}", "already holds a run, which is never", 2),
    ],
)
def test_errors_are_one_line_and_an_exit_code(
    arguments, message, code, run, capsys
):
    assert cli.main(arguments.format(run=run[0]).split()) == code
    printed, error = capsys.readouterr()
    assert printed == ""
    assert error.startswith("cbnn: ") and message in error
    assert error.count("\n") == 1
    assert "resume" not in error


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--version", f"cbnn-keras {__version__}"),
        ("--help", "cbnn inspect runs/demo"),
        ("--help", "cbnn verify digits.onnx --run runs/demo"),
        ("export --help", "--format {saved_model,onnx,litert,triton,web}"),
        ("export --help", "--precision {float32,float16,int8}"),
        ("verify --help", "--run RUN"),
    ],
)
def test_help_and_version(arguments, expected, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(arguments.split())
    assert expected in capsys.readouterr().out


# --- demo ---


@pytest.mark.large
def test_demo_in_the_current_directory(tmp_path, monkeypatch, capsys):
    """Trains, prints the table, and leaves a run that gives its numbers.

    `.` has no name to call the data by: it used to train, and then to fail.
    """
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path / "digits")
    assert cli.main("demo --epochs 2 --directory .".split()) == 0
    lines = capsys.readouterr().out.splitlines()
    table = {
        cells[1].strip(): float(cells[2])
        for line in lines
        if len(cells := line.split("│")) == 5
    }
    assert list(table) == [
        "the model as trained",
        "all members",
        "CBNN",
        "CBNN, selected",
    ]
    assert "  cbnn inspect ." in lines
    [report] = [line for line in lines if line.startswith("  cbnn report")]
    output = str(tmp_path / "report.html")
    assert cli.main([*shlex.split(report)[1:], "-o", output]) == 0
    page = pathlib.Path(output).read_text("utf-8")
    assert "On 360 samples of digits.test.npz, which the members were" in page
    assert "labels of digits.train.npz are suspicious" in page
    _, validation, (x, y) = demo.load_digits(seed=0)
    ensemble = CheckpointEnsemble.load(".")
    error = 100 * np.mean(ensemble.predict(x).argmax(axis=1) != y)
    assert f"{error:.2f}" == f"{table['CBNN']:.2f}"
    selected = ensemble.select(validation_data=validation)
    error = 100 * np.mean(selected.predict(x).argmax(axis=1) != y)
    assert f"{error:.2f}" == f"{table['CBNN, selected']:.2f}"


def test_the_difference_of_two_errors_by_hand():
    """Of five images, one is right for the other alone, two for the one."""
    labels = np.array([0, 0, 0, 1, 1])
    one, other = np.eye(2)[[0, 0, 0, 0, 1]], np.eye(2)[[1, 1, 0, 1, 1]]
    # Changes of 1, 1, 0, -1 and 0: a mean of 0.2, a variance of 0.56.
    expected = (
        "CBNN gets 1 images right that the model as trained gets wrong, and 2 "
        "the other way round: +20.00 points of error, with a standard error of "
        "33.47."
    )
    assert demo.difference(one, other, labels) == expected


def test_demo_without_scikit_learn_says_so_at_once(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert cli.main(["demo"]) == 1
    assert capsys.readouterr() == (
        "",
        "cbnn: cbnn demo fetches nothing from the network, but its digits come "
        "with scikit-learn, which is not installed: pip install "
        '"cbnn-keras[demo]"\n',
    )
    assert list(tmp_path.iterdir()) == []


def test_demo_takes_the_next_free_directory(tmp_path):
    for expected in ("demo", "demo-2", "demo-3"):
        free = demo.free_directory(tmp_path / "demo")
        assert free.name == expected
        free.mkdir()


def test_digits_are_split_without_overlap():
    parts = demo.load_digits(seed=0)
    assert [len(y) for _, y in parts] == [1077, 360, 360]
    assert all(set(y) == set(range(10)) for _, y in parts)
    train, validation, test = (
        {hashlib.md5(image.tobytes()).digest() for image in x} for x, _ in parts
    )
    # Two scans of the 1,797 can be equal, but not many.
    assert len(train & test) + len(train & validation) < 5


# --- export and verify ---

STAGES = {
    "saved_model": "writing the SavedModel ...",
    "onnx": "converting to ONNX (minutes for large models) ...",
    "litert": "converting to LiteRT ...",
    "triton": "converting to ONNX (minutes for large models) ...",
    "web": "converting to ONNX (minutes for large models) ...",
}
OUTPUTS = {
    "saved_model": "exports/run/1",
    "onnx": "exports/run.onnx",
    "litert": "exports/run.tflite",
    "triton": "exports/triton/run",
    "web": "exports/web/run",
}


@pytest.fixture
def directory(run, tmp_path, monkeypatch):
    """A directory to work in: a run and what an export may be given."""
    shutil.copytree(run[0], tmp_path / "runs/run")
    x, y = blobs()
    np.savez(tmp_path / "data.npz", x=x, y=y)
    (tmp_path / "labels.txt").write_text("rot\ngrün\nblau\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def next_commands(printed):
    """What is to be typed, of all that an export prints."""
    lines = printed.split("\nNext:\n")[1].splitlines()
    assert all(line.startswith("  ") for line in lines)
    return [line.strip() for line in lines]


def run_verify(command):
    program, *arguments = shlex.split(command)
    assert program == "cbnn" and arguments[0] == "verify"
    return cli.main(arguments)


@pytest.mark.parametrize("format", list(OUTPUTS))
def test_export_says_what_it_does_and_what_is_next(format, directory, capsys):
    options = [] if format == "saved_model" else ["--format", format]
    if format == "web":
        fake_onnxruntime_web(directory / "node_modules/onnxruntime-web/dist")
        options += ["--input", "row", "--title", "Blobs"]
    assert cli.main(["export", "runs/run", *options]) == 0
    printed, errors = capsys.readouterr()
    assert errors == ""
    path = directory / OUTPUTS[format]
    assert path.exists()
    stages, result = printed.split("\n\n")[0].rsplit("\n", 1)
    assert stages.splitlines() == [
        "merging the members ...",
        STAGES[format],
        "comparing it with the Keras ensemble ...",
    ]
    assert re.fullmatch(
        re.escape(str(path))
        + r": \d+(\.\d)? kB, max \|delta p\| \d\.\de-\d\d, the same class for "
        r"100\.0% of 10 samples\.",
        result,
    )
    verify, serve = next_commands(printed)
    assert verify == f"cbnn verify {path} --run runs/run"
    assert serve.startswith(
        {
            "saved_model": f"docker run --rm -p 8501:8501 -v {path.parent}:"
            "/models/run -e MODEL_NAME=run tensorflow/serving",
            "onnx": "python -c ",
            "litert": "python -c ",
            "triton": f"tritonserver --model-repository {path.parent}",
            "web": f"python -m http.server --bind 127.0.0.1 --directory {path}",
        }[format]
    )
    assert run_verify(verify) == 0
    printed, errors = capsys.readouterr()
    assert printed.startswith(f"{path} matches: max |delta p| ")
    assert errors == ""
    if format in ("onnx", "litert"):
        exec(shlex.split(serve)[2])
        assert "'input'" in capsys.readouterr().out
    if format == "web":
        assert "<title>Blobs</title>" in (path / "index.html").read_text()


@pytest.mark.large
def test_export_with_all_options(directory, capsys):
    arguments = (
        "export runs/run --format onnx --output out/small.onnx --members 2 "
        "--precision int8 --data data.npz --outputs class,top_k,members "
        "--top-k 2 --class-names labels.txt --tolerance 0.5"
    )
    assert cli.main(arguments.split()) == 0
    printed = capsys.readouterr().out
    assert "converting to int8 ..." in printed
    assert "% of 120 samples." in printed
    session = onnxruntime.InferenceSession("out/small.onnx")
    x, _ = blobs()
    names = [o.name for o in session.get_outputs()]
    assert sorted(names) == [
        "class",
        "members",
        "top_k_classes",
        "top_k_probabilities",
    ]
    found = dict(zip(names, session.run(names, {"input": x}), strict=True))
    assert found["members"].shape == (120, 2, 3)
    assert found["top_k_classes"].shape == (120, 2)
    assert set(found["class"]) <= {"rot", "grün", "blau"}
    verify, _ = next_commands(printed)
    assert "--data data.npz" in verify
    assert run_verify(verify) == 0


def test_export_of_a_saved_model_for_a_server(directory, capsys):
    arguments = "export runs/run --output served/blobs --voting hard"
    assert cli.main([*arguments.split(), "--serving-config", "/models"]) == 0
    config = (directory / "served/models.config").read_text()
    assert 'base_path: "/models/blobs"' in config
    # Without a directory, where it is.
    assert cli.main([*arguments.split(), "--serving-config"]) == 0
    config = (directory / "served/models.config").read_text()
    assert f'base_path: "{directory}/served/blobs"' in config
    assert (directory / "served/blobs/2").is_dir()
    assert cli.main(["verify", "served/blobs", "--run", "runs/run"]) == 0
    assert "served/blobs matches" in capsys.readouterr().out


# --- What export and verify refuse ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--precision int8", "--precision is not for --format saved_model"),
        ("--image-shape 8 8", "--image-shape is for --format web"),
        ("--no-invert --format onnx", "--invert is for --format web"),
        ("--format web --outputs class", "--outputs is not for --format web"),
        (
            "--format onnx --serving-config",
            "--serving-config is for --format saved_model",
        ),
        (
            "--format onnx --precision int8",
            "--precision int8 needs --data FILE to calibrate with",
        ),
        ("--format tflite", "invalid choice: 'tflite'"),
        ("--format onnx --precision int4", "invalid choice: 'int4'"),
        ("--voting loud", "invalid choice: 'loud'"),
        ("--members many", "invalid int value: 'many'"),
        ("--tolerance small", "invalid float value: 'small'"),
    ],
)
def test_wrong_combinations_are_usage_errors(
    arguments, message, directory, capsys
):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["export", "runs/run", *arguments.split()])
    error = capsys.readouterr().err
    assert error.startswith("usage: cbnn export")
    assert "cbnn export: error: " in error and message in error
    for command in ("export", "verify", "verify exports/run.onnx"):
        with pytest.raises(SystemExit, match="2"):
            cli.main(command.split())
        error = capsys.readouterr().err
        assert "the following arguments are required" in error
    assert not (directory / "exports").exists()


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        ("runs/nothing", r"nothing holds no run: there is no manifest", 2),
        ("runs/run --members 0", r"select\(num=0\): num must be an integer", 1),
        ("runs/run --outputs class,labels", r"outputs.* each once, .*", 1),
        ("runs/run --top-k 0", r"top_k.*at least 1", 1),
        ("runs/run --priors labels.txt", r"labels\.txt holds no priors", 2),
        ("runs/run --data labels.txt", r"labels\.txt is not an \.npz", 2),
        ("runs/run --output runs", r"runs is a \w+; an ONNX export", 2),
    ],
)
def test_what_export_refuses(arguments, message, code, directory, capsys):
    command = ["export", *arguments.split(), "--format", "onnx"]
    assert cli.main(command) == code
    error = capsys.readouterr().err
    assert re.match(rf"cbnn: .*{message}", error)
    assert error.count("\n") == 1
    assert not (directory / "exports").exists()


def test_verify_finds_what_does_not_match(directory, capsys):
    assert cli.main("export runs/run --format onnx".split()) == 0
    verify = "verify exports/run.onnx --data data.npz --run".split()
    capsys.readouterr()
    # To a tolerance that nothing meets.
    assert cli.main([*verify, "runs/run", "--tolerance", "1e-12"]) == 1
    printed, error = capsys.readouterr()
    assert printed == ""
    assert re.match(
        r"cbnn: The export does not match the Keras ensemble: max \|delta p\| "
        r"\d\.\de[+-]\d\d, .*allowed are 1e-12 and",
        error,
    )
    assert cli.main([*verify, "runs/run"]) == 0
    assert "of 120 samples" in capsys.readouterr().out
    # With a run that has no such members at all.
    CheckpointEnsemble.load("runs/run").select(num=1).save("runs/short")
    assert cli.main([*verify, "runs/short"]) == 2
    assert "The run has no members of the steps" in capsys.readouterr().err


def test_a_missing_package_is_one_line(directory, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    assert cli.main("export runs/run --format onnx".split()) == 1
    assert re.fullmatch(
        r'cbnn: This needs tf2onnx: pip install "cbnn-keras\[onnx\]"\. .*\n',
        capsys.readouterr().err,
    )
    assert not (directory / "exports").exists()


def test_an_interrupted_export(directory, capsys, monkeypatch):
    from cbnn_keras.export import onnx_conversion

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(onnx_conversion, "to_onnx", interrupted)
    assert cli.main("export runs/run --format onnx".split()) == 130
    assert capsys.readouterr().err == "cbnn: interrupted\n"
    assert not (directory / "exports").exists()


def test_the_installed_script_is_this_command():
    [script] = importlib.metadata.entry_points(
        group="console_scripts", name="cbnn"
    )
    assert script.load() is cli.main
