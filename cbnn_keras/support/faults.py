"""What is said when something is wrong with a file: one type of error."""

import contextlib
import errno
import os
from collections.abc import Iterator

_LONGEST = 300  # characters of what a library says


class RunError(ValueError):
    """Something is wrong with a file or a directory; the message names it."""


@contextlib.contextmanager
def faults_named(
    path: str | os.PathLike[str],
    advice: str = "Restore the file, or train again.",
) -> Iterator[None]:
    """Gives whatever goes wrong while a file is read the type `RunError`.

    Bytes that someone else chose can make a parser raise anything, also a
    `KeyError`, a `RecursionError` or a `MemoryError`.

    Args:
        path: What is being read.
        advice: What to do, as a sentence.
    """
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        raise RunError(
            f"{path} cannot be read ({shortened(error)}). {advice}"
        ) from error


@contextlib.contextmanager
def failures_explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """Says of an output that cannot be written what is left and what to do.

    For outputs that are written aside and then renamed, so that nothing is
    changed before all is written.

    Args:
        path: The output.

    Raises:
        OSError: In place of one, in a sentence.
    """
    try:
        yield
    except BrokenPipeError:  # of a terminal, and not of the output
        raise
    except OSError as error:
        is_known = error.errno in _ADVICE
        reason = error.strerror if is_known else shortened(error)
        advice = _ADVICE.get(
            error.errno or 0, "See to it that you may write to its directory."
        )
        raise OSError(
            f"{path} could not be written: {reason}. Nothing was changed "
            f"there. {advice}"
        ) from error


_ADVICE = {
    errno.ENOSPC: "Make room on the disk, and try again.",
    errno.EDQUOT: "Make room within your quota, and try again.",
    errno.EFBIG: "Raise the limit of the size of files (ulimit -f), and try "
    "again.",
}


def shortened(error: BaseException) -> str:
    """What a library says of a fault, in one line of bearable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
