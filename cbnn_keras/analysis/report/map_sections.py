"""Sections of a report whose plots are maps: diversity and the loss plane."""

import functools
from collections.abc import Sequence

import numpy as np

from cbnn_keras.analysis import plots
from cbnn_keras.analysis.findings import Findings
from cbnn_keras.analysis.loss_plane import LossPlane
from cbnn_keras.analysis.report import page
from cbnn_keras.analysis.report.page import Part, Section
from cbnn_keras.analysis.report.quality_sections import where

# Kinds of `plots.draw_heat_map`, with their titles.
_HEAT_MAPS = {
    "correlation": "correlation of the probabilities",
    "disagreement": "share of samples decided differently",
}


def diversity_section(found: Sequence[Findings]) -> Section:
    matrices = [_matrices(f) for f in found]
    limits = {
        kind: plots.common_limits(*(m[kind] for m in matrices if kind in m))
        for kind in _HEAT_MAPS
    }
    return Section(
        "diversity",
        "Are the members different?",
        "An average gains only where its members are wrong about different "
        "samples. Colours mean the same in all runs.",
        [
            _diversity_part(f, m, limits)
            for f, m in zip(found, matrices, strict=True)
        ],
    )


def _matrices(found: Findings) -> dict[str, np.ndarray]:
    """What is to be drawn of two members each, by kind of heat map."""
    evaluation = found.evaluation
    if evaluation is None:
        return {"disagreement": found.mistakes_disagreement}
    return {
        "correlation": evaluation.correlation,
        "disagreement": evaluation.disagreement,
    }


def _diversity_part(
    found: Findings,
    matrices: dict[str, np.ndarray],
    limits: dict[str, tuple[float, float]],
) -> Part:
    text = (
        "Without data: the share of training samples that just one of two "
        "members gets right."
        if found.evaluation is None
        else where(found.evaluation)
    )
    drawings = [
        page.plot(
            functools.partial(
                plots.draw_heat_map,
                matrix,
                labels=range(1, len(found.steps) + 1),
                kind=kind,
                limits=limits[kind],
                title=_HEAT_MAPS[kind],
            ),
            height=3.8,
        )
        for kind, matrix in matrices.items()
    ]
    return Part(found.name, [text], drawings)


def loss_plane_section(
    found: Sequence[Findings], planes: Sequence[LossPlane | str | None]
) -> Section:
    return Section(
        "loss-plane",
        "Did the loss surface move?",
        "L2-regularised cross-entropy on the plane through three members, p1, "
        "p2 and p3 in the order of training, with the sample weights of each "
        "one's round; the statistics of BatchNorm are recomputed at every "
        "point.",
        [_plane_part(f, p) for f, p in zip(found, planes, strict=True)],
    )


def _plane_part(found: Findings, plane: LossPlane | str | None) -> Part:
    if plane is None or isinstance(plane, str):
        return Part(found.name, [plane] if plane else [])
    drawings = [
        page.plot(
            functools.partial(plots.draw_loss_plane, plane, panel), height=3.8
        )
        for panel in range(3)
    ]
    return Part(found.name, plots=drawings)
