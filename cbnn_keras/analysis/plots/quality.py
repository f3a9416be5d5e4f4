"""Plots of how good members and ensemble are."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from cbnn_keras.analysis.calibration import Calibration
from cbnn_keras.analysis.performance import time_to_accuracy
from cbnn_keras.analysis.plots import palette
from cbnn_keras.analysis.plots.palette import MAIN, OTHER
from cbnn_keras.boosting import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_errors(
    steps: ArrayLike,
    member_errors: ArrayLike,
    stage_errors: ArrayLike,
    ax: "Axes",
    *,
    title: str | None = None,
    unit: str = "steps",
    last: str = "final model",
) -> str:
    """Error of each member, and of the ensemble up to it.

    Args:
        steps: When the members were taken, shape `(num_members,)`.
        member_errors: Error of each member by itself, shape `(num_members,)`.
        stage_errors: Error of the first member, the first two, ..., all of
            them, shape `(num_members,)`.
        ax: Axes to draw on.
        title: What is written above the axes. Defaults to None.
        unit: What `steps` are counted in. Defaults to `"steps"`.
        last: What the last member is. Defaults to `"final model"`.

    Returns:
        The caption.
    """
    times, members, stages = palette.vectors(
        "draw_errors",
        steps=steps,
        member_errors=member_errors,
        stage_errors=stage_errors,
    )
    palette.style(ax)
    ax.plot(times, 100 * members, label="each member", **OTHER.options)
    ax.plot(times, 100 * stages, label="ensemble up to it", **MAIN.options)
    palette.use_times(ax, times.max())
    ax.set_xlabel(unit)
    ax.set_ylabel("error in %")
    palette.add_legend(ax, title=title)
    final, whole = 100 * members[-1], 100 * stages[-1]
    if len(times) == 1:
        return f"The one member errs on {final:.2f}% of the samples."
    return (
        f"The {last} errs on {final:.2f}% of the samples, the ensemble of "
        f"{_all(len(times))} on {whole:.2f}%: "
        f"{_comparison(final, whole, last)}."
    )


def _all(count: int) -> str:
    return f"all {count} members" if count > 2 else "both members"


def _comparison(final: float, whole: float, last: str) -> str:
    # The difference of what is written, or the sentence would seem wrong.
    gain = round(round(final, 2) - round(whole, 2), 2)
    if not gain:
        return "neither is better"
    better = "the ensemble" if gain > 0 else f"the {last}"
    return f"{better} is better by {abs(gain):.2f} points"


def draw_size_curve(
    errors: ArrayLike,
    ax: "Axes",
    *,
    final_error: float | None = None,
    last: str = "final model",
) -> str:
    """Error of ensembles of 1, 2, ..., all members.

    Args:
        errors: What `size_errors` gives, shape `(num_members,)`.
        ax: Axes to draw on.
        final_error: Error of the last member, drawn as a line. Defaults to
            None: no line.
        last: What that member is. Defaults to `"final model"`.

    Returns:
        The caption.
    """
    (values,) = palette.vectors("draw_size_curve", errors=errors)
    sizes = np.arange(1, len(values) + 1)
    best = int(values.argmin())
    palette.style(ax)
    ax.plot(sizes, 100 * values, label="ensemble", **MAIN.options)
    ax.scatter(
        sizes[best],
        100 * values[best],
        s=80,
        facecolors="none",
        edgecolors=palette.GREEN,
        linewidths=1.5,
        label="best",
    )
    text = ""
    if final_error is not None:
        text = f"; the {last} alone errs on {100 * final_error:.2f}%"
        line = {"color": OTHER.color, "linestyle": OTHER.linestyle}
        ax.axhline(100 * final_error, label=last, **line)
    palette.use_whole_numbers(ax)
    ax.set_xlabel("number of members")
    ax.set_ylabel("error in %")
    palette.add_legend(ax, columns=3)
    least = f"{100 * values[best]:.2f}% of the samples"
    if len(values) == 1:
        return f"The one member errs on {least}."
    if best + 1 == len(values):
        return f"The ensemble of {_all(best + 1)} errs least, on {least}{text}."
    return (
        f"{best + 1} of {len(values)} members err{'s' * (best == 0)} least, on "
        f"{least}, and "
        f"{_all(len(values))} on {100 * values[-1]:.2f}%{text}."
    )


def draw_reliability(
    before: Calibration,
    ax: "Axes",
    *,
    after: Calibration | None = None,
    temperature: float | Sequence[float] | None = None,
    share: float = 0.0,
) -> str:
    """Accuracy against confidence, bin by bin: on the diagonal is right.

    Args:
        before: Calibration of the probabilities as they are. Empty bins are
            left out.
        ax: Axes to draw on.
        after: Calibration of the scaled probabilities. Defaults to None: it is
            not drawn.
        temperature: What they were scaled by, for the caption; the mean of
            several. Defaults to None: not known.
        share: The share that they got, too, see `calibration.scale`.

    Returns:
        The caption.
    """
    from matplotlib.lines import Line2D

    palette.style(ax)
    ax.plot([0, 1], [0, 1], **palette.HINT)
    handles = []
    drawn = ((before, OTHER, "as is"), (after, MAIN, "scaled"))
    for found, series, name in drawn:
        if found is not None:
            _draw_bins(ax, found, series)
            label = f"{name}, ECE {100 * found.expected_error:.1f}%"
            handles.append(Line2D([], [], label=label, **series.options))
    ax.set(
        xlim=(0, 1.03), ylim=(0, 1.03), xlabel="confidence", ylabel="accuracy"
    )
    palette.add_legend(ax, handles=handles)
    text = ""
    if after is not None:
        how = (
            ""
            if temperature is None
            else f" (temperature {np.mean(temperature):.2f}"
            f"{f' and share {share:.3f}' if share else ''})"
        )
        text = f", and {100 * after.expected_error:.1f}% after scaling{how}"
    return (
        f"The expected calibration error is {100 * before.expected_error:.1f}%"
        f"{text}. As they are, predictions are {_confidence(before)}; the "
        "larger a point, the more samples."
    )


def _draw_bins(ax: "Axes", found: Calibration, series: palette.Series) -> None:
    full = found.count > 0
    where = found.confidence[full], found.accuracy[full]
    sizes = 8 + 72 * found.count[full] / found.count.max()
    line = {"color": series.color, "linestyle": series.linestyle}
    ax.plot(*where, linewidth=0.7, **line)
    ax.scatter(*where, s=sizes, c=series.color, marker=series.marker, zorder=3)


def _confidence(found: Calibration) -> str:
    full = found.count > 0
    shares = found.count[full] / found.count.sum()
    confidence = float(shares @ found.confidence[full])
    accuracy = float(shares @ found.accuracy[full])
    numbers = f"(mean confidence {confidence:.3f}, accuracy {accuracy:.3f})"
    if abs(confidence - accuracy) < 0.0005:
        return f"neither over- nor underconfident {numbers}"
    kind = "over" if confidence > accuracy else "under"
    return f"{kind}confident {numbers}"


def draw_time_to_accuracy(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    ax: "Axes",
    *,
    unit: str = "epochs",
    targets: ArrayLike | None = None,
) -> str:
    """The best accuracy so far of one method or several.

    Args:
        curves: Times, in increasing order, and accuracies, by name.
        ax: Axes to draw on.
        unit: What times are counted in. Defaults to `"epochs"`.
        targets: Accuracies to mark by lines. Defaults to None: none.

    Returns:
        The caption.
    """
    palette.check(bool(curves), "draw_time_to_accuracy needs a curve at least.")
    palette.style(ax)
    bests = {}
    for number, (name, (times, accuracies)) in enumerate(curves.items()):
        owner = f"draw_time_to_accuracy of {name!r}"
        x, y = palette.vectors(owner, times=times, accuracies=accuracies)
        bests[name] = x, np.maximum.accumulate(y)
        options = palette.SERIES[number % len(palette.SERIES)].options
        options["markevery"] = max(1, len(x) // 8)
        y = 100 * bests[name][1]
        # Names that begin with _ are left out of legends.
        label = f"\u200b{name}" if name.startswith("_") else name
        ax.plot(x, y, drawstyle="steps-post", label=label, **options)
    for target in np.atleast_1d([] if targets is None else targets):
        ax.axhline(100 * target, **palette.HINT)
    palette.use_times(ax, max(times[-1] for times, _ in bests.values()))
    ax.set_xlabel(unit)
    ax.set_ylabel("best accuracy so far in %")
    # Beside each other only where names are short.
    room = 36 // max(map(len, bests))
    palette.add_legend(ax, columns=max(1, min(len(bests), 3, room)))
    return _time_caption(bests, unit)


def _time_caption(bests: Mapping[str, tuple[Floats, Floats]], unit: str) -> str:
    common = min(best[-1] for _, best in bests.values())
    reached = {
        name: float(time_to_accuracy(times, best, [common])[0])
        for name, (times, best) in bests.items()
    }
    soonest = min(reached.values())
    first = [name for name, time in reached.items() if time == soonest]
    when = f"after {palette.number(soonest)} {unit}"
    if len(reached) == 1:
        return f"{first[0]} reaches its best, {100 * common:.2f}%, {when}."
    later = ", ".join(
        f"{name} {palette.number(time)}"
        for name, time in sorted(reached.items(), key=lambda item: item[1])
        if time > soonest
    )
    return (
        f"{' and '.join(first)} {'is' if len(first) == 1 else 'are'} the first "
        f"to reach {100 * common:.2f}%, an accuracy that all of them get to, "
        f"{when}{f' ({later})' if later else ''}."
    )
