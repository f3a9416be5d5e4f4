"""How much of Shuttle's error is of classes that nobody can learn.

    python benchmarks/out_of_reach.py --data-dir DATA [--seeds 6]

Restarts are to take a share of the error away. On Shuttle much of it is of
classes with fewer than ten training samples whose label is right, beside which,
in the variant with wrong labels, some hundred others have that label. Printed
is how much, for one cosine with averaged weights and for restarts, in the
converged budget; rates are the tuned ones of `accuracy.py`.
"""

import argparse
import pathlib

import numpy as np
from accuracy import RESULTS, Cell, Lines
from accuracy_lines import markdown
from accuracy_methods import TUNED, Setting, single
from accuracy_tasks import TASKS, VARIANTS, split
from accuracy_training import Course

from cbnn_keras import metrics
from cbnn_keras.training.boosting_options import AVERAGES

FEWEST = 10
TASK = TASKS["shuttle"]
BUDGET = "converged"
METHODS = ("cosine", "restarts=3", "restarts=6")


def predicted(name: str, setting: Setting) -> np.ndarray:
    """What a method says of the test samples, as classes."""
    if name == "cosine":
        ends = [setting.total_steps]
        averages = setting.averages(setting.total_steps, AVERAGES)
        course = Course(ends, setting.cosine(ends), **averages)
        outcome = single(setting.train(course)[-1].member)
    else:
        outcome = TUNED[name](setting)[name]
    return metrics.predicted_classes(outcome.test)


def shares(
    cell: Cell, variant: str, seed: int, directory: pathlib.Path
) -> list[tuple[float, float, float]]:
    """Of each method: the error, its part of rare classes, and all of these.

    In percent of the test samples.
    """
    # Wrong labels come last: without them the split is the same.
    kind = "clean" if variant == "wrong labels" else variant
    right = split(TASK, kind, seed, directory).train[1]
    found = []
    for name in METHODS:
        rate = cell.best_rate(BUDGET, name)
        setting = cell.setting(BUDGET, rate, seed)
        labels = setting.data.test[1]
        counts = np.bincount(right, minlength=setting.data.num_classes)
        is_rare = counts[labels] < FEWEST
        is_wrong = predicted(name, setting) != labels
        parts = (is_wrong, is_wrong & is_rare, is_rare)
        found.append(tuple(100 * float(part.mean()) for part in parts))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data-dir", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    rows = []
    for variant in VARIANTS:
        cell = Cell(TASK, variant, Lines(RESULTS), options.data_dir)
        seeds = range(1, options.seeds + 1)
        every = [shares(cell, variant, s, options.data_dir) for s in seeds]
        for name, means in zip(METHODS, np.mean(every, axis=0), strict=True):
            rows.append([variant, name, *(f"{mean:.2f}" for mean in means)])
    head = ["variant", "method", "error, %", "of rare classes", "all of these"]
    print(markdown(head, rows))


if __name__ == "__main__":
    main()
