"""The paper's three tables, as a grid of runs and seeds.

    python examples/reproduce.py table1                       # on GPUs
    python examples/reproduce.py table1 --preset cpu          # two hours
    python examples/reproduce.py table1 --preset cpu --quick  # six minutes
    python examples/reproduce.py table1 --preset cpu --print  # just the table

Table 1:  test error by model, data and method at equal training budget;
          ImageNet, which does not fit into memory, is in imagenet.py
Table 2:  time and iterations until the ensemble of the checkpoints so far and
          the current model reaches an accuracy
Table 3:  test error on imbalanced data (a fifth of the classes has a tenth of
          its samples), also with thresholding and with oversampling
Methods:  those of the paper, and NoCycle, SWA and PE (four networks with a
          quarter of the epochs each). SSB is our reconstruction.
Cost:     "paper" was never run by us and wants GPUs and patience; "cpu" is
          the same with a ResNet-8 on 10,000 images of 16x16 pixels, 48 epochs,
          three seeds: table 1 took 105 minutes on one CPU core. With --quick,
          4,000 images, 16 epochs, one seed: 6 minutes
Expected: examples/results/RESULTS.md

Every finished run is a line in the results, a JSON object with its recipe. A
command that is started again goes on where it was; `--seeds 0` and `--seeds 1
2` can run side by side into the same file. The table is written beside it.
"""

import argparse
import dataclasses
import hashlib
import importlib.metadata
import json
import pathlib
import shlex
import sys
import time
from typing import Any

import keras
import numpy as np
import rich.console
import rich.progress
from recipes import tables
from recipes.training import (
    METHODS,
    Recipe,
    Scope,
    Split,
    devices,
    load_split,
    take,
    train,
)

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.imbalance import class_priors, oversample, step_imbalance
from cbnn_keras.metrics import accuracy
from cbnn_keras.training.checkpointing import CheckpointCallback

TREATMENTS = ("original", "thresholding", "oversampling")
# On the path to the paper's numbers: what its tables compare.
MODELS = {
    "table1": ["resnet110", "densenet40", "efficientnet-b0", "efficientnet-b3"],
    "table2": ["efficientnet-b0"],
    "table3": ["efficientnet-b0", "efficientnet-b3"],
}
DATASETS = {
    "table1": ["cifar10", "cifar100", "tiny-imagenet"],
    "table2": ["cifar10", "cifar100"],
    "table3": ["cifar100", "tiny-imagenet"],
}
CHOICES = {
    "table1": [m for m in METHODS if m != "horizontal"],
    "table2": ["single", "sse", "ssb", "pe", "cbnn"],
    "table3": ["single", "sse", "ssb", "fge", "cbnn"],
}
# What the single model leaves is the last of NoCycle's checkpoints.
SHARED_RUNS = {"single": "no-cycle"}


