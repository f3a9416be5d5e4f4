"""Of several processes that want a directory at once, one gets it."""

import collections
import os
import pathlib
import subprocess
import sys

import pytest
from helpers import dense_model, header, scored_run

from cbnn_keras import CheckpointEnsemble, RunError
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.support import locks

TESTS = pathlib.Path(__file__).parents[1]
CLAIMING = """
import sys, pathlib
sys.path.insert(0, sys.argv[1])
from helpers import dense_model, header
from cbnn_keras import RunError
from cbnn_keras.runs.directory import RunDirectory

model, overwrite = dense_model(), sys.argv[3] == "overwrite"
about = header(model)
print("ready", flush=True)
for line in sys.stdin:
    path = pathlib.Path(sys.argv[2]) / line.strip()
    try:
        if sys.argv[3] == "claim":
            RunDirectory.claim(path)
        else:
            RunDirectory.create(path, about, model, overwrite=overwrite)
        print("won", flush=True)
    except RunError as error:
        text = str(error)
        known = ("is in use", "already holds a run")
        print(next((k for k in known if k in text), text), flush=True)
"""


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("how", ["create", "overwrite", "claim"])
def test_exactly_one_of_several_processes_wins(tmp_path, how):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMING, TESTS, tmp_path, how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        for _ in range(3)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for number in range(10):
            if how != "create":
                scored_run(tmp_path / f"run-{number}", num_rounds=1)
            for process in processes:
                process.stdin.write(f"run-{number}\n")
                process.stdin.flush()
            found = [process.stdout.readline().strip() for process in processes]
            counts = collections.Counter(found)
            assert counts.pop("won") == 1
            assert set(counts) <= {"is in use", "already holds a run"}
            RunDirectory.open(tmp_path / f"run-{number}").verify()
    finally:
        for process in processes:
            process.stdin.close()
            process.wait()
            process.stdout.close()


@pytest.fixture
def used_elsewhere(tmp_path):
    """A run that another process trains in."""
    scored_run(tmp_path / "run")
    holder = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDONLY); "
            "fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()",
            tmp_path / "run",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        holder.stdout.readline()
        yield tmp_path / "run"
        holder.communicate(b"\n")


def test_a_run_in_use_is_not_overwritten(used_elsewhere):
    before = (used_elsewhere / "manifest.json").read_bytes()
    model = dense_model()
    for options in ({"overwrite": True}, {"restart": True}, {}):
        with pytest.raises(RunError, match="run is in use: another process"):
            RunDirectory.create(used_elsewhere, header(model), model, **options)
    assert (used_elsewhere / "manifest.json").read_bytes() == before
    CheckpointEnsemble.load(used_elsewhere)  # to read it is no harm


def is_locked(path):
    return path.resolve() in locks._locks


def test_a_refusal_leaves_no_lock(tmp_path):
    path, model = scored_run(tmp_path / "run").path, dense_model()
    for options in ({}, {"restart": True}):
        with pytest.raises(RunError, match="already holds a run"):
            RunDirectory.create(path, header(model), model, **options)
        assert not is_locked(path)
    with pytest.raises(ValueError, match="started with other settings"):
        RunDirectory.claim(path, header(model, num_samples=22))
    assert not is_locked(path)
    RunDirectory.claim(path, header(model, num_samples=21))
    assert is_locked(path)
    # A lock that was there before stays.
    with pytest.raises(RunError, match="already holds a run"):
        RunDirectory.create(path, header(model), model)
    assert is_locked(path)
    locks.unlock(path)


def test_only_a_run_without_state_is_started_again(tmp_path):
    model = dense_model()
    for _ in range(2):
        run = RunDirectory.create(
            tmp_path / "run", header(model), model, restart=True
        )
    run.save_state(model, 4, 1, {})
    with pytest.raises(RunError, match="already holds a run"):
        RunDirectory.create(
            tmp_path / "run", header(model), model, restart=True
        )
    locks.unlock(tmp_path / "run")


def test_a_missing_directory_cannot_be_claimed(tmp_path):
    with pytest.raises(OSError, match="The directory was deleted, moved"):
        RunDirectory.claim(tmp_path / "run")
