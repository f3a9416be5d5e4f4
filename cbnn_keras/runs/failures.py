"""What to do when a run cannot be written, by what the system says."""

import contextlib
import errno
import pathlib
from collections.abc import Iterator

from cbnn_keras.support.faults import RunError

_INTACT = "What it held before is intact: "
_ADVICE = {
    errno.ENOSPC: _INTACT + "make room",
    errno.EDQUOT: _INTACT + "make room, or have your quota raised",
    errno.EFBIG: _INTACT + "raise the limit on the size of files (`ulimit -f`)",
    errno.EMFILE: _INTACT + "raise the limit on open files (`ulimit -n`)",
    errno.ENFILE: _INTACT + "close programs that keep many files open",
    errno.EROFS: _INTACT + "make the disk writable again",
    errno.EACCES: _INTACT + "see to it that you may write there",
    errno.EPERM: _INTACT + "see to it that you may write there",
    errno.ENOENT: "The directory was deleted, moved or unmounted while it was "
    "in use: put it back",
    errno.ENOTDIR: "Something else was put in the directory's place: put it "
    "back",
}
_ADVICE[errno.ESTALE] = _ADVICE[errno.ENOENT]
_OTHER = _INTACT + "see to what the system says"


class ExplainedError(OSError):
    """A failure of the system, with advice; `__cause__` is the bare one."""


class CreationError(RunError, ExplainedError):
    """A directory in which no run can be started."""


@contextlib.contextmanager
def failures_explained(
    path: pathlib.Path,
    subject: str = "run",
    then: str = "resume it with `resume=True`",
) -> Iterator[None]:
    """Says what became of a run that could not be written, and what to do.

    Where several of these are around each other, the outermost speaks.

    Args:
        path: Where it was to be written.
        subject: What was to be written.
        then: What to do in the end.

    Raises:
        ExplainedError: With the number of the `OSError` that it explains.
    """
    try:
        yield
    except OSError as error:
        cause = _bare(error)
        advice = _ADVICE.get(cause.errno or 0, _OTHER)
        explained = ExplainedError(
            f"The {subject} in {path} could not be written: {cause}. "
            f"{advice}, and {then}."
        )
        explained.errno = cause.errno
        raise explained from cause


@contextlib.contextmanager
def creation_explained(path: pathlib.Path) -> Iterator[None]:
    """`failures_explained` for a run that is not there yet."""
    try:
        yield
    except OSError as error:
        cause = _bare(error)
        explained = CreationError(
            f"A run cannot be written to {path}: {cause}. Choose a directory "
            "that you may write to, with room in it."
        )
        explained.errno = cause.errno
        raise explained from cause


def _bare(error: OSError) -> OSError:
    if isinstance(error, ExplainedError):
        if isinstance(error.__cause__, OSError):
            return error.__cause__
    return error
