"""SIGTERM: schedulers and clouds send it before they take a machine away.

`fit` is then ended at the end of a step, with one line that says how to go on
and the exit code that such an end has. The run needs no help for that: it is
safe from a kill at any moment.
"""

import builtins
import contextlib
import os
import pathlib
import signal
import sys
import threading
import types
import weakref
from typing import Any

import keras

from cbnn_keras.support.processes import end_at_once

EXIT_CODE = 128 + signal.SIGTERM


class Preemption:
    """Takes note of SIGTERM while `fit` runs, and ends it after the step.

    Only where SIGTERM would end the process at once: a handler that somebody
    has installed, and a process that ignores the signal, stay as they are. So
    does a notebook, whose kernel would survive the end of `fit`.

    Keras calls no hook when `fit` ends with an error. A signal that arrives
    later finds no `fit` and is passed on to the handler from before; so is a
    second one that arrives before the end of the step, and one that is sent to
    a forked child.

    Args:
        model: The model in training.
        owner: The class of the callback, for the message.
        directory: The directory of the run.
        is_alone: Whether no other process waits for this one.
    """

    def __init__(
        self,
        model: keras.Model,
        owner: str,
        directory: pathlib.Path,
        *,
        is_alone: bool = True,
    ) -> None:
        self._is_alone = is_alone
        self._model = weakref.ref(model)
        self._owner = owner
        self._directory = directory
        self._process = os.getpid()
        self._previous: Any = None
        self._is_noticed = False

    def begin(self) -> None:
        """Installs the handler, where that may be."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or hasattr(builtins, "__IPYTHON__"):
            return
        previous = signal.getsignal(signal.SIGTERM)
        # Handlers of trainings that have failed.
        while (other := _owner(previous)) and not other._is_in_fit():
            previous = other._previous
        if previous == signal.SIG_DFL or _owner(previous):
            self._previous = previous
            signal.signal(signal.SIGTERM, self._notice)

    def end(self) -> None:
        """Puts the handler from before back, unless another was installed."""
        if _owner(signal.getsignal(signal.SIGTERM)) is self:
            signal.signal(signal.SIGTERM, self._previous)

    def check(self, kept: str) -> None:
        """Ends the process, through `SystemExit`, if it was told to end.

        Args:
            kept: What is left of the run, for the message, as a predicate.
        """
        if not self._is_noticed:
            return
        self.end()
        with contextlib.suppress(OSError):
            # Also if `fit` is silent: it explains why the process is gone.
            print(
                f"\n{self._owner}: training was ended by SIGTERM. The run in "
                f"{self._directory} {kept}; to resume it, start the same "
                "script again with `resume=True`.",
                file=sys.stderr,
                flush=True,
            )
        if not self._is_alone:
            end_at_once(EXIT_CODE)
        raise SystemExit(EXIT_CODE)

    def _notice(self, number: int, frame: types.FrameType | None) -> None:
        is_ours = os.getpid() == self._process and self._is_in_fit(frame)
        if is_ours and not self._is_noticed:
            self._is_noticed = True
            return
        signal.signal(number, self._previous)
        signal.raise_signal(number)

    def _is_in_fit(self, frame: types.FrameType | None = None) -> bool:
        """Whether `fit` of the model is what is being executed."""
        frame = frame or sys._getframe()
        model = self._model()
        while frame is not None and model is not None:
            is_fit = frame.f_code.co_name == "fit"
            if is_fit and frame.f_locals.get("self") is model:
                return True
            frame = frame.f_back
        return False


def _owner(handler: Any) -> Preemption | None:
    """Whose handler it is, if it is one of ours."""
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, Preemption) else None
