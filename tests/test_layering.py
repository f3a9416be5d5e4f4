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
LEVELS = [
    {
        "version",
        "arguments",
        "boosting",
        "schedules",
        "labels",
        "imbalance",
        "files",
        "extras",
        "data_files",
    },
    {
        "gate",
        "replicas",
        "batch_statistics",
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
    {
        "task",
        "rounds",
        "checkpointing",
        "callback",
        "baselines",
        "baselines.plain",
        "baselines.horizontal_voting",
        "baselines.snapshot",
        "baselines.snapshot_boosting",
        "baselines.fast_geometric",
        "baselines.weight_averaging",
        "baselines.parallel",
    },
    {
        "demo",
        "inspection",
        "analysis",
        "analysis.diversity",
        "analysis.performance",
        "analysis.class_weights",
        "analysis.calibration",
        "analysis.samples",
        "analysis.geometry",
        "analysis.plane_cache",
        "analysis.loss_plane",
        "analysis.plots",
        "analysis.tensorboard",
        "analysis.evaluation",
        "analysis.findings",
        "analysis.page",
        "analysis.sections",
        "analysis.sample_sections",
        "analysis.palette",
        "analysis.boosting_plots",
        "analysis.map_plots",
        "analysis.report",
        "export",
        "export.samples",
        "export.graph",
        "export.runtimes",
        "export.verify",
        "export.placing",
        "export.serving",
        "export.onnx_files",
        "export.conversion",
        "export.precisions",
        "export.saved_model",
        "export.onnx",
        "export.triton",
        "export.from_run",
    },
    {"cli"},
    {"__main__"},
]
LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}


@functools.cache
def imported(name):
    """Modules of this package that a module imports."""
    tree = ast.parse(path_of(name).read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            first, _, rest = node.module.partition(".")
            if first == "cbnn_keras":
                inner = {f"{rest}.{a.name}".lstrip(".") for a in node.names}
                modules = inner & set(LEVEL)
                found |= modules or {rest}
    return found


def path_of(name):
    module = PACKAGE / name.replace(".", "/")
    is_package = module.is_dir()
    return module / "__init__.py" if is_package else module.with_suffix(".py")


def test_every_module_has_a_level():
    files = {p.relative_to(PACKAGE) for p in PACKAGE.rglob("*.py")}
    modules = {".".join(p.with_suffix("").parts) for p in files} - {"__init__"}
    names = {name.removesuffix(".__init__") for name in modules}
    assert names == set(LEVEL)


@pytest.mark.parametrize("name", sorted(LEVEL))
def test_no_import_goes_upward(name):
    upward = {m for m in imported(name) if LEVEL[m] > LEVEL[name]}
    assert not upward


def test_no_cycle_within_a_level():
    sorter = graphlib.TopologicalSorter({m: imported(m) for m in LEVEL})
    sorter.prepare()  # raises if there is one


def test_arithmetic_and_command_line_load_without_tensorflow():
    code = (
        "import sys, cbnn_keras.boosting, cbnn_keras.schedules, "
        "cbnn_keras.labels, cbnn_keras.imbalance, cbnn_keras.arguments, "
        "cbnn_keras.cli; "
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names():
    for name in cbnn_keras.__all__:
        assert getattr(cbnn_keras, name)
    assert set(dir(cbnn_keras)) == set(cbnn_keras.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cbnn_keras.nothing  # noqa: B018
