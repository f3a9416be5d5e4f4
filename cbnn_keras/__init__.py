"""CBNN for Keras: one training run, one boosted checkpoint ensemble."""

from typing import TYPE_CHECKING, Any

from cbnn_keras.version import __version__

if TYPE_CHECKING:
    from cbnn_keras.data.pipelines import weighted
    from cbnn_keras.ensemble.ensemble import CheckpointEnsemble
    from cbnn_keras.support.faults import RunError
    from cbnn_keras.training.callback import CBNNCallback

__all__ = [
    "CBNNCallback",
    "CheckpointEnsemble",
    "RunError",
    "__version__",
    "weighted",
]

# Loaded at first use, so that `cbnn --help` need not wait for TensorFlow.
_HOMES = {
    "CBNNCallback": "cbnn_keras.training.callback",
    "CheckpointEnsemble": "cbnn_keras.ensemble.ensemble",
    "RunError": "cbnn_keras.support.faults",
    "weighted": "cbnn_keras.data.pipelines",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
