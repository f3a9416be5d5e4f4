"""Which members are trusted: near the last one by every rule that is given."""

from hypothesis import given
from hypothesis import strategies as st

from cbnn_keras.trust import ALL, Trust, near_last


def test_members_near_the_last_one():
    assert near_last([0.09, 0.05, 0.04], 0.01) == [False, True, True]
    assert near_last([0.3, 0.9], 0.01) == [True, True]
    assert near_last([0.1, 0.0], 0.01) == [False, True]
    # Three of a thousand more, as sums of weights round them.
    assert near_last([0.1 + 0.2, 0.295], 0.005) == [True, True]
    # By likelihood, in runs of format 3.
    assert near_last([1.0, 0.5, 0.4], ratio=1.25) == [False, True, True]
    assert near_last([0.1, 0.0], ratio=1.25) == [False, True]


NUMBERS = st.lists(st.floats(0, 16), min_size=1, max_size=6)


@given(NUMBERS, st.floats(0, 1), st.floats(1, 10))
def test_the_last_member_is_always_trusted(errors, margin, ratio):
    assert near_last(errors, margin, ratio)[-1]


@given(
    st.lists(st.tuples(*[st.floats(0, 1)] * 3), min_size=1, max_size=6),
    st.builds(
        Trust,
        *(st.none() | st.floats(0, 1) for _ in range(2)),
        st.none() | st.floats(1, 3),
    ),
)
def test_a_member_votes_if_no_rule_speaks_against_it(members, trust):
    """In a loop over members, each compared with the last by hand."""
    *_, last = members
    expected = []
    for error, of_classes, loss in members:
        votes = True
        if trust.margin is not None:
            votes = error <= last[0] + trust.margin + 1e-12
        if trust.class_margin is not None:
            votes &= of_classes <= last[1] + trust.class_margin + 1e-12
        if trust.ratio is not None:
            votes &= loss <= trust.ratio * last[2] + 1e-12
        expected.append(votes)
    assert trust.voters(*zip(*members, strict=True)) == expected
    assert ALL.voters(*zip(*members, strict=True)) == [True] * len(members)
