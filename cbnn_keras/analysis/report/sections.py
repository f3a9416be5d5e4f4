"""Findings in words and plots: the sections of a report."""

import functools
import platform
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.analysis import plots
from cbnn_keras.analysis.evaluation import Evaluation
from cbnn_keras.analysis.findings import Findings
from cbnn_keras.analysis.loss_plane import LossPlane
from cbnn_keras.analysis.performance import sign_test
from cbnn_keras.analysis.report import page
from cbnn_keras.analysis.report.page import Part, Section, Table, missing
from cbnn_keras.analysis.report.sample_sections import (
    ClassNames,
    hardest_section,
    suspects_section,
)
from cbnn_keras.runs.manifest import Round
from cbnn_keras.version import __version__

_LEGEND_LETTERS = 24  # of the name of a run
_FEW_SAMPLES = 1_000  # for a temperature


def make_sections(
    found: Sequence[Findings],
    class_names: Sequence[str] | None = None,
    planes: Sequence[LossPlane | str | None] = (),
) -> list[Section]:
    """All sections of a page, in their order.

    Args:
        found: Of each run.
        class_names: Names of the classes, to show instead of numbers.
        planes: The loss around three members of each run, or why there is
            none, or None where nobody asked for it.
    """
    names = ClassNames(class_names)
    return [
        _summary(found),
        _rounds(found),
        _growth(found),
        _diversity(found),
        _weights(found, names),
        _calibration(found),
        hardest_section(found, names),
        suspects_section(found, names),
        *([_loss_planes(found, planes)] if any(planes) else []),
        _settings(found),
    ]


def _summary(found: Sequence[Findings]) -> Section:
    return Section(
        "summary",
        "Is the ensemble better?",
        "The ensemble against its last member, which is the model at the end "
        "of training where training is over.",
        [_summary_part(f) for f in found],
    )


def _summary_part(found: Findings) -> Part:
    if found.evaluation is None:
        last = found.run.round_at(found.steps[-1])
        num = len(found.steps)
        return Part(
            found.name,
            [
                f"{num} member{'s' * (num > 1)}. The last one has a weighted "
                f"error of {last.error:.2%} on the training set.",
                *found.notes,
                "Give data that were not trained on to see whether the "
                "ensemble is better: cbnn report RUN --data test.npz, with "
                "arrays x and y.",
            ],
        )
    evaluation = found.evaluation
    rows = [
        [
            model.name,
            f"{100 * model.error:.2f}",
            f"{model.before.negative_log_likelihood:.4f}",
            f"{model.after.negative_log_likelihood:.4f}",
            f"{100 * model.before.expected_error:.2f}",
        ]
        for model in evaluation.models
    ]
    head = ["", "error, %", "NLL", "NLL, scaled", "ECE, %"]
    return Part(
        found.name,
        [_verdict(evaluation), _where(evaluation), *found.notes],
        tables=[Table(head, rows)],
    )


def _verdict(evaluation: Evaluation) -> str:
    if len(evaluation.votes) == 1:
        return "The ensemble has one member: there is nothing to compare."
    gained, lost = evaluation.gained_and_lost
    points = 100 * (gained - lost) / len(evaluation.labels)
    p_value = sign_test(gained, lost)
    counts = (
        f"it is right on {gained:,} of the samples that the {evaluation.last} "
        f"gets wrong, and wrong on {lost:,} of those that it gets right "
        f"(p = {p_value:.2g})"
    )
    if p_value >= 0.05:
        text = f"No clear difference ({points:+.2f} points of accuracy)"
    else:
        word = "better" if gained > lost else "worse"
        text = f"The ensemble is {word} by {abs(points):.2f} points"
    advice = (
        " Members from early in training may be too weak: try "
        "ensemble.select(validation_data=...), which chooses among them."
    )
    return f"{text}: {counts}.{advice * (gained <= lost)}"


def _where(evaluation: Evaluation) -> str:
    where = f"On {len(evaluation.labels):,} samples of {evaluation.data.name}"
    if evaluation.is_training:
        return (
            f"{where}, which the members were TRAINED ON: new data will give "
            "larger errors. Add data that were not trained on."
        )
    if not evaluation.is_certain:
        return f"{where}."
    return f"{where}, which the members were not trained on."


def _rounds(found: Sequence[Findings]) -> Section:
    return Section(
        "rounds",
        "Did boosting do anything?",
        "A round for each checkpoint: its weighted error e on the training "
        "set, its vote, and the normaliser Z of the new weights. With CBNN the "
        "product of the Zs bounds the exponential loss of the ensemble.",
        [_rounds_part(f) for f in found],
    )


def _rounds_part(found: Findings) -> Part:
    records, run = found.run.records(), found.run
    drawings = [page.plot(lambda ax: plots.draw_rounds(records, ax))]
    texts = []
    if run.has_bound:
        drawings.append(page.plot(lambda ax: plots.draw_bound(records, ax)))
    else:
        texts.append(
            f"The method {run.header.method!r} does not boost as "
            "CBNN does; the bound of theorem 1 does not speak of it."
        )
    head = ["step", "epoch", "e", "vote", "Z", "bound", "exp. loss"]
    rows = [
        [
            f"{r.step:,}",
            r.epoch + 1,
            f"{r.error:.4f}",
            _vote(r, found.steps),
            f"{r.normaliser:.4f}",
            f"{r.bound:.4f}" if run.has_bound else "-",
            f"{r.exponential_loss:.4f}" if run.has_bound else "-",
        ]
        for r in run.rounds
    ]
    return Part(found.name, texts, drawings, [Table(head, rows)])


