"""`cbnn demo`: CBNN on real handwritten digits in less than a minute."""

import io
import itertools
import json
import os
import pathlib
import shlex

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from cbnn_keras.ensemble.ensemble import CheckpointEnsemble
from cbnn_keras.metrics import (
    accuracy,
    negative_log_likelihood,
    predicted_classes,
)
from cbnn_keras.runs.directory import check_available
from cbnn_keras.runs.outputs import check_output
from cbnn_keras.support import files
from cbnn_keras.support.failures import failures_explained
from cbnn_keras.support.faults import RunError
from cbnn_keras.training.callback import CBNNCallback

Arrays = tuple[np.ndarray, np.ndarray]
TRAINED, BOOSTED = "the model as trained", "CBNN"


def run_demo(
    directory: pathlib.Path | None = None, *, epochs: int = 30, seed: int = 0
) -> dict[str, float]:
    """Trains a small CNN on scikit-learn's digits and shows what CBNN gives.

    Args:
        directory: The directory of the run, which must not hold one. The data
            are kept beside it. Defaults to None: `runs/demo`, or the next free
            one of `runs/demo-2`, ...
        epochs: Number of passes over the 1,077 training images.
        seed: What the split, the model and the batches derive from.

    Returns:
        Test error in percent by method.

    Raises:
        ValueError: If the directory holds a run, or has no name.
        ImportError: If scikit-learn is missing.
    """
    if directory is None:
        directory = free_directory(pathlib.Path("runs/demo"))
    # What can fail fails before the training.
    check_available(directory)
    check_output(directory)
    console = Console(highlight=False, markup=False, emoji=False)
    train, validation, test = load_digits(seed)
    data = save_data(directory, train, test)
    console.print(
        f"Digits: {len(train[1])} training, {len(validation[1])} validation, "
        f"{len(test[1])} test images of 8x8 pixels; {epochs} epochs."
    )
    keras.utils.set_random_seed(seed)
    model = small_cnn()
    cbnn = CBNNCallback(directory, validation_data=validation)
    model.fit(
        cbnn.weighted(*train, batch_size=64, augment=shift),
        epochs=epochs,
        callbacks=[cbnn],
        shuffle=False,  # the pipeline shuffles; Keras would warn
        verbose=2 if not console.is_interactive else 1,
    )
    said = test_predictions(cbnn.ensemble(), validation, test[0])
    console.print(_table(said, test[1]))
    console.print(difference(said[TRAINED], said[BOOSTED], test[1]))
    console.print(
        f"The run is in {named(directory)}. Look at it, then use it:",
        soft_wrap=True,
    )
    for command in _next_commands(directory, data):
        console.print(f"  {shlex.join(command)}", soft_wrap=True)
    return {name: 100 * (1 - accuracy(p, test[1])) for name, p in said.items()}


def free_directory(wanted: pathlib.Path) -> pathlib.Path:
    """The path itself, or the first numbered one that is not there."""
    names = (f"{wanted.name}-{number}" for number in itertools.count(2))
    candidates = itertools.chain([wanted], map(wanted.with_name, names))
    return next(path for path in candidates if not path.exists())


def save_data(
    directory: pathlib.Path, train: Arrays, test: Arrays
) -> list[str]:
    """Keeps the data beside the run, for `cbnn report`; gives their paths.

    Raises:
        ValueError: If the directory has no name, and so nothing is beside it,
            or if other data are there.
    """
    run = named(directory)
    if not run.name:
        raise ValueError(
            f"{directory} has no directory above it, where the demo's data "
            "would be kept. Choose another directory."
        )
    contents = {
        run.with_name(f"{run.name}.{name}.npz"): _compressed(*arrays)
        for name, arrays in {"train": train, "test": test}.items()
    }
    for path, content in contents.items():
        check_output(path)
        # Those of the same demo are the same, byte for byte.
        if os.path.lexists(path) and not _holds(path, content):
            raise RunError(
                f"{path} is there already, with other data, and is not "
                "replaced. Choose another directory."
            )
    for path, content in contents.items():
        with failures_explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.replace_bytes(path, content)
    return [str(path) for path in contents]


