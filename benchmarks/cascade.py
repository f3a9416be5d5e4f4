"""What a cascade saves, and what it costs.

    python benchmarks/cascade.py --data-dir DATA [--tasks digits,satellite]
        [--seeds 5] [--first-seed 0] [--repeats 5]

Six members (`CBNNCallback(restarts=6)`) on four tasks, five seeds each, with
splits of their own: training, held-out data that the cascade is chosen on for a
loss of 0.001, and test data that all else is measured on, in ONNX Runtime on
one thread. `student` is a cascade that asks a distilled network first;
`affordable` is that one where the members' own needs more than 1.3 of them on
the held-out data. Time is that of the processor for a request of 1 or 32
samples, as a ratio to one member. Targets: all answers of the exact cascade are
the ensemble's; the confident ones use at most 1.3 members on average. In the
end, what leaving costs: six small ResNets, of which every sample needs one.
With `--repeats 0` nothing is exported and timed: errors and members are those
of the rule in NumPy.
"""

import argparse
import dataclasses
import json
import pathlib
import tempfile
import time
from typing import Any

import serving
from accuracy_tasks import TASKS, Task, split
from common import (
    alternate,
    onnx_session,
    random_images,
    small_resnet,
    versions,
)

import keras  # isort: skip
import numpy as np  # isort: skip
import onnxruntime  # isort: skip

from cbnn_keras import CBNNCallback, CheckpointEnsemble, cascades, metrics
from cbnn_keras.cascades import Cascade
from cbnn_keras.export import export_onnx

