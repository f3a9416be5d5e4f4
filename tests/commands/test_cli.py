"""The command `cbnn`, as typed."""

import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import keras
import numpy as np
import onnxruntime
import pytest
from helpers import blobs, dense_model, trained

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.commands import cli, demo, inspect
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


def test_inspect_as_json(run, capsys):
    directory, history = run
    assert cli.main(["inspect", str(directory), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["is_finished"] is True
    assert content["header"]["num_classes"] == 3
    for found, record in zip(content["rounds"], history, strict=True):
        assert {name: found[name] for name in record} == record
        assert found["bytes"] > 0


def test_inspect_marks_what_is_no_member(capsys):
    record = {
        "step": 5,
        "epoch": 0,
        "error": 0.9,
        "vote": 0.0,
        "normaliser": 1.0,
        "bound": 1.0,
        "is_member": False,
        "is_kept": False,
        "bytes": 0,
    }
    header = {
        "num_classes": 2,
        "num_samples": 3,
        "num_parameters": 4,
        "settings": {},
    }
    inspect.print_run(
        {
            "directory": "run",
            "is_finished": False,
            "header": header,
            "rounds": [record],
        }
    )
    printed = capsys.readouterr().out
    assert "not finished, 0 members" in printed
    assert "no member" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "nowhere"], "holds no run"),
        (["demo", "--epochs", "0"], "--epochs 0: at least 1"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(arguments, message, capsys):
    assert cli.main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("cbnn: ") and message in error
    assert error.count("\n") == 1


def test_damaged_run_is_named(run, tmp_path, capsys):
    shutil.copytree(run[0], tmp_path / "run")
    member = next((tmp_path / "run/members").iterdir())
    member.write_bytes(b"x" + member.read_bytes()[1:])
    assert cli.main(["inspect", str(tmp_path / "run")]) == 1
    assert str(member) in capsys.readouterr().err


def test_help_and_version(capsys):
    for arguments, expected in (
        (["--help"], "cbnn inspect runs/demo"),
        (["--version"], f"cbnn-keras {__version__}"),
    ):
        with pytest.raises(SystemExit, match="0"):
            cli.main(arguments)
        assert expected in capsys.readouterr().out


def test_next_free_directory_is_taken(tmp_path):
    for expected in ("demo", "demo-2", "demo-3"):
        free = cli._free_directory(tmp_path / "demo")
        assert free.name == expected
        free.mkdir()


def test_demo_as_a_command(tmp_path, monkeypatch):
    """Trains, prints the table, and leaves a run that gives its numbers."""
    result = subprocess.run(
        [sys.executable, "-m", "cbnn_keras", "demo", "--epochs", "6"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    table = {
        cells[1].strip(): float(cells[2])
        for line in lines
        if len(cells := line.split("│")) == 4
    }
    assert list(table) == [
        "final model alone",
        "plain average",
        "CBNN",
        "CBNN, selected",
    ]
    assert "  cbnn inspect runs/demo" in lines
    [report] = [line for line in lines if line.startswith("  cbnn report")]
    monkeypatch.chdir(tmp_path)
    assert cli.main(shlex.split(report)[1:]) == 0
    page = pathlib.Path("report.html").read_text("utf-8")
    assert "On 360 samples of demo.test.npz, which the members were not" in page
    assert "labels of demo.train.npz are suspicious" in page
    _, validation, (x, y) = demo.load_digits(seed=0)
    ensemble = CheckpointEnsemble.load(tmp_path / "runs/demo")
    error = 100 * np.mean(ensemble.predict(x).argmax(axis=1) != y)
    assert f"{error:.2f}" == f"{table['CBNN']:.2f}"
    selected = ensemble.select(validation_data=validation)
    error = 100 * np.mean(selected.predict(x).argmax(axis=1) != y)
    assert f"{error:.2f}" == f"{table['CBNN, selected']:.2f}"


def test_demo_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r'pip install "cbnn-keras\[demo\]"'):
        demo.load_digits(seed=0)


def test_digits_are_split_without_overlap():
    parts = demo.load_digits(seed=0)
    assert [len(y) for _, y in parts] == [1077, 360, 360]
    assert all(set(y) == set(range(10)) for _, y in parts)

    def keys(x):
        return {hashlib.md5(image.tobytes()).digest() for image in x}

    train, validation, test = (keys(x) for x, _ in parts)
    # Two scans of the 1,797 can be equal, but not many.
    assert len(train & test) + len(train & validation) < 5


def test_a_terminal_without_unicode_still_shows_the_table(run, tmp_path):
    shutil.copytree(run[0], tmp_path / "läuf [bold]")
    result = subprocess.run(
        [sys.executable, "-m", "cbnn_keras", "inspect", "läuf [bold]"],
        cwd=tmp_path,
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "40"},
        check=True,
    )
    assert b"l\\xe4uf [bold]: complete, 3 members" in result.stdout


def test_demo_refuses_a_directory_that_holds_a_run(run, capsys):
    assert cli.main(["demo", "--directory", str(run[0])]) == 1
    error = capsys.readouterr().err
    assert "already holds a run" in error and "Choose another" in error
    assert "resume" not in error


# --- export and verify ---

STAGES = {
    "saved_model": "writing the SavedModel ...",
    "onnx": "converting to ONNX (minutes for large models) ...",
    "triton": "converting to ONNX (minutes for large models) ...",
}
OUTPUTS = {
    "saved_model": "exports/run/1",
    "onnx": "exports/run.onnx",
    "triton": "exports/triton/run",
}


@pytest.fixture
def place(run, tmp_path, monkeypatch):
    """A folder to work in, with a run and what an export may be given."""
    shutil.copytree(run[0], tmp_path / "runs/run")
    x, y = blobs()
    np.savez(tmp_path / "data.npz", x=x, y=y)
    (tmp_path / "labels.txt").write_text("rot\ngrün\nblau\n", encoding="utf-8")
    pixels = keras.Input((4,), dtype="uint8", name="pixels")
    front = keras.layers.Rescaling(4 / 255, offset=-2)(pixels)
    keras.Model(pixels, front).save(tmp_path / "front.keras")
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


@pytest.mark.parametrize("format", ["saved_model", "onnx", "triton"])
def test_export_says_what_it_does_and_what_is_next(format, place, capsys):
    options = [] if format == "saved_model" else ["--format", format]
    assert cli.main(["export", "runs/run", *options]) == 0
    printed, errors = capsys.readouterr()
    assert errors == ""
    path = place / OUTPUTS[format]
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
            "triton": f"tritonserver --model-repository {path.parent}",
        }[format]
    )
    assert run_verify(verify) == 0
    printed, errors = capsys.readouterr()
    assert printed.startswith(f"{path} matches: max |delta p| ")
    assert errors == ""


