"""Optional packages: said to be missing, and kept quiet."""

import logging
import os
import subprocess
import sys
import warnings

import pytest
from helpers import dense_model, memory_ensemble

from cbnn_keras.export import export_onnx
from cbnn_keras.support import extras

VARIABLE = "ORT_DISABLE_TELEMETRY"


def test_a_package_is_imported():
    assert extras.need("json.decoder", "onnx") is sys.modules["json.decoder"]


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.part"])
def test_the_command_to_install_is_given(module):
    with pytest.raises(
        ImportError,
        match=r"^This needs no_such_package: pip install "
        r'"cbnn-keras\[onnx\]"\. '
        r"\(No module named 'no_such_package'\)$",
    ):
        extras.need(module, "onnx")


def test_a_package_that_fails_to_load_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text(
        "raise ImportError('libfoo.so: cannot open shared object file')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"broken_package: .*\(libfoo\.so"):
        extras.need("broken_package", "onnx")


@pytest.mark.parametrize("module", ["tf2onnx", "onnx", "onnxruntime"])
def test_exports_say_what_is_missing(module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ImportError,
        match=rf'This needs .*pip install "cbnn-keras\[onnx\]".*\b{module}\b',
    ):
        export_onnx(
            memory_ensemble(dense_model(), [1.0]),
            tmp_path / "new/a.onnx",
            verbose=0,
        )
    assert not any(tmp_path.iterdir())


def test_other_errors_are_not_taken_for_a_missing_package(
    tmp_path, monkeypatch
):
    (tmp_path / "odd_package.py").write_text("raise RuntimeError('odd')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="odd"):
        extras.need("odd_package", "onnx")


@pytest.mark.parametrize(
    ("before", "after"), [(None, "1"), ("0", "0"), ("1", "1")]
)
def test_telemetry_is_off_unless_it_was_asked_for(before, after, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    extras.need("json", "onnx")
    assert os.environ[VARIABLE] == after


def test_telemetry_is_off_before_onnxruntime_is_loaded(tmp_path):
    """A package in its place writes down what it finds."""
    (tmp_path / "onnxruntime.py").write_text(
        f"import os; print(os.environ.get({VARIABLE!r}))"
    )
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE}
    # The module alone: nothing of TensorFlow is loaded.
    code = (
        "import importlib.util as u; "
        f"spec = u.spec_from_file_location('extras', {extras.__file__!r}); "
        "m = u.module_from_spec(spec); spec.loader.exec_module(m); "
        "m.need('onnxruntime', 'onnx')"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "1\n"


@pytest.mark.parametrize("is_broken", [False, True])
@pytest.mark.parametrize("level", [logging.NOTSET, logging.WARNING])
def test_quiet_is_over_in_the_end(is_broken, level, caplog):
    logging.disable(level)
    filters = list(warnings.filters)
    try:
        with extras.quiet():
            logging.getLogger("tf2onnx").critical("heard by nobody")
            warnings.warn("nor this", UserWarning, stacklevel=1)
            if is_broken:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert is_broken
    assert logging.root.manager.disable == level
    assert warnings.filters == filters
    logging.getLogger("tf2onnx").critical("heard again")
    logging.disable(logging.NOTSET)
    assert caplog.messages == ["heard again"]
    with pytest.raises(UserWarning, match="an error again"):
        warnings.warn("an error again", UserWarning, stacklevel=1)
