"""Colours, lines, letters and checks that all plots share.

Plots are read on white and on dark pages, in print without colours, and by
people who do not tell all colours apart. So each series has a colour, a marker
and a line of its own, and everything that is not data is drawn in `INK`, which
a page may replace by the colour of its text.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cbnn_keras.boosting import Floats

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable

# Text, ticks, spines and grids, and nothing else, have exactly this colour.
INK = "#010203"

# Of Okabe and Ito's colours those whose contrast is 3 at least, on white and
# on #16181d; their reddish purple and orange a little darker.
BLUE = "#0072b2"
VERMILLION = "#d55e00"
GREEN = "#009e73"
PURPLE = "#c06d9b"
OCHRE = "#b07a00"
GREY = "#808080"

# Brighter is more, in grey as well.
COLOUR_MAP = "cividis"

# On coloured cells. Not quite black: SVG files leave out the black of letters,
# and a page would give them the colour of its own text.
CELL_INKS = ("#ffffff", "#000001")

FONT_SIZE = 9
SMALL_FONT_SIZE = 8


class LineOptions(TypedDict, total=False):
    """What matplotlib takes of the look of a line."""

    color: str
    marker: str
    linestyle: Any  # a name, or a pattern in points
    markersize: float
    linewidth: float
    markevery: int  # every n-th point has a marker


@dataclasses.dataclass(frozen=True)
class Series:
    """How one series looks.

    Attributes:
        color: The colour of its line and its markers.
        marker: The marker, by matplotlib's letter.
        linestyle: The line, by matplotlib's name or pattern.
    """

    color: str
    marker: str
    linestyle: Any

    @property
    def options(self) -> LineOptions:
        """What `Axes.plot` takes."""
        return {
            "color": self.color,
            "marker": self.marker,
            "linestyle": self.linestyle,
            "markersize": 4,
            "linewidth": 1.5,
        }


SERIES = (
    Series(VERMILLION, "s", "-"),
    Series(BLUE, "o", "--"),
    Series(GREEN, "^", "-."),
    Series(PURPLE, "D", ":"),
    Series(OCHRE, "v", (0, (6, 1, 1, 1, 1, 1))),
    Series(GREY, "X", (0, (8, 2))),
)
# What a plot is about, and what it is compared with.
MAIN, OTHER = SERIES[:2]
# Lines that guide the eye.
HINT: LineOptions = {"color": GREY, "linestyle": ":", "linewidth": 1.2}


def style(
    ax: "Axes", *, grid: Literal["x", "y", "both"] | None = "both"
) -> None:
    """Gives axes the ink, the letters and no background.

    Args:
        ax: The axes.
        grid: The axis whose ticks get lines: `"x"`, `"y"`, `"both"`, or None
            for no lines. Defaults to `"both"`.
    """
    ax.patch.set_alpha(0)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[:].set(color=INK, linewidth=0.8)
    ax.tick_params(
        which="both", color=INK, labelcolor=INK, labelsize=SMALL_FONT_SIZE
    )
    for text in (ax.title, ax.xaxis.label, ax.yaxis.label):
        text.set(color=INK, fontsize=FONT_SIZE)
    if grid is not None:
        ax.grid(True, axis=grid, color=INK, alpha=0.15, linewidth=0.6)


def add_legend(
    ax: "Axes",
    *,
    columns: int = 2,
    handles: Sequence["Artist"] | None = None,
    title: str | None = None,
) -> None:
    """Puts the legend above the axes, where no data are, and a title on it."""
    if handles is None:
        handles = ax.get_legend_handles_labels()[0]
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        borderaxespad=0.2,
        borderpad=0.2,
        columnspacing=1.2,
        handlelength=2.6,
        ncols=columns,
        frameon=False,
        labelcolor=INK,
        fontsize=SMALL_FONT_SIZE,
    )
    rows = math.ceil(len(handles) / columns)
    add_title(ax, title, pad=6 + 1.7 * SMALL_FONT_SIZE * rows)


def add_title(ax: "Axes", title: str | None, *, pad: float = 6) -> None:
    """Sets a title, if there is one."""
    if title is not None:
        ax.set_title(title, color=INK, fontsize=FONT_SIZE, pad=pad)


def add_colour_bar(
    ax: "Axes", drawn: "ScalarMappable", label: str, **options: Any
) -> None:
    """Puts a colour bar at the right of the axes, within its figure."""
    bar = ax.figure.colorbar(
        drawn, cax=ax.inset_axes((1.04, 0, 0.05, 1)), **options
    )
    bar.minorticks_off()
    bar.outline.set(edgecolor=INK, linewidth=0.8)
    bar.ax.tick_params(
        which="both", color=INK, labelcolor=INK, labelsize=SMALL_FONT_SIZE
    )
    bar.set_label(label, color=INK, fontsize=FONT_SIZE)


def use_whole_numbers(ax: "Axes", *, most: int = 9) -> None:
    """Ticks of the x-axis are at integers only, written in full."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=most))
    ax.xaxis.set_major_formatter(number)


