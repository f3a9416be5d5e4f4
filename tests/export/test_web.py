"""`export_web`: the files, the page, and what is left alone.

What the page does is seen in a browser, in `test_web_browser.py`.
"""

import base64
import hashlib
import html.parser
import json
import os
import re
import shutil

import keras
import numpy as np
import pytest
from export_helpers import X, run_onnx, tree, worked_out
from helpers import fake_onnxruntime_web, memory_ensemble

from cbnn_keras.export import PageOptions, export_onnx, export_web, web
from cbnn_keras.export.verify import Parity, verify_artefact
from cbnn_keras.support.faults import RunError

OUTPUTS = ["probabilities", "members", "disagreement"]
NASTY = [
    "</script><script>alert(1)</script>",
    "<!-- & \" '",
    "\u2028{{ style }}",
]


class Page(html.parser.HTMLParser):
    """What a browser finds on a page: each element's text, by its id or tag."""

    def __init__(self, path):
        super().__init__()
        self.texts, self.attributes, self._open = {}, {}, None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self._open = attributes.get("id") or attributes.get("type") or tag
        name = attributes.get("http-equiv") or self._open
        self.attributes.setdefault(name, attributes)
        self.texts.setdefault(self._open, "")

    def handle_endtag(self, tag):
        self._open = None

    def handle_data(self, data):
        if self._open:
            self.texts[self._open] += data

    @property
    def config(self):
        return json.loads(self.texts["config"])


