"""When a run starts anew, against a loop that is written another way."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbnn_keras.auto_restarts import AutoRestarts, of_settings

LOOKS = (2, 3, 4, 6, 8, 12, 16, 24)


def by_walking(total, losses, gain):
    """Part by part: what is a checkpoint, what starts anew, who votes."""
    ends = [total * i // 24 for i in range(25)]
    checkpoints, starts, voters = [], [], None
    enough, start = None, 0  # of a cycle, in parts; where this one began
    for part in range(1, 25):
        if enough is None:
            if part not in LOOKS:
                continue
            checkpoints.append(ends[part])
            if part in (4, 6, 8, 12, 16) and ends[part] in losses:
                once, twice = losses[ends[part // 2]], losses[ends[part]]
                if twice >= (1 - gain) * once:
                    enough, start = part // 2, part
                    voters = [ends[enough], ends[part]]
                    starts.append(ends[part])
        elif part - start == enough and part <= 24 - enough:
            checkpoints.append(ends[part])
            voters.append(ends[part])
            starts.append(ends[part])
            start = part
        elif part == 24:
            checkpoints.append(ends[part])
            voters.append(ends[part])
    return checkpoints, starts, voters


@given(
    total=st.integers(24, 500),
    losses=st.lists(
        st.sampled_from([1.0, 0.98, 0.971, 0.969, 0.9, 0.5, 0.2]), max_size=7
    ),
)
def test_checkpoints_starts_and_voters(total, losses):
    """By the losses at the looks so far."""
    steps = [total * part // 24 for part in LOOKS]
    known = dict(zip(steps, losses, strict=False))
    cycles = AutoRestarts(total).cycles(known)
    checkpoints, starts, voters = by_walking(total, known, 0.03)
    assert cycles.checkpoints == checkpoints
    assert cycles.starts == starts
    assert cycles.voters == voters
    assert (cycles.enough > 0) == bool(starts)
    assert set(checkpoints) <= set(AutoRestarts(total).steps)


def test_what_comes_later_does_not_change_what_was_decided():
    rule = AutoRestarts(120)
    first = rule.cycles({10: 0.5, 15: 0.5, 20: 0.5})
    later = {10: 0.5, 15: 0.5, 20: 0.5, 30: 0.1, 40: 0.1, 60: 0.4, 80: 0.01}
    assert rule.cycles(later) == first
    assert first.checkpoints == [10, 15, *range(20, 130, 10)]
    assert first.starts == list(range(20, 120, 10))
    # What is left over makes the last cycle longer.
    longer = rule.cycles({15: 0.5, 30: 0.5})
    assert longer.starts == [30, 45, 60, 75, 90, 105]
    assert rule.cycles({40: 0.5, 80: 0.5}).starts == [80]


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_no_gain_is_too_little(loss):
    """Also where nothing can be gained."""
    assert AutoRestarts(24).cycles({2: loss, 4: loss}).starts[0] == 4
    assert not AutoRestarts(24).cycles({2: 0.3, 4: 0.29}).starts


def test_cycles_are_not_shorter_than_they_may_be():
    """The next look at which they are long enough decides."""
    flat = {10: 0.5, 20: 0.5, 40: 0.5, 80: 0.5}
    for shortest, first in ((10, 20), (11, 40), (20, 40), (40, 80), (41, None)):
        starts = AutoRestarts(120, shortest=shortest).cycles(flat).starts
        assert starts[:1] == ([] if first is None else [first])


def test_nothing_is_decided_before_something_is_learnt():
    """A loss at that of knowing nothing stays there until it falls."""
    flat = {10: 0.693, 20: 0.69, 40: 0.5, 80: 0.5}
    cycles = AutoRestarts(120, chance=0.693).cycles(flat)
    assert cycles.starts == [80]
    unlearnt = AutoRestarts(120, chance=0.693).cycles({10: 0.63, 20: 0.63})
    assert not unlearnt.starts and not unlearnt.compared
    learnt = AutoRestarts(120, chance=0.693).cycles({10: 0.6, 20: 0.6})
    assert learnt.starts and learnt.compared == 20
    assert AutoRestarts(120).cycles({10: 0.6, 20: 0.5}).compared == 20


def test_the_rate_is_a_cosine_of_the_run_and_then_of_each_cycle():
    rule = AutoRestarts(120)
    cycles = rule.cycles({10: 0.5, 15: 0.5, 20: 0.4, 30: 0.4, 40: 0.4})
    for step in range(1, 121):
        # The first cycle is planned to the end; then there are 20 steps each.
        start, length = (0, 120) if step <= 40 else ((step - 1) // 20 * 20, 20)
        share = (step - 1 - start) / length
        expected = 0.2 * (math.cos(math.pi * share) + 1) / 2
        assert cycles.rate(step, 0.2) == pytest.approx(expected)
    undecided = rule.cycles({10: 0.5})
    assert undecided.rate(41, 0.2) == pytest.approx(
        0.1 * (math.cos(math.pi / 3) + 1)
    )


@pytest.mark.parametrize("num_parts", [5, 12, 24, 36])
def test_how_many_checkpoints_there_can_be(num_parts):
    """As many as there are for the worst losses of all."""
    rule = AutoRestarts(10 * num_parts, num_parts=num_parts)
    looks = rule.cycles({}).checkpoints
    found = [
        rule.cycles({once: 0.5, twice: 0.5}).checkpoints
        for once, twice in itertools.combinations(looks, 2)
    ]
    assert rule.most_checkpoints == max(map(len, [looks, *found]))


def test_a_run_remembers_its_rule():
    rule = AutoRestarts(100, num_parts=6, gain=0.1, shortest=20, chance=1.1)
    assert of_settings(rule.settings, 100) == rule
    assert of_settings(rule.settings, None) is None  # put together of others
    assert of_settings({"restarts": 6}, 100) is None
    with pytest.raises(ValueError, match="23 steps has no room for 24 cycles"):
        _ = AutoRestarts(23).steps
