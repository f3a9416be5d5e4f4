"""Artefacts, opened in the runtime that they are made for."""

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import tensorflow as tf

from cbnn_keras.export.foreign_litert import (
    checked_litert,
    is_litert,
    litert_metadata,
)
from cbnn_keras.export.foreign_onnx import check_onnx
from cbnn_keras.export.foreign_saved_model import check_saved_model
from cbnn_keras.export.metadata import metadata_from_texts, read_metadata
from cbnn_keras.support import extras
from cbnn_keras.support.aliases import Json
from cbnn_keras.support.faults import RunError, faults_named, shortened
from cbnn_keras.support.files import MAX_BYTES

# Where a SavedModel keeps its metadata.
METADATA = "assets.extra/cbnn_keras.json"
_ADVICE = "Export the run again."


class Runtime(Protocol):
    """An artefact that was opened.

    Attributes:
        metadata: What the artefact says about itself.
        input_names: The names of its inputs, in the artefact's order.
    """

    metadata: Json
    input_names: list[str]

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name.

        Raises:
            RunError: If the artefact cannot be run on these inputs.
        """


class SavedModelRuntime:
    """A SavedModel's endpoint `serving_default`, or another one.

    It is loaded, and so its initialisers run: one of somebody else is to be
    opened with `open_artefact`.
    """

    def __init__(
        self, path: pathlib.Path, endpoint: str = "serving_default"
    ) -> None:
        self._path = path
        with faults_named(path, _ADVICE):
            # Kept, and with it the variables.
            self._loaded = tf.saved_model.load(str(path))
            signatures = dict(self._loaded.signatures)
        if endpoint not in signatures:
            raise RunError(
                f"{path} has no endpoint {endpoint!r}: it was not written by "
                "an export of cbnn_keras."
            )
        self._function = signatures[endpoint]
        self.input_names = list(self._function.structured_input_signature[1])
        file = path / METADATA
        self.metadata = read_metadata(file) if os.path.lexists(file) else {}

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors = {name: tf.constant(a) for name, a in inputs.items()}
        with _failures_named(self._path):
            outputs = self._function(**tensors)
            return {name: tensor.numpy() for name, tensor in outputs.items()}


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
            raise RunError(
                f"ONNX Runtime cannot open {path.name}: {shortened(error)}"
            ) from error
        self._path = path
        self.input_names = [i.name for i in self._session.get_inputs()]
        self._outputs = [o.name for o in self._session.get_outputs()]
        self.metadata = metadata_from_texts(
            self._session.get_modelmeta().custom_metadata_map
        )

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with _failures_named(self._path):
            results = self._session.run(self._outputs, inputs)
        return dict(zip(self._outputs, results, strict=True))


class LiteRtRuntime:
    """The endpoint of a LiteRT file, in LiteRT's own interpreter.

    Args:
        path: Where the file is.
        content: What is in it. One of somebody else is to be opened with
            `open_artefact`.

    Attributes:
        is_single: Whether it takes one sample at a time.
    """

    def __init__(self, path: pathlib.Path, content: bytes) -> None:
        interpreter = extras.need("ai_edge_litert.interpreter", "litert")
        try:
            with extras.silenced():
                self._interpreter = interpreter.Interpreter(
                    model_content=content
                )
                self._function = self._interpreter.get_signature_runner()
                # Names are decoded here, and those of others may be no UTF-8.
                details = self._function.get_input_details()
                self.is_single = any(
                    detail["shape_signature"][0] == 1
                    for detail in details.values()
                )
        except Exception as error:
            raise RunError(
                f"LiteRT cannot open {path.name}: {shortened(error)}"
            ) from error
        self._path = path
        self.input_names = list(details)
        self.metadata = litert_metadata(path, content)

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        num = len(next(iter(inputs.values())))
        size = 1 if self.is_single else num
        with _failures_named(self._path), extras.silenced():
            parts = [
                self._function(
                    **{k: a[i : i + size] for k, a in inputs.items()}
                )
                for i in range(0, num, size)
            ]
            return {
                name: np.concatenate([part[name] for part in parts])
                for name in parts[0]
            }


@contextlib.contextmanager
def _failures_named(path: pathlib.Path) -> Iterator[None]:
    """Gives whatever goes wrong while an artefact runs the type `RunError`."""
    try:
        yield
    except Exception as error:
        raise RunError(
            f"{path} cannot be run on these inputs ({shortened(error)}). "
            f"{_ADVICE}"
        ) from error


def open_artefact(path: pathlib.Path, max_bytes: int = MAX_BYTES) -> Runtime:
    """Opens what one of the exports wrote, or what somebody says it did.

    It is looked through before it is loaded. No link in it is followed; `path`
    itself may be one.

    Args:
        path: A version of a SavedModel, a directory of versions, of which the
            last is taken, an ONNX or LiteRT file, a model of a Triton
            repository, or a directory with a page.
        max_bytes: What it may take, on disk and in memory.

    Raises:
        RunError: If it is none of these, would touch files, other processes or
            Python, or is too large.
    """
    given, path = path, pathlib.Path(os.path.realpath(path))
    if path.is_file() and is_litert(path):
        return LiteRtRuntime(path, checked_litert(path, max_bytes))
    if path.is_file():
        check_onnx(path, max_bytes)
        return OnnxRuntime(path)
    versions = [p for p in path.glob("*") if p.name.isdecimal()]
    last = max(versions, key=lambda p: int(p.name), default=path)
    for part in (last, last / "saved_model.pb", last / "model.onnx"):
        if part.is_symlink():
            raise RunError(
                f"{part} is a link, which may lead anywhere. Put the files "
                "themselves there."
            )
    if (last / "saved_model.pb").is_file():
        check_saved_model(last, max_bytes)
        return SavedModelRuntime(last)
    if (last / "model.onnx").is_file():
        check_onnx(last / "model.onnx", max_bytes)
        return OnnxRuntime(last / "model.onnx")
    of_page = sorted(path.glob("model-*.onnx"))  # its name has a hash in it
    if len(of_page) == 1:
        check_onnx(of_page[0], max_bytes)
        return OnnxRuntime(of_page[0])
    raise RunError(
        f"{given} is neither a SavedModel, nor an ONNX or LiteRT file, nor a "
        "model of a Triton repository, nor a page. Give what `cbnn export` "
        "wrote."
    )
