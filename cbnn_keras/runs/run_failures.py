"""What is said when a run cannot be written."""

import contextlib
import pathlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

from cbnn_keras.support.failures import (
    ExplainedError,
    bare,
    failures_explained,
    reason,
)
from cbnn_keras.support.faults import RunError


class CreationError(RunError, ExplainedError):
    """A directory in which no run can be started."""


def run_failures_explained(
    path: pathlib.Path,
    subject: str = "run",
    then: str = "resume it with `resume=True`",
) -> AbstractContextManager[None]:
    """`failures_explained` of a run, which keeps what it held before.

    Args:
        path: Where it is written.
        subject: What is written.
        then: What to do in the end.
    """
    return failures_explained(
        path,
        what=f"The {subject} in {path}",
        intact="What it held before is intact",
        then=then,
    )


@contextlib.contextmanager
def creation_explained(path: pathlib.Path) -> Iterator[None]:
    """The same for a run that is not there yet."""
    try:
        yield
    except OSError as error:
        cause = bare(error)
        explained = CreationError(
            f"A run cannot be written to {path}: {reason(cause)}. Choose a "
            "directory that you may write to, with room in it."
        )
        explained.errno = cause.errno
        raise explained from cause
