"""ONNX files of somebody else: no file elsewhere, no sizes out of the air."""

import os
import re

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbnn_keras.export import verify_artefact
from cbnn_keras.export.foreign_onnx import check_onnx
from cbnn_keras.support.faults import RunError

GIB = 2**30
ADVICE = (
    r" Give what `cbnn export` wrote, and do not load it elsewhere unless you "
    r"know who made it\.$"
)


@pytest.fixture
def model(full_onnx):
    return onnx.load(full_onnx.path)


def external(tensor, **entries):
    """Puts the values of a tensor into another file."""
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def in_an_initializer(model):
    return model.graph.initializer[0]


def in_an_attribute(model):
    node = model.graph.node.add(op_type="Constant", output=["more"])
    attribute = node.attribute.add(name="value")
    attribute.type = onnx.AttributeProto.TENSOR
    attribute.t.data_type = onnx.TensorProto.FLOAT
    attribute.t.dims.append(2)
    return attribute.t


def in_a_branch(model):
    node = model.graph.node.add(op_type="If")
    attribute = node.attribute.add(name="then_branch")
    attribute.type = onnx.AttributeProto.GRAPH
    return attribute.g.initializer.add(data_type=1, dims=[2])


def in_a_function(model):
    function = model.functions.add(name="f", domain="d")
    node = function.node.add(op_type="Constant")
    attribute = node.attribute.add(name="value")
    return attribute.tensors.add(data_type=1, dims=[2])


PLACES = [in_an_initializer, in_an_attribute, in_a_branch, in_a_function]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "location",
    ["/etc/passwd", "../secret", "below/x", "..", "", "..\\secret"],
)
def test_weights_elsewhere_are_refused(place, location, model, tmp_path):
    path = tmp_path / "a.onnx"
    external(place(model), location=location)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(
        RunError,
        match=rf"a\.onnx has weights in {re.escape(repr(location))}, which is "
        rf"not a file beside it\.{ADVICE}",
    ):
        check_onnx(path, GIB)


def test_weights_that_are_a_link_are_refused(model, ensemble, tmp_path):
    (tmp_path / "secret").write_bytes(bytes(4096))
    (tmp_path / "weights").symlink_to(tmp_path / "secret")
    external(model.graph.initializer[0], location="weights")
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(RunError, match="weights is a link"):
        verify_artefact(tmp_path / "a.onnx", ensemble)


@pytest.mark.parametrize(
    ("offset", "length"), [("0", "101"), ("101", "0"), ("-1", "5"), ("5", "-1")]
)
def test_weights_beyond_the_end_of_their_file(offset, length, model, tmp_path):
    (tmp_path / "weights").write_bytes(bytes(100))
    external(
        model.graph.initializer[0],
        location="weights",
        offset=offset,
        length=length,
    )
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(
        RunError,
        match=r"a\.onnx has weights in bytes -?\d+ to \d+ of weights, which "
        rf"has 100\.{ADVICE}",
    ):
        check_onnx(tmp_path / "a.onnx", GIB)


def test_weights_at_no_number(model, tmp_path):
    (tmp_path / "weights").touch()
    external(model.graph.initializer[0], location="weights", offset="x")
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(RunError, match=r"a\.onnx cannot be read \(invalid lit"):
        check_onnx(tmp_path / "a.onnx", GIB)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["FLOAT", "STRING", "INT4", "UNDEFINED"])
def test_a_tensor_that_claims_too_much(place, kind, model, tmp_path):
    tensor = place(model)
    tensor.data_type = getattr(onnx.TensorProto, kind)
    tensor.dims[:] = [2**20, 2**12]
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(
        RunError,
        match=r"a\.onnx would take \d+\.\d [GT]B, more than the 1\.1 GB "
        r"allowed\. If you know who made it, give a larger max_bytes "
        r"\(--max-bytes\)\.$",
    ):
        check_onnx(tmp_path / "a.onnx", GIB)


def test_a_file_that_is_too_large_is_not_read(full_onnx, ensemble):
    with pytest.raises(RunError, match="more than the 1.0 kB allowed"):
        verify_artefact(full_onnx.path, ensemble, max_bytes=1000)
    with pytest.raises(ValueError, match=r"verify_artefact\(max_bytes=0\)"):
        verify_artefact(full_onnx.path, ensemble, max_bytes=0)


@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_what_is_no_file(kind, ensemble, tmp_path):
    path = tmp_path / "1/model.onnx"
    path.parent.mkdir()
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    with pytest.raises(RunError, match=r"is neither a SavedModel, nor an ONNX"):
        verify_artefact(tmp_path, ensemble)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mutations_are_read_or_named(full_onnx, tmp_path_factory, data):
    """Whatever the bytes, only one type of error comes out."""
    whole = bytearray(full_onnx.path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(
            st.integers(0, 255)
        )
    path = tmp_path_factory.mktemp("mutated") / "a.onnx"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        check_onnx(path, GIB)
    except RunError as error:
        assert str(path) in str(error)


# --- What comes out when it runs ---


def constant_model(name, values, metadata):
    """A model whose output is a constant, whatever comes in."""
    tensor = onnx.numpy_helper.from_array(values, "value")
    node = onnx.helper.make_node("Constant", [], [name], value=tensor)
    kind = onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info("input", 1, ["batch", 4])],
        [onnx.helper.make_tensor_value_info(name, kind, values.shape)],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    model.metadata_props.extend(metadata)
    return model


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((), "float32"), "have not one row for each sample: zero"),
        (np.zeros((2, 3), "float32"), r"has the shape \(6, 3\), the ensemble"),
        (np.zeros((10, 1), "int64"), r"has the shape \(30, 1\)"),
    ],
)
def test_outputs_of_another_shape(values, message, proto, ensemble, tmp_path):
    path = tmp_path / "a.onnx"
    model = constant_model("probabilities", values, proto.metadata_props)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match=message):
        verify_artefact(path, ensemble)


def test_outputs_of_another_type(proto, ensemble, tmp_path):
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    node = model.graph.node.add(op_type="Cast", input=["p"])
    node.output.append("probabilities")
    node.attribute.add(name="to", i=7, type=onnx.AttributeProto.INT)
    for other in model.graph.node[:-1]:
        for i, name in enumerate(other.output):
            if name == "probabilities":
                other.output[i] = "p"
    model.graph.output[0].type.tensor_type.elem_type = 7
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(
        ValueError,
        match=r"^The export's output 'probabilities' is of type int64, unlike "
        r"the ensemble's\.$",
    ):
        verify_artefact(tmp_path / "a.onnx", ensemble)


def test_a_model_that_cannot_run(proto, ensemble, tmp_path):
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
    for tensor in model.graph.initializer:
        if list(tensor.dims) == [4, 8]:
            tensor.dims[:] = [8, 4]
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(
        RunError, match=r"a\.onnx cannot be run on these inputs|cannot open"
    ):
        verify_artefact(tmp_path / "a.onnx", ensemble)
