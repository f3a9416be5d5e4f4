"""Exports of a run directory, for the command line."""

import contextlib
import pathlib
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras

from cbnn_keras.commands.imports import imported_objects
from cbnn_keras.commands.inputs import (
    faults_of,
    faults_of_data,
    load_inputs,
    load_preprocess,
    load_priors,
    read_lines,
)
from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.export.litert import export_litert
from cbnn_keras.export.onnx import export_onnx
from cbnn_keras.export.options import ServingOptions
from cbnn_keras.export.placing import Artefact
from cbnn_keras.export.saved_model import export_saved_model
from cbnn_keras.export.triton import export_triton
from cbnn_keras.export.verify import Parity, verify_artefact
from cbnn_keras.export.web import export_web
from cbnn_keras.runs.outputs import check_output
from cbnn_keras.support.aliases import Keywords
from cbnn_keras.support.console import Reporter
from cbnn_keras.support.files import MAX_BYTES

# Options of an export that are files on the command line.
_FILES = ("priors", "class_names", "preprocess")


def export_run(
    run: pathlib.Path,
    *,
    format: str,
    output: pathlib.Path | None = None,
    num_members: int | None = None,
    precision: str = "float32",
    serving_config: str | None = None,
    data: pathlib.Path | None = None,
    modules: Sequence[str] = (),
    max_bytes: int = MAX_BYTES,
    page: Mapping[str, Any] | None = None,
    **options: Any,
) -> Artefact:
    """Exports what is in a run directory.

    Args:
        run: The directory.
        format: `"saved_model"`, `"onnx"`, `"litert"`, `"triton"` or `"web"`.
        output: Where to; by default `exports/` and the name of the run.
        num_members: At most so many members, at equal intervals.
        precision: What to compute in, see `export_onnx`; `data` are then the
            calibration data.
        serving_config: The directory of the models as TensorFlow Serving sees
            it, see `export_saved_model`.
        data: An `.npz` file with `x`, or with an array for each input.
        modules: Modules of the user with the classes and functions of the
            model.
        max_bytes: What the run, and the data, may take in memory.
        page: What the page of `"web"` is told, see `export_web`.
        **options: The fields of `ServingOptions`, some of them as files:
            `priors`, an `.npy` file with the share of each class in training,
            or a text file with one per line; `class_names`, a text file with
            the name of a class in each line; `preprocess`, a `.keras` file.

    Raises:
        RunError: If a file is damaged or of the wrong kind, if the output
            would replace an input or change a run, or if the run is not
            finished.
    """
    target = output or default_output(run, format)
    files = [options.get(name) for name in _FILES]
    check_output(target, [path for path in (*files, data) if path is not None])
    with warnings.catch_warnings():
        # The export says whether it takes a run that is not finished.
        warnings.filterwarnings("ignore", "The run in .* is not finished")
        ensemble = CheckpointEnsemble.load(
            run,
            max_bytes=max_bytes,
            custom_objects=imported_objects(modules),
        )
    if num_members is not None:
        ensemble = ensemble.select(num=num_members)
    if ensemble.run.calibration is not None and ensemble.calibration is None:
        Reporter(1).line(
            "Not calibrated: the calibration of the run is of other members or "
            "votes than those that are exported."
        )
    samples = None if data is None else load_inputs(data, max_bytes)
    given = {**_read(options, max_bytes), "sample_data": samples}
    _check_fit(ensemble, options, given)
    with _faults(ensemble, given.get("preprocess"), data, samples):
        if format == "saved_model":
            return export_saved_model(
                ensemble, target, serving_config=serving_config, **given
            )
        export = _EXPORTS[format]
        calibration = samples if precision == "int8" else None
        return export(
            ensemble,
            target,
            precision=precision,
            calibration_data=calibration,
            **(page or {}),
            **given,
        )


_EXPORTS: dict[str, Callable[..., Artefact]] = {
    "onnx": export_onnx,
    "litert": export_litert,
    "triton": export_triton,
    "web": export_web,
}


def _check_fit(
    ensemble: CheckpointEnsemble, files: Keywords, given: Keywords
) -> None:
    """Raises a `RunError` that names a file that does not fit the classes."""
    for name in ("priors", "class_names"):
        fitting: Keywords = {name: given.get(name)}
        with faults_of(files.get(name)):
            ServingOptions(**fitting).fitted_to(ensemble.classifier)


