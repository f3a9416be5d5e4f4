"""Ensembles as one artefact for serving: SavedModel, ONNX, Triton."""

from cbnn_keras.export.onnx import export_onnx
from cbnn_keras.export.options import ServingOptions
from cbnn_keras.export.placing import Artefact
from cbnn_keras.export.saved_model import export_saved_model
from cbnn_keras.export.triton import export_triton
from cbnn_keras.export.verify import Parity, verify_artefact

__all__ = [
    "Artefact",
    "Parity",
    "ServingOptions",
    "export_onnx",
    "export_saved_model",
    "export_triton",
    "verify_artefact",
]
