"""Ensembles and artefacts that many tests share; none of them is changed.

A conversion takes seconds, so that each is done once.
"""

import json
import locale

import keras
import onnx
import pytest
from export_helpers import ALL, NAMES, serving_graph
from helpers import dense_model, memory_ensemble

from cbnn_keras.export import (
    export_litert,
    export_onnx,
    export_saved_model,
    onnx_conversion,
)

PRIORS = [0.1, 0.6, 0.3]
# Every output, by name, and under priors.
FULL = {"outputs": ALL, "class_names": NAMES, "top_k": 2, "priors": PRIORS}


@pytest.fixture(scope="session")
def ensemble():
    """Three members of `dense_model`."""
    keras.utils.set_random_seed(5)  # every class is predicted somewhere
    return memory_ensemble(dense_model(), [1.0, 2.5, 0.7])


@pytest.fixture(scope="session")
def full_saved_model(ensemble, tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved_model")
    return export_saved_model(
        ensemble, directory / "größe", serving_config="", verbose=0, **FULL
    )


@pytest.fixture(scope="session")
def full_onnx(ensemble, tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "new" / "ensemble.onnx"
    return export_onnx(ensemble, path, verbose=0, **FULL)


@pytest.fixture(scope="session")
def full_litert(ensemble, tmp_path_factory):
    path = tmp_path_factory.mktemp("litert") / "new" / "ensemble.tflite"
    return export_litert(ensemble, path, verbose=0, **FULL)


@pytest.fixture(scope="session")
def proto(ensemble):
    """The ensemble's probabilities as an ONNX model."""
    return onnx_conversion.to_onnx(serving_graph(ensemble))


@pytest.fixture
def converted_before(proto, monkeypatch):
    """Saves the time of a conversion: `proto` is what `to_onnx` gives."""

    def to_onnx(graph, precision="float32"):
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        [entry] = [p for p in copy.metadata_props if p.key == "precision"]
        entry.value = json.dumps(precision)
        return copy

    monkeypatch.setattr(onnx_conversion, "to_onnx", to_onnx)


@pytest.fixture
def c_locale():
    """Files without an encoding of their own are written in ASCII."""
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    yield
    locale.setlocale(locale.LC_CTYPE, before)
