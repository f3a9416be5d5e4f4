"""The arithmetic of `benchmarks/price.py`."""

import keras
import price_rows
import price_tables as tables


def test_multiply_adds_by_hand():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            # 4 x 4 places, 3 x 3 x 3 inputs each, 5 filters.
            keras.layers.Conv2D(5, 3, strides=2, padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(7),
        ]
    )
    assert price_rows.multiply_adds(model) == 16 * 27 * 5 + 80 * 7


def test_the_share_of_the_gain_that_is_kept():
    errors = {
        tables.SINGLE: (10.0, 12.0),
        tables.ALL: (8.0, 9.0),
        "distilled": (8.0, 10.0),
    }
    lines = {
        ("digits", seed, row): {"error": error}
        for row, pair in errors.items()
        for seed, error in enumerate(pair)
    }
    # 11 - 9 of 11 - 8.5, with the means of both seeds.
    found = tables.kept(lines, "digits", "distilled", tables.SINGLE)
    assert found == "80%"
    worse = {**lines, ("digits", 0, tables.ALL): {"error": 20.0}}
    found = tables.kept(worse, "digits", "distilled", tables.SINGLE)
    assert found == "no gain to keep"
