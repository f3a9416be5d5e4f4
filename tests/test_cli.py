"""The command `cbnn`, as typed."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
from helpers import trained

from cbnn_keras import CheckpointEnsemble, cli, demo, inspection
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
    assert "deviation_rate 0.01" in printed


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
    inspection.print_run(
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
    import shutil

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


def test_demo_as_a_command(tmp_path):
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
    import os
    import shutil

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
