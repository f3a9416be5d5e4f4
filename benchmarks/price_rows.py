"""The rows of `price.py`: what is trained, and what is served of it."""

import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from accuracy_tasks import TASKS, Data, split
from common import onnx_session
from price_tables import ALL, ONE, SINGLE

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.export import export_onnx

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
LOSS = 0.001  # of accuracy, by a cascade
NUM_CALIBRATION = 300  # samples that ranges of eight bits are taken from


@dataclasses.dataclass(frozen=True)
class Served:
    """What a row serves.

    Attributes:
        ensemble: The members.
        options: Of `export_onnx`. If there are any, it is the file that
            answers, and else the ensemble.
    """

    ensemble: CheckpointEnsemble
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def export(self, path: pathlib.Path) -> None:
        export_onnx(self.ensemble, path, verbose=0, **self.options)

    def answers(self, x: np.ndarray) -> tuple[np.ndarray, float]:
        """Probabilities, and the members that a sample needed on average."""
        if not self.options:
            found = self.ensemble.predict(x, verbose=0)
            return found, len(self.ensemble)
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "row.onnx"
            self.export(path)
            session = onnx_session(path, threads=1)
            names = [output.name for output in session.get_outputs()]
            found = session.run(names, {session.get_inputs()[0].name: x})
        named = dict(zip(names, found, strict=True))
        used = named.get("members_used", len(self.ensemble))
        return named["probabilities"], float(np.mean(used))


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
    return [Served(ensemble.take([m["step"]])) for m in ensemble.members]


def final_model(case: Case) -> list[Served]:
    """The last member of the run of the ensemble."""
    return one_member(case)[-1:]


def single(case: Case) -> list[Served]:
    """What plain training with a cosine gives for the same steps."""
    ensemble = case.annealed
    return [Served(ensemble.take([ensemble.members[-1]["step"]]))]


def whole_ensemble(case: Case) -> list[Served]:
    return [Served(case.restarted)]


def soup(case: Case) -> list[Served]:
    """The members of the single trajectory, averaged in weights."""
    found = case.annealed.soup(validation_data=case.data.val, verbose=0)
    return [Served(found)]


def distilled(case: Case) -> list[Served]:
    return [Served(case.student("distilled"))]


def distilled_without_blends(case: Case) -> list[Served]:
    return [Served(case.student("distilled-plain", mixup=0))]


def distilled_for_longer(case: Case) -> list[Served]:
    """In twice the steps."""
    return [Served(case.student("distilled-long", 2))]


def exact_cascade(case: Case) -> list[Served]:
    return [Served(case.restarted, _cascade_options("exact"))]


def confident_cascade(case: Case) -> list[Served]:
    """The student first; what is expected to be lost is a tenth of a point.

    Without a standard error, which 1,000 validation samples are too few for.
    """
    joined = case.restarted.with_student(case.student("distilled"))
    chosen = joined.cascade(
        case.data.val,
        loss=LOSS,
        standard_errors=0,
        first=joined.rounds[-1].step,
        verbose=0,
    )
    return [Served(joined, _cascade_options(chosen))]


def _cascade_options(cascade: Any) -> dict[str, Any]:
    return {"cascade": cascade, "outputs": ["probabilities", "members_used"]}


def in_eight_bits(case: Case, row: str) -> list[Served]:
    """Another row with `precision="int8"`."""
    eight_bits = {
        "precision": "int8",
        "calibration_data": case.data.train[0][:NUM_CALIBRATION],
    }
    return [
        dataclasses.replace(part, options=part.options | eight_bits)
        for part in ROWS[row](case)
    ]


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
    "cascade, exact": exact_cascade,
    "cascade, confident": confident_cascade,
}
for _row in (
    "final model",
    ALL,
    "soup",
    "distilled",
    "cascade, exact",
    "cascade, confident",
):
    ROWS[f"{_row}, int8"] = functools.partial(in_eight_bits, row=_row)


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
