"""Is it more accurate? Every method at one budget, on many small real tasks.

    python benchmarks/accuracy.py run --data-dir DATA [--tasks digits,satellite]
        [--variants clean] [--budgets short,long] [--methods plain,cosine]
        [--seeds 5] [--output benchmarks/results/accuracy.jsonl]
    python benchmarks/accuracy.py tables [--output ...] [--picture ...]

Six tasks (`accuracy_tasks.py`), each clean, with 20 % wrong labels and with a
10:1 imbalance of half of the classes; budgets that are too short to fit the
training set, three times as long as that takes, and four times that. Each
method has the same number of steps, and of three learning rates the one that is
best on held-out data of a seed of its own; CBNN is added to plain and cosine
scripts with the rates of those. Differences are paired by seed: same split,
same first weights, same order.

`run` writes a line of JSON for each run, and continues where it stopped.
`tables` draws and prints what is in the lines, without training.
"""

import argparse
import json
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from accuracy_lines import read
from accuracy_methods import (
    ADDED,
    AUTO,
    ONLY_IMBALANCED,
    RESTARTS,
    TUNED,
    Outcome,
    Setting,
)
from accuracy_picture import draw
from accuracy_tables import write_tables
from accuracy_tasks import BUDGETS, TASKS, VARIANTS, Data, Task, split
from accuracy_training import compiled_loop
from common import versions
from compiled_loop import CompiledLoop
from rich.progress import Progress

from cbnn_keras import imbalance, metrics
from cbnn_keras.analysis.calibration import fit_temperature, scale

RESULTS = pathlib.Path(__file__).parent / "results" / "accuracy.jsonl"
PICTURE = RESULTS.parents[2] / "docs" / "images" / "accuracy.png"
TUNING_SEED = 1000
# What is also judged after division by the training priors.
WITH_PRIORS = ("cosine", "CBNN, cosine", *RESTARTS, AUTO)


