"""An ensemble -> one ONNX file."""

import dataclasses
import os
import pathlib
from typing import Any

from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.export import (
    onnx_conversion,
    onnx_files,
    onnx_precisions,
    placing,
)
from cbnn_keras.export.graph import ServingGraph
from cbnn_keras.export.options import ServingOptions
from cbnn_keras.export.placing import Artefact
from cbnn_keras.export.runtimes import OnnxRuntime
from cbnn_keras.export.verify import TOLERANCES, Parity, compare
from cbnn_keras.support import extras
from cbnn_keras.support.console import Reporter
from cbnn_keras.support.faults import RunError


def export_onnx(
    ensemble: CheckpointEnsemble,
    path: str | os.PathLike[str],
    *,
    precision: str = "float32",
    calibration_data: Any = None,
    verbose: int = 1,
    **options: Any,
) -> Artefact:
    """Writes the ensemble as one ONNX file (opset 17).

    Inputs have the model's names, outputs those that were chosen, and the first
    dimension of all is called `batch`. The metadata tell members, votes,
    labels and the version of this package. Above 2 GB, the limit of the format,
    weights are in a second file beside the first.

    Nothing is changed at `path` unless the file, opened in ONNX Runtime, says
    the same as the Keras ensemble; then a file that is there is replaced. Needs
    `pip install "cbnn-keras[onnx]"`.

    Args:
        ensemble: What to export.
        path: The file.
        precision: `"float32"`; `"float16"`, half the size, for GPUs; or
            `"int8"`, a quarter of the size and faster on CPUs, which computes
            with 8 bits after a calibration.
        calibration_data: Some hundred real inputs, in the structure that
            clients send; needed for `"int8"`, and then used to verify as well.
        verbose: 0 for no output.
        **options: The fields of `ServingOptions`.

    Returns:
        Where it is, how big, and how close to the Keras ensemble.

    Raises:
        ImportError, ValueError: If a package is missing, the path is inside a
            run, the run is not finished, an option does not fit, an op cannot
            be converted, or the file does not match.
        OSError: If it cannot be written, as on a full disk.
    """
    serving_options = ServingOptions.from_keywords(options)
    serving_options = serving_options.named(ensemble.run.header.class_names)
    reporter = Reporter(verbose)
    destination = pathlib.Path(path).absolute()
    placing.check_allowed(ensemble, serving_options, destination)
    if destination.is_dir():
        raise RunError(
            f"{destination} is a directory; an ONNX export is a file. Give a "
            "name for it, such as ensemble.onnx."
        )
    with placing.written_aside(destination) as aside:
        unfinished = aside / destination.name
        parity = write_onnx(
            ensemble,
            unfinished,
            reporter,
            serving_options,
            precision=precision,
            calibration_data=calibration_data,
        )
        onnx_files.move(unfinished, destination)
    artefact = Artefact(destination, onnx_files.num_bytes(destination), parity)
    reporter.line(str(artefact))
    return artefact


def write_onnx(
    ensemble: CheckpointEnsemble,
    path: pathlib.Path,
    reporter: Reporter,
    options: ServingOptions,
    *,
    precision: str,
    calibration_data: Any,
) -> Parity:
    """Writes a file and verifies it; what is at `path` is not looked after.

    The arguments are those of `export_onnx`.
    """
    onnx_precisions.check(precision, calibration_data)
    if options.cascade is not None and precision == "float16":
        raise ValueError(
            "precision='float16' is for exports without a cascade: half "
            "precision cannot tell whether a vote is decided. Leave one of the "
            "two out, or use 'int8'."
        )
    for module in ("onnx", "tf2onnx", "onnxruntime"):
        extras.need(module, "onnx")
    if options.sample_data is None:
        options = dataclasses.replace(options, sample_data=calibration_data)
    with reporter.status("merging the members"):
        graph = ServingGraph(ensemble, options)
    with reporter.status("converting to ONNX (minutes for large models)"):
        model = onnx_conversion.to_onnx(graph, precision)
    onnx_files.save(model, path)
    if precision != "float32":
        with reporter.status(f"converting to {precision}"):
            onnx_precisions.convert(path, precision, graph, calibration_data)
    with reporter.status("comparing it with the Keras ensemble"):
        return compare(OnnxRuntime(path), graph, TOLERANCES[precision])
