"""Our versions of keras.io's tasks: they run, and their page is true."""

import ast
import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples" / "keras_io").glob("*.py"))
PAGE = ROOT / "docs" / "keras_io.md"
# Beside a checkout, if at all: the data are not part of the project.
DATA = ROOT.parent / "shared" / "data"
CIFAR, TINY = DATA / "tfds", DATA / "tiny-imagenet-20-classes.zip"
RESULT = r" +\d+\.\d\d % test error, log-loss \d+\.\d{4}(, .*)?"

every_script = pytest.mark.parametrize(
    "script", SCRIPTS, ids=lambda path: path.stem
)


def header_of(script):
    return ast.get_docstring(ast.parse(script.read_text()))


def marked_lines(script):
    """Numbers, from 1, of the lines that CBNN adds or changes."""
    lines = script.read_text().splitlines()
    return [i for i, line in enumerate(lines, 1) if line.endswith("  # CBNN")]


def row_of(script):
    """The cells of the script's row in the table of the page."""
    (row,) = re.findall(
        rf"^\| \[[^\]]+\]\(\.\./examples/keras_io/{script.name}\) \|(.*)\|$",
        PAGE.read_text(),
        re.MULTILINE,
    )
    return [cell.strip() for cell in row.split("|")]


def test_there_are_eight():
    assert len(SCRIPTS) == 8


@every_script
def test_header_says_how_to_run_what_it_costs_and_what_to_expect(script):
    header = header_of(script)
    assert f"python examples/keras_io/{script.name}" in header
    for word in ("Title:", "Description:", "Data:", "Cost:", "Expected:"):
        assert re.search(rf"^{word} +\S", header, re.MULTILINE), word
    assert "@" not in header  # a number that was to be filled in
    assert "/work" not in header and "/tmp" not in header


@every_script
def test_help_is_the_header(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script.name, "--help"])
    with pytest.raises(SystemExit) as exit_info:
        runpy.run_path(str(script), run_name="__main__")
    assert exit_info.value.code == 0
    assert header_of(script).splitlines()[0] in capsys.readouterr().out


@every_script
def test_every_line_with_cbnn_is_marked_and_counted(script):
    """No line of the program is about CBNN but those that say so."""
    marked = marked_lines(script)
    tree = ast.parse(script.read_text())
    named = {
        node.lineno
        for node in ast.walk(tree)
        if re.search("cbnn|^export_", getattr(node, "id", ""), re.IGNORECASE)
        or "cbnn_keras" in getattr(node, "module", "")
    }
    assert named <= set(marked)
    num_lines = sum(map(int, re.findall(r"\d+", row_of(script)[2])))
    assert num_lines == len(marked)


@every_script
def test_page_has_the_numbers_of_the_header_and_shows_the_marked_lines(script):
    measured = re.findall(r"\d+\.\d+", " ".join(row_of(script)[3:7]))
    assert len(measured) == 4
    header = header_of(script).split("Expected:")[1]
    assert set(measured) <= set(re.findall(r"\d+\.\d+", header))
    (shown,) = re.findall(
        rf"^```{{literalinclude}} \.\./examples/keras_io/{script.name}\n"
        r":language: python\n:emphasize-lines: ([\d,]+)\n```$",
        PAGE.read_text(),
        re.MULTILINE,
    )
    assert [int(number) for number in shown.split(",")] == marked_lines(script)


@pytest.mark.large
@pytest.mark.parametrize(
    ("name", "data", "options", "artefact"),
    [
        ("image_classification_from_scratch", TINY, [], None),
        ("imbalanced_classification", DATA / "shuttle.csv.gz", [], None),
        ("mlp_image_classification", CIFAR, [], None),
        (
            "structured_data_classification",
            DATA / "satellite.csv.gz",
            [],
            "serving/soils/1/saved_model.pb",
        ),
        (
            "text_classification_from_scratch",
            DATA / "ag_news_7600.csv.gz",
            [],
            "serving/topics/1/saved_model.pb",
        ),
        (
            "text_classification_with_transformer",
            DATA / "dbpedia14_14000.csv.gz",
            [],
            "dbpedia.onnx",
        ),
        ("timeseries_classification", None, [], None),
        (
            "transfer_learning",
            CIFAR,
            ["--backbone-epochs", "1", "--head-epochs", "1"],
            "serving/transfer/1/saved_model.pb",
        ),
    ],
)
def test_it_runs(name, data, options, artefact, tmp_path):
    if data is not None:
        if not data.exists():
            pytest.skip(f"{data.name} is not here")
        place = data.parent if data.suffix == ".gz" else data
        options = ["--data-dir", place, *options]
    found = subprocess.run(
        [
            *(sys.executable, ROOT / "examples" / "keras_io" / f"{name}.py"),
            # Images take the longest.
            *("--epochs", "1" if data in (TINY, CIFAR) else "2"),
            *map(str, options),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"TF_NUM_INTRAOP_THREADS": "1"},
    )
    assert found.returncode == 0, found.stderr
    lines = [x for x in found.stdout.splitlines() if "test error" in x]
    assert len(lines) == 2, found.stdout
    assert re.fullmatch("plain fit " + RESULT, lines[0]), lines
    assert re.fullmatch("CBNN" + RESULT, lines[1]), lines
    if artefact is not None:
        assert (tmp_path / artefact).is_file()
