"""Sections of a report on what boosting did: votes, bound and weights."""

from collections.abc import Sequence

import numpy as np

from cbnn_keras.analysis import plots
from cbnn_keras.analysis.findings import Findings
from cbnn_keras.analysis.report import page
from cbnn_keras.analysis.report.page import Part, Section, Table, missing
from cbnn_keras.analysis.report.sample_sections import ClassNames
from cbnn_keras.runs.advice import restart_advice
from cbnn_keras.runs.manifest import Round

_HARDLY = 1.05  # below such a ratio of two weights


def rounds_section(found: Sequence[Findings]) -> Section:
    return Section(
        "rounds",
        "Did boosting do anything?",
        "A round for each checkpoint: its weighted error e on the training "
        "set, its vote, and the normaliser Z of the new weights. With CBNN the "
        "product of the Zs bounds the exponential loss of the ensemble.",
        [_rounds_part(f) for f in found],
    )


def budget_sections(found: Sequence[Findings]) -> list[Section]:
    """One section, or none if it has nothing to say of any run."""
    advice = [restart_advice(f.run) for f in found]
    section = Section(
        "budget",
        "Was the budget well spent?",
        "What is left of a run after the model has fit its training set is "
        "better spent on members that start anew (restarts=...): they differ "
        "more than the checkpoints of one trajectory do.",
        [_budget_part(f, a) for f, a in zip(found, advice, strict=True)],
    )
    return [section] if any(advice) else []


def _budget_part(found: Findings, advice: str | None) -> Part:
    if advice is None and not found.run.is_finished:
        return Part(found.name, ["The run is not finished."])
    if advice is None:
        method = found.run.header.method
        return Part(found.name, [f"The method {method!r} has no restarts."])
    steps = [record.step for record in found.run.rounds]
    errors = found.run.training_errors(steps)
    drawing = page.plot(
        lambda ax: plots.draw_training_errors(steps, errors, ax)
    )
    return Part(found.name, [advice], [drawing])


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
            _vote(r, found),
            f"{r.normaliser:.4f}",
            f"{r.bound:.4f}" if run.has_bound else "-",
            f"{r.exponential_loss:.4f}" if run.has_bound else "-",
        ]
        for r in run.rounds
    ]
    return Part(found.name, texts, drawings, [Table(head, rows)])


def _vote(record: Round, found: Findings) -> str:
    if record.step in found.steps:
        return f"{found.run.vote(record.step):.3f}"
    return "left out" if record.is_member else "no member"


def weights_section(found: Sequence[Findings], names: ClassNames) -> Section:
    return Section(
        "weights",
        "Which samples and classes got more weight?",
        "How much boosting has raised the weights of samples by the end of "
        "training; the mean is 1.",
        [_weights_part(f, names) for f in found],
    )


def _weights_part(found: Findings, names: ClassNames) -> Part:
    texts = [_how_far(found.weights)]
    if found.weights.min() == found.weights.max():  # nothing to be seen
        return Part(found.name, texts)
    drawings = [
        page.plot(lambda ax: plots.draw_weight_histogram(found.weights, ax))
    ]
    by_class = found.by_class
    if by_class is None:
        return Part(found.name, [*texts, missing("training data")], drawings)
    drawings.append(
        page.plot(
            lambda ax: plots.draw_class_weights(
                by_class, ax, class_names=names.known
            )
        )
    )
    return Part(found.name, texts, drawings)


def _how_far(weights: np.ndarray) -> str:
    """Whether boosting has moved the weights, in a sentence."""
    low, high = float(weights.min()), float(weights.max())
    if low == high:
        return (
            "No weight was raised: boosting is asked for (`largest_ratio=`), "
            "and finds nothing to raise where no checkpoint is wrong."
        )
    word = "hardly " if high < _HARDLY * low else ""
    return (
        f"Boosting has {word}moved the weights: from {low:.3f} to {high:.3f}."
    )
