"""What the ensemble's accuracy costs to serve, and at the price of one network.

    python benchmarks/price.py run --data-dir DATA
        [--tasks 'digits,digits/wrong labels'] [--rows 'ensemble;soup']
        [--seeds 5] [--runs runs/price]
        [--output benchmarks/results/price.jsonl]
    python benchmarks/price.py tables [--output ...]

Real tasks (`accuracy_tasks.py`, the converged budget; clean unless a variant is
named), ordinary Keras scripts, one budget. A run of `CBNNCallback(restarts=3)`
gives the members and the ensemble, and the ensemble the distilled network; a
run of the same steps with one cosine and six checkpoints gives the single
network and the soup. Cascades are of the ensemble, the confident one with the
distilled network first. Rows with `int8` are the same in eight bits.

`run` writes a line of JSON for each task, seed and row: error, likelihood and
calibration error on test data and multiply-adds of a sample; for the first
seed also the size of the ONNX file and milliseconds of a request of one sample
on one and on two threads. It continues where it stopped; runs that were trained
are kept in `--runs` and opened again for rows that are added later: a row is a
function in `price_rows.ROWS`. `tables` prints ratios to one member, and the
share of the ensemble's gain in error that a row keeps, without training.
"""

import argparse
import json
import pathlib
import statistics
import tempfile

from common import alternate, onnx_session

import numpy as np  # isort: skip
from price_rows import (  # isort: skip
    ROWS,
    Case,
    Served,
    multiply_adds,
    one_member,
)
from price_tables import print_tables, read  # isort: skip
from accuracy_tasks import Data  # isort: skip
from rich.progress import Progress  # isort: skip

from cbnn_keras import metrics
from cbnn_keras.analysis.calibration import calibration

RESULTS = pathlib.Path(__file__).parent / "results" / "price.jsonl"
REQUESTS = 100  # that are timed together


def quality(served: Served, data: Data) -> dict[str, float]:
    """Error in %, likelihood, calibration error, and arithmetic of a sample."""
    x, labels = data.test
    found, num_members = served.answers(x)
    return {
        "error": 100 * (1 - metrics.accuracy(found, labels)),
        "likelihood": metrics.negative_log_likelihood(found, labels),
        "calibration": calibration(found, labels).expected_error,
        "multiply_adds": num_members * multiply_adds(served.ensemble.model),
    }


def costs(served: Served, one: Served, data: Data, turns: int) -> dict:
    """Size and time; the time of one member beside it, in turns."""
    x = data.test[0][:1]
    with tempfile.TemporaryDirectory() as name:
        files = [pathlib.Path(name) / f"{i}.onnx" for i in range(2)]
        for file, what in zip(files, (served, one), strict=True):
            what.export(file)
        found: dict[str, float] = {"bytes": files[0].stat().st_size}
        for threads in (1, 2):
            own, other = (_request(file, x, threads) for file in files)
            seconds = alternate({"own": own, "one": other}, turns)
            ratios = [
                a / b
                for a, b in zip(seconds["own"], seconds["one"], strict=True)
            ]
            found[f"ms_{threads}"] = (
                1000 * statistics.median(seconds["own"]) / REQUESTS
            )
            found[f"time_ratio_{threads}"] = statistics.median(ratios)
    return found


def _request(file: pathlib.Path, x: np.ndarray, threads: int):
    """Requests of one sample, one after the other."""
    session = onnx_session(file, threads)
    feed = {session.get_inputs()[0].name: x}

    def request() -> None:
        for _ in range(REQUESTS):
            session.run(None, feed)

    return request


def measured(case: Case, row: str, with_costs: bool, turns: int) -> dict:
    """A line of the results."""
    parts = ROWS[row](case)
    found = [quality(part, case.data) for part in parts]
    line = {k: float(np.mean([f[k] for f in found])) for k in found[0]}
    if with_costs:
        one = one_member(case)[-1]
        line |= costs(parts[-1], one, case.data, turns)
    return {
        "task": case.name,
        "seed": case.seed,
        "row": row,
        **{name: round(value, 6) for name, value in line.items()},
    }


def run(options: argparse.Namespace) -> None:
    done = read(options.output)
    options.output.parent.mkdir(exist_ok=True)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    jobs = [
        (task, seed, row)
        for seed in seeds
        for task in options.tasks
        for row in options.rows
        if (task, seed, row) not in done
    ]
    case = None
    with Progress() as progress:
        bar = progress.add_task("rows", total=len(jobs))
        for task, seed, row in jobs:
            progress.update(bar, description=f"{task}, seed {seed}, {row}")
            if case is None or (case.name, case.seed) != (task, seed):
                case = Case(task, seed, options.data_dir, options.runs)
            is_first = seed == options.first_seed and options.turns > 0
            line = measured(case, row, is_first, options.turns)
            with options.output.open("a") as file:
                file.write(json.dumps(line) + "\n")
            progress.advance(bar)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    training = commands.add_parser("run", help="measure what is not there yet")
    training.set_defaults(function=run)
    training.add_argument(
        "--tasks",
        type=lambda text: text.split(","),
        default=["digits", "satellite", "ag_news", "dbpedia"],
    )
    training.add_argument(
        "--rows", type=lambda text: text.split(";"), default=list(ROWS)
    )
    training.add_argument("--data-dir", type=pathlib.Path, required=True)
    training.add_argument(
        "--runs", type=pathlib.Path, default=pathlib.Path("runs/price")
    )
    training.add_argument("--seeds", type=int, default=5)
    training.add_argument("--first-seed", type=int, default=1)
    training.add_argument(
        "--turns", type=int, default=9, help="of timing; 0 for no costs"
    )
    show = commands.add_parser("tables", help="what the lines say")
    show.set_defaults(function=lambda options: print_tables(options.output))
    for command in (training, show):
        command.add_argument("--output", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
