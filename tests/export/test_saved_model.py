"""Tests of SavedModels as TensorFlow Serving wants them.

What they answer is tested in test_parity.py; here, what is in the directory,
where it is, and that nothing is left where it failed.
"""

import collections
import json
import os
import re
import stat
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import FULL
from export_helpers import ALL, X, opened, serving_graph, tree
from google.protobuf import text_format
from helpers import memory_ensemble
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2

from cbnn_keras.export import export_saved_model, saved_model
from cbnn_keras.export import graph as graph_module

layers = keras.layers


# --- What is in it ---


def test_endpoints_have_named_inputs_and_outputs(full_saved_model):
    loaded = tf.saved_model.load(str(full_saved_model.path))
    assert set(loaded.signatures) == {"serving_default", "members"}
    shapes = {
        "probabilities": ([None, 3], tf.float32),
        "class": ([None], tf.string),
        "top_k_classes": ([None, 2], tf.string),
        "top_k_probabilities": ([None, 2], tf.float32),
        "members": ([None, 3, 3], tf.float32),
        "disagreement": ([None], tf.float32),
    }
    for endpoint, names in (
        ("serving_default", set(shapes)),
        ("members", {"members"}),
    ):
        function = loaded.signatures[endpoint]
        positional, keywords = function.structured_input_signature
        assert positional == ()
        assert keywords == {
            "input": tf.TensorSpec([None, 4], tf.float32, name="input")
        }
        found = function.structured_outputs
        assert {n: (s.shape.as_list(), s.dtype) for n, s in found.items()} == {
            name: shapes[name] for name in names
        }


def test_metadata_are_in_it(ensemble, full_saved_model):
    path = full_saved_model.path / "assets.extra" / "cbnn_keras.json"
    expected = serving_graph(ensemble, **FULL).metadata()
    assert json.loads(path.read_text(encoding="utf-8")) == expected


def test_what_is_said_and_what_is_returned(ensemble, tmp_path, capsys):
    artefact = export_saved_model(
        ensemble, tmp_path / "größe", sample_data=X[:3]
    )
    assert capsys.readouterr().out.splitlines() == [
        "merging the members ...",
        "writing the SavedModel ...",
        "comparing it with the Keras ensemble ...",
        str(artefact),
    ]
    files = [path for path in artefact.path.rglob("*") if path.is_file()]
    assert artefact.num_bytes == sum(len(path.read_bytes()) for path in files)
    assert artefact.path == tmp_path / "größe" / "1"
    assert artefact.parity.max_difference <= 1e-5
    assert artefact.parity.agreement == 1.0
    assert artefact.parity.num_samples == 3
    # The real samples are the requests to warm up with.
    path = artefact.path / "assets.extra" / "tf_serving_warmup_requests"
    found = []
    for record in tf.data.TFRecordDataset(str(path)):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        request = log.predict_log.request
        assert request.model_spec.name == "größe"
        [(name, tensor)] = request.inputs.items()
        assert name == "input"
        array = tf.make_ndarray(tensor)
        np.testing.assert_array_equal(array, X[: len(array)])
        found.append((request.model_spec.signature_name, len(array)))
    assert found == [
        *(("serving_default", 1), ("serving_default", 3)),
        *(("members", 1), ("members", 3)),
    ]


def stored(directory):
    """Shapes of the variables in a SavedModel, and their bytes."""
    variables = tf.train.load_checkpoint(str(directory / "variables/variables"))
    shapes = variables.get_variable_to_shape_map()
    shapes.pop("_CHECKPOINTABLE_OBJECT_GRAPH", None)
    [data] = (directory / "variables").glob("variables.data*")
    counts = collections.Counter(map(tuple, shapes.values()))
    return counts, data.stat().st_size


