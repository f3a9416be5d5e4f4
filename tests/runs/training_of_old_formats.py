"""The training behind `format_1/` to `format_4/`, in any version.

    python training_of_old_formats.py DIRECTORY METHOD...

trains each method into `DIRECTORY/<method>/complete` and leaves, as
`DIRECTORY/<method>/killed`, what a kill after the second epoch would leave.
"""

import pathlib
import shutil
import sys

import keras
import numpy as np

from cbnn_keras import CBNNCallback
from cbnn_keras.baselines import SnapshotBoosting, StochasticWeightAveraging

EPOCHS = 4
METHODS = {
    "cbnn": lambda directory, **options: CBNNCallback(
        directory, num_checkpoints=3, deviation_rate=0.05, **options
    ),
    # What it leaves open is as it was in the version that began the run.
    "cbnn-trusted": lambda directory, **options: CBNNCallback(
        directory, num_checkpoints=3, members="trusted", **options
    ),
    "cbnn-defaults": lambda directory, **options: CBNNCallback(
        directory, num_checkpoints=3, **options
    ),
    "swa": lambda directory, **options: StochasticWeightAveraging(
        directory, num_checkpoints=3, first_part=0.25, **options
    ),
    "ssb-reconstruction": lambda directory, **options: SnapshotBoosting(
        directory, monitor="loss", restart_patience=1, patience=1, **options
    ),
}


def data():
    """Sixty samples of three classes that overlap."""
    generator = np.random.default_rng(7)
    y = np.arange(60) % 3
    x = generator.normal(size=(3, 4))[y] + generator.normal(size=(60, 4))
    return x.astype("float32"), y


def make_model():
    """Small, with moving statistics and a random generator of its own."""
    keras.utils.set_random_seed(11)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(6, activation="relu"),
            keras.layers.BatchNormalization(momentum=0.8),
            keras.layers.Dropout(0.2, seed=5),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        "sparse_categorical_crossentropy",
    )
    return model


def train(method, directory, others=(), **options):
    """Trains, or goes on with, a run of one of the `METHODS`."""
    x, y = data()
    callback = METHODS[method](directory, **options)
    batches = callback.weighted(
        x, y, batch_size=16, seed=3, sample_weight=1 + np.arange(60) % 2
    )
    model = make_model()
    model.fit(
        batches,
        epochs=EPOCHS,
        callbacks=[callback, *others],
        shuffle=False,
        verbose=0,
    )
    return callback


class Copy(keras.callbacks.Callback):
    """Copies a run as it is when the third epoch begins."""

    def __init__(self, source, target):
        super().__init__()
        self._source, self._target = source, target

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            shutil.copytree(self._source, self._target)


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:]:
        complete, killed = root / name / "complete", root / name / "killed"
        callback = train(name, complete, [Copy(complete, killed)])
        ensemble = callback.ensemble()
        np.savez_compressed(
            root / name / "expected.npz",
            predictions=ensemble.predict(data()[0], verbose=0),
            votes=ensemble.votes,
            sample_weights=callback.sample_weights.numpy(),
        )
