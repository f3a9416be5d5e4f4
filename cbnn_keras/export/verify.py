"""Does an artefact say what the Keras ensemble says?

An artefact is written aside, opened in its own runtime and compared; only what
matches is moved to where it was asked for.
"""

import dataclasses
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cbnn_keras import metrics
from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.export import cascade_parity
from cbnn_keras.export.graph import ServingGraph
from cbnn_keras.export.metadata import check_metadata
from cbnn_keras.export.options import ServingOptions
from cbnn_keras.export.runtimes import Runtime, open_artefact
from cbnn_keras.support import arguments
from cbnn_keras.support.aliases import Json
from cbnn_keras.support.console import Reporter
from cbnn_keras.support.faults import RunError, shortened
from cbnn_keras.support.files import MAX_BYTES

# The batch sizes that are compared: one, two, and one that is a power of none.
BATCH_SIZES = (1, 2, 7)
NUM_SAMPLES = sum(BATCH_SIZES)
NUM_REAL_SAMPLES = 1000  # at most


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """What counts as the same.

    Attributes:
        difference: The largest difference allowed in any probability; ten
            times as much in those of single members, whose rounding is not
            averaged.
        agreement: The smallest share allowed of samples that get the same
            class, among the clear ones.
        margin: A sample is clear if its first class is ahead of the second by
            more than this.
    """

    difference: float
    agreement: float
    margin: float


# Half precision has 3 decimal digits. What eight bits may change is a matter of
# the model; that clear samples keep their class is what one can ask of all.
TOLERANCES = {
    "float32": Tolerance(difference=1e-5, agreement=1.0, margin=2e-5),
    "float16": Tolerance(difference=2e-2, agreement=1.0, margin=4e-2),
    "int8": Tolerance(difference=1.0, agreement=0.95, margin=0.1),
}


@dataclasses.dataclass(frozen=True)
class Parity:
    """How close an artefact is to the Keras ensemble.

    Attributes:
        max_difference: The largest absolute difference in any probability.
        agreement: Share of samples that get the same class.
        num_samples: Number of samples compared.
        members_asked: Of a cascade, how many members the samples needed at
            most, such as `"3 of 6"`: what others say was not compared.
    """

    max_difference: float
    agreement: float
    num_samples: int
    members_asked: str | None = None

    def __str__(self) -> str:
        asked = ""
        if self.members_asked is not None:
            asked = f", which needed up to {self.members_asked} members"
        return (
            f"max |delta p| {self.max_difference:.1e}, the same class for "
            f"{self.agreement:.1%} of {self.num_samples} samples{asked}"
        )


def verify_artefact(
    artefact: str | os.PathLike[str],
    ensemble: CheckpointEnsemble,
    *,
    preprocess: Any = None,
    inputs: Any = None,
    sample_data: Any = None,
    tolerance: float | None = None,
    max_bytes: int = MAX_BYTES,
    verbose: int = 1,
) -> Parity:
    """Compares what an export wrote with the ensemble that it came from.

    An artefact is a program. Before it is opened it is looked through, and
    refused if it would touch files, other processes or Python.

    Args:
        artefact: A SavedModel, an ONNX or LiteRT file, a model of a Triton
            repository, or the directory of a page.
        ensemble: Of the run that was exported; which of its members are in the
            artefact, and with which votes, the artefact says.
        preprocess: The layer or model that the export was given, if it was.
        inputs: The `keras.Input`s that the export was given, if it was.
        sample_data: Real inputs to compare with; see `ServingOptions`.
        tolerance: The largest difference allowed in any probability; see
            `ServingOptions`.
        max_bytes: What the artefact may take, on disk and in memory. Defaults
            to 4 GiB.
        verbose: 0 for no output.

    Raises:
        RunError: If the artefact is refused, is damaged, or was not written by
            an export of this run.
        ValueError: If they do not match.
    """
    path = pathlib.Path(artefact)
    room = arguments.integer("verify_artefact", "max_bytes", max_bytes)
    runtime = open_artefact(path, room)
    metadata = runtime.metadata
    check_metadata(path, metadata)
    if metadata["has_preprocess"] and preprocess is None:
        raise ValueError(
            f"{path} was exported with `preprocess`. Give it here too: on the "
            "command line as --preprocess FILE.keras."
        )
    _check_options(path, metadata)
    options = ServingOptions.of_artefact(
        metadata,
        preprocess=preprocess,
        inputs=inputs,
        sample_data=sample_data,
        tolerance=tolerance,
    )
    _check_fit(path, options, ensemble)
    graph = ServingGraph(_exported(path, metadata, ensemble), options)
    if sorted(runtime.input_names) != sorted(graph.input_specs):
        raise RunError(
            f"{path} takes {', '.join(runtime.input_names)}, but the run's "
            f"model takes {', '.join(graph.input_specs)}: it is not an export "
            "of this run."
        )
    parity = compare(runtime, graph, TOLERANCES[metadata["precision"]])
    Reporter(verbose).line(f"{path} matches: {parity}.")
    return parity


