"""Disks that are full at one file after the other."""

import os
import subprocess

import pytest
from processes import contents

pytestmark = pytest.mark.faults

NUM_SIZES = 13
PAGE = 4096  # what a file system in memory is divided into


def mount(path, num_bytes, *options):
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", *options]
        + ["tmpfs", path],
        check=True,
        capture_output=True,
    )


@pytest.fixture
def disk(tmp_path):
    """A file system of its own; a test says how large it is."""
    path = tmp_path / "disk"
    path.mkdir()
    try:
        mount(path, 2**20)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nothing can be mounted here: {error}")
    yield path
    subprocess.run(["umount", path], check=True)


def resize(path, num_bytes):
    options = ["-o", f"remount,size={num_bytes}"]
    subprocess.run(["mount", *options, path], check=True, capture_output=True)


def num_pages(files):
    return sum(-(-len(content) // PAGE) for content in files.values())


@pytest.mark.parametrize("number", range(NUM_SIZES))
def test_a_full_disk_is_explained_and_harms_nothing(
    disk, processes, whole, number
):
    # From what the first manifest needs to what the last file lacks.
    pages = 2 + number * (num_pages(whole) - 2) // NUM_SIZES
    resize(disk, pages * PAGE)
    ended = processes.run("train", disk / "run")
    assert ended.code == 0, f"signal {-ended.code}"
    kinds, message = ended.error
    assert {"OSError", "ValueError"} & set(kinds), ended.output
    assert str(disk / "run") in message
    # Said by `create`, and by what comes later.
    assert "could not be written" in message or "cannot be written" in message
    assert processes.run("check", disk / "run").error is None
    resize(disk, 2**20)
    again = processes.run("train", disk / "run")
    assert again.has_succeeded, again.output
    assert contents(disk / "run") == whole


def test_sizes_end_at_different_files(whole):
    """The sizes above cover the run, from its first file to its last."""
    assert num_pages(whole) - 2 >= NUM_SIZES
    assert os.sysconf("SC_PAGE_SIZE") == PAGE
