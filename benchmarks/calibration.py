"""How much calibration helps, and whether sets cover what they promise.

    python benchmarks/calibration.py run --data-dir DATA [--seeds 5]
    python benchmarks/calibration.py table
    python benchmarks/calibration.py explain --data-dir DATA [--seeds 5]

The tasks are those of `accuracy.py`. `CBNNCallback(largest_ratio=1.1)` goes
along with a plain script (the middle one of the task's learning rates, kept
constant). Held-out data are divided at random, 20 times: on one part, of the
task's size of validation data, the temperature and the threshold of the sets
are fitted; on the other, both are judged. The first division is done by
`CheckpointEnsemble.calibrate` as well, which must find the same.

ECE is measured in 15 bins. That of finite data is not 0 even if every
probability is right: `floor` is what the calibrated probabilities would show
if they were, with as many samples. Vector scaling, a slope and an offset for
each class, is fitted to the same data for comparison.

`run` writes a line of JSON for each run and continues where it stopped.
`explain` looks into Satellite with wrong labels, converged, the one cell where
a temperature should help ECE and does not: how often samples are right by what
is said of them, the least ECE that any temperature gives on the data that it is
judged on, and that of a second parameter, a share of 1/k for every class.
"""

import argparse
import json
import pathlib
import statistics
from collections import defaultdict