def use_times(ax: "Axes", largest: float) -> None:
    """Ticks of the x-axis are so few that long numbers fit."""
    from matplotlib.ticker import MaxNLocator

    room = 40  # letters
    most = min(9, room // len(number(round(largest))))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=max(2, most)))
    ax.xaxis.set_major_formatter(number)


def thinned(count: int, largest: int) -> NDArray[np.int64]:
    """Positions at equal intervals, the first one among them.

    Args:
        count: Number of positions there are.
        largest: Number of positions there may be.

    Example:

    >>> thinned(4, largest=10), thinned(40, largest=10)
    (array([0, 1, 2, 3]), array([ 0,  4,  8, 12, 16, 20, 24, 28, 32, 36]))
    """
    return np.arange(0, count, math.ceil(count / largest))


def number(value: float, _: object = None) -> str:
    """A tick's number in full, with commas: steps run into the millions.

    Example:

    >>> number(78200), number(0.5)
    ('78,200', '0.5')
    """
    return f"{value:,.10g}"


def cell_ink(color: ArrayLike) -> str:
    """The one of `CELL_INKS` that is easier to read on a colour.

    Args:
        color: Red, green, blue between 0 and 1.

    Example:

    >>> cell_ink((1.0, 0.9, 0.3)), cell_ink((0.0, 0.1, 0.3))
    ('#000001', '#ffffff')
    """
    values = np.asarray(color, dtype=np.float64)[:3]
    linear = np.where(
        values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4
    )
    luminance = linear @ (0.2126, 0.7152, 0.0722)
    # Where the contrasts (1 + 0.05) / (l + 0.05) and (l + 0.05) / (0 + 0.05)
    # of WCAG 2 are the same; either is 4.58 there.
    return CELL_INKS[int(luminance > math.sqrt(1.05 * 0.05) - 0.05)]


def names_of(
    given: Sequence[object] | None, count: int, start: int = 1
) -> list[str]:
    """Names as they are written; numbers from `start` on if none are given."""
    names = range(start, start + count) if given is None else given
    return [str(name) for name in names]


def columns(
    owner: str, rounds: Sequence[Mapping[str, Any]], *keys: str
) -> list[Floats]:
    """What all rounds have under each key."""
    found = {key: [record[key] for record in rounds] for key in keys}
    return vectors(owner, **found)


def vectors(owner: str, **given: ArrayLike) -> list[Floats]:
    """Vectors of one length, which is not 0, from what was given."""
    arrays = {k: np.asarray(v, dtype=np.float64) for k, v in given.items()}
    shapes = {array.shape for array in arrays.values()}
    (shape,) = shapes if len(shapes) == 1 else [()]
    check(
        len(shape) == 1 and shape[0] > 0,
        f"{owner} takes vectors of one length, with one value at least; "
        "received "
        + ", ".join(f"{k} of shape {v.shape}" for k, v in arrays.items())
        + ".",
    )
    return list(arrays.values())


def check(is_right: bool, message: str) -> None:
    """Raises a `ValueError` unless it is right."""
    if not is_right:
        raise ValueError(message)
