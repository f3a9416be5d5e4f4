"""Hostile SavedModels for `cbnn verify`: a SavedModel is a program."""

import json
import os
import shutil

import numpy as np
from arena import HARMLESS, Case, Place, link
from files_arrays import file_case
from files_onnx import pristine_of, verify


def _saved_model(body):
    """A SavedModel like ours whose endpoint does something else as well."""

    def content(place: Place, path) -> None:
        import tensorflow as tf

        pristine = pristine_of(place) / "saved_model/1"
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
        tf.raw_ops.WriteFile(filename=str(place.marker), contents="x")
        return tf.constant(1)

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
        shutil.copytree(pristine_of(place) / "saved_model/1", path)
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
        shutil.copytree(pristine_of(place) / "saved_model", path)
        (path / name).mkdir()

    return content


def cases() -> list[Case]:
    kind = "SavedModel"
    about = "assets.extra/cbnn_keras.json"
    bodies = {
        "WriteFile": _write,
        "ReadFile": _read,
        "PrintV2 to a file": _print,
        "PyFunc": _py_function,
        "WriteFile in a function": _nested,
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
            kind,
            name,
            "",
            _saved_model(body),
            verify,
            *([HARMLESS] if name in lenient else []),
        )
        for name, body in bodies.items()
    ] + [
        file_case(kind, name, "", content, verify)
        for name, content in changes.items()
    ]


def _as_fifo(path, place: Place) -> None:
    (path / "saved_model.pb").unlink()
    os.mkfifo(path / "saved_model.pb")
