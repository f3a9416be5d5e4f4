"""How much calibration helps, and whether sets cover what they promise.

    python benchmarks/calibration.py run --data-dir DATA [--seeds 5]
        [--first-seed 0]
    python benchmarks/calibration.py table
    python benchmarks/calibration.py explain --data-dir DATA [--seeds 5]

The tasks are those of `accuracy.py`. `CBNNCallback(largest_ratio=1.1)` goes
along with a plain script (the middle one of the task's learning rates, kept
constant). Held-out data are divided at random, 20 times: on one part, of the
task's size of validation data, `calibration.fit` and the threshold of the sets
are fitted; on the other, both are judged. The first division is done by
`CheckpointEnsemble.calibrate` as well, which must find the same. A temperature
alone is judged beside it.

ECE is measured in 15 bins. That of finite data is not 0 even if every
probability is right: `floor` is what the calibrated probabilities would show
if they were, with as many samples. `reachable` is what `calibration.fit` would
leave if what it found were the truth, and it had to find that again from as
many samples: less than that cannot be asked of it.

`run` writes a line of JSON for each run and continues where it stopped. With
`--said DIRECTORY` it keeps what each ensemble says of the held-out data, and
does not train again what is there: another way to calibrate takes minutes then.
`explain` looks into Satellite with wrong labels, converged, the one cell in
which a temperature alone should help ECE and does not: how often samples are
right by what is said of them, and the least ECE that any temperature gives on
the data that it is judged on.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
from collections import defaultdict

import common  # noqa: F401  (quiets TensorFlow)
import keras
import numpy as np
from accuracy_tasks import TASKS, Task, split

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.analysis.calibration import calibration
from cbnn_keras.calibration import (
    Scaling,
    conformal_threshold,
    fit,
    fit_temperature,
    prediction_sets,
    scale,
)

RESULTS = pathlib.Path(__file__).parent / "results" / "calibration.jsonl"
NAMES = ("digits", "satellite", "ag_news", "dbpedia")
VARIANTS = ("clean", "wrong labels")
BUDGETS = ("short", "converged")
COVERAGE = 0.9
NUM_DIVISIONS = 20
KEY = ("task", "variant", "budget", "seed")


@dataclasses.dataclass(frozen=True)
class Said:
    """What an ensemble says of held-out data.

    Attributes:
        p: Its probabilities, not calibrated.
        y: The labels.
        num: How many of them, the first ones, are validation data.
        num_members: Of how many members it is the mean.
    """

    p: np.ndarray
    y: np.ndarray
    num: int
    num_members: int


def said_by(
    cell: tuple[str, str, str, int],
    directory: pathlib.Path,
    kept: pathlib.Path | None,
) -> Said:
    """Trains a cell, or reads what was kept of that."""
    name, variant, budget, seed = cell
    path = None
    if kept is not None:
        path = kept / f"{name}-{variant.replace(' ', '_')}-{budget}-{seed}.npz"
        if path.exists():
            with np.load(path) as found:
                raw, y, num, members = (
                    found[key] for key in ("raw", "y", "num", "members")
                )
            return Said(raw, y, int(num), int(members))
    task = TASKS[name]
    data = split(task, variant, seed, directory)
    ensemble = trained(task, data, budget, seed)
    x = np.concatenate([data.val[0], data.test[0]])
    y = np.concatenate([data.val[1], data.test[1]])
    raw = ensemble.predict(x, batch_size=1024, verbose=0)
    num = len(data.val[1])
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, raw=raw, y=y, num=num, members=len(ensemble))
    check_product(ensemble, data, raw)
    return Said(raw, y, num, len(ensemble))


def trained(task: Task, data, budget: str, seed: int) -> CheckpointEnsemble:
    keras.utils.set_random_seed(seed)
    model = task.make_model(data.train[0], data.num_classes)
    model.compile(
        task.make_optimizer(task.rates[1]),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    callback = CBNNCallback(largest_ratio=1.1)
    model.fit(
        callback.weighted(*data.train, batch_size=task.batch_size, seed=seed),
        epochs=task.num_epochs(budget),
        callbacks=[callback],
        verbose=0,
    )
    return callback.ensemble()


def check_product(ensemble: CheckpointEnsemble, data, raw: np.ndarray) -> None:
    """Raises unless `calibrate` and `predict` do what is measured here."""
    num = len(data.val[1])
    expected = fit(raw[:num], data.val[1])
    record = ensemble.calibrate(data.val, coverage=COVERAGE, verbose=0)
    found = (record.temperature, record.share)
    wanted = (expected.temperature, expected.share)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    shown = ensemble.predict(data.test[0], batch_size=1024, verbose=0)
    np.testing.assert_allclose(shown, expected(raw[num:]), atol=2e-4)


def run(said: Said, seed: int) -> dict:
    """Measures on all divisions of the held-out data."""
    p, y, num = said.p, said.y, said.num
    generator = np.random.default_rng([seed, 11])
    of_truth = np.random.default_rng([seed, 12])
    lines = []
    for number in range(NUM_DIVISIONS):
        order = (
            np.arange(len(y)) if not number else generator.permutation(len(y))
        )
        fitted, judged = order[:num], order[num:]
        line = measured(p[fitted], y[fitted], p[judged], y[judged], generator)
        line["ece_reachable"] = reachable(
            fit(p[fitted], y[fitted]), p[fitted], p[judged], of_truth
        )
        lines.append(line)
    means = {k: float(np.mean([r[k] for r in lines])) for k in lines[0]}
    return means | {
        "samples": num,
        "members": said.num_members,
        "error": 1 - float((p.argmax(axis=1) == y).mean()),
    }


def measured(p, y, other_p, other_y, generator) -> dict[str, float]:
    """Fitted to the first samples, judged on the others."""
    scaling, alone = fit(p, y), fit_temperature(p, y)
    threshold = conformal_threshold(scaling(p).astype("float32"), y, COVERAGE)
    shown = scaling(other_p).astype("float32")
    by_temperature = calibration(scale(other_p, alone), other_y)
    before, after = calibration(other_p, other_y), calibration(shown, other_y)
    sets = prediction_sets(shown, threshold)
    return {
        "temperature": scaling.temperature,
        "share": scaling.share,
        "has_share": float(scaling.share > 0),
        "threshold": threshold,
        "temperature_alone": alone,
        "ece_raw": before.expected_error,
        "ece_temperature": by_temperature.expected_error,
        "ece": after.expected_error,
        "ece_floor": floor_of(shown, generator),
        "nll_raw": before.negative_log_likelihood,
        "nll_temperature": by_temperature.negative_log_likelihood,
        "nll": after.negative_log_likelihood,
        "coverage": float(sets[np.arange(len(other_y)), other_y].mean()),
        "set_size": float(sets.sum(axis=1).mean()),
        "empty": float((~sets.any(axis=1)).mean()),
    }


def floor_of(p: np.ndarray, generator: np.random.Generator) -> float:
    """ECE of these probabilities if each were right, by drawn labels."""
    return calibration(p, drawn_from(p, generator)).expected_error


def reachable(
    truth: Scaling,
    p: np.ndarray,
    other_p: np.ndarray,
    generator: np.random.Generator,
) -> float:
    """ECE after `fit`, if what is said were right when it is scaled so.

    Labels are drawn: those of the first samples for `fit`, those of the others
    to judge by.
    """
    y, other_y = (drawn_from(truth(said), generator) for said in (p, other_p))
    return calibration(fit(p, y)(other_p), other_y).expected_error


def drawn_from(p: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """A class for each row, as likely as the row says."""
    return (p.cumsum(axis=1) > generator.random((len(p), 1))).argmax(axis=1)


def explain(said: Said, seed: int) -> dict:
    """What no temperature can mend, and what a share does."""
    num = said.num
    (p, other_p), (y, other_y) = (np.split(a, [num]) for a in (said.p, said.y))

    def ece(found):
        return calibration(found, other_y).expected_error

    alone, scaling = fit_temperature(p, y), fit(p, y)
    tried = {t: ece(scale(other_p, t)) for t in np.geomspace(0.3, 5, 60)}
    best = min(tried, key=tried.get)
    found = {
        "seed": seed,
        "ece_raw": ece(other_p),
        "temperature_alone": alone,
        "ece_temperature": ece(scale(other_p, alone)),
        "best_temperature": best,
        "least_ece": tried[best],
        "temperature": scaling.temperature,
        "share": scaling.share,
        "ece": ece(scaling(other_p)),
    }
    said_of, is_right = other_p.max(axis=1), other_p.argmax(axis=1) == other_y
    for low in (0.3, 0.5, 0.7, 0.9):
        is_in = (said_of >= low) & (said_of <= low + 0.1)
        found[f"right_at_{low}"] = is_right[is_in].mean()
    return {k: round(float(v), 4) for k, v in found.items()}


def read(path: pathlib.Path) -> list[dict]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(lines: list[dict]) -> str:
    """Means over the seeds, in percent, as a table for the docs."""
    cells = defaultdict(list)
    for line in lines:
        cells[tuple(line[k] for k in KEY[:-1])].append(line)
    head = [
        *("task", "labels", "budget", "seeds", "T", "share", "taken"),
        *("ECE raw", "ECE T", "ECE", "ratio", "floor", "reachable"),
        "above it",
        *("NLL raw", "NLL T", "NLL", "coverage", "classes", "empty"),
    ]
    rows = [head, ["---"] * len(head)]
    for cell, found in cells.items():
        mean = {
            k: statistics.mean(line[k] for line in found)
            for k in found[0]
            if k not in KEY
        }
        percent = {k: f"{100 * v:.2f}" for k, v in mean.items()}
        spread = statistics.pstdev(line["coverage"] for line in found)
        above = (
            100 * (mean[k] - mean["ece_floor"]) for k in ("ece_raw", "ece")
        )
        rows.append(
            [
                *cell,
                str(len(found)),
                f"{mean['temperature']:.2f}",
                f"{mean['share']:.3f}",
                f"{mean['has_share']:.0%}",
                *(percent[k] for k in ("ece_raw", "ece_temperature", "ece")),
                f"{mean['ece'] / mean['ece_raw']:.2f}",
                percent["ece_floor"],
                percent["ece_reachable"],
                " → ".join(f"{value:.2f}" for value in above),
                *(f"{mean[f'nll{k}']:.4f}" for k in ("_raw", "_temperature")),
                f"{mean['nll']:.4f}",
                f"{percent['coverage']} ± {100 * spread:.2f}",
                f"{mean['set_size']:.2f}",
                percent["empty"],
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=["run", "table", "explain"])
    parser.add_argument("--data-dir", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--said", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
    parsed = parser.parse_args()
    seeds = range(parsed.first_seed, parsed.first_seed + parsed.seeds)
    if parsed.command == "explain":
        for seed in seeds:
            cell = ("satellite", "wrong labels", "converged", seed)
            said = said_by(cell, parsed.data_dir, parsed.said)
            print(json.dumps(explain(said, seed)), flush=True)
        return
    lines = read(parsed.output)
    if parsed.command == "run":
        done = {tuple(line[k] for k in KEY) for line in lines}
        wanted = [
            (name, variant, budget, seed)
            for seed in seeds
            for budget in BUDGETS
            for variant in VARIANTS
            for name in NAMES
        ]
        for cell in wanted:
            if cell in done:
                continue
            said = said_by(cell, parsed.data_dir, parsed.said)
            found = run(said, cell[-1])
            lines.append(dict(zip(KEY, cell, strict=True)) | found)
            with parsed.output.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
            print(json.dumps(lines[-1]), flush=True)
    print(table(lines))


if __name__ == "__main__":
    main()