def test_weights_are_stored_once(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((100,)),
            layers.GaussianNoise(0.1),
            layers.Dense(200, activation="relu"),
            layers.Dropout(0.5),
            layers.BatchNormalization(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    ensemble = memory_ensemble(model, [1.0, 2.0, 0.5])
    artefact = export_saved_model(
        ensemble, tmp_path / "model", outputs=ALL, verbose=0
    )
    shapes, size = stored(artefact.path)
    # Seeds of noise and dropout are not among them.
    assert shapes == {(100, 200): 3, (200,): 3 * 5, (200, 3): 3, (3,): 3}
    num_parameters = 3 * (100 * 200 + 5 * 200 + 200 * 3 + 3)
    assert 4 * num_parameters <= size < 1.1 * 4 * num_parameters
    # And nowhere else: as constants they would be in the graph.
    assert artefact.num_bytes - size < 0.5 * 4 * num_parameters


@pytest.mark.parametrize("name", ["petal length", "1st", "class", "größe"])
def test_names_of_inputs_that_endpoints_cannot_have(tmp_path, name):
    inputs = {name: keras.Input((4,), name=name)}
    outputs = layers.Dense(3, activation="softmax")(inputs[name])
    ensemble = memory_ensemble(keras.Model(inputs, outputs), [1.0])
    with pytest.raises(
        ValueError,
        match=rf"^A SavedModel cannot have an input called '{name}'\. "
        r"Use letters, digits and underscores: inputs=keras\.Input\(\.\.\., "
        r'name="another"\)\.$',
    ):
        export_saved_model(ensemble, tmp_path / "model", verbose=0)
    assert tree(tmp_path) == {}


def test_other_names_for_inputs_that_are_keys(tmp_path):
    """What the message above says, for two of them."""
    inputs = {
        "petal length": keras.Input((1,), name="petal length"),
        "age": keras.Input((3,), name="age"),
    }
    joined = layers.Concatenate()([inputs["age"], inputs["petal length"]])
    outputs = layers.Dense(3, activation="softmax")(joined)
    ensemble = memory_ensemble(keras.Model(inputs, outputs), [1.0, 2.0])
    others = {
        "age": keras.Input((3,), name="age"),
        "petal length": keras.Input((1,), name="petal_length"),
    }
    artefact = export_saved_model(
        ensemble, tmp_path / "model", inputs=others, verbose=0
    )
    age, length = X[:, :3], X[:, 3:]
    inputs = {"age": age, "petal_length": length}
    found = opened(artefact.path)(inputs)["probabilities"]
    expected = ensemble.predict({"age": age, "petal length": length}, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


# --- Where it is ---


@pytest.fixture
def quick(monkeypatch, ensemble):
    """Exports that write one small file, for tests of where they go."""

    def write(graph, directory, name):
        directory.mkdir()
        (directory / "saved_model.pb").write_bytes(os.fsencode(name))

    graph = types.SimpleNamespace(input_specs={})
    monkeypatch.setattr(saved_model, "ServingGraph", lambda *a: graph)
    monkeypatch.setattr(saved_model, "_write", write)
    monkeypatch.setattr(saved_model, "_compare", lambda *a: "the same")
    return lambda path, **options: export_saved_model(
        ensemble, path, verbose=0, **options
    )


def test_versions_are_counted(quick, tmp_path):
    for number in range(1, 12):
        artefact = quick(tmp_path / "models" / "flowers")
        assert artefact.path == tmp_path / "models" / "flowers" / str(number)
        assert artefact.num_bytes == len("flowers")  # of this one alone
    assert sorted(os.listdir(tmp_path / "models" / "flowers"), key=int) == [
        str(number) for number in range(1, 12)
    ]
    # The name that it is served under.
    text = (artefact.path / "saved_model.pb").read_text()
    assert text == "flowers"


def test_a_version_can_be_chosen(quick, tmp_path):
    assert quick(tmp_path / "m" / "5").path == tmp_path / "m" / "5"
    assert quick(str(tmp_path / "m" / "2")).path == tmp_path / "m" / "2"
    assert quick(tmp_path / "m").path == tmp_path / "m" / "6"


def test_a_relative_path(quick, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert quick("m").path == tmp_path / "m" / "1"
    monkeypatch.chdir(tmp_path / "m")
    assert quick(".").path == tmp_path / "m" / "2"
    assert quick("3").path == tmp_path / "m" / "3"


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_a_version_that_is_there_is_refused(quick, tmp_path, kind):
    path = tmp_path / "m" / "4"
    path.parent.mkdir()
    path.mkdir() if kind == "directory" else path.write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(
        ValueError,
        match=rf"^{re.escape(str(path))} is there already, and versions are "
        r"never replaced: a server may be using it\. Give "
        rf"{re.escape(str(path.parent))} to get the next one\.$",
    ):
        quick(path)
    assert tree(tmp_path) == before


def test_a_version_that_appears_meanwhile_is_not_replaced(
    quick, tmp_path, monkeypatch
):
    other = tmp_path / "m" / "1"

    def compare(*arguments, **options):
        other.mkdir(exist_ok=True)
        (other / "theirs").write_text("theirs")

    monkeypatch.setattr(saved_model, "_compare", compare)
    with pytest.raises(ValueError, match="/m/1 is there already"):
        quick(tmp_path / "m")
    assert set(tree(tmp_path)) == {"m", "m/1", "m/1/theirs"}


def test_a_file_in_the_way_is_refused(quick, tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(
        ValueError,
        match=r"/notes is a file; a SavedModel is a directory of versions\. "
        r"Choose another name\.$",
    ):
        quick(tmp_path / "notes")
    with pytest.raises(ValueError, match="notes is a file, so"):
        quick(tmp_path / "notes/deeper/model")
    assert tree(tmp_path) == {"notes": b"mine"}


def test_permissions_are_the_usual_ones(full_saved_model):
    directory = full_saved_model.path
    usual = stat.S_IMODE(directory.parent.stat().st_mode)
    for path in (directory, *directory.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (usual if path.is_dir() else usual & 0o666)


# --- What fails leaves nothing ---


class Failure(Exception):
    pass


def failing(error, *, after=None):
    def fail(*arguments, **options):
        if after is not None:
            after(*arguments, **options)
        raise error

    return fail


@pytest.mark.parametrize(
    ("module", "name", "is_late", "error"),
    [
        (saved_model, "ServingGraph", False, Failure),
        (saved_model, "_check_operations", False, Failure),
        (tf.saved_model, "save", False, Failure),
        (tf.saved_model, "save", True, KeyboardInterrupt),  # all is written
        (saved_model.tf_serving, "write_warmup", True, Failure),
        (saved_model, "SavedModelRuntime", True, Failure),
        (saved_model, "compare", False, Failure),
        (saved_model, "compare", True, KeyboardInterrupt),
        (saved_model.tf_serving, "models_config", False, Failure),
        (saved_model.placing, "move_directory", False, Failure),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_nothing_is_left_of_a_failed_export(
    ensemble, tmp_path, monkeypatch, module, name, is_late, error
):
    (tmp_path / "there").mkdir()
    after = getattr(module, name) if is_late else None
    monkeypatch.setattr(module, name, failing(error, after=after))
    with pytest.raises(error):
        export_saved_model(
            ensemble,
            tmp_path / "there" / "made" / "model",
            serving_config="",
            verbose=0,
        )
    assert tree(tmp_path) == {"there": None}


def test_versions_survive_a_failed_export(ensemble, tmp_path, monkeypatch):
    model = tmp_path / "model"
    export_saved_model(ensemble, model, serving_config="", verbose=0)
    before = tree(tmp_path)
    assert {"model/1/saved_model.pb", "models.config"} < set(before)
    say = graph_module.reference

    def others(*args):
        found = say(*args)
        found["probabilities"] = found["probabilities"] + 1e-3
        return found

    monkeypatch.setattr(graph_module, "reference", others)
    with pytest.raises(
        ValueError, match="^The export does not match the Keras ensemble: max"
    ):
        export_saved_model(ensemble, model, serving_config="", verbose=0)
    assert tree(tmp_path) == before
    # A larger tolerance lets the same pass.
    export_saved_model(ensemble, model, tolerance=1e-2, verbose=0)
    assert (model / "2" / "saved_model.pb").is_file()


def test_members_are_compared_as_well(ensemble, tmp_path, monkeypatch):
    say = graph_module.reference

    def others(*args):
        found = say(*args)
        found["members"] = found["members"][:, ::-1]
        return found

    monkeypatch.setattr(graph_module, "reference", others)
    with pytest.raises(ValueError, match="does not match the Keras ensemble"):
        export_saved_model(ensemble, tmp_path / "model", verbose=0)
    assert tree(tmp_path) == {}


# --- Layers that need Python ---


@keras.saving.register_keras_serializable("test_saved_model")
class InPython(layers.Layer):
    """Doubles its inputs in a way that no server can."""

    def __init__(self, way="numpy", **options):
        super().__init__(**options)
        self.way = way

    def call(self, x):
        shape = tf.shape(x)
        return tf.reshape(self._doubled(x), shape)

    def _doubled(self, x):
        def double(array):
            return array * 2

        if self.way == "py":
            return tf.py_function(double, [x], tf.float32)
        if self.way == "stateless":
            return tf.numpy_function(double, [x], tf.float32, stateful=False)
        if self.way == "function":
            return tf.function(
                lambda y: tf.numpy_function(double, [y], tf.float32)
            )(x)
        if self.way == "branch":
            return tf.cond(
                tf.reduce_sum(x) > 0,
                lambda: tf.numpy_function(double, [x], tf.float32),
                lambda: x,
            )
        return tf.numpy_function(double, [x], tf.float32)

    def compute_output_shape(self, shape):
        return shape

    def get_config(self):
        return {**super().get_config(), "way": self.way}


def refused(op, layer):
    return (
        rf"^The layer '{layer}' calls Python code \(op {op}, from "
        r"tf\.numpy_function or tf\.py_function\), which no server can run\. "
        r"Write the layer with keras\.ops or TensorFlow's functions\. Nothing "
        r"was written\.$"
    )


def block():
    return keras.Sequential(
        [keras.Input((4,)), layers.Dense(4), InPython(name="step")],
        name="block",
    )


@pytest.mark.parametrize(
    ("make", "op", "name"),
    [
        (lambda: InPython(name="step"), "PyFunc", "step"),
        (lambda: InPython("py", name="step"), "EagerPyFunc", "step"),
        (lambda: InPython("stateless", name="step"), "PyFuncStateless", "step"),
        (lambda: InPython("function", name="step"), "PyFunc", "step"),
        (lambda: InPython("branch", name="step"), "PyFunc", "step"),
        (block, "PyFunc", "block_step"),
    ],
)
def test_layer_that_needs_python_is_refused(tmp_path, make, op, name):
    model = keras.Sequential(
        [keras.Input((4,)), make(), layers.Dense(3, activation="softmax")]
    )
    ensemble = memory_ensemble(model, [1.0, 2.0])
    with pytest.raises(ValueError, match=refused(op, name)):
        export_saved_model(ensemble, tmp_path / "model", verbose=0)
    assert tree(tmp_path) == {}


# --- models.config ---


def parse_config(path):
    message = model_server_config_pb2.ModelServerConfig()
    text_format.Parse(path.read_text(encoding="utf-8"), message)
    return [
        (entry.name, entry.base_path)
        for entry in message.model_config_list.config
    ]


def test_models_config_lists_all_models(quick, tmp_path):
    quick(tmp_path / "first")
    assert not (tmp_path / "models.config").exists()
    quick(tmp_path / 'se"cond' / "7", serving_config="")
    quick(tmp_path / "first", serving_config="")
    assert parse_config(tmp_path / "models.config") == [
        ("first", str(tmp_path / "first")),
        ('se"cond', str(tmp_path / 'se"cond')),
    ]
    quick(tmp_path / "third", serving_config="/models/")
    assert parse_config(tmp_path / "models.config")[-1] == (
        "third",
        "/models/third",
    )


def test_models_config_of_somebody_else_stops_the_export_first(
    ensemble, tmp_path, monkeypatch
):
    config = tmp_path / "models.config"
    config.write_text("model_config_list {}\n")
    monkeypatch.setattr(saved_model, "ServingGraph", failing(Failure))
    with pytest.raises(
        ValueError, match="models.config was not written by `cbnn export` and"
    ):
        export_saved_model(
            ensemble, tmp_path / "model", serving_config="", verbose=0
        )
    assert set(tree(tmp_path)) == {"models.config"}
    assert config.read_text() == "model_config_list {}\n"
    # Without the option, it is nobody's business.
    with pytest.raises(Failure):
        export_saved_model(ensemble, tmp_path / "model", verbose=0)


def test_models_config_is_in_utf_8_in_any_locale(quick, tmp_path, c_locale):
    quick(tmp_path / "青い", serving_config="/models")
    config = tmp_path / "models.config"
    assert parse_config(config) == [("青い", "/models/青い")]


def test_a_name_that_utf_8_does_not_have_leaves_no_version(quick, tmp_path):
    with pytest.raises(UnicodeEncodeError):
        quick(tmp_path / "new" / "\udcff", serving_config="/models")
    assert tree(tmp_path) == {}
