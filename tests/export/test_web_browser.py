"""Pages of `export_web` in a real browser: headless Chromium.

    pytest -m servers tests/export/test_web_browser.py

Skipped where there is no Chromium (Debian's package is `chromium`), and where
npm cannot install onnxruntime-web. Screenshots are left beside the pages, where
`--basetemp` says.
"""

import functools
import http.server
import json
import math
import shutil
import threading
import urllib.parse

import chromium
import keras
import npm
import numpy as np
import pytest
from helpers import memory_ensemble
from PIL import Image
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback
from cbnn_keras.export import export_web

pytestmark = [
    pytest.mark.servers,
    chromium.needed,
]
layers = keras.layers
WORDS = ["</script><b>one</b>", "zwei", "三"]


@pytest.fixture(scope="module")
def runtime():
    modules = npm.node_modules("onnxruntime-web", "1.30.0")
    return modules / "onnxruntime-web" / "dist"


@pytest.fixture(scope="module")
def browser():
    with chromium.launched() as browser:
        yield browser


class Handler(http.server.SimpleHTTPRequestHandler):
    """What `python -m http.server` uses, without its log."""

    def log_message(self, *args):
        pass


@pytest.fixture
def look(browser):
    """Serves a directory and opens its page; gives the page and what it says.

    In the end: nothing was asked of another host, and nothing went wrong.
    """
    opened = []

    def open_page(site, width=1100, scheme="light"):
        server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Handler, directory=site)
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        context = browser.new_context(
            viewport={"width": width, "height": 800},
            color_scheme=scheme,
            has_touch=True,
        )
        page = context.new_page()
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        opened.append((server, context, said, asked))
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.locator("#status", has_text="Loading").wait_for(state="hidden")
        return page

    yield open_page
    for server, context, said, asked in opened:
        context.close()
        server.shutdown()
        server.server_close()
        assert said == []
        hosts = {urllib.parse.urlsplit(url).hostname for url in asked}
        assert hosts - {None} == {"127.0.0.1"}  # None: of blob: and data:


def answer(page):
    """All probabilities that a page shows, and those of its members."""
    page.locator("#answer").wait_for()
    page.locator("#result[aria-busy=false]").wait_for()
    bars = page.locator("#bars li")
    shown = {
        int(bar.get_attribute("data-class")): float(
            bar.get_attribute("data-probability")
        )
        for bar in bars.all()
    }
    members = [
        json.loads(row.get_attribute("data-probabilities"))
        for row in page.locator("#members tbody tr").all()
    ]
    return np.array([shown[k] for k in sorted(shown)]), np.array(members)


def assert_says(page, ensemble, x):
    """The page says of one sample what Keras says."""
    probabilities, members = answer(page)
    expected = ensemble.predict(x[np.newaxis], verbose=0)[0]
    opinions = [
        m[0] for m in ensemble.member_probabilities(x[np.newaxis], verbose=0)
    ]
    if len(expected) == 1:
        expected = np.array([1 - expected[0], expected[0]])
        opinions = [np.array([1 - p[0], p[0]]) for p in opinions]
    np.testing.assert_allclose(probabilities, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(members, opinions, rtol=0, atol=1e-5)
    return int(expected.argmax())


# --- A row of numbers ---


@pytest.fixture(scope="module")
def row(tmp_path_factory, runtime):
    """Three classes with names that are no HTML."""
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(8, activation="relu"),
            layers.Dense(3, activation="softmax"),
        ]
    )
    ensemble = memory_ensemble(model, [1.0, 2.5, 0.7])
    site = tmp_path_factory.mktemp("row") / "site"
    export_web(ensemble, site, runtime=runtime, class_names=WORDS, verbose=0)
    return site, ensemble


