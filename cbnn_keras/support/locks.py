"""Keeps other processes out of a directory while one writes to it."""

import contextlib
import errno
import os
import pathlib
import warnings
from collections.abc import Iterator

from cbnn_keras.support.faults import RunError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_locks: dict[pathlib.Path, int] = {}


def _forget_all() -> None:
    """Lets a forked child go without the locks of its parent.

    A lock belongs to whoever has the file open: a child that kept it open
    would keep the lock of a trainer that has died.
    """
    for descriptor in _locks.values():
        os.close(descriptor)
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def lock(directory: pathlib.Path) -> bool:
    """Keeps other processes from writing to a directory.

    Until `unlock` or the end of this process, however it ends. Within the
    process it can be taken again: a script that failed and is started anew in
    the same session is not in its own way. A forked child does not have it.
    Where the system or the file system has no locks, that is said once.

    Returns:
        Whether it was not this process's already: then it is for the caller to
        release it if nothing comes of the work.

    Raises:
        RunError: If another process has it.
    """
    if fcntl is None:
        _warn_once(directory, "the system has none")
        return False
    key = directory.resolve()
    descriptor = os.open(key, os.O_RDONLY)  # the directory itself
    held = _locks.get(key)
    if held is not None:
        if os.path.sameopenfile(held, descriptor):
            os.close(descriptor)
            return False
        unlock(directory)  # of a directory that was there before this one
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            _warn_once(directory, os.strerror(error.errno or 0))
            return False
        raise RunError(
            f"{directory} is in use: another process is training in it. Wait "
            "until it has ended, or choose another directory."
        ) from None
    _locks[key] = descriptor
    return True


@contextlib.contextmanager
def kept_on_success(directory: pathlib.Path) -> Iterator[None]:
    """`lock`, released again if what is done with it fails."""
    is_new = lock(directory)
    try:
        yield
    except BaseException:
        if is_new:
            unlock(directory)
        raise


@contextlib.contextmanager
def held(directory: pathlib.Path) -> Iterator[None]:
    """`lock`, released in the end unless it was this process's already."""
    is_new = lock(directory)
    try:
        yield
    finally:
        if is_new:
            unlock(directory)


def unlock(directory: pathlib.Path) -> None:
    descriptor = _locks.pop(directory.resolve(), None)
    if descriptor is not None:
        os.close(descriptor)


def try_lock(directory: pathlib.Path) -> bool:
    """Takes the lock of a directory if it can be had, and says whether.

    For work that is done without a lock where there are none, and for what is
    left alone unless nobody has it. Links are not followed.
    """
    if fcntl is None:
        return False
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        descriptor = os.open(directory, flags)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    _locks[directory.resolve()] = descriptor
    return True


_has_warned = False


def _warn_once(directory: pathlib.Path, reason: str) -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        warnings.warn(
            f"{directory} cannot be locked ({reason}): see to it yourself that "
            "no second process trains in it.",
            stacklevel=3,
        )
