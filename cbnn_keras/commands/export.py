"""Exports of a run directory, for the command line."""

import pathlib
from collections.abc import Sequence
from typing import Any

from cbnn_keras.commands.inputs import load_inputs, load_priors, read_lines
from cbnn_keras.ensemble.ensemble import CheckpointEnsemble
from cbnn_keras.export.graph import ServingOptions
from cbnn_keras.export.onnx import export_onnx
from cbnn_keras.export.placing import Artefact
from cbnn_keras.export.saved_model import export_saved_model
from cbnn_keras.export.triton import export_triton
from cbnn_keras.export.verify import Parity, verify_artefact
from cbnn_keras.models import copying


def export_run(
    run: pathlib.Path,
    *,
    format: str,
    output: pathlib.Path | None = None,
    num_members: int | None = None,
    precision: str = "float32",
    serving_config: str | None = None,
    outputs: Sequence[str] = ("probabilities",),
    top_k: int = 5,
    voting: str = "soft",
    priors: pathlib.Path | None = None,
    class_names: pathlib.Path | None = None,
    preprocess: pathlib.Path | None = None,
    data: pathlib.Path | None = None,
    tolerance: float | None = None,
) -> Artefact:
    """Exports what is in a run directory.

    Args:
        run: The directory.
        format: `"saved_model"`, `"onnx"` or `"triton"`.
        output: Where to; by default `exports/` and the name of the run.
        num_members: At most so many members, at equal intervals.
        precision: As in `export_onnx`; `data` are then the calibration data.
        serving_config: As in `export_saved_model`.
        outputs: See `ServingOptions`, as well as the next two.
        top_k: How many classes.
        voting: How members are combined.
        priors: An `.npy` file with the share of each class in training, or a
            text file with one in each line.
        class_names: A text file with the name of a class in each line.
        preprocess: A `.keras` file.
        data: An `.npz` file with `x`, or with an array for each input.
        tolerance: See `ServingOptions`.
    """
    ensemble = CheckpointEnsemble.load(run)
    if num_members is not None:
        ensemble = ensemble.select(num=num_members)
    samples = None if data is None else load_inputs(data)
    options: ServingOptions = {
        "outputs": outputs,
        "top_k": top_k,
        "voting": voting,
        "priors": None if priors is None else load_priors(priors),
        "class_names": read_lines(class_names),
        "preprocess": _load_layers(preprocess),
        "sample_data": samples,
        "tolerance": tolerance,
    }
    target = output or default_output(run, format)
    if format == "saved_model":
        return export_saved_model(
            ensemble, target, serving_config=serving_config, **options
        )
    export = export_onnx if format == "onnx" else export_triton
    calibration = samples if precision == "int8" else None
    return export(
        ensemble,
        target,
        precision=precision,
        calibration_data=calibration,
        **options,
    )


def verify_run(
    artefact: pathlib.Path,
    run: pathlib.Path,
    *,
    preprocess: pathlib.Path | None = None,
    data: pathlib.Path | None = None,
    tolerance: float | None = None,
) -> Parity:
    """Compares an artefact with the run that it was exported from."""
    return verify_artefact(
        artefact,
        CheckpointEnsemble.load(run),
        preprocess=_load_layers(preprocess),
        sample_data=None if data is None else load_inputs(data),
        tolerance=tolerance,
    )


def default_output(run: pathlib.Path, format: str) -> pathlib.Path:
    name = run.resolve().name
    folder = pathlib.Path("exports")
    return {
        "saved_model": folder / name,
        "onnx": folder / f"{name}.onnx",
        "triton": folder / "triton" / name,
    }[format]


def _load_layers(path: pathlib.Path | None) -> Any:
    return None if path is None else copying.load_architecture(path)
