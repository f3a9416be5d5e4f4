"""Tests of artefacts that appear complete or not at all."""

import os
import stat

import pytest

from cbnn_keras.export import Artefact, Parity, placing


def tree(folder):
    """Paths of all that is in a folder."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


# --- A folder to write to ---


def test_folder_beside_the_destination_is_hidden_and_goes(tmp_path):
    destination = tmp_path / "model" / "7"
    with placing.written_aside(destination) as aside:
        assert aside.parent == destination.parent  # a rename away
        assert aside.name.startswith(".")
        assert not aside.name.isdecimal()
        assert placing.next_version(destination.parent).name == "1"
        (aside / "model").mkdir()
        (aside / "model" / "file").write_text("x")
        (aside / "rest").write_text("x")
        placing.move_folder(aside / "model", destination)
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


def test_folders_that_were_there_stay_after_an_error(tmp_path):
    (tmp_path / "model" / "1").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for name in ("model", "empty"):
        with pytest.raises(ZeroDivisionError):
            with placing.written_aside(tmp_path / name / "2"):
                raise ZeroDivisionError
    assert tree(tmp_path) == ["empty", "model", "model/1"]


def test_folders_that_others_use_by_then_stay(tmp_path):
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
        r"there\. Choose another place\.$",
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


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_there_is_not_replaced(tmp_path, kind):
    source, destination = tmp_path / "source", tmp_path / "1"
    source.mkdir()
    destination.mkdir() if kind == "folder" else destination.touch()
    with pytest.raises(
        ValueError,
        match=rf"^{destination} is there already\. Give the folder above it to "
        r"get the next version\.$",
    ):
        placing.move_folder(source, destination)
    assert tree(tmp_path) == ["1", "source"]


def test_moved_folder_has_the_permissions_that_it_was_made_with(tmp_path):
    before = os.umask(0o027)
    try:
        with placing.written_aside(tmp_path / "model" / "1") as aside:
            (aside / "model").mkdir()
            placing.move_folder(aside / "model", tmp_path / "model" / "1")
    finally:
        os.umask(before)
    for path in (tmp_path / "model", tmp_path / "model" / "1"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o750


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


def test_next_version_of_a_folder_that_is_not_there(tmp_path):
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
