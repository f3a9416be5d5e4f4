"""`cbnn inspect`: what is in a run directory, for people and machines."""

import pathlib

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.manifest import Json
from cbnn_keras.support import files
from cbnn_keras.support.console import printable

UNFINISHED = (
    "Training has been interrupted or still goes on. Resume it with "
    "CBNNCallback(directory, resume=True), or export the members so far with "
    "cbnn export --allow-unfinished."
)


def inspect_run(
    directory: pathlib.Path, max_bytes: int = files.MAX_BYTES
) -> Json:
    """Header, rounds and sizes of a run, after checking every file.

    Args:
        directory: The run.
        max_bytes: What its files may take.

    Raises:
        RunError: If the directory is not a run, or a file is damaged.
    """
    run = RunDirectory.open(directory, max_bytes)
    run.verify()
    voters = run.voters
    rounds = [
        {
            **record.to_json(),
            "vote": run.vote(record.step)
            if record.step in run.members
            else record.vote,
            "is_kept": record.step in run.members,
            "is_voting": record.step in voters,
            "bytes": run.member_bytes(record.step)
            if record.step in run.members
            else 0,
        }
        for record in run.rounds
    ]
    return {
        "directory": str(directory),
        "is_finished": run.is_finished,
        "note": None if run.is_finished else UNFINISHED,
        "header": run.header.to_json(),
        "rounds": rounds,
    }


def print_run(content: Json) -> None:
    """Shows what `inspect_run` found as a table and a list of settings."""
    console = Console(highlight=False, markup=False, emoji=False)
    header, rounds = content["header"], content["rounds"]
    num_members = sum(r["is_kept"] for r in rounds)
    status = "complete" if content["is_finished"] else "not finished"
    lines = [
        f"{content['directory']}: {status}, "
        f"{num_members} member{'' if num_members == 1 else 's'}, "
        f"{header['num_classes']} classes, {header['num_samples']:,} training "
        f"samples, {header['num_parameters']:,} parameters"
    ]
    if content["note"] is not None:
        lines.append(content["note"])
    # What the run says of itself may come from elsewhere.
    for line in lines:
        console.print(printable(line), soft_wrap=True)
    console.print(_rounds_table(rounds))
    named = {"method": header["method"], **header["settings"]}
    settings = ", ".join(f"{name} {value}" for name, value in named.items())
    console.print(printable(f"Settings: {settings}"), soft_wrap=True)


def _vote(record: Json) -> str:
    if not record["is_member"]:
        return "no member"
    if record["is_kept"] and not record["is_voting"]:
        return "not trusted"
    return f"{record['vote']:.3f}"


def _rounds_table(rounds: list[Json]) -> Table:
    table = Table()
    for name in ("step", "epoch", "weighted error", "vote", "Z", "bound"):
        table.add_column(name, justify="right")
    table.add_column("size", justify="right")
    for r in rounds:
        table.add_row(
            str(r["step"]),
            str(r["epoch"] + 1),
            f"{r['error']:.4f}",
            _vote(r),
            f"{r['normaliser']:.4f}",
            f"{r['bound']:.4f}",
            decimal(r["bytes"]) if r["is_kept"] else "not kept",
        )
    return table