def test_export_with_all_options(place, capsys):
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
    ensemble = CheckpointEnsemble.load("runs/run").select(num=2)
    winners = ensemble.predict(x, verbose=0).argmax(axis=1)
    labels = np.array(["rot", "grün", "blau"])
    assert np.mean(found["class"] == labels[winners]) > 0.95
    assert run_verify(next_commands(printed)[0]) == 0


def test_export_with_priors(place, capsys):
    (place / "priors.txt").write_text("80\n10\n10\n")
    arguments = "export runs/run --format onnx --priors priors.txt"
    assert cli.main(arguments.split()) == 0
    session = onnxruntime.InferenceSession("exports/run.onnx")
    x, _ = blobs()
    expected = CheckpointEnsemble.load("runs/run").predict(
        x, priors=[0.8, 0.1, 0.1], verbose=0
    )
    [found] = session.run(["probabilities"], {"input": x})
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    # The file knows its priors.
    verify, _ = next_commands(capsys.readouterr().out)
    assert "--priors" not in verify
    assert run_verify(verify) == 0


def test_the_next_command_knows_the_data(place, capsys):
    arguments = "export runs/run --format onnx --precision int8"
    assert cli.main([*arguments.split(), "--data", "data.npz"]) == 0
    verify, _ = next_commands(capsys.readouterr().out)
    assert "--data data.npz" in verify


def test_export_of_a_saved_model_for_a_server(place, capsys):
    arguments = "export runs/run --output served/blobs --voting hard"
    assert cli.main([*arguments.split(), "--serving-config", "/models"]) == 0
    config = (place / "served/models.config").read_text()
    assert 'base_path: "/models/blobs"' in config
    # Without a folder, where it is.
    assert cli.main([*arguments.split(), "--serving-config"]) == 0
    config = (place / "served/models.config").read_text()
    assert f'base_path: "{place}/served/blobs"' in config
    assert (place / "served/blobs/2").is_dir()
    assert cli.main(["verify", "served/blobs", "--run", "runs/run"]) == 0
    assert "served/blobs matches" in capsys.readouterr().out