@pytest.fixture(scope="session")
def onnx_of_page(ensemble, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "model.onnx"
    return export_onnx(
        ensemble, path, outputs=OUTPUTS, class_names=NASTY, verbose=0
    )


@pytest.fixture
def runtime(tmp_path):
    return fake_onnxruntime_web(tmp_path / "dist")


@pytest.fixture
def converted(onnx_of_page, monkeypatch):
    """Saves the time of a conversion."""

    def write_onnx(ensemble, path, *args, **kwargs):
        shutil.copyfile(onnx_of_page.path, path)
        return Parity(0.0, 1.0, 10)

    monkeypatch.setattr(web, "write_onnx", write_onnx)


def hash12(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


# --- The directory ---


def test_the_files(ensemble, runtime, tmp_path, capsys):
    site = tmp_path / "deep" / "site"
    artefact = export_web(
        ensemble, site, runtime=runtime, class_names=NASTY, title="A <b> & c"
    )
    model, script, wasm, page = (
        site / f"model-{hash12(next(site.glob('*.onnx')))}.onnx",
        site / f"ort-{hash12(runtime / 'ort.wasm.bundle.min.mjs')}.js",
        site / f"ort-{hash12(runtime / 'ort-wasm-simd-threaded.wasm')}.wasm",
        site / "index.html",
    )
    assert set(site.iterdir()) == {model, script, wasm, page}
    assert script.read_text() == "// the script\n"
    assert artefact.path == site
    assert artefact.num_bytes == sum(p.stat().st_size for p in site.iterdir())
    assert artefact.parity.max_difference <= 1e-5
    assert capsys.readouterr().out.splitlines()[-1] == str(artefact)
    found = run_onnx(model, {"input": X})
    expected = worked_out(ensemble)
    assert found.keys() == set(OUTPUTS)
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=1e-5)
    page = Page(page)
    assert page.texts["title"] == page.texts["h1"] == "A <b> & c"
    config = page.config
    assert config["model"] == model.name
    assert config["runtime"] == {"script": script.name, "wasm": wasm.name}
    assert config["kind"] == "row"
    assert config["input"] == {
        "name": "input",
        "type": "float32",
        "shape": [1, 4],
    }
    shares = [member["share"] for member in config["members"]]
    np.testing.assert_allclose(shares, np.array([1.0, 2.5, 0.7]) / 4.2)
    assert [m["step"] for m in config["members"]] == [1, 2, 3]
    assert verify_artefact(site, ensemble, verbose=0).agreement == 1.0


def test_no_name_can_end_the_script_or_the_page(
    ensemble, converted, runtime, tmp_path
):
    export_web(
        ensemble, tmp_path / "site", runtime=runtime, title=NASTY[0], verbose=0
    )
    text = (tmp_path / "site/index.html").read_text(encoding="utf-8")
    page = Page(tmp_path / "site/index.html")
    assert page.config["classes"] == NASTY
    assert page.texts["title"] == NASTY[0]
    assert text.count("<script") == text.count("</script>") == 2
    assert "alert(1)</script>" not in text


def test_the_policy_allows_this_script_and_nothing_from_elsewhere(
    ensemble, converted, runtime, tmp_path
):
    export_web(ensemble, tmp_path / "site", runtime=runtime, verbose=0)
    page = Page(tmp_path / "site/index.html")
    content = page.attributes["Content-Security-Policy"]["content"]
    policy = {
        name: values
        for name, *values in (part.split() for part in content.split("; "))
    }

    def hash_of(text):
        digest = hashlib.sha256(text.encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode()}'"

    assert policy == {
        "default-src": ["'none'"],
        "script-src": [
            "'self'",
            "'wasm-unsafe-eval'",
            hash_of(page.texts["module"]),
        ],
        "style-src": [hash_of(page.texts["style"])],
        "connect-src": ["'self'"],
        "img-src": ["'self'", "blob:", "data:"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }
    text = (tmp_path / "site/index.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|\bsrc=|\bstyle=\"|\bon\w+=\"", text)


# --- Where it goes ---


def test_a_page_is_replaced_and_files_of_others_are_left_alone(
    ensemble, converted, runtime, tmp_path
):
    site = tmp_path / "site"
    export_web(ensemble, site, runtime=runtime, title="old", verbose=0)
    others = ("robots.txt", "model.onnx", "model-0123456789ab.txt")
    for name in others:
        (site / name).write_text("mine")
    (runtime / "ort.wasm.bundle.min.mjs").write_text("// a new version\n")
    export_web(ensemble, site, runtime=runtime, title="new", verbose=0)
    names = sorted(tree(site))
    assert len(names) == 4 + len(others)
    assert all((site / name).read_text() == "mine" for name in others)
    page = Page(site / "index.html")
    assert page.texts["title"] == "new"
    assert (site / page.config["runtime"]["script"]).read_text() == (
        "// a new version\n"
    )


@pytest.mark.parametrize("kind", ["page", "link", "directory"])
def test_a_page_of_somebody_else_is_left_alone(
    ensemble, converted, runtime, tmp_path, kind
):
    site = tmp_path / "site"
    site.mkdir()
    if kind == "page":
        (site / "index.html").write_text("<!DOCTYPE html>mine")
    elif kind == "link":
        (site / "index.html").symlink_to(tmp_path / "nowhere")
    else:
        (site / "index.html").mkdir()
    before = tree(site)
    with pytest.raises(RunError, match="was not written by `cbnn export` and"):
        export_web(ensemble, site, runtime=runtime, verbose=0)
    assert tree(site) == before


def test_a_failure_leaves_the_old_page(
    ensemble, converted, runtime, tmp_path, monkeypatch
):
    site = tmp_path / "site"
    export_web(ensemble, site, runtime=runtime, verbose=0)
    before = tree(site)

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(web.web_page, "page_text", fail)
    with pytest.raises(OSError, match="No space left"):
        export_web(ensemble, site, runtime=runtime, title="new", verbose=0)
    assert tree(site) == before
    with pytest.raises(OSError, match="No space left"):
        export_web(ensemble, tmp_path / "a/b", runtime=runtime, verbose=0)
    assert not (tmp_path / "a").exists()


def test_at_every_moment_there_is_a_whole_page(
    ensemble, converted, runtime, tmp_path, monkeypatch
):
    """What the page names is there before it is, and stays until it is gone."""
    site = tmp_path / "site"
    export_web(ensemble, site, runtime=runtime, title="old", verbose=0)
    (runtime / "ort.wasm.bundle.min.mjs").write_text("// a new version\n")
    replace, titles = os.replace, []

    def watched(source, destination):
        replace(source, destination)
        page = Page(site / "index.html")
        runtime_files = page.config["runtime"].values()
        for name in (page.config["model"], *runtime_files):
            assert (site / name).is_file()
        titles.append(page.texts["title"])

    monkeypatch.setattr(os, "replace", watched)
    export_web(ensemble, site, runtime=runtime, title="new", verbose=0)
    assert titles == ["old", "old", "old", "new"]


# --- Refusals ---


def test_the_runtime_has_to_be_there(ensemble, tmp_path):
    with pytest.raises(
        RunError,
        match=r"ort\.wasm\.bundle\.min\.mjs is missing\. Get it with `npm "
        r"install onnxruntime-web` and give the directory as runtime='node_mod",
    ):
        export_web(ensemble, tmp_path / "site", runtime=tmp_path, verbose=0)
    assert tree(tmp_path) == {}


def test_options_of_the_page_and_of_the_graph(ensemble, runtime, tmp_path):
    with pytest.raises(TypeError, match="no option 'outputs': a page needs"):
        export_web(ensemble, tmp_path / "a", runtime=runtime, outputs="class")
    with pytest.raises(ValueError, match="^cascade is not for a page, which"):
        export_web(ensemble, tmp_path / "a", runtime=runtime, cascade="exact")
    with pytest.raises(TypeError, match="no option 'class_name'. Did you mean"):
        export_web(ensemble, tmp_path / "a", runtime=runtime, class_name="b")
    with pytest.raises(TypeError, match="'titel'. Did you mean 'title'?") as e:
        export_web(ensemble, tmp_path / "a", runtime=runtime, titel="b")
    assert "pen" in str(e.value) and "outputs" not in str(e.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"input": "voice"},
            "input must be one of drawing, image, row, not 'v",
        ),
        ({"image_shape": 8}, r"image_shape=8\): image_shape must be two numb"),
        ({"image_shape": (8, 0)}, "image_shape must be an integer of at least"),
        ({"value_range": (0, 1, 2)}, "value_range must be two numbers"),
        ({"value_range": (0, "x")}, "value_range must be two numbers"),
        ({"value_range": (0, np.nan)}, "value_range must be two numbers"),
        ({"value_range": (0, np.inf)}, "value_range must be two numbers"),
        ({"title": None}, r"title=None\): title must be a text"),
        ({"title": "\udcff"}, "title must be a text"),
        ({"invert": "no"}, "invert must be one of True, False, None"),
        ({"crop": "no"}, "crop must be one of True, False"),
        ({"margin": 0.5}, "margin must be None, or at least 0 and below 0.5"),
        ({"pen": 0}, "pen must be above 0 and below 1"),
    ],
)
def test_options_that_cannot_be_right(options, message):
    with pytest.raises(ValueError, match=message):
        PageOptions(**options)


