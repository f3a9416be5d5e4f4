"""An ensemble -> one LiteRT file, for phones and small machines."""

import dataclasses
import os
import pathlib
from typing import Any

from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.export import litert_conversion, onnx_precisions, placing
from cbnn_keras.export.endpoints import check_input_names
from cbnn_keras.export.graph import ServingGraph
from cbnn_keras.export.options import ServingOptions
from cbnn_keras.export.placing import Artefact
from cbnn_keras.export.runtimes import LiteRtRuntime
from cbnn_keras.export.verify import TOLERANCES, Parity, compare
from cbnn_keras.support import extras, files
from cbnn_keras.support.console import Reporter
from cbnn_keras.support.faults import RunError


def export_litert(
    ensemble: CheckpointEnsemble,
    path: str | os.PathLike[str],
    *,
    precision: str = "float32",
    calibration_data: Any = None,
    verbose: int = 1,
    **options: Any,
) -> Artefact:
    """Writes the ensemble as one LiteRT (TensorFlow Lite) file.

    It has the endpoint `serving_default`, with the model's names for inputs and
    the chosen outputs, and only ops that are built into LiteRT. The first
    dimension is open; where LiteRT cannot do with that, as with recurrent
    layers, it is 1, and the output says so. The metadata are in the file, in a
    buffer called `cbnn_keras`.

    Nothing is changed at `path` unless the file, opened in LiteRT's own
    interpreter, says the same as the Keras ensemble; then a file that is there
    is replaced. Needs `pip install "cbnn-keras[litert]"`.

    Args:
        ensemble: What to export.
        path: The file.
        precision: `"float32"`; `"float16"`, half the size; or `"int8"`, about a
            quarter of the size, which computes with 8 bits after a calibration.
        calibration_data: Some hundred real inputs, in the structure that
            clients send; needed for `"int8"`, and then used to verify as well.
        verbose: 0 for no output.
        **options: The fields of `ServingOptions`.

    Returns:
        Where it is, how big, and how close to the Keras ensemble.

    Raises:
        ImportError, ValueError: If a package is missing, the path is inside a
            run, the run is not finished, an option does not fit, an op cannot
            be converted (those of texts cannot), or the file does not match.
        OSError: If it cannot be written, as on a full disk.
    """
    serving_options = ServingOptions.from_keywords(options)
    if serving_options.cascade is not None:
        raise ValueError(
            "cascade is for SavedModel, ONNX and Triton: LiteRT's converter "
            "is not given branches. Leave it out."
        )
    serving_options = serving_options.named(ensemble.run.header.class_names)
    reporter = Reporter(verbose)
    destination = pathlib.Path(path).absolute()
    placing.check_allowed(ensemble, serving_options, destination)
    if destination.is_dir():
        raise RunError(
            f"{destination} is a directory; a LiteRT export is a file. Give a "
            "name for it, such as ensemble.tflite."
        )
    onnx_precisions.check(precision, calibration_data)
    extras.need("ai_edge_litert", "litert")
    if serving_options.sample_data is None:
        serving_options = dataclasses.replace(
            serving_options, sample_data=calibration_data
        )
    with reporter.status("merging the members"):
        graph = ServingGraph(ensemble, serving_options)
    check_input_names(graph, "A LiteRT file")
    with placing.written_aside(destination) as aside:
        unfinished = aside / destination.name
        parity = _write(
            graph, unfinished, reporter, precision, calibration_data
        )
        os.replace(unfinished, destination)
    artefact = Artefact(destination, placing.num_bytes(destination), parity)
    reporter.line(str(artefact))
    return artefact


def _write(
    graph: ServingGraph,
    path: pathlib.Path,
    reporter: Reporter,
    precision: str,
    calibration_data: Any,
) -> Parity:
    """Writes a file and verifies it, for batches of any size if possible."""

    def written(batch_size: int | None) -> Parity:
        with reporter.status("converting to LiteRT"):
            content = litert_conversion.to_litert(
                graph, precision, calibration_data, batch_size=batch_size
            )
        files.write_new(path, content)
        with reporter.status("comparing it with the Keras ensemble"):
            runtime = LiteRtRuntime(path, path.read_bytes())
            return compare(runtime, graph, TOLERANCES[precision])

    try:
        return written(None)
    except ValueError as error:
        # Some ops need to know the number of samples when they are converted,
        # and some do not notice when it changes.
        try:
            parity = written(1)
        except ValueError:
            raise error from None
    reporter.line("The file takes one sample at a time.")
    return parity
