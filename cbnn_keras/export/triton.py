"""An ensemble -> a model of a Triton repository."""

import os
import pathlib
from typing import Any

from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.export import placing, triton_config
from cbnn_keras.export.onnx import write_onnx
from cbnn_keras.export.options import ServingOptions
from cbnn_keras.export.placing import Artefact
from cbnn_keras.support import arguments
from cbnn_keras.support.console import Reporter


def export_triton(
    ensemble: CheckpointEnsemble,
    path: str | os.PathLike[str],
    *,
    precision: str = "float32",
    calibration_data: Any = None,
    max_batch_size: int = 64,
    verbose: int = 1,
    **options: Any,
) -> Artefact:
    """Writes the ensemble as a model of a Triton model repository.

        repository/<name>/config.pbtxt    for the ONNX Runtime backend, with
                                          dynamic batching
        repository/<name>/labels.txt      the class names, where given
        repository/<name>/1/model.onnx    what `export_onnx` writes

    Args:
        ensemble: What to export.
        path: The directory of the model, `repository/<name>`. It gets the next
            version (1, 2, ...), and its `config.pbtxt` is written anew.
        precision: What to compute in, see `export_onnx`.
        calibration_data: Real inputs for `"int8"`, see `export_onnx`.
        max_batch_size: Up to so many samples are computed together.
        verbose: 0 for no output.
        **options: The fields of `ServingOptions`.

    Returns:
        The directory of the model, its size, and how close it is to the Keras
        ensemble.

    Raises:
        ImportError, ValueError, OSError: As `export_onnx`.
    """
    serving_options = ServingOptions.from_keywords(options)
    serving_options = serving_options.named(ensemble.run.header.class_names)
    arguments.integer("export_triton", "max_batch_size", max_batch_size)
    reporter = Reporter(verbose)
    directory = pathlib.Path(path).absolute()
    destination = placing.next_version(directory)
    placing.check_allowed(ensemble, serving_options, destination)
    _check_replaceable(directory)
    with placing.written_aside(destination) as aside:
        unfinished = aside / "model"
        unfinished.mkdir()
        parity = write_onnx(
            ensemble,
            unfinished / "model.onnx",
            reporter,
            serving_options,
            precision=precision,
            calibration_data=calibration_data,
        )
        texts = _texts(directory, unfinished, max_batch_size, serving_options)
        with placing.prepared(texts) as put_in_place:
            placing.move_directory(unfinished, destination)
            put_in_place()
    artefact = Artefact(directory, placing.num_bytes(destination), parity)
    reporter.line(str(artefact))
    return artefact


def _check_replaceable(directory: pathlib.Path) -> None:
    """Raises a `ValueError` if a file of somebody else is in the way."""
    config, labels = directory / "config.pbtxt", directory / "labels.txt"
    placing.check_replaceable(config)
    if not config.exists() or labels.is_dir():  # labels have no mark of ours
        placing.check_replaceable(labels)


def _texts(
    directory: pathlib.Path,
    unfinished: pathlib.Path,
    max_batch_size: int,
    options: ServingOptions,
) -> dict[pathlib.Path, str]:
    """The files beside the versions of a model."""
    names = options.class_names
    config = triton_config.config_text(
        directory.name,
        unfinished / "model.onnx",
        max_batch_size,
        has_labels=names is not None,
    )
    texts = {directory / "config.pbtxt": config}
    if names is None:
        return texts
    # First: a configuration that names labels must find them.
    return {
        directory / "labels.txt": "".join(f"{name}\n" for name in names),
        **texts,
    }
