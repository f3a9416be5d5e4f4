"""SIGTERM, as from a scheduler, and SIGINT, as from a keyboard."""

import random

import pytest
from processes import contents

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_signals_at_random_moments(tmp_path, processes, kills, whole, name):
    path = tmp_path / "run"
    chance = random.Random(1)
    for _ in range(4):
        seconds = kills.train_seconds * chance.uniform(0.3, 0.9)
        ended = processes.run("train", path, seconds=seconds, signal=name)
        if name == "SIGTERM":
            # Outside `fit` it ends the process as ever.
            assert ended.code == -15 or ended.error in (
                None,
                ("SystemExit", "143"),
            )
        elif ended.error:
            assert ended.error[0] == "KeyboardInterrupt", ended.output
        if ended.error and ended.error[0] == "SystemExit":
            assert "start the same script again with" in ended.output
            assert str(path) in ended.output
    last = processes.run("train", path)
    assert last.has_succeeded, last.output
    assert contents(path) == whole
