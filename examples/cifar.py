"""CIFAR-10 or CIFAR-100 with a ResNet, on all GPUs that there are.

    python examples/cifar.py --dataset cifar100 --depth 110 --epochs 200
    python examples/cifar.py --depth 20 --epochs 60
    python examples/cifar.py --depth 8 --images 10000 --epochs 12 --cpus 2

Data:     TensorFlow Datasets downloads them once (160 MB); `--data-dir` says
          where they are or shall be. A tenth of the training images is kept to
          select members with.
Model:    ResNet of 6n + 2 layers (He et al., 2016), SGD with Nesterov momentum,
          learning rate 0.1, divided by 10 after 50 and 75 % of the epochs;
          images padded, cropped and flipped
Devices:  `MirroredStrategy` over all GPUs if there are several; `--cpus` makes
          logical devices of a CPU to try that without any. The batch is
          divided among them and the result is that of one device, but for the
          statistics of BatchNorm.
Cost:     about five minutes for the third command, on two CPU cores
Expected: that command printed 80.27 % test error for the final model, 80.98 for
          all six members and 80.27 for the one that was selected: so short a
          run is no place for an ensemble. The others were not run.

The run is kept under `runs/`. The script can be killed at any moment and
started again, on more or on fewer GPUs too: it goes on where it was.
"""

import argparse
import contextlib
import pathlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from cbnn_keras import CBNNCallback


def find_devices(num_cpus: int) -> contextlib.AbstractContextManager[Any]:
    """The scope to build the model in."""
    if num_cpus:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * num_cpus,
        )
    kind = "CPU" if num_cpus else "GPU"
    devices = tf.config.list_logical_devices(kind)
    print(f"{len(devices)} {kind} device(s)")
    if len(devices) < 2:
        return contextlib.nullcontext()
    strategy = tf.distribute.MirroredStrategy([d.name for d in devices])
    return strategy.scope()


def resnet(depth: int, num_classes: int) -> keras.Model:
    """Three stages of n blocks of two layers, 16, 32 and 64 filters."""
    if (depth - 2) % 6:
        raise SystemExit(f"--depth {depth}: 6n + 2, such as 8, 14, 20, 110")
    layers = keras.layers

    def conv(x: Any, filters: int, stride: int) -> Any:
        x = layers.Conv2D(
            filters,
            3,
            stride,
            padding="same",
            use_bias=False,
            kernel_initializer="he_normal",
            kernel_regularizer=keras.regularizers.L2(1e-4),
        )(x)
        return layers.BatchNormalization(momentum=0.9)(x)

    inputs = keras.Input((32, 32, 3), dtype="uint8")
    x = layers.Rescaling(1 / 64, offset=-2)(inputs)
    x = layers.ReLU()(conv(x, 16, 1))
    for filters in (16, 32, 64):
        for block in range((depth - 2) // 6):
            stride = 2 if filters > 16 and block == 0 else 1
            shortcut = x
            if stride == 2:  # no weights: every other pixel, and zeros
                shortcut = layers.AveragePooling2D(1, stride)(x)
                zeros = layers.Rescaling(0.0)(shortcut)
                shortcut = layers.Concatenate()([shortcut, zeros])
            x = layers.ReLU()(conv(x, filters, stride))
            x = layers.ReLU()(layers.Add()([conv(x, filters, 1), shortcut]))
    x = layers.GlobalAveragePooling2D()(x)
    outputs = layers.Dense(num_classes, activation="softmax")(x)
    return keras.Model(inputs, outputs)


def augment(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    padded = tf.pad(image, [[4, 4], [4, 4], [0, 0]])
    image = tf.image.stateless_random_crop(padded, (32, 32, 3), seed)
    return tf.image.stateless_random_flip_left_right(image, seed)


def load(name: str, split: str, data_dir: str | None) -> tuple[Any, Any, int]:
    """Images, labels and the number of classes."""
    data, info = tfds.load(
        name, split=split, data_dir=data_dir, batch_size=-1, with_info=True
    )
    num_classes = info.features["label"].num_classes
    return np.asarray(data["image"]), np.asarray(data["label"]), num_classes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dataset", default="cifar100")
    parser.add_argument("--data-dir")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--test-images", type=int, default=10_000)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--checkpoints", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpus", type=int, default=0)
    parser.add_argument("--directory", type=pathlib.Path, default="runs")
    options = parser.parse_args()
    scope = find_devices(options.cpus)
    images, labels, num_classes = load(
        options.dataset, f"train[:{options.images}]", options.data_dir
    )
    num = options.images * 9 // 10
    keras.utils.set_random_seed(options.seed)

    with scope:
        model = resnet(options.depth, num_classes)
        num_steps = -(-num // options.batch_size) * options.epochs
        rate = keras.optimizers.schedules.PiecewiseConstantDecay(
            [num_steps // 2, num_steps * 3 // 4], [0.1, 0.01, 0.001]
        )
        model.compile(
            keras.optimizers.SGD(rate, momentum=0.9, nesterov=True),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        name = (
            f"{options.dataset}-{options.images}-resnet{options.depth}-"
            f"{options.epochs}-epochs-seed-{options.seed}"
        )
        cbnn = CBNNCallback(
            options.directory / name,
            num_checkpoints=options.checkpoints,
            resume=True,
        )
        train = cbnn.weighted(
            images[:num],
            labels[:num],
            batch_size=options.batch_size,
            augment=augment,
            seed=options.seed,
        )
        model.fit(
            train,
            epochs=options.epochs,
            callbacks=[cbnn],
            shuffle=False,
            verbose=2,
        )

    ensemble = cbnn.ensemble()
    kept = (images[num:], labels[num:])
    x_test, y_test, _ = load(
        options.dataset, f"test[:{options.test_images}]", options.data_dir
    )
    for choice, members in {
        "final model": ensemble.select(num=1),
        "CBNN, all members": ensemble,
        "CBNN, selected": ensemble.select(validation_data=kept),
    }.items():
        accuracy = members.evaluate(x_test, y_test)["accuracy"]
        error = 100 * (1 - accuracy)
        print(f"{choice:20} {len(members)} member(s), {error:.2f} % test error")


if __name__ == "__main__":
    main()
