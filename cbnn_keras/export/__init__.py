"""Ensembles as one artefact: SavedModel, ONNX, LiteRT, Triton, a web page."""

from cbnn_keras.export.litert import export_litert
from cbnn_keras.export.onnx import export_onnx
from cbnn_keras.export.options import ServingOptions
from cbnn_keras.export.placing import Artefact
from cbnn_keras.export.saved_model import export_saved_model
from cbnn_keras.export.triton import export_triton
from cbnn_keras.export.verify import Parity, verify_artefact
from cbnn_keras.export.web import export_web
from cbnn_keras.export.web_options import PageOptions

__all__ = [
    "Artefact",
    "PageOptions",
    "Parity",
    "ServingOptions",
    "export_litert",
    "export_onnx",
    "export_saved_model",
    "export_triton",
    "export_web",
    "verify_artefact",
]
