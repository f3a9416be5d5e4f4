"""Files that are either all there or not there, and that prove it."""

import dataclasses
import errno
import hashlib
import os
import pathlib

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_locks: dict[pathlib.Path, int] = {}


def lock(directory: pathlib.Path) -> None:
    """Keeps other processes from writing to a directory.

    Until `unlock` or the end of this process, however it ends. Within the
    process it can be taken again: a script that failed and is started anew in
    the same session is not in its own way. File systems without locks get none.

    Raises:
        ValueError: If another process has it.
    """
    if fcntl is None:
        return
    key = directory.resolve()
    descriptor = os.open(key, os.O_RDONLY)  # the directory itself
    held = _locks.get(key)
    if held is not None:
        if os.path.sameopenfile(held, descriptor):
            os.close(descriptor)
            return
        unlock(directory)  # of a directory that was there before this one
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            return
        raise ValueError(
            f"{directory} is in use: another process is training in it. Wait "
            "until it has ended, or choose another directory."
        ) from None
    _locks[key] = descriptor


def unlock(directory: pathlib.Path) -> None:
    descriptor = _locks.pop(directory.resolve(), None)
    if descriptor is not None:
        os.close(descriptor)


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
    temporary.write_bytes(content)
    fsync(temporary)
    os.replace(temporary, path)
    fsync(path.parent)


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
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Fingerprint(path.stat().st_size, digest)


def check_fingerprint(path: pathlib.Path, expected: Fingerprint) -> None:
    """Raises a `ValueError` that names the file if it is not as expected."""
    if not path.is_file():
        raise ValueError(
            f"{path} is missing, though the manifest lists it. Restore the "
            "file, or train again."
        )
    size = path.stat().st_size
    if size != expected.bytes:
        raise ValueError(
            f"{path} has {size} bytes, the manifest says {expected.bytes}: "
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
