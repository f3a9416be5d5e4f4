"""Outputs that would change a run, or replace what is read, are refused."""

import json
import os
import re

import pytest

from cbnn_keras.runs import outputs
from cbnn_keras.support.faults import RunError


@pytest.fixture
def run(tmp_path):
    """What tells a run from other directories, and a file of it."""
    directory = tmp_path / "run"
    (directory / "members").mkdir(parents=True)
    (directory / "manifest.json").write_text('{"format_version": 2}')
    (directory / "members/5.weights.h5").touch()
    return directory


def inside(path, run):
    return re.escape(
        f"{path} is inside the run {run}, which is not to be touched. Choose "
        "another directory."
    )


@pytest.mark.parametrize(
    "name",
    [
        "run/manifest.json",
        "run/model.keras",
        "run/members",
        "run/members/5.weights.h5",
        "run/new.onnx",
        "run/deep/er/1",
        "elsewhere/../run/new.onnx",
        "run/members/../../run/members/1",
        "./run/x",
    ],
)
def test_nothing_goes_into_a_run(name, run, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    path = f"{tmp_path}/{name}"
    with pytest.raises(RunError, match=f"^{inside(path, run)}$"):
        outputs.check_output(path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=f"^{inside(name, run)}$"):
        outputs.check_output(name)
    monkeypatch.chdir(run / "members")
    with pytest.raises(RunError, match=f"^{inside('x', run)}$"):
        outputs.check_output("x")


def test_links_do_not_lead_around_it(run, tmp_path):
    links = {
        "file": run / "manifest.json",  # a link to a file of a run
        "directory": run / "members",
        "chain": tmp_path / "file",
        "dangling": run / "new.onnx",
    }
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    # Out of the run, but the name is in it, and would be replaced.
    (run / "out").symlink_to(tmp_path)
    for name in (
        "file",
        "directory/x",
        "directory/../x",
        "chain",
        "dangling",
        "run/out",
        "run/out/x",
    ):
        with pytest.raises(RunError, match="is inside the run"):
            outputs.check_output(f"{tmp_path}/{name}")


def test_other_places_are_free(run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/link").symlink_to(tmp_path / "elsewhere/x")
    for name in ("x", "run-2/1", "run.onnx", "run/../x", "elsewhere/link"):
        outputs.check_output(f"{tmp_path}/{name}")


@pytest.mark.parametrize("content", [b"", b"\xff{", None, "link", "pipe"])
def test_a_damaged_run_is_a_run(content, run, tmp_path):
    manifest = run / "manifest.json"
    manifest.unlink()
    if content == "link":
        manifest.symlink_to("/dev/null")
    elif content == "pipe":
        os.mkfifo(manifest)
    else:
        manifest.mkdir() if content is None else manifest.write_bytes(content)
    with pytest.raises(RunError, match="is inside the run"):
        outputs.check_output(run / "x")
    for path in run.glob("members/*"):
        path.unlink()
    (run / "members").rmdir()
    if content in ("link", "pipe", None):
        assert outputs.is_run(run)


def test_a_manifest_of_somebody_else_is_none(tmp_path):
    content = {"name": "site", "icons": []}
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    outputs.check_output(tmp_path / "report.html")


def test_inputs_are_not_replaced(tmp_path):
    data, other = tmp_path / "data.npz", tmp_path / "other.npz"
    data.touch()
    other.touch()
    os.link(data, tmp_path / "hard.npz")
    (tmp_path / "link.npz").symlink_to(data)
    outputs.check_output(tmp_path / "new.npz", [data, other])
    for name in ("data.npz", "link.npz", "hard.npz", "x/../data.npz"):
        (tmp_path / "x").mkdir(exist_ok=True)
        path = f"{tmp_path}/{name}"
        with pytest.raises(
            RunError,
            match=f"^{re.escape(path)} is read as an input, and is not "
            r"replaced\. Choose another name for the output\.$",
        ):
            outputs.check_output(path, [other, data])
