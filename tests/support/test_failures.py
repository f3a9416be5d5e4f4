"""What cannot be written is explained in a sentence."""

import errno

import pytest

from cbnn_keras.support.failures import failures_explained


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/tmp/other"),
            "No space left on device. Nothing was changed there: make room, "
            "and try again.",
        ),
        (
            OSError(errno.EDQUOT, "Disk quota exceeded"),
            "Disk quota exceeded. Nothing was changed there: make room, or "
            "have your quota raised, and try again.",
        ),
        (
            OSError(errno.EFBIG, "File too large"),
            "File too large. Nothing was changed there: raise the limit on the "
            "size of files (`ulimit -f`), and try again.",
        ),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "d"),
            "No such file or directory. The directory was deleted, moved or "
            "unmounted while it was in use: put it back, and try again.",
        ),
        (
            OSError("odd"),
            "odd. Nothing was changed there: see to what the system says, and "
            "try again.",
        ),
    ],
)
def test_what_cannot_be_written_is_a_sentence(error, expected):
    with pytest.raises(OSError) as caught:
        with failures_explained("out"):
            raise error
    assert str(caught.value) == f"out could not be written: {expected}"
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [BrokenPipeError, ValueError])
def test_other_failures_pass(error):
    with pytest.raises(error):
        with failures_explained("out"):
            raise error
