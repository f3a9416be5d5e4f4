"""`cbnn inspect`: what is in a run directory, for people and machines."""

import pathlib

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from cbnn_keras.calibration import CalibrationRecord
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.manifest import Json
from cbnn_keras.runs.run import Run
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
    voters, cycles = run.voters, run.auto_cycles
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
        # What started anew by held-out data votes by its time, not by trust.
        "restarts_after": [] if cycles is None else _made(cycles.starts, run),
        "calibration": None
        if run.calibration is None
        else run.calibration.to_json(),
    }


def _made(starts: list[int], run: Run) -> list[int]:
    """Those new starts that training has come to, as far as rounds tell."""
    ends = [record.step for record in run.rounds if not record.is_final]
    return [step for step in starts if step <= max(ends, default=0)]


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
    silent = "no vote" if content["restarts_after"] else "not trusted"
    console.print(_rounds_table(rounds, silent))
    named = {"method": header["method"], **header["settings"]}
    settings = ", ".join(f"{name} {value}" for name, value in named.items())
    console.print(printable(f"Settings: {settings}"), soft_wrap=True)
    if content["calibration"] is not None:
        text = _calibration(content["calibration"], rounds)
        console.print(printable(text), soft_wrap=True)


def _calibration(found: Json, rounds: list[Json]) -> str:
    text = (
        f"Calibrated: {CalibrationRecord(**found).scaling} from "
        f"{found['num_samples']:,} samples"
    )
    if found["coverage"] is not None:
        text += f", sets of coverage {found['coverage']:g}"
    voting = {r["step"]: r["vote"] for r in rounds if r["is_voting"]}
    if dict(zip(found["members"], found["votes"], strict=True)) != voting:
        steps = ", ".join(map(str, found["members"]))
        votes = ", ".join(f"{vote:.3f}" for vote in found["votes"])
        text += f"; only for the members of steps {steps} with votes {votes}"
    return text


def _vote(record: Json, silent: str) -> str:
    if not record["is_member"]:
        return "no member"
    if record["is_kept"] and not record["is_voting"]:
        return silent
    return f"{record['vote']:.3f}"


def _rounds_table(rounds: list[Json], silent: str) -> Table:
    """A row for each; what is said of members without a vote is `silent`."""
    table = Table()
    # Without reweighting Z is 1, and so is the bound: nothing to look at.
    of_weights = {"Z": "normaliser", "bound": "bound"}
    if all(r["normaliser"] == 1 for r in rounds):
        of_weights = {}
    names = ("step", "epoch", "weighted error", "vote", *of_weights, "size")
    for name in names:
        table.add_column(name, justify="right")
    for r in rounds:
        table.add_row(
            str(r["step"]),
            str(r["epoch"] + 1),
            f"{r['error']:.4f}",
            _vote(r, silent),
            *(f"{r[name]:.4f}" for name in of_weights.values()),
            decimal(r["bytes"]) if r["is_kept"] else "not kept",
        )
    return table
