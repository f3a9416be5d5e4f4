"""What is said when a run cannot be written, and what is left of it."""

import errno
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from helpers import dense_model, round_at, scored_run

from cbnn_keras import CheckpointEnsemble, RunError
from cbnn_keras.models import copying
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.run_failures import run_failures_explained
from cbnn_keras.support import files

TESTS = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "What it held before is intact: make room, and resume"),
        (errno.EDQUOT, "intact: make room, or have your quota raised, and"),
        (errno.EFBIG, r"intact: raise the limit .* \(`ulimit -f`\), and resum"),
        (errno.EMFILE, r"intact: raise the limit .* \(`ulimit -n`\), and res"),
        (errno.EROFS, "intact: make the disk writable again, and resume"),
        (errno.EACCES, "intact: see to it that you may write there, and"),
        (errno.ENOENT, r"\. The directory was deleted, moved or unmounted wh"),
        (errno.ESTALE, r"\. The directory was deleted, moved or unmounted wh"),
        (errno.EIO, "intact: see to what the system says, and resume it"),
    ],
)
def test_advice_depends_on_what_the_system_says(number, advice):
    path = pathlib.Path("/a/run")
    text = re.escape(os.strerror(number))
    message = f"^The run in /a/run could not be written: .*{text}.*{advice}"
    with pytest.raises(OSError, match=message) as caught:
        with run_failures_explained(path):
            raise OSError(number, os.strerror(number))
    assert caught.value.errno == number
    assert str(caught.value).endswith("resume it with `resume=True`.")


def test_the_outermost_explanation_speaks():
    with pytest.raises(
        OSError, match="^The ensemble in b .*and wait.$"
    ) as outer:
        with run_failures_explained(pathlib.Path("b"), "ensemble", "wait"):
            with run_failures_explained(pathlib.Path("a")):
                raise OSError(errno.ENOSPC, "full")
    assert "The run in" not in str(outer.value)


def test_a_deleted_directory_is_not_made_room_in(tmp_path):
    run = scored_run(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(
        OSError, match="The directory was deleted, moved or"
    ) as e:
        run.add_round(round_at(16), np.ones(21, bool), dense_model())
    assert "make room" not in str(e.value)


def test_no_room_for_temporary_files_is_explained(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    message = r"Keras could not describe the model .*set TMPDIR"
    with pytest.raises(OSError, match=message):
        copying.architecture_bytes(dense_model())
    with pytest.raises(RunError, match=rf"^A run cannot be .*{message}"):
        scored_run(tmp_path / "run")


def test_a_run_that_could_not_be_started_is_not_locked(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_new", full)
        with pytest.raises(RunError, match="cannot be written to .*No space"):
            scored_run(tmp_path / "run")
    code = (
        "import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDONLY); "
        "fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "run"], check=True)


LIMITED = """
import resource, sys, pathlib
sys.path.insert(0, sys.argv[1])
import numpy as np
from helpers import dense_model, round_at
from cbnn_keras.runs.directory import RunDirectory

run = RunDirectory.claim(pathlib.Path(sys.argv[2]))
model = dense_model()
model.optimizer.build(model.trainable_variables)
limit = int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    if sys.argv[4] == "member":
        run.add_round(round_at(16), np.ones(21, bool), model)
    else:
        run.save_state(model, 13, 4, {})
except OSError as error:
    print(error)
print("alive")
"""


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("what", ["member", "state"])
def test_a_limit_on_the_size_of_files_does_not_end_the_process(tmp_path, what):
    """HDF5 takes the process down, if it writes the file itself."""
    scored_run(tmp_path / "run")
    before = (tmp_path / "run/manifest.json").read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, TESTS, tmp_path / "run", "4000", what],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    explained, alive = done.stdout.strip().splitlines()
    assert alive == "alive" and done.returncode == 0
    assert re.match(
        f"The run in {tmp_path / 'run'} could not be written: .*File too large"
        ".*intact: raise the limit on the size of files",
        explained,
    )
    assert (tmp_path / "run/manifest.json").read_bytes() == before
    CheckpointEnsemble.load(tmp_path / "run")
    # What is left of it does not hinder.
    RunDirectory.claim(tmp_path / "run").finish()
    assert not (tmp_path / "run/members/16.weights.h5").exists()
