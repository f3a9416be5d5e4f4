"""Files that are either all there or not there, and that prove it."""

import hashlib
import json
import os
import pathlib
from typing import Any


def fsync(path: pathlib.Path) -> None:
    """Waits until a file or directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_json(path: pathlib.Path, content: Any) -> None:
    """Writes JSON so that a crash leaves the old file or the new one."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    fsync(temporary)
    os.replace(temporary, path)
    fsync(path.parent)


def fingerprint(path: pathlib.Path) -> dict[str, Any]:
    """Size and sha256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def check_fingerprint(path: pathlib.Path, expected: dict[str, Any]) -> None:
    """Raises a `ValueError` that names the file if it is not as expected."""
    if not path.is_file():
        raise ValueError(
            f"{path} is missing, though the manifest lists it. Restore the "
            "file, or train again."
        )
    size = path.stat().st_size
    if size != expected["bytes"]:
        raise ValueError(
            f"{path} has {size} bytes, the manifest says {expected['bytes']}: "
            "the file is truncated or not the one that was saved. Restore it, "
            "or train again."
        )
    if fingerprint(path) != expected:
        raise ValueError(
            f"{path} is not what was saved: its sha256 differs from the "
            "manifest's. Restore the file, or train again."
        )


def path_within(directory: pathlib.Path, name: str) -> pathlib.Path:
    """`directory / name`, refused if it leads out of the directory."""
    path = directory / name
    if not path.resolve().is_relative_to(directory.resolve()):
        raise ValueError(
            f"{directory / 'manifest.json'} names {name!r}, which is outside "
            "the run directory. Do not load this run unless you know who made "
            "it."
        )
    return path
