"""`export_litert`: the contract, what cannot be converted, what is refused."""

import json
import os
import re
import struct
import sys

import flatbuffers
import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from conftest import FULL, PRIORS
from export_helpers import (
    NAMES,
    X,
    assert_outputs,
    serving_graph,
    tree,
    worked_out,
)
from helpers import dense_model, memory_ensemble, text_model
from hypothesis import given, settings
from hypothesis import strategies as st

from cbnn_keras.export import export_litert, litert_conversion, verify_artefact
from cbnn_keras.export.runtimes import open_artefact
from cbnn_keras.support.faults import RunError

layers = keras.layers


def run_litert(path, inputs):
    """Outputs of a LiteRT file, by name."""
    return Interpreter(str(path)).get_signature_runner()(**inputs)


def model_of(path):
    return schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)


def packed(model):
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


@pytest.fixture(scope="module")
def images():
    """Two members with convolutions, in groups too, and a fixed mean."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1), name="image"),
            layers.Normalization(axis=None, mean=0.3, variance=2.0),
            layers.Conv2D(16, 3, activation="gelu", padding="same"),
            layers.BatchNormalization(),
            layers.Conv2D(16, 3, groups=2),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(3, activation="softmax"),
        ]
    )
    return memory_ensemble(model, [1.0, 2.0])


# --- The file ---


@pytest.mark.parametrize("num", [1, 7, 40])
def test_the_interpreter_says_what_was_worked_out(ensemble, full_litert, num):
    found = run_litert(full_litert.path, {"input": X[:num]})
    expected = worked_out(ensemble, X[:num], priors=PRIORS)
    assert_outputs(found, expected)
    assert full_litert.parity.max_difference <= 1e-5


def test_the_file_says_what_is_in_it(ensemble, full_litert):
    content = full_litert.path.read_bytes()
    assert content[4:8] == b"TFL3"
    model = schema.Model.GetRootAs(content)
    assert model.SignatureDefsLength() == 1
    assert model.SignatureDefs(0).SignatureKey() == b"serving_default"
    entries = [model.Metadata(i) for i in range(model.MetadataLength())]
    [number] = [e.Buffer() for e in entries if e.Name() == b"cbnn_keras"]
    text = model.Buffers(number).DataAsNumpy().tobytes()
    assert json.loads(text) == serving_graph(ensemble, **FULL).metadata()
    assert full_litert.num_bytes == len(content)


def test_weights_are_where_processors_want_them(full_litert):
    """At multiples of 16 bytes, as the format has it."""
    content = full_litert.path.read_bytes()
    model = schema.Model.GetRootAs(content)
    whole = np.frombuffer(content, np.uint8)
    arrays = [
        model.Buffers(i).DataAsNumpy()
        for i in range(model.BuffersLength())
        if not model.Buffers(i).DataIsNone()
    ]
    assert len(arrays) > 10
    starts = {a.ctypes.data - whole.ctypes.data for a in arrays}
    assert not any(start % 16 for start in starts)


def test_convolutions(images, tmp_path):
    artefact = export_litert(
        images,
        tmp_path / "a.tflite",
        verbose=0,
        outputs=["probabilities", "members", "disagreement"],
    )
    x = np.random.default_rng(0).normal(size=(7, 8, 8, 1)).astype("float32")
    found = run_litert(artefact.path, {"image": x})
    probabilities = images.predict(x, verbose=0)
    np.testing.assert_allclose(
        found["probabilities"], probabilities, rtol=0, atol=1e-5
    )
    members = list(images.member_probabilities(x, verbose=0))
    np.testing.assert_allclose(
        found["members"], np.stack(members, axis=1), rtol=0, atol=1e-5
    )


@pytest.mark.large
def test_smaller_precisions(images, tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 8, 8, 1)).astype("float32")
    sizes = {}
    for precision in ("float32", "float16", "int8"):
        artefact = export_litert(
            images,
            tmp_path / f"{precision}.tflite",
            precision=precision,
            calibration_data=x if precision == "int8" else None,
            verbose=0,
        )
        sizes[precision] = artefact.num_bytes
        assert open_artefact(artefact.path).metadata["precision"] == precision
    assert sizes["float16"] < 0.6 * sizes["float32"]
    assert sizes["int8"] < 0.4 * sizes["float32"]
    assert artefact.parity.num_samples == 60


def test_recurrent_layers_take_one_sample_at_a_time(tmp_path, capfd):
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int32", name="tokens"),
            layers.Embedding(20, 4),
            layers.LSTM(4),
            layers.Dense(3, activation="softmax"),
        ]
    )
    ensemble = memory_ensemble(model, [1.0, 2.0])
    path = tmp_path / "a.tflite"
    artefact = export_litert(ensemble, path)
    shown, errors = capfd.readouterr()
    assert errors == ""
    assert "The file takes one sample at a time.\n" in shown
    assert artefact.parity.num_samples == 10
    [detail] = Interpreter(str(path)).get_input_details()
    assert detail["shape_signature"].tolist() == [1, 6]
    assert verify_artefact(path, ensemble, verbose=0).agreement == 1.0
    capfd.readouterr()


# --- Where it goes ---


def test_a_file_is_replaced_and_nothing_else(ensemble, tmp_path, capfd):
    path = tmp_path / "deep" / "a.tflite"
    path.parent.mkdir()
    path.write_bytes(b"what was there before")
    artefact = export_litert(ensemble, path)
    assert sorted(tree(tmp_path)) == ["deep", "deep/a.tflite"]
    assert path.read_bytes()[4:8] == b"TFL3"
    shown, errors = capfd.readouterr()
    assert errors == ""
    assert shown.splitlines() == [
        "merging the members ...",
        "converting to LiteRT ...",
        "comparing it with the Keras ensemble ...",
        str(artefact),
    ]


def test_what_does_not_match_is_not_put_in_place(
    ensemble, tmp_path, monkeypatch
):
    path = tmp_path / "a.tflite"
    path.write_bytes(b"before")
    convert = litert_conversion.to_litert

    def wrong(graph, *args, **kwargs):
        graph.model.set_weights([0.5 * w for w in graph.model.get_weights()])
        return convert(graph, *args, **kwargs)

    monkeypatch.setattr(litert_conversion, "to_litert", wrong)
    with pytest.raises(ValueError, match="does not match the Keras ensemble"):
        export_litert(ensemble, path, verbose=0)
    assert tree(tmp_path) == {"a.tflite": b"before"}


def test_refusals(ensemble, tmp_path, monkeypatch):
    with pytest.raises(RunError, match="is a directory; a LiteRT export is"):
        export_litert(ensemble, tmp_path, verbose=0)
    path = tmp_path / "a.tflite"
    with pytest.raises(ValueError, match="precision must be one of float32"):
        export_litert(ensemble, path, precision="int4", verbose=0)
    with pytest.raises(ValueError, match="needs calibration_data"):
        export_litert(ensemble, path, precision="int8", verbose=0)
    inputs = keras.Input((4,), name="two words")
    with pytest.raises(
        ValueError, match="A LiteRT file cannot have an input called 'two wo"
    ):
        export_litert(ensemble, path, inputs=inputs, verbose=0)
    monkeypatch.setattr(litert_conversion, "_LIMIT", 100)
    with pytest.raises(ValueError, match="holds at most 2 GB, and the weights"):
        export_litert(ensemble, path, verbose=0)
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    with pytest.raises(
        ImportError, match=re.escape('pip install "cbnn-keras[litert]"')
    ):
        export_litert(ensemble, path, verbose=0)
    assert tree(tmp_path) == {}


def test_texts_cannot_be_converted(tmp_path, capfd):
    ensemble = memory_ensemble(text_model(), [1.0, 2.0])
    with pytest.raises(
        ValueError,
        match=r"LiteRT's converter cannot convert .*StringLower \(in the layer "
        r"'text_vectorization[_0-9]*'\).* \(texts have to become numbers the",
    ):
        export_litert(ensemble, tmp_path / "a.tflite", verbose=0)
    assert tree(tmp_path) == {}
    assert capfd.readouterr() == ("", "")


# --- Files of others ---


def test_verify(ensemble, full_litert, capsys):
    parity = verify_artefact(full_litert.path, ensemble)
    assert parity.max_difference <= 1e-5
    assert "matches: max |delta p|" in capsys.readouterr().out
    keras.utils.set_random_seed(9)
    other = memory_ensemble(dense_model(), [1.0, 2.5, 0.7])
    with pytest.raises(ValueError, match="does not match the Keras ensemble"):
        verify_artefact(full_litert.path, other, verbose=0)


def test_ops_of_others_are_refused(full_litert, tmp_path):
    model = model_of(full_litert.path)
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = 32
    code.customCode = "FlexWriteFile"
    model.operatorCodes.append(code)
    path = tmp_path / "a.tflite"
    path.write_bytes(packed(model))
    with pytest.raises(RunError, match="has the op 'FlexWriteFile', which is"):
        open_artefact(path)


def test_weights_in_other_files_are_refused(full_litert, tmp_path):
    model = model_of(full_litert.path)
    model.subgraphs[0].tensors[0].externalBuffer = 1
    path = tmp_path / "a.tflite"
    path.write_bytes(packed(model))
    with pytest.raises(RunError, match="has weights elsewhere"):
        open_artefact(path)


def test_large_files_are_refused(full_litert, tmp_path):
    size = full_litert.num_bytes
    with pytest.raises(RunError, match=r"would take .*, more than the 100 byt"):
        open_artefact(full_litert.path, 100)
    open_artefact(full_litert.path, 4 * size)
    model = model_of(full_litert.path)
    model.subgraphs[0].tensors[0].shape = np.array([2**30, 4], np.int32)
    path = tmp_path / "a.tflite"
    path.write_bytes(packed(model))
    with pytest.raises(RunError, match=r"would take 17.2 GB, more than the 4"):
        open_artefact(path)


def test_too_many_parts_are_refused(full_litert, tmp_path, monkeypatch):
    monkeypatch.setattr("cbnn_keras.export.foreign_litert._MOST_PARTS", 3)
    with pytest.raises(RunError, match=r"cannot be read \(\d+ "):
        open_artefact(full_litert.path)


def test_one_table_that_stands_for_many_is_refused(tmp_path, monkeypatch):
    """A file of 32 kB could keep us busy with 16 million tensors."""
    monkeypatch.setattr("cbnn_keras.export.foreign_litert._MOST_PARTS", 2**10)
    num, builder = 2**7, flatbuffers.Builder()

    def many(table):
        builder.StartVector(4, num, 4)
        for _ in range(num):
            builder.PrependUOffsetTRelative(table)
        return builder.EndVector()

    schema.TensorStart(builder)
    tensors = many(schema.TensorEnd(builder))
    schema.SubGraphStart(builder)
    schema.SubGraphAddTensors(builder, tensors)
    subgraphs = many(schema.SubGraphEnd(builder))
    schema.ModelStart(builder)
    schema.ModelAddSubgraphs(builder, subgraphs)
    builder.Finish(schema.ModelEnd(builder), b"TFL3")
    path = tmp_path / "a.tflite"
    path.write_bytes(builder.Output())
    with pytest.raises(RunError, match=r"\(more than a million tensors\)"):
        open_artefact(path)


def test_a_file_that_takes_a_single_number_is_named(tmp_path):
    class Scalar(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
        def __call__(self, x):
            return {"probabilities": x + 1}

    module = Scalar()
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [module.__call__.get_concrete_function()], module
    )
    path = tmp_path / "a.tflite"
    path.write_bytes(converter.convert())
    with pytest.raises(RunError, match=r"LiteRT cannot open a\.tflite: "):
        open_artefact(path)


def test_a_file_without_metadata_is_nobodys(ensemble, full_litert, tmp_path):
    model = model_of(full_litert.path)
    model.metadata = None
    path = tmp_path / "a.tflite"
    path.write_bytes(packed(model))
    with pytest.raises(RunError, match="was not written by an export"):
        verify_artefact(path, ensemble, verbose=0)


@pytest.mark.parametrize("num", [8, 9, 200, -1])
def test_a_truncated_file_is_named(full_litert, tmp_path, num):
    path = tmp_path / "a.tflite"
    path.write_bytes(full_litert.path.read_bytes()[:num])
    with pytest.raises(RunError, match=re.escape(path.name)):
        open_artefact(path)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_files_are_refused_or_run(full_litert, tmp_path_factory, data):
    """Whatever a byte is changed to, nothing worse than a `RunError`."""
    content = bytearray(full_litert.path.read_bytes())
    for _ in range(data.draw(st.sampled_from([1, 3, 20]))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "a.tflite"
    path.write_bytes(content)
    try:
        open_artefact(path, 2**24).run({"input": X[:7]})
    except RunError:
        pass


def test_a_name_that_is_no_text(full_litert, tmp_path):
    """Found by the test above: LiteRT decodes names when it is asked them."""
    content = full_litert.path.read_bytes()
    name = b"input"
    assert name in content
    path = tmp_path / "a.tflite"
    path.write_bytes(content.replace(name, b"\x80" + name[1:]))
    with pytest.raises(RunError, match="LiteRT cannot open a.tflite: .*utf-8"):
        open_artefact(path)


def test_a_link_or_a_text_is_no_litert_file(tmp_path):
    path = tmp_path / "a.tflite"
    path.write_bytes(struct.pack("<I", 8) + b"ONNX")
    with pytest.raises(RunError):
        open_artefact(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunError, match="is neither a SavedModel"):
        open_artefact(tmp_path / "pipe")


def test_names_of_classes_are_texts(full_litert):
    found = run_litert(full_litert.path, {"input": X[:3]})
    assert {tf.compat.as_str(name) for name in found["class"]} <= set(NAMES)
