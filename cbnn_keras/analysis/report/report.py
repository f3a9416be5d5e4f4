"""`cbnn report`: what a run has to show, as one page for the browser.

`findings` has the numbers and `sections` puts them into words and plots.
"""

import hashlib
import importlib.resources
import json
import os
import pathlib
from collections.abc import Sequence

from cbnn_keras.analysis import hashing
from cbnn_keras.analysis.evaluation import Labelled
from cbnn_keras.analysis.findings import Findings, Scrutiny, Source, examine
from cbnn_keras.analysis.loss_plane import LossPlane, loss_plane
from cbnn_keras.analysis.report import page
from cbnn_keras.analysis.report.sections import make_sections
from cbnn_keras.ensemble.ensemble import CheckpointEnsemble
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.outputs import check_output, is_same
from cbnn_keras.runs.run import Run
from cbnn_keras.support import files
from cbnn_keras.support.console import Reporter, printable
from cbnn_keras.support.extras import need
from cbnn_keras.support.failures import failures_explained
from cbnn_keras.support.faults import RunError

# The grid and the samples of the loss plane: minutes, not hours.
_RESOLUTION, _NUM_SAMPLES = 15, 2000


def write_report(
    sources: Source | Sequence[Source],
    output: str | os.PathLike[str],
    *,
    data: Labelled | Sequence[Labelled] = (),
    class_names: Sequence[str] | None = None,
    suspects: str | os.PathLike[str] | None = None,
    with_loss_plane: bool = False,
    batch_size: int | None = None,
    verbose: int = 1,
) -> list[Findings]:
    """Writes one self-contained HTML page about one or several runs.

    Args:
        sources: The directory of a run, or an ensemble, of any method; or
            several of them.
        output: The page. A file that is there is replaced.
        data: Training data of the runs, in their order and not augmented, for
            hard samples, weights of classes and suspicious labels; and data
            that were not trained on, one set at most, for everything else.
            Which is which is found out.
        class_names: Names of the classes, to show instead of numbers. Defaults
            to those that the first run remembers, if any.
        suspects: The file to write the suspicious labels to as CSV, see
            `samples.Suspects.to_csv`; for one run.
        with_loss_plane: Whether to add the loss around three members, which
            takes minutes and needs the training data. It is kept beside the
            page and not computed again.
        batch_size: Number of samples that are predicted at once, as in
            `CheckpointEnsemble.predict`.
        verbose: 0 for no progress bars.

    Returns:
        The numbers behind the page, for each run.

    Raises:
        ValueError: If an argument does not fit the others or the runs.
    """
    # What can be refused is refused before minutes of predictions.
    for package in ("matplotlib", "jinja2"):
        need(package, "report")
    runs, sets = _as_lists(sources, data)
    target, table = _checked_targets(output, suspects, runs, sets)
    if class_names is None:
        class_names = _opened(runs[0]).header.class_names
    check_names(runs[0], class_names)
    found = examine(runs, sets, batch_size=batch_size, verbose=verbose)
    planes = [
        _plane(f, target, verbose) if with_loss_plane else None for f in found
    ]
    html = render(found, class_names=class_names, planes=planes)
    with failures_explained(output):
        files.replace_text(target, html)
    if table is not None and found[0].scrutiny is not None:
        found[0].scrutiny.suspects.to_csv(table)
    return found


def render(
    found: Sequence[Findings],
    *,
    class_names: Sequence[str] | None = None,
    planes: Sequence[LossPlane | str | None] = (),
) -> str:
    """The page as a string.

    Args:
        found: What was found out about each run.
        class_names: Names of the classes, to show instead of numbers.
        planes: The loss plane of each run, or why there is none; see
            `make_sections`.
    """
    jinja2 = need("jinja2", "report")
    template = importlib.resources.files(__package__) / "report.html"
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    html = environment.from_string(template.read_text("utf-8")).render(
        title=f"{found[0].name}: what the ensemble learned"
        if len(found) == 1
        else f"{len(found)} runs side by side",
        subtitle=_subtitle(found),
        sections=make_sections(found, class_names, planes),
    )
    # Names and texts may hold anything; marks of right-to-left are wanted.
    return printable(page.with_own_ids(html), keep="\n\r\t\u061c\u200e\u200f")


