"""AutoAugment of the examples against KerasCV's RandAugment, at 32x32.

    python benchmarks/augmentation.py [--images 12800] [--turns 7]
        [--cpu-time] [--data-dir ...]

Throughput of AutoAugment (`examples/recipes/autoaugment.py`, the policy of
CIFAR-10) as a ratio to that of RandAugment, which is the nearest thing that
KerasCV has; measured in turns, in the same `tf.data` pipeline: a parallel map
of uint8 images and batches of 128. Target: at least 1.

RandAugment applies two operations an image, as AutoAugment does at most, and
is measured both image by image and on whole batches: the ratio is that to the
faster of the two. AutoAugment's seeds are derived in the map, as `weighted`
does it. `--data-dir` takes the images from CIFAR-100 as prepared there by
TensorFlow Datasets; without, they are noise. `--cpu-time` counts the
processor's seconds instead of those of the clock.
"""

import argparse
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

from common import alternate, ratio, versions  # sets TensorFlow's log level

# isort: split
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))

from recipes.autoaugment import autoaugment  # noqa: E402
from recipes.blending import rand_augment  # noqa: E402

BATCH_SIZE = 128


def load_images(num: int, data_dir: str | None) -> np.ndarray:
    if data_dir is None:
        shape = (num, 32, 32, 3)
        return np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    import tensorflow_datasets as tfds

    data = tfds.load(
        "cifar100", split=f"train[:{num}]", data_dir=data_dir, batch_size=-1
    )
    return np.asarray(data["image"])


def pipelines(images: np.ndarray) -> dict[str, tf.data.Dataset]:
    key = tf.constant([0, 1], tf.int64)
    auto, rand = autoaugment("cifar10"), rand_augment(num_operations=2)

    def seeded(index: tf.Tensor, image: tf.Tensor) -> tf.Tensor:
        return auto(image, tf.random.fold_in(key, index))

    def unseeded(index: tf.Tensor, image: tf.Tensor) -> tf.Tensor:
        return rand(image, key)

    source = tf.data.Dataset.from_tensor_slices(images).enumerate()
    parallel = {"num_parallel_calls": tf.data.AUTOTUNE}
    datasets = {
        "AutoAugment": source.map(seeded, **parallel).batch(BATCH_SIZE),
        "RandAugment, images": source.map(unseeded, **parallel).batch(
            BATCH_SIZE
        ),
        "RandAugment, batches": source.batch(BATCH_SIZE).map(
            unseeded, **parallel
        ),
    }
    return {
        name: dataset.prefetch(tf.data.AUTOTUNE)
        for name, dataset in datasets.items()
    }


def consumer(dataset: tf.data.Dataset) -> Callable[[], None]:
    def consume() -> None:
        for _ in dataset:
            pass

    return consume


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--images", type=int, default=12_800)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--data-dir")
    options = parser.parse_args()
    print(versions())
    images = load_images(options.images, options.data_dir)
    seconds = alternate(
        {name: consumer(data) for name, data in pipelines(images).items()},
        options.turns,
        time.process_time if options.cpu_time else time.perf_counter,
    )
    unit = "second of the processor" if options.cpu_time else "second"
    medians = {name: statistics.median(s) for name, s in seconds.items()}
    for name, median in medians.items():
        print(f"{name}: {len(images) / median:,.0f} images a {unit}, median")
    ours = "AutoAugment"
    best = min(medians.keys() - {ours}, key=lambda name: medians[name])
    print(
        f"throughput of {ours} / {best} (>= 1): "
        f"{ratio(seconds[best], seconds[ours])}"
    )


if __name__ == "__main__":
    main()
