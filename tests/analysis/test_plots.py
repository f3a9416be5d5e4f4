"""What is drawn is what was given, and captions say what there is to see."""

import ast
import dataclasses
import io
import itertools
import pathlib
import re
import sys
from functools import cache, partial

import numpy as np
import pytest
from helpers import round_at
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from cbnn_keras import analysis
from cbnn_keras.analysis import plots
from cbnn_keras.analysis.calibration import Calibration
from cbnn_keras.analysis.class_weights import ClassWeights
from cbnn_keras.analysis.loss_plane import LossPlane
from cbnn_keras.analysis.plots import palette

CORRELATION = np.array([[1, 0.6, 0.9], [0.6, 1, 0.75], [0.9, 0.75, 1]])
PLANE = LossPlane(
    steps=(1000, 2000, 3000),
    x=np.array([-1.0, 0.0, 1.0, 2.0]),
    y=np.array([-1.0, 0.0, 1.0]),
    losses=np.geomspace(0.5, 8, 36).reshape(3, 3, 4),
    points=np.array([[0.5, 0.5], [0.0, 0.0], [1.5, 0.0]]),
    point_losses=np.array([[0.5, 0.6, 0.7], [2.0, 1.5, 1.0], [3.0, 3.0, 2.0]]),
    l2=0.0,
)


@pytest.fixture
def ax():
    return new_axes()


def new_axes():
    figure = Figure(figsize=(4.4, 3.3), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    return figure.subplots()


def drawn(ax):
    ax.figure.canvas.draw()
    return ax


def round_of(step, error=0.25, vote=1.0, **others):
    given = {"bound": 0.9, "exponential_loss": 0.5, "is_member": vote > 0}
    return round_at(step, vote, error=error, **given | others).to_json()


def class_weights(mean, is_minority):
    mean = np.array(mean)
    count = np.where(np.isnan(mean), 0, np.where(is_minority, 10, 100))
    return ClassWeights(mean, count, np.array(is_minority))


def calibration_of(confidence, accuracy, count, expected_error=0.1):
    bins = (np.array(values) for values in (confidence, accuracy, count))
    return Calibration(*bins, expected_error, 1.0, 0.5)


def random_matrix(count):
    values = np.random.default_rng(0).uniform(0.5, 0.9, (count, count))
    return np.where(np.eye(count, dtype=bool), 1, (values + values.T) / 2)


def points_of(collection):
    return np.asarray(collection.get_offsets()).tolist()


def texts_of(ax):
    return [text.get_text() for text in ax.texts]


def contrast(first, second):
    """WCAG 2: (lighter + 0.05) / (darker + 0.05)."""
    luminances = []
    for color in (first, second):
        parts = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in to_rgb(color)
        ]
        weighted = zip((0.2126, 0.7152, 0.0722), parts, strict=True)
        luminances.append(sum(weight * part for weight, part in weighted))
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


MANY = np.arange(1, 41)
BINS = calibration_of([0.1, np.nan, 0.9], [0.2, np.nan, 0.7], [1, 0, 3])
HEAT_MAP, ERRORS = plots.draw_heat_map, plots.draw_errors
ROUNDS, BOUND = plots.draw_rounds, plots.draw_bound
CLASSES, HISTOGRAM = plots.draw_class_weights, plots.draw_weight_histogram
RELIABILITY, SIZES = plots.draw_reliability, plots.draw_size_curve
TIMES, LOSS_PLANE = plots.draw_time_to_accuracy, plots.draw_loss_plane
EVERY_PLOT = {
    "heat map": partial(
        HEAT_MAP, random_matrix(6), labels=range(4000, 28000, 4000), title="run"
    ),
    "heat map of one": partial(HEAT_MAP, [[1]]),
    "heat map of ten": partial(
        HEAT_MAP, 0.96 + 0.04 * random_matrix(10), labels=np.arange(10) * 78200
    ),
    "heat map of many": partial(
        HEAT_MAP, random_matrix(40), labels=MANY * 1000
    ),
    "errors": partial(
        ERRORS,
        *([4e5, 8e5, 2.4e6], [0.5, 0.3, 0.2], [0.5, 0.2, 0.1]),
        title="run",
    ),
    "rounds": partial(
        ROUNDS, [round_of(4000, 0.9, 0.0), round_of(8000), round_of(12000)]
    ),
    "many rounds": partial(ROUNDS, [round_of(step * 1000) for step in MANY]),
    "bound": partial(BOUND, [round_of(1), round_of(2, within_budget=False)]),
    "classes": partial(
        CLASSES, class_weights([1.1, 0.9] * 50, [True, False] * 50)
    ),
    "named classes": partial(
        CLASSES,
        class_weights([1.1, 0.9] * 10, [False] * 20),
        class_names=["a class of a long name"] * 20,
    ),
    "histogram": partial(HISTOGRAM, MANY),
    "reliability": partial(RELIABILITY, BINS, after=BINS),
    "sizes": partial(SIZES, 1 / MANY, final_error=0.5),
    "times": partial(
        TIMES,
        {f"method {i}": (MANY, MANY / 50) for i in range(7)},
        targets=[0.5],
    ),
    "plane": partial(LOSS_PLANE, PLANE, 0),
}
every_plot = pytest.mark.parametrize("name", EVERY_PLOT)


