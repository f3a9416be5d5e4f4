"""The input pipeline with sample weights against the same without.

    python benchmarks/pipeline.py [--samples 1281167] [--repeats 7] [--cpu-time]

At the number of samples of ImageNet, in one run and in turns:

- throughput with weights as a ratio to that without, where each sample is a
  JPEG of 64x64 pixels that is decoded, cropped and flipped (target: at least
  0.97);
- the same for samples that cost nothing, 16 numbers each: what the lookup
  itself takes, as the worst case;
- the memory that the weights take on top (target: at most 32 MB).

`--cpu-time` counts the processor's seconds instead of those on the wall, for a
machine that is not idle.
"""

import argparse
import itertools
import pathlib
import re
import subprocess
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf
from common import alternate, ratio, versions

from cbnn_keras import weighted
from cbnn_keras.data.indexed import ArraySamples

BATCH_SIZE = 128


def jpegs(num: int = 64) -> tf.Tensor:
    """Smooth random pictures, about 2 kB each."""
    coarse = np.random.default_rng(0).uniform(0, 255, (num, 8, 8, 3))
    pictures = tf.cast(tf.image.resize(coarse, (64, 64)), tf.uint8)
    return tf.stack([tf.io.encode_jpeg(picture) for picture in pictures])


def decoder() -> Any:
    pictures = jpegs()

    def decode(number: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_jpeg(tf.gather(pictures, number))
        image = tf.image.stateless_random_crop(image, (56, 56, 3), seed)
        image = tf.image.stateless_random_flip_left_right(image, seed)
        return tf.cast(image, tf.float32) / 255

    return decode


def without_weights(x: Any, y: Any, augment: Any) -> tf.data.Dataset:
    """The very same pipeline, but for the weights."""
    passes = tf.Variable(0, dtype=tf.int64)

    def next_key() -> tf.Tensor:
        return tf.stack([tf.constant(0, tf.int64), passes.assign_add(1)])

    return (
        ArraySamples(x, y)
        .training_batches(
            next_key,
            batch_size=BATCH_SIZE,
            shuffle=True,
            augment=augment,
            finish=lambda index, x, y: (x, y),
        )
        .prefetch(tf.data.AUTOTUNE)
    )


def with_weights(x: Any, y: Any, augment: Any) -> tf.data.Dataset:
    return weighted(x, y, batch_size=BATCH_SIZE, augment=augment, seed=0)


def consume(dataset: tf.data.Dataset, num_batches: int) -> None:
    # As `fit` reads it: `take` would be on the way that strategies take.
    for _ in itertools.islice(dataset, num_batches):
        pass


def compare(
    name: str, data: Any, num_batches: int, options: argparse.Namespace
) -> None:
    plain, boosted = without_weights(*data), with_weights(*data)
    seconds = alternate(
        {
            "without": lambda: consume(plain, num_batches),
            "with": lambda: consume(boosted, num_batches),
        },
        options.repeats,
        time.process_time if options.cpu_time else time.perf_counter,
    )
    micro = {k: 1e6 * min(v) / num_batches for k, v in seconds.items()}
    print(
        f"{name}: throughput with / without "
        f"{ratio(seconds['without'], seconds['with'])}; at best "
        f"{micro['with']:.0f} and {micro['without']:.0f} us a batch"
    )


def peak_memory(kind: str, num_samples: int) -> int:
    """Megabytes of a process of its own that does one pass."""
    command = [sys.executable, __file__, "--peak", kind]
    result = subprocess.run(
        [*command, "--samples", str(num_samples)],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(result.stdout.split()[-1])


def print_peak(kind: str, data: Any) -> None:
    make = with_weights if kind == "with" else without_weights
    for _ in make(*data):
        pass
    # Not `ru_maxrss`, which a child inherits from its parent.
    status = pathlib.Path("/proc/self/status").read_text()
    print(int(re.findall(r"VmHWM:\s*(\d+) kB", status)[0]) // 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_281_167)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--peak", choices=["with", "without"])
    options = parser.parse_args()
    labels = np.arange(options.samples) % 1000
    bare = np.zeros((options.samples, 16), "float32"), labels, None
    if options.peak:
        print_peak(options.peak, bare)
        return
    print(versions())
    decoded = np.arange(options.samples) % 64, labels, decoder()
    compare("decoded JPEGs (>= 0.97)", decoded, 200, options)
    compare("16 numbers (worst case)", bare, 5000, options)
    more = [
        peak_memory("with", options.samples)
        - peak_memory("without", options.samples)
        for _ in range(3)
    ]
    print(f"more memory, MB (<= 32): median {sorted(more)[1]} of {more}")


if __name__ == "__main__":
    main()
