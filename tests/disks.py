"""Disks that are full after a few kilobytes."""

import contextlib
import subprocess

import pytest


@contextlib.contextmanager
def small_disk(directory, num_kilobytes):
    """A disk of that size in a directory, which needs the right to mount."""
    directory.mkdir(exist_ok=True)
    size = f"size={num_kilobytes}k"
    mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(directory)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"small disks cannot be mounted here: {error}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)
