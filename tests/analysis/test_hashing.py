"""Hashes are those of contents: in other objects, orders and processes too."""

import hashlib

import numpy as np
import pytest

from cbnn_keras.analysis import hashing

LONG = np.arange(2000)


def hashed(structure):
    digest = hashlib.sha256()
    hashing.update(digest, structure)
    return digest.hexdigest()


def strings(*texts):
    # Objects of their own, at addresses of their own.
    return np.array(["".join(list(text)) for text in texts], dtype=object)


def ragged(*arrays):
    made = np.empty(len(arrays), dtype=object)
    made[:] = arrays
    return made


def test_equal_contents_have_equal_hashes():
    assert hashed(strings("one", "two")) == hashed(strings("one", "two"))
    assert hashed(ragged(LONG, [1])) == hashed(ragged(LONG.copy(), [1]))
    # A view is as its copy, and the order of a dict does not matter.
    view = np.arange(6.0).reshape(2, 3)[:, ::2]
    one = {"b": [view, strings("x")], "a": np.ones(2)}
    other = {"a": np.ones(2), "b": (view.copy(), strings("x"))}
    assert hashed(one) == hashed(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (strings("one"), strings("two")),
        (strings("ab", "c"), strings("a", "bc")),
        (strings("a"), np.array([b"a"], dtype=object)),
        (np.zeros(4), np.zeros((2, 2))),
        (np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.float64)),
        ({"a": np.zeros(2)}, {"b": np.zeros(2)}),
        # NumPy writes only the ends of a long array.
        (ragged(LONG, [1]), ragged(np.where(LONG == 999, 0, LONG), [1])),
    ],
)
def test_other_contents_have_other_hashes(one, other):
    assert hashed(one) != hashed(other)
