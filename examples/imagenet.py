"""ImageNet with an EfficientNet and three checkpoints, on all GPUs there are.

Reproduces a cell of the last column of table 1 of Wang et al., "Boost Neural
Networks by Checkpoints", NeurIPS 2021.

    python examples/imagenet.py --data-dir DATA --mixed-precision
    python examples/imagenet.py --data-dir DATA --model efficientnet-b3
    python examples/imagenet.py --data-dir DATA --method single

Data:     ImageNet as TensorFlow Datasets prepares it from the two official
          archives (150 GB), which need a registration at image-net.org. The
          first 10,000 training images are kept to select members with; the
          test images are those of the validation set.
Model:    EfficientNet at 224x224, 300 epochs; SGD with Nesterov momentum, the
          paper's learning rate stretched to 300 epochs and set once an epoch;
          AutoAugment's policy for ImageNet, then padded, cropped and flipped
Devices:  `MirroredStrategy` over all GPUs if there are several; the batch size
          is that of all of them together
Cost:     not run by us; it wants several GPUs. Each checkpoint adds one pass
          over the training images without gradients, and `fit` begins with one
          that reads the labels. Tests run it on a few made-up images.
Expected: not run by us. The paper has 23.70 ± 0.21 % for the single model and
          22.69 ± 0.19 % for CBNN with EfficientNet-B0; 18.30 ± 0.15 and 17.55 ±
          0.14 % with B3.

The run is kept under `runs/`. The script can be killed at any moment and
started again: it goes on where it was.
"""

import argparse
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
from recipes import autoaugment, data, models
from recipes.training import PAPER_EPOCHS, devices

from cbnn_keras import CBNNCallback
from cbnn_keras.baselines import PlainCheckpoints, SnapshotEnsemble
from cbnn_keras.schedules import decayed_rate

NUM_CLASSES = 1000
METHODS: dict[str, Callable[..., Any]] = {
    "single": PlainCheckpoints,
    "no-cycle": PlainCheckpoints,
    "sse": SnapshotEnsemble,
    "cbnn": CBNNCallback.paper,
}


def rate_of(options: argparse.Namespace) -> Callable[[int, float], float]:
    """The paper's learning rate by epoch, stretched to the epochs."""
    scale = options.epochs / PAPER_EPOCHS

    def rate(epoch: int, _: float) -> float:
        return decayed_rate(
            epoch + 1,
            steps_per_epoch=1,
            initial=options.learning_rate,
            epochs_per_drop=2 * scale,
            warmup_epochs=5 * scale,
        )

    return rate


def train(options: argparse.Namespace, examples: Any, directory: Any) -> Any:
    """Trains with a method on single examples, and gives the ensemble."""
    keras.utils.set_random_seed(options.seed)
    num = 1 if options.method == "single" else options.checkpoints
    callback = METHODS[options.method](
        directory, num_checkpoints=num, resume=True
    )
    callbacks = [callback]
    if options.method != "sse":  # which sets the rate of every step
        rate = rate_of(options)
        callbacks.append(keras.callbacks.LearningRateScheduler(rate))
    with devices()():
        model = models.build(options.model, NUM_CLASSES, options.size)
        model.compile(
            keras.optimizers.SGD(
                options.learning_rate, momentum=0.9, nesterov=True
            ),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        dataset = callback.weighted(
            examples,
            batch_size=options.batch_size,
            shuffle=options.shuffle_buffer,
            augment=autoaugment.compose(
                autoaugment.autoaugment("imagenet"), data.standard_augment
            ),
            seed=options.seed,
        )
        model.fit(
            dataset,
            epochs=options.epochs,
            callbacks=callbacks,
            shuffle=False,
            verbose=options.verbose,
        )
    return callback.ensemble()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data-dir", help="the folder of TensorFlow Datasets")
    add("--model", choices=models.MODELS, default="efficientnet-b0")
    add("--method", choices=METHODS, default="cbnn")
    add("--size", type=int, default=224)
    add("--epochs", type=int, default=300)
    add("--batch-size", type=int, default=256)
    add("--learning-rate", type=float, default=0.05)
    add("--checkpoints", type=int, default=3)
    add("--held-out", type=int, default=10_000, metavar="NUM")
    add("--shuffle-buffer", type=int, default=20_000, metavar="NUM")
    add("--mixed-precision", action="store_true")
    add("--seed", type=int, default=0)
    add("--directory", type=pathlib.Path, default=pathlib.Path("runs"))
    add("--verbose", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.mixed_precision:
        keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    examples, test = data.load_imagenet(options.data_dir, size=options.size)
    held_out = examples.take(options.held_out).batch(options.batch_size)
    name = "-".join(
        [
            f"imagenet-{options.model}-{options.method}",
            f"{options.epochs}-epochs-seed-{options.seed}",
        ]
    )
    ensemble = train(
        options, examples.skip(options.held_out), options.directory / name
    )
    for choice, members in {
        "final model": ensemble.select(num=1),
        "all members": ensemble,
        "selected members": ensemble.select(validation_data=held_out),
    }.items():
        scores = members.evaluate(test.batch(options.batch_size))
        error = 100 * (1 - scores["accuracy"])
        print(f"{choice:20} {len(members)} member(s), {error:.2f} % test error")


if __name__ == "__main__":
    main()
