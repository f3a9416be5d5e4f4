"""Artefacts appear complete or not at all, and replace nothing of others."""

import contextlib
import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator

from rich.filesize import decimal

from cbnn_keras.export.verify import Parity

# The first line of every configuration that an export writes.
MARK = "# Written by cbnn export."


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
    that watch for versions do not see it.
    """
    parent = destination.parent
    for path in (parent, *parent.parents):
        if path.exists() and not path.is_dir():
            raise ValueError(
                f"{path} is a file, so {destination} cannot be there. Choose "
                "another path."
            )
    made = [p for p in (parent, *parent.parents) if not p.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(
            prefix=".cbnn-export-", dir=parent, ignore_cleanup_errors=True
        ) as directory:
            yield pathlib.Path(directory)
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # not empty: it is in use
                path.rmdir()


def move_directory(source: pathlib.Path, destination: pathlib.Path) -> None:
    """Renames a directory to where none is.

    Raises:
        ValueError: If there is something.
    """
    if destination.exists():
        raise ValueError(
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
            temporary[path].write_bytes(text.encode())
        yield put_in_place
    finally:
        for source in temporary.values():
            source.unlink(missing_ok=True)


def check_replaceable(path: pathlib.Path) -> None:
    """Raises a `ValueError` if a file is not one that an export wrote."""
    is_ours = path.is_file() and path.read_bytes().startswith(MARK.encode())
    if path.exists() and not is_ours:
        raise ValueError(
            f"{path} was not written by `cbnn export` and is left alone. "
            "Move it away, or add the model to it yourself."
        )


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
