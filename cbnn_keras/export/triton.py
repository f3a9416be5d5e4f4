"""An ensemble -> a model of a Triton repository."""

import os
import pathlib
from typing import Any, Unpack

from cbnn_keras.ensemble.ensemble import CheckpointEnsemble
from cbnn_keras.export import placing, tf_serving
from cbnn_keras.export.graph import ServingOptions
from cbnn_keras.export.onnx import write_onnx
from cbnn_keras.export.placing import Artefact
from cbnn_keras.support.console import Reporter


def export_triton(
    ensemble: CheckpointEnsemble,
    path: str | os.PathLike[str],
    *,
    precision: str = "float32",
    calibration_data: Any = None,
    max_batch_size: int = 64,
    verbose: int = 1,
    **options: Unpack[ServingOptions],
) -> Artefact:
    """Writes the ensemble as a model of a Triton model repository.

        repository/<name>/config.pbtxt    for the ONNX Runtime backend, with
                                          dynamic batching
        repository/<name>/labels.txt      the class names, where given
        repository/<name>/1/model.onnx    what `export_onnx` writes

    Args:
        ensemble: What to export.
        path: The folder of the model, `repository/<name>`. It gets the next
            version (1, 2, ...), and its `config.pbtxt` is written anew.
        precision: As in `export_onnx`.
        calibration_data: As in `export_onnx`.
        max_batch_size: Up to so many samples are computed together.
        verbose: 0 for no output.
        **options: See `ServingOptions`.

    Returns:
        The folder of the model, its size, and how close it is to the Keras
        ensemble.

    Raises:
        ImportError, ValueError: As `export_onnx`.
    """
    if max_batch_size < 1:
        raise ValueError(f"max_batch_size={max_batch_size}; at least 1.")
    reporter = Reporter(verbose)
    folder = pathlib.Path(path).absolute()
    destination = placing.next_version(folder)
    config = folder / "config.pbtxt"
    tf_serving.check_replaceable(config)
    if not config.exists():  # then what is there is not ours
        tf_serving.check_replaceable(folder / "labels.txt")
    with placing.written_aside(destination) as aside:
        unfinished = aside / "model"
        unfinished.mkdir()
        parity = write_onnx(
            ensemble,
            unfinished / "model.onnx",
            reporter,
            precision=precision,
            calibration_data=calibration_data,
            **options,
        )
        class_names = options.get("class_names")
        text = tf_serving.triton_config(
            folder.name,
            unfinished / "model.onnx",
            max_batch_size,
            has_labels=class_names is not None,
        )
        placing.move_folder(unfinished, destination)
        if class_names is not None:
            labels = "".join(f"{name}\n" for name in class_names)
            tf_serving.replace_text(folder / "labels.txt", labels)
        tf_serving.replace_text(config, f"{tf_serving.MARK}\n{text}")
    artefact = Artefact(folder, placing.num_bytes(destination), parity)
    reporter.line(str(artefact))
    return artefact
