"""Kills of training, saving, resuming and exporting, as many as you like.

    python benchmarks/kills.py 200 [--seed 0]

Real processes are killed (SIGKILL) where they are about to change something on
the disk, or at a random moment. After each kill the same work is done again.
The table says how often something was lost, damaged or unequal to what nobody
interrupted (target: never); then the exit code is 1. What is wrong is left in
the directory that is printed.
"""

import argparse
import collections
import os
import pathlib
import random
import shutil
import sys
import tempfile

import rich.console
import rich.progress
import rich.table

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

TESTS = pathlib.Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS / "faults"))

from kills import DAMAGED, LOST, UNEQUAL, Kills  # noqa: E402
from processes import Processes  # noqa: E402


def table(results: dict[str, list[tuple[int, set[str]]]]) -> rich.table.Table:
    """A row for each kind, and one for all."""
    found = rich.table.Table("kind", "kills", LOST, DAMAGED, UNEQUAL)
    rows = {**results, "all": [r for row in results.values() for r in row]}
    for kind, row in rows.items():
        wrong = collections.Counter(name for _, names in row for name in names)
        numbers = [sum(num for num, _ in row)]
        numbers += [wrong[name] for name in (LOST, DAMAGED, UNEQUAL)]
        found.add_row(kind, *map(str, numbers))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("number", type=int, help="how many kills")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    console = rich.console.Console()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cbnn-kills-"))
    (folder / "output").mkdir()
    processes = Processes(folder / "output")
    kills = Kills(processes, folder, random.Random(options.seed))
    results: dict[str, list[tuple[int, set[str]]]] = {
        k: [] for k in kills.kinds
    }
    with rich.progress.Progress(console=console) as progress:
        bar = progress.add_task("killing", total=options.number)
        kinds = list(kills.kinds)
        while kills.num_killed < options.number:
            kind = kinds[sum(map(len, results.values())) % len(kinds)]
            before = kills.num_killed
            wrong = kills.kinds[kind]()
            results[kind].append((kills.num_killed - before, wrong))
            progress.update(bar, completed=kills.num_killed)
            if wrong:
                progress.print(f"{kind}: {', '.join(sorted(wrong))}")
    processes.close()
    console.print(table(results))
    if any(wrong for row in results.values() for _, wrong in row):
        console.print(f"What was wrong is in {folder}.")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
