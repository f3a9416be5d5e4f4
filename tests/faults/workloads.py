"""What is interrupted: small pieces of work on real directories.

Each is a function of paths; `server.py` runs them in processes of their own.
They are the same in every process: what they leave can be compared byte for
byte.
"""

import pathlib

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.export import export_onnx, export_saved_model
from cbnn_keras.runs.directory import holds_run

EPOCHS = 3  # of three steps, with a checkpoint after every second one


def data():
    generator = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = generator.normal(size=(60, 4)) + y[:, None]
    return x.astype("float32"), y


def model():
    network = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    network.compile(
        keras.optimizers.Adam(0.05),
        "sparse_categorical_crossentropy",
        run_eagerly=True,  # faster than to trace these few steps
    )
    return network


class Damaged(Exception):
    """What is there does not load."""


class Say(keras.callbacks.Callback):
    """Says where training is."""

    def on_epoch_begin(self, epoch, logs=None):
        print("epoch", epoch, flush=True)


def train(directory, resume=True):
    """One start of a training script, the first or a later one."""
    check(directory)
    keras.utils.set_random_seed(3)
    x, y = data()
    cbnn = CBNNCallback.paper(directory, interval=2, resume=resume)
    batches = cbnn.weighted(x, y, batch_size=20, seed=1)
    callbacks = [cbnn, Say()]
    model().fit(batches, epochs=EPOCHS, callbacks=callbacks, verbose=0)


def check(directory):
    """Raises `Damaged` unless there is no run, or one that loads."""
    if not holds_run(pathlib.Path(directory)):
        return
    try:
        found = CheckpointEnsemble.load(directory).predict(data()[0], verbose=0)
    except Exception as error:
        if "has no members yet" not in str(error):
            raise Damaged(str(error)) from error
    else:
        if not np.isfinite(found).all():
            raise Damaged(f"{directory} predicts what is no number.")


def save(source, target):
    """`ensemble.save` of a run."""
    CheckpointEnsemble.load(source).save(target)


def saved_model(source, target):
    """The next version of a SavedModel in a directory."""
    export_saved_model(CheckpointEnsemble.load(source), target, verbose=0)


def onnx(source, target):
    """An ONNX file."""
    export_onnx(CheckpointEnsemble.load(source), target, verbose=0)


def check_saved_model(source, path):
    """Raises `Damaged` unless a SavedModel is that of a run."""
    x = data()[0]
    try:
        served = tf.saved_model.load(path).signatures["serving_default"]
        [name] = served.structured_input_signature[1]
        found = served(**{name: tf.constant(x)})["probabilities"].numpy()
    except Exception as error:
        raise Damaged(str(error)) from error
    expected = CheckpointEnsemble.load(source).predict(x, verbose=0)
    if np.abs(found - expected).max() > 1e-5:
        raise Damaged(f"{path} predicts something else.")