@dataclasses.dataclass(frozen=True)
class Job:
    """One line of the results."""

    table: str
    recipe: Recipe
    method: str
    seed: int
    treatment: str = "original"

    @property
    def key(self) -> dict[str, Any]:
        """What tells lines apart."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        place = f"{self.recipe.dataset}, {self.recipe.model}"
        treated = f", {self.treatment}" if self.treatment != "original" else ""
        return f"{place}, {METHODS[self.method]}{treated}, seed {self.seed}"


def recipes(options: argparse.Namespace) -> list[Recipe]:
    """Models and data of a table at the scale of a preset."""
    if options.preset == "paper":
        scale: dict[str, Any] = {}
        model_names, datasets = MODELS[options.table], DATASETS[options.table]
    else:
        scale = {
            "size": 16,
            "num_train": 10_000,
            "epochs": 48,
            "augment": "standard",
        }
        model_names, datasets = ["resnet8"], ["cifar100"]
    if options.quick:
        scale |= {"num_train": 4_000, "num_test": 2_000, "epochs": 16}
    if options.epochs:
        scale["epochs"] = options.epochs
    if options.initial_rate:
        scale["initial_rate"] = options.initial_rate
    return [
        Recipe(dataset=dataset, model=model, **scale)
        for dataset in options.datasets or datasets
        for model in options.models or model_names
    ]


def jobs(options: argparse.Namespace) -> list[Job]:
    """The grid, seeds outermost, so that a part of it can be compared."""
    num_seeds = 5 if options.preset == "paper" else 3
    default = [0] if options.quick else range(num_seeds)
    return [
        Job(options.table, recipe, method, seed, treatment)
        for seed in options.seeds or default
        for recipe in recipes(options)
        for method in options.methods or CHOICES[options.table]
        for treatment in _treatments(options.table, method)
    ]


def _treatments(table: str, method: str) -> tuple[str, ...]:
    # The paper has CBNN do without: it is to balance the classes by itself.
    is_treated = table == "table3" and method != "cbnn"
    return TREATMENTS if is_treated else ("original",)


class Curve(keras.callbacks.Callback):
    """Accuracy after each epoch of the members so far and the current model.

    Its own time is left out of the seconds that it notes.
    """

    def __init__(
        self,
        callback: CheckpointCallback,
        split: Split,
        *,
        keeps_probabilities: bool = False,
    ) -> None:
        super().__init__()
        self._keeps_probabilities = keeps_probabilities
        self.points: list[dict[str, float]] = []
        self.probabilities: list[np.ndarray] = []
        self._callback = callback
        self._split = split
        self._known: set[int] = set()
        self._sum: Any = 0.0
        self._votes = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        stopped = time.perf_counter()
        is_member = self._add_members()
        outputs = self.model.predict(self._split.x_test, verbose=0)
        # A model that is not a member counts as much as the last one that is.
        vote = 0.0 if is_member else self._last_vote()
        mean = (self._sum + vote * outputs) / (self._votes + vote)
        if self._keeps_probabilities:
            self.probabilities.append(outputs.astype(np.float16))
        self.points.append(
            {
                "step": int(self.model.optimizer.iterations),
                "seconds": stopped - self._start,
                "accuracy": accuracy(mean, self._split.y_test),
            }
        )
        self._start += time.perf_counter() - stopped

    def _add_members(self) -> bool:
        """Takes new members in; says whether the model is one of them."""
        step = int(self.model.optimizer.iterations)
        for record in self._callback.history:
            if record["is_member"] and record["step"] not in self._known:
                self._known.add(record["step"])
                member = self._callback.ensemble().take([record["step"]])
                outputs = member.predict(self._split.x_test, verbose=0)
                self._sum = self._sum + record["vote"] * outputs
                self._votes += record["vote"]
        return step in self._known

    def _last_vote(self) -> float:
        members = [r for r in self._callback.history if r["is_member"]]
        return float(members[-1]["vote"]) if members else 1.0


def parallel_curve(
    curves: list[Curve], labels: np.ndarray
) -> list[dict[str, float]]:
    """Of networks that are trained side by side, with their costs added up."""
    epochs = zip(*[curve.points for curve in curves], strict=True)
    outputs = zip(*[curve.probabilities for curve in curves], strict=True)
    return [
        {
            "step": sum(point["step"] for point in points),
            "seconds": sum(point["seconds"] for point in points),
            "accuracy": accuracy(
                np.mean(probabilities, axis=0, dtype=np.float64), labels
            ),
        }
        for points, probabilities in zip(epochs, outputs, strict=True)
    ]


class Ticker(keras.callbacks.Callback):
    """Says which epoch it is."""

    def __init__(self, tell: Any) -> None:
        super().__init__()
        self._tell = tell

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._tell(f"epoch {epoch + 1}/{self.params['epochs']}")


def run(
    job: Job, split: Split, directory: pathlib.Path, scope: Scope, tell: Any
) -> dict[str, Any]:
    """Trains what a line needs, and gives what was measured."""
    if job.table == "table2":
        return _measure_curve(job, split, directory, scope, tell)
    if job.table == "table3":
        keep = step_imbalance(
            split.y, minority_share=0.2, ratio=10, seed=job.seed
        )
        split = take(split, keep)
    priors = class_priors(split.y, split.num_classes)
    if job.treatment == "oversampling":
        split = take(split, oversample(split.y, seed=job.seed))
    is_over = job.treatment == "oversampling"
    method = SHARED_RUNS.get(job.method, job.method)
    name = _run_name(job.recipe, method, "oversampling" * is_over, job.seed)
    ensemble = train(
        method,
        job.recipe,
        split,
        directory / name,
        seed=job.seed,
        watch=lambda _: [Ticker(tell)],
        scope=scope,
    )
    if method != job.method:
        ensemble = ensemble.select(num=1)
    tell("evaluating")
    return _evaluate(
        ensemble, split, priors if job.treatment == "thresholding" else None
    )


def _run_name(recipe: Recipe, *parts: Any) -> str:
    """A folder for each run; the digits tell recipes apart."""
    digest = hashlib.sha256(repr(recipe).encode()).hexdigest()[:8]
    named = [recipe.dataset, recipe.model, *parts, digest]
    return "-".join(str(part) for part in named if part != "")


def _evaluate(
    ensemble: CheckpointEnsemble, split: Split, priors: Any
) -> dict[str, Any]:
    test = (split.x_test, split.y_test)
    options = {"batch_size": 500, "verbose": 0}
    scores = ensemble.evaluate(*test, priors=priors, **options)
    final = ensemble.select(num=1).evaluate(*test, priors=priors, **options)
    selected = ensemble.select(
        validation_data=(split.x_select, split.y_select), **options
    )
    chosen = selected.evaluate(*test, priors=priors, **options)
    return {
        "error": _percent(scores["accuracy"]),
        "negative_log_likelihood": scores["negative_log_likelihood"],
        "num_members": len(ensemble),
        "votes": [float(vote) for vote in ensemble.votes],
        "final_error": _percent(final["accuracy"]),
        "selected_error": _percent(chosen["accuracy"]),
        "num_selected": len(selected),
        "training_errors": [m["error"] for m in ensemble.members],
    }


def _percent(accuracy: float) -> float:
    return round(100 * (1 - accuracy), 4)


def _measure_curve(
    job: Job, split: Split, directory: pathlib.Path, scope: Scope, tell: Any
) -> dict[str, Any]:
    curves: list[Curve] = []

    def watch(callback: CheckpointCallback) -> list[Any]:
        is_part = job.method == "pe"
        curves.append(Curve(callback, split, keeps_probabilities=is_part))
        return [curves[-1], Ticker(tell)]

    recipe = job.recipe
    if job.method == "pe":  # as in the paper: each is trained to the end
        recipe = dataclasses.replace(recipe, epochs=4 * recipe.epochs)
    train(
        job.method,
        recipe,
        split,
        directory / _run_name(recipe, job.method, "timed", job.seed),
        seed=job.seed,
        watch=watch,
        scope=scope,
        resume=False,  # a run in pieces has no time
    )
    points = (
        parallel_curve(curves, split.y_test)
        if job.method == "pe"
        else curves[0].points
    )
    return {"curve": points}


def command(options: argparse.Namespace) -> str:
    """What was typed, but for where the data are."""
    words = ["python", *sys.argv]
    if options.data_dir:
        words = [w.replace(options.data_dir, "DATA") for w in words]
    return shlex.join(words)


def versions() -> dict[str, str]:
    names = ("tensorflow", "keras", "cbnn-keras", "numpy")
    return {
        "python": sys.version.split()[0],
        **{name: importlib.metadata.version(name) for name in names},
    }


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """The results so far; a line that was cut off by a kill is not one."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            print(f"{path}: left out a line that is not JSON", file=sys.stderr)
    return found


