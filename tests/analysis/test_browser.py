"""Reports in a real browser: headless Chromium, wide and on a phone.

    pytest -m servers tests/analysis/test_browser.py

Skipped where there is no Chromium (Debian's package is `chromium`). The pages
are looked at by people too: `--basetemp` says where screenshots are left.
"""

import pathlib

import chromium
import numpy as np
import pytest
from helpers import SECTIONS
from recipes.training import Recipe, load_split, train

from cbnn_keras.analysis import Labelled, write_report

DATA = pathlib.Path(__file__).parents[3] / "shared" / "data" / "tfds"
pytestmark = [
    pytest.mark.servers,
    chromium.needed,
    # Of tensorflow-datasets.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
    # So short a run is not good at a hundred classes.
    pytest.mark.filterwarnings("ignore:.*no better than chance:UserWarning"),
]


@pytest.fixture(scope="module")
def browser():
    with chromium.launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def cifar_page(tmp_path_factory):
    """CBNN and Snapshot Ensemble on CIFAR-100, side by side."""
    if not DATA.is_dir():
        pytest.skip(f"CIFAR-100 is not in {DATA}")
    directory = tmp_path_factory.mktemp("cifar")
    recipe = Recipe(
        model="resnet8",
        epochs=3,
        augment="standard",
        num_checkpoints=3,
        size=16,
        num_train=1_000,
        num_test=300,
        initial_rate=0.2,
    )
    split = load_split(recipe, DATA)
    runs = [
        train(method, recipe, split, directory / method, seed=0)
        for method in ("cbnn", "sse")
    ]
    data = [
        Labelled("train", split.x, split.y),
        Labelled("test", split.x_test, split.y_test),
    ]
    path = directory / "report.html"
    write_report(runs, path, data=data, verbose=0)
    return path


@pytest.fixture(scope="module")
def bare_page(tmp_path_factory, blobs_run):
    """A run and no data."""
    path = tmp_path_factory.mktemp("bare") / "report.html"
    write_report([blobs_run], path, verbose=0)
    return path


@pytest.fixture
def look(browser):
    """Opens a page, and keeps what it says and asks for."""
    contexts = []

    def open_page(path, width, scheme="light"):
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.screenshot(
            path=path.with_name(f"{width}-{scheme}.png"), full_page=True
        )
        return page, said, asked

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["cifar_page", "bare_page"])
def test_a_report_in_the_browser(name, scheme, width, look, request):
    path = request.getfixturevalue(name)
    page, said, asked = look(path, width, scheme)
    assert said == []
    assert [a for a in asked if not a.startswith("data:")] == [path.as_uri()]
    for section in SECTIONS:
        box = page.locator(f"section#{section}").bounding_box()
        assert box["height"] > 40
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        page.locator(f'nav a[href="#{section}"]').click()
        assert page.evaluate("location.hash") == f"#{section}"
    # Nothing but tables may be wider than the screen, and they scroll.
    assert page.evaluate("document.documentElement.scrollWidth") <= width


LUMINANCE = """element => {
  const style = getComputedStyle(element);
  const of = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(v => {
      v /= 255;
      return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = of(getComputedStyle(document.body).backgroundColor);
  const ink = of(element instanceof SVGElement ? style.fill : style.color);
  return [paper, ink];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(scheme, look, cifar_page):
    page, _, _ = look(cifar_page, 1280, scheme)
    papers = set()
    for selector in (
        "h1",
        "figcaption",
        "td",
        ".members .bad",
        "#rounds svg text",
        "#calibration svg text",
    ):
        paper, ink = page.locator(selector).first.evaluate(LUMINANCE)
        bright, dark = max(paper, ink), min(paper, ink)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, selector
        papers.add(paper)
    [paper] = papers
    assert (paper < 0.1) == (scheme == "dark")


def test_pictures_and_plots_are_drawn(look, cifar_page):
    page, _, _ = look(cifar_page, 390)
    sizes = page.evaluate(
        "Array.from(document.images, i => [i.complete, i.naturalWidth])"
    )
    assert len(sizes) == 4 * 24  # hard and suspicious samples of two runs
    assert all(size == [True, 16] for size in sizes)
    widths = page.evaluate(
        "Array.from(document.querySelectorAll('figure svg'),"
        " s => s.getBoundingClientRect().width)"
    )
    assert len(widths) > 10
    assert np.min(widths) > 300
    # Letters of the plots are not smaller than eight pixels on a phone.
    letters = page.evaluate(
        "Array.from(document.querySelectorAll('figure svg text'),"
        " t => t.getBoundingClientRect().height)"
    )
    assert np.min([height for height in letters if height]) > 8
