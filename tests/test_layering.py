"""Imports go downward only, and the arithmetic needs NumPy alone."""

import ast
import functools
import graphlib
import pathlib
import subprocess
import sys

import pytest

import cbnn_keras

PACKAGE = pathlib.Path(cbnn_keras.__file__).parent
# A folder (or module) imports only from its own line or from those above it.
LEVELS = [
    {
        "version",
        "metrics",
        "trust",
        "boosting",
        "boosting_policies",
        "patterns",
        "schedules",
        "auto_restarts",
        "labels",
        "imbalance",
        "calibration",
        "cascades",
        "cascade_choice",
    },
    {"support"},
    {"models"},
    {"data"},
    {"runs"},
    {"ensemble"},
    {"training"},
    {"baselines"},
    {"export"},
    {"analysis"},
    {"commands"},
    {"launch"},
    {"__main__"},
]
LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in PACKAGE.rglob("*.py")
}
MODULES = {
    name.removesuffix(".__init__"): path
    for name, path in FILES.items()
    if name != "__init__"
}


@functools.cache
def imported(name):
    """Modules of this package that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            first, _, rest = node.module.partition(".")
            if first == "cbnn_keras":
                inner = {f"{rest}.{a.name}".lstrip(".") for a in node.names}
                found |= inner & set(MODULES) or {rest}
    return found


def test_every_module_has_a_level():
    assert {name.split(".")[0] for name in MODULES} == set(LEVEL)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_import_goes_upward(name):
    own = LEVEL[name.split(".")[0]]
    assert not {m for m in imported(name) if LEVEL[m.split(".")[0]] > own}


def test_no_cycle_within_a_level():
    sorter = graphlib.TopologicalSorter({m: imported(m) for m in MODULES})
    sorter.prepare()  # raises if there is one


def test_arithmetic_and_command_line_load_without_tensorflow():
    arithmetic = ["boosting_policies", "schedules", "imbalance", "metrics"]
    arithmetic += ["calibration", "cascades", "labels", "patterns"]
    arithmetic += ["auto_restarts", "cascade_choice", "trust"]
    names = [*arithmetic, "support.arguments", "commands.cli"]
    code = (
        f"import sys, {', '.join(f'cbnn_keras.{name}' for name in names)}; "
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names():
    for name in cbnn_keras.__all__:
        assert getattr(cbnn_keras, name)
    assert set(dir(cbnn_keras)) == set(cbnn_keras.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cbnn_keras.nothing  # noqa: B018
