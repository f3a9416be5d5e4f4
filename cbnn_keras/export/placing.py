"""Artefacts appear complete or not at all."""

import contextlib
import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator

from rich.filesize import decimal

from cbnn_keras.export.verify import Parity


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
    """A folder beside a destination, to write to before a rename.

    It is removed in the end, and so are folders above it that had to be made
    and are empty. It is hidden and its name is no number, so that servers that
    watch the place for versions do not see it.
    """
    parent = destination.parent
    for path in (parent, *parent.parents):
        if path.exists() and not path.is_dir():
            raise ValueError(
                f"{path} is a file, so {destination} cannot be there. Choose "
                "another place."
            )
    made = [p for p in (parent, *parent.parents) if not p.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(
            prefix=".cbnn-export-", dir=parent, ignore_cleanup_errors=True
        ) as folder:
            yield pathlib.Path(folder)
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # not empty: it is in use
                path.rmdir()


def next_version(folder: pathlib.Path) -> pathlib.Path:
    """The folder of the version after the last one; versions are numbers."""
    numbers = [
        int(path.name) for path in folder.glob("*") if path.name.isdecimal()
    ]
    return folder / str(max(numbers, default=0) + 1)


def num_bytes(path: pathlib.Path) -> int:
    """Size of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def move_folder(source: pathlib.Path, destination: pathlib.Path) -> None:
    """Renames a folder to where none is.

    Raises:
        ValueError: If there is something.
    """
    if destination.exists():
        raise ValueError(
            f"{destination} is there already. Give the folder above it to get "
            "the next version."
        )
    source.rename(destination)
