"""What CBNN adds to `fit`: 6 checkpoints in 30 epochs against none.

    python benchmarks/overhead.py [--epochs 30] [--repeats 5] [--cpu-time]
    python benchmarks/overhead.py --against-arrays

Prints the ratio of both times beside the arithmetic limit, which is the plain
time plus six inference passes over the training set, measured in the same
turns. Target: within 2 % of that limit. `--cpu-time` counts the processor's
seconds instead of those on the wall, for a machine that is not idle.

`--against-arrays` compares with what one would have typed, `fit(x, y)`, where
it is hardest: a table of 20 columns, a step of a millisecond, batches of 32. In
processor time, of all threads. Targets: the pipeline alone at most 1.05, CBNN
in a directory at most 1.15. `fit(x, y, sample_weight=ones)` is what weights in
the loss cost in themselves.
"""

import argparse
import statistics
import tempfile
import time

import keras
import numpy as np
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
    parser.add_argument("--against-arrays", action="store_true")
    options = parser.parse_args()
    print(versions())
    print(f"{options.samples} samples, {options.epochs} epochs")
    compare = against_arrays if options.against_arrays else against_pipeline
    compare(options)


def against_pipeline(options: argparse.Namespace) -> None:
    """CBNN against `fit` on the same pipeline, and the arithmetic limit."""
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
    print(
        f"CBNN / plain fit:       {ratio(seconds['boosted'], seconds['plain'])}"
    )
    print(f"limit / plain fit:      {ratio(limit, seconds['plain'])}")
    print(f"CBNN / limit (<= 1.02): {ratio(seconds['boosted'], limit)}")


def against_arrays(options: argparse.Namespace) -> None:
    """Pipeline and CBNN against `fit(x, y)`, a small model on a table."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(options.samples, 20)).astype("float32")
    y = (x @ generator.normal(size=(20, 10))).argmax(axis=1)
    ones = np.ones(options.samples, "float32")
    names = ("arrays", "with ones", "pipeline", "CBNN")
    models = {name: table_model() for name in names}

    def fit(name: str, *data: object, **more: object) -> None:
        models[name].fit(*data, epochs=options.epochs, verbose=0, **more)

    def boosted() -> None:
        with tempfile.TemporaryDirectory() as directory:
            cbnn = CBNNCallback(directory, num_checkpoints=NUM_CHECKPOINTS)
            fit("CBNN", cbnn.weighted(x, y), callbacks=[cbnn])
            if len(cbnn.history) != NUM_CHECKPOINTS:
                raise RuntimeError(f"{len(cbnn.history)} checkpoints")

    seconds = alternate(
        {
            "arrays": lambda: fit("arrays", x, y),
            "with ones": lambda: fit("with ones", x, y, sample_weight=ones),
            "pipeline": lambda: fit("pipeline", weighted(x, y)),
            "CBNN": boosted,
        },
        options.repeats,
        time.process_time,
    )
    num_steps = options.epochs * -(-options.samples // 32)
    step = 1000 * statistics.median(seconds["arrays"]) / num_steps
    print(f"a step of fit(x, y): {step:.2f} ms of processor time")
    for name, target in (
        ("with ones", ""),
        ("pipeline", " (<= 1.05)"),
        ("CBNN", " (<= 1.15)"),
    ):
        found = ratio(seconds[name], seconds["arrays"])
        print(f"{name + ' / arrays' + target + ':':30} {found}")


def table_model() -> keras.Model:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((20,)),
            layers.Dense(64, activation="relu"),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        "adam", "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


if __name__ == "__main__":
    main()