def _exported(
    path: pathlib.Path, metadata: Json, ensemble: CheckpointEnsemble
) -> CheckpointEnsemble:
    """The members of the run that are in an artefact, with its votes."""
    votes = dict(zip(metadata["members"], metadata["votes"], strict=True))
    try:
        return ensemble.with_votes(votes)
    except ValueError as error:
        raise RunError(
            f"{path} is not an export of this run: {shortened(error)}"
        ) from error


def _check_options(path: pathlib.Path, metadata: Json) -> None:
    """Sees that it is the artefact to blame, and not what the user gives."""
    try:
        ServingOptions.of_artefact(metadata)
    except ValueError as error:
        raise RunError(
            f"The metadata of {path} are not those of an export: "
            f"{shortened(error)} Export the run again."
        ) from error


def _check_fit(
    path: pathlib.Path, options: ServingOptions, ensemble: CheckpointEnsemble
) -> None:
    try:
        options.fitted_to(ensemble.classifier)
    except ValueError as error:
        raise RunError(
            f"The metadata of {path} do not fit the run: {shortened(error)} "
            "Give the run that it was exported from."
        ) from error


def compare(
    runtime: Runtime,
    graph: ServingGraph,
    tolerance: Tolerance,
    *,
    outputs: Sequence[str] | None = None,
    num: int | None = None,
) -> Parity:
    """Runs an artefact in batches of several sizes.

    Args:
        runtime: The artefact.
        graph: What it was made from.
        tolerance: What counts as the same, unless the user said so.
        outputs: Which outputs are compared, if not all of the graph.
        num: At most so many samples, by default more of real ones.

    Raises:
        ValueError: If an output is missing, has another shape or is further
            from the ensemble's than the tolerance allows.
    """
    if num is None:
        num = NUM_REAL_SAMPLES if graph.has_real_samples else NUM_SAMPLES
    inputs = graph.samples(num)
    expected = graph.reference(inputs)
    wanted = graph.options.output_names if outputs is None else outputs
    found = _in_batches(runtime, inputs, wanted)
    _check_shapes(found, {name: expected[name] for name in wanted})
    _check_types(found, graph.options)
    usual = tolerance
    if graph.options.tolerance is not None:
        tolerance = _as_the_user_said(tolerance, graph.options.tolerance)
    if graph.options.cascade is not None:
        found, expected = cascade_parity.clear_exits(
            found, expected, tolerance.margin, tolerance.agreement
        )
    differences = _differences(found, expected, graph.options)
    is_same = _same_classes(found, expected, graph.options, usual)
    is_clear = _is_clear(found, expected, tolerance.margin)
    parity = Parity(
        float(np.max([0.0, *differences.values()])),  # NaN if one is
        float(np.mean(is_same)),
        len(is_same),
        cascade_parity.members_asked(expected),
    )
    is_close = all(
        difference <= tolerance.difference * (10 if name == "members" else 1)
        for name, difference in differences.items()
    )
    num_clear_errors = np.sum(is_clear & ~is_same)
    allowed = (1 - tolerance.agreement) * np.sum(is_clear)
    if not is_close or num_clear_errors > allowed:
        raise ValueError(
            f"The export does not match the Keras ensemble: {parity}; allowed "
            f"are {tolerance.difference:g} and {tolerance.agreement:.0%} of "
            f"{np.sum(is_clear)} samples that are clear. If it is "
            "rounding, as in very deep models, give real inputs as "
            "`sample_data` or a larger `tolerance`."
        )
    return parity


def _as_the_user_said(tolerance: Tolerance, difference: float) -> Tolerance:
    """The tolerance with the largest difference that the user allows."""
    return dataclasses.replace(
        tolerance,
        difference=difference,
        # Two probabilities may each be off by the difference.
        margin=max(tolerance.margin, 2 * difference),
    )