def _vote(record: Round, steps: list[int]) -> str:
    if record.step in steps:
        return f"{record.vote:.3f}"
    return "left out" if record.is_member else "no member"


def _growth(found: Sequence[Findings]) -> Section:
    curves = {
        _legend(f.name, i, len(found)): (f.steps, 1 - f.evaluation.stage_errors)
        for i, f in enumerate(found, start=1)
        if f.evaluation is not None
    }
    return Section(
        "growth",
        "How many members, how long?",
        "How accurate the ensemble has become so far, and the errors of "
        "members and of ensembles of any size.",
        [_growth_part(f) for f in found],
        [
            page.plot(
                lambda ax: plots.draw_time_to_accuracy(curves, ax, unit="steps")
            )
        ]
        if curves
        else [],
    )


def _legend(name: str, number: int, num_runs: int) -> str:
    """Short enough for a legend, and still unlike the others."""
    is_long = len(name) > _LEGEND_LETTERS
    short = f"{name[: _LEGEND_LETTERS - 1]}…" if is_long else name
    return short if num_runs == 1 else f"{number}: {short}"


def _growth_part(found: Findings) -> Part:
    evaluation = found.evaluation
    if evaluation is None:
        return Part(found.name, [missing("data")])
    return Part(
        found.name,
        plots=[
            page.plot(
                lambda ax: plots.draw_errors(
                    found.steps,
                    evaluation.member_errors,
                    evaluation.stage_errors,
                    ax,
                    last=evaluation.last,
                )
            ),
            page.plot(
                lambda ax: plots.draw_size_curve(
                    evaluation.size_errors,
                    ax,
                    final_error=evaluation.member_errors[-1],
                    last=evaluation.last,
                )
            ),
        ],
    )


def _diversity(found: Sequence[Findings]) -> Section:
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


# Kinds of `plots.draw_heat_map`, with their titles.
_HEAT_MAPS = {
    "correlation": "correlation of the probabilities",
    "disagreement": "share of samples decided differently",
}


def _matrices(found: Findings) -> dict[str, np.ndarray]:
    """Those of two members each, by kind of heat map."""
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
    where = (
        "Without data: the share of training samples that just one of two "
        "members gets right."
        if found.evaluation is None
        else _where(found.evaluation)
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
    return Part(found.name, [where], drawings)


def _weights(found: Sequence[Findings], names: ClassNames) -> Section:
    return Section(
        "weights",
        "Which samples and classes got more weight?",
        "How much boosting has raised the weights of samples by the end of "
        "training; the mean is 1.",
        [_weights_part(f, names) for f in found],
    )


def _weights_part(found: Findings, names: ClassNames) -> Part:
    drawings = [
        page.plot(lambda ax: plots.draw_weight_histogram(found.weights, ax))
    ]
    by_class = found.by_class
    if by_class is None:
        return Part(found.name, [missing("training data")], drawings)
    drawings.append(
        page.plot(
            lambda ax: plots.draw_class_weights(
                by_class, ax, class_names=names.known
            )
        )
    )
    return Part(found.name, plots=drawings)


def _calibration(found: Sequence[Findings]) -> Section:
    return Section(
        "calibration",
        "How sure is it, and rightly so?",
        "The probability of the predicted class against how often that class "
        "is right. Temperature scaling is fitted on one half of the samples "
        "and judged on the other, and the other way round; likelihoods are "
        "best compared after it.",
        [_calibration_part(f) for f in found],
    )


def _calibration_part(found: Findings) -> Part:
    evaluation = found.evaluation
    if evaluation is None:
        return Part(found.name, [missing("data")])
    ensemble = evaluation.models[-1]
    head = ["", "", "NLL", "ECE, %", "Brier", "T"]
    rows = [
        [
            model.name,
            when,
            f"{quality.negative_log_likelihood:.4f}",
            f"{100 * quality.expected_error:.2f}",
            f"{quality.brier:.4f}",
            temperature,
        ]
        for model in evaluation.models
        for when, quality, temperature in (
            ("as it is", model.before, "1"),
            ("scaled", model.after, f"{model.temperature:.3f}"),
        )
    ]
    drawing = page.plot(
        lambda ax: plots.draw_reliability(
            ensemble.before,
            ax,
            after=ensemble.after,
            temperature=ensemble.temperature,
        )
    )
    texts = [_where(evaluation)]
    if len(evaluation.labels) < _FEW_SAMPLES:
        texts.append(
            f"With less than {_FEW_SAMPLES:,} samples temperatures and bins "
            "are rough, and scaling may do harm."
        )
    return Part(found.name, texts, [drawing], [Table(head, rows)])


def _loss_planes(
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


def _settings(found: Sequence[Findings]) -> Section:
    return Section(
        "settings",
        "Settings and versions",
        "",
        [_settings_part(f) for f in found],
    )


def _settings_part(found: Findings) -> Part:
    header = found.run.header
    shown = {
        "run": found.place,
        "method": header.method,
        **header.settings.to_json(),
        "members": len(found.steps),
        "trained with cbnn-keras": header.package_version,
        "report by cbnn-keras": __version__,
        "Keras": keras.__version__,
        "TensorFlow": tf.__version__,
        "NumPy": np.__version__,
        "Python": platform.python_version(),
    }
    rows = [[name.replace("_", " "), value] for name, value in shown.items()]
    return Part(
        found.name, tables=[Table(["setting", "value"], rows, "settings")]
    )
