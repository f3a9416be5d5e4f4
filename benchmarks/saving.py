"""Saving and loading members.

    python benchmarks/saving.py [--repeats 9]

Saving a member against Keras' `save_weights` of the same model uncompiled, both
until the file is on the disk and its hash is known (target: at most 1.1 of the
time), its size against that file, and loading a
run of six members, ready to predict, against building the model six times
(target: at most 1.2).
"""

import argparse
import pathlib
import tempfile

import keras
import numpy as np
from common import alternate, random_images, ratio, small_resnet, versions

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.models.copying import save_weights
from cbnn_keras.support import files


def large_model() -> keras.Model:
    """About 25 million parameters, the size of a ResNet-50."""
    return keras.Sequential(
        [keras.Input((1000,))]
        + [keras.layers.Dense(2000, activation="relu") for _ in range(6)]
        + [keras.layers.Dense(1000, activation="softmax")]
    )


def save_plainly(model: keras.Model, path: pathlib.Path) -> None:
    path.unlink(missing_ok=True)
    model.save_weights(path)
    files.fsync(path)
    files.fingerprint(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    plain, trained = large_model(), large_model()
    trained.compile("adam", "sparse_categorical_crossentropy")
    trained.fit(np.zeros((8, 1000)), np.zeros(8), verbose=0)
    print(versions())
    with tempfile.TemporaryDirectory() as folder:
        uncompiled = pathlib.Path(folder) / "plain.weights.h5"
        member = pathlib.Path(folder) / "member.weights.h5"
        seconds = alternate(
            {
                "plain": lambda: save_plainly(plain, uncompiled),
                "member": lambda: save_weights(trained, member),
            },
            options.repeats,
        )
        print(
            "saving a member / save_weights (<= 1.1): "
            + ratio(seconds["member"], seconds["plain"])
        )
        sizes = member.stat().st_size / uncompiled.stat().st_size
        print(f"size of a member / save_weights (<= 1):   {sizes:.6f}")

        run = pathlib.Path(folder) / "run"
        x, y = random_images(500)
        model = small_resnet()
        model.compile("adam", "sparse_categorical_crossentropy")
        cbnn = CBNNCallback.paper(run, num_checkpoints=6, expected_error=0.5)
        train = cbnn.weighted(x, y)
        model.fit(train, epochs=6, callbacks=[cbnn], verbose=0, shuffle=False)
        seconds = alternate(
            {
                "build": lambda: [small_resnet() for _ in range(6)],
                "load": lambda: CheckpointEnsemble.load(run),
            },
            options.repeats,
        )
        print(
            f"loading {len(cbnn.ensemble())} members / building the model six "
            f"times (<= 1.2): {ratio(seconds['load'], seconds['build'])}"
        )


if __name__ == "__main__":
    main()
