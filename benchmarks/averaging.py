"""What averaged members cost beside their BatchNorm pass.

    python benchmarks/averaging.py [--epochs 30] [--samples 4000] [--repeats 3]
        [--rare]

Prints the processor time of `CBNNCallback(average=True)` against the same run
with the model itself as members, plus the six passes in which statistics of
BatchNorm are recomputed, measured in the same turns. Target: at most 1.03.
With `--rare` a class is rare, so that averages are without lag; so they are in
runs of fewer than 20 epochs.
"""

import argparse
import time

import keras
import numpy as np
import tensorflow as tf
from common import alternate, random_images, ratio, small_resnet, versions

from cbnn_keras import CBNNCallback
from cbnn_keras.models.batch_norm import StatisticsRecomputer

BATCH, NUM_CHECKPOINTS = 100, 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--samples", type=int, default=4_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rare", action="store_true")
    options = parser.parse_args()
    x, y = random_images(options.samples)
    if options.rare:
        y[(y == 0) & (np.arange(len(y)) % 10 > 0)] = 1
    # One model each, kept over the turns, so that tracing is not measured.
    models = {name: small_resnet() for name in ("raw", "averaged", "passes")}
    for model in models.values():
        model.compile(
            keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy"
        )

    counts = f"{np.bincount(y).min()} to {np.bincount(y).max()} of a class"

    def fit(name: str, average: bool) -> None:
        cbnn = CBNNCallback(num_checkpoints=NUM_CHECKPOINTS, average=average)
        train = cbnn.weighted(x, y, batch_size=BATCH, seed=0)
        models[name].fit(
            train,
            epochs=options.epochs,
            callbacks=[cbnn],
            verbose=0,
            shuffle=False,
        )

    inputs = tf.data.Dataset.from_tensor_slices(x).batch(BATCH).prefetch(4)

    def passes() -> None:
        recompute = StatisticsRecomputer(models["passes"])
        for _ in range(NUM_CHECKPOINTS):
            recompute(inputs)

    seconds = alternate(
        {
            "raw": lambda: fit("raw", False),
            "averaged": lambda: fit("averaged", True),
            "passes": passes,
        },
        options.repeats,
        time.process_time,
    )
    limit = [
        a + b for a, b in zip(seconds["raw"], seconds["passes"], strict=True)
    ]
    print(versions())
    print(f"{options.samples} samples, {options.epochs} epochs, {counts}")
    averaged, raw = seconds["averaged"], seconds["raw"]
    print(f"averaged / raw:             {ratio(averaged, raw)}")
    print(f"averaged / limit (<= 1.03): {ratio(averaged, limit)}")


if __name__ == "__main__":
    main()
