"""What `models/engine` costs on TensorFlow: training before it and now.

    git worktree add ../before 143d91d
    python benchmarks/seam.py ../before [--turns 7]

Two measurements, each in a process of its own, in turns, that imports the
package from the other directory or from this one; seconds of the processor,
TensorFlow on one thread:

- steps: one `fit` with the callback in a directory, 10,000 x 20 numbers,
  batches of 32, six checkpoints, after another one has warmed up;
- starts: six small ones, each with a model of its own, as tests have them.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent.parent
SUBJECTS = ("steps", "starts")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", type=pathlib.Path, nargs="?")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--measure", choices=SUBJECTS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.measure)))
        return
    if options.before is None:
        parser.error("give the directory of an earlier version")
    places = {"before": options.before.resolve(), "now": HERE}
    found = {(s, p): [] for s in SUBJECTS for p in places}
    for turn in range(options.turns):
        for subject in SUBJECTS:
            for name in sorted(places, reverse=bool(turn % 2)):
                seconds = in_own_process(subject, places[name])
                found[subject, name].append(seconds)
                print(f"{subject}, {name}: {seconds:.2f} s", flush=True)
    # Not on top: the processes that measure must not import it from here.
    from common import ratio, versions

    print(versions())
    for subject in SUBJECTS:
        now, before = found[subject, "now"], found[subject, "before"]
        print(f"{subject}: now / before {ratio(now, before)}")
        print(f"  at best {min(now):.2f} s and {min(before):.2f} s")


def in_own_process(subject: str, place: pathlib.Path) -> float:
    result = subprocess.run(
        [sys.executable, __file__, "--measure", subject],
        env={**os.environ, "PYTHONPATH": str(place)},
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, origin = json.loads(result.stdout.splitlines()[-1])
    if not pathlib.Path(origin).is_relative_to(place):
        raise SystemExit(f"{origin} was measured, and not {place}")
    return float(seconds)


def measured(subject: str) -> tuple[float, str]:
    """Seconds of the processor, and the file that was imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    import cbnn_keras

    is_long = subject == "steps"
    train(num_samples=320, epochs=6)
    start = time.process_time()
    if is_long:
        train(num_samples=10_000, epochs=6)
    else:
        for _ in range(6):
            train(num_samples=320, epochs=6)
    return time.process_time() - start, str(cbnn_keras.__file__)


def train(num_samples: int, epochs: int) -> None:
    import keras
    import numpy as np

    from cbnn_keras import CBNNCallback

    generator = np.random.default_rng(0)
    x = generator.normal(size=(num_samples, 20)).astype("float32")
    y = (x[:, 0] > 0) + (x[:, 1] > 0).astype(int)
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((20,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    with tempfile.TemporaryDirectory() as directory:
        # The same for both: the default is another now.
        cbnn = CBNNCallback(f"{directory}/run", largest_ratio=1.1)
        data = cbnn.weighted(x, y, batch_size=32, seed=0)
        model.fit(data, epochs=epochs, verbose=0, callbacks=[cbnn])


if __name__ == "__main__":
    main()
