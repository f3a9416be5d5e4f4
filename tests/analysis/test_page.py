"""Samples as people see them, and plots that follow the page's colours."""

import base64
import io
import re
import xml.etree.ElementTree

import numpy as np
import pandas
import pytest
from PIL import Image

from cbnn_keras.analysis.plots.palette import INK
from cbnn_keras.analysis.report import page
from cbnn_keras.analysis.report.exhibit import Exhibit, is_images


def pixels_of(html):
    encoded = re.search(r'src="data:image/png;base64,([^"]+)"', html)[1]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))


def random_images(shape, dtype="uint8", high=256):
    generator = np.random.default_rng(0)
    return generator.integers(0, high, size=shape).astype(dtype)


@pytest.mark.parametrize("channels", [3, 4])
def test_bytes_are_shown_as_they_are(channels):
    x = random_images((3, 8, 6, channels))
    html = str(Exhibit(x).show(1))
    np.testing.assert_array_equal(pixels_of(html), x[1])
    assert 'alt="sample 1"' in html


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        # Between 0 and 1, by the other images too.
        ([[0.0, 1.0], [0.5, 0.2]], [[0, 255], [128, 51]]),
        # Normalised: -2 is black and 6 is white, 255 * (value + 2) / 8.
        ([[-2.0, 6.0], [0.0, 1.0]], [[0, 255], [64, 96]]),
        # No numbers are black, and what is too large is white.
        ([[0.5, 1.0], [np.nan, np.inf]], [[128, 255], [0, 255]]),
        # One colour, and none at all.
        ([[-3.0, -3.0], [-3.0, -3.0]], [[0, 0], [0, 0]]),
        ([[np.nan] * 2, [np.nan] * 2], [[0, 0], [0, 0]]),
    ],
)
def test_grey_images(pixels, expected):
    x = np.array([pixels, pixels])[..., None]
    np.testing.assert_array_equal(pixels_of(str(Exhibit(x).show(0))), expected)


def test_large_images_are_made_smaller():
    x = random_images((1, 640, 320, 3))
    assert pixels_of(str(Exhibit(x).show(0))).shape == (160, 80, 3)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 28, 28), True),
        ((5, 28, 28, 1), True),
        ((5, 32, 32, 3), True),
        ((5, 28, 12), False),  # a time series
        ((5, 4, 4), False),
        ((5, 32, 32, 7), False),
        ((5, 1, 1, 3), False),
        ((5, 64), False),
        ((5,), False),
    ],
)
def test_what_is_an_image(shape, expected):
    assert is_images(np.zeros(shape)) == expected
    assert not is_images(np.zeros(shape).astype("U1"))


@pytest.mark.parametrize(
    ("x", "index", "expected"),
    [
        (
            np.arange(26.0).reshape(2, 13) / 3,
            0,
            "0, 0.3333, 0.6667, 1, 1.333, 1.667, 2, 2.333, 2.667, 3, 3.333, "
            "3.667, …",
        ),
        (np.array([3, 4]), 1, "4"),
        (np.array([[12345, 30521]]), 0, "12345, 30521"),
        ((np.array([[1, 2]]), np.array(["a"])), 0, "1, 2<br>a"),
        (
            {"age": np.array([[30], [41]]), "<b>": np.array(["x & y", "z"])},
            0,
            "age: 30<br>&lt;b&gt;: x &amp; y",
        ),
        (
            pandas.DataFrame({"age": [30, 41], 7: [0.5, 1 / 3]}, index=[5, 0]),
            1,
            "age: 41<br>7: 0.3333",
        ),
        (
            pandas.DataFrame(np.zeros((2, 13))),
            0,
            "<br>".join([*(f"{i}: 0" for i in range(12)), "…"]),
        ),
    ],
    ids=["floats", "numbers", "tokens", "tuple", "dict", "frame", "wide"],
)
def test_values_and_named_inputs(x, index, expected):
    assert str(Exhibit(x).show(index)) == expected


@pytest.mark.parametrize("dtype", ["U", "S", "O"])
def test_texts_are_shown_and_escaped(dtype):
    x = np.array(["<script>alert(1)</script>", "w" * 300]).astype(dtype)
    exhibit = Exhibit(x)
    assert str(exhibit.show(0)) == "&lt;script&gt;alert(1)&lt;/script&gt;"
    assert str(exhibit.show(1)) == "w" * 279 + "…"


# --- Plots ---


def drawn(caption='a "caption" <b>'):
    def draw(ax):
        ax.plot([0, 1], [0, 1], color=INK)
        ax.set_title("A & B", color=INK)
        return caption

    return page.plot(draw)


def test_a_plot_has_its_caption_and_the_colours_of_the_page():
    found = drawn()
    svg = str(found.svg)
    assert found.caption == 'a "caption" <b>'
    root = xml.etree.ElementTree.fromstring(svg)
    assert root.get("aria-label") == found.caption
    assert INK not in svg
    assert "var(--ink)" in svg
    # Text is text, to be searched for and read aloud.
    assert "A &amp; B" in svg
    assert "<metadata" not in svg
    assert drawn().svg == found.svg


def test_plots_of_one_page_have_ids_of_their_own():
    svg = '<svg><path id="m"/><use xlink:href="#m" clip-path="url(#m)"/></svg>'
    assert page.with_own_ids(f'<p id="m">{svg}{svg}<a href="#m">') == (
        '<p id="m">'
        '<svg><path id="plot-0-m"/><use xlink:href="#plot-0-m" '
        'clip-path="url(#plot-0-m)"/></svg>'
        '<svg><path id="plot-1-m"/><use xlink:href="#plot-1-m" '
        'clip-path="url(#plot-1-m)"/></svg>'
        '<a href="#m">'
    )
