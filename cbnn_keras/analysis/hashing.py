"""Hashes of arrays by what is in them, for files that keep results."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np


class Digest(Protocol):
    """What the objects of `hashlib` have."""

    def update(self, data: bytes, /) -> None: ...


def update(digest: Digest, structure: Any) -> None:
    """Feeds arrays to a hash: type, shape and content of each.

    Equal contents give equal hashes in every process. That takes care with
    strings, which an array holds as objects, its bytes being addresses.

    Args:
        digest: A hash of `hashlib`.
        structure: An array, or dicts, lists and tuples of them. Dicts are read
            in the order of their sorted keys, which count too.

    Example:

    >>> import hashlib
    >>> def hashed(structure):
    ...     digest = hashlib.sha256()
    ...     update(digest, structure)
    ...     return digest.hexdigest()[:8]
    >>> hashed(np.array(["a", "b"], object)), hashed({"x": np.zeros(2)})
    ('6ad36a5c', '9d14ed4a')
    """
    if isinstance(structure, Mapping):
        for key in sorted(structure, key=repr):
            digest.update(repr(key).encode())
            update(digest, structure[key])
    elif isinstance(structure, (list, tuple)):
        for part in structure:
            update(digest, part)
    else:
        _update_array(digest, np.asarray(structure))


def _update_array(digest: Digest, array: np.ndarray) -> None:
    digest.update(f"{array.dtype} {array.shape}".encode())
    if not array.dtype.hasobject:
        digest.update(array.tobytes())
        return
    for value in array.ravel().tolist():
        if isinstance(value, np.ndarray):
            _update_array(digest, value)
        else:
            # With its length: what follows must not look like a part of it.
            content = repr(value).encode()
            digest.update(f" {len(content)} ".encode() + content)