def append_line(path: pathlib.Path, line: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = path.read_bytes() if path.exists() else b""
    is_cut = bool(content) and not content.endswith(b"\n")
    text = "\n" * is_cut + json.dumps(line) + "\n"
    # At once: another process may append to the same file.
    with path.open("ab", buffering=0) as file:
        file.write(text.encode())


def run_grid(
    grid: list[Job], path: pathlib.Path, options: argparse.Namespace
) -> None:
    """Does what has no line yet, one job after another."""
    console = rich.console.Console(highlight=False, soft_wrap=True)
    scope = devices()
    done = [line["job"] for line in read_lines(path)]
    left = [job for job in grid if job.key not in done]
    console.print(f"{len(grid)} results, {len(left)} of them to be trained for")
    columns = (
        *rich.progress.Progress.get_default_columns(),
        rich.progress.TimeElapsedColumn(),
    )
    with rich.progress.Progress(
        *columns, console=console, disable=not console.is_interactive
    ) as progress:
        bar = progress.add_task(
            "", total=len(grid), completed=len(grid) - len(left)
        )
        splits: dict[Recipe, Split] = {}
        start = time.perf_counter()
        for number, job in enumerate(left, start=1):

            def tell(text: str, job: Job = job) -> None:
                progress.update(bar, description=f"{job}: {text}")

            tell("loading")
            if job.recipe not in splits:
                splits = {job.recipe: load_split(job.recipe, options.data_dir)}
            result = run(
                job,
                splits[job.recipe],
                options.directory / path.stem,
                scope,
                tell,
            )
            append_line(
                path,
                {
                    "job": job.key,
                    **result,
                    "command": command(options),
                    "versions": versions(),
                },
            )
            minutes = (time.perf_counter() - start) / 60
            remaining = minutes / number * (len(left) - number)
            console.print(
                f"{job}: {tables.summary(result)} "
                f"({minutes:.0f} min so far, about {remaining:.0f} to go)"
            )
            progress.advance(bar)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("table", choices=sorted(MODELS))
    parser.add_argument("--preset", choices=["paper", "cpu"], default="paper")
    parser.add_argument("--quick", action="store_true", help="a first look")
    parser.add_argument("--print", action="store_true", help="train nothing")
    parser.add_argument("--data-dir", help="see recipes/data.py")
    parser.add_argument("--models", nargs="+", metavar="MODEL")
    parser.add_argument("--datasets", nargs="+", metavar="DATASET")
    parser.add_argument("--methods", nargs="+", choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, metavar="SEED")
    parser.add_argument("--epochs", type=int)
    parser.add_argument(
        "--initial-rate", type=float, help="instead of the paper's 0.05"
    )
    parser.add_argument(
        "--directory", type=pathlib.Path, default=pathlib.Path("runs/reproduce")
    )
    parser.add_argument("--results", type=pathlib.Path, help="a .jsonl file")
    options = parser.parse_args()
    quick = "-quick" if options.quick else ""
    name = f"{options.table}-{options.preset}{quick}"
    path = options.results or options.directory / f"{name}.jsonl"
    grid = jobs(options)
    if not options.print:
        run_grid(grid, path, options)
    make_table = tables.FORMATS[options.table]
    lines = read_lines(path)
    if lines:
        path.with_suffix(".md").write_text(make_table(lines))
    keys = [job.key for job in grid]
    print(make_table([line for line in lines if line["job"] in keys]))


if __name__ == "__main__":
    main()
