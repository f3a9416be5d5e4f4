"""Sections of a report on how good members and ensemble are."""

from collections.abc import Sequence

from cbnn_keras.analysis import plots
from cbnn_keras.analysis.evaluation import Evaluation
from cbnn_keras.analysis.findings import Findings
from cbnn_keras.analysis.performance import sign_test
from cbnn_keras.analysis.report import page
from cbnn_keras.analysis.report.page import Part, Section, Table, missing
from cbnn_keras.calibration import Scaling

_LEGEND_LETTERS = 24  # of the name of a run
_FEW_SAMPLES = 1_000  # for a temperature


def summary_section(found: Sequence[Findings]) -> Section:
    return Section(
        "summary",
        "Is the ensemble better?",
        "The ensemble against its last member, which is the model at the end "
        "of training where training is over (the average of its last steps, "
        "where members are averages).",
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
    if evaluation.calibrated is not None:
        rows.append(
            [
                "ensemble, calibrated",
                rows[-1][1],
                f"{evaluation.calibrated.negative_log_likelihood:.4f}",
                "",
                f"{100 * evaluation.calibrated.expected_error:.2f}",
            ]
        )
    head = ["", "error, %", "NLL", "NLL, scaled", "ECE, %"]
    return Part(
        found.name,
        [
            verdict(evaluation),
            *likelihood_verdicts(evaluation),
            where(evaluation),
            *found.notes,
        ],
        tables=[Table(head, rows)],
    )


def verdict(evaluation: Evaluation) -> str:
    """Whether the ensemble is better than the last member, and how surely."""
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


def likelihood_verdicts(evaluation: Evaluation) -> list[str]:
    """Whether the labels have become more likely; nothing of one member."""
    if len(evaluation.votes) == 1:
        return []
    last, *_, ensemble = evaluation.models
    before, after = (
        [getattr(model, when) for model in (last, ensemble)]
        for when in ("before", "after")
    )
    gain, error = evaluation.likelihood_gain
    if abs(gain) <= 2 * error:
        text = "Its likelihood is not clearly different"
    else:
        text = f"Its likelihood is {'better' if gain > 0 else 'WORSE'}"
    old, new = (c.negative_log_likelihood for c in before)
    old_scaled, new_scaled = (c.negative_log_likelihood for c in after)
    old_ece, new_ece = (100 * c.expected_error for c in before)
    return [
        f"{text}: NLL {old:.4f} -> {new:.4f} (after temperature scaling "
        f"{old_scaled:.4f} -> {new_scaled:.4f}); calibration error (ECE) "
        f"{old_ece:.2f}% -> {new_ece:.2f}%."
    ]


def where(evaluation: Evaluation) -> str:
    """Which data the numbers are about, in a sentence."""
    where = f"On {len(evaluation.labels):,} samples of {evaluation.data.name}"
    if evaluation.is_training:
        return (
            f"{where}, which the members were TRAINED ON: new data will give "
            "larger errors. Add data that were not trained on."
        )
    if not evaluation.is_certain:
        return f"{where}."
    return f"{where}, which the members were not trained on."


def growth_section(found: Sequence[Findings]) -> Section:
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
        [
            "A number of members that looks best on these data was chosen on "
            "them: confirm it on others before you rely on it."
        ],
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


def calibration_section(found: Sequence[Findings]) -> Section:
    return Section(
        "calibration",
        "How sure is it, and rightly so?",
        "The probability of the predicted class against how often that class "
        "is right. Temperature scaling is fitted on one half of the samples "
        "and judged on the other, and the other way round; likelihoods are "
        "best compared after it.",
        [_calibration_part(f) for f in found],
    )


def calibration_verdicts(evaluation: Evaluation) -> list[str]:
    """What the calibration that the run keeps does to these data."""
    record, after = evaluation.calibration, evaluation.calibrated
    if record is None or after is None:
        return []
    before = evaluation.models[-1].before
    texts = [
        f"The ensemble is calibrated, with {record.scaling} from "
        f"{record.num_samples:,} samples: here the calibration error (ECE) "
        f"goes from {100 * before.expected_error:.2f}% to "
        f"{100 * after.expected_error:.2f}%, the NLL from "
        f"{before.negative_log_likelihood:.4f} to "
        f"{after.negative_log_likelihood:.4f}."
    ]
    if evaluation.sets is not None:
        sets = evaluation.sets
        texts.append(
            f"Sets of coverage {record.coverage:.0%}: here the label is in "
            f"{sets.coverage:.1%} of them. They have {sets.size:.2f} classes "
            f"on average, and {sets.empty:.1%} of them have none."
        )
    return texts


def _calibration_part(found: Findings) -> Part:
    evaluation = found.evaluation
    if evaluation is None:
        return Part(found.name, [missing("data")])
    ensemble = evaluation.models[-1]
    head = ["", "", "NLL", "ECE, %", "Brier", "T"]
    record, calibrated = evaluation.calibration, evaluation.calibrated
    lines = [
        (model.name, *line)
        for model in evaluation.models
        for line in (
            ("as it is", model.before, "1"),
            ("scaled", model.after, f"{model.temperature:.3f}"),
        )
    ]
    after, scaling = ensemble.after, Scaling(ensemble.temperature)
    if record is not None and calibrated is not None:
        after, scaling = calibrated, record.scaling
        lines.append((ensemble.name, "calibrated", calibrated, _shown(scaling)))
    rows = [
        [
            name,
            when,
            f"{quality.negative_log_likelihood:.4f}",
            f"{100 * quality.expected_error:.2f}",
            f"{quality.brier:.4f}",
            shown,
        ]
        for name, when, quality, shown in lines
    ]
    drawing = page.plot(
        lambda ax: plots.draw_reliability(
            ensemble.before,
            ax,
            after=after,
            temperature=scaling.temperature,
            share=scaling.share,
        )
    )
    texts = [where(evaluation), *calibration_verdicts(evaluation)]
    if len(evaluation.labels) < _FEW_SAMPLES:
        texts.append(
            f"With less than {_FEW_SAMPLES:,} samples temperatures and bins "
            "are rough, and scaling may do harm."
        )
    return Part(found.name, texts, [drawing], [Table(head, rows)])


def _shown(scaling: Scaling) -> str:
    """The temperature, and the share if there is one, in a table."""
    share = f", share {scaling.share:.3f}" if scaling.share else ""
    return f"{scaling.temperature:.3f}{share}"
