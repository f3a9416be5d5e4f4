"""Tests of checkpoints and learning rates by step."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cbnn_keras.schedules import (
    affordable_restarts,
    checkpoint_interval,
    checkpoint_steps,
    cycle_ends,
    cyclic_cosine_rate,
    decayed_rate,
    geometric_cycle,
    geometric_steps,
    last_steps,
    triangular_rate,
)

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


# Learning rates and cycles of the other methods


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        # 10 steps an epoch; 50 steps of warm-up; drops after 20, 40, 60, ...
        (1, 0.05 * 1 / 50),
        (20, 0.05 * 20 / 50),
        (21, 0.05 * 0.96 * 21 / 50),
        (50, 0.05 * 0.96**2),
        (60, 0.05 * 0.96**2),
        (61, 0.05 * 0.96**3),
        (2000, 0.05 * 0.96**99),
    ],
)
def test_decayed_rate_by_hand(step, expected):
    assert decayed_rate(step, 10) == pytest.approx(expected, rel=1e-12)


def test_decayed_rate_ends_where_the_paper_does():
    # 0.96^100 = 0.0169 of the start after 200 epochs.
    assert decayed_rate(2001, 10) / 0.05 == pytest.approx(0.0169, abs=1e-4)
    assert decayed_rate(1, 10, warmup_epochs=0) == 0.05


@pytest.mark.parametrize("scale", [0.1, 0.24, 0.3, 0.7])
def test_decayed_rate_scales_with_the_length_of_a_run(scale):
    # Rounding must not shift a drop by a step.
    options = {"epochs_per_drop": 2 * scale, "warmup_epochs": 5 * scale}
    for epoch in range(0, 200, 2):
        short = decayed_rate(round(epoch * 100 * scale) + 1, 100, **options)
        share = 1 if epoch >= 5 else (epoch * 100 * scale + 1) / (500 * scale)
        expected = 0.05 * 0.96 ** (epoch // 2) * share
        assert short == pytest.approx(expected, rel=1e-9)


@reproducible
@given(st.integers(1, 3000), st.integers(1, 40))
@example(10, 4)
@example(7, 9)
def test_cycles_start_high_and_end_low(total_steps, num_cycles):
    ends = cycle_ends(total_steps, num_cycles)
    length = math.ceil(total_steps / num_cycles)
    assert ends[-1] == total_steps and len(ends) <= num_cycles
    assert all(end == (i + 1) * length for i, end in enumerate(ends[:-1]))
    starts = [1, *(end + 1 for end in ends[:-1])]
    for start, end in zip(starts, ends, strict=True):
        rates = [
            cyclic_cosine_rate(step, total_steps, num_cycles, 0.2)
            for step in range(start, end + 1)
        ]
        assert rates[0] == pytest.approx(0.2)
        assert rates == sorted(rates, reverse=True)
        assert all(0 < rate <= 0.2 for rate in rates)


def test_cosine_is_at_its_middle_in_the_middle_of_a_cycle():
    assert cyclic_cosine_rate(6, 10, 1, 0.2) == pytest.approx(0.1)
    assert cyclic_cosine_rate(3 + 20, 40, 4, 0.2) == pytest.approx(
        0.1 * (1 + math.cos(0.2 * math.pi))
    )


@reproducible
@given(st.integers(1, 50), st.integers(2, 12), st.integers(0, 400))
def test_geometric_members_are_at_the_lowest_rate(half, num, before):
    cycle = 2 * half
    total_steps = (2 * num - 3) * half + before + 1
    steps = geometric_steps(total_steps, num, cycle)
    assert len(steps) == num and steps[-1] == total_steps
    assert steps[0] == before + 1
    for step in steps[1:]:
        # t = 1/2 would be the step after it: the last one before the rise.
        position = step - steps[0]
        assert (2 * position) % cycle == 0 and position % cycle == half
        after = triangular_rate(position + 1, cycle, 0.05, 0.0005)
        assert after == pytest.approx(0.0005)


@reproducible
@given(
    st.integers(20, 5000),
    st.integers(2, 10),
    st.sampled_from([0.5, 0.75, 0.8, 0.9]),
)
def test_geometric_cycles_fill_the_rest_of_the_run(total_steps, num, share):
    try:
        cycle = geometric_cycle(total_steps, num, share)
    except ValueError:
        assert total_steps * (1 - share) < 2 * num - 3 + 1e-6
        return
    first = geometric_steps(total_steps, num, cycle)[0]
    assert first >= math.floor(total_steps * share + 1e-6)
    # One step more in each half cycle would be too many.
    longer = total_steps - (2 * num - 3) * (cycle // 2 + 1)
    assert longer < total_steps * share + 1e-6


def test_cycles_that_cannot_be():
    with pytest.raises(ValueError, match="5 steps has no middle"):
        geometric_steps(100, 3, 5)
    with pytest.raises(ValueError, match="0 steps has no middle"):
        geometric_steps(100, 3, 0)
    with pytest.raises(ValueError, match="2 cycles of 80 steps do not fit"):
        geometric_steps(100, 3, 80)
    with pytest.raises(ValueError, match="2 steps after the first part are"):
        geometric_cycle(10, 6, 0.8)


@reproducible
@given(st.integers(1, 300), st.integers(1, 20), st.integers(1, 50))
def test_last_steps(total_steps, num, spacing):
    found = last_steps(total_steps, num, spacing)
    expected = [
        step
        for step in range(1, total_steps + 1)
        if (total_steps - step) % spacing == 0
    ][-num:]
    assert found == expected


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], (10, 6)),  # not 7
        ([0.5, 0.02, 0.3, 0.0, 0.0, 0.0, 0.0], (20, 3)),  # 70 // 20
        ([0.5, 0.5, 0.5, 0.01, 0.0, 0.0, 0.0], (40, 1)),
        ([0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.021], (None, 1)),
    ],
)
def test_restarts_that_a_run_could_afford(errors, expected):
    steps = [10, 20, 30, 40, 50, 60, 70]
    assert affordable_restarts(steps, errors) == expected
