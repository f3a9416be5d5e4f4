"""What processes tell each other, with threads in their place."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threads import in_threads

from cbnn_keras.support.processes import Alone, OtherProcessError


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=4))
def test_arrays_are_put_behind_each_other(sizes):
    """Bits too, though they do not fill their bytes."""
    whole = np.random.default_rng(sum(sizes)).normal(size=sum(sizes))
    ends = np.cumsum(sizes)
    parts = np.split(whole, ends[:-1])
    found = in_threads(
        len(sizes),
        lambda p: (
            p.gather(parts[p.index]),
            p.gather(parts[p.index] > 0),
            p.gather_bits(parts[p.index] > 0),
        ),
    )
    for numbers, bits, packed in found:
        assert np.array_equal(numbers, whole)
        assert np.array_equal(packed, np.packbits(whole > 0))
        assert bits.dtype == bool and np.array_equal(bits, whole > 0)


def test_counts_are_added():
    counts = np.array([[1, 2**40], [0, 3]])
    found = in_threads(3, lambda p: p.total(counts * (p.index + 1)))
    for total in found:
        assert total.tolist() == [[6, 6 * 2**40], [0, 18]]
    assert Alone().total(counts).tolist() == counts.tolist()


def test_the_first_speaks_for_all():
    def work(processes):
        return processes.first_only(lambda: f"of {processes.index}".encode())

    assert in_threads(3, work) == [b"of 0"] * 3


def test_an_error_of_one_reaches_all_wherever_they_are():
    def work(processes):
        with processes.together():
            if processes.index == 1:
                raise ValueError("no such data")
            processes.gather(np.ones(3))  # the others are in here

    first, second, third = in_threads(3, work)
    assert isinstance(second, ValueError)
    for found in (first, third):
        assert isinstance(found, OtherProcessError)
        assert "Process 1 has failed: no such data" in str(found)


def test_one_that_exits_does_not_leave_the_others_waiting():
    def work(processes):
        with processes.together():
            if processes.index == 0:
                sys.exit(3)
            processes.gather(np.ones(3))

    def caught(processes):
        try:
            work(processes)
        except SystemExit as error:
            return error.code

    first, second = in_threads(2, caught)
    assert first == 3
    assert isinstance(second, OtherProcessError)
    assert str(second).endswith("failed: it was ended by sys.exit(3)")


def test_an_error_is_told_once():
    def work(processes):
        try:
            with processes.together(), processes.together():
                if processes.index == 0:
                    raise ValueError("once")
        except (ValueError, OtherProcessError):
            pass
        return processes.exchange(b"after")  # nobody is an exchange behind

    assert in_threads(2, work) == [[b"after", b"after"]] * 2


def test_the_first_one_fails_alone():
    def work(processes):
        def call():
            raise ValueError("the directory is taken")

        return processes.first_only(call)

    first, second = in_threads(2, work)
    assert isinstance(first, ValueError)
    assert "the directory is taken" in str(second)


@pytest.mark.parametrize("odd", [0, 2])
def test_all_say_who_differs(odd):
    def work(processes):
        processes.agree(b"same", "what")
        content = b"other" if processes.index == odd else b"same"
        processes.agree(content, "labels. Give the same.")

    expected = "1, 2" if odd == 0 else "2"
    for found in in_threads(3, work):
        assert isinstance(found, ValueError)
        assert f"Process {expected} of 3 differs from process 0" in str(found)
        assert "labels. Give the same." in str(found)


def test_who_is_alone_need_not_ask():
    alone, array = Alone(), np.arange(3)
    assert alone.is_first and alone.count == 1
    assert alone.gather(array) is array
    assert alone.gather_bits(array > 0).tolist() == [0b01100000]
    assert alone.broadcast(b"a") == alone.first_only(lambda: b"a") == b"a"
    alone.agree(b"a", "anything")
    with pytest.raises(ValueError, match="own"), alone.together():
        raise ValueError("own")


def test_a_difference_is_not_told_a_second_time():
    def work(processes):
        try:
            with processes.together():
                processes.agree(bytes([processes.index]), "something")
        except ValueError:
            pass
        return processes.exchange(b"after")

    assert in_threads(2, work) == [[b"after", b"after"]] * 2
