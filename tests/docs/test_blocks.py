"""Python blocks of README and documentation run, without a warning."""

import pathlib
import re
import shutil

import keras
import npm
import pytest

ROOT = pathlib.Path(__file__).parents[2]
README = ROOT / "README.md"
START = ROOT / "docs" / "getting_started.md"
OTHERS = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if page != START and "```python\n" in page.read_text()
]
pytestmark = pytest.mark.large


def blocks(page):
    """The blocks of a page as one program, each on the lines where it is."""
    text = page.read_text()
    found = re.finditer(r"```python\n(.*?)```", text, re.DOTALL)
    lines = [""] * text.count("\n")
    for block in found:
        first = text.count("\n", 0, block.start(1))
        content = block[1].splitlines()
        lines[first : first + len(content)] = content
    return compile("\n".join(lines), page, "exec")


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """What getting started leaves: a directory and its names."""
    names = {}
    directory = tmp_path_factory.mktemp("start")
    keras.utils.set_random_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        exec(blocks(START), names)
    return directory, names


def test_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(blocks(README), {})
    assert (tmp_path / "runs/digits/manifest.json").is_file()
    assert (tmp_path / "digits.onnx").is_file()


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.stem)
def test_page(page, start, tmp_path, monkeypatch):
    """Pages say that they continue the first one."""
    assert "getting_started.md#use-it" in page.read_text()
    directory, names = start
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    if page.stem == "web":  # what the page tells to install
        modules = npm.node_modules("onnxruntime-web", "1.30.0")
        (tmp_path / "node_modules").symlink_to(modules)
    monkeypatch.chdir(tmp_path)
    exec(blocks(page), dict(names))
