"""Limits of what a process may write and open."""

import pytest
from processes import contents

pytestmark = pytest.mark.faults


def assert_intact_and_resumable(processes, path, whole):
    check = processes.run("check", path)
    assert check.error is None, check.output
    again = processes.run("train", path)
    assert again.has_succeeded, again.output
    assert contents(path) == whole


@pytest.mark.parametrize("num_bytes", [500, 2_000, 6_000, 12_000])
def test_a_limit_of_file_size(tmp_path, processes, whole, num_bytes):
    path = tmp_path / "run"
    limits = {"RLIMIT_FSIZE": num_bytes}
    ended = processes.run("train", path, limits=limits)
    assert ended.code == 0, f"signal {-ended.code}"
    kinds, message = ended.error
    assert {"OSError", "ValueError"} & set(kinds), ended.output
    assert str(path) in message
    assert "could not be written" in message or "cannot be written" in message
    assert_intact_and_resumable(processes, path, whole)


@pytest.mark.parametrize("num_files", [24, 32, 64])
def test_a_limit_of_open_files(tmp_path, processes, whole, num_files):
    path = tmp_path / "run"
    limits = {"RLIMIT_NOFILE": num_files}
    ended = processes.run("train", path, limits=limits)
    assert ended.code == 0, f"signal {-ended.code}"
    if ended.error is not None:
        assert "Too many open files" in ended.error[1], ended.output
    assert_intact_and_resumable(processes, path, whole)