def test_a_typed_row(row, look):
    site, ensemble = row
    page = look(site)
    x = np.array([0.25, -1.5, 3, 1e-3, 2], "float32")
    page.get_by_label("5 numbers").fill("0.25, -1.5;3\n1e-3 2")
    page.get_by_role("button", name="Classify").click()
    best = assert_says(page, ensemble, x)
    assert page.locator("#predicted").text_content() == WORDS[best]
    shown = page.locator("#bars li span:first-child").all_text_contents()
    assert [text for text in shown if text] == WORDS  # as text, not as HTML
    assert page.locator("#bars b").count() == 0
    page.screenshot(path=site.with_name("row.png"), full_page=True)
    # With the keyboard alone, and other numbers.
    page.get_by_label("5 numbers").fill("1 1 1 1 -1")
    page.keyboard.press("Control+Enter")
    assert_says(page, ensemble, np.array([1, 1, 1, 1, -1], "float32"))


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("1 2 3", "The model takes 5 numbers; these are 3."),
        ("1 2 3 4 x", '"x" is not a number.'),
        ("", "The model takes 5 numbers; these are 0."),
        ("1 2 3 4 Infinity", '"Infinity" is not a number.'),
    ],
)
def test_what_is_no_row_is_told(row, look, typed, message):
    page = look(row[0])
    page.get_by_label("5 numbers").fill(typed)
    page.get_by_role("button", name="Classify").click()
    page.get_by_role("status").get_by_text(message).wait_for()
    assert page.locator("#answer").is_hidden()


def test_two_classes_with_one_output(tmp_path, runtime, look):
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int64"),
            layers.Dense(4, activation="tanh"),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    ensemble = memory_ensemble(model, [1.0, 2.0], num_classes=2)
    export_web(ensemble, tmp_path / "site", runtime=runtime, verbose=0)
    page = look(tmp_path / "site")
    page.get_by_label("2 numbers").fill("3 -1")
    page.get_by_role("button", name="Classify").click()
    assert_says(page, ensemble, np.array([3, -1], "int64"))


# --- An image ---


