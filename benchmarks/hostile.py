"""Hostile runs, hostile files and mutations: what they can do.

    python benchmarks/hostile.py [--mutations 5000] [--quick]

Runs every operation on every hostile run of `tests/faults/`, the commands on
the hostile files, mutations of a small run with fixed seeds, and every flip of
a single bit of its manifest. All columns must be 0; the exit code is 1
otherwise. An hour on one core; `--quick` runs the cheap operations only.
"""

import argparse
import collections
import pathlib
import sys
import tempfile
from collections.abc import Iterator

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

TESTS = pathlib.Path(__file__).parents[1] / "tests" / "faults"
sys.path.insert(0, str(TESTS))

import fuzz  # noqa: E402
import hostile_files  # noqa: E402
import hostile_runs  # noqa: E402
from judge import ALL, CHEAP, FAULTS, Judge, faults  # noqa: E402

TITLES = {
    "executed": "code executions",
    "outside": "outside accesses",
    "allocated": "allocations above",
    "other": "other exceptions",
    "silent": "silent changes",
    "accepted": "not refused",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=5000)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    console = Console(markup=False, highlight=False)
    counts: dict[str, collections.Counter[str]] = {}
    with (
        tempfile.TemporaryDirectory() as directory,
        Judge(pathlib.Path(directory)) as judge,
        Progress(console=console) as progress,
    ):
        parts = {
            "hostile runs": _cases(
                judge, hostile_runs.cases(), CHEAP if options.quick else ALL
            ),
            "hostile files": _cases(judge, hostile_files.cases(), CHEAP),
            "mutations": _mutations(judge.fuzz(range(options.mutations))),
            "bits of a manifest": _mutations(
                judge.flips(range(fuzz.num_flips(judge.shared)))
            ),
        }
        totals = {
            "hostile runs": len(hostile_runs.cases()),
            "hostile files": len(hostile_files.cases()),
            "mutations": options.mutations,
            "bits of a manifest": fuzz.num_flips(judge.shared),
        }
        for part, found in parts.items():
            task = progress.add_task(part, total=totals[part])
            counts[part] = collections.Counter()
            for num_operations, lines in found:
                counts[part].update(cases=1, operations=num_operations)
                for name, text in lines:
                    counts[part][name] += 1
                    progress.console.print(text[:300], soft_wrap=True)
                progress.advance(task)
    console.print(_table(counts))
    return int(any(counts[part][name] for part in counts for name in FAULTS))


Found = Iterator[tuple[int, list[tuple[str, str]]]]


def _cases(judge: Judge, cases: dict, operations: tuple[str, ...]) -> Found:
    """Of each case: how many operations, and what was wrong with them."""
    for name in cases:
        verdicts = judge.run(name, operations)
        lines = [line for verdict in verdicts for line in faults(verdict)]
        yield len(verdicts), [(_kind(line), line) for line in lines]


def _kind(line: str) -> str:
    """Which kind of fault a line of `judge.faults` is about."""
    return line.partition("] ")[2].partition(":")[0]


def _mutations(verdicts: Iterator[dict]) -> Found:
    for verdict in verdicts:
        lines = [
            (text.partition(":")[0], f"{verdict['what']}: {text}")
            for text in verdict["faults"]
        ]
        yield 2, lines


def _table(counts: dict[str, collections.Counter[str]]) -> Table:
    table = Table()
    for name in ("", "cases", "operations", *TITLES.values()):
        table.add_column(name, justify="right" if name else "left")
    for part, found in counts.items():
        names = ("cases", "operations", *FAULTS)
        table.add_row(part, *(f"{found[name]:,}" for name in names))
    return table


if __name__ == "__main__":
    sys.exit(main())
