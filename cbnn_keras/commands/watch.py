"""`cbnn watch`: a table that follows a run of another process.

Only the manifest is read, which is replaced as a whole: whatever the trainer
does meanwhile, there is the old one or the new one.
"""

import os
import pathlib
import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cbnn_keras.runs.directory import RunDirectory, holds_run
from cbnn_keras.runs.manifest import Round
from cbnn_keras.runs.manifest_json import MANIFEST
from cbnn_keras.support import files
from cbnn_keras.support.console import printable

_SECONDS = 1.0  # between two looks


def watch_run(
    directory: pathlib.Path,
    max_bytes: int = files.MAX_BYTES,
    *,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Shows a run as it grows, until it is finished or the user has enough.

    On a terminal one table is kept up to date; elsewhere each new round is a
    line. A directory that holds no run yet is waited for.

    Args:
        directory: The run.
        max_bytes: What its files may take.
        wait: Is called between two looks.

    Raises:
        RunError: If what is in the directory is not a run.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    show = _on_terminal if console.is_terminal else _line_by_line
    try:
        show(console, directory, max_bytes, wait)
    except KeyboardInterrupt:
        console.print("No longer watched; training goes on if it did.")


def _on_terminal(
    console: Console,
    directory: pathlib.Path,
    max_bytes: int,
    wait: Callable[[float], None],
) -> None:
    with Live(console=console, auto_refresh=False) as live:
        while True:
            run = _opened(directory, max_bytes)
            live.update(_view(directory, run), refresh=True)
            if run is not None and run.is_finished:
                return
            wait(_SECONDS)


def _line_by_line(
    console: Console,
    directory: pathlib.Path,
    max_bytes: int,
    wait: Callable[[float], None],
) -> None:
    told: list[str] = []
    while True:
        run = _opened(directory, max_bytes)
        lines = [_heading(directory, run)]
        if run is not None:
            lines = [_sentence(run, record) for record in run.rounds]
            lines += [_heading(directory, run)] if run.is_finished else []
        for line in lines:
            if line not in told:
                console.print(printable(line), soft_wrap=True)
        told = lines
        if run is not None and run.is_finished:
            return
        wait(_SECONDS)


def _opened(directory: pathlib.Path, max_bytes: int) -> RunDirectory | None:
    if not os.path.lexists(directory):
        return None
    if directory.is_dir() and not holds_run(directory):
        return None
    return RunDirectory.open(directory, max_bytes)


def _heading(directory: pathlib.Path, run: RunDirectory | None) -> str:
    if run is None:
        return f"{directory}: waiting for a run to begin there"
    num = len(run.members)
    members = f"{num} member{'' if num == 1 else 's'}"
    total = run.header.settings.total_steps
    total = total and run.first_step + total
    if run.is_finished:
        return f"{directory}: complete, {members}"
    step = max(
        [record.step for record in run.rounds]
        + ([run.state.step] if run.state else [0])
    )
    of_total = f" of at most {total:,}, {step / total:.0%}" if total else ""
    age = max(time.time() - (directory / MANIFEST).stat().st_mtime, 0)
    return (
        f"{directory}: {members}, step {step:,}{of_total}; last change "
        f"{age:.0f} s ago"
    )


def _sentence(run: RunDirectory, record: Round) -> str:
    vote = f"vote {record.vote:.3f}" if record.is_member else "no member"
    return (
        f"step {record.step}, epoch {record.epoch + 1}: weighted error "
        f"{record.error:.4f}, {vote}{_mark(run, record)}"
    )


def _mark(run: RunDirectory, record: Round) -> str:
    if record.is_final:
        return ", final model"
    is_gone = record.is_member and record.step not in run.members
    return ", not kept" if is_gone else ""


def _view(directory: pathlib.Path, run: RunDirectory | None) -> Group:
    heading = Text(printable(_heading(directory, run)))
    if run is None:
        return Group(heading)
    table = Table()
    for name in ("step", "epoch", "weighted error", "vote", "training loss"):
        table.add_column(name, justify="right")
    table.add_column("")
    for record in run.rounds:
        loss = record.negative_log_likelihood
        table.add_row(
            f"{record.step:,}",
            str(record.epoch + 1),
            f"{record.error:.4f}",
            f"{record.vote:.3f}" if record.is_member else "no member",
            "" if loss is None else f"{loss:.4f}",
            _mark(run, record).removeprefix(", "),
        )
    return Group(heading, table)
