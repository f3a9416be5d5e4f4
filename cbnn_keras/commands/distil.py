"""`cbnn distil`: one network from a run directory and a data file."""

import pathlib
from collections.abc import Sequence
from typing import Any

import keras

from cbnn_keras.commands.imports import imported_objects
from cbnn_keras.commands.inputs import (
    faults_of,
    faults_of_data,
    load_inputs,
    load_labelled,
)
from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.runs.outputs import check_output
from cbnn_keras.support.files import MAX_BYTES


def distil_run(
    run: pathlib.Path,
    output: pathlib.Path,
    *,
    data: pathlib.Path,
    unlabelled: pathlib.Path | None = None,
    learning_rate: float | None = None,
    modules: Sequence[str] = (),
    max_bytes: int = MAX_BYTES,
    **options: Any,
) -> CheckpointEnsemble:
    """Teaches one network what the members of a run say.

    Args:
        run: The directory of the run.
        output: A new directory, or an empty one, for the network.
        data: An `.npz` file with inputs `x` and labels `y`.
        unlabelled: An `.npz` file with more inputs.
        learning_rate: Of Adam, to begin with.
        modules: Modules of the user with the classes and functions of the
            model.
        max_bytes: What the run, and each data file, may take in memory.
        **options: Other arguments of `CheckpointEnsemble.distil`.

    Raises:
        RunError: If a file is damaged or of the wrong kind, or if there is
            something in the output.
    """
    files = [data] if unlabelled is None else [data, unlabelled]
    check_output(output, files)
    x, y = load_labelled(data, max_bytes)
    inputs = {data: x}
    if unlabelled is not None:
        inputs[unlabelled] = load_inputs(unlabelled, max_bytes)
    if learning_rate is not None:
        options["optimizer"] = keras.optimizers.Adam(learning_rate)
    ensemble = CheckpointEnsemble.load(
        run, max_bytes=max_bytes, custom_objects=imported_objects(modules)
    )
    with faults_of(data):
        ensemble.split_labels(x, y)
    with faults_of_data(inputs, [ensemble.model]):
        return ensemble.distil(
            x,
            y,
            directory=output,
            unlabelled=inputs.get(unlabelled) if unlabelled else None,
            **options,
        )
