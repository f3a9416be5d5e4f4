"""Processes that are threads: the protocol without JAX."""

import threading

from cbnn_keras.support.processes import OtherProcessError, Processes


class Threads(Processes):
    """One of several threads that exchange messages."""

    def __init__(self, index, count, shared):
        self.index = index
        self.count = count
        self.num_devices = count
        self._barrier, self._messages = shared

    def _exchange(self, message, *, has_failed):
        self._messages[self.index] = (message, has_failed)
        self._barrier.wait(20)
        found = list(self._messages)
        self._barrier.wait(20)
        failed = [i for i, (_, is_bad) in enumerate(found) if is_bad]
        if failed and not has_failed:
            text = found[failed[0]][0].decode()
            raise OtherProcessError(f"Process {failed[0]} has failed: {text}")
        return [message for message, _ in found]


def in_threads(count, work):
    """What `work(processes)` gives or raises in each of some threads."""
    shared = threading.Barrier(count), [None] * count
    results = [None] * count

    def run(index):
        try:
            results[index] = work(Threads(index, count, shared))
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results
