"""Where an output may go: not over a run, and not over what is read."""

import os
import pathlib
from collections.abc import Iterable

from cbnn_keras.runs.manifest import SUFFIXES
from cbnn_keras.runs.manifest_json import MANIFEST
from cbnn_keras.support.faults import RunError
from cbnn_keras.support.files import open_regular

# How much of a manifest is read to tell whether it is one of ours.
_HEAD_BYTES = 4096


def check_output(
    path: str | os.PathLike[str],
    inputs: Iterable[str | os.PathLike[str]] = (),
) -> None:
    """Refuses an output that would change a run or replace an input.

    To be called before any work. Names are followed as the system would follow
    them, so that neither `..` nor a link leads around it.

    Args:
        path: What is about to be written, there already or not.
        inputs: Files that are read, and are not to be replaced.

    Raises:
        RunError: If the path is in a run's directory, at any depth, is a link
            into one, or is one of the inputs.
    """
    run = run_around(path)
    if run is not None:
        raise RunError(
            f"{path} is inside the run {run}, which is not to be touched. "
            "Choose another directory."
        )
    for given in inputs:
        if is_same(path, given):
            raise RunError(
                f"{path} is read as an input, and is not replaced. Choose "
                "another name for the output."
            )


def run_around(path: str | os.PathLike[str]) -> pathlib.Path | None:
    """The directory of the run that a path is in, or None."""
    given = pathlib.Path(path)
    # As it is written, where its directory is, and where it leads if it is a
    # link: each can be in a run while the others are not.
    ways = (
        os.path.abspath(given),
        os.path.join(os.path.realpath(given.parent), given.name),
        os.path.realpath(given),
    )
    for way in ways:
        for directory in pathlib.Path(way).parents:
            if is_run(directory):
                return directory
    return None


def is_run(directory: pathlib.Path) -> bool:
    """Whether a directory holds a run of ours, be it a damaged one."""
    manifest = directory / MANIFEST
    if not os.path.lexists(manifest):
        return False
    # Others have a `manifest.json` too, such as every web application.
    if any(os.path.lexists(directory / name) for name in SUFFIXES):
        return True
    try:
        with open_regular(manifest) as file:
            return b'"format_version"' in file.read(_HEAD_BYTES)
    except (OSError, RunError):
        return True  # better refused than lost


def is_same(
    path: str | os.PathLike[str], other: str | os.PathLike[str]
) -> bool:
    """Whether two paths lead to one file."""
    if os.path.realpath(path) == os.path.realpath(other):
        return True
    try:  # where upper and lower case are the same, or of hard links
        return os.path.samefile(path, other)
    except OSError:
        return False
