"""SavedModels of somebody else: what they would do is found before they do."""

import os
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers import dense_model, memory_ensemble, text_model
from tensorflow.core.protobuf import saved_model_pb2

from cbnn_keras.export import export_saved_model, verify_artefact
from cbnn_keras.export.foreign_saved_model import check_saved_model
from cbnn_keras.support.faults import RunError

GIB = 2**30
ADVICE = (
    r" Give what `cbnn export` wrote, and do not load it elsewhere unless you "
    r"know who made it\.$"
)


@pytest.fixture
def artefact(full_saved_model, tmp_path):
    """A SavedModel of ours, to be changed."""
    return shutil.copytree(full_saved_model.path, tmp_path / "1")


def saved(directory, function, **parts):
    """A SavedModel whose endpoint calls a function of its input."""
    module = tf.Module()
    for name, part in parts.items():
        setattr(module, name, part)

    def serve(input):
        return {"probabilities": function(input)}

    spec = tf.TensorSpec([None, 4], tf.float32, name="input")
    module.serve = tf.function(serve, autograph=False)
    endpoint = module.serve.get_concrete_function(spec)
    path = directory / "1"
    tf.saved_model.save(module, str(path), signatures=endpoint)
    return path


def refused(operation, reason):
    return (
        rf"saved_model\.pb is not loaded\. A SavedModel is a program, and this "
        rf"one has the op (.*; (and )?)?{operation} in (the graph|function "
        rf"'[^']+'), which {reason}.*\.{ADVICE}"
    )


def with_effect(effect):
    def function(x):
        with tf.control_dependencies([effect(x)]):
            return tf.identity(x)

    return function


# --- What reaches out ---


def test_a_file_is_not_written(ensemble, tmp_path):
    """It was written before the mismatch was reported."""
    target = str(tmp_path / "written")
    path = saved(tmp_path, with_effect(lambda x: tf.io.write_file(target, "x")))
    with pytest.raises(
        RunError, match=refused("WriteFile", "reads or writes files")
    ):
        verify_artefact(path, ensemble)
    assert not os.path.exists(target)
    # It is what the SavedModel does.
    tf.saved_model.load(str(path)).signatures["serving_default"](
        input=np.zeros((1, 4), "float32")
    )
    assert os.path.exists(target)


def test_a_text_is_not_printed_to_a_file(tmp_path):
    target = f"file://{tmp_path / 'printed'}"
    path = saved(
        tmp_path,
        with_effect(lambda x: tf.print("secret", output_stream=target)),
    )
    with pytest.raises(
        RunError, match=refused("PrintV2", "reads or writes files")
    ):
        check_saved_model(path, GIB)
    assert not (tmp_path / "printed").exists()


def test_a_text_may_be_printed(tmp_path):
    path = saved(tmp_path, with_effect(lambda x: tf.print("here")))
    check_saved_model(path, GIB)


def in_a_branch(x):
    def branch():
        inner = tf.function(lambda: tf.io.read_file("/etc/passwd"))
        return tf.cast(tf.strings.length(inner()), tf.float32)

    return x + tf.cond(tf.reduce_sum(x) > 1e9, branch, lambda: 0.0)


def in_a_loop(x):
    def body(i, y):
        found = tf.io.matching_files("/*")
        return i + 1, y + tf.cast(tf.size(found), tf.float32)

    return tf.while_loop(lambda i, _: i < 1, body, (0, x))[1]


def called_back(x):
    return tf.ensure_shape(
        tf.numpy_function(lambda a: a, [x], tf.float32), [None, 4]
    )


def from_a_dataset(x):
    lines = tf.data.TextLineDataset("/etc/passwd")
    count = lines.reduce(0.0, lambda number, _: number + 1)
    return x + count


@pytest.mark.parametrize(
    ("function", "operation", "reason"),
    [
        (in_a_branch, "ReadFile", "reads or writes files"),
        (in_a_loop, "MatchingFiles", "reads or writes files"),
        (called_back, "(Eager)?PyFunc", "calls Python"),
        (from_a_dataset, "TextLineDataset", "reads or writes files"),
        (
            with_effect(lambda x: tf.raw_ops.Abort(error_msg="bye")),
            "Abort",
            "ends the process",
        ),
        (
            lambda x: tf.raw_ops.RestoreV2(
                prefix="/model",
                tensor_names=["x"],
                shape_and_slices=[""],
                dtypes=[tf.float32],
            )[0],
            "RestoreV2",
            "reads or writes files",
        ),
        (
            with_effect(
                lambda x: tf.raw_ops.SaveV2(
                    prefix="/x",
                    tensor_names=["x"],
                    shape_and_slices=[""],
                    tensors=[x],
                )
            ),
            "SaveV2",
            "reads or writes files",
        ),
    ],
)
def test_an_op_is_found_wherever_it_is(function, operation, reason, tmp_path):
    path = saved(tmp_path, function)
    with pytest.raises(RunError, match=refused(operation, reason)):
        check_saved_model(path, GIB)


