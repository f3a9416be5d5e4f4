"""Arrays and lists in files: read as they are, or refused by name."""

import io
import re

import numpy as np
import pytest
from helpers import blobs

from cbnn_keras.commands.inputs import (
    load_inputs,
    load_labelled,
    load_priors,
    read_lines,
)

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
    "kind", ["missing", "cut", "flipped", "empty", "npy", "text", "pickle"]
)
def test_a_file_that_is_none_is_named(kind, tmp_path):
    path = tmp_path / "data.npz"
    if kind != "missing":
        known = {"empty": b"", "text": b"1,2,3\n"}
        path.write_bytes(known[kind] if kind in known else damaged(kind))
    texts = " Texts are arrays of strings: x.astype(str)."
    with pytest.raises(
        ValueError,
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
        ValueError,
        match=r"data\.npz holds no labels `y`, only x, z\. Write one with "
        r"np\.savez\(path, x=\.\.\., y=\.\.\.\)\.",
    ):
        load_labelled(tmp_path / "data.npz")
    with pytest.raises(ValueError, match=r"\(path, x=\.\.\., y=\.\.\.\)\."):
        load_labelled(tmp_path / "no.npz")
    np.savez(tmp_path / "data.npz", y=Y)
    with pytest.raises(ValueError, match=r"data\.npz holds no array `x`"):
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
        ValueError,
        match=rf"(?s)^{path} holds no priors \(.+\)\. Write them with np\.save",
    ):
        load_priors(path)
