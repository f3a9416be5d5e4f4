"""When a training set was fit, and what the next run could afford."""

import re

import numpy as np
import pytest
from helpers import dense_model, header, round_at

from cbnn_keras.auto_restarts import AutoRestarts
from cbnn_keras.boosting_policies import Boosting
from cbnn_keras.runs.advice import restart_advice
from cbnn_keras.runs.manifest import Settings
from cbnn_keras.runs.run import MemoryRun


def run_with(
    errors, own=None, method="cbnn", own_distribution=None, losses=None
):
    """A run of 200 samples, of which so many are wrong at each checkpoint."""
    losses = losses or [None] * len(errors)
    settings = Settings(Boosting(), own=own or {}, total_steps=1200)
    found = MemoryRun(
        header(
            dense_model(), num_samples=200, settings=settings, method=method
        ),
        own_distribution,
    )
    for number, num_wrong in enumerate(errors, start=1):
        record = round_at(100 * number, validation_loss=losses[number - 1])
        found.add_round(record, np.arange(200) >= num_wrong, None)
    found.finish()
    return found


@pytest.mark.parametrize(
    ("errors", "own", "expected"),
    [
        # 4 of 200 are 2 %, which counts as fit; at 200 of 600 steps.
        (
            [9, 4, 0, 0, 0, 0],
            {},
            "The training set was fit after step 200 of 600: the next run "
            "could afford restarts=3, or see by itself, with restarts='auto' "
            "and held-out data.",
        ),
        (
            [0] * 9,
            {},
            "The training set was fit after step 100 of 900: the next run "
            "could afford restarts=6 or more, or see by itself, with "
            "restarts='auto' and held-out data.",
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
            [9, 0],
            AutoRestarts(1200, chance=1.0).settings,
            "There was no look at whether twice the steps help on held-out "
            "data, as in a run that is too short for it: the model never "
            "started anew.",
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


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        # Looks after 100, 150, 200 of 1200 steps and so on.
        ([1.0, 0.95, 0.9], "^On held-out data the loss never was a tenth "),
        ([1.0, 0.95, 0.89], "^There was no look at whether twice the"),
        ([0.8, 0.7, 0.7], "^Up to step 200 of 1200 twice the steps still"),
        ([0.8, 0.79, 0.7], "^After step 100 twice the steps no longer help"),
    ],
)
def test_advice_by_held_out_losses(losses, expected):
    """Knowing nothing but how frequent classes are has a loss of 1."""
    rule = AutoRestarts(1200, chance=1.0)
    run = run_with([9, 9, 9], rule.settings, losses=losses)
    assert re.search(expected, restart_advice(run))


def test_no_advice_on_what_is_not_finished():
    for own in ({}, {"restarts": 2}, AutoRestarts(1200).settings):
        run = run_with([9, 9], own)
        run.is_finished = False
        assert restart_advice(run) is None


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
