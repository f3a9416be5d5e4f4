"""Holds batches back until the weights they are to have are known.

Under a strategy, TensorFlow prefetches batches to every device, behind the
last stage of any pipeline. A batch would then look its weights up several
steps too early, and which batches do would be a matter of timing. The gate
stands in front of the lookup: a pass of a pipeline that was announced goes no
further than the next update, and every other pass goes through freely.
"""

import atexit
import threading
import time
import weakref

import tensorflow as tf

# A ticket has the number of the pass in its upper bits.
_PASS = 2**32
_NO_PASS = -1  # what no ticket says
_PATIENCE = 60.0  # seconds that a step may last while a batch is held back
_LOOK_EVERY = 1.0  # seconds


class Gate:
    """Between the batches of a pipeline and their lookup.

    Attributes:
        has_given_up: Whether a step lasted so long, with a batch held back,
            that it must have waited for that very batch.
    """

    def __init__(self) -> None:
        self.has_given_up = False
        self._num_announced = 0
        self._step_start: float | None = None
        self._stop_watching = threading.Event()
        # The pass that is to start, as a number from 1 on, or 0 for none.
        self._announced = tf.Variable(0, dtype=tf.int64)
        # (pass, its batches that may go through)
        self._limit = tf.Variable([_NO_PASS, 0], dtype=tf.int64)
        self._is_holding = tf.Variable(False)
        # One entry a change of the limit: wakes who waits. A queue, because
        # TensorFlow cancels its waiting when an iterator is given up.
        self._changes = tf.queue.FIFOQueue(2**31 - 1, [tf.bool], [[]])
        _gates.add(self)

    # What a training loop tells, in this order.

    def announce(self, num_batches: int) -> None:
        """The next pass that starts will be held after so many batches."""
        self.has_given_up = False
        self._step_start = None
        self._num_announced += 1
        self.hold_after(num_batches)
        # A waiting that was cancelled has left it behind.
        self._is_holding.assign(False)
        self._announced.assign(self._num_announced)
        self._stop_watching.set()
        self._stop_watching = threading.Event()
        threading.Thread(
            target=_watch,
            args=(weakref.ref(self), self._stop_watching),
            daemon=True,
        ).start()

    def step_begins(self) -> None:
        """A batch is asked for."""
        self._step_start = time.monotonic()

    def step_ends(self) -> None:
        self._step_start = None

    def hold_after(self, num_batches: int) -> None:
        """Lets the announced pass go on, up to so many of its batches."""
        self._set_limit(self._num_announced, num_batches)

    def release(self) -> None:
        """Lets everybody through."""
        self._stop_watching.set()
        self._announced.assign(0)
        self._set_limit(_NO_PASS, 0)

    # What a pipeline is made of.

    def tickets(self, num_batches: int) -> tf.data.Dataset:
        """One ticket a batch, to be zipped with them."""

        def one_pass(_: tf.Tensor) -> tf.data.Dataset:
            number = self._announced.read_value()
            with tf.control_dependencies([number]):
                self._announced.assign(0)
            first = number * _PASS
            return tf.data.Dataset.range(first, first + num_batches)

        return tf.data.Dataset.from_tensors(0).flat_map(one_pass)

    def wait(self, ticket: tf.Tensor) -> tf.Tensor:
        """An op that waits: in a graph, what depends on it comes after."""

        def is_held(has_waited: tf.Tensor) -> tf.Tensor:
            limit = self._limit.read_value()
            return (ticket // _PASS == limit[0]) & (ticket % _PASS >= limit[1])

        def next_change(has_waited: tf.Tensor) -> tf.Tensor:
            holding = self._is_holding.assign(True)
            with tf.control_dependencies([holding]):
                return self._changes.dequeue()

        def pass_on() -> tf.Operation:
            # There may be others: of an iterator that nobody uses any more.
            self._is_holding.assign(False)
            return self._changes.enqueue(True)

        (has_waited,) = tf.while_loop(is_held, next_change, [False])
        tf.cond(has_waited, pass_on, tf.no_op)
        return has_waited

    def _set_limit(self, number: int, num_batches: int) -> None:
        self._limit.assign([number, num_batches])
        self._changes.enqueue(True)

    def _held_step(self) -> float | None:
        """When the step began that lasts while a batch is held back."""
        start = self._step_start
        return start if start is not None and self._is_holding else None


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()


@atexit.register
def _release_all() -> None:
    """A process that ends, as after an error, while a batch waits crashes."""
    for gate in list(_gates):
        gate.release()


def _watch(
    reference: "weakref.ref[Gate]", stop_watching: threading.Event
) -> None:
    """Ends what would last for ever: a step and a batch that wait for another.

    Such is the case if batches are gathered behind the lookup, as `shuffle`
    does.
    """
    step, since = None, 0.0
    while not stop_watching.wait(_LOOK_EVERY):
        gate = reference()
        if gate is None:
            return
        held_step, now = gate._held_step(), time.monotonic()
        if held_step is None or held_step != step:
            step, since = held_step, now
        elif now - since > _PATIENCE:
            gate.has_given_up = True
            gate.release()
        del gate
