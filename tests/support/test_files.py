"""Tests of files that are all there or not there, and that prove it."""

import hashlib
import os
import re

import pytest
from disks import small_disk

from cbnn_keras.support import files


@pytest.fixture
def saved(tmp_path):
    """A file and what its fingerprint has to be."""
    path = tmp_path / "data.bin"
    content = bytes(range(256)) * 1000  # more than one read of a buffer
    path.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    return path, files.Fingerprint(bytes=256_000, sha256=digest)


def named(path, text):
    """A pattern for a message that starts with the path."""
    return f"^{re.escape(str(path))} {text}"


# --- Fingerprints ---


def test_fingerprint_is_size_and_sha256(saved):
    path, expected = saved
    assert files.fingerprint(path) == expected


def test_fingerprint_of_nothing(tmp_path):
    path = tmp_path / "empty"
    path.touch()
    assert files.fingerprint(path) == files.Fingerprint(
        bytes=0,
        # The well-known digest of no bytes at all.
        sha256="e3b0c44298fc1c149afbf4c8996fb924"
        "27ae41e4649b934ca495991b7852b855",
    )


def test_unchanged_file_passes_until_it_changes(saved):
    path, expected = saved
    files.check_fingerprint(path, expected)
    content = bytearray(path.read_bytes())
    content[128_000] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=named(path, "is not what was saved")):
        files.check_fingerprint(path, expected)


def test_missing_file_is_named(saved):
    path, expected = saved
    path.unlink()
    with pytest.raises(ValueError, match=named(path, "is missing, though")):
        files.check_fingerprint(path, expected)


def test_directory_in_place_of_a_file_is_named(saved):
    path, expected = saved
    path.unlink()
    path.mkdir()
    with pytest.raises(ValueError, match=named(path, "is not a file")):
        files.check_fingerprint(path, expected)


@pytest.mark.parametrize("size", [0, 255_999, 256_001])
def test_file_of_another_size_is_named(saved, size):
    path, expected = saved
    content = path.read_bytes() + b"!"
    path.write_bytes(content[:size])
    message = named(path, f"has {size} bytes, the manifest says 256000: ")
    with pytest.raises(ValueError, match=message):
        files.check_fingerprint(path, expected)


# --- Text that is replaced as a whole ---


def test_text_is_written_and_replaced(tmp_path):
    path = tmp_path / "manifest.json"
    for content in ("one\n", "Größe \N{SNOWMAN}\n"):
        files.replace_text(path, content)
        assert path.read_bytes() == content.encode("utf-8")
    assert os.listdir(tmp_path) == ["manifest.json"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_crash_leaves_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "manifest.json"
    files.replace_text(path, "old")

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, call, crash)
        with pytest.raises(KeyboardInterrupt):
            files.replace_text(path, "new")
    assert path.read_text() == "old"
    # What the crash left behind does not disturb the next attempt.
    files.replace_text(path, "newer")
    assert path.read_text() == "newer"
    assert os.listdir(tmp_path) == ["manifest.json"]


def test_new_file_is_on_disk_before_it_takes_the_place_of_the_old(
    tmp_path, monkeypatch
):
    calls = []
    real_replace = os.replace

    def replace(source, target):
        calls.append("replace")
        real_replace(source, target)

    monkeypatch.setattr(files, "fsync", lambda path: calls.append(path.name))
    monkeypatch.setattr(os, "replace", replace)
    files.replace_text(tmp_path / "m.json", "")
    assert calls == ["m.json.new", "replace", tmp_path.name]


def test_fsync_reaches_the_disk_and_closes_what_it_opened(
    tmp_path, monkeypatch
):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    for _ in range(3):
        files.fsync(tmp_path)
    # The same number again and again: it was free again each time.
    assert len(synced) == 3 and len(set(synced)) == 1


# --- Links, pipes and names that are taken ---


def test_new_file_does_not_write_through_a_link(tmp_path):
    (tmp_path / "elsewhere").write_text("precious")
    path = tmp_path / "m.json"
    path.symlink_to(tmp_path / "elsewhere")
    found = files.write_new(path, b"new")
    assert (tmp_path / "elsewhere").read_text() == "precious"
    assert path.read_bytes() == b"new" and not path.is_symlink()
    assert found == files.fingerprint(path)


def test_new_file_leaves_other_names_of_the_old_one_alone(tmp_path):
    (tmp_path / "elsewhere").write_text("precious")
    os.link(tmp_path / "elsewhere", tmp_path / "m.json")
    files.write_new(tmp_path / "m.json", b"new")
    assert (tmp_path / "elsewhere").read_text() == "precious"


def test_replacing_does_not_write_through_a_link(tmp_path):
    """Of the temporary name, which everybody can guess."""
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / "m.json.new").symlink_to(tmp_path / "elsewhere")
    files.replace_text(tmp_path / "m.json", "new")
    assert (tmp_path / "elsewhere").read_text() == "precious"
    assert (tmp_path / "m.json").read_text() == "new"


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda path: path.symlink_to("/etc/hostname"), "is a link. Files of"),
        (lambda path: os.mkfifo(path), "is not a file"),
        (lambda path: path.mkdir(), "is not a file"),
        (lambda path: None, "cannot be opened: No such file"),
    ],
    ids=["link", "pipe", "directory", "missing"],
)
def test_only_files_are_opened(tmp_path, make, text):
    path = tmp_path / "a.npy"
    make(path)
    with pytest.raises(files.RunError, match=named(path, text)):
        files.open_regular(path)


def test_links_in_a_directory_are_named(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "link").symlink_to(run)
    (run / "rounds").mkdir()
    files.check_no_links(tmp_path / "link", ["rounds", "members"])
    (run / "members").symlink_to(tmp_path / "nowhere")
    with pytest.raises(files.RunError, match="run/members is a link, which"):
        files.check_no_links(run, ["rounds", "members"])


def test_a_full_disk_leaves_the_old_file_alone(tmp_path):
    with small_disk(tmp_path / "disk", 8) as disk:
        (disk / "a").write_bytes(b"old")
        with pytest.raises(OSError, match="No space left on device"):
            files.replace_bytes(disk / "a", bytes(10**5))
        assert [path.name for path in disk.iterdir()] == ["a"]
        assert (disk / "a").read_bytes() == b"old"
