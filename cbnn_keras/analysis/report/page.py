"""Pieces of a page that needs nothing from outside.

What `report.html` puts together: sections with parts, tables, plots and
samples.
"""

import dataclasses
import io
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

from cbnn_keras.analysis.plots.palette import INK
from cbnn_keras.support.extras import need

_WIDTH, _HEIGHT = 4.4, 3.3  # inches: readable on a phone without zooming


@dataclasses.dataclass(frozen=True)
class Plot:
    """An image in HTML, and what to see in it."""

    svg: Any
    caption: str


@dataclasses.dataclass(frozen=True)
class Table:
    """A head and rows of cells."""

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    kind: str = ""


@dataclasses.dataclass(frozen=True)
class Member:
    """What a member says of a sample."""

    name: str
    is_label: bool


@dataclasses.dataclass(frozen=True)
class Sample:
    """A sample to look at; `content` is HTML, or None without data."""

    title: str
    lines: Sequence[str]
    content: Any = None
    members: Sequence[Member] = ()


@dataclasses.dataclass(frozen=True)
class Part:
    """What a section says of one run."""

    name: str
    texts: Sequence[str] = ()
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    samples: Sequence[Sample] = ()


@dataclasses.dataclass(frozen=True)
class Section:
    """A question that people have, and its answer for each run."""

    id: str
    title: str
    lead: str
    parts: Sequence[Part]
    plots: Sequence[Plot] = ()  # of all runs together


def plot(draw: Callable[[Any], str], *, height: float = _HEIGHT) -> Plot:
    """Draws something as SVG that follows the colours of the page.

    Args:
        draw: Draws on an `ax` and returns the caption, as the functions of
            `plots` do.
        height: The height in inches.
    """
    style = need("matplotlib.style", "report")
    figures = need("matplotlib.figure", "report")
    settings = {
        "font.size": 9,
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "cbnn",  # the same page for the same run
        "text.parse_math": False,  # names may have a $
    }
    # Not in the user's own style, which may need files or LaTeX.
    with style.context(["default", settings]):
        figure = figures.Figure((_WIDTH, height), layout="constrained")
        figure.patch.set_alpha(0)
        caption = draw(figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return Plot(_inlined(buffer.getvalue(), caption), caption)


def _inlined(svg: str, caption: str) -> Any:
    markupsafe = need("markupsafe", "report")
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Groups are numbered in every figure alike; nothing refers to them.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = svg.replace(INK, "var(--ink)")
    label = markupsafe.escape(caption)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    return markupsafe.Markup(svg)


def with_own_ids(html: str) -> str:
    """Numbers the plots of a page, so that no two have an id in common."""
    numbers = itertools.count()

    def numbered(match: re.Match[str]) -> str:
        own = rf"\g<1>plot-{next(numbers)}-"
        return re.sub(r'( id="|url\(#|href="#)', own, match[0])

    return re.sub(r"<svg.*?</svg>", numbered, html, flags=re.DOTALL)


def missing(what: str) -> str:
    """How to get what a section has to say."""
    if what == "data":
        return (
            "This needs labelled data: cbnn report RUN --data test.npz, with "
            "arrays x and y."
        )
    return (
        "To see more, add the training data, in the order of training and not "
        "augmented: cbnn report RUN --data train.npz test.npz."
    )