@pytest.fixture(scope="module")
def images(tmp_path_factory, runtime):
    """Three channels, not square, cropped."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((4, 6, 3)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    ensemble = memory_ensemble(model, [1.0, 2.0])
    site = tmp_path_factory.mktemp("images") / "site"
    export_web(
        ensemble,
        site,
        runtime=runtime,
        value_range=(-1, 1),
        crop=True,
        verbose=0,
    )
    return site, ensemble


def test_an_uploaded_image(images, look, tmp_path):
    """Of 44x60 pixels the middle 40x60, averaged over blocks of 10x10."""
    site, ensemble = images
    pixels = np.random.default_rng(0).integers(0, 256, (44, 60, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    page = look(site)
    page.get_by_label("Choose an image").set_input_files(tmp_path / "a.png")
    blocks = pixels[2:42].reshape(4, 10, 6, 10, 3).mean(axis=(1, 3))
    assert_says(page, ensemble, (blocks / 255 * 2 - 1).astype("float32"))
    page.screenshot(path=site.with_name("image.png"), full_page=True)
    (tmp_path / "b.png").write_text("no image")
    page.get_by_label("Choose an image").set_input_files(tmp_path / "b.png")
    page.get_by_text("This is not an image that the browser").wait_for()


# --- A drawing ---


@pytest.fixture(scope="module")
def digits(tmp_path_factory, runtime):
    """The example of docs/web.md: digits of 8x8 pixels from 0 to 16."""
    keras.utils.set_random_seed(0)
    x, y = load_digits(return_X_y=True)
    x = x.reshape(-1, 8, 8, 1)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Rescaling(1 / 16),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    cbnn = CBNNCallback(restarts=4)
    train = cbnn.weighted(x, y, batch_size=32)
    model.fit(train, epochs=24, callbacks=[cbnn], verbose=0)
    ensemble = cbnn.ensemble()
    site = tmp_path_factory.mktemp("digits") / "site"
    export_web(
        ensemble,
        site,
        runtime=runtime,
        title="Which digit is it?",
        value_range=(0, 16),
        pen=0.13,
        verbose=0,
    )
    return site, ensemble


def arc(x, y, width, height, start, end):
    angles = np.radians(np.linspace(start, end, 24))
    return [(x + width * math.cos(a), y + height * math.sin(a)) for a in angles]


# Strokes on a paper of width and height 1.
STROKES = {
    "0": [arc(0.5, 0.5, 0.22, 0.36, -90, 270)],
    "2": [[*arc(0.5, 0.32, 0.22, 0.2, -170, 20), (0.28, 0.85), (0.76, 0.85)]],
    "3": [
        arc(0.46, 0.32, 0.22, 0.19, -150, 90)
        + arc(0.46, 0.68, 0.24, 0.19, -90, 150)
    ],
    "4": [
        [(0.58, 0.12), (0.25, 0.6), (0.78, 0.6)],
        [(0.62, 0.35), (0.62, 0.88)],
    ],
    "5": [
        [
            *[(0.72, 0.14), (0.36, 0.14), (0.33, 0.45)],
            *arc(0.48, 0.64, 0.24, 0.22, -130, 140),
        ]
    ],
    "7": [
        [(0.26, 0.15), (0.74, 0.15), (0.45, 0.88)],
        [(0.35, 0.5), (0.7, 0.5)],
    ],
}


def draw(page, strokes):
    paper = page.get_by_label("Drawing area")
    box = paper.bounding_box()
    for stroke in strokes:
        points = [
            (box["x"] + x * box["width"], box["y"] + y * box["height"])
            for x, y in stroke
        ]
        page.mouse.move(*points[0])
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*point)
        page.mouse.up()


@pytest.mark.parametrize(("width", "scheme"), [(1100, "light"), (390, "dark")])
def test_drawn_digits(digits, look, width, scheme):
    site, _ = digits
    page = look(site, width, scheme)
    for digit, strokes in STROKES.items():
        page.get_by_role("button", name="Clear").click()
        page.get_by_text("Draw something.").wait_for()
        draw(page, strokes)
        page.locator("#predicted", has_text=digit).wait_for(timeout=5_000)
        assert answer(page)[0].argmax() == int(digit)
    page.screenshot(path=site.with_name(f"{width}.png"), full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.get_by_role("button", name="Clear").bounding_box()
    assert box["height"] >= 44  # as large as a finger


def test_what_the_model_sees_is_what_is_shown(digits, look):
    """From the pixels of the small picture, Keras says the same."""
    site, ensemble = digits
    page = look(site)
    draw(page, STROKES["4"])
    probabilities, _ = answer(page)
    seen = page.evaluate(
        "Array.from(document.getElementById('seen').getContext('2d')"
        ".getImageData(0, 0, 8, 8).data).filter((_, i) => i % 4 === 0)"
    )
    x = np.array(seen, "float32").reshape(1, 8, 8, 1) / 255 * 16
    np.testing.assert_allclose(  # the picture has 256 shades
        probabilities, ensemble.predict(x, verbose=0)[0], atol=0.02
    )
    # A margin of 0: ink at the top and at the bottom, bright.
    assert x[0, 0].max() > 4 and x[0, -1].max() > 4


def test_a_drawing_with_the_keyboard_and_by_touch(digits, look):
    site, _ = digits
    page = look(site)
    paper = page.get_by_label("Drawing area")
    paper.focus()
    for key in ["ArrowUp"] * 6 + ["Space"] + ["ArrowDown"] * 12 + ["Space"]:
        page.keyboard.press(key)
    probabilities, _ = answer(page)
    assert probabilities.argmax() == 1  # a vertical line
    page.keyboard.press("Delete")
    page.get_by_text("Draw something.").wait_for()
    paper.tap()
    page.locator("#answer").wait_for()


# --- What goes wrong ---


def test_a_model_that_is_missing_is_told(row, tmp_path, browser):
    site = tmp_path / "site"
    shutil.copytree(row[0], site)
    [model] = site.glob("*.onnx")
    model.unlink()
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.get_by_text("Serve this directory: python -m http.server").wait_for()
    page.close()
