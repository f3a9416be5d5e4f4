"""Findings in words and plots: the sections of a report, in their order."""

import platform
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.analysis.findings import Findings
from cbnn_keras.analysis.loss_plane import LossPlane
from cbnn_keras.analysis.report.boosting_sections import (
    budget_sections,
    rounds_section,
    weights_section,
)
from cbnn_keras.analysis.report.map_sections import (
    diversity_section,
    loss_plane_section,
)
from cbnn_keras.analysis.report.page import Part, Section, Table
from cbnn_keras.analysis.report.quality_sections import (
    calibration_section,
    growth_section,
    summary_section,
)
from cbnn_keras.analysis.report.sample_sections import (
    ClassNames,
    hardest_section,
    suspects_section,
)
from cbnn_keras.version import __version__


def make_sections(
    found: Sequence[Findings],
    class_names: Sequence[str] | None = None,
    planes: Sequence[LossPlane | str | None] = (),
) -> list[Section]:
    """The sections of a page, in their order.

    Args:
        found: What was found out about each run.
        class_names: Names of the classes, to show instead of numbers.
        planes: The loss around three members of each run, or why there is
            none, or None where nobody asked for it.
    """
    names = ClassNames(class_names)
    return [
        summary_section(found),
        rounds_section(found),
        *budget_sections(found),
        growth_section(found),
        diversity_section(found),
        weights_section(found, names),
        calibration_section(found),
        hardest_section(found, names),
        suspects_section(found, names),
        *([loss_plane_section(found, planes)] if any(planes) else []),
        _settings(found),
    ]


def _settings(found: Sequence[Findings]) -> Section:
    return Section(
        "settings",
        "Settings and versions",
        "",
        [_settings_part(f) for f in found],
    )


def _settings_part(found: Findings) -> Part:
    header, calibration = found.run.header, found.run.calibration
    calibrated = {}
    if calibration is not None:
        calibrated["calibrated"] = (
            f"{calibration.scaling} from "
            f"{calibration.num_samples:,} samples, for "
            f"{len(calibration.members)} members"
        )
    shown = {
        "run": found.location,
        "method": header.method,
        **header.settings.to_json(),
        "members": len(found.steps),
        **calibrated,
        "trained with cbnn-keras": header.package_version,
        "report by cbnn-keras": __version__,
        "Keras": f"{keras.__version__} on {keras.backend.backend()}",
        "TensorFlow": tf.__version__,
        "NumPy": np.__version__,
        "Python": platform.python_version(),
    }
    rows = [[name.replace("_", " "), value] for name, value in shown.items()]
    return Part(
        found.name, tables=[Table(["setting", "value"], rows, "settings")]
    )
