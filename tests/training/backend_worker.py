"""Trains on the backend that KERAS_BACKEND says, and tells what it saw.

`python backend_worker.py DIRECTORY`; results are in DIRECTORY/seen.json.
"""

import hashlib
import json
import math
import pathlib
import sys

import keras
import numpy as np

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.analysis.loss_plane import loss_plane
from cbnn_keras.baselines import SnapshotEnsemble
from cbnn_keras.commands.report import report_files
from cbnn_keras.export import export_onnx
from cbnn_keras.models import engine
from cbnn_keras.support.processes import Alone

generator = np.random.default_rng(0)
X = generator.normal(size=(90, 4)).astype("float32")
Y = (X[:, 0] + X[:, 1] > 0) + (X[:, 2] > 0.5).astype(int)
TEST = generator.normal(size=(40, 4)).astype("float32")
HELD_OUT = (X[:20], Y[:20])


def network(*, dropout=0.2, optimizer=None, has_norm=True):
    keras.backend.clear_session()  # layers get the same names again
    keras.utils.set_random_seed(3)
    norm = [keras.layers.BatchNormalization()] if has_norm else []
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="relu"),
            *norm,
            keras.layers.Dropout(dropout),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        optimizer or keras.optimizers.Adam(0.05),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer_steps == 0:
            raise KeyboardInterrupt
        self.model.optimizer_steps -= 1


def train(model, callback, *others, epochs=4, **options):
    pipeline = callback.weighted(X, Y, batch_size=20, seed=1, **options)
    return model.fit(
        pipeline,
        epochs=epochs,
        callbacks=[callback, *others],
        validation_data=HELD_OUT,
        verbose=0,
    )


def message(call):
    try:
        call()
    except Exception as error:  # whatever it is, it is looked at
        return str(error)
    return None


def plain_fit(seen):
    """At eta = 0, with averages and validation: bit for bit plain `fit`."""
    plain = network()
    history = plain.fit(
        X,
        Y,
        batch_size=20,
        shuffle=False,
        epochs=4,
        validation_data=HELD_OUT,
        verbose=0,
    )
    model = network()
    cbnn = CBNNCallback(
        num_checkpoints=3, deviation_rate=0.0, validation_data=HELD_OUT
    )
    found = train(model, cbnn, shuffle=False)
    seen["same_as_fit"] = {
        "weights": all(
            np.array_equal(a, b)
            for a, b in zip(
                plain.get_weights(), model.get_weights(), strict=True
            )
        ),
        "logs": all(
            found.history[name] == values
            for name, values in history.history.items()
        ),
    }


def averages_are_lent(seen):
    """Keras gives away what is in the model when it predicts."""
    cbnn = CBNNCallback(num_checkpoints=3, validation_data=HELD_OUT)
    call = message(lambda: train(network(has_norm=False), cbnn))
    seen["without_norm"] = call or [r["step"] for r in cbnn.history]


def resumed(directory, seen):
    """Killed within an epoch and started again: the same bytes."""
    options = {"num_checkpoints": 3, "members": "all"}
    whole = CBNNCallback(directory / "whole", **options)
    train(network(), whole)
    killed = network()
    killed.optimizer_steps = 12
    try:
        first = CBNNCallback(directory / "killed", **options)
        train(killed, first, Kill())
    except KeyboardInterrupt:
        pass
    seen["was_killed"] = not first.run.is_finished
    again = CBNNCallback(directory / "killed", resume=True, **options)
    train(network(), again)
    seen["same_bytes"] = digest(directory / "whole") == digest(
        directory / "killed"
    )
    left = network()
    left.optimizer_steps = 12
    try:
        train(left, CBNNCallback(directory / "left", **options), Kill())
    except KeyboardInterrupt:
        pass


