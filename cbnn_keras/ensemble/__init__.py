"""The ensemble of a run: predict, select, merge."""

from cbnn_keras.ensemble.ensemble import CheckpointEnsemble, ModelNeededError

__all__ = ["CheckpointEnsemble", "ModelNeededError"]