def verify_run(
    artefact: pathlib.Path,
    run: pathlib.Path,
    *,
    data: pathlib.Path | None = None,
    modules: Sequence[str] = (),
    max_bytes: int = MAX_BYTES,
    **options: Any,
) -> Parity:
    """Compares an artefact with the run that it was exported from.

    Args:
        artefact: What an export wrote.
        run: The run directory.
        data: An `.npz` file with `x`, or with an array for each input.
        modules: As in `export_run`.
        max_bytes: What the run, the artefact and the data may take in memory,
            each.
        **options: Those of `verify_artefact`; `preprocess` is a file.

    Raises:
        RunError: If a file is damaged or of the wrong kind, or if the artefact
            is refused.
        ValueError: If they do not match.
    """
    ensemble = CheckpointEnsemble.load(
        run, max_bytes=max_bytes, custom_objects=imported_objects(modules)
    )
    samples = None if data is None else load_inputs(data, max_bytes)
    given = _read(options, max_bytes)
    with _faults(ensemble, given.get("preprocess"), data, samples):
        return verify_artefact(
            artefact,
            ensemble,
            sample_data=samples,
            max_bytes=max_bytes,
            **given,
        )


@contextlib.contextmanager
def _faults(
    ensemble: CheckpointEnsemble,
    preprocess: keras.Model | None,
    data: pathlib.Path | None,
    samples: Any,
) -> Iterator[None]:
    """Names the file that is to blame: that of the model, or the data."""
    given = {} if data is None else {data: samples}
    with faults_of_data(given, [preprocess or ensemble.model]):
        with ensemble.faults_of_model():
            yield


def default_output(run: pathlib.Path, format: str) -> pathlib.Path:
    """Where an export goes that is not told where to."""
    name = run.resolve().name
    directory = pathlib.Path("exports")
    return {
        "saved_model": directory / name,
        "onnx": directory / f"{name}.onnx",
        "litert": directory / f"{name}.tflite",
        "web": directory / "web" / name,
        "triton": directory / "triton" / name,
    }[format]


def next_commands(
    format: str,
    path: pathlib.Path,
    run: pathlib.Path,
    *,
    preprocess: pathlib.Path | None = None,
    data: pathlib.Path | None = None,
    tolerance: float | None = None,
    modules: Sequence[str] = (),
) -> list[str]:
    """What to type after an export: how to verify it, and how to serve it.

    Args:
        format: What the artefact is.
        path: Where it is.
        run: The run directory that it was exported from.
        preprocess: The file that the export was given, if it was.
        data: The data that the export was given, if it was.
        tolerance: The tolerance that the export was given, if it was.
        modules: The modules that the export was given.
    """
    verify = ["cbnn", "verify", str(path), "--run", str(run)]
    for option, value in (
        ("--preprocess", preprocess),
        ("--data", data),
        ("--tolerance", tolerance),
        *(("--import", module) for module in modules),
    ):
        if value is not None:
            verify += [option, str(value)]
    name = path.parent.name
    serve = {
        "saved_model": [
            *("docker", "run", "--rm", "-p", "8501:8501"),
            *("-v", f"{path.parent}:/models/{name}"),
            *("-e", f"MODEL_NAME={name}", "tensorflow/serving"),
        ],
        "onnx": ["python", "-c", _ONNX.format(path=str(path))],
        "litert": ["python", "-c", _LITERT.format(path=str(path))],
        "web": [
            *("python", "-m", "http.server", "--bind", "127.0.0.1"),
            *("--directory", str(path)),
        ],
        "triton": ["tritonserver", "--model-repository", str(path.parent)],
    }[format]
    return [shlex.join(verify), shlex.join(serve)]


_ONNX = (
    "import onnxruntime as ort; "
    "print([i.name for i in ort.InferenceSession({path!r}).get_inputs()])"
)
_LITERT = (
    "from ai_edge_litert.interpreter import Interpreter; "
    "print(Interpreter({path!r}).get_signature_list())"
)


def _read(options: Keywords, max_bytes: int) -> Keywords:
    """Options with the content of files in place of their paths."""
    readers = {
        "priors": load_priors,
        "class_names": read_lines,
        "preprocess": lambda path: load_preprocess(path, max_bytes),
    }
    return {
        name: readers[name](value)
        if name in _FILES and value is not None
        else value
        for name, value in options.items()
    }
