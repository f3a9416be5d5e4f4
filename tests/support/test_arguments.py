"""Tests of the checks of numbers; who uses them is tested there, once."""

import fractions

import numpy as np
import pytest

from cbnn_keras.support import arguments


@pytest.mark.parametrize("value", [1, 7, np.int64(7), np.uint8(7)])
def test_integers_become_pythons_own(value):
    found = arguments.integer("f", "num", value)
    assert type(found) is int and found == value


@pytest.mark.parametrize(
    "value", [0, -1, 2.5, 1.0, "6", None, True, np.True_, np.array([1, 2])]
)
def test_what_is_no_integer_of_at_least_one(value):
    with pytest.raises(
        ValueError,
        match=r"^f\(num=.*\): num must be an integer of at least 1\.$",
    ):
        arguments.integer("f", "num", value)


def test_limits_of_integers():
    assert arguments.integer("f", "n", 0, at_least=0) == 0
    assert arguments.integer("f", "n", -3, at_least=None) == -3
    with pytest.raises(ValueError, match=r"n must be an integer of at least 0"):
        arguments.integer("f", "n", -1, at_least=0)
    with pytest.raises(ValueError, match=r"n=1\.5\): n must be an integer\.$"):
        arguments.integer("f", "n", 1.5, at_least=None)


@pytest.mark.parametrize(
    "value", [0.25, 0, np.float32(0.25), fractions.Fraction(1, 4)]
)
def test_numbers_become_pythons_own(value):
    found = arguments.number("f", "x", value, at_least=0, allowed="...")
    assert type(found) is float and found == value


@pytest.mark.parametrize(
    "value", [0, 1, -1, float("nan"), float("inf"), "0.5", None, True, 0.5j]
)
def test_what_is_no_number_between_limits(value):
    with pytest.raises(
        ValueError, match=r"^f\(x=.*\): x must be a number between 0 and 1\.$"
    ):
        arguments.number(
            "f",
            "x",
            value,
            above=0,
            below=1,
            allowed="a number between 0 and 1",
        )
