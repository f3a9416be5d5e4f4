"""One server of processes, and what nobody interrupts, for all tests here."""

import random

import pytest
from kills import Kills
from processes import Processes


@pytest.fixture(scope="session")
def processes(tmp_path_factory):
    server = Processes(tmp_path_factory.mktemp("output"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def kills(processes, tmp_path_factory):
    return Kills(processes, tmp_path_factory.mktemp("kills"), random.Random(0))


@pytest.fixture(scope="session")
def whole(kills):
    """The files of a run that nobody interrupted, by name."""
    return kills.whole
