"""The command `cbnn` with runs and files of somebody else."""

import json
import re
import shutil

import keras
import numpy as np
import pytest
from disks import small_disk
from helpers import blobs, dense_model, header, scored_run, trained
from hostile_architectures import edit_config, layer_of, saved

from cbnn_keras.commands import cli
from cbnn_keras.commands.demo import save_data
from cbnn_keras.runs.manifest import Settings
from cbnn_keras.support.faults import RunError


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trust") / "run"
    trained(directory, num_checkpoints=2, epochs=2)
    return directory


@pytest.fixture
def directory(trained_run, tmp_path, monkeypatch):
    """A directory to work in: two runs and some data."""
    for name in ("run", "other"):
        shutil.copytree(trained_run, tmp_path / name)
    x, y = blobs()
    np.savez(tmp_path / "data.npz", x=x, y=y)
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    (tmp_path / "priors.txt").write_text("1\n1\n1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def content(directory):
    return {
        str(path): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def unfinished_run(path, **changes):
    scored_run(path, num_rounds=2, is_finished=False, **changes)
    return path


# --- Outputs ---


@pytest.mark.parametrize(
    "arguments",
    [
        "export run --format onnx --output run/model.keras",
        "export run --format onnx --output other/members/x.onnx",
        "export run --format onnx --output new/../other/manifest.json",
        "export run --output run/members",
        "export run --output other",
        "export run --output link",
        "export run --format triton --output run/members",
        "export run --format onnx --output to-manifest",
        "report run -o other/manifest.json",
        "report run -o run/report.html",
        "report run -o to-manifest",
        "report run -o page.html --data data.npz --suspects other/model.keras",
        "demo --directory run/members/demo",
        "demo --directory link/demo",
    ],
)
def test_no_output_over_a_run(arguments, directory, capsys):
    (directory / "new").mkdir()
    (directory / "link").symlink_to(directory / "other/members")
    (directory / "to-manifest").symlink_to(directory / "other/manifest.json")
    before = content(directory)
    assert cli.main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(
        r"cbnn: \S+ is inside the run \S+/(run|other), which is not to be "
        r"touched\. Choose another directory\.\n",
        error,
    )
    assert content(directory) == before


@pytest.mark.parametrize(
    "arguments",
    [
        "export run --format onnx --data data.npz --output data.npz",
        "export run --format onnx --priors priors.txt --output priors.txt",
        "export run --format onnx --class-names names.txt --output names.txt",
        "export run --format onnx --preprocess names.txt --output names.txt",
        "export run --format onnx --data data.npz --output link.npz",
        "report run --data data.npz -o data.npz",
        "report run --data data.npz -o x.html --suspects ./data.npz",
        "report run --data data.npz -o names.txt --class-names names.txt",
    ],
)
def test_no_output_over_an_input(arguments, directory, capsys):
    (directory / "link.npz").symlink_to(directory / "data.npz")
    before = content(directory)
    assert cli.main(arguments.split()) == 2
    assert re.fullmatch(
        r"cbnn: \S+ is read as an input, and is not replaced\. Choose another "
        r"name for the output\.\n",
        capsys.readouterr().err,
    )
    assert content(directory) == before


def test_a_report_on_a_full_disk(directory, capsys):
    with small_disk(directory / "disk", 16) as disk:
        (disk / "page.html").write_text("old")
        assert cli.main(["report", "run", "-o", "disk/page.html"]) == 1
        assert capsys.readouterr().err == (
            "cbnn: disk/page.html could not be written: No space left on "
            "device. Nothing was changed there: make room, and try again.\n"
        )
        assert [p.name for p in disk.iterdir()] == ["page.html"]
        assert (disk / "page.html").read_text() == "old"


def test_the_data_of_a_demo_replace_nothing(tmp_path):
    x, y = blobs()
    arrays = ((x, y), (x[:9], y[:9]))
    paths = save_data(tmp_path / "demo", *arrays)
    assert paths == [f"{tmp_path}/demo.{n}.npz" for n in ("train", "test")]
    np.testing.assert_array_equal(np.load(paths[1])["x"], x[:9])
    assert save_data(tmp_path / "demo", *arrays) == paths  # the same again
    with pytest.raises(
        RunError,
        match=r"demo\.train\.npz is there already, with other data, and is not "
        r"replaced\. Choose another directory\.$",
    ):
        save_data(tmp_path / "demo", (x[:5], y[:5]), arrays[1])


# --- Unfinished runs ---


def test_inspect_says_how_to_finish_a_run(tmp_path, capsys):
    run = unfinished_run(tmp_path / "run")
    note = (
        "Training has been interrupted or still goes on. Resume it with "
        "CBNNCallback(directory, resume=True), or export the members so far "
        "with cbnn export --allow-unfinished."
    )
    assert cli.main(["inspect", str(run)]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert f"{run}: not finished, 2 members, " in first
    assert second == note
    assert cli.main(["inspect", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["is_finished"], found["note"]) == (False, note)


def test_a_finished_run_needs_no_note(trained_run, capsys):
    assert cli.main(["inspect", str(trained_run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["is_finished"], found["note"]) == (True, None)


def test_an_unfinished_run_is_exported_if_asked(tmp_path, capsys):
    run = unfinished_run(tmp_path / "run")
    command = ["export", str(run), "--output", str(tmp_path / "model")]
    assert cli.main(command) == 2
    assert re.match(
        r"cbnn: .*/run is not finished: it has 2 members so far, .*"
        r"\(--allow-unfinished\)\.\n$",
        capsys.readouterr().err,
    )
    assert not (tmp_path / "model").exists()
    assert cli.main([*command, "--allow-unfinished"]) == 0
    assert (tmp_path / "model/1/saved_model.pb").exists()


# --- Escape sequences ---


def test_what_a_run_says_is_shown_and_not_obeyed(tmp_path, capsys):
    own = {"note\x1b]0;title\x07": "red\x1b[31m\u202egnp", "list": ["\x9b2J"]}
    run = unfinished_run(
        tmp_path / "r\x1b[2Jun",
        method="cb\x1b[2Jnn\r",
        settings=Settings(header(dense_model()).settings.policy, own),
    )
    assert cli.main(["inspect", str(run)]) == 0
    printed = capsys.readouterr().out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", printed)
    assert r"r\x1b[2Jun: not finished" in printed
    assert r"method cb\x1b[2Jnn\r" in printed
    assert r"red\x1b[31m\u202egnp" in printed
    # And in errors, of one line.
    (run / "manifest.json").write_text("{")
    assert cli.main(["inspect", str(run)]) in (1, 2)
    error = capsys.readouterr().err
    assert r"r\x1b[2Jun" in error and "\x1b" not in error
    assert error.count("\n") == 1


def test_a_report_of_such_a_run_is_html(directory, capsys):
    run = unfinished_run(
        directory / "bad", method="<script>alert(1)</script>\x1b[2J"
    )
    assert cli.main(["report", str(run), "-o", "page.html"]) == 0
    page = (directory / "page.html").read_text("utf-8")
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    assert "\x1b" not in page and r"\x1b[2J" in page


# --- Files ---


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.full((6, 4), "red"), np.arange(6) % 3),
        (np.zeros((6, 5), "float32"), np.arange(6) % 3),
        (np.zeros((6, 4), "float32"), np.full(6, "red")),
        (np.zeros((6, 4), "float32"), np.full(6, np.nan)),
        (np.zeros((6, 4), "float32"), np.full(6, 7)),
        (np.zeros((6, 4), "float32"), np.full(6, -1)),
        (np.zeros((6, 4), "float32"), np.zeros((6, 3, 2))),
        (np.zeros((6, 4), bool), np.arange(6) % 3 + 0.5),
        (np.zeros((6, 2**10), "uint8"), np.arange(6) % 3),
    ],
)
@pytest.mark.parametrize("command", ["report run -o a.html", "export run"])
def test_data_that_do_not_fit_are_one_paragraph(
    command, x, y, directory, capsys
):
    np.savez(directory / "data.npz", x=x, y=y)
    code = cli.main([*command.split(), "--data", "data.npz"])
    error = capsys.readouterr().err
    if command == "export run" and x.shape == (6, 4) and x.dtype.kind != "U":
        assert (code, error) == (0, "")  # without labels, they do
    else:
        assert code in (1, 2) and error.count("\n") == 1
        assert error.startswith("cbnn: ")


@pytest.mark.parametrize(
    "command",
    [
        "export run --data empty.npz",
        "export run --format onnx --precision int8 --data empty.npz",
        "report run --data empty.npz",
        "verify run --run run --data empty.npz",
    ],
)
def test_data_without_samples(command, directory, capsys):
    np.savez("empty.npz", x=np.zeros((0, 4), "float32"), y=np.zeros(0, int))
    assert cli.main(command.split()) == 2
    assert capsys.readouterr().err == (
        "cbnn: empty.npz: 'x' has no rows. Give one sample at least.\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "'0' is no number of bytes, such as 500M or 8G"),
        ("-1", "'-1' is no number of bytes"),
        ("many", "'many' is no number of bytes"),
        ("4T", "'4T' is no number of bytes"),
        ("1.5G", "'1.5G' is no number of bytes"),
        ("9" * 99, "is no number of bytes"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "report", "export"])
def test_max_bytes_is_a_number(command, text, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main([command, "run", "--max-bytes", text])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["153600", "150k", "150K", "150KiB"])
def test_max_bytes_holds_for_data(text, directory, capsys):
    np.savez("data.npz", x=np.zeros((12000, 4), "float32"))
    command = f"export run --data data.npz --max-bytes {text}"
    assert cli.main(command.split()) == 2
    assert re.match(
        r"cbnn: data\.npz would take 19\d\.\d kB in memory, more than the "
        r"153\.6 kB allowed\.",
        capsys.readouterr().err,
    )


@pytest.mark.parametrize(
    "command",
    [
        "inspect run",
        "report run",
        "report run --data data.npz",
        "export run",
        "verify out --run run",
    ],
)
def test_max_bytes_holds_for_runs(command, directory, capsys):
    assert cli.main([*command.split(), "--max-bytes", "10k"]) == 2
    assert re.match(
        r"cbnn: .*run needs [\d,]+ bytes to be loaded, more than max_bytes="
        r"10,240\. If you know who made this run, load it with `max_bytes=",
        capsys.readouterr().err,
    )


def test_max_bytes_holds_for_artefacts(directory, capsys):
    assert cli.main("export run".split()) == 0
    verify = "verify exports/run --run run --max-bytes"
    # The run takes less than the artefact.
    assert cli.main([*verify.split(), "150k"]) == 2
    assert "exports/run/1/saved_model.pb" in (error := capsys.readouterr().err)
    assert "give a larger max_bytes (--max-bytes)" in error
    assert cli.main([*verify.split(), "100M"]) == 0


@pytest.mark.parametrize(
    ("command", "content", "message"),
    [
        ("export run --priors f.txt", "1\n1\n", r"f\.txt: priors have the sh"),
        ("export run --class-names f.txt", "a\nb", r"f\.txt: class_names must"),
        ("report run --class-names f.txt", "a\nb", r"f\.txt: There are 2 clas"),
        (
            "report run --data f.npz",
            {"x": 4, "y": 9},
            r"f\.npz: Labels must be",
        ),
        (
            "report run --data f.npz",
            {"x": 5, "y": 0},
            r"with f\.npz \(.*\(5,\)",
        ),
        (
            "export run --data f.npz",
            {"x": 5},
            r"with f\.npz \(.*\(10, 5\), but",
        ),
        (
            "verify out --run run --data f.npz",
            {"x": 5},
            r"with f\.npz \(The da",
        ),
    ],
)
def test_files_that_do_not_fit_are_named(
    command, content, message, directory, capsys
):
    if isinstance(content, str):
        (directory / "f.txt").write_text(content)
    else:
        arrays = {"x": np.zeros((10, content["x"]), "float32")}
        if "y" in content:
            arrays["y"] = np.full(10, content["y"])
        np.savez(directory / "f.npz", **arrays)
    if command.startswith("verify"):
        assert cli.main("export run --output out".split()) == 0
    assert cli.main(command.split()) == 2
    assert re.search(message, capsys.readouterr().err)


def test_preprocessing_that_cannot_compute_is_named(directory, capsys):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Rescaling(1.0)])
    path = saved(model, directory / "p.keras")

    def spoil(config):
        layer_of(config, "Rescaling")["config"]["scale"] = "text"

    edit_config(path, spoil)
    assert cli.main("export run --preprocess p.keras".split()) == 2
    assert "cbnn: p.keras describes a model that ca" in capsys.readouterr().err


def test_an_error_of_many_lines_is_one_paragraph(monkeypatch, capsys):
    def fail(parsed):
        raise RunError("first \n\n  second\x1b[2J\n")

    monkeypatch.setattr(cli, "_inspect", fail)
    assert cli.main(["inspect", "run"]) == 2
    assert capsys.readouterr().err == "cbnn: first second\\x1b[2J\n"
