"""Artefacts appear complete or not at all, and replace nothing of others."""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator

from rich.filesize import decimal

from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.export.options import ServingOptions
from cbnn_keras.export.verify import Parity
from cbnn_keras.runs.outputs import check_output
from cbnn_keras.support import files, locks
from cbnn_keras.support.failures import failures_explained
from cbnn_keras.support.faults import RunError

# The first line of every configuration that an export writes.
MARK = "# Written by cbnn export."
_PREFIX = ".cbnn-export-"
_OLD = 24 * 60 * 60  # seconds: no export takes a day


def check_allowed(
    ensemble: CheckpointEnsemble,
    options: ServingOptions,
    destination: pathlib.Path,
) -> None:
    """Refuses an export, before any work, that would harm or mislead.

    Args:
        ensemble: What is to be exported.
        options: What the export was told.
        destination: What it is going to write.

    Raises:
        RunError: If the destination is in the directory of a run, or if the
            ensemble's run is not finished and that was not allowed.
    """
    check_output(destination)
    run = ensemble.run
    if run.is_finished or options.allow_unfinished:
        return
    name = getattr(run, "path", "The run")
    num = len(ensemble)
    raise RunError(
        f"{name} is not finished: it has {num} member{'' if num == 1 else 's'} "
        "so far, and training has been interrupted or still goes on. Resume "
        "it with CBNNCallback(directory, resume=True), or export what is "
        "there with allow_unfinished=True (--allow-unfinished)."
    )


@dataclasses.dataclass(frozen=True)
class Artefact:
    """What an export wrote.

    Attributes:
        path: Where it is.
        num_bytes: Its size, with files that belong to it.
        parity: How close it is to the Keras ensemble.
    """

    path: pathlib.Path
    num_bytes: int
    parity: Parity

    def __str__(self) -> str:
        return f"{self.path}: {decimal(self.num_bytes)}, {self.parity}."


@contextlib.contextmanager
def written_aside(destination: pathlib.Path) -> Iterator[pathlib.Path]:
    """A directory beside a destination, to write to before a rename.

    It is removed in the end, and so are directories above it that had to be
    made and are empty. It is hidden and its name is no number, so that servers
    that watch for versions do not see it. What exports that were killed left
    there is swept up.

    Raises:
        RunError: If a file is where a directory has to be.
        OSError: If something cannot be written; says that nothing was changed.
    """
    parent = destination.parent
    for path in (parent, *parent.parents):
        if path.exists() and not path.is_dir():
            raise RunError(
                f"{path} is a file, so {destination} cannot be there. Choose "
                "another path."
            )
    made = [p for p in (parent, *parent.parents) if not p.exists()]
    with failures_explained(destination):
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _sweep(parent)
            with tempfile.TemporaryDirectory(
                prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True
            ) as directory:
                aside = pathlib.Path(directory)
                locks.try_lock(aside)  # as long as this process lives
                try:
                    yield aside
                finally:
                    locks.unlock(aside)
        finally:
            for path in made:
                with contextlib.suppress(OSError):  # not empty: it is in use
                    path.rmdir()


def _sweep(parent: pathlib.Path) -> None:
    """Removes what exports left that were killed.

    Only directories of their names that are old and that nobody holds; links
    are neither followed nor removed.
    """
    for path in parent.glob(f"{_PREFIX}*"):
        if not re.fullmatch(re.escape(_PREFIX) + r"[a-z0-9_]{8}", path.name):
            continue
        with contextlib.suppress(OSError):  # it is no harm if it stays
            found = path.lstat()
            is_old = time.time() - found.st_mtime > _OLD
            if not (stat.S_ISDIR(found.st_mode) and is_old):
                continue
            if locks.try_lock(path):
                try:
                    shutil.rmtree(path)
                finally:
                    locks.unlock(path)


def move_directory(source: pathlib.Path, destination: pathlib.Path) -> None:
    """Renames a directory to where none is.

    Raises:
        RunError: If there is something, be it a link to nowhere.
    """
    if os.path.lexists(destination):
        raise RunError(
            f"{destination} is there already. Give the directory above it to "
            "get the next version."
        )
    source.rename(destination)


@contextlib.contextmanager
def prepared(texts: dict[pathlib.Path, str]) -> Iterator[Callable[[], None]]:
    """Text files, in UTF-8, that are written and only have to be renamed.

    What can fail, such as a full disk or a name that is not Unicode, fails
    before anything is changed.

    Args:
        texts: The content of each file.

    Yields:
        A function that puts the files in their places, in order. What it was
        not called for is removed.
    """
    temporary = {path: path.with_name(f".{path.name}.new") for path in texts}

    def put_in_place() -> None:
        for path, source in temporary.items():
            os.replace(source, path)

    try:
        for path, text in texts.items():
            # As bytes: neither the locale nor the system changes them.
            files.write_new(temporary[path], text.encode())
        yield put_in_place
    finally:
        for source in temporary.values():
            source.unlink(missing_ok=True)


def check_replaceable(path: pathlib.Path, mark: str = MARK) -> None:
    """Raises a `RunError` if a file is not one that an export may replace.

    Args:
        path: The file, there or not.
        mark: What it begins with if an export wrote it.
    """
    check_output(path)
    is_file = path.is_file() and not path.is_symlink()
    if os.path.lexists(path) and not (is_file and _is_marked(path, mark)):
        raise RunError(
            f"{path} was not written by `cbnn export` and is left alone. "
            "Move it away, or add the model to it yourself."
        )


def _is_marked(path: pathlib.Path, mark: str) -> bool:
    with files.open_regular(path) as file:
        return file.read(len(mark)) == mark.encode()


def next_version(directory: pathlib.Path) -> pathlib.Path:
    """The directory of the version after the last; versions are numbers."""
    numbers = [
        int(path.name) for path in directory.glob("*") if path.name.isdecimal()
    ]
    return directory / str(max(numbers, default=0) + 1)


def num_bytes(path: pathlib.Path) -> int:
    """The size of a file, or of all files in a directory."""
    if path.is_file():
        return path.stat().st_size
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
