"""Batches that wait for an update; see also test_mirrored.py."""

import gc
import threading

import pytest
import tensorflow as tf

from cbnn_keras.data import gate as gate_module
from cbnn_keras.data.gate import Gate

SOON = 30.0  # seconds, of which a test that passes uses none


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.release()


def gated(gate, num_batches=5):
    """The positions of the batches, as they come through."""

    def after(position, ticket):
        with tf.control_dependencies([gate.wait(ticket)]):
            return tf.identity(position)

    return tf.data.Dataset.zip(
        tf.data.Dataset.range(num_batches), gate.tickets(num_batches)
    ).map(after)


class Reader(threading.Thread):
    """Reads a pass, in the background, and tells how far it came."""

    def __init__(self, dataset):
        super().__init__(daemon=True)
        self.iterator = iter(dataset)
        self.num_read = 0
        self.progress = threading.Semaphore(0)
        self.start()

    def run(self):
        for position in self.iterator:
            assert int(position) == self.num_read
            self.num_read += 1
            self.progress.release()

    def has_read(self, num):
        """Waits until so many more are through, and no more come."""
        for _ in range(num):
            assert self.progress.acquire(timeout=SOON)
        return not self.progress.acquire(timeout=0.2)

    def ends(self):
        self.join(SOON)
        return not self.is_alive()


def test_passes_that_nobody_announced_go_through(gate):
    assert list(gated(gate).as_numpy_iterator()) == list(range(5))
    gate.release()
    assert list(gated(gate).as_numpy_iterator()) == list(range(5))


def test_an_announced_pass_waits_for_each_update(gate):
    dataset = gated(gate)
    gate.announce(2)
    reader = Reader(dataset)
    assert reader.has_read(2)
    gate.hold_after(3)
    assert reader.has_read(1)
    gate.hold_after(9)
    assert reader.has_read(2)
    assert reader.ends()


def test_only_one_pass_is_announced(gate):
    dataset = gated(gate)
    gate.announce(1)
    reader = Reader(dataset)
    assert reader.has_read(1)
    assert list(dataset.as_numpy_iterator()) == list(range(5))
    assert reader.num_read == 1


def test_release_ends_the_waiting_and_takes_the_announcement_back(gate):
    dataset = gated(gate)
    gate.announce(1)
    reader = Reader(dataset)
    assert reader.has_read(1)
    gate.release()
    assert reader.ends()
    gate.announce(1)
    gate.release()
    assert list(dataset.as_numpy_iterator()) == list(range(5))


def test_a_pass_that_was_given_up_does_not_take_the_place_of_the_next(gate):
    dataset = gated(gate)
    gate.announce(1)
    old = Reader(dataset)
    assert old.has_read(1)
    gate.announce(2)
    new = Reader(dataset)
    assert new.has_read(2)
    assert old.ends()  # nobody holds it any more
    gate.hold_after(5)
    assert new.ends()


def test_many_changes_before_anybody_waits(gate):
    dataset = gated(gate)
    gate.announce(1)
    for num_batches in range(1, 20):
        gate.hold_after(num_batches)
    gate.hold_after(3)
    reader = Reader(dataset)
    assert reader.has_read(3)
    gate.hold_after(5)
    assert reader.ends()


def test_an_iterator_can_be_deleted_while_it_waits(gate):
    iterator = iter(gated(gate).prefetch(4))
    gate.announce(1)
    next(iterator)
    deleted = threading.Event()

    def delete():
        nonlocal iterator
        del iterator
        gc.collect()
        deleted.set()

    threading.Thread(target=delete, daemon=True).start()
    assert deleted.wait(SOON)
    # What it leaves behind does not make the next pass look held.
    gate.announce(5)
    assert not bool(gate._is_holding)


def test_everybody_who_waits_is_woken(gate):
    gate.announce(1)

    @tf.function
    def wait():
        return gate.wait(tf.constant(gate_module._PASS + 1, tf.int64))

    wait.get_concrete_function()
    threads = [threading.Thread(target=wait, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    threading.Event().wait(0.3)
    assert all(thread.is_alive() for thread in threads)
    gate.hold_after(2)
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive()


def test_a_step_that_waits_for_what_is_held_back(gate, monkeypatch):
    monkeypatch.setattr(gate_module, "_PATIENCE", 0.3)
    monkeypatch.setattr(gate_module, "_LOOK_EVERY", 0.05)
    dataset = gated(gate).batch(4)  # the first one can never be complete
    gate.announce(2)
    gate.step_begins()
    assert next(iter(dataset)).shape == 4
    assert gate.has_given_up
    # It does not stay so.
    gate.announce(2)
    assert not gate.has_given_up


@pytest.mark.large
@pytest.mark.parametrize("case", ["nothing held", "no step", "new steps"])
def test_patience(gate, monkeypatch, case):
    monkeypatch.setattr(gate_module, "_PATIENCE", 0.6)
    monkeypatch.setattr(gate_module, "_LOOK_EVERY", 0.05)
    dataset = gated(gate)
    gate.announce(2)
    gate.step_begins()
    if case != "nothing held":
        reader = Reader(dataset)
        assert reader.has_read(2)
    if case == "no step":  # scoring, say
        gate.step_ends()
    for _ in range(15):
        threading.Event().wait(0.1)
        if case == "new steps":
            gate.step_begins()
    assert not gate.has_given_up
