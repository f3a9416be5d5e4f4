"""What a person sees while a run is made."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import rich.console
import rich.progress

# Control characters (C0, DEL, C1), marks that turn the direction of writing,
# separators of lines, and halves of characters.
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
    r"\ud800-\udfff]"
)


def printable(text: Any, *, keep: str = "") -> str:
    r"""A text whose control characters are shown and not obeyed.

    What a run says of itself may come from elsewhere: with escape sequences it
    could clear the terminal, or show something else than what is there.

    Args:
        text: What to print.
        keep: Characters that stay as they are.

    Example:

    >>> print(printable("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    return _CONTROL.sub(
        lambda found: (
            found[0]
            if found[0] in keep
            else found[0].encode("unicode_escape").decode()
        ),
        str(text),
    )


def paragraph(error: BaseException) -> str:
    """What an error says in one paragraph, fit for a terminal."""
    return printable(re.sub(r"\s*\n\s*", " ", str(error).strip()))


class Reporter:
    """Lines and progress bars that go along with Keras' own output.

    Args:
        verbose: `fit`'s: 0 says nothing; 1 is a bar that our lines must not
            run into; 2 is one line an epoch.
    """

    def __init__(self, verbose: Any) -> None:
        self.is_silent = verbose == 0
        self._console = rich.console.Console(
            highlight=False, soft_wrap=True, markup=False, emoji=False
        )
        # Keras' bar ends without a line break. On a terminal ours has just
        # taken its place and is gone.
        self._has_open_line = verbose not in (0, 2) and not (
            self._console.is_interactive
        )

    def line(self, text: str, *, during_epoch: bool = False) -> None:
        if not self.is_silent:
            lead = "\n" if during_epoch and self._has_open_line else ""
            text = printable(text, keep="\n")
            try:
                self._console.print(lead + text)
            except UnicodeEncodeError:  # no reason to end a training
                ascii_text = text.encode("ascii", "backslashreplace").decode()
                self._console.print(lead + ascii_text)

    def track(
        self, iterable: Iterable[Any], total: int | None, description: str
    ) -> Iterator[Any]:
        """Passes the items on; the bar is gone when they are through."""
        progress = rich.progress.Progress(
            *rich.progress.Progress.get_default_columns(),
            console=self._console,
            transient=True,
            disable=self.is_silent or not self._console.is_interactive,
        )
        with progress:
            yield from progress.track(
                iterable, total=total, description=description
            )

    @contextlib.contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Shows that work of unknown length goes on, and for how long."""
        columns = (
            rich.progress.SpinnerColumn(),
            rich.progress.TextColumn("{task.description}", markup=False),
            rich.progress.TimeElapsedColumn(),
        )
        if self._console.is_interactive and not self.is_silent:
            with rich.progress.Progress(
                *columns, console=self._console, transient=True
            ) as progress:
                progress.add_task(printable(text), total=None)
                yield
        else:
            self.line(f"{text} ...")
            yield

    def tracker(
        self, description: str
    ) -> Callable[[Iterable[Any], int | None], Iterator[Any]]:
        """`track` for those who do not know what they are shown as."""

        def track(iterable: Iterable[Any], total: int | None) -> Iterator[Any]:
            return self.track(iterable, total, description)

        return track
