"""A real run: CIFAR-100 through TFDS, a small ResNet, six checkpoints."""

import os
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import onnxruntime
import pytest

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.export import export_onnx

# Beside a checkout, if at all: the data are not part of the project.
DATA = pathlib.Path(__file__).parents[3] / "shared" / "data" / "tfds"
NUM_IMAGES = 5_000

LOAD_AND_PREDICT = """
import sys
import numpy as np
from cbnn_keras import CheckpointEnsemble

run, images, result = sys.argv[1:]
ensemble = CheckpointEnsemble.load(run)
np.save(result, ensemble.predict(np.load(images), batch_size=100))
"""


def resnet8(num_classes):
    """Three residual blocks of 16, 32 and 64 filters."""
    layers = keras.layers
    inputs = keras.Input((32, 32, 3))
    x = layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(x)
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
        shortcut = layers.Conv2D(filters, 1, strides=strides)(x)
        x = layers.Conv2D(filters, 3, strides=strides, padding="same")(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
        x = layers.Conv2D(filters, 3, padding="same")(x)
        x = layers.Add()([x, shortcut])
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(x))
    outputs = layers.Dense(num_classes, activation="softmax")(x)
    return keras.Model(inputs, outputs)


@pytest.mark.large
@pytest.mark.skipif(
    not DATA.is_dir(), reason="the CIFAR-100 files of TFDS are not here"
)
# tensorflow-datasets and what it imports use deprecated parts of others.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_cifar100_run_loads_in_another_process_and_exports(tmp_path):
    import tensorflow_datasets as tfds

    train, test = tfds.load(
        "cifar100",
        split=[f"train[:{NUM_IMAGES}]", "test[:2000]"],
        data_dir=DATA,
        download=False,
        as_supervised=True,
    )
    images = np.stack([image.numpy() for image, _ in test])
    labels = np.array([label.numpy() for _, label in test])
    model = resnet8(100)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        "sparse_categorical_crossentropy",
    )
    cbnn = CBNNCallback.paper(tmp_path / "run", num_checkpoints=6)
    pipeline = cbnn.weighted(train, batch_size=50, seed=0)
    model.fit(pipeline, epochs=2, callbacks=[cbnn], verbose=0)
    steps = [member["step"] for member in cbnn.ensemble().members]
    assert steps == [34, 68, 102, 136, 166, 200]
    predictions = cbnn.ensemble().predict(images, batch_size=100)
    accuracy = np.mean(predictions.argmax(axis=1) == labels)
    assert accuracy > 0.04  # four times chance after two epochs

    np.save(tmp_path / "images.npy", images)
    files = ["run", "images.npy", "elsewhere.npy"]
    subprocess.run(
        [sys.executable, "-c", LOAD_AND_PREDICT, *files],
        cwd=tmp_path,
        check=True,
        # As this process; rounding may depend on the number of threads.
        env=os.environ | {"TF_NUM_INTRAOP_THREADS": "1"},
    )
    elsewhere = np.load(tmp_path / "elsewhere.npy")
    np.testing.assert_array_equal(elsewhere, predictions)

    real = np.stack([image.numpy() for image, _ in train.take(500)])
    check_eight_bits(cbnn.ensemble(), tmp_path, images, labels, real)


def check_eight_bits(ensemble, folder, images, labels, real):
    """A third of the size, and hardly less accurate."""
    full = export_onnx(ensemble, folder / "full.onnx", verbose=0)
    small = export_onnx(
        ensemble,
        folder / "small.onnx",
        precision="int8",
        calibration_data=real,
        verbose=0,
    )
    assert 3 * small.num_bytes <= full.num_bytes
    winners = [predict_onnx(a.path, images).argmax(1) for a in (full, small)]
    accuracies = [np.mean(winner == labels) for winner in winners]
    agreement = np.mean(winners[0] == winners[1])
    print(
        f"int8: {full.num_bytes / small.num_bytes:.2f} times smaller, accuracy "
        f"{accuracies[1]:.2%} instead of {accuracies[0]:.2%}, the same class "
        f"for {agreement:.2%} of {len(labels)} images"
    )
    assert abs(accuracies[0] - accuracies[1]) <= 0.005
    assert agreement > 0.9


def predict_onnx(path, images):
    session = onnxruntime.InferenceSession(path)
    batches = np.split(images.astype("float32"), 20)
    return np.concatenate([session.run(None, {"input": b})[0] for b in batches])


@pytest.mark.large
@pytest.mark.skipif(
    not DATA.is_dir(), reason="the CIFAR-100 files of TFDS are not here"
)
def test_the_example_on_two_devices(tmp_path):
    example = pathlib.Path(__file__).parents[2] / "examples" / "cifar.py"
    sizes = ["--images", "400", "--test-images", "100", "--batch-size", "40"]
    short = ["--model", "resnet8", "--epochs", "3", "--checkpoints", "2"]
    found = subprocess.run(
        [
            *(sys.executable, example, *sizes, *short),
            *("--cpus", "2", "--data-dir", DATA, "--directory", "runs"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr
    assert "2 CPU device(s)" in found.stdout
    lines = found.stdout.splitlines()[-3:]
    for line, name in zip(
        lines, ("final model", "CBNN, all", "CBNN, selected"), strict=True
    ):
        assert re.fullmatch(
            rf"{name}.* \d member\(s\), \d+\.\d\d % test error", line
        )
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name == "cifar100-400-resnet8-standard-cbnn-3-epochs-seed-0"
    assert len(CheckpointEnsemble.load(run)) == 2
