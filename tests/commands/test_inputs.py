"""Arrays and lists in files: read as they are, or refused by name."""

import pathlib

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
    # An input that is called x, and others.
    np.savez_compressed(path, x=X, z=Y)
    assert sorted(load_inputs(path)) == ["x", "z"]


def cut(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def write_one_array(path):
    with path.open("wb") as file:  # a path would get another ending
        np.save(file, X)


def pickle(path):
    np.savez(path, x=np.array([{}], dtype=object))


@pytest.fixture
def files_are_closed(monkeypatch):
    """`np.load` itself leaves a damaged file open."""
    opened, real_open = [], open

    def recorded_open(*arguments, **options):
        opened.append(real_open(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr("builtins.open", recorded_open)
    yield
    for file in opened:
        file.close()


@pytest.mark.parametrize(
    "damage",
    [
        pathlib.Path.unlink,
        cut,
        flip_a_byte,
        lambda path: path.write_bytes(b""),
        write_one_array,
        lambda path: path.write_text("1,2,3\n"),
        pickle,
    ],
    ids=["missing", "cut", "flipped", "empty", "npy", "text", "pickle"],
)
def test_a_file_that_is_none_is_named(damage, tmp_path, files_are_closed):
    path = tmp_path / "data.npz"
    np.savez(path, x=X)
    damage(path)
    with pytest.raises(
        ValueError,
        match=rf"(?s){path} is not an \.npz file of arrays \(.+\)\. Write one "
        r"with np\.savez\(path, x=\.\.\.\)\.",
    ):
        load_inputs(path)


def test_texts_that_were_pickled_are_explained(tmp_path):
    pickle(tmp_path / "data.npz")
    message = r"Texts are arrays of strings: x\.astype\(str\)\.$"
    with pytest.raises(ValueError, match=message):
        load_inputs(tmp_path / "data.npz")


def test_lines_end_with_the_last_name(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("\ufeffa\nb \n\n\n", "utf-8")
    assert read_lines(path) == ["a", "b"]


def test_a_file_of_labels_alone_has_no_inputs(tmp_path):
    np.savez(tmp_path / "data.npz", y=Y)
    with pytest.raises(ValueError, match=r"data\.npz holds no array `x`"):
        load_inputs(tmp_path / "data.npz")


def test_labels_of_a_file(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, age=X[:, :1], income=X[:, 1:], y=Y)
    inputs, labels = load_labelled(path)
    assert sorted(inputs) == ["age", "income"]
    np.testing.assert_array_equal(labels, Y)


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
