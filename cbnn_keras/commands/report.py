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
    """`write_report` for files: `.npz` with `x` and `y`, names in lines."""
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
