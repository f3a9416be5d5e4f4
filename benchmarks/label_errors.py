"""Labels flipped on purpose: how many are found, and how many by cleanlab.

    python benchmarks/label_errors.py                      # digits, five seeds
    python benchmarks/label_errors.py --data cifar100 --seeds 2 --data-dir DATA

5 % of the training labels become another class, chosen at random. CBNN is
trained on them. Then all training samples are ranked by how suspicious their
label is, by `analysis.suspects` and by cleanlab from the same predictions, and
the share of flipped labels among the first 5 % is printed: 1 is perfect, 0.05
is chance. Cleanlab gets the probabilities of the ensemble, and those of each
member for its method for several models.
"""

import argparse
import dataclasses
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Iterator

import common
import keras
import numpy as np
from cleanlab.rank import (
    get_label_quality_ensemble_scores,
    get_label_quality_scores,
)

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.analysis import suspects
from cbnn_keras.commands.demo import load_digits, shift, small_cnn

SHARE = 0.05
METHODS = (
    "self_confidence",
    "normalized_margin",
    "confidence_weighted_entropy",
)


def flip(
    labels: np.ndarray, num_classes: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Labels some of which are wrong, and which those are."""
    generator = np.random.default_rng(seed)
    num = round(SHARE * len(labels))
    wrong = generator.choice(len(labels), num, replace=False)
    noisy = labels.copy()
    offset = generator.integers(1, num_classes, num)
    noisy[wrong] = (labels[wrong] + offset) % num_classes
    return noisy, wrong


def found_on_digits(seed: int, epochs: int) -> dict[str, float]:
    (x, y), _, _ = load_digits(seed)
    noisy, wrong = flip(y, 10, seed)
    keras.utils.set_random_seed(seed)
    callback = CBNNCallback.paper()
    small_cnn().fit(
        callback.weighted(x, noisy, batch_size=64, augment=shift),
        epochs=epochs,
        callbacks=[callback],
        shuffle=False,
        verbose=0,
    )
    return compare(callback.ensemble(), x, noisy, wrong)


def found_on_cifar(seed: int, epochs: int, data_dir: str) -> dict[str, float]:
    examples = pathlib.Path(__file__).resolve().parents[1] / "examples"
    sys.path.append(str(examples))
    from recipes.training import Recipe, load_split, train

    recipe = Recipe(
        model="resnet8",
        epochs=epochs,
        augment="standard",
        size=16,
        num_train=10_000,
        num_test=1,
        initial_rate=0.2,
    )
    split = load_split(recipe, data_dir)
    noisy, wrong = flip(split.y, 100, seed)
    split = dataclasses.replace(split, y=noisy)
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        ensemble = train("cbnn", recipe, split, run, seed=seed)
        return compare(ensemble, split.x, noisy, wrong)


def compare(
    ensemble: CheckpointEnsemble,
    x: np.ndarray,
    labels: np.ndarray,
    wrong: np.ndarray,
) -> dict[str, float]:
    """The share of wrong labels among as many suspects, by ranking."""
    members = [
        p.astype(np.float64) for p in ensemble.member_probabilities(x, 500, 0)
    ]
    average = np.average(members, axis=0, weights=ensemble.votes)
    rankings = {
        "suspects": suspects(
            ensemble, x, labels, batch_size=500, verbose=0
        ).ranking
    }
    for method in METHODS:
        scores = get_label_quality_scores(labels, average, method=method)
        rankings[f"cleanlab, {method}"] = np.argsort(scores, kind="stable")
    scores = get_label_quality_ensemble_scores(labels, members, verbose=False)
    rankings["cleanlab, ensemble"] = np.argsort(scores, kind="stable")
    return {
        name: float(np.isin(ranking[: len(wrong)], wrong).mean())
        for name, ranking in rankings.items()
    }


def results(options: argparse.Namespace) -> Iterator[dict[str, float]]:
    for seed in range(options.seeds):
        if options.data == "digits":
            yield found_on_digits(seed, options.epochs or 30)
        else:
            yield found_on_cifar(seed, options.epochs or 48, options.data_dir)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", choices=["digits", "cifar100"], default="digits")
    add("--data-dir", help="of tensorflow-datasets, for CIFAR-100")
    add("--seeds", type=int, default=5, help="how many, from 0")
    add("--epochs", type=int, help="(default: 30, or 48 for CIFAR-100)")
    options = parser.parse_args()
    print(common.versions())
    found = []
    for seed, shares in enumerate(results(options)):
        found.append(shares)
        values = ", ".join(f"{k} {v:.3f}" for k, v in shares.items())
        print(f"seed {seed}: {values}", flush=True)
    for name in found[0]:
        values = [shares[name] for shares in found]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name:40} {statistics.mean(values):.3f} ± {spread:.3f}")


if __name__ == "__main__":
    main()
