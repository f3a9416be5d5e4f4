"""Imports go downward only, and the arithmetic needs NumPy alone."""

import ast
import pathlib
import subprocess
import sys

import pytest

import cbnn_keras

PACKAGE = pathlib.Path(cbnn_keras.__file__).parent
LEVELS = [
    {"version", "boosting", "schedules", "labels", "files"},
    {
        "examples",
        "sample_weights",
        "classifier",
        "architecture",
        "training_state",
        "run",
        "run_directory",
        "console",
    },
    {"selection", "validation", "merging", "ensemble"},
    {"task", "rounds", "callback"},
    {"demo", "inspection"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}


def imported(name):
    """Modules of this package that a module imports."""
    tree = ast.parse((PACKAGE / f"{name}.py").read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            first, _, rest = node.module.partition(".")
            if first == "cbnn_keras":
                found |= {rest} if rest else {a.name for a in node.names}
    return found


def test_every_module_has_a_level():
    modules = {p.stem for p in PACKAGE.glob("*.py")} - {"__init__"}
    assert modules == set(LEVEL)


@pytest.mark.parametrize("name", sorted(LEVEL))
def test_no_import_goes_upward(name):
    upward = {m for m in imported(name) if LEVEL[m] > LEVEL[name]}
    assert not upward


def test_no_cycle_within_a_level():
    def reaches(start, goal, seen=()):
        return any(
            m == goal or (m not in seen and reaches(m, goal, (*seen, m)))
            for m in imported(start)
        )

    assert not [name for name in LEVEL if reaches(name, name)]


def test_arithmetic_and_command_line_load_without_tensorflow():
    code = (
        "import sys, cbnn_keras.boosting, cbnn_keras.schedules, "
        "cbnn_keras.labels, cbnn_keras.cli; "
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names():
    for name in cbnn_keras.__all__:
        assert getattr(cbnn_keras, name)
    assert set(dir(cbnn_keras)) == set(cbnn_keras.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cbnn_keras.nothing  # noqa: B018
