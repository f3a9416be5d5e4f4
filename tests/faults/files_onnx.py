"""Hostile ONNX files and Triton models for `cbnn verify`."""

import os
import shutil

import numpy as np
from arena import HARMLESS, Case, Place, link, pickled
from files_arrays import file_case


def verify(place: Place, path) -> list:
    return ["verify", path, "--run", place.run]


def pristine_of(place: Place):
    """Where the pristine exports are."""
    return place.root.parent / "shared"


# ------------------------------------------------------------------------ ONNX


def _onnx(change):
    """Changes the pristine ONNX file."""

    def content(place: Place, path) -> None:
        import onnx

        model = onnx.load(str(pristine_of(place) / "finished.onnx"))
        change(model, place)
        path.write_bytes(model.SerializeToString())

    return content


def _metadata(**changes):
    """Changes what the file says about itself; None removes it."""

    def change(model, _) -> None:
        properties = {p.key: p.value for p in model.metadata_props}
        for key, value in changes.items():
            properties.pop(key, None)
            if value is not None:
                properties[key] = value
        del model.metadata_props[:]
        for key, value in properties.items():
            model.metadata_props.add(key=key, value=value)

    return _onnx(change)


def _external(location):
    """Weights in another file, which is read when the model is opened."""

    def change(model, place: Place) -> None:
        import onnx

        tensor = next(
            t for t in model.graph.initializer if len(t.raw_data) >= 32
        )
        size = len(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        where = location.format(outside=place.outside)
        for key, value in (
            ("location", where),
            ("offset", "0"),
            ("length", str(min(size, 32))),
        ):
            tensor.external_data.add(key=key, value=value)

    return _onnx(change)


def _external_by_link(place: Place, path) -> None:
    link(path.parent / "weights.data", place.outside / "secret.txt")
    _external("weights.data")(place, path)


def _node(op: str, inputs: list[str], **attributes):
    """One more node whose output is asked for."""

    def change(model, _) -> None:
        import onnx

        model.graph.node.append(
            onnx.helper.make_node(op, inputs, ["odd"], **attributes)
        )
        output = onnx.helper.make_tensor_value_info("odd", 1, None)
        model.graph.output.append(output)

    return _onnx(change)


def _huge_output(model, _) -> None:
    """Four terabytes, made while it runs."""
    import onnx

    shape = onnx.numpy_helper.from_array(
        np.array([2**20, 2**20], "int64"), "huge"
    )
    model.graph.initializer.append(shape)
    model.graph.node.append(
        onnx.helper.make_node("ConstantOfShape", ["huge"], ["odd"])
    )
    output = onnx.helper.make_tensor_value_info("odd", 1, None)
    model.graph.output.append(output)


def _renamed_input(model, _) -> None:
    old = model.graph.input[0].name
    model.graph.input[0].name = "other"
    for node in model.graph.node:
        for number, name in enumerate(node.input):
            if name == old:
                node.input[number] = "other"


def _no_output(model, _) -> None:
    model.graph.output[0].name = "no_such_thing"


def _other_weights(model, _) -> None:
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) >= 32:
            tensor.raw_data = bytes(len(tensor.raw_data))


def _onnx_cases() -> list[Case]:
    raw = {
        "empty": b"",
        "text": b"not ONNX",
        "zeros": bytes(1000),
        "pickle": lambda p, path: path.write_bytes(pickled(p)),
        "FIFO": lambda p, path: os.mkfifo(path),
        "missing": lambda p, path: None,
        "directory": lambda p, path: path.mkdir(),
        "cut": lambda p, path: path.write_bytes(
            (pristine_of(p) / "finished.onnx").read_bytes()[:1000]
        ),
    }
    changes = {
        "weights outside": _external("{outside}/secret.txt"),
        "weights above": _external("../outside/secret.txt"),
        "weights of /etc/passwd": _external("/etc/passwd"),
        "weights by a link": _external_by_link,
        "weights missing": _external("nothing.data"),
        "unknown op": _node("NoSuchOp", []),
        "op of another domain": _node("Evil", [], domain="evil"),
        "4 TB": _onnx(_huge_output),
        "other input": _onnx(_renamed_input),
        "no output": _onnx(_no_output),
        "other weights": _onnx(_other_weights),
        "no metadata": _onnx(lambda m, _: m.ClearField("metadata_props")),
        "no opset": _onnx(lambda m, _: m.ClearField("opset_import")),
        "no graph": _onnx(lambda m, _: m.ClearField("graph")),
        "no has_preprocess": _metadata(has_preprocess=None),
        "no members": _metadata(members=None),
        "members as text": _metadata(members='"6"'),
        "members as null": _metadata(members="null"),
        "members of others": _metadata(members="[6, 99]"),
        "members negative": _metadata(members="[-6]"),
        "members infinite": _metadata(members="[1e999]"),
        "members NaN": _metadata(members="[NaN]"),
        "members nested": _metadata(members="[[6]]"),
        "members deep": _metadata(members="[" * 9000 + "]" * 9000),
        "members none": _metadata(members="[]"),
        "precision unknown": _metadata(precision='"float7"'),
        "precision as a list": _metadata(precision="[]"),
        "no precision": _metadata(precision=None),
        "outputs unknown": _metadata(outputs='["x"]'),
        "outputs as a number": _metadata(outputs="3"),
        "class names of numbers": _metadata(labels="[1, 2, 3]"),
        "class names, two": _metadata(labels='["a", "b"]'),
        "priors of texts": _metadata(priors='["a", "b", "c"]'),
        "priors negative": _metadata(priors="[-1, 1, 1]"),
        "voting unknown": _metadata(voting='"none"'),
        "top_k as text": _metadata(top_k='"x"'),
        "top_k of 10**12": _metadata(top_k=str(10**12), outputs='["top_k"]'),
        "has_preprocess as text": _metadata(has_preprocess='"yes"'),
        "version as a list": _metadata(cbnn_keras_version="[]"),
    }
    lenient = {"version as a list", "members infinite", "unknown op"}
    found = [
        file_case("ONNX", name, ".onnx", content, verify)
        for name, content in raw.items()
    ]
    return found + [
        file_case(
            "ONNX",
            name,
            ".onnx",
            content,
            verify,
            *([HARMLESS] if name in lenient | {"top_k of 10**12"} else []),
        )
        for name, content in changes.items()
    ]


# ---------------------------------------------------------------------- Triton


def _triton(change):
    def content(place: Place, path) -> None:
        shutil.copytree(pristine_of(place) / "triton/model", path)
        change(path, place)

    return content


def _model_linked(path, place: Place) -> None:
    moved = place.outside / "moved.onnx"
    shutil.move(path / "1/model.onnx", moved)
    link(path / "1/model.onnx", moved)


def _triton_cases() -> list[Case]:
    changes = {
        "text": lambda p, _: (p / "1/model.onnx").write_bytes(b"text"),
        "empty": lambda p, _: (p / "1/model.onnx").write_bytes(b""),
        "no model": lambda p, _: (p / "1/model.onnx").unlink(),
        "version 2, empty": lambda p, _: (p / "2").mkdir(),
        "link": _model_linked,
    }
    return [
        file_case("Triton", name, "", _triton(change), verify)
        for name, change in changes.items()
    ]


def cases() -> list[Case]:
    return [*_onnx_cases(), *_triton_cases()]
