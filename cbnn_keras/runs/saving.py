"""A run that is put together elsewhere and appears as a whole or not at all."""

import contextlib
import errno
import os
import pathlib
import shutil
from collections.abc import Iterator

from cbnn_keras.runs.run_failures import run_failures_explained
from cbnn_keras.runs.run_files import check_available, check_is_directory
from cbnn_keras.support import files, locks
from cbnn_keras.support.faults import RunError

PREFIX = ".cbnn-save-"
_LONGEST_NAME = 100  # of the target, in the name of what is beside it
_IS_MOUNTED = (errno.EBUSY, errno.EXDEV)


@contextlib.contextmanager
def saved_whole(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """A directory to write a run to, which takes its place when it is complete.

    It is within a hidden one beside the target, which has the same name each
    time and is locked: what a kill left there is removed by whoever saves to
    the same target next, and by nobody while it is in use.

    Args:
        target: Missing, or an empty directory; links to one are followed.

    Raises:
        RunError: If there is something, or if another process saves there.
    """
    check_is_directory(target)
    target = target.resolve()
    aside = target.with_name(PREFIX + target.name[:_LONGEST_NAME])
    with run_failures_explained(target, "ensemble", "save it again"):
        _check_empty(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        files.check_no_links(target.parent, [aside.name])
        aside.mkdir(exist_ok=True)
        _lock(aside, target)
        run = aside / "run"
        try:
            _clear(aside)
            _check_empty(target)  # now that nobody else saves there
            yield run
            _place(run, target)
        finally:
            locks.unlock(run)  # which is only finished if all went well
            with contextlib.suppress(OSError):
                _clear(aside)
                aside.rmdir()
            locks.unlock(aside)


def check_free(target: pathlib.Path) -> None:
    """What `saved_whole` asks of its target, for those who have to work first.

    Raises:
        RunError: If there is something.
    """
    check_is_directory(target)
    _check_empty(target.resolve())


def _lock(aside: pathlib.Path, target: pathlib.Path) -> None:
    try:
        locks.lock(aside)
    except RunError:
        raise RunError(
            f"{target} is in use: another process is saving to it. Wait until "
            "it has ended, or choose another directory."
        ) from None


def _check_empty(target: pathlib.Path) -> None:
    check_available(target)
    if target.exists() and any(target.iterdir()):
        raise RunError(
            f"{target} is not empty, and an ensemble is saved as a whole. Give "
            "a new directory, or an empty one."
        )


def _clear(aside: pathlib.Path) -> None:
    for path in aside.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _place(run: pathlib.Path, target: pathlib.Path) -> None:
    files.fsync(run)
    _check_empty(target)
    try:
        os.replace(run, target)
    except OSError as error:
        if error.errno not in _IS_MOUNTED:
            raise
        raise RunError(
            f"{target} is where a disk is mounted, and nothing can take its "
            f"place. Give a new directory within it: {target / 'run'}."
        ) from error
    files.fsync(target.parent)
