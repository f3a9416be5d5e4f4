"""What to do when something cannot be written, by what the system says."""

import contextlib
import errno
import os
from collections.abc import Iterator

from cbnn_keras.support.faults import shortened

_ADVICE = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room, or have your quota raised",
    errno.EFBIG: "raise the limit on the size of files (`ulimit -f`)",
    errno.EMFILE: "raise the limit on open files (`ulimit -n`)",
    errno.ENFILE: "close programs that keep many files open",
    errno.EROFS: "make the disk writable again",
    errno.EACCES: "see to it that you may write there",
    errno.EPERM: "see to it that you may write there",
}
_DELETED = (
    "The directory was deleted, moved or unmounted while it was in use: put it "
    "back"
)
_GONE = {
    errno.ENOENT: _DELETED,
    errno.ESTALE: _DELETED,
    errno.ENOTDIR: "Something else was put in the directory's place: put it "
    "back",
}


class ExplainedError(OSError):
    """A failure of the system, with advice; `__cause__` is the bare one."""


@contextlib.contextmanager
def failures_explained(
    path: str | os.PathLike[str],
    *,
    what: str | None = None,
    intact: str = "Nothing was changed there",
    then: str = "try again",
) -> Iterator[None]:
    """Says of what could not be written what is left, and what to do.

    Where several of these are around each other, the outermost speaks.

    Args:
        path: What is being written.
        what: What to call it. Defaults to the path.
        intact: What is left, as a sentence without its full stop.
        then: What to do in the end.

    Raises:
        ExplainedError: With the number of the `OSError` that it explains.
    """
    try:
        yield
    except BrokenPipeError:  # of a terminal, and not of a file
        raise
    except OSError as error:
        cause = bare(error)
        number = cause.errno or 0
        advice = _GONE.get(
            number,
            f"{intact}: {_ADVICE.get(number, 'see to what the system says')}",
        )
        explained = ExplainedError(
            f"{what or path} could not be written: {reason(cause)}. {advice}, "
            f"and {then}."
        )
        explained.errno = cause.errno
        raise explained from cause


def bare(error: OSError) -> OSError:
    """The failure itself, without the explanation that it may have."""
    if isinstance(error, ExplainedError):
        if isinstance(error.__cause__, OSError):
            return error.__cause__
    return error


def reason(error: OSError) -> str:
    """What the system says, without the names of temporary files."""
    is_known = error.errno in _ADVICE or error.errno in _GONE
    return error.strerror if is_known and error.strerror else shortened(error)
