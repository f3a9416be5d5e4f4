"""How many functions and files of the package lie on four ways through it.

    python benchmarks/ways.py

A batch's way from arrays to `fit`, a checkpoint's, that of a `predict` of a
loaded run, and an export's to ONNX. Functions are counted once, by what Python
calls; comprehensions and lambdas are not counted. With another version of the
package first on PYTHONPATH it counts that one.
"""

import os
import pathlib
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import cbnn_keras
from cbnn_keras import CBNNCallback, CheckpointEnsemble, weighted
from cbnn_keras.export import export_onnx

PACKAGE = str(pathlib.Path(cbnn_keras.__file__).parent)


class Called:
    """The functions of the package that are called within."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()

    def __enter__(self) -> "Called":
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def __str__(self) -> str:
        files = {file for file, _ in self.functions}
        return f"{len(self.functions)} functions in {len(files)} files"

    def _note(self, frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        inside = code.co_filename.startswith(PACKAGE)
        if event == "call" and inside and not code.co_name.startswith("<"):
            self.functions.add((code.co_filename, code.co_qualname))


class Counting(keras.callbacks.Callback):
    """Counts what a wrapped callback calls after the step of a checkpoint."""

    def __init__(self, callback: CBNNCallback, step: int) -> None:
        super().__init__()
        self.called = Called()
        self._wrapped = callback.on_train_batch_end
        self._step = step
        callback.on_train_batch_end = self._counted  # type: ignore

    def _counted(self, batch: int, logs: Any = None) -> None:
        self._step -= 1
        if self._step:
            self._wrapped(batch, logs)
            return
        with self.called:
            self._wrapped(batch, logs)


def main() -> None:
    keras.utils.set_random_seed(0)
    y = np.arange(120) % 3
    x = np.random.default_rng(0).normal(size=(120, 4)).astype("float32")
    x[:, 0] += 2 * y  # so that the checkpoint is a member
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy"
    )
    with tempfile.TemporaryDirectory() as folder:
        _ways(model, x, y, pathlib.Path(folder))


def _ways(
    model: keras.Model, x: np.ndarray, y: np.ndarray, folder: pathlib.Path
) -> None:
    _count("a batch", lambda: next(iter(weighted(x, y, batch_size=20))))
    cbnn = CBNNCallback.paper(folder / "run", num_checkpoints=3)
    train = cbnn.weighted(x, y, batch_size=20)
    counting = Counting(cbnn, step=8)
    model.fit(
        train,
        epochs=4,
        callbacks=[cbnn, counting],
        shuffle=False,
        verbose=0,
    )
    print(f"{'a checkpoint':14} {counting.called}")
    ensemble = CheckpointEnsemble.load(folder / "run")
    _count("a predict", lambda: ensemble.predict(x, verbose=0))
    _count(
        "an export",
        lambda: export_onnx(ensemble, folder / "run.onnx", verbose=0),
    )


def _count(name: str, act: Callable[[], Any]) -> None:
    with Called() as called:
        act()
    print(f"{name:14} {called}")


if __name__ == "__main__":
    main()
