"""What is said when something is wrong with a file: one type of error."""

import contextlib
import os
from collections.abc import Iterator

from cbnn_keras.support.console import printable

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


def shortened(error: BaseException) -> str:
    """What a library says of a fault, in one line of bearable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = printable(text)  # libraries quote what is in files
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
