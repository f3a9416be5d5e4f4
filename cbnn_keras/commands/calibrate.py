"""Calibration of a run directory, for the command line."""

import pathlib
from collections.abc import Sequence

from cbnn_keras.calibration import CalibrationRecord
from cbnn_keras.commands.imports import imported_objects
from cbnn_keras.commands.inputs import faults_of, faults_of_data, load_labelled
from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.support.files import MAX_BYTES


def calibrate_run(
    run: pathlib.Path,
    *,
    data: pathlib.Path,
    coverage: float | None = None,
    modules: Sequence[str] = (),
    max_bytes: int = MAX_BYTES,
) -> CalibrationRecord:
    """Calibrates the members of a run that vote, see `calibrate`.

    Args:
        run: The directory.
        data: An `.npz` file with inputs and labels that were not trained on.
        coverage: As in `CheckpointEnsemble.calibrate`.
        modules: Modules of the user with the classes and functions of the
            model.
        max_bytes: What the run, and the data, may take in memory.

    Raises:
        RunError: If a file is damaged or of the wrong kind, or if the labels
            do not fit.
        ValueError: If the run or the data cannot be calibrated with.
    """
    x, y = load_labelled(data, max_bytes)
    ensemble = CheckpointEnsemble.load(
        run, max_bytes=max_bytes, custom_objects=imported_objects(modules)
    )
    with faults_of(data):
        ensemble.split_labels(x, y)
    with faults_of_data({data: x}, [ensemble.model]):
        with ensemble.faults_of_model():
            return ensemble.calibrate((x, y), coverage=coverage)
