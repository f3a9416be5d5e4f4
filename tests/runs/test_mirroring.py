"""The copies of a run that other processes have."""

import pathlib

from helpers import trained
from threads import in_threads

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.runs.mirroring import mirror
from cbnn_keras.support.processes import Alone


def content(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in pathlib.Path(directory).rglob("*")
        if path.is_file()
    }


def test_every_process_gets_the_run_of_the_first(tmp_path):
    trained(tmp_path / "0", epochs=2, num_checkpoints=2)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "left.txt").write_text("of an earlier try")
    in_threads(3, lambda p: mirror(tmp_path / str(p.index), p))
    expected = content(tmp_path / "0")
    assert "manifest.json" in expected
    assert content(tmp_path / "1") == content(tmp_path / "2") == expected
    assert len(CheckpointEnsemble.load(tmp_path / "2")) == 2


def test_where_there_is_no_run_there_is_no_copy(tmp_path):
    in_threads(2, lambda p: mirror(tmp_path / str(p.index), p))
    assert not list(tmp_path.iterdir())
    mirror(tmp_path / "0", Alone())
    assert not list(tmp_path.iterdir())