import common  # noqa: F401  (quiets TensorFlow)
import keras
import numpy as np
from accuracy_tasks import TASKS, Task, split
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.analysis.calibration import calibration
from cbnn_keras.calibration import (
    conformal_threshold,
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


def run(task: Task, variant: str, budget: str, seed: int, directory) -> dict:
    """Trains once, and measures on all divisions of the held-out data."""
    data = split(task, variant, seed, directory)
    ensemble = trained(task, data, budget, seed)
    x = np.concatenate([data.val[0], data.test[0]])
    y = np.concatenate([data.val[1], data.test[1]])
    raw = ensemble.predict(x, batch_size=1024, calibrated=False, verbose=0)
    num = len(data.val[1])
    generator = np.random.default_rng([seed, 11])
    lines = []
    for number in range(NUM_DIVISIONS):
        order = (
            np.arange(len(y)) if not number else generator.permutation(len(y))
        )
        fitted, judged = order[:num], order[num:]
        lines.append(
            measured(raw[fitted], y[fitted], raw[judged], y[judged], generator)
        )
    record = ensemble.calibrate(data.val, coverage=COVERAGE, verbose=0)
    np.testing.assert_allclose(
        (record.temperature, record.threshold),
        (lines[0]["temperature"], lines[0]["threshold"]),
        rtol=1e-5,
    )
    shown = ensemble.predict(data.test[0], batch_size=1024, verbose=0)
    own = calibration(shown, data.test[1]).expected_error
    np.testing.assert_allclose(own, lines[0]["ece"], atol=2e-3)
    means = {k: float(np.mean([r[k] for r in lines])) for k in lines[0]}
    return means | {
        "samples": num,
        "members": len(ensemble),
        "error": 1 - float((raw.argmax(axis=1) == y).mean()),
    }


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


def measured(p, y, other_p, other_y, generator) -> dict[str, float]:
    """Fitted to the first samples, judged on the others."""
    temperature = fit_temperature(p, y)
    threshold = conformal_threshold(
        scale(p, temperature).astype("float32"), y, COVERAGE
    )
    shown = scale(other_p, temperature).astype("float32")
    before, after = calibration(other_p, other_y), calibration(shown, other_y)
    vector = vector_scaled(p, y, other_p)
    by_vector = calibration(vector, other_y)
    sets = prediction_sets(shown, threshold)
    return {
        "temperature": temperature,
        "threshold": threshold,
        "ece_raw": before.expected_error,
        "ece": after.expected_error,
        "ece_floor": floor_of(shown, generator),
        "ece_vector": by_vector.expected_error,
        "nll_raw": before.negative_log_likelihood,
        "nll": after.negative_log_likelihood,
        "nll_vector": by_vector.negative_log_likelihood,
        "accuracy_change_vector": float(
            np.mean(vector.argmax(1) == other_y)
            - np.mean(other_p.argmax(1) == other_y)
        ),
        "coverage": float(sets[np.arange(len(other_y)), other_y].mean()),
        "set_size": float(sets.sum(axis=1).mean()),
        "empty": float((~sets.any(axis=1)).mean()),
    }


def floor_of(p: np.ndarray, generator: np.random.Generator) -> float:
    """ECE of these probabilities if each were right, by drawn labels."""
    drawn = (p.cumsum(axis=1) > generator.random((len(p), 1))).argmax(axis=1)
    return calibration(p, drawn).expected_error


def vector_scaled(p, y, other_p) -> np.ndarray:
    """A slope and an offset for each class, of the largest likelihood."""
    logs, others = (np.log(np.maximum(q, 1e-7)) for q in (p, other_p))
    num_classes = p.shape[1]

    def loss(found):
        slope, offset = found.reshape(2, num_classes)
        logits = logs * slope + offset
        rows = np.arange(len(y))
        value = -log_softmax(logits, axis=1)[rows, y].mean()
        error = softmax(logits, axis=1)
        error[rows, y] -= 1
        error /= len(y)
        return value, np.concatenate([(error * logs).sum(0), error.sum(0)])

    start = np.concatenate([np.ones(num_classes), np.zeros(num_classes)])
    found = minimize(loss, start, jac=True, method="L-BFGS-B").x
    slope, offset = found.reshape(2, num_classes)
    return softmax(others * slope + offset, axis=1)


def explain(seeds: int, directory: pathlib.Path) -> None:
    """Prints what no temperature can mend, a line of JSON for each seed."""
    task = TASKS["satellite"]
    for seed in range(seeds):
        data = split(task, "wrong labels", seed, directory)
        ensemble = trained(task, data, "converged", seed)
        (p, y), (other_p, other_y) = (
            (ensemble.predict(x, batch_size=1024, verbose=0), labels)
            for x, labels in (data.val, data.test)
        )

        def ece(found, labels=other_y):
            return calibration(found, labels).expected_error

        temperature = fit_temperature(p, y)
        tried = {t: ece(scale(other_p, t)) for t in np.geomspace(0.3, 5, 60)}
        best = min(tried, key=tried.get)
        own, share = with_share(p, y)
        mixed = (1 - share) * scale(other_p, own) + share / p.shape[1]
        rows = np.arange(len(other_y))
        found = {
            "seed": seed,
            "ece_raw": ece(other_p),
            "temperature": temperature,
            "ece": ece(scale(other_p, temperature)),
            "best_temperature": best,
            "least_ece": tried[best],
            "temperature_with_share": own,
            "share": share,
            "ece_with_share": ece(mixed),
            "nll": -np.log(scale(other_p, temperature)[rows, other_y]).mean(),
            "nll_with_share": -np.log(mixed[rows, other_y]).mean(),
        }
        said, right = other_p.max(axis=1), other_p.argmax(axis=1) == other_y
        for low in (0.3, 0.5, 0.7, 0.9):
            is_in = (said >= low) & (said <= low + 0.1)
            found[f"right_at_{low}"] = right[is_in].mean()
        shown = {k: round(float(v), 4) for k, v in found.items()}
        print(json.dumps(shown), flush=True)


def with_share(p: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The likeliest temperature and share of 1/k, as a grid has them."""
    rows, k = np.arange(len(y)), p.shape[1]
    scaled = {t: scale(p, t)[rows, y] for t in np.geomspace(0.3, 5, 60)}
    return min(
        ((t, e) for t in scaled for e in np.linspace(0, 0.5, 51)),
        key=lambda pair: (
            -np.log((1 - pair[1]) * scaled[pair[0]] + pair[1] / k).mean()
        ),
    )


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
        *("task", "labels", "budget", "seeds", "T", "ECE raw", "ECE"),
        *("floor", "ratio", "NLL raw", "NLL", "coverage", "classes", "empty"),
        *("ECE vector", "NLL vector"),
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
        rows.append(
            [
                *cell,
                str(len(found)),
                f"{mean['temperature']:.2f}",
                *(percent[k] for k in ("ece_raw", "ece", "ece_floor")),
                f"{mean['ece'] / mean['ece_raw']:.2f}",
                *(f"{mean[k]:.4f}" for k in ("nll_raw", "nll")),
                f"{percent['coverage']} ± {100 * spread:.2f}",
                f"{mean['set_size']:.2f}",
                percent["empty"],
                percent["ece_vector"],
                f"{mean['nll_vector']:.4f}",
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
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
    parsed = parser.parse_args()
    if parsed.command == "explain":
        explain(parsed.seeds, parsed.data_dir)
        return
    lines = read(parsed.output)
    if parsed.command == "run":
        done = {tuple(line[k] for k in KEY) for line in lines}
        wanted = [
            (name, variant, budget, seed)
            for seed in range(parsed.seeds)
            for budget in BUDGETS
            for variant in VARIANTS
            for name in NAMES
        ]
        for name, variant, budget, seed in wanted:
            if (name, variant, budget, seed) in done:
                continue
            found = run(TASKS[name], variant, budget, seed, parsed.data_dir)
            cell = zip(KEY, (name, variant, budget, seed), strict=True)
            lines.append(dict(cell) | found)
            with parsed.output.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
            print(json.dumps(lines[-1]), flush=True)
    print(table(lines))


if __name__ == "__main__":
    main()
