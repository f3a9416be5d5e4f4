"""Loading a run with its checks.

    python benchmarks/loading.py [--repeats 5]

Loading a run of six members of 25 million parameters, with every check of its
files, and predicting one sample with each member, against building the model
with plain Keras, `load_weights` of the same files and the same predictions.
"""

import argparse
import pathlib
import tempfile

import numpy as np
from common import alternate, ratio, versions
from saving import large_model

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.baselines import PlainCheckpoints


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(versions())
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        x = np.zeros((12, 1000), "float32")
        model = large_model()
        model.compile("sgd", "sparse_categorical_crossentropy")
        plain = PlainCheckpoints(run, num_checkpoints=6)
        train = plain.weighted(x, np.arange(12), batch_size=2)
        model.fit(train, callbacks=[plain], verbose=0, shuffle=False)

        def load() -> None:
            CheckpointEnsemble.load(run, cache_bytes=0).predict(
                x[:1], verbose=0
            )

        def load_with_keras() -> None:
            built = large_model()
            for path in sorted((run / "members").iterdir()):
                built.load_weights(path)
                built.predict(x[:1], verbose=0)

        seconds = alternate(
            {"load": load, "keras": load_with_keras}, options.repeats
        )
        print(
            f"loading {len(plain.ensemble())} members of "
            f"{model.count_params():,} parameters / plain Keras: "
            + ratio(seconds["load"], seconds["keras"])
        )
        print(f"seconds: {min(seconds['load']):.2f} at best")


if __name__ == "__main__":
    main()
