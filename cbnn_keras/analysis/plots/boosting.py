"""Plots of what boosting does: votes, bound and sample weights."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from cbnn_keras.analysis.class_weights import ClassWeights
from cbnn_keras.analysis.plots import palette
from cbnn_keras.analysis.plots.palette import MAIN, OTHER
from cbnn_keras.boosting import Floats
from cbnn_keras.schedules import FIT_ERROR

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_rounds(rounds: Sequence[Mapping[str, Any]], ax: "Axes") -> str:
    """Vote of each round's checkpoint, its weighted error written above.

    Args:
        rounds: Records of rounds, such as `callback.history`, with `step`,
            `error`, `vote` and `is_member`.
        ax: Axes to draw on.

    Returns:
        The caption.
    """
    votes, errors = palette.columns("draw_rounds", rounds, "vote", "error")
    steps = [record["step"] for record in rounds]
    is_member = np.array([record["is_member"] for record in rounds], dtype=bool)
    positions = np.arange(len(rounds))
    palette.style(ax, grid="y")
    ax.bar(positions, votes, color=palette.BLUE)
    left = positions[~is_member]
    ax.scatter(
        left,
        np.zeros(len(left)),
        color=palette.VERMILLION,
        marker="X",
        clip_on=False,
        zorder=3,
    )
    _write_above(ax, positions, votes, errors)
    _name_rounds(ax, steps)
    ax.set_ylabel("vote (above: weighted error in %)")
    return _rounds_caption(steps, votes, errors, is_member)


def _write_above(
    ax: "Axes", positions: np.ndarray, votes: Floats, errors: Floats
) -> None:
    """Percentages upright over many bars; over too many of them, none."""
    is_upright = len(votes) > 9
    top = max(float(votes.max()), 1e-9)
    ax.set_ylim(0, top * (1.22 if is_upright else 1.1))
    if len(votes) > 45:
        return
    size = 8 if len(votes) <= 7 else 7 if len(votes) <= 30 else 5.5
    for position, vote, error in zip(positions, votes, errors, strict=True):
        ax.annotate(
            f"{100 * error:.1f}",
            xy=(position, vote),
            xytext=(0, 7 if vote == 0 else 2),
            textcoords="offset points",
            color=palette.INK,
            size=size,
            ha="center",
            va="bottom",
            rotation=90 if is_upright else 0,
        )


def _name_rounds(ax: "Axes", steps: Sequence[int]) -> None:
    shown = palette.thinned(len(steps), 7)
    names = [palette.number(steps[i]) for i in shown]
    ax.set_xticks(shown, names)
    if sum(map(len, names)) > 45:
        ax.tick_params(axis="x", labelrotation=30)
    ax.set_xlabel("step")


def _rounds_caption(
    steps: Sequence[int], votes: Floats, errors: Floats, is_member: np.ndarray
) -> str:
    members = np.flatnonzero(is_member)
    num_left = len(steps) - len(members)
    left = (
        f" {num_left} of {len(steps)} checkpoints stayed out of the ensemble, "
        "no better than chance (crosses)."
    )
    text = "There is no member."
    if len(members):
        high = members[votes[members].argmax()]
        low = members[votes[members].argmin()]
        text = (
            f"The vote is largest at step {palette.number(steps[high])} "
            f"({votes[high]:.2f}, weighted error {100 * errors[high]:.1f}%) "
            f"and smallest at step {palette.number(steps[low])} "
            f"({votes[low]:.2f}, {100 * errors[low]:.1f}%)."
        )
        if len(members) == 1:
            text = (
                f"The one member has a vote of {votes[high]:.2f} (weighted "
                f"error {100 * errors[high]:.1f}%)."
            )
        elif votes[high] == votes[low]:
            text = f"All votes are the same ({votes[high]:.2f})."
    return text + (left if num_left else "")


def draw_training_errors(
    steps: Sequence[int], errors: Sequence[float], ax: "Axes"
) -> str:
    """Training error at each checkpoint, and where a set counts as fit.

    Args:
        steps: The steps with a checkpoint.
        errors: The share of the training set that is wrong at each.
        ax: Axes to draw on.

    Returns:
        The caption.
    """
    percents = 100 * np.asarray(errors)
    palette.style(ax)
    ax.plot(steps, percents, **MAIN.options)
    ax.axhline(100 * FIT_ERROR, label="counts as fit", **palette.HINT)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("step")
    ax.set_ylabel("training error in %")
    palette.add_legend(ax)
    return (
        f"The training error goes from {percents[0]:.1f}% at step "
        f"{steps[0]:,} to {percents[-1]:.1f}% in the end."
    )


def draw_bound(rounds: Sequence[Mapping[str, Any]], ax: "Axes") -> str:
    """The exponential loss and its bound of theorem 1, round after round.

    Args:
        rounds: Records of rounds with `bound`, `exponential_loss` and
            `within_budget`.
        ax: Axes to draw on.

    Returns:
        The caption.
    """
    bounds, losses = palette.columns(
        "draw_bound", rounds, "bound", "exponential_loss"
    )
    numbers = np.arange(1, len(rounds) + 1)
    is_beyond = np.array([not record["within_budget"] for record in rounds])
    palette.style(ax)
    ax.plot(numbers, bounds, label="bound (product of Z)", **OTHER.options)
    ax.plot(numbers, losses, label="exponential loss", **MAIN.options)
    if is_beyond.any():
        start = numbers[is_beyond.argmax()]
        ax.axvline(start, label="votes reach 1/η", **palette.HINT)
    palette.use_whole_numbers(ax)
    ax.set_xlabel("round")
    ax.set_ylabel("loss")
    palette.add_legend(ax)
    return _bound_caption(bounds, losses, is_beyond)


def _bound_caption(
    bounds: Floats, losses: Floats, is_beyond: np.ndarray
) -> str:
    # Sums over samples are rounded: a loss that meets its bound is not above.
    is_above = losses > bounds * (1 + 1e-9)
    start = is_beyond.argmax() + 1
    where = "at most its bound throughout"
    if is_above.any():
        where = f"above its bound in {is_above.sum()} of {len(bounds)} rounds"
    holds = "but the bound does not hold" if is_above.any() else "and it holds"
    promise = f"The votes sum to less than 1/η, as theorem 1 asks for, {holds}."
    if is_beyond.any():
        promise = (
            f"The votes reach 1/η in round {start}: from there on theorem 1 "
            "promises nothing."
        )
    return (
        f"The exponential loss is {where}, in the end {losses[-1]:.3f} with a "
        f"bound of {bounds[-1]:.3f}. {promise}"
    )


def draw_class_weights(
    found: ClassWeights,
    ax: "Axes",
    *,
    class_names: Sequence[str] | None = None,
) -> str:
    """Average weight of each class: figure 2(b) of the paper.

    Args:
        found: What `weights_by_class` gives. Classes without samples are left
            out.
        ax: Axes to draw on.
        class_names: A name for each class, written if there are 20 at most.
            Defaults to None: 0, 1, ...

    Returns:
        The caption.
    """
    count = len(found.mean)
    names = palette.names_of(class_names, count, start=0)
    palette.check(
        len(names) == count,
        f"draw_class_weights has {len(names)} class_names for {count} classes.",
    )
    other = "other class" if found.is_minority.any() else "class"
    groups = (
        (~found.is_minority, other, OTHER, found.majority_mean),
        (found.is_minority, "minority class", MAIN, found.minority_mean),
    )
    palette.style(ax, grid="y")
    for is_in, name, series, mean in groups:
        chosen = np.flatnonzero(is_in & (found.count > 0))
        if chosen.size:
            where = chosen, found.mean[chosen]
            mark = "^" if series is MAIN else series.marker
            ax.scatter(*where, s=18, c=series.color, marker=mark, label=name)
            line = "--" if series is OTHER else "-."
            label = f"mean {mean:.2f}"
            ax.axhline(mean, color=series.color, linestyle=line, label=label)
    _name_classes(ax, names if class_names is not None else None, count)
    ax.set_ylabel("average weight")
    palette.add_legend(ax)
    return _class_weights_caption(found, names)


def _name_classes(ax: "Axes", names: Sequence[str] | None, count: int) -> None:
    ax.set_xlabel("class")
    palette.use_whole_numbers(ax)
    if names is not None and count <= 20:
        ax.set_xticks(range(count), [_shortened(name) for name in names])
        if max(map(len, names)) * count > 50:
            ax.tick_params(axis="x", labelrotation=90)


def _shortened(name: str, largest: int = 14) -> str:
    return name if len(name) <= largest else f"{name[: largest - 1]}…"


def _class_weights_caption(found: ClassWeights, names: Sequence[str]) -> str:
    minority, majority = found.minority_mean, found.majority_mean
    if np.isfinite(minority):
        num = int((found.is_minority & (found.count > 0)).sum())
        rest = int((~found.is_minority).sum())
        return (
            f"Samples of minority classes ({num}) weigh {minority:.2f} on "
            f"average, those of the others ({rest}) {majority:.2f}: "
            f"{minority / majority:.2f} times as much. The mean over all "
            "samples is 1."
        )
    if np.nanmax(found.mean) - np.nanmin(found.mean) < 1e-6:
        return "The samples of all classes weigh the same on average."
    high = int(np.nanargmax(found.mean))
    low = int(np.nanargmin(found.mean))
    return (
        "No class is much smaller than the others. Class "
        f"{names[high]} weighs most ({found.mean[high]:.3f} on average), class "
        f"{names[low]} least ({found.mean[low]:.3f})."
    )


def draw_weight_histogram(
    weights: ArrayLike, ax: "Axes", *, num_bins: int = 30
) -> str:
    """How many samples have which weight, n * omega.

    Args:
        weights: omega, or any multiple of it, shape `(num_samples,)`.
        ax: Axes to draw on.
        num_bins: Number of bins, all of one width. Defaults to 30.

    Returns:
        The caption.
    """
    (values,) = palette.vectors("draw_weight_histogram", weights=weights)
    palette.check(
        bool((values >= 0).all() and 0 < values.sum() < np.inf),
        "draw_weight_histogram takes finite weights of at least 0, not all of "
        "them 0.",
    )
    values = values / values.mean()
    palette.style(ax, grid="y")
    is_flat = np.ptp(values) < 1e-9  # but for rounding
    edges = np.histogram_bin_edges(np.round(values, 9), num_bins)
    ax.hist(np.round(values, 9), edges, color=palette.BLUE)  # type: ignore[arg-type]
    ax.axvline(1, label="mean", color=MAIN.color, linestyle="--")
    ax.set_xlabel("weight of a sample, relative to the mean")
    ax.set_ylabel("samples")
    ax.yaxis.set_major_formatter(palette.number)
    palette.add_legend(ax)
    if is_flat:
        return "All samples weigh the same."
    heaviest = np.sort(values)[::-1][: math.ceil(len(values) / 10)]
    return (
        f"Samples weigh between {values.min():.3f} and {values.max():.3f} "
        f"times the mean, half of them at most {np.median(values):.3f}. The "
        f"heaviest tenth has {100 * heaviest.sum() / len(values):.0f}% of the "
        "weight."
    )