def digest(directory):
    return {
        str(path.relative_to(directory)): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def predicted(directory, seen):
    ensemble = CheckpointEnsemble.load(directory / "whole")
    found = ensemble.predict(TEST, verbose=0)
    np.save(directory / "probabilities.npy", found)
    merged = ensemble.as_model().predict(TEST, verbose=0)
    seen["as_model"] = float(np.abs(merged - found).max())
    seen["evaluated"] = ensemble.evaluate(X, Y, verbose=0)
    seen["export"] = message(
        lambda: export_onnx(ensemble, directory / "not.onnx")
    )
    plane = loss_plane(ensemble, X, Y, resolution=3, max_samples=60, verbose=0)
    seen["plane"] = [float(value) for value in np.ravel(plane.losses)]
    np.savez(directory / "data.npz", x=X, y=Y)
    report_files(
        [directory / "whole"],
        directory / "report.html",
        data=[directory / "data.npz"],
    )
    seen["report"] = (directory / "report.html").stat().st_size


def foreign_run(directory, seen):
    """A run of the TensorFlow backend, if the test has put one there."""
    run = directory / "tensorflow"
    if not run.exists():
        return
    found = CheckpointEnsemble.load(run).predict(TEST, verbose=0)
    np.save(directory / "of_tensorflow.npy", found)


def snapshots(directory):
    """With a rate of its own for each step: no dropout, so as elsewhere."""
    model = network(dropout=0.0, optimizer=keras.optimizers.SGD(0.1))
    values = np.random.default_rng(1)
    model.set_weights(
        [
            values.uniform(0.1, 0.5, size=weight.shape)
            for weight in model.get_weights()
        ]
    )
    callback = SnapshotEnsemble(num_checkpoints=2)
    train(model, callback, shuffle=False)
    np.savez(directory / "snapshots.npz", *model.get_weights())


def restarted(seen):
    cbnn = CBNNCallback(restarts=2, learning_rate="cosine")
    train(network(), cbnn)
    seen["restarts"] = [record["error"] for record in cbnn.history]


def refusals(seen):
    def mean_loss(y, outputs):
        return keras.ops.mean(
            keras.losses.sparse_categorical_crossentropy(y, outputs)
        )

    model = network()
    model.compile("adam", mean_loss)
    seen["ignored"] = message(
        lambda: train(model, CBNNCallback(largest_ratio=1.1))
    )
    texts = np.array(["a", "b"] * 45, object)
    cbnn = CBNNCallback()
    pipeline = cbnn.weighted(texts, Y)
    seen["texts"] = message(
        lambda: (
            (cbnn.set_model(network()), cbnn.set_params({"epochs": 1}))
            and cbnn.on_train_begin()
        )
    )
    del pipeline


class TwoProcesses(Alone):
    count = 2


def refusals_of_jax(seen):
    """What would have old sample weights, and where to go instead."""
    from unittest import mock

    import jax

    model, used = network(), engine.in_use()
    used.check(model)
    with mock.patch.object(jax, "default_backend", lambda: "gpu"):
        seen["look_ahead"] = message(lambda: used.check(model))
    pipeline = CBNNCallback().weighted(X, Y)
    both = mock.patch.object(used, "processes", TwoProcesses)
    with both:
        seen["no_distribution"] = message(lambda: used.check(model))
    mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "model"])
    layouts = keras.distribution.LayoutMap(mesh)
    with keras.distribution.ModelParallel(layout_map=layouts).scope():
        seen["divided"] = message(lambda: used.check(model))
    distribution = keras.distribution.DataParallel()
    with distribution.scope():
        used.check(model)  # of one process
        with both:
            seen["auto_shard"] = message(lambda: used.check(model))
        cbnn = CBNNCallback()
        cbnn.set_model(model)  # a new one would clear the session
        cbnn.set_params({"epochs": 1, "steps": 3})
        seen["too_late"] = message(cbnn.on_train_begin)
    del pipeline


def variables(seen):
    """What is known of variables before they take memory."""

    def build():
        keras.Sequential(
            [
                keras.Input(batch_shape=(20, 3, 2)),
                # Its state is an array before it is a variable.
                keras.layers.LSTM(10, stateful=True),
                keras.layers.Dense(3),
            ]
        )

    found = []
    used = engine.in_use()
    with used.watched_variables(lambda *kind: found.append(kind)):
        build()
    seen["variables"] = sorted({tuple(shape) for shape, _ in found})
    again = []
    with used.watched_variables(lambda *kind: again.append(kind)):
        used.without_memory(build)
    seen["without_memory"] = found == again

    def refuse(shape, dtype):
        raise ValueError(f"{math.prod(shape)} of {dtype}")

    def refused():
        with used.watched_variables(refuse):
            build()

    seen["refused"] = message(refused)
    build()  # nobody watches any more


def averages(seen):
    """How far averages, and those of them, are behind weights that grow."""
    model = network()
    weights = model.trainable_variables
    means = engine.in_use().averages(model, weights, of_averages=True)
    for share in (1.0, 0.5, 0.25):
        for weight in weights:
            weight.assign(weight + 1)
        means.blend(share)
    values = [keras.ops.convert_to_numpy(mean) for mean in means.values()]
    behind = [
        value - keras.ops.convert_to_numpy(weight)
        for value, weight in zip(values, [*weights, *weights], strict=True)
    ]
    num = len(weights)
    seen["behind"] = [
        [float(part.mean()) for part in parts]
        for parts in (behind[:num], behind[num:])
    ]


def main(directory):
    seen = {"backend": keras.backend.backend()}
    plain_fit(seen)
    averages_are_lent(seen)
    resumed(directory, seen)
    foreign_run(directory, seen)
    snapshots(directory)
    restarted(seen)
    refusals(seen)
    if seen["backend"] == "jax":
        refusals_of_jax(seen)
    variables(seen)
    averages(seen)
    predicted(directory, seen)
    (directory / "seen.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
