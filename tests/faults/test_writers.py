"""Several processes that want to write to one directory at the same time."""

import re

import pytest
from processes import contents

pytestmark = pytest.mark.faults

TAKEN = r"is in use: another process|already holds a run"


@pytest.mark.parametrize("num_writers", [2, 4])
@pytest.mark.parametrize("resume", [True, False])
def test_one_process_trains(tmp_path, processes, whole, num_writers, resume):
    path = tmp_path / "run"
    pieces = [("train", path, resume)] * num_writers
    writers = processes.run_together(pieces)
    assert [writer.code for writer in writers] == [0] * num_writers
    trained = [w for w in writers if "epoch 2" in w.output]
    assert len(trained) == 1
    assert trained[0].error is None
    for writer in writers:
        # Who comes when all is done finds nothing to do, with `resume`.
        if writer is not trained[0] and (writer.error or not resume):
            assert re.search(TAKEN, writer.error[1]), writer.output
    assert contents(path) == whole


@pytest.mark.parametrize("num_writers", [2, 4])
def test_one_process_resumes(tmp_path, processes, whole, num_writers):
    path = tmp_path / "run"
    half = processes.run("train", tmp_path / "run", fatal=60)
    assert half.code < 0
    writers = processes.run_together([("train", path)] * num_writers)
    assert [writer.code for writer in writers] == [0] * num_writers
    assert len([w for w in writers if "epoch 2" in w.output]) == 1
    for writer in writers:
        if writer.error:
            assert re.search(TAKEN, writer.error[1]), writer.output
    assert contents(path) == whole


def test_two_saves_to_one_target(tmp_path, processes, kills):
    whole = kills.folder / "whole"
    target = tmp_path / "saved"
    savers = processes.run_together([("save", whole, target)] * 2)
    assert [saver.code for saver in savers] == [0, 0]
    assert any(saver.error is None for saver in savers)
    for saver in savers:
        if saver.error:
            assert re.search(TAKEN, saver.error[1]), saver.output
    assert contents(target) == contents(kills.folder / "whole-save")