def _compressed(x: np.ndarray, y: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, x=x, y=y)
    return content.getvalue()


def _holds(path: pathlib.Path, content: bytes) -> bool:
    with files.open_regular(path) as file:
        return file.read(len(content) + 1) == content


def named(directory: pathlib.Path) -> pathlib.Path:
    """The path, or the one that `.` or `..` stands for: those have no name."""
    return (
        directory if directory.name not in ("", "..") else directory.resolve()
    )


def _next_commands(directory: pathlib.Path, data: list[str]) -> list[list[str]]:
    """What to type after a demo."""
    run = str(directory)
    # In JSON's quotes, which Python reads and a shell's own quotes go around.
    votes = (
        "from cbnn_keras import CheckpointEnsemble as E; "
        f"print(E.load({json.dumps(run)}).votes)"
    )
    return [
        ["cbnn", "inspect", run],
        ["cbnn", "report", run, "--data", *data],
        ["cbnn", "export", run],
        ["python", "-c", votes],
    ]


def load_digits(seed: int) -> tuple[Arrays, Arrays, Arrays]:
    """The 1,797 digits of scikit-learn, in three parts.

    Args:
        seed: What the split derives from.

    Returns:
        60 % for training, 20 % for validation and 20 % for the test.

    Raises:
        ImportError: If scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_digits as load
        from sklearn.model_selection import train_test_split as split
    except ImportError:
        raise ImportError(
            "cbnn demo fetches nothing from the network, but its digits come "
            "with scikit-learn, which is not installed: "
            'pip install "cbnn-keras[demo]"'
        ) from None
    x, y = load(return_X_y=True)
    x = (x / 16).reshape(-1, 8, 8, 1).astype("float32")
    x, x_test, y, y_test = split(
        x, y, test_size=0.2, stratify=y, random_state=seed
    )
    x, x_validation, y, y_validation = split(
        x, y, test_size=0.25, stratify=y, random_state=seed
    )
    return (x, y), (x_validation, y_validation), (x_test, y_test)


def small_cnn() -> keras.Model:
    """A CNN of about 7,000 parameters, compiled."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.BatchNormalization(momentum=0.9),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.2),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(3e-3),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def shift(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Moves a digit by up to one pixel."""
    padded = tf.pad(image, [[1, 1], [1, 1], [0, 0]])
    return tf.image.stateless_random_crop(padded, tf.shape(image), seed)


def test_predictions(
    ensemble: CheckpointEnsemble, validation: Arrays, x: np.ndarray
) -> dict[str, np.ndarray]:
    """What the ensemble says, and what it competes with."""
    everyone = CheckpointEnsemble(
        ensemble.run, ensemble.model, ensemble.run.members
    )
    selected = ensemble.select(validation_data=validation)
    return {
        TRAINED: ensemble.model.predict(x, verbose=0),
        "all members": everyone.predict(x),
        BOOSTED: ensemble.predict(x),
        f"{BOOSTED}, selected": selected.predict(x),
    }


def _table(said: dict[str, np.ndarray], labels: np.ndarray) -> Table:
    table = Table(title="On test images")
    table.add_column("method")
    table.add_column("error, %", justify="right")
    table.add_column("-log p(label)", justify="right")
    for name, probabilities in said.items():
        error = 100 * (1 - accuracy(probabilities, labels))
        loss = negative_log_likelihood(probabilities, labels)
        table.add_row(name, f"{error:.2f}", f"{loss:.4f}")
    return table


def difference(one: np.ndarray, other: np.ndarray, labels: np.ndarray) -> str:
    """A sentence on two errors: how far apart, and what chance would do.

    The standard error is that of images which one gets right and the other
    does not: all others say nothing about the difference.
    """
    is_right = [predicted_classes(p) == labels for p in (one, other)]
    gained = is_right[0].astype(int) - is_right[1]
    change = 100 * gained.mean()
    chance = 100 * gained.std() / len(labels) ** 0.5
    return (
        f"{BOOSTED} gets {(gained < 0).sum()} images right that the model as "
        f"trained gets wrong, and {(gained > 0).sum()} the other way round: "
        f"{change:+.2f} points of error, with a standard error of {chance:.2f}."
    )