@pytest.mark.parametrize(
    ("options", "shape", "dtype", "message"),
    [
        ({}, (None, 3), "float32", r"of \(None, 3\) a dimension is open"),
        ({}, (1,), "object", "this one takes object. Export an ONNX file and"),
        ({"input": "image"}, (10,), "float32", r"\(10,\) is not an image of"),
        ({"input": "image"}, (8, 8, 4), "float32", "of one or three channels"),
        (
            {"input": "image", "image_shape": (4, 4)},
            (8, 8, 1),
            "float32",
            r"and of image_shape=\(4, 4\). Say image_shape=\(height, width\)",
        ),
        (
            {"value_range": (-1, 1)},
            (8, 8, 1),
            "uint8",
            r"value_range=\(-1, 1\)\): the model takes uint8, from 0 to 255",
        ),
    ],
)
def test_models_that_no_page_can_feed(options, shape, dtype, message):
    with pytest.raises(ValueError, match=message):
        PageOptions(**options).fitted_to(shape, dtype)


@pytest.mark.parametrize(
    ("options", "shape", "kind", "image"),
    [
        ({}, (28, 28, 1), "drawing", [28, 28, 1]),
        ({}, (32, 48, 3), "image", [32, 48, 3]),
        ({}, (64,), "row", None),
        ({}, (28, 28), "row", None),
        ({"input": "drawing"}, (64,), "drawing", [8, 8, 1]),
        ({"input": "drawing"}, (28, 28), "drawing", [28, 28, 1]),
        ({"input": "row"}, (8, 8, 1), "row", None),
        (
            {"input": "image", "image_shape": (4, 6)},
            (72,),
            "image",
            [4, 6, 3],
        ),
    ],
)
def test_what_a_page_asks_for(options, shape, kind, image):
    config = PageOptions(**options).fitted_to(shape, "float32")
    assert config["kind"] == kind
    assert list(config.get("image", {}).values()) == (image or [])
    assert config.get("invert", kind == "drawing") == (kind == "drawing")


@pytest.mark.parametrize(
    ("given", "dtype", "expected"),
    [
        (None, "float32", [0, 1]),
        # From 0 to 1 they would be rounded to black and white.
        (None, "uint8", [0, 255]),
        (None, "int64", [0, 255]),
        ((0, 1), "uint8", [0, 1]),
        ((-1, 1), "int32", [-1, 1]),
    ],
)
def test_brightness_by_the_type_of_the_input(given, dtype, expected):
    config = PageOptions(value_range=given).fitted_to((8, 8, 1), dtype)
    assert config["value_range"] == expected


def test_numbers_of_numpy_are_written_as_json():
    options = PageOptions(pen=np.float32(0.25), margin=np.float32(0.125))
    config = json.loads(json.dumps(options.fitted_to((8, 8, 1), "float32")))
    assert (config["pen"], config["margin"]) == (0.25, 0.125)


def test_models_of_several_inputs_and_too_large_ones(
    ensemble, converted, runtime, tmp_path, monkeypatch
):
    path = tmp_path / "site"
    monkeypatch.setattr(web.onnx_files, "data_files", lambda path: [path])
    with pytest.raises(ValueError, match="can load models up to 2 GB"):
        export_web(ensemble, path, runtime=runtime, verbose=0)
    monkeypatch.undo()
    inputs = [keras.Input((2,), name=name) for name in "ab"]
    outputs = keras.layers.Dense(3, activation="softmax")(
        keras.layers.Concatenate()(inputs)
    )
    pair = memory_ensemble(keras.Model(inputs, outputs), [1.0])
    with pytest.raises(ValueError, match="one input, but this one takes a, b"):
        export_web(pair, path, runtime=runtime, verbose=0)
    assert not path.exists()
