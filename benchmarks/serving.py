"""Serving a merged ensemble.

    python benchmarks/serving.py [--repeats 9]

1. Time of a request, with one and with two threads and for batches of 1 and 32,
   as a ratio to one member in ONNX Runtime: six members merged, six sessions
   (one after another, and all at once as a server would run them), SavedModel,
   Keras' `predict`, int8. Merged against six sessions: at most 1.05 on one
   thread and 0.6 on two. Six at once take more than one thread.
2. Six members with a frozen backbone in common, against the backbone and six
   heads, in bytes and in arithmetic: at most 1.05, SavedModel and ONNX.
"""

import argparse
import concurrent.futures
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from common import alternate, random_images, ratio, small_resnet, versions

import keras  # isort: skip
import numpy as np  # isort: skip
import onnx  # isort: skip
import onnxruntime  # isort: skip
import tensorflow as tf  # isort: skip

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.export import export_onnx, export_saved_model

SIZE = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, help="only time, with so many")
    options = parser.parse_args()
    if options.threads:
        return measure_time(options.threads, options.repeats)
    print(f"{versions()}, ONNX Runtime {onnxruntime.__version__}", flush=True)
    for threads in (1, 2):
        # Of its own: TensorFlow's threads cannot be changed once it runs.
        command = [sys.executable, __file__, "--threads", str(threads)]
        command += ["--repeats", str(options.repeats)]
        subprocess.run(command, check=True)
    measure_sharing()


