"""Plots whose colours are numbers: pairs of members, and the loss plane."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from cbnn_keras.analysis.diversity import mean_of_pairs
from cbnn_keras.analysis.plots import palette
from cbnn_keras.boosting import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable

    from cbnn_keras.analysis.loss_plane import LossPlane

_MOST_CELLS = 10  # members whose numbers can be read at 4.4 inches
_KINDS = {
    # Which of the values says "most different", and what is to be wished for.
    "correlation": (np.argmin, "The lower"),
    "disagreement": (np.argmax, "The higher"),
}


def draw_heat_map(
    matrix: ArrayLike,
    ax: "Axes",
    *,
    labels: Sequence[object] | None = None,
    kind: str = "correlation",
    limits: tuple[float, float] | None = None,
    title: str | None = None,
) -> str:
    """How different any two members are: figure 2(a) of the paper.

    The numbers are in the cells of up to 10 members, and beside a colour bar
    if there are more.

    Args:
        matrix: What `pairwise_correlation` or `pairwise_disagreement` gives,
            shape `(num_members, num_members)`.
        ax: Axes to draw on.
        labels: Names of the members. Defaults to None: 1, 2, ...
        kind: `"correlation"` or `"disagreement"`. Defaults to the former.
        limits: Values that get the ends of the colours, the same ones in plots
            to be compared. Defaults to None: the smallest and the largest of
            two different members.
        title: What is written above the axes. Defaults to None.

    Returns:
        The caption.
    """
    values = np.asarray(matrix, dtype=np.float64)
    names = palette.names_of(labels, len(values))
    palette.check(
        values.ndim == 2 and values.shape == (len(names),) * 2,
        "draw_heat_map takes a square matrix and a label for each of its rows, "
        f"not the shape {values.shape} and {len(names)} labels.",
    )
    palette.check(
        kind in _KINDS,
        f"draw_heat_map(kind={kind!r}): kind must be one of "
        f"{', '.join(map(repr, _KINDS))}.",
    )
    low, high = limits if limits is not None else common_limits(values)
    palette.style(ax, grid=None)
    ax.spines[:].set_visible(False)
    image = ax.imshow(values, palette.COLOUR_MAP, vmin=low, vmax=high)
    _name_cells(ax, names)
    if len(names) > _MOST_CELLS:
        palette.add_colour_bar(ax, image, kind)
    else:
        _write_numbers(ax, values, image)
    palette.add_title(ax, title)
    return _heat_map_caption(values, names, kind)


def _write_numbers(ax: "Axes", values: Floats, image: "ScalarMappable") -> None:
    digits, is_narrow = _digits(values), len(values) > 6
    size = 9 if not is_narrow else 7 if digits == 2 else 6
    for (row, column), value in np.ndenumerate(values):
        ink = palette.cell_ink(image.to_rgba(np.array([value]))[0])
        text = f"{value:.{digits}f}"
        if is_narrow:
            text = "1" if value == 1 else text.replace("0.", ".", 1)
        ax.text(
            column, row, text, color=ink, size=size, ha="center", va="center"
        )


def common_limits(*matrices: Floats) -> tuple[float, float]:
    """Limits for colours that mean the same in several heat maps.

    They are the range of what is off the diagonals.
    """
    others = np.concatenate([np.zeros(0), *map(_off_diagonal, matrices)])
    if not others.size:
        return 0.0, 1.0
    low, high = float(others.min()), float(others.max())
    return (low, high) if low < high else (low - 0.01, high + 0.01)


def _off_diagonal(values: Floats) -> Floats:
    return values[~np.eye(len(values), dtype=bool)]


def _digits(values: Floats) -> int:
    """A third digit for members that are nearly the same."""
    others = _off_diagonal(values)
    return 3 if others.size > 2 and np.ptp(others) < 0.05 else 2


def _name_cells(ax: "Axes", names: Sequence[str]) -> None:
    shown = palette.thinned(len(names), _MOST_CELLS)
    chosen = [names[i] for i in shown]
    is_wide = len(chosen) > 5 and max(map(len, chosen)) > 3
    ax.set_xticks(shown, chosen, rotation=90 if is_wide else 0)
    ax.set_yticks(shown, chosen)
    ax.tick_params(length=0)
    ax.set_xlabel("member")
    ax.set_ylabel("member")


def _heat_map_caption(values: Floats, names: Sequence[str], kind: str) -> str:
    rows, columns = np.triu_indices(len(values), 1)
    if not rows.size:
        return "There is one member only, and no other to compare it with."
    pairs = values[rows, columns]
    extreme, wish = _KINDS[kind]
    if kind == "disagreement" and not pairs.any():
        return "All members predict the same: an average gains nothing."
    found = extreme(pairs)
    digits = _digits(values)
    return (
        f"Members {names[rows[found]]} and {names[columns[found]]} are the "
        f"most different ({kind} {pairs[found]:.{digits}f}); the mean over all "
        f"pairs is {mean_of_pairs(values):.{digits}f}. {wish}, the more an "
        "average of them can gain."
    )


def draw_loss_plane(
    plane: "LossPlane", panel: int, ax: "Axes", *, levels: int = 12
) -> str:
    """The loss around p1, p2, p3 at one of their rounds: figure 1.

    Args:
        plane: What `loss_plane` gives.
        panel: Which member's round the sample weights are of: 0, 1 or 2.
        ax: Axes to draw on.
        levels: Number of colours, at equal ratios of the loss and the same in
            all panels. Defaults to 12.

    Returns:
        The caption.
    """
    from matplotlib.colors import BoundaryNorm

    palette.check(
        panel in range(3),
        f"draw_loss_plane(panel={panel!r}): panel must be 0, 1 or 2.",
    )
    palette.check(
        plane.losses.shape == (3, len(plane.y), len(plane.x)),
        f"draw_loss_plane takes losses of shape (3, {len(plane.y)}, "
        f"{len(plane.x)}), as y and x are, not {plane.losses.shape}.",
    )
    bounds = _levels(plane.losses, levels)
    norm = BoundaryNorm(bounds, 256)
    # Where outputs are NaN, the loss is as bad as it gets.
    losses = np.nan_to_num(plane.losses[panel], nan=np.inf).clip(max=bounds[-1])
    palette.style(ax, grid=None)
    drawn = ax.contourf(
        plane.x, plane.y, losses, bounds, cmap=palette.COLOUR_MAP, norm=norm
    )
    # Or the page shines through between two colours.
    drawn.set(edgecolor="face", linewidth=0.3)
    _mark_points(ax, plane.points)
    # Three members that are nearly on a line would be a thin strip.
    ratio = np.ptp(plane.y) / np.ptp(plane.x)
    ax.set_aspect("equal" if 1 / 3 < ratio < 3 else "auto")
    ax.set_xlabel("along p₃ − p₂")
    ax.set_ylabel("at right angles to it")
    step = palette.number(plane.steps[panel])
    palette.add_title(ax, f"loss in the round of step {step}")
    palette.add_colour_bar(ax, drawn, "loss", format="%.3g", ticks=bounds[::3])
    return _plane_caption(plane.point_losses[panel], panel, step)


def _levels(losses: Floats, count: int) -> Floats:
    finite = losses[np.isfinite(losses)]
    palette.check(finite.size > 0, "draw_loss_plane: no loss is finite.")
    low, high = float(finite.min()), float(finite.max())
    if low == high:
        low, high = low - 0.01, high + 0.01
    space = np.geomspace if low > 0 else np.linspace
    return np.asarray(space(low, high, count + 1))


def _mark_points(ax: "Axes", points: Floats) -> None:
    from matplotlib.patheffects import withStroke

    white, black = palette.CELL_INKS
    for number, (point, marker) in enumerate(zip(points, "o^s", strict=True)):
        x, y = point
        ax.scatter(x, y, s=40, c=white, edgecolors=black, marker=marker)
        ax.annotate(
            f"p{'₁₂₃'[number]}",
            (x, y),
            (0, 6),
            textcoords="offset points",
            ha="center",
            color=black,
            size=11,
            path_effects=[withStroke(linewidth=2.5, foreground=white)],
        )


def _plane_caption(losses: Floats, panel: int, step: str) -> str:
    order = np.argsort(np.nan_to_num(losses, nan=np.inf), kind="stable")
    (best, first), (_, second), (_, third) = (
        (i, f"{losses[i]:.3f} at p{i + 1}") for i in order
    )
    whose = (
        "that round's own member"
        if best == panel
        else (f"although p{panel + 1} is that round's own member")
    )
    return (
        f"In the round of step {step} the loss is lowest at p{best + 1}, "
        f"{whose}: {first}, {second}, {third}."
    )
