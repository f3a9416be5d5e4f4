"""From a run to one SavedModel and one ONNX file, and requests to it.

Reproduces no table: the paper (Wang et al., "Boost Neural Networks by
Checkpoints", NeurIPS 2021) stops at the ensemble. This is what comes after it.

    python examples/export_and_serve.py                 # digits, trained here
    python examples/export_and_serve.py RUN --data test.npz   # x and y

Data:     scikit-learn's 1,797 digits, or arrays `x` and `y` that the model of
          the run was not trained on
Model:    that of the run; here, two dense layers, six checkpoints
Cost:     the first command took 22 seconds of CPU time
Expected: the first command printed 92.60 % accuracy of all 797 images and
          95.82 % of the 717 that are left without the most disputed tenth; a
          request of one image took 0.029 ms with six members and 0.015 ms with
          one, 1.89 times as long, on one CPU thread. The ratio for so small a
          model says little about that for a large one: measure yours.

Needs `pip install "cbnn-keras[onnx]"`. Each artefact is opened in its own
runtime and compared with Keras before it is put in place.
"""

import argparse
import pathlib
import time

import keras
import numpy as np
import onnxruntime
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.export import export_onnx, export_saved_model, export_triton

OUTPUTS = ["probabilities", "class", "top_k", "disagreement"]
NUM_REQUESTS = 500
REJECTED = 0.1  # share of the samples


def train_digits(
    directory: pathlib.Path, epochs: int
) -> tuple[CheckpointEnsemble, np.ndarray, np.ndarray]:
    """An ensemble, and 797 images that it has not seen."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((64,), name="pixels"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    # All of them, to have something to disagree: a short run trusts few.
    cbnn = CBNNCallback(directory, members="all", resume=True)
    train = cbnn.weighted(x[:1000], y[:1000], batch_size=32, seed=0)
    model.fit(train, epochs=epochs, callbacks=[cbnn], shuffle=False, verbose=0)
    return cbnn.ensemble(), x[1000:], y[1000:]


def latencies(paths: list[pathlib.Path], requests: np.ndarray) -> list[float]:
    """Median milliseconds of a request of one sample, taken in turns."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    sessions = [onnxruntime.InferenceSession(p, settings) for p in paths]
    seconds = np.zeros((NUM_REQUESTS, len(sessions)))
    for number in range(NUM_REQUESTS):
        position = number % len(requests)
        request = requests[position : position + 1]
        for column, session in enumerate(sessions):
            name = session.get_inputs()[0].name
            start = time.perf_counter()
            session.run(None, {name: request})
            seconds[number, column] = time.perf_counter() - start
    return [1000 * float(t) for t in np.median(seconds, axis=0)]


def query(path: pathlib.Path, x: np.ndarray, y: np.ndarray) -> None:
    """Asks for classes, and leaves the doubtful ones to somebody else."""
    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    name = session.get_inputs()[0].name
    batches = [
        session.run(names, {name: x[start : start + 100]})
        for start in range(0, len(x), 100)
    ]
    columns = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
    found = dict(zip(names, columns, strict=True))
    doubtful = np.argmax(found["disagreement"])
    guesses = ", ".join(
        f"{label} ({share:.2f})"
        for label, share in zip(
            found["top_k_classes"][doubtful],
            found["top_k_probabilities"][doubtful],
            strict=True,
        )
    )
    print(f"most doubtful: sample {doubtful}, {guesses}; is {y[doubtful]}")
    is_right = found["class"] == y.ravel()
    # Among those that are equally disputed, the less probable are rejected.
    confidence = found["probabilities"].max(axis=1)
    order = np.lexsort((-confidence, found["disagreement"]))
    accepted = order[: round(len(y) * (1 - REJECTED))]
    print(f"accuracy of all      {100 * is_right.mean():.2f} %")
    print(
        f"accuracy of accepted {100 * is_right[accepted].mean():.2f} % "
        f"({len(y) - len(accepted)} of {len(y)} rejected)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", nargs="?", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, help="a .npz with x and y")
    parser.add_argument("--epochs", type=int, default=40, help="of the digits")
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("runs/exports")
    )
    options = parser.parse_args()
    if (options.run is None) != (options.data is None):
        parser.error("give both a run and --data, or neither")
    if options.run is None:
        ensemble, x, y = train_digits(
            options.output / f"digits-{options.epochs}-epochs", options.epochs
        )
    else:
        ensemble = CheckpointEnsemble.load(options.run)
        with np.load(options.data) as arrays:
            x, y = arrays["x"], arrays["y"]
    places = [options.output / kind for kind in ("serving", "models")]
    served = {"outputs": OUTPUTS, "top_k": 2, "sample_data": x[:200]}
    export_saved_model(ensemble, places[0] / "ensemble", **served)
    export_triton(ensemble, places[1] / "ensemble", **served)
    merged = export_onnx(ensemble, options.output / "ensemble.onnx", **served)
    member = export_onnx(
        ensemble.select(num=1), options.output / "member.onnx", **served
    )
    query(merged.path, x, y)
    one, all_members = latencies([member.path, merged.path], x)
    print(
        f"one request: {all_members:.3f} ms for {len(ensemble)} members, "
        f"{one:.3f} ms for one: {all_members / one:.2f} times"
    )
    serving, models = (place.absolute() for place in places)
    print(
        "TensorFlow Serving:\n"
        f"  docker run --rm -p 8501:8501 -v {serving}/ensemble:/models/ensemble"
        " -e MODEL_NAME=ensemble tensorflow/serving\n"
        "Triton:\n"
        f"  tritonserver --model-repository {models}"
    )


if __name__ == "__main__":
    main()
