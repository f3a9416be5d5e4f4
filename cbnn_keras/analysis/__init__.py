"""What a run has to show: numbers, plots, a report, and suspicious labels.

Numbers are arrays from arrays: `diversity`, `performance`, `class_weights`,
`calibration`, `loss_plane` and `samples`. `plots` draws them, each on an `ax`
that it is given. `write_report`, the same as `cbnn report`, puts them on one
page.
"""

from cbnn_keras.analysis.evaluation import Labelled
from cbnn_keras.analysis.findings import examine
from cbnn_keras.analysis.report.report import write_report
from cbnn_keras.analysis.samples import (
    HardestSamples,
    Suspects,
    hardest_samples,
    suspects,
)
from cbnn_keras.analysis.tensorboard import TensorBoardLogger

__all__ = [
    "HardestSamples",
    "Labelled",
    "Suspects",
    "TensorBoardLogger",
    "examine",
    "hardest_samples",
    "suspects",
    "write_report",
]
