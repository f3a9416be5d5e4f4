"""The tables of `price.py`, from its lines."""

import json
import pathlib
import statistics

import numpy as np
from common import versions
from scipy.stats import t

ONE, SINGLE, ALL = "one member", "single network", "ensemble"
_NONE = "–"
Lines = dict[tuple[str, int, str], dict]


def read(path: pathlib.Path) -> Lines:
    """The lines, by task, seed and row."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return {(f["task"], f["seed"], f["row"]): f for f in found}


def print_tables(path: pathlib.Path) -> None:
    """Quality, what is kept of the gain, and costs, in Markdown."""
    lines = read(path)
    tasks = list(dict.fromkeys(key[0] for key in lines))
    rows = list(dict.fromkeys(key[2] for key in lines))
    print(versions(), "\n")
    _print_line(["error, % / likelihood / calibration error, seeds", *tasks])
    _print_line(["---"] * (len(tasks) + 1))
    for row in rows:
        _print_line([row, *(_quality_cell(lines, task, row) for task in tasks)])
    for base in (SINGLE, ONE):
        print(f"\nThe gain in error over {base}:\n")
        _print_line(["row", *tasks])
        _print_line(["---"] * (len(tasks) + 1))
        gains = [gain(lines, task, ALL, base) for task in tasks]
        _print_line([ALL, *gains])
        for row in rows:
            if row not in (ALL, base):
                cells = [kept(lines, task, row, base) for task in tasks]
                _print_line([f"{row}, share kept", *cells])
    print("\nCosts as ratios to one member, the median of the tasks:\n")
    names = ["row", "multiply-adds", "bytes", "one thread", "two threads"]
    _print_line(names)
    _print_line(["---"] * len(names))
    for row in rows:
        _print_line([row, *_cost_cells(lines, row)])


def _print_line(cells: list[str]) -> None:
    print("| " + " | ".join(cells) + " |")


def errors(lines: Lines, task: str, *rows: str) -> np.ndarray:
    """A line for each seed that all rows have, a column for each row."""
    seeds = sorted({key[1] for key in lines if key[0] == task})
    common = [s for s in seeds if all((task, s, r) in lines for r in rows)]
    return np.array(
        [[lines[task, s, r]["error"] for r in rows] for s in common]
    ).reshape(-1, len(rows))


def gain(lines: Lines, task: str, row: str, base: str) -> str:
    """The mean paired difference with its 95 % interval."""
    found = errors(lines, task, base, row)
    differences = found[:, 0] - found[:, 1]
    if len(differences) < 2:
        return _NONE
    width = t.ppf(0.975, len(differences) - 1) * differences.std(ddof=1)
    width /= np.sqrt(len(differences))
    return f"{differences.mean():.2f} ± {width:.2f}"


def kept(lines: Lines, task: str, row: str, base: str) -> str:
    """The gain of a row over a base as a share of the ensemble's."""
    found = errors(lines, task, base, row, ALL)
    if not len(found):
        return _NONE
    base_error, own, best = found.mean(axis=0)
    if best >= base_error:
        return "no gain to keep"
    return f"{(base_error - own) / (base_error - best):.0%}"


def _quality_cell(lines: Lines, task: str, row: str) -> str:
    found = [f for k, f in lines.items() if (k[0], k[2]) == (task, row)]
    if not found:
        return _NONE
    error, likelihood, calibration = (
        float(np.mean([f[name] for f in found]))
        for name in ("error", "likelihood", "calibration")
    )
    numbers = f"{error:.2f} / {likelihood:.3f} / {calibration:.3f}"
    return f"{numbers}, {len(found)}"


def _cost_cells(lines: Lines, row: str) -> list[str]:
    found = [f for k, f in lines.items() if k[2] == row and "bytes" in f]
    if not found:
        return [_NONE] * 4
    ones = {
        f["task"]: f for k, f in lines.items() if k[2] == ONE and "bytes" in f
    }
    ratios = [
        [f[name] / ones[f["task"]][name] for f in found]
        for name in ("multiply_adds", "bytes")
    ]
    times = [f"time_ratio_{n}" for n in (1, 2)]
    ratios += [[f[name] for f in found if name in f] for name in times]
    return [
        f"{statistics.median(values):.2f}" if values else _NONE
        for values in ratios
    ]
