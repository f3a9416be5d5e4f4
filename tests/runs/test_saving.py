"""Ensembles are saved as a whole or not at all."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from helpers import dense_model, memory_ensemble

from cbnn_keras import CheckpointEnsemble, RunError
from cbnn_keras.runs.saving import saved_whole
from cbnn_keras.support import files, locks

TESTS = pathlib.Path(__file__).parents[1]


@pytest.fixture
def ensemble():
    return memory_ensemble(dense_model(), [1.0, 2.0, 0.5], method="parallel")


def check_complete(path, ensemble):
    loaded = CheckpointEnsemble.load(path)
    assert len(loaded) == len(ensemble) and loaded.run.is_finished
    np.testing.assert_array_equal(loaded.votes, ensemble.votes)


def test_what_was_saved_is_alone_in_its_place(ensemble, tmp_path):
    ensemble.save(tmp_path / "above/run")
    assert os.listdir(tmp_path) == ["above"]
    assert os.listdir(tmp_path / "above") == ["run"]
    check_complete(tmp_path / "above/run", ensemble)


def test_an_empty_directory_is_filled(ensemble, tmp_path):
    (tmp_path / "run").mkdir()
    ensemble.save(tmp_path / "run")
    check_complete(tmp_path / "run", ensemble)


def test_a_link_to_an_empty_directory_is_followed(ensemble, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    ensemble.save(tmp_path / "link")
    check_complete(tmp_path / "real", ensemble)
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_a_link_to_nowhere_is_not_followed(ensemble, tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(RunError, match="link is a file; a run needs a direct"):
        ensemble.save(tmp_path / "link")
    assert os.listdir(tmp_path) == ["link"]


@pytest.mark.parametrize("name", ["notes.txt", ".hidden"])
def test_a_directory_that_is_not_empty_is_left_alone(ensemble, tmp_path, name):
    (tmp_path / name).write_text("mine")
    message = f"^{re.escape(str(tmp_path))} is not empty, and an ensemble is s"
    with pytest.raises(RunError, match=message):
        ensemble.save(tmp_path)
    assert os.listdir(tmp_path) == [name]


def test_a_place_aside_that_is_a_link_is_refused(ensemble, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("mine")
    (tmp_path / ".cbnn-save-run").symlink_to("precious")
    with pytest.raises(RunError, match=".cbnn-save-run is a link, which leads"):
        ensemble.save(tmp_path / "run")
    assert (tmp_path / "precious/file").read_text() == "mine"


@pytest.mark.parametrize(
    ("call", "after"),
    [("fsync", 0), ("fsync", 11), ("replace", 0), ("replace", 6)],
)
def test_a_failure_leaves_nothing(ensemble, tmp_path, monkeypatch, call, after):
    real, calls = getattr(os, call), []

    def fail(*args):
        calls.append(args)
        if len(calls) > after:
            raise KeyboardInterrupt
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(KeyboardInterrupt):
            ensemble.save(tmp_path / "run")
    assert os.listdir(tmp_path) == []
    ensemble.save(tmp_path / "run")
    check_complete(tmp_path / "run", ensemble)


KILLED = """
import os, signal, sys, pathlib
sys.path.insert(0, sys.argv[1])
import keras
from helpers import dense_model, memory_ensemble
from cbnn_keras.support import files

left = int(sys.argv[3])
real = {name: getattr(os, name) for name in ("open", "replace", "fsync")}

def counted(name):
    def call(*args, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real[name](*args, **options)
    return call

keras.utils.set_random_seed(0)
ensemble = memory_ensemble(dense_model(), [1.0, 2.0, 0.5], method="parallel")
for name in real:
    setattr(os, name, counted(name))
ensemble.save(sys.argv[2])
print("calls:", int(sys.argv[3]) - left)
"""


def save_and_die(path, after):
    """Saves in another process, killed after so many calls of the system."""
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(TESTS), str(path), str(after)],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


@pytest.mark.large
def test_kills_leave_nothing_or_all(ensemble, tmp_path):
    done = save_and_die(tmp_path / "whole", 10**6)
    num_calls = int(done.stdout.split()[-1])
    for after in np.linspace(0, num_calls, 9).astype(int):
        path = tmp_path / f"run-{after}"
        died = save_and_die(path, after)
        assert died.returncode == (0 if after == num_calls else -signal.SIGKILL)
        if path.exists():
            check_complete(path, ensemble)
        else:
            ensemble.save(path)
            check_complete(path, ensemble)
        assert not (tmp_path / f".cbnn-save-{path.name}").exists() or (
            path.exists()  # killed between the rename and the end
        )


@pytest.mark.faults
def test_a_kill_leaves_nothing_that_hinders(ensemble, tmp_path):
    assert save_and_die(tmp_path / "run", 40).returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == [".cbnn-save-run"]
    ensemble.save(tmp_path / "run")
    assert os.listdir(tmp_path) == ["run"]
    check_complete(tmp_path / "run", ensemble)


def test_two_do_not_save_to_the_same_place_at_once(ensemble, tmp_path):
    aside = tmp_path / ".cbnn-save-run"
    aside.mkdir()
    (aside / "half").write_text("of another process")
    holder = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDONLY); "
            "fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()",
            str(aside),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        holder.stdout.readline()
        message = "run is in use: another process is saving to it"
        with pytest.raises(RunError, match=message):
            ensemble.save(tmp_path / "run")
        assert (aside / "half").exists()
        holder.communicate(b"\n")
    ensemble.save(tmp_path / "run")
    check_complete(tmp_path / "run", ensemble)


def test_another_that_was_faster_is_not_replaced(ensemble, tmp_path):
    with pytest.raises(RunError, match="run already holds a run, which is ne"):
        with saved_whole(tmp_path / "run") as aside:
            aside.mkdir()
            (tmp_path / "run").mkdir()
            (tmp_path / "run/manifest.json").write_text("{}")
    assert os.listdir(tmp_path) == ["run"]
    assert (tmp_path / "run/manifest.json").read_text() == "{}"


def test_locks_are_released(ensemble, tmp_path):
    with pytest.raises(ZeroDivisionError):
        with saved_whole(tmp_path / "run"):
            _ = 1 / 0
    ensemble.save(tmp_path / "run")
    assert not [path for path in locks._locks if tmp_path in path.parents]


def test_a_full_disk_is_explained(ensemble, tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_new", full)
        message = (
            f"^The ensemble in {re.escape(str(tmp_path / 'run'))} could not be "
            "written: .*No space left.* make room, and save it again.$"
        )
        with pytest.raises(OSError, match=message) as caught:
            ensemble.save(tmp_path / "run")
    assert caught.value.errno == 28
    assert os.listdir(tmp_path) == []