def _in_batches(
    runtime: Runtime, inputs: dict[str, np.ndarray], wanted: Sequence[str]
) -> dict[str, np.ndarray]:
    """The wanted outputs for all inputs; those that there are."""
    num = len(next(iter(inputs.values())))
    results = [
        runtime.run({k: array[start:stop] for k, array in inputs.items()})
        for start, stop in _bounds(num)
    ]
    try:
        return {
            name: np.concatenate([result[name] for result in results])
            for name in wanted
            if name in results[0]
        }
    except (TypeError, ValueError) as error:
        raise ValueError(
            "The export's outputs have not one row for each sample: "
            f"{shortened(error)}."
        ) from error


def _bounds(num: int) -> Iterator[tuple[int, int]]:
    start = 0
    while start < num:
        for size in BATCH_SIZES:
            if start < num:
                yield start, min(start + size, num)
                start += size


def _check_shapes(
    found: dict[str, np.ndarray], expected: dict[str, np.ndarray]
) -> None:
    for name, array in expected.items():
        shape = found[name].shape if name in found else None
        if shape != array.shape:
            raise ValueError(
                f"The export's output {name!r} has the shape {shape}, the "
                f"ensemble's {array.shape}."
            )


def _check_types(found: dict[str, np.ndarray], options: ServingOptions) -> None:
    classes = "iu" if options.class_names is None else "OSU"
    of_others = {"class": classes, "top_k_classes": classes, "set": "b"}
    of_others["members_used"] = "i"
    for name, array in found.items():
        kinds = of_others.get(name, "f")
        if array.dtype.kind not in kinds:
            raise ValueError(
                f"The export's output {name!r} is of type {array.dtype}, "
                "unlike the ensemble's."
            )


def _differences(
    found: dict[str, np.ndarray],
    expected: dict[str, np.ndarray],
    options: ServingOptions,
) -> dict[str, float]:
    """The largest difference in each output that has probabilities."""
    differences: dict[str, float] = {
        name: float(np.abs(found[name] - expected[name]).max())
        for name in ("probabilities", "members", "top_k_probabilities")
        if name in found
    }
    if "top_k_classes" in found:
        # By their probabilities: classes that are equally likely may change
        # places.
        classes = options.class_numbers(found["top_k_classes"])
        num_classes = expected["columns"].shape[1]
        is_class = (classes >= 0) & (classes < num_classes)
        chosen = np.take_along_axis(
            expected["columns"], np.where(is_class, classes, 0), axis=1
        )
        off = np.abs(chosen - expected["top_k_probabilities"])
        differences["top_k_classes"] = float(
            np.where(is_class, off, np.inf).max()
        )
    return differences


def _same_classes(
    found: dict[str, np.ndarray],
    expected: dict[str, np.ndarray],
    options: ServingOptions,
    tolerance: Tolerance,
) -> np.ndarray:
    """Whether all that depends on predicted classes is the same, by sample."""
    is_same = np.ones(len(expected["class"]), dtype=bool)
    if "probabilities" in found:
        classes = metrics.predicted_classes(found["probabilities"])
        is_same &= classes == expected["class"]
    if "class" in found:
        classes = options.class_numbers(found["class"])
        is_same &= classes == expected["class"]
    if "disagreement" in found:
        off = np.abs(found["disagreement"] - expected["disagreement"])
        is_same &= off <= min(tolerance.difference, 2e-3)  # shares in float16
    if "set" in found:
        off = np.abs(expected["columns"] - expected["set_threshold"])
        allowed = min(tolerance.difference, tolerance.margin)
        is_near = off <= allowed  # may be in the set or not
        is_same &= (is_near | (found["set"] == expected["set"])).all(axis=1)
    return is_same


def _is_clear(
    found: dict[str, np.ndarray],
    expected: dict[str, np.ndarray],
    margin: float,
) -> np.ndarray:
    is_clear = _margins(expected["probabilities"]) > margin
    if "disagreement" in found:
        is_clear &= (_margins(expected["opinions"]) > margin).all(axis=1)
    return is_clear


def _margins(probabilities: np.ndarray) -> np.ndarray:
    """How far the first class is ahead of the second."""
    if probabilities.shape[-1] == 1:
        return np.abs(2 * probabilities[..., 0] - 1)
    second, first = np.moveaxis(np.sort(probabilities)[..., -2:], -1, 0)
    return first - second
