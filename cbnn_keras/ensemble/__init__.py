"""The ensemble of a run: predict, select, merge."""

from cbnn_keras.ensemble.ensemble import CheckpointEnsemble

__all__ = ["CheckpointEnsemble"]