class Lines:
    """The lines of results: what there is, and where new ones go."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self.found: dict[tuple, dict] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                self._keep(json.loads(line))

    @staticmethod
    def key(job: dict) -> tuple:
        names = ("task", "variant", "budget", "method", "rate", "seed")
        return tuple(job[name] for name in names)

    def add(self, line: dict) -> None:
        self._keep(line)
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _keep(self, line: dict) -> None:
        self.found[self.key(line)] = line


def measured(outcome: Outcome, data: Data, priors: np.ndarray | None) -> dict:
    """Error and likelihoods, those after temperature scaling too."""
    val, test = outcome.val, outcome.test
    if priors is not None:
        val, test = (imbalance.threshold(p, priors) for p in (val, test))
    temperature = fit_temperature(val, data.val[1])
    labels = data.test[1]
    likelihood = metrics.negative_log_likelihood
    found = {
        "val_error": 100 * (1 - metrics.accuracy(val, data.val[1])),
        "val_likelihood": likelihood(val, data.val[1]),
        "error": 100 * (1 - metrics.accuracy(test, labels)),
        "likelihood": likelihood(test, labels),
        "calibrated": likelihood(scale(test, temperature), labels),
    }
    errors = [round(error, 4) for error in outcome.train_errors]
    return {k: round(v, 5) for k, v in found.items()} | {"train_errors": errors}


class Cell:
    """One task in one variant: trains whatever is not in the lines yet."""

    def __init__(
        self, task: Task, variant: str, lines: Lines, directory: pathlib.Path
    ) -> None:
        self._task = task
        self._variant = variant
        self._lines = lines
        self._directory = directory
        self._loaded: tuple[int, CompiledLoop, Data] | None = None

    def run(self, budget: str, name: str, rate: float, seed: int) -> None:
        """Makes a run, unless its lines are there."""
        job = {
            "task": self._task.name,
            "variant": self._variant,
            "budget": budget,
            "rate": rate,
            "seed": seed,
        }
        if Lines.key({**job, "method": name}) in self._lines.found:
            return
        setting = self.setting(budget, rate, seed)
        data = setting.data
        method = TUNED[name] if name in TUNED else ADDED[name][1]
        priors = imbalance.class_priors(data.train[1], data.num_classes)
        is_imbalanced = self._variant == "imbalanced"
        for found, outcome in method(setting).items():
            line = {**job, "method": found, "steps": setting.total_steps}
            line |= measured(outcome, data, None)
            if outcome.curve:
                line["curve"] = [round(a, 4) for _, a in outcome.curve]
            self._add(line)
            # One seed's training data may not have every class of Shuttle.
            if is_imbalanced and found in WITH_PRIORS and priors.all():
                line = {**line, "method": f"{found}, priors"}
                line |= measured(outcome, data, priors)
                self._add(line)

    def _add(self, line: dict) -> None:
        """Keeps a line; one that is there has to be the same."""
        known = self._lines.found.get(Lines.key(line))
        if known is None:
            self._lines.add(line)
        elif any(line[name] != value for name, value in known.items()):
            raise ValueError(f"{line} was {known} before")

    def best_rate(self, budget: str, name: str) -> float:
        """The rate that is best on the held-out data of the tuning seed."""
        found = []
        for rate in self._task.rates:
            self.run(budget, name, rate, TUNING_SEED)
            key = (self._task.name, self._variant, budget)
            line = self._lines.found[(*key, name, rate, TUNING_SEED)]
            found.append((line["val_error"], line["val_likelihood"], rate))
        return min(found)[-1]

    def setting(self, budget: str, rate: float, seed: int) -> Setting:
        """What a run is made of."""
        loop, data = self._loop(seed)
        # The same number of steps, also where samples were taken away.
        share = self._task.sizes[0] / len(loop.labels)
        epochs = round(self._task.num_epochs(budget) * share)
        total_steps = epochs * loop.steps_per_epoch
        is_watched = budget == "converged" and seed < TUNING_SEED
        return Setting(
            self._task, loop, data, total_steps, rate, seed, is_watched
        )

    def _loop(self, seed: int) -> tuple[CompiledLoop, Data]:
        if self._loaded is None or self._loaded[0] != seed:
            data = split(self._task, self._variant, seed, self._directory)
            loop = None if self._loaded is None else self._loaded[1]
            # Compiling takes longer than many a run.
            if loop is None or len(loop.labels) != len(data.train[1]):
                loop = compiled_loop(self._task, data)
            else:
                loop.load(*data.train)
            self._loaded = (seed, loop, data)
        return self._loaded[1:]


def run(options: argparse.Namespace) -> None:
    # One thread each, so that several of these can run side by side.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    lines = Lines(options.output)
    places = [(t, v) for t in options.tasks for v in options.variants]
    seeds = range(options.first_seed, options.seeds)
    with Progress() as progress:
        num = len(places) * len(options.methods) * len(options.budgets)
        bar = progress.add_task("runs", total=num * (len(seeds) + 1))
        for task, variant in places:
            cell = Cell(TASKS[task], variant, lines, options.data_dir)
            jobs = []
            for budget in options.budgets:
                for name in options.methods:
                    if name in ONLY_IMBALANCED and variant != "imbalanced":
                        continue
                    progress.update(
                        bar, description=f"{task}, {variant}, {name}"
                    )
                    tuned = name if name in TUNED else ADDED[name][0]
                    rate = cell.best_rate(budget, tuned)
                    jobs.append((budget, name, rate))
                    progress.advance(bar)
            # Seed by seed: its loop is compiled once.
            for seed in seeds:
                for job in jobs:
                    cell.run(*job, seed)
                    progress.advance(bar)


def tables_and_picture(options: argparse.Namespace) -> None:
    results = read(options.output)
    write_tables(options.output, results, versions())
    draw(results, options.picture)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    training = commands.add_parser("run", help="train what is not there yet")
    training.set_defaults(function=run)
    choices = {
        "tasks": list(TASKS),
        "variants": list(VARIANTS),
        "budgets": list(BUDGETS),
        "methods": [*TUNED, *ADDED],
    }
    for name, known in choices.items():
        training.add_argument(f"--{name}", default=known, type=one_of(known))
    training.add_argument("--data-dir", type=pathlib.Path, required=True)
    training.add_argument("--seeds", type=int, default=5)
    training.add_argument("--first-seed", type=int, default=0)
    tables = commands.add_parser("tables", help="what the lines say")
    tables.set_defaults(function=tables_and_picture)
    tables.add_argument("--picture", type=pathlib.Path, default=PICTURE)
    for command in (training, tables):
        command.add_argument("--output", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()
    options.function(options)


def one_of(known: list[str]):
    def parse(text: str) -> list[str]:
        # Names of methods have commas in them.
        names = [name for name in text.split(";" if ";" in text else ",")]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"{unknown[0]!r} is none of {'; '.join(known)}"
            )
        return names

    return parse


if __name__ == "__main__":
    main()