LOSS = 0.001
AFFORDABLE = 1.3  # members on average
# Samples for training, to choose on and to test; epochs; the learning rate. A
# thousand held-out samples are the least that say something about 0.001.
SETTINGS = {
    "digits": ((480, 1000, 300), 90, 0.06),
    "satellite": ((1280, 2500, 2600), 90, 0.06),
    "ag_news": ((3200, 2200, 2200), 12, 0.003),
    "dbpedia": ((3200, 5000, 5800), 24, 0.01),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=pathlib.Path, required=True)
    parser.add_argument("--tasks", default=",".join(SETTINGS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"{versions()}, ONNX Runtime {onnxruntime.__version__}", flush=True)
    rows: dict[str, list[dict[str, float]]] = {}
    first = options.first_seed
    for seed in range(first, first + options.seeds):
        for name in options.tasks.split(","):
            found = measure(name, seed, options.data_dir, options.repeats)
            rows.setdefault(name, []).append(found)
            line = {"task": name, "seed": seed, **found}
            print(json.dumps(line), flush=True)
    if options.repeats:
        print(json.dumps({"task": "none", **overhead(options.repeats)}))
    for name, lines in rows.items():
        means = {k: np.mean([line[k] for line in lines]) for k in lines[0]}
        shown = ", ".join(f"{k} {v:.4g}" for k, v in means.items())
        print(f"{name}, mean of {len(lines)}: {shown}")


def measure(
    name: str, seed: int, data_dir: pathlib.Path, repeats: int
) -> dict[str, float]:
    """Errors, members and times of one seed of a task."""
    sizes, epochs, rate = SETTINGS[name]
    task = dataclasses.replace(TASKS[name], sizes=sizes)
    data = split(task, "clean", seed, data_dir)
    ensemble = trained(task, data, epochs, rate, seed)
    chosen = ensemble.cascade(data.val, loss=LOSS, verbose=0)
    student = ensemble.distil(
        *data.train,
        optimizer=task.make_optimizer(rate),
        seed=seed,
        verbose=0,
    )
    joined = ensemble.with_student(student)
    with_first = joined.cascade(
        data.val, loss=LOSS, first=joined.rounds[-1].step, verbose=0
    )
    x, y = data.test
    expected = metrics.predicted_classes(ensemble.predict(x, verbose=0))
    exports = {
        "one": (ensemble.take(chosen.order[:1]), {}),
        "all": (ensemble, {}),
        "exact": (ensemble, {"cascade": "exact"}),
        "confident": (ensemble, {"cascade": chosen}),
        "distilled": (student, {}),
        "student": (joined, {"cascade": with_first}),
    }
    few = chosen.mean_members <= AFFORDABLE
    exports["affordable"] = exports["confident" if few else "student"]
    if not repeats:
        return {
            key: number
            for name, (members, given) in exports.items()
            for key, number in by_rule(name, members, x, y, **given).items()
        }
    return exported(exports, x, y, expected, repeats)


def by_rule(
    name: str,
    ensemble: CheckpointEnsemble,
    x: np.ndarray,
    y: np.ndarray,
    cascade: Any = None,
) -> dict[str, float]:
    """The error in % and the members used, without an export."""
    steps = [record.step for record in ensemble.rounds]
    members = np.stack(list(ensemble.member_probabilities(x, verbose=0)))
    rule = Cascade() if cascade in (None, "exact") else cascade
    order = rule.fitted_to(steps, ensemble.votes).positions(steps)
    stages = cascades.stages(members[order], ensemble.votes[order])
    used = stages.members_used(rule.confidence)
    if cascade is None:
        used = np.full(len(y), len(steps))
    classes = metrics.predicted_classes(stages.probabilities_at(used))
    return {
        f"{name}_error": 100 * float(np.mean(classes != y)),
        f"{name}_members": float(used.mean()),
    }


def exported(
    exports: dict[str, tuple[CheckpointEnsemble, dict[str, Any]]],
    x: np.ndarray,
    y: np.ndarray,
    expected: np.ndarray,
    repeats: int,
) -> dict[str, float]:
    """Errors, members and times in ONNX Runtime."""
    found: dict[str, float] = {}
    sessions = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, (members, given) in exports.items():
            outputs = ["probabilities", "class"]
            if given:
                outputs.append("members_used")
            path = pathlib.Path(directory) / f"{name}.onnx"
            artefact = export_onnx(
                members,
                path,
                outputs=outputs,
                sample_data=x[:200],
                verbose=0,
                **given,
            )
            found[f"{name}_parity"] = artefact.parity.max_difference
            sessions[name] = onnx_session(path)
    for name, session in sessions.items():
        results = run(session, x)
        found[f"{name}_error"] = 100 * float(np.mean(results["class"] != y))
        found[f"{name}_same"] = float(np.mean(results["class"] == expected))
        if "members_used" in results:
            found[f"{name}_members"] = float(results["members_used"].mean())
    for size in (1, 32):
        found |= times(sessions, x, size, repeats)
    return found


def overhead(repeats: int) -> dict[str, float]:
    """Times of six small ResNets of which each sample needs just one."""
    ensemble = serving.trained(small_resnet(size=32), 32)
    x, _ = random_images(128, size=32)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "m.onnx"
        sessions = {}
        for name, members, given in (
            ("one", ensemble.take([ensemble.rounds[-1].step]), {}),
            ("all", ensemble, {}),
            ("leaving", ensemble, {"cascade": 1e-6}),
        ):
            export_onnx(members, path, sample_data=x[:10], verbose=0, **given)
            sessions[name] = onnx_session(path)
    for size in (1, 32):
        found |= times(sessions, x, size, repeats)
    return found


def trained(
    task: Task, data: Any, epochs: int, rate: float, seed: int
) -> CheckpointEnsemble:
    keras.utils.set_random_seed(seed)
    model = task.make_model(data.train[0], data.num_classes)
    model.add(keras.layers.Softmax())
    model.compile(
        task.make_optimizer(rate), loss="sparse_categorical_crossentropy"
    )
    callback = CBNNCallback(restarts=6)
    train = callback.weighted(
        *data.train, batch_size=task.batch_size, seed=seed
    )
    model.fit(train, epochs=epochs, callbacks=[callback], verbose=0)
    return callback.ensemble()


def run(
    session: onnxruntime.InferenceSession, x: np.ndarray
) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    inputs = {session.get_inputs()[0].name: x}
    return dict(zip(names, session.run(names, inputs), strict=True))


def times(
    sessions: dict[str, onnxruntime.InferenceSession],
    x: np.ndarray,
    size: int,
    repeats: int,
) -> dict[str, float]:
    """Processor time over the test data, as ratios to one member."""
    batches = [x[i : i + size] for i in range(0, min(len(x), 1024), size)]

    def requests(session: onnxruntime.InferenceSession) -> None:
        for batch in batches:
            run(session, batch)

    seconds = alternate(
        {n: lambda s=s: requests(s) for n, s in sessions.items()},
        repeats,
        clock=time.process_time,
    )
    ratios = {
        f"{name}_time_{size}": float(
            np.median(np.divide(taken, seconds["one"]))
        )
        for name, taken in seconds.items()
        if name != "one"
    }
    each = float(np.median(seconds["one"])) / len(batches)
    return {f"one_microseconds_{size}": 1e6 * each, **ratios}


if __name__ == "__main__":
    main()
