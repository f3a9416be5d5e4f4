"""Tests of when CBNN takes a checkpoint."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cbnn_keras.schedules import checkpoint_interval, checkpoint_steps

# The same examples on every machine; no deadline, as CI machines stall.
reproducible = settings(derandomize=True, deadline=None, max_examples=300)


@st.composite
def runs(draw):
    """T and t with 1 <= t <= T."""
    total_steps = draw(st.integers(1, 2000))
    return total_steps, draw(st.integers(1, total_steps))


def steps_of_algorithm_1(total_steps, interval):
    """Lines 1, 3, 4, 9 and 11 word by word, as if no vote stopped them."""
    steps = []
    trained = 0
    m = 1
    while total_steps - m * interval > 0:
        trained += min(interval, total_steps - m * interval)
        steps.append(trained)
        m += 1
    trained += max(interval, total_steps - (m - 1) * interval)
    return [*steps, trained]


@pytest.mark.parametrize(
    ("total_steps", "interval", "expected"),
    [
        # Iterations: min(3, 7), min(3, 4), min(3, 1), then max(3, 1).
        (10, 3, [3, 6, 7, 10]),
        # min(3, 6), min(3, 3), and 9 - 3 * 3 ends the loop: max(3, 3).
        (9, 3, [3, 6, 9]),
        # min(5, 7), min(5, 2), then max(5, 2).
        (12, 5, [5, 7, 12]),
        # min(5, 1), then max(5, 1).
        (6, 5, [1, 6]),
        # The loop is never entered: the final model alone.
        (5, 5, [5]),
        (1, 1, [1]),
        # A checkpoint at every step.
        (4, 1, [1, 2, 3, 4]),
    ],
)
def test_steps_by_hand(total_steps, interval, expected):
    assert checkpoint_steps(total_steps, interval) == expected


@reproducible
@given(runs())
@example((1, 1))
@example((7, 7))
@example((8, 7))
@example((14, 7))
def test_steps_are_those_of_algorithm_1(run):
    assert checkpoint_steps(*run) == steps_of_algorithm_1(*run)


@reproducible
@given(runs())
def test_steps_increase_up_to_the_last_step(run):
    total_steps, interval = run
    steps = checkpoint_steps(total_steps, interval)
    assert steps[0] >= 1
    assert all(a < b for a, b in zip(steps, steps[1:], strict=False))
    assert steps[-1] == total_steps


@reproducible
@given(runs())
def test_last_interval_is_whole_and_the_longest(run):
    total_steps, interval = run
    steps = checkpoint_steps(total_steps, interval)
    gaps = [b - a for a, b in zip([0, *steps], steps, strict=False)]
    assert gaps[-1] == interval
    assert max(gaps) == interval
    # Only the last but one may be cut short.
    assert all(gap == interval for gap in gaps[:-2])


@pytest.mark.parametrize("interval", [11, 12, 1000])
def test_interval_longer_than_the_run_is_refused(interval):
    with pytest.raises(
        ValueError,
        match=(
            rf"checkpoint interval is {interval} steps and the run has 10: "
            r"give an interval between 1 and 10, or train for longer\."
        ),
    ):
        checkpoint_steps(10, interval)


@pytest.mark.parametrize("interval", [0, -1])
def test_interval_shorter_than_one_step_is_refused(interval):
    with pytest.raises(
        ValueError,
        match=rf"interval is {interval} steps.*give an interval between 1 and",
    ):
        checkpoint_steps(10, interval)


@pytest.mark.parametrize(
    ("total_steps", "num_checkpoints", "expected"),
    [
        (1000, 6, 167),  # 166.67
        (9, 3, 3),
        (10, 3, 4),  # 3.33
        (10, 1, 10),  # the final model alone
        (10, 10, 1),
        (10, 99, 1),  # more checkpoints than steps: every step
    ],
)
def test_interval_by_hand(total_steps, num_checkpoints, expected):
    assert checkpoint_interval(total_steps, num_checkpoints) == expected


@reproducible
@given(st.integers(1, 5000), st.integers(1, 200))
def test_interval_is_the_shortest_with_so_many_checkpoints(total, wanted):
    interval = checkpoint_interval(total, wanted)
    assert len(checkpoint_steps(total, interval)) <= wanted
    if interval > 1:
        assert len(checkpoint_steps(total, interval - 1)) > wanted


def test_interval_is_exact_for_integers_beyond_float64():
    # 2**53 + 1 has no float64, so ceil(T / M) in floats loses the last step.
    total_steps = 2**53 + 1
    assert math.ceil(total_steps / 1) != total_steps
    assert checkpoint_interval(total_steps, 1) == total_steps
