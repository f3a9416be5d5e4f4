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
network and the soup.

`run` writes a line of JSON for each task, seed and row: error, likelihood and
calibration error on test data; for the first seed also the size of the ONNX
file, multiply-adds of a sample, and milliseconds of a request of one sample on
one and on two threads. It continues where it stopped; runs that were trained
are kept in `--runs` and opened again for rows that are added later: a row is a
function in `ROWS`. `tables` prints ratios to one member, and the share of the
ensemble's gain in error that a row keeps, without training.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import statistics
import tempfile
from collections.abc import Callable

from common import alternate

import keras  # isort: skip
import numpy as np  # isort: skip
import onnxruntime  # isort: skip
from price_tables import ALL, ONE, SINGLE, print_tables, read  # isort: skip
from accuracy_tasks import TASKS, Data, split  # isort: skip
from rich.progress import Progress  # isort: skip

from cbnn_keras import CBNNCallback, CheckpointEnsemble, metrics
from cbnn_keras.analysis.calibration import calibration
from cbnn_keras.export import export_onnx

RESULTS = pathlib.Path(__file__).parent / "results" / "price.jsonl"
# Those that were best for restarts on held-out data, see `accuracy.py`.
RATES = {
    "digits": 0.12,
    "satellite": 0.12,
    "shuttle": 0.003,
    "ag_news": 0.001,
    "dbpedia": 0.01,
    "cifar100": 0.06,
}
RESTARTS, CHECKPOINTS = 3, 6
REQUESTS = 100  # that are timed together


@dataclasses.dataclass(frozen=True)
class Served:
    """What a row serves.

    Attributes:
        predict: Probabilities of inputs.
        export: Writes an ONNX file.
        multiply_adds: Of a sample, on the average.
    """

    predict: Callable[[np.ndarray], np.ndarray]
    export: Callable[[pathlib.Path], object]
    multiply_adds: float

    @classmethod
    def of(cls, ensemble: CheckpointEnsemble) -> "Served":
        return cls(
            functools.partial(ensemble.predict, verbose=0),
            functools.partial(export_onnx, ensemble, verbose=0),
            len(ensemble) * multiply_adds(ensemble.model),
        )


class Case:
    """One task with one seed: data and runs, made when they are asked for.

    Args:
        name: Of the task, and behind a slash its variant if it is not clean.
        seed: Of split, weights and batches.
        data_dir: Where data are.
        runs: Where runs are kept.
    """

    def __init__(
        self, name: str, seed: int, data_dir: pathlib.Path, runs: pathlib.Path
    ) -> None:
        task, _, variant = name.partition("/")
        self.name = name
        self.seed = seed
        self.task = TASKS[task]
        self.directory = runs / f"{name}-{seed}".replace("/", "-")
        self._variant = variant or "clean"
        self._data_dir = data_dir

    @functools.cached_property
    def data(self) -> Data:
        return split(self.task, self._variant, self.seed, self._data_dir)

    @property
    def epochs(self) -> int:
        return self.task.num_epochs("converged")

    @functools.cached_property
    def restarted(self) -> CheckpointEnsemble:
        """The ensemble: a run with restarts."""
        return self._trained("restarts", restarts=RESTARTS)

    @functools.cached_property
    def annealed(self) -> CheckpointEnsemble:
        """The same steps along one cosine."""
        return self._trained(
            "cosine", num_checkpoints=CHECKPOINTS, learning_rate="cosine"
        )

    def student(
        self, name: str, times: int = 1, **options
    ) -> CheckpointEnsemble:
        """The ensemble as one network, in as many steps as it took, or more."""
        directory = self.directory / name
        if directory.exists():
            return CheckpointEnsemble.load(directory)
        return self.restarted.distil(
            *self.data.train,
            directory=directory,
            epochs=times * self.epochs,
            optimizer=self._optimizer(),
            seed=self.seed,
            verbose=0,
            **options,
        )

    def _optimizer(self) -> keras.optimizers.Optimizer:
        return self.task.make_optimizer(RATES[self.task.name])

    def _trained(self, name: str, **options) -> CheckpointEnsemble:
        keras.utils.set_random_seed(self.seed)
        x, y = self.data.train
        model = self.task.make_model(x, self.data.num_classes)
        model.compile(
            self._optimizer(),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        cbnn = CBNNCallback(self.directory / name, resume=True, **options)
        size = self.task.batch_size
        train = cbnn.weighted(x, y, batch_size=size, seed=self.seed)
        model.fit(train, epochs=self.epochs, callbacks=[cbnn], verbose=0)
        return cbnn.ensemble()


def one_member(case: Case) -> list[Served]:
    """Each member by itself: numbers of the row are their means."""
    ensemble = case.restarted
    return [Served.of(ensemble.take([m["step"]])) for m in ensemble.members]


def final_model(case: Case) -> list[Served]:
    """The last member of the run of the ensemble."""
    return one_member(case)[-1:]


def single(case: Case) -> list[Served]:
    """What plain training with a cosine gives for the same steps."""
    ensemble = case.annealed
    return [Served.of(ensemble.take([ensemble.members[-1]["step"]]))]


def whole_ensemble(case: Case) -> list[Served]:
    return [Served.of(case.restarted)]


def soup(case: Case) -> list[Served]:
    """The members of the single trajectory, averaged in weights."""
    found = case.annealed.soup(validation_data=case.data.val, verbose=0)
    return [Served.of(found)]


def distilled(case: Case) -> list[Served]:
    return [Served.of(case.student("distilled"))]


def distilled_without_blends(case: Case) -> list[Served]:
    return [Served.of(case.student("distilled-plain", mixup=0))]


def distilled_for_longer(case: Case) -> list[Served]:
    """In twice the steps."""
    return [Served.of(case.student("distilled-long", 2))]


# A row of the table: what it serves, several for a row of means.
ROWS: dict[str, Callable[[Case], list[Served]]] = {
    ONE: one_member,
    SINGLE: single,
    "final model": final_model,
    ALL: whole_ensemble,
    "soup": soup,
    "distilled": distilled,
    "distilled, mixup=0": distilled_without_blends,
    "distilled, twice as long": distilled_for_longer,
}


def multiply_adds(model: keras.Model) -> int:
    """Those of a sample in the dense and convolutional layers."""
    total = 0
    for layer in model.layers:
        if isinstance(layer, keras.layers.Dense):
            total += int(np.prod(layer.kernel.shape))
        elif isinstance(layer, keras.layers.Conv2D):
            places = np.prod(layer.output.shape[1:-1])
            total += int(np.prod(layer.kernel.shape) * places)
    return total


def quality(served: Served, data: Data) -> dict[str, float]:
    """Error in %, likelihood and calibration error on test data."""
    x, labels = data.test
    found = served.predict(x)
    return {
        "error": 100 * (1 - metrics.accuracy(found, labels)),
        "likelihood": metrics.negative_log_likelihood(found, labels),
        "calibration": calibration(found, labels).expected_error,
    }


def costs(served: Served, one: Served, data: Data, turns: int) -> dict:
    """Size, arithmetic and time; that of one member beside it, in turns."""
    x = data.test[0][:1]
    with tempfile.TemporaryDirectory() as name:
        files = [pathlib.Path(name) / f"{i}.onnx" for i in range(2)]
        for file, what in zip(files, (served, one), strict=True):
            what.export(file)
        found = {
            "bytes": files[0].stat().st_size,
            "multiply_adds": served.multiply_adds,
        }
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
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        str(file), options, providers=["CPUExecutionProvider"]
    )
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
