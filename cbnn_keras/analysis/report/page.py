"""Pieces of a page that needs nothing from outside.

What `report.html` puts together: sections with parts, tables, plots and
samples.
"""

import base64
import dataclasses
import io
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from cbnn_keras.analysis.plots.palette import INK
from cbnn_keras.support.extras import need

_WIDTH, _HEIGHT = 4.4, 3.3  # inches: readable on a phone without zooming
_LARGEST = 160  # pixels of a picture
_NUM_VALUES = 12  # of a row of a table
_NUM_LETTERS = 280  # of a text


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
        draw: Draws on an `ax` and returns the caption, as those of `plots` do.
        height: In inches.
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


class Exhibit:
    """Shows samples of a data set: pictures, texts, or values.

    Args:
        x: Inputs of a model, in any structure.
    """

    def __init__(self, x: Any) -> None:
        if hasattr(x, "columns"):  # of pandas, whose rows have names
            x = {str(name): x[name].to_numpy() for name in x.columns}
        self._x = x
        self._scale = _pixel_scale(x) if is_images(x) else (0.0, 1.0)

    def show(self, index: int) -> Any:
        """HTML of one sample."""
        markupsafe = need("markupsafe", "report")
        if is_images(self._x):
            address = self._picture(self._x[index])
            return markupsafe.Markup('<img src="{}" alt="sample {}">').format(
                address, index
            )
        if isinstance(self._x, dict):
            lines = [
                f"{name}: {_text(array[index])}"
                for name, array in self._x.items()
            ]
            more = ["…"] if len(lines) > _NUM_VALUES else []
            return markupsafe.Markup("<br>").join(lines[:_NUM_VALUES] + more)
        parts = keras.tree.flatten(self._x)
        return markupsafe.Markup("<br>").join(_text(p[index]) for p in parts)

    def _picture(self, pixels: np.ndarray) -> str:
        images = need("PIL.Image", "report")
        low, high = self._scale
        values = (pixels.astype(np.float64) - low) / (high - low)
        values = np.clip(np.nan_to_num(values), 0, 1)
        values = np.round(255 * values).astype(np.uint8)
        if values.ndim == 3 and values.shape[-1] == 1:
            values = values[..., 0]
        image = images.fromarray(values)
        image.thumbnail((_LARGEST, _LARGEST))
        buffer = io.BytesIO()
        image.save(buffer, format="png")
        encoded = base64.b64encode(buffer.getvalue()).decode()
        return f"data:image/png;base64,{encoded}"


def is_images(x: Any) -> bool:
    """Whether inputs look like pictures.

    Four dimensions with 1, 3 or 4 channels in the end, or squares without
    channels.
    """
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "uifb":
        return False
    if x.ndim == 4:
        return x.shape[-1] in (1, 3, 4) and min(x.shape[1:3]) > 1
    return x.ndim == 3 and x.shape[1] == x.shape[2] >= 8


def _pixel_scale(x: np.ndarray) -> tuple[float, float]:
    """The values that are black and white."""
    if x.dtype.kind == "b":
        return 0.0, 1.0
    finite = x[np.isfinite(x)]
    if not finite.size:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    for usual in (1.0, 255.0):
        if low >= 0 and high <= usual:
            return 0.0, usual
    return low, max(high, low + 1e-9)  # normalised, in some way or other


def _text(sample: Any) -> str:
    values = np.asarray(sample)
    if values.dtype.kind in "USO":
        text = " ".join(map(_decoded, values.ravel().tolist()))
        return _shortened(text, _NUM_LETTERS)
    flat = values.ravel()
    form = ".4g" if flat.dtype.kind == "f" else ""
    shown = ", ".join(f"{v:{form}}" for v in flat[:_NUM_VALUES].tolist())
    return shown + (", …" if flat.size > _NUM_VALUES else "")


def _decoded(value: Any) -> str:
    is_bytes = isinstance(value, bytes)
    return value.decode("utf-8", "replace") if is_bytes else str(value)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


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
