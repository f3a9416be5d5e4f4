"""Hostile runs and files: no harm, one type of error, nothing silent."""

import hostile_files
import hostile_runs
import pytest
from judge import ALL, CHEAP, Judge, faults

pytestmark = pytest.mark.faults

RUNS = hostile_runs.cases()
FILES = hostile_files.cases()


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    with Judge(tmp_path_factory.mktemp("hostile")) as one:
        yield one


def of_kind(cases, kind):
    return [name for name, case in cases.items() if case.kind == kind]


def check(judge, names, operations=CHEAP):
    found = [
        line
        for name in names
        for verdict in judge.run(name, operations)
        for line in faults(verdict)
    ]
    assert not found, "\n".join(found)


def test_there_are_as_many_as_promised():
    assert len(RUNS) >= 150
    assert len(FILES) >= 100


@pytest.mark.parametrize("kind", hostile_runs.kinds())
def test_hostile_runs_harm_nothing(kind, judge):
    """Loaded, asked for predictions, merged and inspected.

    Every second one, and all with code or links; all of them are in
    benchmarks/hostile.py.
    """
    step = 1 if kind in ("code", "links") else 2
    check(judge, of_kind(RUNS, kind)[::step])


@pytest.mark.parametrize("kind", hostile_runs.kinds())
def test_no_operation_is_a_way_in(kind, judge):
    """A few, and more of the links: all that a user does with a run.

    All of them are in benchmarks/hostile.py.
    """
    step = 4 if kind == "links" else 24
    check(judge, of_kind(RUNS, kind)[::step], ALL)


@pytest.mark.parametrize("kind", hostile_files.kinds())
def test_hostile_files_harm_nothing(kind, judge):
    """Every second one; all of them are in benchmarks/hostile.py."""
    check(judge, of_kind(FILES, kind)[::2])