@cache
def axes_of(name):
    ax = new_axes()
    caption = EVERY_PLOT[name](ax=ax)
    assert caption.endswith(".") and "nan" not in caption
    return drawn(ax)


def written(ax):
    """All letters that can be seen."""
    hidden = set()
    for each in (ax, *ax.child_axes):
        for axis in (each.xaxis, each.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                if not low <= tick.get_loc() <= high:
                    hidden |= {tick.label1, tick.label2}
    return [
        text
        for text in ax.figure.findobj(Text)
        if text.get_visible() and text.get_text() and text not in hidden
    ]


@every_plot
def test_letters_have_the_ink_of_the_page_or_of_cells(name):
    """On the screen, and in SVG files, which leave out what is black."""
    ax = axes_of(name)
    for text in written(ax):
        is_on_colour = text.axes is not None and text in text.axes.texts
        inks = {plots.INK, *(palette.CELL_INKS if is_on_colour else ())}
        assert to_hex(text.get_color()) in inks, text
    file = io.StringIO()
    ax.figure.savefig(file, format="svg", transparent=True)
    found = re.findall(r'<g id="text_\d+">(.*?)</g>', file.getvalue(), re.S)
    for letters in found:
        assert re.search("fill: #(010203|ffffff|000001)", letters), letters
    assert found


@every_plot
def test_no_data_are_drawn_in_ink(name):
    ax = axes_of(name)
    colors = [line.get_color() for line in ax.lines]
    colors += [patch.get_facecolor() for patch in ax.patches]
    for collection in ax.collections:
        colors += [*collection.get_facecolor(), *collection.get_edgecolor()]
    assert plots.INK not in {to_hex(color) for color in colors}
    assert ax.patch.get_alpha() == 0
    spines = {to_hex(spine.get_edgecolor()) for spine in ax.spines.values()}
    assert spines == {plots.INK}


@every_plot
def test_letters_are_within_the_figure_and_do_not_overlap(name):
    ax = axes_of(name)
    whole = ax.figure.bbox
    boxes = [
        [text.get_text(), text.get_window_extent()]
        for text in written(ax)
        # Upright ones may touch; they are tested by looking at them.
        if text.get_rotation() == 0
    ]
    for text, box in boxes:
        assert box.x0 >= -1 and box.x1 <= whole.x1 + 1, text
        assert box.y0 >= -1 and box.y1 <= whole.y1 + 1, text
    for (text, box), (other, of_other) in itertools.combinations(boxes, 2):
        width = min(box.x1, of_other.x1) - max(box.x0, of_other.x0)
        height = min(box.y1, of_other.y1) - max(box.y0, of_other.y0)
        assert width <= 1 or height <= 2, (text, other)


@pytest.mark.parametrize("page", ["#ffffff", "#16181d"])
def test_series_can_be_seen_on_light_and_dark_pages(page):
    for series in palette.SERIES:
        assert contrast(series.color, page) >= 3


def test_series_differ_in_colour_marker_and_line():
    for name in ("color", "marker", "linestyle"):
        values = {getattr(series, name) for series in palette.SERIES}
        assert len(values) == len(palette.SERIES)


def test_heat_map_holds_the_matrix_and_its_diagonal_takes_no_colours(ax):
    caption = plots.draw_heat_map(CORRELATION, ax, labels=[100, 200, 300])
    (image,) = ax.images
    np.testing.assert_array_equal(image.get_array(), CORRELATION)
    assert image.get_clim() == (0.6, 0.9)
    other = new_axes()
    plots.draw_heat_map(CORRELATION, other, limits=(0.0, 0.5))
    assert other.images[0].get_clim() == (0.0, 0.5)
    assert texts_of(ax) == [f"{v:.2f}" for v in CORRELATION.ravel()]
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == ["100", "200", "300"]
    # (0.6 + 0.9 + 0.75) / 3 = 0.75
    assert caption == (
        "Members 100 and 200 are the most different (correlation 0.60); the "
        "mean over all pairs is 0.75. The lower, the more an average of them "
        "can gain."
    )


def test_heat_map_of_more_members_writes_less(ax):
    plots.draw_heat_map(np.where(np.eye(8) > 0, 1, 0.5), ax)
    # With a third digit, as they are nearly the same.
    assert {*texts_of(ax)} == {"1", ".500"}
    many = new_axes()
    plots.draw_heat_map(random_matrix(40), many)
    assert not many.texts
    assert len(many.get_xticks()) == 10
    (bar,) = many.child_axes
    assert bar.get_ylabel() == "correlation"


@pytest.mark.parametrize("low", [-0.5, 0.1, 0.9])
def test_numbers_in_cells_can_be_read(low):
    ax = new_axes()
    values = np.linspace(low, 1, 100).reshape(10, 10)
    plots.draw_heat_map(values, ax)
    colors = ax.images[0].to_rgba(values).reshape(-1, 4)[:, :3]
    for text, color in zip(ax.texts, colors, strict=True):
        assert contrast(text.get_color(), color) >= 4.5


def test_errors(ax):
    caption = plots.draw_errors(
        [10, 20], [0.3, 0.25], [0.3, 0.205], ax, title="Test", unit="epochs"
    )
    members, stages = ax.lines
    assert members.get_xdata().tolist() == [10, 20]
    assert members.get_ydata().tolist() == [30, 25]
    np.testing.assert_allclose(stages.get_ydata(), [30, 20.5])
    assert ax.get_xlabel() == "epochs" and ax.get_title() == "Test"
    assert caption == (
        "The final model errs on 25.00% of the samples, the ensemble of both "
        "members on 20.50%: the ensemble is better by 4.50 points."
    )


def test_size_curve(ax):
    caption = plots.draw_size_curve([0.25, 0.125, 0.1875], ax, final_error=0.25)
    curve, line = ax.lines
    assert curve.get_xdata().tolist() == [1, 2, 3]
    assert curve.get_ydata().tolist() == [25, 12.5, 18.75]
    assert line.get_ydata() == [25, 25]
    assert points_of(ax.collections[0]) == [[2, 12.5]]
    assert caption == (
        "2 of 3 members err least, on 12.50% of the samples, and all 3 members "
        "on 18.75%; the final model alone errs on 25.00%."
    )


def test_rounds(ax):
    rounds = [
        round_of(1000, 0.9, 0.0),
        round_of(2000, 0.25, 2.5),
        round_of(3000, 0.125, 3.5),
    ]
    caption = plots.draw_rounds(rounds, ax)
    assert [bar.get_height() for bar in ax.patches] == [0, 2.5, 3.5]
    assert texts_of(ax) == ["90.0", "25.0", "12.5"]
    assert points_of(ax.collections[0]) == [[0, 0]]
    names = [label.get_text() for label in ax.get_xticklabels()]
    assert names == ["1,000", "2,000", "3,000"]
    assert caption == (
        "The vote is largest at step 3,000 (3.50, weighted error 12.5%) and "
        "smallest at step 2,000 (2.50, 25.0%). 1 of 3 checkpoints stayed out "
        "of the ensemble, no better than chance (crosses)."
    )


def test_so_many_rounds_that_errors_are_not_written(ax):
    plots.draw_rounds([round_of(step) for step in range(60)], ax)
    assert not ax.texts and len(ax.patches) == 60
    assert len(ax.get_xticks()) <= 7


def test_bound(ax):
    rounds = [
        round_of(1, bound=0.95, exponential_loss=0.6),
        round_of(2, bound=0.9, exponential_loss=0.55),
    ]
    caption = plots.draw_bound(rounds, ax)
    bound, loss = ax.lines
    assert bound.get_xdata().tolist() == [1, 2]
    assert bound.get_ydata().tolist() == [0.95, 0.9]
    assert loss.get_ydata().tolist() == [0.6, 0.55]
    assert caption == (
        "The exponential loss is at most its bound throughout, in the end "
        "0.550 with a bound of 0.900. The votes sum to less than 1/η, as "
        "theorem 1 asks for, and it holds."
    )


def test_bound_beyond_the_budget(ax):
    rounds = [
        round_of(1),
        round_of(2, within_budget=False),
        round_of(3, within_budget=False, bound=0.25),
    ]
    caption = plots.draw_bound(rounds, ax)
    assert ax.lines[2].get_xdata() == [2, 2]
    assert "above its bound in 1 of 3 rounds" in caption
    assert "reach 1/η in round 2: from there on" in caption


def test_class_weights(ax):
    found = class_weights(
        [0.75, 1.5, np.nan, 1.0, 2.0], [False, True, True, False, True]
    )
    caption = plots.draw_class_weights(found, ax)
    others, minority = ax.collections
    assert points_of(others) == [[0, 0.75], [3, 1.0]]
    assert points_of(minority) == [[1, 1.5], [4, 2.0]]
    colors = [to_hex(group.get_facecolor()[0]) for group in (others, minority)]
    assert colors == [palette.BLUE, palette.VERMILLION]
    circle, triangle = (g.get_paths()[0].vertices for g in (others, minority))
    assert len(circle) != len(triangle)
    # (0.75 + 1) / 2 and (1.5 + 2) / 2
    assert [line.get_ydata()[0] for line in ax.lines] == [0.875, 1.75]
    assert len({line.get_linestyle() for line in ax.lines}) == 2
    assert caption == (
        "Samples of minority classes (2) weigh 1.75 on average, those of the "
        "others (2) 0.88: 2.00 times as much. The mean over all samples is 1."
    )


def test_class_weights_without_minority(ax):
    found = class_weights([0.75, 1.25, 1.0], [False] * 3)
    caption = plots.draw_class_weights(
        found, ax, class_names=["cat", "dog", "a very long name of a class"]
    )
    assert len(ax.collections) == len(ax.lines) == 1
    names = [label.get_text() for label in ax.get_xticklabels()]
    assert names == ["cat", "dog", "a very long n…"]
    assert caption == (
        "No class is much smaller than the others. Class dog "
        "weighs most (1.250 on average), class cat least (0.750)."
    )


def test_weight_histogram(ax):
    # The mean is 0.2, so n * omega = 0.5 eight times, 2 and 4.
    weights = [0.1] * 8 + [0.4, 0.8]
    caption = plots.draw_weight_histogram(weights, ax, num_bins=7)
    assert [bar.get_height() for bar in ax.patches] == [8, 0, 0, 1, 0, 0, 1]
    assert ax.patches[0].get_x() == pytest.approx(0.5)
    assert ax.lines[0].get_xdata() == [1, 1]
    assert caption == (
        "Samples weigh between 0.500 and 4.000 times the mean, half of them at "
        "most 0.500. The heaviest tenth has 40% of the weight."
    )


def test_reliability(ax):
    before = calibration_of(
        [0.5, np.nan, 0.9], [0.25, np.nan, 0.75], [4, 0, 12], 0.175
    )
    after = calibration_of(
        [np.nan, 0.6, 0.8], [np.nan, 0.5, 0.75], [0, 4, 12], 0.0625
    )
    caption = plots.draw_reliability(before, ax, after=after, temperature=1.5)
    first, second = ax.collections
    assert points_of(first) == [[0.5, 0.25], [0.9, 0.75]]
    assert points_of(second) == [[0.6, 0.5], [0.8, 0.75]]
    small, large = first.get_sizes()
    assert small < large
    diagonal, line, _ = ax.lines
    assert diagonal.get_xydata().tolist() == [[0, 0], [1, 1]]
    assert line.get_xydata().tolist() == points_of(first)
    # (4 * 0.5 + 12 * 0.9) / 16 = 0.8, (4 * 0.25 + 12 * 0.75) / 16 = 0.625
    assert caption == (
        "The expected calibration error is 17.5%, and 6.2% after scaling "
        "(temperature 1.50). As they are, predictions are overconfident (mean "
        "confidence 0.800, accuracy 0.625); the larger a point, the more "
        "samples."
    )


def test_time_to_accuracy(ax):
    curves = {
        "CBNN": ([1, 2, 3], [0.5, 0.75, 0.625]),
        "single": ([1, 2, 4], [0.25, 0.5, 0.625]),
    }
    caption = plots.draw_time_to_accuracy(curves, ax, targets=[0.5])
    first, second, target = ax.lines
    assert first.get_xdata().tolist() == [1, 2, 3]
    assert first.get_ydata().tolist() == [50, 75, 75]  # best so far
    assert second.get_ydata().tolist() == [25, 50, 62.5]
    assert first.get_drawstyle() == "steps-post"
    assert first.get_linestyle() != second.get_linestyle()
    assert target.get_ydata() == [50, 50]
    assert caption == (
        "CBNN is the first to reach 62.50%, an accuracy that all of them get "
        "to, after 2 epochs (single 4)."
    )


def test_loss_plane(ax):
    caption = plots.draw_loss_plane(PLANE, 0, ax, levels=4)
    contours, *marks = ax.collections
    # From 0.5 to 8 in four equal ratios, whichever panel is drawn.
    np.testing.assert_allclose(contours.levels, [0.5, 1, 2, 4, 8])
    assert [points_of(mark) for mark in marks] == PLANE.points[:, None].tolist()
    assert texts_of(ax) == ["p₁", "p₂", "p₃"]
    assert ax.get_aspect() == 1
    assert caption == (
        "In the round of step 1,000 the loss is lowest at p1, that round's own "
        "member: 0.500 at p1, 0.600 at p2, 0.700 at p3."
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_loss_plane_with_odd_losses(ax, value):
    losses = PLANE.losses.copy()
    losses[0, 0, 0] = value
    odd = dataclasses.replace(PLANE, losses=losses)
    plots.draw_loss_plane(odd, 0, ax)
    levels = drawn(ax).collections[0].levels
    low = value if np.isfinite(value) else losses[np.isfinite(losses)].min()
    np.testing.assert_allclose([levels[0], levels[-1]], [low, 8])


@pytest.mark.parametrize(("height", "aspect"), [(2.0, 1.0), (0.5, "auto")])
def test_a_plane_that_is_nearly_a_line_fills_the_axes(height, aspect, ax):
    plane = dataclasses.replace(
        PLANE,
        x=np.linspace(0, 2, len(PLANE.x)),
        y=np.linspace(0, height, len(PLANE.y)),
    )
    plots.draw_loss_plane(plane, 0, ax)
    assert ax.get_aspect() == aspect


# --- Captions of what is less usual ---


def caption(draw, *arguments, **options):
    return draw(*arguments, ax=new_axes(), **options)


def test_captions_of_heat_maps():
    matrix = [[0, 0.1, 0.3], [0.1, 0, 0.2], [0.3, 0.2, 0]]
    assert caption(HEAT_MAP, matrix, kind="disagreement").startswith(
        "Members 1 and 3 are the most different (disagreement 0.30); the mean "
        "over all pairs is 0.20. The higher, the more"
    )
    assert caption(HEAT_MAP, np.zeros((3, 3)), kind="disagreement") == (
        "All members predict the same: an average gains nothing."
    )
    assert "one member only" in caption(HEAT_MAP, [[1]])
    # Of members that are nearly the same, one digit more.
    matrix = [[1, 0.991, 0.99], [0.991, 1, 0.995], [0.99, 0.995, 1]]
    assert "(correlation 0.990)" in caption(HEAT_MAP, matrix)


def test_captions_of_errors():
    found = caption(ERRORS, [1, 2], [0.3, 0.2], [0.3, 0.21])
    assert "the final model is better by 1.00 points" in found
    errors = [1, 2, 3], [0.3, 0.3, 0.2], [0.3, 0.3, 0.2]
    assert caption(ERRORS, *errors, last="last member") == (
        "The last member errs on 20.00% of the samples, the ensemble of all 3 "
        "members on 20.00%: neither is better."
    )
    # 21.155 - 18.244 = 2.911, but the difference is that of what is written.
    found = caption(ERRORS, [1, 2], [1, 0.211551], [1, 0.18244])
    assert "21.16%" in found and "18.24%" in found
    assert "better by 2.92 points" in found
    assert caption(ERRORS, [1], [0.2], [0.2]) == (
        "The one member errs on 20.00% of the samples."
    )
    assert caption(SIZES, [0.3, 0.2]) == (
        "The ensemble of both members errs least, on 20.00% of the samples."
    )


def test_captions_of_rounds():
    equal = [round_of(1), round_of(2)]
    assert caption(ROUNDS, equal) == "All votes are the same (1.00)."
    found = caption(ROUNDS, [round_of(1, 0.9, 0.0)])
    assert found.startswith("There is no member. 1 of 1 checkpoints")
    assert caption(ROUNDS, [round_of(10, vote=0.43)]) == (
        "The one member has a vote of 0.43 (weighted error 25.0%)."
    )
    found = caption(BOUND, [round_of(1, bound=0.25)])
    assert "above its bound in 1 of 1 rounds" in found
    assert found.endswith("theorem 1 asks for, but the bound does not hold.")


def test_captions_of_weights_that_are_all_the_same():
    same = class_weights([1.0, 1.0 + 1e-9, np.nan], [False] * 3)
    assert caption(CLASSES, same) == (
        "The samples of all classes weigh the same on average."
    )
    assert caption(HISTOGRAM, [0.2] * 5) == "All samples weigh the same."


def test_captions_of_reliability():
    flat = calibration_of([0.5], [0.5], [8], 0.0)
    found = caption(RELIABILITY, flat)
    assert "predictions are neither over- nor underconfident (" in found
    assert "scaling" not in found
    under = calibration_of([0.5], [0.75], [8], 0.25)
    # The mean of two temperatures.
    found = caption(RELIABILITY, under, after=flat, temperature=(1.0, 2.0))
    assert "and 0.0% after scaling (temperature 1.50)" in found
    found = caption(RELIABILITY, under, after=flat, temperature=1, share=0.125)
    assert "after scaling (temperature 1.00 and share 0.125)" in found
    assert "predictions are underconfident (" in found


def test_captions_of_times():
    curve = [10, 20], [0.5, 0.75]
    assert caption(TIMES, {"run": curve}, unit="hours") == (
        "run reaches its best, 75.00%, after 20 hours."
    )
    found = caption(TIMES, {"a": curve, "b": curve})
    assert found.startswith("a and b are the first to reach 75.00%")
    assert found.endswith("after 20 epochs.")


def test_caption_of_a_plane_where_another_member_is_better():
    assert caption(LOSS_PLANE, PLANE, 1) == (
        "In the round of step 2,000 the loss is lowest at p3, although p2 is "
        "that round's own member: 1.000 at p3, 1.500 at p2, 2.000 at p1."
    )


# --- Bad input ---


def refused(message, draw, *arguments, **options):
    with pytest.raises(ValueError, match=message):
        draw(*arguments, ax=new_axes(), **options)


def test_what_cannot_be_drawn_is_refused():
    message = r"draw_heat_map takes a square matrix .* not the shape \(2, 3\)"
    refused(message, HEAT_MAP, np.ones((2, 3)))
    message = r"the shape \(3, 3\) and 2 labels"
    refused(message, HEAT_MAP, CORRELATION, labels=[1, 2])
    message = r"kind='distance'\): kind must be one of 'correlation', 'disagree"
    refused(message, HEAT_MAP, CORRELATION, kind="distance")
    message = r"draw_errors takes vectors of one length.* steps of shape \(2,\)"
    refused(message, ERRORS, [1, 2], [0.5], [0.5])
    refused("draw_size_curve .* received errors of shape", SIZES, [])
    refused("draw_rounds takes vectors", ROUNDS, [])
    refused("draw_bound takes vectors", BOUND, [])
    message = "draw_class_weights has 1 class_names for 2 classes"
    two = class_weights([1.0, 1.0], [False] * 2)
    refused(message, CLASSES, two, class_names=["a"])
    message = (
        "draw_weight_histogram takes finite weights of at least 0, not all"
    )
    refused(message, HISTOGRAM, [0.0, 0.0])
    refused(message, HISTOGRAM, [1.0, np.nan])
    refused("draw_time_to_accuracy needs a curve at least", TIMES, {})
    message = (
        r"draw_time_to_accuracy of 'a' takes .* accuracies of shape \(1,\)"
    )
    refused(message, TIMES, {"a": ([1, 2], [1])})
    refused("times in increasing order", TIMES, {"a": ([2, 1], [0, 1])})
    message = r"draw_loss_plane\(panel=3\): panel must be 0, 1 or 2"
    refused(message, LOSS_PLANE, PLANE, 3)
    message = r"losses of shape \(3, 3, 5\), as y and x are, not \(3, 3, 4\)"
    refused(message, LOSS_PLANE, dataclasses.replace(PLANE, x=np.zeros(5)), 0)
    nothing = dataclasses.replace(PLANE, losses=PLANE.losses * np.nan)
    refused("no loss is finite", LOSS_PLANE, nothing, 0)


def test_import_needs_no_matplotlib_and_drawing_no_pyplot(monkeypatch):
    """It is an extra, and pyplot keeps figures and chooses a window system."""
    for path in pathlib.Path(analysis.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                assert "matplotlib" not in ast.unparse(node), path
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for draw in EVERY_PLOT.values():
        draw(ax=new_axes())
