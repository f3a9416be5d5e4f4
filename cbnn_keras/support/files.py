"""Files that are either all there or not there, and that prove it."""

import contextlib
import dataclasses
import errno
import hashlib
import io
import os
import pathlib
import stat
from collections.abc import Iterable, Iterator
from concurrent import futures
from typing import IO

from cbnn_keras.support.faults import RunError

# What a file or a run from elsewhere may take, unless its user says more.
MAX_BYTES = 4 * 2**30
# Windows has neither; there, names that are links are found by
# `check_no_links`.
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)


def fsync(path: pathlib.Path) -> None:
    """Waits until a file or directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_text(path: pathlib.Path, content: str) -> None:
    """`replace_bytes` with text in UTF-8."""
    replace_bytes(path, content.encode())


def replace_bytes(path: pathlib.Path, content: bytes) -> None:
    """Writes a file so that a crash leaves the old one or the new one."""
    temporary = path.with_name(path.name + ".new")
    try:
        write_new(temporary, content)
        os.replace(temporary, path)
    except BaseException:  # a full disk, an interruption
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)


@contextlib.contextmanager
def created(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """A file to write that nobody lists yet; in the end it is on the disk.

    What a crash left under the name is removed first, so that nothing is ever
    written through a link or into a file that has another name elsewhere.
    """
    path.unlink(missing_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_FOLLOW
    with os.fdopen(os.open(path, flags, 0o666), "w+b") as file:
        yield file
    fsync(path)


def write_new(path: pathlib.Path, content: bytes | memoryview) -> "Fingerprint":
    """Writes a file that nobody lists yet, as `created` does.

    Returns:
        The file's size and hash.
    """
    with futures.ThreadPoolExecutor(1) as pool:
        # Meanwhile: one computes, the other waits for the disk.
        digest = pool.submit(hashlib.sha256, content)
        with created(path) as file:
            file.write(content)
    return Fingerprint(len(content), digest.result().hexdigest())


def open_regular(path: pathlib.Path) -> io.BufferedReader:
    """Opens a file to read it; links, pipes and devices are refused.

    Raises:
        RunError: If it is not a file, or cannot be opened.
    """
    try:
        # A pipe would be waited for, for ever.
        descriptor = os.open(path, os.O_RDONLY | _NO_FOLLOW | _NO_WAITING)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RunError(
                f"{path} is a link. Files of a run are no links: put the file "
                "itself there, and do not load this run unless you know who "
                "made it."
            ) from None
        raise RunError(f"{path} cannot be opened: {error.strerror}.") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RunError(f"{path} is not a file. Restore the file.")
    return os.fdopen(descriptor, "rb")


def check_no_links(directory: pathlib.Path, names: Iterable[str]) -> None:
    """Raises a `RunError` if one of these names in a directory is a link.

    The directory itself may be one: that is its user's own choice.
    """
    for name in names:
        if os.path.islink(directory / name):
            raise RunError(
                f"{directory / name} is a link, which leads out of the run. "
                "Put the files themselves there, and do not use this run "
                "unless you know who made it."
            )


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """Size and hash of a file.

    Attributes:
        bytes: The size.
        sha256: The hash, in hexadecimal digits.
    """

    bytes: int
    sha256: str


def fingerprint(path: pathlib.Path) -> Fingerprint:
    """Size and sha256 of a file."""
    with open_regular(path) as file:
        return _fingerprint(file)


def _fingerprint(file: io.BufferedReader) -> Fingerprint:
    size = os.fstat(file.fileno()).st_size
    return Fingerprint(size, hashlib.file_digest(file, "sha256").hexdigest())


def check_fingerprint(path: pathlib.Path, expected: Fingerprint) -> None:
    """Raises a `RunError` that names the file if it is not as expected."""
    if not os.path.lexists(path):
        raise RunError(
            f"{path} is missing, though the manifest lists it. Restore the "
            "file, or train again."
        )
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != expected.bytes:
            raise RunError(
                f"{path} has {size} bytes, the manifest says "
                f"{expected.bytes}: the file is truncated or not the one that "
                "was saved. Restore it, or train again."
            )
        if _fingerprint(file) != expected:
            raise RunError(
                f"{path} is not what was saved: its sha256 differs from the "
                "manifest's. Restore the file, or train again."
            )
