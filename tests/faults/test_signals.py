"""SIGTERM, as from a scheduler, and SIGINT, as from a keyboard."""

import random
import signal

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
        kinds, message = ended.error or ([], "")
        if name == "SIGINT":
            # TensorFlow's C++ turns one that comes within it into an error
            # of its own; what was raised is named in it, or in its causes.
            assert not kinds or "KeyboardInterrupt" in ended.output, (
                ended.output
            )
        elif kinds:
            assert "SystemExit" in kinds and message == "143", ended.output
            assert "start the same script again with" in ended.output
            assert str(path) in ended.output
        else:  # outside `fit` it ends the process as ever
            assert ended.code in (0, -signal.SIGTERM)
    last = processes.run("train", path)
    assert last.has_succeeded, last.output
    assert contents(path) == whole
