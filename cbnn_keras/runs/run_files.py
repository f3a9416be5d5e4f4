"""The files of a run directory: written once, listed, never through links."""

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np

from cbnn_keras.runs import arrays
from cbnn_keras.runs.manifest import (
    MODEL,
    OWN_DISTRIBUTION,
    SUFFIXES,
    Manifest,
)
from cbnn_keras.runs.manifest_json import MANIFEST, holds_manifest
from cbnn_keras.support import files
from cbnn_keras.support.faults import RunError, faults_named
from cbnn_keras.support.files import Fingerprint

_UNFINISHED = f"unfinished-{MODEL}"  # older versions leave it when killed
# What may be in a run directory, beside what is in its directories.
_NAMES = (
    *(MANIFEST, f"{MANIFEST}.new", MODEL, _UNFINISHED, OWN_DISTRIBUTION),
    *SUFFIXES,
)


class RunFiles:
    """What a run directory holds beside its manifest.

    Attributes:
        directory: The run directory.
        listed: Size and hash of each file, by its name: what the next manifest
            says.
    """

    def __init__(
        self, directory: pathlib.Path, listed: Mapping[str, Fingerprint]
    ) -> None:
        self.directory = directory
        self.listed = dict(listed)

    def path(self, name: str) -> pathlib.Path:
        """Where a file of the run is; refused if links lead there."""
        files.check_no_links(self.directory, {name.split("/")[0], name})
        return self.directory / name

    def check(self, name: str) -> pathlib.Path:
        """Raises a `RunError` unless a file is what the manifest says.

        Returns:
            Where it is.
        """
        path = self.path(name)
        files.check_fingerprint(path, self.listed[name])
        return path

    def are_among(self, others: Mapping[str, Fingerprint]) -> bool:
        """Whether all of these files are also in another list."""
        return all(others.get(k) == found for k, found in self.listed.items())

    @contextlib.contextmanager
    def read(self, name: str) -> Iterator[IO[bytes]]:
        """Opens a file; what is wrong in it is a `RunError`."""
        path = self.path(name)
        with files.open_regular(path) as file, faults_named(path):
            yield file

    def add(self, name: str, content: bytes | memoryview) -> None:
        """Writes a file, and lists it."""
        found = files.write_new(self.path(name), content)
        self._list(name, found)

    def add_array(self, name: str, array: np.ndarray) -> None:
        """Writes an `.npy` file, and lists it."""
        self.add(name, arrays.npy_bytes(array))

    def add_arrays(self, name: str, named: dict[str, np.ndarray]) -> None:
        """Writes an `.npz` file, and lists it."""
        options: Any = named  # for which the stubs of NumPy take the names
        # Not made in memory: it may be several times the size of the model.
        with files.created(self.path(name)) as file:
            np.savez(file, **options)
        self._list(name, files.fingerprint(self.path(name)))

    def make_directories(self) -> None:
        """Makes the directories of a run that are not there.

        Raises:
            RunError: If something else is in the place of one.
        """
        for name in SUFFIXES:
            path = self.path(name)
            if os.path.lexists(path) and not path.is_dir():
                raise RunError(
                    f"{path} is no directory, but a run keeps files in it. "
                    "Restore the run, or choose another directory."
                )
            path.mkdir(exist_ok=True)

    def sweep(self) -> None:
        """Removes files of ours that are not listed."""
        for kind, suffix in SUFFIXES.items():
            for path in self.path(kind).glob(f"*{suffix}"):
                number = path.name.removesuffix(suffix)
                is_ours = re.fullmatch("[0-9]+", number)
                if is_ours and f"{kind}/{path.name}" not in self.listed:
                    path.unlink()
        (self.directory / _UNFINISHED).unlink(missing_ok=True)

    def _list(self, name: str, found: Fingerprint) -> None:
        files.fsync((self.directory / name).parent)
        self.listed[name] = found


def check_no_links(directory: pathlib.Path) -> None:
    """Raises a `RunError` if a part of a run directory is a link."""
    files.check_no_links(directory, _NAMES)


def holds_run(path: pathlib.Path | None) -> bool:
    """Whether there is a manifest in a directory, if there is one."""
    return path is not None and holds_manifest(path)


def check_is_directory(path: pathlib.Path) -> None:
    """Raises a `RunError` if something else is there."""
    if os.path.lexists(path) and not path.is_dir():
        raise RunError(
            f"{path} is a file; a run needs a directory. Choose another name."
        )


def check_available(
    path: pathlib.Path,
    *,
    overwrite: bool = False,
    restart: bool = False,
    advice: str = "Choose another directory.",
) -> None:
    """Raises a `RunError` unless a run may be started in `path`.

    Args:
        path: The directory, which need not be there.
        overwrite: Whether a run that is there may be removed.
        restart: Whether a run that is there may be removed if it has nothing to
            be resumed from.
        advice: What to do about a run that is there.
    """
    check_is_directory(path)
    check_no_links(path)
    if holds_run(path):
        if overwrite or restart:
            manifest = Manifest.read(path)  # raises if it is not ours
            is_kept = manifest.is_finished or manifest.state is not None
            if overwrite or not is_kept:
                return
        raise RunError(
            f"{path} already holds a run, which is never overwritten by "
            f"itself. {advice}"
        )
    names = (MODEL, OWN_DISTRIBUTION, *SUFFIXES)
    taken = [name for name in names if (path / name).exists()]
    if taken:
        raise RunError(
            f"{path} has no {MANIFEST}, but {', '.join(taken)}, which a run "
            "would overwrite. Choose another directory."
        )