def measure_time(threads: int, repeats: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    x, _ = random_images(256, size=SIZE)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        ensemble = trained(small_resnet(size=SIZE), SIZE)
        merged = folder / "merged.onnx"
        export_onnx(ensemble, merged, verbose=0)
        export_onnx(
            ensemble,
            folder / "int8.onnx",
            precision="int8",
            calibration_data=x,
            verbose=0,
        )
        for member in ensemble.members:
            export_onnx(
                ensemble.take([member["step"]]),
                folder / f"{member['step']}.onnx",
                verbose=0,
            )
        paths = [folder / f"{m['step']}.onnx" for m in ensemble.members]
        saved = export_saved_model(ensemble, folder / "saved", verbose=0).path
        loaded = tf.saved_model.load(str(saved))  # owner of the variables
        serve = loaded.signatures["serving_default"]
        keras_model = ensemble.as_model()
        sessions = [session(path, threads) for path in paths]
        pool = concurrent.futures.ThreadPoolExecutor(len(sessions))

        def requests(batch: np.ndarray) -> dict[str, Callable[[], Any]]:
            feed, tensor = {"input": batch}, tf.constant(batch)
            one = sessions[-1]
            calls = {
                "one member": lambda: one.run(None, feed),
                "six sessions, one after another": lambda: [
                    s.run(None, feed) for s in sessions
                ],
                "six sessions at once": lambda: list(
                    pool.map(lambda s: s.run(None, feed), sessions)
                ),
                "SavedModel": lambda: serve(input=tensor),
                "Keras predict": lambda: keras_model.predict(batch, verbose=0),
            }
            for label, path, in_parallel in (
                ("merged", merged, False),
                ("merged, members in parallel", merged, True),
                ("merged, int8", folder / "int8.onnx", False),
            ):
                if in_parallel and threads == 1:
                    continue
                run = session(path, threads, in_parallel=in_parallel).run
                calls[label] = lambda run=run: run(None, feed)
            return calls

        for size in (1, 32):
            calls = requests(x[:size])
            times = 40 if size == 1 else 4
            seconds = alternate(
                {
                    name: lambda call=call, times=times: [
                        call() for _ in range(times)
                    ]
                    for name, call in calls.items()
                },
                repeats,
            )
            print(f"\n{threads} thread(s), batch {size}, against one member:")
            for label in calls:
                found = ratio(seconds[label], seconds["one member"])
                print(f"  {label:32} {found}")
            limit = 1.05 if threads == 1 else 0.6
            for label in calls:
                if label.startswith("six sessions"):
                    best = min(
                        (name for name in calls if name.startswith("merged")),
                        key=lambda name: (
                            name == "merged, int8",
                            float(np.median(seconds[name])),
                        ),
                    )
                    found = ratio(seconds[best], seconds[label])
                    print(f"  {best} / {label} (<= {limit}): {found}")
            sys.stdout.flush()


def session(
    path: pathlib.Path, threads: int, *, in_parallel: bool = False
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1 if in_parallel else threads
    options.inter_op_num_threads = threads if in_parallel else 1
    if in_parallel:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    return onnxruntime.InferenceSession(path, options)


def trained(model: keras.Model, size: int) -> CheckpointEnsemble:
    """Six members, after little training: speed is what matters here."""
    x, y = random_images(256, size=size)
    model.compile("adam", "sparse_categorical_crossentropy")
    cbnn = CBNNCallback.paper(num_checkpoints=6, expected_error=0.5)
    train = cbnn.weighted(x, y)
    model.fit(train, epochs=6, callbacks=[cbnn], verbose=0, shuffle=False)
    ensemble = cbnn.ensemble()
    if len(ensemble) != 6:
        raise RuntimeError(f"{len(ensemble)} members instead of six")
    return ensemble


def measure_sharing() -> None:
    backbone = keras.applications.MobileNetV3Small(
        input_shape=(96, 96, 3), include_top=False, weights=None, pooling="avg"
    )
    backbone.trainable = False
    inputs = keras.Input((96, 96, 3), name="image")
    head = keras.Sequential(
        [
            keras.layers.Dropout(0.2),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model = keras.Model(inputs, head(backbone(inputs, training=False)))
    ensemble = trained(model, 96)
    head_flops = 2 * sum(
        int(np.prod(w.shape)) for w in head.weights if len(w.shape) == 2
    )
    head_bytes = 4 * head.count_params()
    print("\nSix members with a frozen backbone / (backbone + six heads):")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for label, export, flops in (
            ("ONNX", export_onnx, onnx_flops),
            ("SavedModel", export_saved_model, saved_model_flops),
        ):
            one, six = (
                export(some, folder / f"{label}-{len(some)}", verbose=0)
                for some in (ensemble.select(num=1), ensemble)
            )
            size = six.num_bytes / (one.num_bytes + 5 * head_bytes)
            work = flops(six.path) / (flops(one.path) + 5 * head_flops)
            print(f"  {label}: bytes (<= 1.05) {size:.4f}")
            print(f"  {label}: arithmetic (<= 1.05) {work:.4f}", flush=True)


def onnx_flops(path: pathlib.Path) -> int:
    """Twice the multiplications of one sample, from the shapes of the graph."""
    model = onnx.load(path)
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*graph.value_info, *graph.output, *graph.input)
    }
    shapes |= {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    total = 0
    for node in graph.node:
        if node.op_type == "Conv":
            weights, outputs = shapes[node.input[1]], shapes[node.output[0]]
            total += int(np.prod(weights[1:]) * np.prod(outputs))
        elif node.op_type in ("MatMul", "Gemm"):
            inner = shapes[node.input[0]][-1]
            total += int(inner * np.prod(shapes[node.output[0]]))
    return 2 * total


def saved_model_flops(path: pathlib.Path) -> int:
    """TensorFlow's own count, for one sample."""
    from tensorflow.python.framework import convert_to_constants

    loaded = tf.saved_model.load(str(path))  # owner of the variables
    serve = loaded.signatures["serving_default"]
    one = tf.function(lambda image: serve(image=image)).get_concrete_function(
        tf.TensorSpec((1, 96, 96, 3))
    )
    frozen = convert_to_constants.convert_variables_to_constants_v2(one)
    profiler = tf.compat.v1.profiler
    options = profiler.ProfileOptionBuilder.float_operation()
    options["output"] = "none"
    profile = profiler.profile(frozen.graph, options=options)
    return int(profile.total_float_ops)


if __name__ == "__main__":
    main()
