"""A frozen backbone and a boosted head: an ensemble almost for free.

Reproduces no table: the paper (Wang et al., "Boost Neural Networks by
Checkpoints", NeurIPS 2021) trains from scratch. Where only the head is trained,
its inputs are computed once, checkpoints are scored in no time, members are
good from the first one on, and the export has the backbone once.

    python examples/finetune.py                              # minutes
    python examples/finetune.py --weights runs/backbone.keras
    python examples/finetune.py --weights imagenet --size 32 # downloads them
    python examples/finetune.py --images 2000 --backbone-epochs 2 --size 16

Data:     CIFAR-100: classes 0 to 49 to train a backbone on, 50 to 99 for the
          head; a tenth of the latter's training images to select members with
Model:    ResNet-8 without its last layer, or EfficientNet-B0 with ImageNet's
          weights; the head is a hidden layer of 256 units and a softmax, Adam
Cost:     the first command took 68 seconds of CPU time. By the clock, on a
          core shared with other work: features once 2.7 s, 30 epochs of the
          head with six checkpoints 36.6 s, one epoch of the whole network
          10.2 s, so that the ensemble costs less than four of those
Expected: the first command printed 70.60 % test error for the final model,
          70.40 for all six members and 70.60 for the one that was selected
          (one seed, 50 classes, `CBNNCallback.paper`): no real difference.
          The other commands were not run by us.

The run is kept under `runs/`, the backbone and one ONNX file of all beside it.
Needs `pip install "cbnn-keras[onnx]"`.
"""

import argparse
import pathlib
import time

import keras
import numpy as np
from recipes import data, models

from cbnn_keras import CBNNCallback
from cbnn_keras.export import export_onnx

NUM_CLASSES = 50  # for each of the two tasks


def headless(model: keras.Model) -> keras.Model:
    """All but the last layer, frozen."""
    backbone = keras.Model(model.inputs, model.layers[-1].input)
    backbone.trainable = False
    return backbone


def imagenet_backbone(size: int) -> keras.Model:
    """EfficientNet-B0 as Keras downloads it, from bytes to features."""
    inputs = keras.Input((size, size, 3), dtype="uint8")
    application = keras.applications.EfficientNetB0(
        include_top=False, pooling="avg", input_shape=(224, 224, 3)
    )
    x = keras.layers.Resizing(224, 224)(inputs)
    backbone = keras.Model(inputs, application(x))
    backbone.trainable = False
    return backbone


def trained_backbone(
    x: np.ndarray, y: np.ndarray, epochs: int
) -> tuple[keras.Model, float]:
    """A ResNet-8 for the first classes, and the seconds of its last epoch."""
    model = models.build("resnet8", NUM_CLASSES, x.shape[1])
    num_steps = epochs * -(-len(y) // 64)
    rate = keras.optimizers.schedules.CosineDecay(0.05, num_steps)
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9, nesterov=True),
        "sparse_categorical_crossentropy",
    )
    starts: list[float] = []
    clock = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: starts.append(time.perf_counter())
    )
    model.fit(x, y, 64, epochs, callbacks=[clock], verbose=2)
    return headless(model), time.perf_counter() - starts[-1]


def boosted_head(
    features: np.ndarray, y: np.ndarray, options: argparse.Namespace
) -> CBNNCallback:
    """Trains the head on features as CBNN does."""
    head = keras.Sequential(
        [
            keras.Input(features.shape[1:]),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(NUM_CLASSES, activation="softmax"),
        ]
    )
    head.compile("adam", "sparse_categorical_crossentropy")
    cbnn = CBNNCallback(options.directory / "finetune", overwrite=True)
    train = cbnn.weighted(features, y, batch_size=64, seed=options.seed)
    head.fit(
        train, epochs=options.epochs, callbacks=[cbnn], shuffle=False, verbose=0
    )
    return cbnn


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data-dir", help="see recipes/data.py")
    add("--weights", help="imagenet, or the file of a backbone")
    add("--images", type=int, default=16_000, help="of both tasks together")
    add("--size", type=int, default=16, help="shrinks images to it")
    add("--backbone-epochs", type=int, default=10)
    add("--epochs", type=int, default=30, help="of the head")
    add("--seed", type=int, default=0)
    add("--directory", type=pathlib.Path, default=pathlib.Path("runs"))
    options = parser.parse_args()
    keras.utils.set_random_seed(options.seed)
    images = data.load(
        "cifar100",
        options.data_dir,
        num_train=options.images,
        size=options.size,
    )
    x, y = images.x_train, images.y_train
    first = y < NUM_CLASSES
    epoch_seconds = None
    if options.weights == "imagenet":
        backbone = imagenet_backbone(options.size)
    elif options.weights:
        backbone = keras.models.load_model(options.weights)
    else:
        backbone, epoch_seconds = trained_backbone(
            x[first], y[first], options.backbone_epochs
        )
        options.directory.mkdir(parents=True, exist_ok=True)
        backbone.save(options.directory / "backbone.keras")

    x, y = x[~first], y[~first] - NUM_CLASSES
    is_test = images.y_test >= NUM_CLASSES
    y_test = images.y_test[is_test] - NUM_CLASSES
    start = time.perf_counter()
    features = backbone.predict(x, batch_size=256, verbose=0)
    featured = time.perf_counter()
    num = len(y) // 10
    cbnn = boosted_head(features[num:], y[num:], options)
    boosted = time.perf_counter()
    test = backbone.predict(images.x_test[is_test], batch_size=256, verbose=0)

    ensemble = cbnn.ensemble()
    kept = (features[:num], y[:num])
    selected = ensemble.select(validation_data=kept, verbose=0)
    for choice, members in {
        "last member": ensemble.select(num=1),
        "CBNN": ensemble,
        "CBNN, selected": selected,
    }.items():
        accuracy = members.evaluate(test, y_test, verbose=0)["accuracy"]
        error = 100 * (1 - accuracy)
        print(f"{choice:20} {len(members)} member(s), {error:.2f} % test error")
    print(
        f"features once: {featured - start:.1f} s; {options.epochs} epochs of "
        f"the head with {len(cbnn.history)} checkpoints: "
        f"{boosted - featured:.1f} s"
    )
    if epoch_seconds is not None:
        print(f"one epoch of the whole network: {epoch_seconds:.1f} s")
    export_onnx(
        ensemble,
        options.directory / "finetune.onnx",
        preprocess=backbone,
        sample_data=images.x_test[is_test][:100],
    )


if __name__ == "__main__":
    main()
