"""What CBNN adds to `fit`: 6 checkpoints in 30 epochs against none.

    python benchmarks/overhead.py [--epochs 30] [--repeats 5] [--cpu-time]

Prints the ratio of both times beside the arithmetic limit, which is the plain
time plus six inference passes over the training set, measured in the same
turns. Target: within 2 % of that limit. `--cpu-time` counts the processor's
seconds instead of those on the wall, for a machine that is not idle.
"""

import argparse
import tempfile
import time

import keras
import tensorflow as tf
from common import alternate, random_images, ratio, small_resnet, versions

from cbnn_keras import CBNNCallback, weighted

NUM_CHECKPOINTS = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    x, y = random_images(options.samples)

    def compiled() -> keras.Model:
        model = small_resnet()
        model.compile(
            keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy"
        )
        return model

    # One model each, kept over the turns, so that tracing is not measured.
    plain_model, boosted_model, scored_model = (compiled() for _ in range(3))

    @tf.function(reduce_retracing=True)
    def forward(batch: tf.Tensor) -> tf.Tensor:
        return tf.argmax(scored_model(batch, training=False), axis=1)

    def plain() -> None:
        train = weighted(x, y, batch_size=100, seed=0)
        plain_model.fit(train, epochs=options.epochs, verbose=0, shuffle=False)

    def boosted() -> None:
        with tempfile.TemporaryDirectory() as directory:
            cbnn = CBNNCallback.paper(
                directory, num_checkpoints=NUM_CHECKPOINTS
            )
            train = cbnn.weighted(x, y, batch_size=100, seed=0)
            boosted_model.fit(
                train,
                epochs=options.epochs,
                callbacks=[cbnn],
                verbose=0,
                shuffle=False,
            )
            if len(cbnn.history) != NUM_CHECKPOINTS:
                raise RuntimeError(f"{len(cbnn.history)} checkpoints")

    inputs = tf.data.Dataset.from_tensor_slices(x).batch(100).prefetch(4)

    def passes() -> None:
        for _ in range(NUM_CHECKPOINTS):
            for batch in inputs:
                forward(batch)

    seconds = alternate(
        {"plain": plain, "boosted": boosted, "passes": passes},
        options.repeats,
        time.process_time if options.cpu_time else time.perf_counter,
    )
    limit = [
        a + b for a, b in zip(seconds["plain"], seconds["passes"], strict=True)
    ]
    print(versions())
    print(f"{options.samples} samples, {options.epochs} epochs")
    print(
        f"CBNN / plain fit:       {ratio(seconds['boosted'], seconds['plain'])}"
    )
    print(f"limit / plain fit:      {ratio(limit, seconds['plain'])}")
    print(f"CBNN / limit (<= 1.02): {ratio(seconds['boosted'], limit)}")


if __name__ == "__main__":
    main()
