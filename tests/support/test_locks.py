"""Locks belong to one process, and to none that it forks."""

import errno
import os
import warnings

import pytest

from cbnn_keras import RunError
from cbnn_keras.support import locks


@pytest.fixture
def locked(tmp_path):
    locks.lock(tmp_path)
    yield tmp_path
    locks.unlock(tmp_path)


def in_child(act):
    """The exit code of a forked child that only does this."""
    with warnings.catch_warnings():
        # Of forking beside threads: the child calls nothing that needs them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        code = 1
        try:
            code = act()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def is_refused(directory):
    try:
        locks.lock(directory)
    except RunError as error:
        return 7 if "is in use: another process" in str(error) else 8
    return 0


def test_a_lock_can_be_taken_again_in_the_same_process(locked):
    locks.lock(locked)


def test_a_forked_child_does_not_pass_as_its_parent(locked):
    assert in_child(lambda: is_refused(locked)) == 7


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    """As when a trainer dies and a worker that it forked lives on."""
    locks.lock(tmp_path)
    ready, release = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os.write(ready[1], b"!")
        os.read(release[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    try:
        locks.unlock(tmp_path)  # as if this process had ended
        assert in_child(lambda: is_refused(tmp_path)) == 0
    finally:
        os.write(release[1], b"!")
        os.waitpid(child, 0)
        for descriptor in (*ready, *release):
            os.close(descriptor)


def test_no_locks_are_announced_once(tmp_path, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    monkeypatch.setattr(locks, "_has_warned", False)
    with pytest.warns(UserWarning, match=r"cannot be locked \(No locks avail"):
        locks.lock(tmp_path)
    locks.lock(tmp_path)  # warnings are errors: nothing is said again


def test_no_locks_on_the_system_are_announced(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setattr(locks, "_has_warned", False)
    with pytest.warns(UserWarning, match=r"\(the system has none\): see to it"):
        locks.lock(tmp_path)


def test_a_lock_that_can_be_had_or_not(tmp_path):
    assert locks.try_lock(tmp_path)
    assert in_child(lambda: int(locks.try_lock(tmp_path))) == 0
    locks.unlock(tmp_path)
    assert in_child(lambda: int(locks.try_lock(tmp_path))) == 1


def test_a_lock_of_what_is_no_directory(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link", "missing"):
        assert not locks.try_lock(tmp_path / name)
    monkeypatch.setattr(locks, "fcntl", None)
    assert not locks.try_lock(tmp_path)
