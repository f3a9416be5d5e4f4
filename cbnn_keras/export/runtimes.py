"""Artefacts, opened in the runtime that they are made for."""

import json
import pathlib
from typing import Protocol

import numpy as np
import tensorflow as tf

from cbnn_keras.support import extras
from cbnn_keras.support.aliases import Json

# Where a SavedModel keeps its metadata.
METADATA = "assets.extra/cbnn_keras.json"


class Runtime(Protocol):
    """An artefact that was opened.

    Attributes:
        metadata: What the artefact says about itself.
        input_names: The names of its inputs, in the artefact's order.
    """

    metadata: Json
    input_names: list[str]

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name."""


class SavedModelRuntime:
    """A SavedModel's endpoint `serving_default`, or another one."""

    def __init__(
        self, path: pathlib.Path, endpoint: str = "serving_default"
    ) -> None:
        self._loaded = tf.saved_model.load(str(path))  # keeps variables alive
        if endpoint not in self._loaded.signatures:
            raise ValueError(
                f"{path} has no endpoint {endpoint!r}: it was not written by "
                "an export of cbnn_keras."
            )
        self._function = self._loaded.signatures[endpoint]
        self.input_names = list(self._function.structured_input_signature[1])
        file = path / METADATA
        self.metadata = json.loads(file.read_bytes()) if file.is_file() else {}

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors = {name: tf.constant(a) for name, a in inputs.items()}
        return {k: t.numpy() for k, t in self._function(**tensors).items()}


class OnnxRuntime:
    """An ONNX file in ONNX Runtime, on the CPU."""

    def __init__(self, path: pathlib.Path) -> None:
        onnxruntime = extras.need("onnxruntime", "onnx")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors come as exceptions anyway
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's have no common base
            raise ValueError(
                f"ONNX Runtime cannot open {path.name}: {error}"
            ) from error
        self.input_names = [i.name for i in self._session.get_inputs()]
        self._outputs = [o.name for o in self._session.get_outputs()]
        self.metadata = _from_text(
            self._session.get_modelmeta().custom_metadata_map
        )

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = self._session.run(self._outputs, inputs)
        return dict(zip(self._outputs, results, strict=True))


def open_artefact(path: pathlib.Path) -> Runtime:
    """Opens what one of the exports wrote.

    Args:
        path: A version of a SavedModel, a directory of versions, of which the
            last is taken, an ONNX file, or a model of a Triton repository.

    Raises:
        ValueError: If it is none of these.
    """
    if path.is_file():
        return OnnxRuntime(path)
    versions = [p for p in path.glob("*") if p.name.isdecimal()]
    last = max(versions, key=lambda p: int(p.name), default=path)
    if (last / "saved_model.pb").is_file():
        return SavedModelRuntime(last)
    if (last / "model.onnx").is_file():
        return OnnxRuntime(last / "model.onnx")
    raise ValueError(
        f"{path} is neither a SavedModel, nor an ONNX file, nor a model of a "
        "Triton repository. Give what `cbnn export` wrote."
    )


def _from_text(properties: dict[str, str]) -> Json:
    """Metadata from texts of JSON; what others put there is left out."""
    found = {}
    for key, text in properties.items():
        try:
            found[key] = json.loads(text)
        except ValueError:
            continue
    return found
