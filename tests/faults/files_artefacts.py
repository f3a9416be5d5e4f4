"""Hostile artefacts for `cbnn verify`: ONNX files, SavedModels, Triton."""

import json
import os
import shutil

import numpy as np
from arena import HARMLESS, Case, Place, link, pickled
from files_arrays import file_case


def _verify(place: Place, path) -> list:
    return ["verify", path, "--run", place.run]


def _shared(place: Place):
    return place.root.parent / "shared"


# ------------------------------------------------------------------------ ONNX


def _onnx(change):
    """Changes the pristine ONNX file."""

    def content(place: Place, path) -> None:
        import onnx

        model = onnx.load(str(_shared(place) / "finished.onnx"))
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
            (_shared(p) / "finished.onnx").read_bytes()[:1000]
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
        "class names of numbers": _metadata(class_names="[1, 2, 3]"),
        "class names, two": _metadata(class_names='["a", "b"]'),
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
        file_case("ONNX", name, ".onnx", content, _verify)
        for name, content in raw.items()
    ]
    return found + [
        file_case(
            "ONNX",
            name,
            ".onnx",
            content,
            _verify,
            *([HARMLESS] if name in lenient | {"top_k of 10**12"} else []),
        )
        for name, content in changes.items()
    ]


# ----------------------------------------------------------------- SavedModels


def _saved_model(body):
    """A SavedModel like ours whose endpoint does something else as well."""

    def content(place: Place, path) -> None:
        import tensorflow as tf

        pristine = _shared(place) / "saved_model/1"
        loaded = tf.saved_model.load(str(pristine)).signatures[
            "serving_default"
        ]
        [(name, spec)] = loaded.structured_input_signature[1].items()
        module = tf.Module()

        def serve(**inputs):
            done = body(tf, module, place)
            done = [done] if done is not None else []
            with tf.control_dependencies(done):
                rows = tf.shape(inputs[name])[0]
                return {"probabilities": tf.fill([rows, 3], 1 / 3)}

        function = tf.function(serve).get_concrete_function(
            **{name: tf.TensorSpec(spec.shape, spec.dtype, name=name)}
        )
        tf.saved_model.save(
            module, str(path), signatures={"serving_default": function}
        )
        extra = "assets.extra"
        shutil.copytree(pristine / extra, path / extra)

    return content


def _write(tf, module, place: Place):
    return tf.raw_ops.WriteFile(filename=str(place.marker), contents="x")


def _read(tf, module, place: Place):
    return tf.raw_ops.ReadFile(filename=str(place.outside / "secret.txt"))


def _print(tf, module, place: Place):
    return tf.raw_ops.PrintV2(input="x", output_stream=f"file://{place.marker}")


def _py_function(tf, module, place: Place):
    return tf.numpy_function(
        lambda: np.float32(place.marker.write_text("x")), [], tf.float32
    )


def _nested(tf, module, place: Place):
    @tf.function
    def inner():
        return tf.raw_ops.ReadFile(filename=str(place.outside / "secret.txt"))

    return inner()


def _in_condition(tf, module, place: Place):
    wanted = tf.strings.length(str(place.root)) > 0

    def write():
        done = tf.raw_ops.WriteFile(filename=str(place.marker), contents="x")
        with tf.control_dependencies([done] if done is not None else []):
            return tf.constant(1)

    return tf.cond(wanted, write, lambda: tf.constant(0))


def _in_loop(tf, module, place: Place):
    def step(number):
        done = tf.raw_ops.WriteFile(filename=str(place.marker), contents="x")
        with tf.control_dependencies([done] if done is not None else []):
            return number + 1

    return tf.while_loop(lambda n: n < 1, step, [tf.constant(0)])[0]


def _matching(tf, module, place: Place):
    return tf.raw_ops.MatchingFiles(pattern=f"{place.outside}/*")


def _save_op(tf, module, place: Place):
    return tf.raw_ops.SaveV2(
        prefix=str(place.marker),
        tensor_names=["x"],
        shape_and_slices=[""],
        tensors=[tf.ones(3)],
    )


def _restore_op(tf, module, place: Place):
    [found] = tf.raw_ops.RestoreV2(
        prefix=str(place.outside / "secret.txt"),
        tensor_names=["x"],
        shape_and_slices=[""],
        dtypes=[tf.float32],
    )
    return found


