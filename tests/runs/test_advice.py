"""When a training set was fit, and what the next run could afford."""

import numpy as np
import pytest
from helpers import dense_model, header, round_at

from cbnn_keras.boosting_policies import Boosting
from cbnn_keras.runs.advice import restart_advice
from cbnn_keras.runs.manifest import Settings
from cbnn_keras.runs.run import MemoryRun


def run_with(errors, own=None, method="cbnn", own_distribution=None):
    """A run of 200 samples, of which so many are wrong at each checkpoint."""
    settings = Settings(Boosting(), own=own or {})
    found = MemoryRun(
        header(
            dense_model(), num_samples=200, settings=settings, method=method
        ),
        own_distribution,
    )
    for number, num_wrong in enumerate(errors, start=1):
        found.add_round(
            round_at(100 * number), np.arange(200) >= num_wrong, None
        )
    return found


@pytest.mark.parametrize(
    ("errors", "own", "expected"),
    [
        # 4 of 200 are 2 %, which counts as fit; at 200 of 600 steps.
        (
            [9, 4, 0, 0, 0, 0],
            {},
            "The training set was fit after step 200 of 600: the next run "
            "could afford restarts=3.",
        ),
        (
            [0] * 9,
            {},
            "The training set was fit after step 100 of 900: the next run "
            "could afford restarts=6 or more.",
        ),
        (
            [30, 9, 4],
            {},
            "The training set was fit after step 300 of 300: there is no "
            "budget to spare for restarts.",
        ),
        (
            [60, 35, 25],
            {},
            "12.5% of the training set was wrong in the end: unless labels "
            "are, there is no budget to spare for restarts.",
        ),
        (
            [8, 3],
            {"restarts": 2},
            "In the best of 2 cycles 1.5% of the training set stayed wrong: "
            "the cycles were long enough.",
        ),
        (
            [90, 50],
            {"restarts": 2},
            "In the best of 2 cycles 25.0% of the training set stayed wrong: "
            "unless labels are, fewer restarts or a longer run would do "
            "better.",
        ),
    ],
)
def test_advice(errors, own, expected):
    assert restart_advice(run_with(errors, own)) == expected


def test_no_advice_on_what_is_not_cbnn_or_has_no_rounds():
    assert restart_advice(run_with([0, 0], method="sse")) is None
    assert restart_advice(run_with([])) is None


def test_training_error_is_by_the_weights_that_the_user_gave():
    """The ten that are wrong have half of the weight."""
    weights = np.where(np.arange(200) < 10, 19.0, 1.0)
    run = run_with([10], own_distribution=weights / weights.sum())
    assert run.training_errors([100]) == pytest.approx([0.5])


@pytest.mark.parametrize("restarts", ["x", [1], True, 2.5])
def test_restarts_that_no_callback_writes_are_passed_over(restarts):
    found = restart_advice(run_with([0, 0], {"restarts": restarts}))
    assert found.startswith("The training set was fit after step 100 of 200")