def test_export_with_a_preprocessing(place, capsys):
    arguments = "export runs/run --format onnx --preprocess front.keras"
    assert cli.main(arguments.split()) == 0
    (value,) = onnxruntime.InferenceSession("exports/run.onnx").get_inputs()
    assert (value.name, value.type) == ("pixels", "tensor(uint8)")
    command = "verify exports/run.onnx --run runs/run"
    assert cli.main(command.split()) == 1
    assert "Give it here too" in capsys.readouterr().err
    assert cli.main([*command.split(), "--preprocess", "front.keras"]) == 0


def test_the_next_command_knows_the_preprocessing(place, capsys):
    arguments = "export runs/run --format onnx --preprocess front.keras"
    assert cli.main(arguments.split()) == 0
    assert run_verify(next_commands(capsys.readouterr().out)[0]) == 0


@pytest.mark.large
def test_export_as_a_command(place):
    """As typed in a terminal, and then what it says to type."""
    folder = str(pathlib.Path(sys.executable).parent)
    environment = os.environ | {
        "PATH": os.pathsep.join([folder, os.environ["PATH"]])
    }

    def shell(command):
        return subprocess.run(
            command,
            shell=True,
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    exported = shell(
        "cbnn export runs/run --format onnx --output 'my exports/a b.onnx'"
    )
    assert (exported.returncode, exported.stderr) == (0, "")
    path = place / "my exports/a b.onnx"
    assert f"{path}: " in exported.stdout
    verify, serve = next_commands(exported.stdout)
    verified = shell(verify)
    assert (verified.returncode, verified.stderr) == (0, "")
    assert verified.stdout.startswith(f"{path} matches: ")
    served = shell(serve)
    assert (served.returncode, served.stdout) == (0, "['input']\n")


@pytest.mark.parametrize(
    "name",
    [
        "a b.onnx",
        "it's.onnx",
        "$HOME.onnx",
    ],
)
def test_the_next_command_opens_any_name(name, tmp_path):
    from cbnn_keras.export.tf_serving import next_commands

    path = tmp_path / name
    _, serve = next_commands("onnx", path, tmp_path)
    # In place of the file and of the package, what is asked for.
    (tmp_path / "onnxruntime.py").write_text(
        "class InferenceSession:\n"
        "    def __init__(self, path): print(path)\n"
        "    def get_inputs(self): return []\n"
    )
    folder = str(pathlib.Path(sys.executable).parent)
    result = subprocess.run(
        serve,
        shell=True,
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stdout) == (0, f"{path}\n[]\n")


# --- What export and verify refuse ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--precision int8", "--precision is for --format onnx and triton"),
        ("--precision float16", "--precision is for --format onnx and triton"),
        (
            "--format onnx --serving-config",
            "--serving-config is for --format saved_model",
        ),
        (
            "--format triton --serving-config /models",
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
def test_wrong_combinations_are_usage_errors(arguments, message, place, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["export", "runs/run", *arguments.split()])
    error = capsys.readouterr().err
    assert error.startswith("usage: cbnn export")
    assert f"cbnn export: error: {message}" in error or message in error
    assert not (place / "exports").exists()


@pytest.mark.parametrize(
    "arguments", ["export", "verify", "verify exports/run.onnx"]
)
def test_what_is_needed_is_asked_for(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments.split())
    assert "the following arguments are required" in capsys.readouterr().err


def no_data(place):
    (place / "data.npz").write_text("1,2,3")


def other_data(place):
    np.savez(place / "data.npz", x=np.zeros((9, 5)))


def two_priors(place):
    np.save(place / "priors.npy", [0.5, 0.5])


@pytest.mark.parametrize(
    ("arguments", "damage", "message"),
    [
        ("runs/nothing", None, r"nothing holds no run: there is no manifest"),
        ("runs/run --members 0", None, r"select\(num=0\): at least 1"),
        (
            "runs/run --outputs class,labels",
            None,
            r"outputs=\['class', 'labels'\]; choose, each once, from",
        ),
        ("runs/run --top-k 0", None, r"top_k=0; at least 1"),
        ("runs/run --class-names no.txt", None, r"No such file .*no\.txt"),
        ("runs/run --priors no.npy", None, r"No such file .*no\.npy"),
        ("runs/run --priors labels.txt", None, r"labels\.txt holds no priors"),
        (
            "runs/run --priors priors.npy",
            two_priors,
            r"priors have the shape \(2,\), but there are 3 classes",
        ),
        (
            "runs/run --priors priors.npy --voting hard",
            two_priors,
            r"priors are for voting='soft'",
        ),
        ("runs/run --preprocess no.keras", None, r"no\.keras"),
        ("runs/run --data no.npz", None, r"no\.npz is not an \.npz file"),
        ("runs/run --data data.npz", no_data, r"data\.npz is not an \.npz"),
        (
            "runs/run --data data.npz",
            other_data,
            r"'input' have the shape \(9, 5\); the graph takes \(None, 4\)",
        ),
        ("runs/run --output runs", None, r"runs is a folder; an ONNX export"),
    ],
)
def test_what_export_refuses(arguments, damage, message, place, capsys):
    if damage:
        damage(place)
    command = ["export", *arguments.split(), "--format", "onnx"]
    assert cli.main(command) == 1
    error = capsys.readouterr().err
    assert re.match(rf"cbnn: .*{message}", error)
    assert error.count("\n") == 1
    assert not (place / "exports").exists()


def test_verify_finds_what_does_not_match(place, capsys):
    assert cli.main("export runs/run --format onnx".split()) == 0
    keras.utils.set_random_seed(7)
    trained("runs/other", model=dense_model(), num_checkpoints=3)
    # Members of the same steps, and other weights.
    capsys.readouterr()
    command = "verify exports/run.onnx --run runs/other"
    assert cli.main(command.split()) == 1
    printed, error = capsys.readouterr()
    assert printed == ""
    assert re.match(
        r"cbnn: The export does not match the Keras ensemble: max \|delta p\| "
        r"\d\.\de[+-]\d\d, .*allowed are 1e-05 and",
        error,
    )
    # With a run that has no such members at all.
    CheckpointEnsemble.load("runs/run").select(num=1).save("runs/short")
    command = "verify exports/run.onnx --run runs/short"
    assert cli.main(command.split()) == 1
    assert "The ensemble has no members of the steps" in capsys.readouterr().err
    # The right one, to a tolerance that nothing meets.
    command = "verify exports/run.onnx --run runs/run --data data.npz"
    assert cli.main(command.split()) == 0
    assert "of 120 samples" in capsys.readouterr().out
    assert cli.main([*command.split(), "--tolerance", "1e-12"]) == 1
    assert "allowed are 1e-12" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["missing.onnx", "data.npz", "runs"])
def test_verify_says_what_is_no_export(name, place, capsys):
    assert cli.main(["verify", name, "--run", "runs/run"]) == 1
    error = capsys.readouterr().err
    expected = "ONNX Runtime cannot open" if "npz" in name else "is neither a"
    assert error.startswith("cbnn: ") and expected in error and name in error


def test_a_missing_package_is_one_line(place, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    assert cli.main("export runs/run --format onnx".split()) == 1
    assert re.fullmatch(
        r'cbnn: This needs tf2onnx: pip install "cbnn-keras\[onnx\]"\. .*\n',
        capsys.readouterr().err,
    )
    assert not (place / "exports").exists()


def test_an_interrupted_export(place, capsys, monkeypatch):
    from cbnn_keras.export import onnx_conversion

    def interrupted(graph):
        raise KeyboardInterrupt

    monkeypatch.setattr(onnx_conversion, "to_onnx", interrupted)
    assert cli.main("export runs/run --format onnx".split()) == 130
    assert capsys.readouterr().err == "cbnn: interrupted\n"
    assert not (place / "exports").exists()


def test_help_shows_how_to_export(capsys):
    for arguments, expected in (
        ("--help", "cbnn verify digits.onnx --run runs/demo"),
        ("export --help", "--format {saved_model,onnx,triton}"),
        ("export --help", "--precision {float32,float16,int8}"),
        ("verify --help", "--run RUN"),
    ):
        with pytest.raises(SystemExit, match="0"):
            cli.main(arguments.split())
        assert expected in capsys.readouterr().out
