"""README and documentation: what they name is there."""

import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PICTURE = ROOT / "docs" / "architecture_picture.py"


def test_the_readme_is_short():
    lines = README.read_text().splitlines()
    assert len(lines) <= 130
    assert max(map(len, lines)) < 120


@pytest.mark.parametrize("name", ["demo", "test"])
def test_both_commands_are_where_ci_looks_for_them(name):
    """`.ci/run` takes the line after the marker and the fence."""
    after = README.read_text().split(f"<!-- {name} command -->\n```bash\n")
    assert len(after) == 2
    command = after[1].splitlines()[0]
    assert command.startswith("python3 -m venv .venv && ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    """Those to headings are checked when the documentation is built."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_files_that_the_architecture_names_are_there():
    text = (ROOT / "docs" / "architecture.md").read_text()
    names = set(re.findall(r"`((?:\w+/)*\w+\.(?:py|html))`", text))
    assert len(names) > 20
    missing = [n for n in names if not (ROOT / "cbnn_keras" / n).is_file()]
    assert not missing


def test_the_picture_of_the_folders_is_true():
    spec = importlib.util.spec_from_file_location("picture", PICTURE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PICTURE.read_text() == module.picture(), (
        "Run `python docs/architecture_picture.py`."
    )
