"""Mutated runs: refused, or the same predictions to the bit."""

import fuzz
import pytest
from judge import Judge

pytestmark = pytest.mark.faults

NUM_MUTATIONS = 600  # of 5,000 in benchmarks/hostile.py
STRIDE = 13  # every so many bits of a manifest; prime, so that all turns come


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    with Judge(tmp_path_factory.mktemp("fuzz")) as one:
        yield one


def check(verdicts):
    found = [
        f"{verdict['seed']}, {verdict['what']}: {text}"
        for verdict in verdicts
        for text in verdict["faults"]
    ]
    assert not found, "\n".join(found)


def test_mutations_are_refused_or_change_nothing(judge):
    check(judge.fuzz(range(NUM_MUTATIONS)))


def test_no_bit_of_a_manifest_can_flip_unseen(judge):
    check(judge.flips(range(0, fuzz.num_flips(judge.shared), STRIDE)))
