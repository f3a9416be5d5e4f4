"""Several processes that train one model, and what they tell each other.

Each of them runs the same script, and comes to the same exchanges in the same
order. `Alone` is a process that is the only one, so that nobody has to ask.
"""

import abc
import atexit
import contextlib
import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

import numpy as np


class OtherProcessError(RuntimeError):
    """Another process has failed, and all of them end with its error."""


class Processes(abc.ABC):
    """The processes of a training.

    Attributes:
        index: Which of them this is, from 0. The first one writes.
        count: How many there are.
        num_devices: How many devices they have together.
    """

    index: int = 0
    count: int = 1
    num_devices: int = 1

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @abc.abstractmethod
    def _exchange(self, message: bytes, *, has_failed: bool) -> list[bytes]:
        """Gives what all processes said, in their order, in this exchange.

        Raises:
            OtherProcessError: If one of the others had failed by then.
        """

    def exchange(self, message: bytes) -> list[bytes]:
        """What all processes say, in their order."""
        return self._exchange(message, has_failed=False)

    def gather(self, array: np.ndarray) -> np.ndarray:
        """Arrays of all processes, one behind the other; booleans as bits."""
        is_bits = array.dtype == bool
        content = np.packbits(array) if is_bits else array
        head = np.array([len(array)], np.int64).tobytes()
        parts = []
        for message in self.exchange(head + content.tobytes()):
            [size] = np.frombuffer(message[:8], np.int64)
            found = np.frombuffer(message[8:], content.dtype)
            if is_bits:
                found = np.unpackbits(found, count=int(size)).astype(bool)
            parts.append(found)
        return np.concatenate(parts)

    def gather_bits(self, flags: np.ndarray) -> np.ndarray:
        """The same for booleans, as `np.packbits` gives them."""
        head = np.array([len(flags)], np.int64).tobytes()
        found = self.exchange(head + np.packbits(flags).tobytes())
        sizes = [int(np.frombuffer(part[:8], np.int64)[0]) for part in found]
        joined = np.zeros(-(-sum(sizes) // 8), np.uint8)
        stop = 0
        for part, size in zip(found, sizes, strict=True):
            start, stop = stop, stop + size
            # Not whole bytes: the first ones share one with those before.
            shift, own = start % 8, np.frombuffer(part[8:], np.uint8)
            first = start // 8
            joined[first : first + len(own)] |= own >> shift
            rest = (
                (own << (8 - shift))[: len(joined) - first - 1]
                if shift
                else own[:0]
            )
            joined[first + 1 : first + 1 + len(rest)] |= rest
        return joined

    def total(self, counts: np.ndarray) -> np.ndarray:
        """The sum of the arrays of integers of all processes."""
        parts = self.exchange(counts.astype(np.int64).tobytes())
        arrays = [np.frombuffer(part, np.int64) for part in parts]
        return np.sum(arrays, axis=0).reshape(counts.shape)

    def broadcast(self, message: bytes) -> bytes:
        """What the first process says."""
        return self.exchange(message if self.is_first else b"")[0]

    def first_only(self, call: Callable[[], bytes]) -> bytes:
        """Has the first process call a function, and gives all the result."""
        with self.together():
            result = call() if self.is_first else b""
        return self.broadcast(result)

    def agree(self, content: bytes, what: str) -> None:
        """Raises a `ValueError`, in all processes, if they differ.

        Args:
            content: What has to be equal.
            what: What to call it, and what to do.
        """
        found = self.exchange(hashlib.sha256(content).digest())
        others = [
            str(i) for i, digest in enumerate(found) if digest != found[0]
        ]
        if others:
            error = ValueError(
                f"Process {', '.join(others)} of {self.count} differs from "
                f"process 0 in {what}"
            )
            _mark_as_told(error)  # all of them know
            raise error

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What all processes do; an error of one is raised by all.

        `sys.exit` in one is an error to the others.
        """
        try:
            yield
        except OtherProcessError:
            raise  # they know
        except (Exception, SystemExit) as error:
            if not getattr(error, "_is_told", False):
                _mark_as_told(error)
                text = str(error)
                if isinstance(error, SystemExit):
                    text = f"it was ended by sys.exit({error.code!r})"
                # In the exchange that the others are in or come to next.
                self._exchange(text.encode(), has_failed=True)
            raise
        else:
            self.exchange(b"")


def end_at_once(code: int) -> NoReturn:
    """Ends one process of several, and does not wait for the others.

    JAX would, when Python ends: they are in an exchange, and wait for this
    one. Whatever else is to be done at the end is done.
    """
    if "jax" in sys.modules:
        api = importlib.import_module("jax._src.api")
        atexit.unregister(getattr(api, "clean_up", print))
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _mark_as_told(error: BaseException) -> None:
    error._is_told = True  # type: ignore[attr-defined]


class Alone(Processes):
    """A process that is the only one."""

    def _exchange(self, message: bytes, *, has_failed: bool) -> list[bytes]:
        return [message]

    def gather(self, array: np.ndarray) -> np.ndarray:
        return array

    def gather_bits(self, flags: np.ndarray) -> np.ndarray:
        return np.packbits(flags)

    def agree(self, content: bytes, what: str) -> None:
        pass

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        yield
