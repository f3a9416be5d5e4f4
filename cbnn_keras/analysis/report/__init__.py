"""`cbnn report`: what a run has to show, as one page for the browser."""

from cbnn_keras.analysis.report.report import render, write_report

__all__ = ["render", "write_report"]
