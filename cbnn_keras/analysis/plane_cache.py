"""Losses of a plane that took long to compute, in a file."""

import contextlib
import io
import os
import pathlib
import zipfile

import numpy as np

from cbnn_keras.boosting import Floats
from cbnn_keras.support import files

# Another number whenever the same arguments give other values.
FORMAT = "cbnn_keras loss plane 2"


class PlaneCache:
    """A file with the values so far, and with nothing of anybody else's.

    Args:
        path: The file, or None for no file.
        key: A hash of all that decides on the values.
    """

    def __init__(self, path: str | os.PathLike[str] | None, key: str) -> None:
        self._path = None if path is None else pathlib.Path(path)
        self._key = key
        if self._path is not None and not self._path.parent.is_dir():
            raise ValueError(
                f"loss_plane(cache={str(path)!r}): there is no directory "
                f"{self._path.parent}. Create it, or give another path."
            )

    def read(self) -> Floats:
        """The values that are there, shape `(num_done, 3)`."""
        if self._path is None or not self._path.exists():
            return np.zeros((0, 3))
        content = _arrays(self._path)
        if str(content.get("format")) != FORMAT:
            raise ValueError(
                f"loss_plane(cache={str(self._path)!r}): the file is there and "
                "is no loss plane of this version, or damaged. It was left as "
                "it is: delete it, or give another path."
            )
        if str(content["key"]) != self._key:
            raise ValueError(
                f"loss_plane(cache={str(self._path)!r}): the file holds a loss "
                "plane of other members, data or arguments. It was left as it "
                "is: delete it, or give another path."
            )
        return content["values"]

    def write(self, values: Floats) -> None:
        """Leaves the old file or the new one, whatever happens."""
        if self._path is None:
            return
        content = io.BytesIO()
        np.savez(content, format=FORMAT, key=self._key, values=values)
        files.replace_bytes(self._path, content.getvalue())


def _arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file; none if it is not one."""
    damaged = (OSError, EOFError, ValueError, zipfile.BadZipFile)
    # Opened here: NumPy leaves a file open that turns out to be damaged.
    with contextlib.suppress(*damaged), path.open("rb") as file:
        content = np.load(file, allow_pickle=False)
        if isinstance(content, np.lib.npyio.NpzFile):
            return dict(content)
    return {}
