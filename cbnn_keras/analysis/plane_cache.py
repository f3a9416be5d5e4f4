"""Losses of a plane that took long to compute, in a file."""

import contextlib
import io
import os
import pathlib

import numpy as np

from cbnn_keras.boosting import Floats
from cbnn_keras.runs.outputs import check_output
from cbnn_keras.support import arrays, files
from cbnn_keras.support.failures import failures_explained

# Another number whenever the same arguments give other values.
FORMAT = "cbnn_keras loss plane 2"
_MAX_BYTES = 2**26  # a million points


class PlaneCache:
    """A file with the values so far, and with nothing of anybody else's.

    Args:
        path: The file, or None for no file.
        key: A hash of all that decides on the values.
    """

    def __init__(self, path: str | os.PathLike[str] | None, key: str) -> None:
        self._path = None if path is None else pathlib.Path(path)
        self._key = key
        if path is not None:
            check_output(path)
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
        values = content.get("values", np.zeros(0))
        is_plane = values.ndim == 2 and values.shape[1] == 3
        if str(content.get("format")) != FORMAT or not is_plane:
            raise ValueError(
                f"loss_plane(cache={str(self._path)!r}): the file is there and "
                "is no loss plane of this version, or damaged. It was left as "
                "it is: delete it, or give another path."
            )
        if str(content.get("key")) != self._key:
            raise ValueError(
                f"loss_plane(cache={str(self._path)!r}): the file holds a loss "
                "plane of other members, data or arguments. It was left as it "
                "is: delete it, or give another path."
            )
        return values.astype(np.float64)

    def write(self, values: Floats) -> None:
        """Leaves the old file or the new one, whatever happens."""
        if self._path is None:
            return
        content = io.BytesIO()
        np.savez(content, format=FORMAT, key=self._key, values=values)
        with failures_explained(self._path):
            files.replace_bytes(self._path, content.getvalue())


def _arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file; none if it is not one."""
    with contextlib.suppress(Exception):  # of bytes that someone else chose
        return arrays.read_npz(path, _MAX_BYTES)
    return {}
