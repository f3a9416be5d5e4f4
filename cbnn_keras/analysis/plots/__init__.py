"""Plots, each on axes that it is given, and the sentences that go below.

The numbers come from the modules of `analysis`, the colours from
`palette.py`. Figures are the caller's: about 4.4 x 3.3 inches for one plot,
with `layout="constrained"`, is what sizes of letters and spaces are made for.

Each function returns a caption, one or two sentences that say what there is to
see. Errors and accuracies are shares between 0 and 1, drawn in percent.
"""

from cbnn_keras.analysis.plots.boosting import (
    draw_bound,
    draw_class_weights,
    draw_rounds,
    draw_training_errors,
    draw_weight_histogram,
)
from cbnn_keras.analysis.plots.maps import (
    common_limits,
    draw_heat_map,
    draw_loss_plane,
)
from cbnn_keras.analysis.plots.palette import INK, style
from cbnn_keras.analysis.plots.quality import (
    draw_errors,
    draw_reliability,
    draw_size_curve,
    draw_time_to_accuracy,
)

__all__ = [
    "INK",
    "common_limits",
    "draw_bound",
    "draw_class_weights",
    "draw_errors",
    "draw_heat_map",
    "draw_loss_plane",
    "draw_reliability",
    "draw_rounds",
    "draw_size_curve",
    "draw_time_to_accuracy",
    "draw_training_errors",
    "draw_weight_histogram",
    "style",
]