class Reading(tf.saved_model.experimental.TrackableResource):
    """Its initialiser, which a load runs, reads a file."""

    def __init__(self, path):
        super().__init__()
        self._path = path
        self.resource_handle  # noqa: B018

    def _create_resource(self):
        return tf.raw_ops.HashTableV2(
            key_dtype=tf.string, value_dtype=tf.int64, shared_name="r"
        )

    def _initialize(self):
        # Not as an asset, which TensorFlow would copy.
        tf.raw_ops.InitializeTableFromTextFileV2(
            table_handle=self.resource_handle,
            filename=self._path,
            key_index=-2,
            value_index=-1,
        )


def test_an_initialiser_that_reads_is_refused(tmp_path):
    path = saved(tmp_path, tf.identity, resource=Reading("/etc/passwd"))
    with pytest.raises(
        RunError,
        match=refused("InitializeTableFromTextFileV2", "reads or writes files"),
    ):
        check_saved_model(path, GIB)


def test_a_table_that_is_an_asset_is_allowed_where_it_is(tmp_path):
    (tmp_path / "words.txt").write_text("red\ngreen\n")
    index = tf.lookup.TextFileIndex
    initialiser = tf.lookup.TextFileInitializer(
        str(tmp_path / "words.txt"),
        *(tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER),
    )
    table = tf.lookup.StaticHashTable(initialiser, -1)
    path = saved(
        tmp_path,
        lambda x: x + tf.cast(table.lookup(tf.constant("red")), tf.float32),
        table=table,
    )
    check_saved_model(path, GIB)
    content = read(path)
    [graph] = content.meta_graphs
    graph.asset_file_def[0].filename = "../../words.txt"
    write(path, content)
    with pytest.raises(
        RunError,
        match=r"names the asset '../../words\.txt', which is not in its "
        rf"directory of assets\.{ADVICE}",
    ):
        check_saved_model(path, GIB)


# --- The functions of a saver ---


def read(path):
    return saved_model_pb2.SavedModel.FromString(
        (path / "saved_model.pb").read_bytes()
    )


def write(path, content):
    (path / "saved_model.pb").write_bytes(content.SerializeToString())


def saving(library):
    """The function that writes the variables."""
    [found] = [
        function
        for function in library.function
        if any(node.op == "SaveV2" for node in function.node_def)
    ]
    return found


def call_from_an_endpoint(graph, name):
    function = next(
        f
        for f in graph.graph_def.library.function
        if f.signature.name in graph.object_graph_def.concrete_functions
    )
    node = function.node_def.add(name="more", op="StatefulPartitionedCall")
    node.attr["f"].func.name = name


def call_by_its_name(graph, name):
    function = graph.graph_def.library.function[0]
    function.node_def.add(name="more", op=name)


def as_a_concrete_function(graph, name):
    graph.object_graph_def.concrete_functions[name].SetInParent()


def in_place_of_others(graph, name):
    saving(graph.graph_def.library).attr["api_implements"].s = b"other"


def as_a_gradient(graph, name):
    graph.graph_def.library.gradient.add(
        function_name="any", gradient_func=name
    )


def without_a_saver(graph, name):
    graph.ClearField("saver_def")


@pytest.mark.parametrize(
    "change",
    [
        call_from_an_endpoint,
        call_by_its_name,
        as_a_concrete_function,
        in_place_of_others,
        as_a_gradient,
        without_a_saver,
    ],
)
def test_only_the_saver_may_save(change, artefact):
    check_saved_model(artefact, GIB)
    content = read(artefact)
    [graph] = content.meta_graphs
    change(graph, saving(graph.graph_def.library).signature.name)
    write(artefact, content)
    with pytest.raises(
        RunError, match=refused("SaveV2", "reads or writes files")
    ):
        check_saved_model(artefact, GIB)


# --- Ours ---


@pytest.mark.parametrize("make", [dense_model, text_model])
def test_exports_are_allowed(make, tmp_path):
    ensemble = memory_ensemble(make(), [1.0, 2.0])
    found = export_saved_model(ensemble, tmp_path / "model", verbose=0)
    assert verify_artefact(found.path, ensemble, verbose=0).agreement == 1


