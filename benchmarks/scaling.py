"""Several devices: what scoring gains, and what CBNN adds to `fit` there.

    python benchmarks/scaling.py [--devices 2] [--epochs 30] [--cpu-time]

Under `MirroredStrategy`, on GPUs if there are enough of them and else on
logical CPU devices of one thread each, prints

1. the time to score the training set over all devices against one of them;
2. the time of `fit` with 6 checkpoints against plain `fit` on the same
   pipeline plus six inference passes under the same strategy, written here
   without this package. Target: at most 1.02.

Two logical devices share the cores of one processor: what they gain is no
measure of two GPUs. `--cpu-time` counts the processor's seconds instead of
those on the wall in the second part, for a machine that is not idle.
"""

import argparse
import tempfile
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from common import alternate, random_images, ratio, small_resnet, versions

from cbnn_keras import CBNNCallback, weighted
from cbnn_keras.data.indexed import ArraySamples
from cbnn_keras.models.classifier import Classifier
from cbnn_keras.training.scoring import Scorer

NUM_CHECKPOINTS = 6
BATCH_SIZE = 100


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    devices = find_devices(options.devices)
    print(versions())
    print(f"{options.samples} samples, devices {', '.join(devices)}")
    data = random_images(options.samples)

    scoring = {
        "one": scoring_pass(devices[:1], *data),
        "all": scoring_pass(devices, *data),
    }
    seconds = alternate(scoring, options.repeats)
    print(
        f"scoring, {len(devices)} devices / 1:    "
        f"{ratio(seconds['all'], seconds['one'])}"
    )

    seconds = alternate(
        training(devices, *data, epochs=options.epochs),
        options.repeats,
        time.process_time if options.cpu_time else time.perf_counter,
    )
    limit = [
        a + b for a, b in zip(seconds["plain"], seconds["passes"], strict=True)
    ]
    print(f"{options.epochs} epochs, {NUM_CHECKPOINTS} checkpoints")
    print(
        f"CBNN / plain fit:         "
        f"{ratio(seconds['boosted'], seconds['plain'])}"
    )
    print(f"limit / plain fit:        {ratio(limit, seconds['plain'])}")
    print(f"CBNN / limit (<= 1.02):   {ratio(seconds['boosted'], limit)}")


def find_devices(num: int) -> list[str]:
    if len(tf.config.list_physical_devices("GPU")) >= num:
        return [f"GPU:{i}" for i in range(num)]
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * num,
    )
    return [f"CPU:{i}" for i in range(num)]


def mirrored(devices: list[str]) -> tf.distribute.Strategy:
    if devices[0].startswith("GPU"):
        return tf.distribute.MirroredStrategy(devices)
    # TensorFlow's collectives on CPUs allow one number of devices a process.
    return tf.distribute.MirroredStrategy(
        devices, tf.distribute.ReductionToOneDevice()
    )


def compiled() -> keras.Model:
    model = small_resnet()
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
    return model


def scoring_pass(
    devices: list[str], x: tf.Tensor, y: tf.Tensor
) -> Callable[[], object]:
    with mirrored(devices).scope():
        model = compiled()
    classifier = Classifier(num_classes=10, is_binary=False, from_logits=False)
    scorer = Scorer(model, classifier)
    samples, labels = ArraySamples(x, y), np.asarray(y)
    return lambda: scorer.score(samples.inputs(BATCH_SIZE), labels)


def training(
    devices: list[str], x: tf.Tensor, y: tf.Tensor, *, epochs: int
) -> dict[str, Callable[[], object]]:
    strategy = mirrored(devices)
    # One model each, kept over the turns, so that tracing is not measured.
    with strategy.scope():
        plain_model, boosted_model, scored_model = (
            compiled() for _ in range(3)
        )

    def plain() -> None:
        train = weighted(x, y, batch_size=BATCH_SIZE, seed=0)
        plain_model.fit(train, epochs=epochs, verbose=0, shuffle=False)

    def boosted() -> None:
        with tempfile.TemporaryDirectory() as directory:
            cbnn = CBNNCallback.paper(
                directory, num_checkpoints=NUM_CHECKPOINTS
            )
            train = cbnn.weighted(x, y, batch_size=BATCH_SIZE, seed=0)
            boosted_model.fit(
                train,
                epochs=epochs,
                callbacks=[cbnn],
                verbose=0,
                shuffle=False,
            )
            if len(cbnn.history) != NUM_CHECKPOINTS:
                raise RuntimeError(f"{len(cbnn.history)} checkpoints")

    def forward(batch: tf.Tensor) -> tf.Tensor:
        return tf.argmax(scored_model(batch, training=False), axis=1)

    @tf.function(reduce_retracing=True)
    def on_all(batch: tf.Tensor) -> tf.Tensor:
        return strategy.run(forward, args=(batch,))

    inputs = tf.data.Dataset.from_tensor_slices(x).batch(BATCH_SIZE)
    distributed = strategy.experimental_distribute_dataset(inputs.prefetch(4))

    def passes() -> None:
        for _ in range(NUM_CHECKPOINTS):
            for batch in distributed:
                on_all(batch)

    return {"plain": plain, "boosted": boosted, "passes": passes}


if __name__ == "__main__":
    main()
