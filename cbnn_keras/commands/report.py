"""Reports of run directories and data files, for the command line."""

import pathlib
from collections.abc import Sequence

from cbnn_keras.analysis.evaluation import Labelled
from cbnn_keras.analysis.findings import Findings
from cbnn_keras.analysis.report import write_report
from cbnn_keras.commands.inputs import load_labelled, read_lines


def report_files(
    runs: Sequence[pathlib.Path],
    output: pathlib.Path,
    *,
    data: Sequence[pathlib.Path] = (),
    class_names: pathlib.Path | None = None,
    suspects: pathlib.Path | None = None,
    with_loss_plane: bool = False,
) -> list[Findings]:
    """Writes the report of run directories and data files.

    Args:
        runs: Directories of runs.
        output: The page.
        data: `.npz` files with inputs `x` and labels `y`.
        class_names: A text file with the name of a class in each line.
        suspects: The file to write the suspicious labels to.
        with_loss_plane: Whether to add the loss around three members.

    Returns:
        The numbers behind the page, see `write_report`.

    Raises:
        ValueError: If a file or an argument does not fit.
    """
    for written in filter(None, (output, suspects)):
        if written.resolve() in [path.resolve() for path in data]:
            raise ValueError(f"{written} holds data, and is not replaced.")
    return write_report(
        runs,
        output,
        data=[Labelled(path.name, *load_labelled(path)) for path in data],
        class_names=read_lines(class_names),
        suspects=suspects,
        with_loss_plane=with_loss_plane,
    )
