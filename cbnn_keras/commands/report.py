"""Reports of run directories and data files, for the command line."""

import contextlib
import pathlib
from collections.abc import Mapping, Sequence

from cbnn_keras.analysis.evaluation import Labelled
from cbnn_keras.analysis.findings import Findings, Source, as_ensemble
from cbnn_keras.analysis.report import write_report
from cbnn_keras.analysis.report.report import check_names
from cbnn_keras.commands.imports import imported_objects
from cbnn_keras.commands.inputs import (
    faults_of,
    faults_of_data,
    load_labelled,
    read_lines,
)
from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.outputs import check_output
from cbnn_keras.support.files import MAX_BYTES


def report_files(
    runs: Sequence[pathlib.Path],
    output: pathlib.Path,
    *,
    data: Sequence[pathlib.Path] = (),
    class_names: pathlib.Path | None = None,
    suspects: pathlib.Path | None = None,
    with_loss_plane: bool = False,
    modules: Sequence[str] = (),
    max_bytes: int = MAX_BYTES,
) -> list[Findings]:
    """Writes the report of run directories and data files.

    Args:
        runs: Directories of runs.
        output: The page.
        data: `.npz` files with inputs `x` and labels `y`.
        class_names: A text file with the name of a class in each line.
        suspects: The file to write the suspicious labels to.
        with_loss_plane: Whether to add the loss around three members.
        modules: Modules of the user with the classes and functions of the
            models.
        max_bytes: What each run, and each data file, may take in memory.

    Returns:
        The numbers behind the page, see `write_report`.

    Raises:
        RunError: If a file is damaged or of the wrong kind, or if an output
            would replace an input or change a run.
        ValueError: If an argument does not fit.
    """
    names = [] if class_names is None else [class_names]
    for written in filter(None, (output, suspects)):
        check_output(written, [*data, *names])
    labels = read_lines(class_names)
    sets = [
        Labelled(path.name, *load_labelled(path, max_bytes)) for path in data
    ]
    # Runs that nothing is predicted with need not be rebuilt.
    sources: list[Source] = list(runs)
    for run in runs:
        RunDirectory.open(run.absolute(), max_bytes)
        with faults_of(class_names):
            check_names(run, labels)
    with contextlib.ExitStack() as stack:
        if data:
            custom = imported_objects(modules)
            ensembles = [as_ensemble(run, max_bytes, custom) for run in runs]
            sources = list(ensembles)
            _name_faults(stack, ensembles, dict(zip(data, sets, strict=True)))
        return write_report(
            sources,
            output,
            data=sets,
            class_names=labels,
            suspects=suspects,
            with_loss_plane=with_loss_plane,
        )


def _name_faults(
    stack: contextlib.ExitStack,
    ensembles: Sequence[CheckpointEnsemble],
    data: Mapping[pathlib.Path, Labelled],
) -> None:
    """Has the file named that is to blame: data, or that of a model."""
    inputs = {path: one.x for path, one in data.items()}
    models = [ensemble.model for ensemble in ensembles]
    stack.enter_context(faults_of_data(inputs, models))
    for ensemble in ensembles:
        stack.enter_context(ensemble.faults_of_model())
        for file, one in data.items():
            with faults_of(file):
                ensemble.split_labels(one.x, one.y)
