"""A training script that `test_resume.py` starts, kills and starts again.

    python killable_training.py DIRECTORY EPOCHS [FATAL_SAVE]

With FATAL_SAVE the process kills itself, really and at once, at that call of
`os.fsync` or `os.replace`: in the middle of a save. The environment variable
REPLICAS spreads the model over so many devices. SIGNALS=SIGTERM:3:2 sends the
process that signal when batch 2 of epoch 3 begins; several are separated by
commas.
"""

import contextlib
import os
import pathlib
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras import CBNNCallback


def die_at_save(number):
    num_calls = 0

    def deadly(function):
        def wrapper(*arguments):
            nonlocal num_calls
            num_calls += 1
            if num_calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)

        return wrapper

    os.fsync, os.replace = deadly(os.fsync), deadly(os.replace)


def data():
    generator = np.random.default_rng(0)
    y = np.arange(330) % 3
    x = generator.normal(size=(330, 6, 6, 1)) + y[:, None, None, None] / 2
    return x.astype("float32"), y


def jitter(image, seed):
    return image + tf.random.stateless_normal(image.shape, seed, stddev=0.1)


def model():
    layers = keras.layers
    network = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(momentum=0.9),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(3, activation="softmax"),
        ]
    )
    network.compile(
        keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy"
    )
    return network


class SendSignals(keras.callbacks.Callback):
    """Does to the process what a scheduler, or a person, would do."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        for order in filter(None, os.environ.get("SIGNALS", "").split(",")):
            name, *moment = order.split(":")
            if [str(self.epoch), str(batch)] == moment:
                os.kill(os.getpid(), getattr(signal, name))


def scope():
    num_replicas = int(os.environ.get("REPLICAS", "0"))
    if not num_replicas:
        return contextlib.nullcontext()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * num_replicas,
    )
    devices = [f"CPU:{i}" for i in range(num_replicas)]
    return tf.distribute.MirroredStrategy(devices).scope()


def main(directory, epochs, fatal_save=None):
    if fatal_save:
        die_at_save(int(fatal_save))
    keras.utils.set_random_seed(3)
    x, y = data()
    with scope():
        network = model()
        cbnn = CBNNCallback.paper(directory, num_checkpoints=7, resume=True)
        train = cbnn.weighted(x, y, batch_size=16, augment=jitter)
        tell = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: print("epoch", epoch, flush=True)
        )
        callbacks = [cbnn, tell, SendSignals()]
        network.fit(train, epochs=int(epochs), callbacks=callbacks, verbose=0)
    results = pathlib.Path(directory).with_suffix(".results.npz")
    np.savez(
        results,
        weights=cbnn.sample_weights.numpy(),
        predictions=cbnn.ensemble().predict(x),
        votes=cbnn.ensemble().votes,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