def test_all_outputs_are_allowed(full_saved_model, ensemble):
    verify_artefact(full_saved_model.path, ensemble, verbose=0)


# --- Files ---


@pytest.mark.parametrize(
    "name",
    ["variables/variables.index", "assets.extra/cbnn_keras.json", "assets"],
)
def test_links_are_refused(name, artefact, ensemble, tmp_path):
    os.replace(artefact / name, tmp_path / "moved")
    (artefact / name).symlink_to(tmp_path / "moved")
    with pytest.raises(
        RunError,
        match=rf"{re.escape(name)} is a link, which may lead "
        rf"anywhere\.{ADVICE}",
    ):
        verify_artefact(artefact, ensemble)


def test_a_version_that_is_a_link_is_refused(artefact, ensemble, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/2").symlink_to(artefact)
    with pytest.raises(
        RunError, match=r"model/2 is a link, which may lead anywhere\. Put the"
    ):
        verify_artefact(tmp_path / "model", ensemble)
    # The user's own link is the user's own choice.
    (tmp_path / "mine").symlink_to(artefact)
    verify_artefact(tmp_path / "mine", ensemble, verbose=0)


@pytest.mark.parametrize(
    "name", ["saved_model.pbtxt", "saved_model.cpb", "x.so", "assets/a/b"]
)
def test_files_that_no_export_writes(name, artefact):
    (artefact / name).parent.mkdir(exist_ok=True)
    (artefact / name).touch()
    with pytest.raises(
        RunError, match=rf"{re.escape(name)} is a file that no export writes\."
    ):
        check_saved_model(artefact, GIB)


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b"\xff" * 99, None],
    ids=["empty", "text", "bytes", "half"],
)
def test_a_damaged_graph_is_named(content, artefact, ensemble):
    path = artefact / "saved_model.pb"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(RunError, match=f"^{re.escape(str(path))} "):
        verify_artefact(artefact, ensemble)


def test_damaged_variables_are_named(artefact, ensemble):
    for name in ("variables.index", "variables.data-00000-of-00001"):
        path = artefact / "variables" / name
        whole = path.read_bytes()
        for content in (b"", whole[:-20], bytes(len(whole))):
            path.write_bytes(content)
            with pytest.raises(RunError, match=re.escape(str(artefact))):
                verify_artefact(artefact, ensemble)
        path.write_bytes(whole)


# --- Sizes ---


def test_a_constant_of_any_size_takes_two_bytes(artefact):
    content = read(artefact)
    [graph] = content.meta_graphs
    node = graph.graph_def.library.function[0].node_def.add(op="Const")
    tensor = node.attr["value"].tensor
    tensor.dtype = tf.float32.as_datatype_enum
    tensor.tensor_shape.dim.add(size=2**28)
    tensor.float_val.append(0)
    write(artefact, content)
    check_saved_model(artefact, 2 * GIB)
    with pytest.raises(
        RunError,
        match=r"^The constants of .*saved_model\.pb would take 1\.1 GB, more "
        r"than the 1\.1 GB allowed\. If you know who made it, give a larger "
        r"max_bytes \(--max-bytes\)\.$",
    ):
        check_saved_model(artefact, GIB)


def test_what_is_too_large_is_not_read(artefact):
    size = (artefact / "saved_model.pb").stat().st_size
    with pytest.raises(
        RunError,
        match=r"saved_model\.pb has \d+\.\d kB, more than the \d+\.\d kB "
        r"allowed for a graph\. If you know who made it",
    ):
        check_saved_model(artefact, 15 * size)
    with pytest.raises(
        RunError, match=r"1 has \d+\.\d kB, more than the 1\.0 kB allowed\. If"
    ):
        check_saved_model(artefact, 1000)


def test_variables_cannot_claim_more_than_there_is(artefact, tmp_path):
    huge = tf.Module()
    huge.v = tf.Variable(tf.zeros(2**19))
    checkpoint = tf.train.Checkpoint(root=huge)
    checkpoint.write(str(tmp_path / "huge"))
    for name in ("index", "data-00000-of-00001"):
        content = (tmp_path / f"huge.{name}").read_bytes()
        cut = content if name == "index" else content[:1000]
        (artefact / f"variables/variables.{name}").write_bytes(cut)
    with pytest.raises(
        RunError,
        match=r"variables has \d+\.\d kB, but its variables would take 2\.1 "
        rf"MB: it is damaged, or not what it says\.{ADVICE}",
    ):
        check_saved_model(artefact, GIB)
    with pytest.raises(
        RunError, match=r"^The variables of .* would take 2\.1 MB, more than"
    ):
        check_saved_model(artefact, 1_500_000)
