"""Whatever goes wrong with a file has one type and names the file."""

import zipfile

import pytest

import cbnn_keras
from cbnn_keras.support.faults import RunError, faults_named, shortened


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        IndexError(),
        RecursionError("deep"),
        MemoryError(),
        EOFError(),
        zipfile.BadZipFile("bad"),
        OSError(5, "Input/output error"),
    ],
    ids=repr,
)
def test_every_error_names_the_file(error):
    match = r"^a/b\.h5 cannot be read \(.+\)\. Restore the file, or train"
    with pytest.raises(RunError, match=match) as caught:
        with faults_named("a/b.h5"):
            raise error
    assert caught.value.__cause__ is error
    assert isinstance(caught.value, ValueError)


def test_an_error_of_ours_is_left_as_it_is():
    with pytest.raises(RunError, match="^as it was$"):
        with faults_named("a/b.h5"):
            raise RunError("as it was")


def test_ctrl_c_is_not_taken_for_a_fault():
    with pytest.raises(KeyboardInterrupt):
        with faults_named("a/b.h5"):
            raise KeyboardInterrupt


def test_long_errors_become_one_line():
    text = shortened(ValueError("a\n" * 1000))
    assert text == "a " * 150 + "..."
    assert shortened(MemoryError()) == "MemoryError"


def test_the_type_is_public():
    assert cbnn_keras.RunError is RunError
