"""Tests of artefacts that appear complete or not at all."""

import os
import pathlib
import signal
import stat
import subprocess
import sys
import time

import pytest

from cbnn_keras.export import Artefact, Parity, placing
from cbnn_keras.support.faults import RunError


def tree(directory):
    """Paths of all that is in a directory."""
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*"))


# --- A directory to write to ---


def test_directory_beside_the_destination_is_hidden_and_goes(tmp_path):
    destination = tmp_path / "model" / "7"
    with placing.written_aside(destination) as aside:
        assert aside.parent == destination.parent  # a rename away
        assert aside.name.startswith(".")
        assert not aside.name.isdecimal()
        assert placing.next_version(destination.parent).name == "1"
        (aside / "model").mkdir()
        (aside / "model" / "file").write_text("x")
        (aside / "rest").write_text("x")
        placing.move_directory(aside / "model", destination)
    assert tree(tmp_path) == ["model", "model/7", "model/7/file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_after_an_error(tmp_path, error):
    (tmp_path / "there").mkdir()
    with pytest.raises(error):
        with placing.written_aside(
            tmp_path / "there" / "a" / "b" / "1"
        ) as aside:
            (aside / "model").mkdir()
            (aside / "model" / "file").write_text("x")
            raise error
    assert tree(tmp_path) == ["there"]


def test_directories_that_were_there_stay_after_an_error(tmp_path):
    (tmp_path / "model" / "1").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for name in ("model", "empty"):
        with pytest.raises(ZeroDivisionError):
            with placing.written_aside(tmp_path / name / "2"):
                raise ZeroDivisionError
    assert tree(tmp_path) == ["empty", "model", "model/1"]


def test_directories_that_others_use_by_then_stay(tmp_path):
    with pytest.raises(ZeroDivisionError):
        with placing.written_aside(tmp_path / "a" / "b" / "1"):
            (tmp_path / "a" / "other").mkdir()
            raise ZeroDivisionError
    assert tree(tmp_path) == ["a", "a/other"]


def test_a_file_above_is_in_the_way(tmp_path):
    (tmp_path / "notes").write_text("mine")
    destination = tmp_path / "notes" / "model" / "1"
    with pytest.raises(
        ValueError,
        match=rf"^{tmp_path / 'notes'} is a file, so {destination} cannot be "
        r"there\. Choose another path\.$",
    ):
        with placing.written_aside(destination):
            pass
    assert (tmp_path / "notes").read_text() == "mine"


def test_two_at_once_do_not_get_in_each_others_way(tmp_path):
    destination = tmp_path / "model" / "1"
    with placing.written_aside(destination) as first:
        with placing.written_aside(destination) as second:
            assert first != second
            (second / "file").touch()
        assert first.is_dir()
    assert tree(tmp_path) == []


# --- Moving ---


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_what_is_there_is_not_replaced(tmp_path, kind):
    source, destination = tmp_path / "source", tmp_path / "1"
    source.mkdir()
    destination.mkdir() if kind == "directory" else destination.touch()
    with pytest.raises(
        ValueError,
        match=rf"^{destination} is there already\. Give the directory above it "
        r"to get the next version\.$",
    ):
        placing.move_directory(source, destination)
    assert tree(tmp_path) == ["1", "source"]


def test_moved_directory_has_the_permissions_that_it_was_made_with(tmp_path):
    before = os.umask(0o027)
    try:
        with placing.written_aside(tmp_path / "model" / "1") as aside:
            (aside / "model").mkdir()
            placing.move_directory(aside / "model", tmp_path / "model" / "1")
    finally:
        os.umask(before)
    for path in (tmp_path / "model", tmp_path / "model" / "1"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o750


# --- Text files that are replaced last ---


def test_texts_are_put_in_place_when_all_are_written(tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("old")
    with placing.prepared({first: "grün\n", second: "青い\n"}) as put_in_place:
        assert first.read_text() == "old"
        assert not second.exists()
        put_in_place()
    assert first.read_bytes() == "grün\n".encode()
    assert second.read_bytes() == "青い\n".encode()
    assert tree(tmp_path) == ["a.txt", "b.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_texts_that_are_not_put_in_place_leave_nothing(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error):
        with placing.prepared({path: "new", tmp_path / "b": "new"}):
            raise error
    assert (path.read_text(), tree(tmp_path)) == ("old", ["a.txt"])


def test_a_text_that_utf_8_does_not_have_changes_nothing(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        with placing.prepared({path: "new", tmp_path / "b": "\udcff"}):
            pytest.fail("it was written")
    assert (path.read_text(), tree(tmp_path)) == ("old", ["a.txt"])


@pytest.mark.parametrize(
    "content",
    ["", "model_config_list {}\n", "\n# Written by cbnn export.\n", None],
)
def test_a_file_of_somebody_else_is_left_alone(tmp_path, content):
    path = tmp_path / "models.config"
    placing.check_replaceable(path)  # not there
    path.mkdir() if content is None else path.write_text(content)
    with pytest.raises(
        ValueError,
        match=rf"^{path} was not written by `cbnn export` and is left alone\. "
        r"Move it away, or add the model to it yourself\.$",
    ):
        placing.check_replaceable(path)


def test_a_file_of_ours_is_replaced(tmp_path):
    path = tmp_path / "models.config"
    path.write_bytes(b"# Written by cbnn export.\n\xff")
    placing.check_replaceable(path)


# --- Versions and sizes ---


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ([], "1"),
        (["1"], "2"),
        (["1", "2", "9", "10"], "11"),
        (["3"], "4"),
        (["007"], "8"),
        (["0"], "1"),
        # No numbers to TensorFlow Serving.
        (["1", "-5", "5.0", "v6", "8x", "1e3", "tmp", ".7", "²"], "2"),
    ],
)
def test_next_version_is_the_number_after_the_last(tmp_path, there, expected):
    for name in there:
        (tmp_path / name).mkdir()
    assert placing.next_version(tmp_path) == tmp_path / expected


def test_next_version_of_a_directory_that_is_not_there(tmp_path):
    assert placing.next_version(tmp_path / "new") == tmp_path / "new" / "1"
    assert not (tmp_path / "new").exists()


def test_a_file_takes_a_number_too(tmp_path):
    (tmp_path / "4").touch()
    assert placing.next_version(tmp_path).name == "5"


def test_num_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 10)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "b").write_bytes(b"x" * 7)
    (tmp_path / "deep" / ".c").write_bytes(b"x" * 5)
    assert placing.num_bytes(tmp_path / "a") == 10
    assert placing.num_bytes(tmp_path) == 22


def test_artefact_as_text(tmp_path):
    artefact = Artefact(tmp_path / "1", 1_234_567, Parity(2e-8, 1.0, 10))
    assert str(artefact) == (
        f"{tmp_path / '1'}: 1.2 MB, max |delta p| 2.0e-08, the same class for "
        "100.0% of 10 samples."
    )


# --- What killed exports leave ---

HOLDER = """
import os, pathlib, sys
from cbnn_keras.export import placing
with placing.written_aside(pathlib.Path(sys.argv[1])) as aside:
    (aside / "model").mkdir()
    (aside / "model" / "file").touch()
    print(aside, flush=True)
    sys.stdin.read()
"""


def make_old(path):
    os.utime(path, (0, time.time() - 25 * 60 * 60))


def left_over(parent, name="abcd_123"):
    """As an export leaves it that was killed long ago."""
    path = parent / f".cbnn-export-{name}"
    path.mkdir(parents=True)
    (path / "model").touch()
    make_old(path)
    return path


@pytest.mark.faults
def test_what_a_killed_export_left_is_swept_up(tmp_path):
    destination = tmp_path / "model" / "1"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(destination)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        aside = pathlib.Path(process.stdout.readline().strip())
        assert (aside / "model/file").exists()
        make_old(aside)  # an export that takes days is still one
        with placing.written_aside(destination):
            pass
        assert (aside / "model/file").exists()
    finally:
        process.kill()
        process.communicate()
    with placing.written_aside(destination):
        assert not aside.exists()
    assert process.returncode == -signal.SIGKILL
    assert tree(tmp_path) == ["model"]


def test_what_is_young_or_not_ours_is_left(tmp_path):
    old = left_over(tmp_path)
    young = left_over(tmp_path, "young_12")
    os.utime(young)
    others = [
        left_over(tmp_path, "notes"),
        left_over(tmp_path, "ABCDEFGH"),
        left_over(tmp_path / "below"),
    ]
    with placing.written_aside(tmp_path / "1"):
        pass
    assert not old.exists()
    assert all((path / "model").exists() for path in (young, *others))


def test_sweeping_follows_no_link(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    make_old(precious)
    parent = tmp_path / "models"
    inner = left_over(parent)
    (inner / "deep").symlink_to(precious)
    make_old(inner)
    link = parent / ".cbnn-export-link0000"
    link.symlink_to(precious)
    os.utime(link, (0, 0), follow_symlinks=False)
    with placing.written_aside(parent / "1"):
        pass
    assert (precious / "file").exists()
    assert link.is_symlink() and not inner.exists()


# --- Links ---


def test_texts_are_not_written_through_links(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    path = tmp_path / "a.txt"
    path.symlink_to(elsewhere)
    (tmp_path / ".a.txt.new").symlink_to(elsewhere)
    with placing.prepared({path: "new"}) as put_in_place:
        put_in_place()
    assert path.read_text() == "new" and not path.is_symlink()
    assert elsewhere.read_text() == "mine"


def test_a_link_is_not_a_file_of_ours(tmp_path):
    (tmp_path / "ours").write_text("# Written by cbnn export.\n")
    for name in ("ours", "nowhere"):
        path = tmp_path / f"{name}.config"
        path.symlink_to(tmp_path / name)
        with pytest.raises(RunError, match="and is left alone"):
            placing.check_replaceable(path)


def test_a_link_to_nowhere_is_not_replaced(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "1").symlink_to(tmp_path / "nowhere")
    with pytest.raises(RunError, match="1 is there already"):
        placing.move_directory(tmp_path / "source", tmp_path / "1")
