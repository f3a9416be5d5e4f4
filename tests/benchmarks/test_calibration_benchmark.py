"""Tests of what `benchmarks/calibration.py` says about its own limits."""

import numpy as np
import pytest
from calibration import drawn_from, floor_of, reachable

from cbnn_keras.calibration import Scaling


def said(num, seed=0):
    """Probabilities of three classes, sure of some samples, not of others."""
    logits = np.random.default_rng(seed).normal(size=(num, 3)) * 2
    odds = np.exp(logits)
    return odds / odds.sum(axis=1, keepdims=True)


def test_labels_are_drawn_as_often_as_probabilities_say():
    p = np.tile([0.2, 0.0, 0.8], (10_000, 1))
    drawn = drawn_from(p, np.random.default_rng(0))
    found = np.bincount(drawn, minlength=3) / len(p)
    # Five standard errors of 0.004.
    np.testing.assert_allclose(found, [0.2, 0, 0.8], atol=0.02)


@pytest.mark.parametrize("truth", [Scaling(1.0), Scaling(2.0), Scaling(0.5)])
def test_more_samples_reach_further(truth):
    """Down to the floor, which more samples to judge by lower too."""
    generator = np.random.default_rng(1)

    def mean(num, num_judged):
        p, other = said(num), said(num_judged, seed=1)
        turns = [reachable(truth, p, other, generator) for _ in range(10)]
        return np.mean(turns)

    floor = floor_of(truth(said(2000, seed=1)), generator)
    assert mean(20, 2000) > 2 * floor  # a temperature that is a guess
    assert mean(5000, 2000) == pytest.approx(floor, rel=0.5)
    assert mean(5000, 50_000) < mean(5000, 2000) / 2
