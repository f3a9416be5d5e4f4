"""LiteRT against ONNX Runtime, six members in one file, one thread.

    python benchmarks/small_machines.py [--repeats 9] [--cpu-time]

Bytes of the files, and the time of a request for batches of 1 and 32, in turns,
each as a ratio to ONNX in float32: LiteRT in float32, float16 and int8, and
ONNX in int8. With `--cpu-time` seconds are those of the processor, which other
programs on the machine disturb less.
"""

import argparse
import pathlib
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from common import alternate, random_images, ratio, small_resnet, versions

import onnxruntime  # isort: skip
from ai_edge_litert.interpreter import Interpreter  # isort: skip
from serving import SIZE, session, trained  # isort: skip

from cbnn_keras.export import export_litert, export_onnx

FILES = {
    "ONNX": (export_onnx, "float32"),
    "ONNX, int8": (export_onnx, "int8"),
    "LiteRT": (export_litert, "float32"),
    "LiteRT, float16": (export_litert, "float16"),
    "LiteRT, int8": (export_litert, "int8"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    print(
        f"{versions()}, ONNX Runtime {onnxruntime.__version__}, LiteRT "
        f"{version('ai-edge-litert')}",
        flush=True,
    )
    x, _ = random_images(256, size=SIZE)
    ensemble = trained(small_resnet(size=SIZE), SIZE)
    runs: dict[str, Callable[..., Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        for label, (export, precision) in FILES.items():
            artefact = export(
                ensemble,
                pathlib.Path(name) / label,
                precision=precision,
                calibration_data=x if precision == "int8" else None,
                sample_data=x,
                verbose=0,
            )
            runs[label] = opened(artefact.path)
            print(
                f"  {label:16} {artefact.num_bytes:8} bytes, {artefact.parity}"
            )
    for size in (1, 32):
        batch, times = x[:size], 40 if size == 1 else 4
        seconds = alternate(
            {
                label: lambda run=run, batch=batch, times=times: [
                    run(batch) for _ in range(times)
                ]
                for label, run in runs.items()
            },
            options.repeats,
            clock,
        )
        print(f"\nOne thread, batch {size}, against ONNX in float32:")
        for label in runs:
            print(f"  {label:16} {ratio(seconds[label], seconds['ONNX'])}")


def opened(path: pathlib.Path) -> Callable[..., Any]:
    """A function from a batch to the outputs."""
    if path.read_bytes()[4:8] == b"TFL3":
        interpreter = Interpreter(
            model_content=path.read_bytes(), num_threads=1
        )
        runner = interpreter.get_signature_runner()
        return lambda batch: runner(input=batch)
    run = session(path, 1).run
    return lambda batch: run(None, {"input": batch})


if __name__ == "__main__":
    main()
