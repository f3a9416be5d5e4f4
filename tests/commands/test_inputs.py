"""Arrays and lists in files: read as they are, or refused by name."""

import io
import os
import pathlib
import re
import warnings
import zipfile

import numpy as np
import pytest
from helpers import blobs
from hypothesis import given, settings
from hypothesis import strategies as st

from cbnn_keras.commands.inputs import (
    load_inputs,
    load_labelled,
    load_preprocess,
    load_priors,
    read_lines,
)
from cbnn_keras.support.faults import RunError

X, Y = blobs()


def test_inputs_of_a_file(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=X, y=Y)
    np.testing.assert_array_equal(load_inputs(path), X)
    # Several inputs, by name; labels are none.
    np.savez(path, age=X[:, :1], income=X[:, 1:], y=Y)
    found = load_inputs(path)
    assert sorted(found) == ["age", "income"]
    np.testing.assert_array_equal(found["income"], X[:, 1:])
    found, labels = load_labelled(path)
    assert sorted(found) == ["age", "income"]
    np.testing.assert_array_equal(labels, Y)
    # An input that is called x, and others.
    np.savez_compressed(path, x=X, z=Y)
    assert sorted(load_inputs(path)) == ["x", "z"]


def damaged(kind):
    """What a file may hold that is no `.npz` file of arrays."""
    file = io.BytesIO()
    if kind == "npy":
        np.save(file, X)
    else:
        is_pickle = kind == "pickle"
        np.savez(file, x=np.array([{}], dtype=object) if is_pickle else X)
    content = bytearray(file.getvalue())
    if kind == "flipped":
        content[len(content) // 2] ^= 1
    return content[: len(content) // 2] if kind == "cut" else content


@pytest.mark.parametrize(
    "kind", ["cut", "flipped", "empty", "npy", "text", "pickle"]
)
def test_a_file_that_is_none_is_named(kind, tmp_path):
    path = tmp_path / "data.npz"
    known = {"empty": b"", "text": b"1,2,3\n"}
    path.write_bytes(known[kind] if kind in known else damaged(kind))
    texts = " Texts are arrays of strings: x.astype(str)."
    with pytest.raises(
        RunError,
        match=rf"(?s){path} is not an \.npz file of arrays \(.+\)\. Write one "
        rf"with np\.savez\(path, x=\.\.\.\)\."
        + re.escape(texts * (kind == "pickle"))
        + "$",
    ):
        load_inputs(path)


def test_lines_end_with_the_last_name(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("\ufeffa\nb \n\n\n", "utf-8")
    assert read_lines(path) == ["a", "b"]


def test_a_file_without_labels_is_named(tmp_path):
    np.savez(tmp_path / "data.npz", x=X, z=X)
    with pytest.raises(
        RunError,
        match=r"data\.npz holds no labels `y`, only x, z\. Write one with "
        r"np\.savez\(path, x=\.\.\., y=\.\.\.\)\.",
    ):
        load_labelled(tmp_path / "data.npz")
    (tmp_path / "no.npz").touch()
    with pytest.raises(RunError, match=r"\(path, x=\.\.\., y=\.\.\.\)\."):
        load_labelled(tmp_path / "no.npz")
    np.savez(tmp_path / "data.npz", y=Y)
    with pytest.raises(RunError, match=r"data\.npz holds no array `x`"):
        load_inputs(tmp_path / "data.npz")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("priors.txt", b"0.5\nhalf\n"),
        ("priors.txt", b"\xff\xfe\x00"),
        ("priors.npy", b"0.5\n0.5\n"),
        ("priors.npy", b""),
    ],
)
def test_a_file_without_priors_is_named(name, content, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(
        RunError,
        match=rf"(?s)^{path} holds no priors \(.+\)\. Write them with np\.save",
    ):
        load_priors(path)


# --- What someone else chose ---


def header_of(shape, descr="<f4"):
    """The header of an `.npy` file that says what it likes."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


def archive(path, *entries, method=zipfile.ZIP_DEFLATED):
    """An `.npz` file of entries `(name, content)`."""
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in entries:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of names that are there twice
                file.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([("x.npy", header_of((10**12,)))], "does not take 0 bytes"),
        ([("x.npy", header_of((2,)) + b"1234")], "does not take 4 bytes"),
        ([("x.npy", header_of((1,)) + b"12345")], "does not take 5 bytes"),
        ([("x.npy", header_of((-1,)) + b"1234")], "does not take 4 bytes"),
        ([("x.npy", header_of((10**12,), "<U0"))], "neither numbers nor text"),
        ([("x.npy", header_of((0,), "|O"))], "Object arrays cannot be"),
        ([("x.npy", header_of((0,), "<M8[s]"))], "neither numbers nor text"),
        ([("x.npy", header_of((0,), "<c8"))], "neither numbers nor text"),
        ([("x.npy", header_of((0,), "|V8"))], "neither numbers nor text"),
        ([("x.npy", header_of((0,), [("a", "<f4")]))], "neither numbers nor"),
        ([("x.npy", header_of((0,), "<f16"))], "neither numbers nor text"),
        ([("x", b"1234")], "'x' is not an array"),
        ([("x.npy", b"")] * 2, "two arrays have the same name"),
        ([("x.npy", b""), ("x", b"")], "two arrays have the same name"),
        ([("x.npy", b"\x93NUMPY\x09\x00")], r"its version is|version"),
        ([("x.npy", b"")], "EOF|magic"),
    ],
)
def test_arrays_that_lie_are_refused(entries, reason, tmp_path):
    path = archive(tmp_path / "data.npz", *entries)
    with pytest.raises(
        RunError, match=rf"data\.npz is not an \.npz file .*({reason})"
    ):
        load_inputs(path)


def test_an_encrypted_or_strange_archive(tmp_path):
    path = archive(
        tmp_path / "data.npz",
        ("x.npy", header_of((1,)) + b"1234"),
        method=zipfile.ZIP_LZMA,
    )
    with pytest.raises(RunError, match="'x.npy' is not an array"):
        load_inputs(path)


def test_what_unpacks_to_too_much_is_not_unpacked(tmp_path):
    """Ten megabytes of zeros take ten kilobytes."""
    content = header_of((2500000,)) + bytes(10**7)
    path = archive(tmp_path / "data.npz", ("x.npy", content))
    assert path.stat().st_size < 20000
    assert load_inputs(path, 11 * 10**6).shape == (2500000,)
    with pytest.raises(
        RunError,
        match=r"data\.npz would take 10\.0 MB in memory, more than the 9\.0 MB "
        r"allowed\. Give fewer samples, or a larger --max-bytes\.$",
    ):
        load_inputs(path, 9 * 10**6)


def test_texts_take_more_than_their_letters(tmp_path):
    path = archive(
        tmp_path / "data.npz",
        ("x.npy", header_of((1000,), "|S1") + b"x" * 1000),
    )
    with pytest.raises(RunError, match="would take 64.0 kB in memory"):
        load_inputs(path, 60_000)
    assert load_inputs(path, 65_000).tolist() == [b"x"] * 1000


def test_an_archive_that_claims_too_much(tmp_path):
    """The size in the directory of the archive, not that of the file."""
    path = archive(tmp_path / "data.npz", ("x.npy", header_of((1,)) + b"1234"))
    content = bytearray(path.read_bytes())
    position = content.index(b"PK\x01\x02") + 24
    content[position : position + 4] = b"\xff\xff\xff\x7f"
    path.write_bytes(content)
    with pytest.raises(RunError, match="would take 2.1 GB in memory"):
        load_inputs(path, 2**30)
    with pytest.raises(RunError, match="does not take 2147483"):
        load_inputs(path)


def test_arrays_without_rows_are_refused(tmp_path):
    np.savez(tmp_path / "data.npz", x=X[:0], y=Y[:0])
    for load in (load_inputs, load_labelled):
        with pytest.raises(
            RunError,
            match=r"data\.npz: 'x' has no rows\. Give one sample at least\.$",
        ):
            load(tmp_path / "data.npz")


def test_arrays_of_different_lengths_are_refused(tmp_path):
    np.savez(tmp_path / "data.npz", x=X, y=Y[:-1])
    with pytest.raises(
        RunError,
        match=r"data\.npz: the arrays have different numbers of rows: 'x' 120, "
        r"'y' 119\. Every array must have a row for each sample",
    ):
        load_labelled(tmp_path / "data.npz")


def test_arrays_of_another_byte_order_and_fortran(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.asfortranarray(X).astype(">f4"), z=Y)
    found = load_inputs(tmp_path / "data.npz")
    np.testing.assert_array_equal(found["x"], X)
    assert found["x"].dtype == np.dtype("float32")
    found["x"][0] = 1  # as any array of the user's


def test_a_link_of_the_user_is_followed_and_a_pipe_is_not(tmp_path):
    np.savez(tmp_path / "data.npz", x=X)
    (tmp_path / "link.npz").symlink_to(tmp_path / "data.npz")
    assert load_inputs(tmp_path / "link.npz").shape == X.shape
    os.mkfifo(tmp_path / "pipe")
    for load in (load_inputs, load_priors, read_lines, load_preprocess):
        with pytest.raises(RunError, match="pipe is not a file"):
            load(tmp_path / "pipe")
        with pytest.raises(RunError, match="null is not a file"):
            load(pathlib.Path("/dev/null"))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("p.txt", b"0.5\nnan\n", "finite and not below 0"),
        ("p.txt", b"0.5\n-0.5\n", "finite and not below 0"),
        ("p.txt", b"inf 1", "finite and not below 0"),
        ("p.txt", b"", "finite and not below 0"),
        ("p.npy", header_of((10**12,)), "does not take 0 bytes"),
        ("p.npy", header_of((1, 1)) + b"\0\0\0\0", r"an array of shape \(1, 1"),
        ("p.npy", header_of(()) + b"\0\0\0\0", r"an array of shape \(\)"),
        ("p.npy", header_of((1,), "|S4") + b"abcd", r"an array of shape \(1"),
        ("p.npy", header_of((1,), "|O"), "Object arrays"),
    ],
)
def test_priors_that_are_none(name, content, reason, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RunError, match=rf"holds no priors \(.*{reason}"):
        load_priors(tmp_path / name)


def test_texts_without_end_are_not_read(tmp_path):
    path = tmp_path / "names.txt"
    with path.open("wb") as file:
        file.truncate(2**30)
    for load in (read_lines, load_priors):
        with pytest.raises(
            RunError,
            match=r"names\.txt has more than 16777216 bytes, and is not",
        ):
            load(path)


@pytest.mark.parametrize("character", ["\0", "\x1b", "\x7f", "\x9b", "\x0c"])
def test_names_have_no_control_characters(character, tmp_path):
    path = tmp_path / "names.txt"
    path.write_text(f"a\nb{character}c\nd", "utf-8")
    with pytest.raises(
        RunError,
        match=r"names\.txt: line 2 has a control character in it\. Write names "
        r"as text, one in each line\.$",
    ):
        read_lines(path)


def test_names_in_another_encoding(tmp_path):
    (tmp_path / "names.txt").write_bytes("grün".encode("latin-1"))
    with pytest.raises(RunError, match=r"names\.txt is not in UTF-8 \("):
        read_lines(tmp_path / "names.txt")
    (tmp_path / "names.txt").write_bytes(b"a\r\nb\r\n")
    assert read_lines(tmp_path / "names.txt") == ["a", "b"]
    (tmp_path / "names.txt").write_bytes(b"\n")
    assert read_lines(tmp_path / "names.txt") == []


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"hello"])
def test_a_file_without_preprocessing_is_named(content, tmp_path):
    (tmp_path / "front.keras").write_bytes(content)
    with pytest.raises(
        RunError,
        match=r"front\.keras cannot be read \(.+\)\. Use a file whose maker "
        r"you know, or pass a model that you built in Python\.$",
    ):
        load_preprocess(tmp_path / "front.keras")


def whole_file(kind):
    file = io.BytesIO()
    if kind == "npz":
        np.savez_compressed(file, x=X, y=Y)
    elif kind == "npy":
        np.save(file, np.array([0.2, 0.3, 0.5]))
    else:
        file.write(b"0.2\n0.3\n0.5\n")
    return file.getvalue()


LOADERS = {
    "npz": (load_inputs, load_labelled),
    "npy": (load_priors,),
    "txt": (load_priors, read_lines),
}


@pytest.mark.parametrize("kind", list(LOADERS))
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_the_bytes_there_is_one_type_of_error(
    kind, tmp_path_factory, data
):
    path = tmp_path_factory.mktemp("fuzz") / f"file.{kind}"
    if data.draw(st.booleans()):
        content = data.draw(st.binary(max_size=300))
    else:
        content = bytearray(whole_file(kind))
        for _ in range(data.draw(st.integers(1, 5))):
            position = data.draw(st.integers(0, len(content) - 1))
            content[position] = data.draw(st.integers(0, 255))
        content = content[: data.draw(st.integers(0, len(content)))]
    path.write_bytes(content)
    for load in LOADERS[kind]:
        try:
            load(path)
        except RunError as error:
            assert str(path) in str(error)
