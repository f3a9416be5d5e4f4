"""Trains in as many processes and devices as the environment says.

`python process_worker.py DIRECTORY [OPTIONS AS JSON]`. The first process leaves
DIRECTORY/result.npz beside the run in DIRECTORY/run; a process that is told to
die does so once.
"""

import json
import os
import pathlib
import signal
import sys

import keras
import numpy as np

from cbnn_keras import CBNNCallback, patterns
from cbnn_keras.baselines import SnapshotEnsemble
from cbnn_keras.launch import join
from cbnn_keras.support import files

NUMBER = int(os.environ.get("JAX_PROCESS_ID", "0"))
OPTIONS = {
    "float64": False,  # and without BatchNorm and dropout
    "joins": True,  # or a plain process
    "averages": True,
    "restarts": None,
    "augments": False,
    "resumes": False,
    "wrong_labels": None,  # the number of a process that has others
    "batch_size": 20,
    "epochs": 4,
    "sharded": None,  # each process has samples of its own
    "dies": None,  # (number of the process, step) or (number, "save")
    "signal": "SIGKILL",  # by which it does
    "phases": 1,
    "is_dataset": False,  # and not arrays
    "is_snapshot": False,  # instead of CBNN
}


def data(num=None):
    generator = np.random.default_rng(0)
    # 93 = 4 * 20 + 13: the last batch divides by neither 2 nor 3.
    x = generator.normal(size=(93, 4)).astype("float32")
    y = (x[:, 0] + x[:, 1] > 0) + (x[:, 2] > 0.5).astype(int)
    return x[:num], y[:num]


class Noting:
    """An array that is read when it is sliced, as one in a file is."""

    def __init__(self, array, read):
        self.shape = array.shape
        self.dtype = array.dtype
        self._array = array
        self._read = read  # gets the numbers of the samples

    def __getitem__(self, part):
        self._read += range(len(self._array))[part]
        return self._array[part]

    def __array__(self, *_, **__):
        return self[:]


def own_part(x, y, read):
    """A dataset of every so-many-th sample, which notes those it reads."""
    import tensorflow as tf

    def take(number):
        read.append(int(number))
        return x[number], y[number]

    def sample(number):
        found = tf.numpy_function(take, [number], [x.dtype, y.dtype])
        found[0].set_shape([4])
        found[1].set_shape([])
        return tuple(found)

    count = int(os.environ.get("JAX_NUM_PROCESSES", "1"))
    return tf.data.Dataset.range(len(y)).shard(count, NUMBER).map(sample)


def network(*, is_plain):
    keras.utils.set_random_seed(3)
    between = (
        []
        if is_plain
        else [
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
        ]
    )
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="tanh"),
            *between,
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.2, momentum=0.9),
        "sparse_categorical_crossentropy",
    )
    return model


class Die(keras.callbacks.Callback):
    """Kills a process, once, at a step or within a save."""

    def __init__(self, directory, number, when, name="SIGKILL"):
        super().__init__()
        self.signal = signal.Signals[name]
        self.mark = directory / "has_died"
        self.number = number
        self.when = when
        self.num_steps = 0
        if when == "save" and number == NUMBER:
            self._kill_in_a_save()

    def _kill_in_a_save(self):
        write, count = files.write_new, iter(range(1000))

        def dying(*args, **options):
            result = write(*args, **options)
            if next(count) == 2:
                self._die()
            return result

        files.write_new = dying

    def on_train_batch_end(self, batch, logs=None):
        self.num_steps += 1
        if self.number == NUMBER and self.when == self.num_steps:
            self._die()

    def _die(self):
        if not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), self.signal)


def shifted(x, seed):
    import tensorflow as tf

    return x + 0.1 * tf.random.stateless_normal([4], seed)


def main(directory, options):
    options = {**OPTIONS, **options}
    if options["float64"]:
        import jax

        jax.config.update("jax_enable_x64", True)
        keras.config.set_floatx("float64")
    if options["joins"]:
        join(heartbeat_seconds=10)
    x, y = data()
    read = {"x": [], "y": []}
    if options["is_dataset"]:
        patterns.LARGE = 50
    if options["float64"]:
        x = x.astype("float64")
    if options["wrong_labels"] == NUMBER:
        y = y[::-1].copy()
    own = {
        "restarts": options["restarts"],
        "average": options["averages"],
        "members": "all",
        "largest_ratio": 1.5,
        "phases": options["phases"],
    }
    make = SnapshotEnsemble if options["is_snapshot"] else CBNNCallback
    cbnn = make(
        directory / "run",
        num_checkpoints=None if options["restarts"] else 3,
        resume=options["resumes"],
        validation_data=data(30),
        **({} if options["is_snapshot"] else own),
    )
    source = (x, y)
    if options["is_dataset"] and options["sharded"]:
        source = (own_part(x, y, read["x"]),)
    elif options["is_dataset"]:
        import tensorflow as tf

        source = (tf.data.Dataset.from_tensor_slices((x, y)),)
    elif options["sharded"]:
        source = (Noting(x, read["x"]), Noting(y, read["y"]))
    train = cbnn.weighted(
        *source,
        batch_size=options["batch_size"],
        class_weight={0: 2.0, 1: 1.0} if options["sharded"] else None,
        seed=1,
        sharded=options["sharded"],
        augment=shifted if options["augments"] else None,
    )
    model = network(is_plain=options["float64"])
    others = (
        [Die(directory, *options["dies"], options["signal"])]
        if options["dies"]
        else []
    )
    for _ in range(options["phases"]):
        history = model.fit(
            train,
            epochs=options["epochs"],
            callbacks=[cbnn, *others],
            verbose=0,
        )
    if NUMBER == 0:
        np.savez(
            directory / "result.npz",
            *[
                v.addressable_data(0)
                for v in (v.value for v in model.variables)
            ],
            votes=[record["vote"] for record in cbnn.history],
            weights=cbnn.sample_weights.numpy(),
            accuracy=history.history.get("val_ensemble_accuracy", []),
            all_steps=[record["step"] for record in cbnn.history],
        )
    if options["sharded"]:
        np.savez(
            directory / f"process_{NUMBER}.npz",
            weights=cbnn.sample_weights.numpy(),
            votes=[record["vote"] for record in cbnn.history],
            **read,
        )
    print(NUMBER, [record["error"] for record in cbnn.history])


if __name__ == "__main__":
    main(
        pathlib.Path(sys.argv[1]),
        json.loads(sys.argv[2]) if len(sys.argv) > 2 else {},
    )