def _as_lists(
    sources: Source | Sequence[Source], data: Labelled | Sequence[Labelled]
) -> tuple[Sequence[Source], Sequence[Labelled]]:
    """Several runs and data sets, where one of each needs no list."""
    if isinstance(sources, (str, os.PathLike, CheckpointEnsemble)):
        sources = [sources]
    if isinstance(data, Labelled):
        data = [data]
    if not sources:
        raise ValueError("write_report: give one run at least.")
    if not all(isinstance(one, Labelled) for one in data):
        raise ValueError(
            "write_report(data=...): give each data set as Labelled(name, x, "
            "y)."
        )
    return sources, data


def _checked_targets(
    output: str | os.PathLike[str],
    suspects: str | os.PathLike[str] | None,
    sources: Sequence[Source],
    data: Sequence[Labelled],
) -> tuple[pathlib.Path, pathlib.Path | None]:
    """The paths of the page and of the table, if one is asked for."""
    if suspects is not None and (len(sources) > 1 or not data):
        raise ValueError(
            "Suspicious labels are those of one run and of data with labels: "
            "give one run, and its data."
        )
    target = _checked_target(output)
    table = None if suspects is None else _checked_target(suspects)
    if table is not None and is_same(table, target):
        raise RunError(f"{output} cannot be the page and the table at once.")
    return target, table


def _checked_target(path: str | os.PathLike[str]) -> pathlib.Path:
    """The path of a file that can be written without harm to a run."""
    target = pathlib.Path(path).absolute()
    if target.is_dir():
        raise RunError(
            f"{path} is a directory; give the name of a file, such as "
            f"{pathlib.Path(path) / 'report.html'}."
        )
    check_output(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}.") from error
    return target


def _opened(source: Source) -> Run:
    """The run, for its manifest alone: files are not verified."""
    if isinstance(source, CheckpointEnsemble):
        return source.run
    return RunDirectory.open(pathlib.Path(source).absolute())


def check_names(source: Source, class_names: Sequence[str] | None) -> None:
    """Raises a `ValueError` unless there is a name for each class of a run."""
    num_classes = _opened(source).header.num_classes
    if class_names is not None and len(class_names) != num_classes:
        raise ValueError(
            f"There are {len(class_names)} class names for {num_classes} "
            "classes. Give one for each, in the order of the labels."
        )


def _subtitle(found: Sequence[Findings]) -> str:
    """What holds for all runs."""
    headers = [f.run.header for f in found]
    parts = [", ".join(dict.fromkeys(h.method for h in headers))]
    for key, name in {
        "num_classes": "classes",
        "num_samples": "training samples",
        "num_parameters": "parameters",
    }.items():
        if len(numbers := {getattr(header, key) for header in headers}) == 1:
            [number] = numbers
            parts += [f"{number:,} {name}"] if number else []
    return " · ".join(parts)


def _plane(
    found: Findings, target: pathlib.Path, verbose: int
) -> LossPlane | str:
    """The loss plane, or why there is none: the rest is worth a page."""
    scrutiny = found.scrutiny
    if found.ensemble is None or scrutiny is None or not scrutiny.is_training:
        reason = (
            f"The loss plane of {found.name} needs its training data: --data "
            "train.npz, with arrays x and y in the order of training."
        )
        Reporter(verbose).line(reason)
        return reason
    try:
        return loss_plane(
            found.ensemble,
            scrutiny.data.x,
            scrutiny.data.y,
            resolution=_RESOLUTION,
            max_samples=_NUM_SAMPLES,
            cache=_cache(found, scrutiny, target),
            verbose=verbose,
        )
    except ValueError as error:
        reason = f"{found.name}: {error}"
        Reporter(verbose).line(reason)
        return reason


def _cache(
    found: Findings, scrutiny: Scrutiny, target: pathlib.Path
) -> pathlib.Path:
    """A file for each run and its data, so that none is in another's way."""
    content = json.dumps([found.run.header.to_json(), found.run.records()])
    digest = hashlib.sha256(content.encode())
    hashing.update(digest, scrutiny.data.x)
    name = f"{target.stem}.loss-plane-{digest.hexdigest()[:8]}.npz"
    return target.with_name(name)
