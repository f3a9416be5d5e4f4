"""A kill at any moment leaves what was there, and nothing halfway."""

import pytest

pytestmark = pytest.mark.faults


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("training", 4),
        ("a save in training", 5),
        ("resuming", 2),
        ("ensemble.save", 5),
        ("export_saved_model", 3),
        ("export_onnx", 3),
    ],
)
def test_nothing_is_lost_damaged_or_unequal(kills, kind, number):
    wrong = [kills.kinds[kind]() for _ in range(number)]
    assert wrong == [set()] * number
    assert kills.num_killed > 0