def _table(tf, module, place: Place):
    """Filled when the model is loaded, from a file of its own assets."""
    if not hasattr(module, "table"):
        module.table = tf.lookup.StaticHashTable(
            tf.lookup.TextFileInitializer(
                str(place.outside / "secret.txt"),
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            ),
            -1,
        )
    return module.table.lookup(tf.constant("x"))


def _dataset(tf, module, place: Place):
    lines = tf.data.TextLineDataset(str(place.outside / "secret.txt"))
    return lines.reduce(tf.constant(0), lambda n, _: n + 1)


def _huge(tf, module, place: Place):
    return tf.reduce_sum(tf.zeros([tf.constant(2**17), 2**15]))


def _copied(change):
    """The pristine SavedModel with files changed."""

    def content(place: Place, path) -> None:
        shutil.copytree(_shared(place) / "saved_model/1", path)
        change(path, place)

    return content


def _put(name: str, data: bytes):
    return _copied(lambda path, _: (path / name).write_bytes(data))


def _linked(name: str):
    def change(path, place: Place) -> None:
        moved = place.outside / "moved"
        shutil.move(path / name, moved)
        link(path / name, moved)

    return _copied(change)


def _about(**changes):
    def change(path, _) -> None:
        file = path / "assets.extra/cbnn_keras.json"
        file.write_text(
            json.dumps({**json.loads(file.read_bytes()), **changes})
        )

    return _copied(change)


def _version(name: str):
    """A directory of versions, with one more of an odd name."""

    def content(place: Place, path) -> None:
        shutil.copytree(_shared(place) / "saved_model", path)
        (path / name).mkdir()

    return content


def _saved_models() -> list[Case]:
    about = "assets.extra/cbnn_keras.json"
    bodies = {
        "WriteFile": _write,
        "ReadFile": _read,
        "PrintV2 to a file": _print,
        "PyFunc": _py_function,
        "ReadFile in a function": _nested,
        "WriteFile in a condition": _in_condition,
        "WriteFile in a loop": _in_loop,
        "MatchingFiles": _matching,
        "SaveV2": _save_op,
        "RestoreV2": _restore_op,
        "TextLineDataset": _dataset,
        "table from a file": _table,
        "16 GB": _huge,
        "other predictions": lambda tf, module, place: None,
    }
    changes = {
        "no graph": _put("saved_model.pb", b""),
        "graph of text": _put("saved_model.pb", b"text"),
        "graph of zeros": _put("saved_model.pb", bytes(999)),
        "metadata of text": _put(about, b"text"),
        "metadata of bytes": _put(about, b"\xff\xfe"),
        "metadata of null": _put(about, b"null"),
        "metadata of a list": _put(about, b"[]"),
        "metadata, deep": _put(about, b"[" * 200_000 + b"]" * 200_000),
        "metadata, empty": _put(about, b"{}"),
        "metadata, members": _about(members={"a": 1}),
        "metadata, precision": _about(precision="x"),
        "metadata, outputs": _about(outputs=[["x"]]),
        "weights of text": _put("variables/variables.index", b"text"),
        "weights of nothing": _put(
            "variables/variables.data-00000-of-00001", b""
        ),
        "graph by a link": _linked("saved_model.pb"),
        "metadata by a link": _linked(about),
        "weights by a link": _linked("variables"),
        "graph of a FIFO": _copied(_as_fifo),
        "version of 5,000 digits": _version("9" * 200),
        "version of other digits": _version("\u0669"),
        "empty version": _version("7"),
        "empty directory": lambda p, path: path.mkdir(),
    }
    lenient = {"16 GB"}
    return [
        file_case(
            "SavedModel",
            name,
            "",
            _saved_model(body),
            _verify,
            *([HARMLESS] if name in lenient else []),
        )
        for name, body in bodies.items()
    ] + [
        file_case("SavedModel", name, "", content, _verify)
        for name, content in changes.items()
    ]


def _as_fifo(path, place: Place) -> None:
    (path / "saved_model.pb").unlink()
    os.mkfifo(path / "saved_model.pb")


# ---------------------------------------------------------------------- Triton


def _triton(change):
    def content(place: Place, path) -> None:
        shutil.copytree(_shared(place) / "triton/model", path)
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
        file_case("Triton", name, "", _triton(change), _verify)
        for name, change in changes.items()
    ]


def cases() -> list[Case]:
    return [*_onnx_cases(), *_saved_models(), *_triton_cases()]
