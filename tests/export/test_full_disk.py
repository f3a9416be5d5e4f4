"""Exports to a disk that is full: one sentence, and nothing is left."""

import os
import re
import subprocess
import sys

import pytest
from disks import small_disk
from export_helpers import tree

from cbnn_keras.export import export_onnx, export_saved_model, export_triton

ADVICE = {
    "No space left on device": "make room, and try again.",
    "File too large": "raise the limit on the size of files (`ulimit -f`), and "
    "try again.",
}


def sentence(path, reason="No space left on device"):
    return re.escape(
        f"{path} could not be written: {reason}. Nothing was changed there: "
        f"{ADVICE[reason]}"
    )


@pytest.mark.parametrize("num_kilobytes", [4, 16, 32, 48])
def test_a_saved_model_on_a_full_disk(ensemble, tmp_path, num_kilobytes):
    """It was TensorFlow's ResourceExhaustedError, in five lines."""
    with small_disk(tmp_path / "disk", num_kilobytes) as disk:
        (disk / "models.config").write_text("# Written by cbnn export.\nold")
        before = tree(disk)
        expected = f"^{sentence(disk / 'model/1')}$"
        with pytest.raises(OSError, match=expected):
            export_saved_model(
                ensemble, disk / "model", serving_config="", verbose=0
            )
        assert tree(disk) == before


@pytest.mark.parametrize("export", [export_onnx, export_triton])
def test_an_onnx_file_on_a_full_disk(
    export, ensemble, converted_before, tmp_path
):
    with small_disk(tmp_path / "disk", 4) as disk:
        (disk / "old.onnx").write_bytes(b"old")
        before = tree(disk)
        path = disk / "old.onnx" if export is export_onnx else disk / "model"
        named = path if export is export_onnx else path / "1"
        with pytest.raises(OSError, match=f"^{sentence(named)}$"):
            export(ensemble, path, verbose=0)
        assert tree(disk) == before


LIMITED = """
import resource, sys
import export_helpers, helpers
from cbnn_keras.export import export_saved_model
ensemble = helpers.memory_ensemble(helpers.dense_model(), [1.0] * 6)
# More than a copy of the model takes, and less than the graph.
resource.setrlimit(resource.RLIMIT_FSIZE, (2**15, 2**15))
try:
    export_saved_model(ensemble, sys.argv[1], verbose=0)
except OSError as error:
    print(error)
"""


@pytest.mark.faults
def test_a_limit_of_the_size_of_files(tmp_path):
    paths = [*sys.path, os.path.dirname(__file__)]
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "model")],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    assert result.returncode == 0, result.stderr
    expected = sentence(tmp_path / "model/1", "File too large")
    assert re.fullmatch(f"{expected}\n", result.stdout)
    assert tree(tmp_path) == {}


def test_a_directory_that_may_not_be_written_to(ensemble):
    """A directory that goes away is not "make room"."""
    with pytest.raises(
        OSError,
        match=r"model could not be written: .*: put it back, and "
        r"try again\.$",
    ):
        export_onnx(ensemble, "/proc/self/model", verbose=0)
