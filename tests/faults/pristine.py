"""The two small runs that all attacks start from, and their predictions."""

import pathlib

import keras
import numpy as np

from cbnn_keras import CBNNCallback

NUM_SAMPLES, NUM_CLASSES, NUM_FEATURES = 60, 3, 4
EPOCHS, BATCH_SIZE = 4, 15


class Interrupted(Exception):
    """What ends the run that stays unfinished."""


class _Interruption(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == EPOCHS - 1:
            raise Interrupted


def data():
    """Inputs and labels, the same in every process."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(NUM_CLASSES, NUM_FEATURES))
    y = np.arange(NUM_SAMPLES) % NUM_CLASSES
    x = centres[y] + generator.normal(scale=0.6, size=(NUM_SAMPLES, 4))
    return x.astype("float32"), y


def train(directory: pathlib.Path, *more, **options) -> None:
    """Trains in a directory, always in the same way."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((NUM_FEATURES,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(NUM_CLASSES, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy"
    )
    x, y = data()
    callback = CBNNCallback.paper(directory, num_checkpoints=3, **options)
    weights = np.where(np.arange(len(y)) % 2, 1.5, 0.5)  # so that `base.npy` is
    train = callback.weighted(
        x, y, sample_weight=weights, batch_size=BATCH_SIZE, seed=1
    )
    model.fit(train, epochs=EPOCHS, callbacks=[callback, *more], verbose=0)


def make(directory: pathlib.Path) -> None:
    """Makes the runs `finished` and `unfinished`."""
    train(directory / "finished")
    try:
        train(directory / "unfinished", _Interruption())
    except Interrupted:
        pass
    keras.Sequential(
        [keras.Input((NUM_FEATURES,)), keras.layers.Rescaling(0.5)]
    ).save(directory / "preprocess.keras")
    x, y = data()
    np.savez(directory / "data.npz", x=x, y=y)
