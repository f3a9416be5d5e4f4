"""ONNX files with their weights beside them."""

import hashlib
import os
import shutil

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
from export_helpers import tree
from helpers import header, memory_ensemble, round_at

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.export import (
    export_onnx,
    export_triton,
    onnx_conversion,
    onnx_files,
)
from cbnn_keras.runs.run import MemoryRun

layers = keras.layers
VOTES = [1.0, 2.5]
X = np.random.default_rng(0).normal(size=(9, 4)).astype("float32")


def build(units=80, seed=0):
    """Kernels of `(4, units)` and `(units, 3)`; the first is above 1 kB."""
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((4,), name="values")
    hidden = layers.Dense(units, activation="relu")(inputs)
    outputs = layers.Dense(3, activation="softmax")(hidden)
    return memory_ensemble(keras.Model(inputs, outputs), VOTES)


@pytest.fixture(scope="module")
def ensemble():
    return build()


@pytest.fixture
def all_are_large(monkeypatch):
    """Both limits: of what is converted and of what is saved."""
    monkeypatch.setattr(onnx_conversion, "_LARGE_MODEL", 1000)
    monkeypatch.setattr(onnx_conversion, "_LARGE_WEIGHT", 100)
    monkeypatch.setattr(onnx_files, "_LIMIT", 1000)


@pytest.fixture(scope="module")
def large(ensemble, tmp_path_factory):
    """A directory with a model in two files, to be copied."""
    directory = tmp_path_factory.mktemp("large") / "models"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_conversion, "_LARGE_MODEL", 1000)
        patch.setattr(onnx_conversion, "_LARGE_WEIGHT", 100)
        patch.setattr(onnx_files, "_LIMIT", 1000)
        artefact = export_onnx(ensemble, directory / "a.onnx", verbose=0)
    assert artefact.path == directory / "a.onnx"
    sizes = [path.stat().st_size for path in directory.iterdir()]
    assert artefact.num_bytes == sum(sizes)
    return directory


@pytest.fixture
def directory(large, tmp_path):
    """A copy, to be changed."""
    shutil.copytree(large, tmp_path / "models")
    return tmp_path / "models"


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def check(path, ensemble):
    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(["probabilities"], {"values": X})
    expected = ensemble.predict(X, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert np.ptp(expected) > 0.1


# --- Two files ---


def test_weights_are_beside_the_model(large, ensemble):
    model, data = names(large)
    assert model == "a.onnx"
    digest = hashlib.sha256((large / data).read_bytes()).hexdigest()
    assert data == f"a.onnx.{digest[:12]}.data"
    graph = onnx.load(large / model, load_external_data=False).graph
    locations = {
        entry.value
        for tensor in graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    assert locations == {data}
    # The first kernel of each member; what has less than 1 kB stays.
    kernels = [m.get_weights()[0] for m in ensemble.member_models()]
    found = np.frombuffer((large / data).read_bytes(), "float32")
    found = found.reshape(2, 4, 80)
    assert sorted(k.tobytes() for k in kernels) == sorted(
        k.tobytes() for k in found
    )
    onnx.checker.check_model(str(large / model), full_check=True)
    check(large / model, ensemble)


def test_an_export_of_the_same_has_the_same_files(
    directory, ensemble, all_are_large
):
    before = names(directory)
    export_onnx(ensemble, directory / "a.onnx", verbose=0)
    assert names(directory) == before
    check(directory / "a.onnx", ensemble)


@pytest.mark.parametrize(("limit", "num_files"), [(4001, 1), (4000, 2)])
def test_the_limit_counts_all_weights(limit, num_files, tmp_path, monkeypatch):
    """Those that are too small to be moved out as well."""
    assert 1.9e9 < onnx_files._LIMIT < 2**31  # where protocol buffers end
    assert onnx_conversion._LARGE_MODEL < onnx_files._LIMIT
    monkeypatch.setattr(onnx_files, "_LIMIT", limit)
    arrays = {"a": np.ones(300, "float32"), "b": np.ones(700, "float32")}
    arrays["b"] = arrays["b"].reshape(7, 100)
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("MatMul", ["x", "b"], ["y"])],
            "graph",
            [onnx.helper.make_tensor_value_info("x", 1, ["batch", 7])],
            [onnx.helper.make_tensor_value_info("y", 1, ["batch", 100])],
            [onnx.numpy_helper.from_array(a, k) for k, a in arrays.items()],
        )
    )
    onnx_files.save(model, tmp_path / "a.onnx")
    assert len(names(tmp_path)) == num_files


def test_weights_are_counted_however_they_are_kept():
    for fields, expected in (
        ({"raw_data": bytes(40)}, 40),
        ({"float_data": [1.0] * 10}, 40),
        ({"string_data": [b"abc"] * 10}, 30),
    ):
        size = onnx_files.tensor_bytes(onnx.TensorProto(**fields))
        assert expected <= size <= expected + 30


# --- In place of another ---


def test_old_weights_are_removed_and_nothing_else(directory, all_are_large):
    (old,) = directory.glob("*.data")
    others = [
        "a.data",
        "b.onnx.0123456789ab.data",
        "a.onnx.bak",
        "weights.data",
    ]
    for name in others:
        (directory / name).write_text("mine")
    other = build(90, seed=1)
    export_onnx(other, directory / "a.onnx", verbose=0)
    assert not old.exists()
    (new,) = set(names(directory)) - {"a.onnx", *others}
    assert new.startswith("a.onnx.") and new != old.name
    assert all((directory / name).read_text() == "mine" for name in others)
    check(directory / "a.onnx", other)


def test_a_small_model_in_place_of_a_large_one(directory, ensemble):
    export_onnx(ensemble, directory / "a.onnx", verbose=0)
    assert names(directory) == ["a.onnx"]
    check(directory / "a.onnx", ensemble)


@pytest.mark.parametrize("num_renames", [0, 1])
def test_there_is_a_complete_model_at_every_moment(
    num_renames, directory, ensemble, all_are_large, monkeypatch
):
    """Interrupted before and after the weights are in their place."""
    other = build(90, seed=1)
    replace, made = os.replace, []

    def interrupted(source, destination):
        if len(made) == num_renames:
            raise KeyboardInterrupt("now")
        made.append(destination)
        replace(source, destination)

    with monkeypatch.context() as context:
        context.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt, match="now"):
            export_onnx(other, directory / "a.onnx", verbose=0)
    check(directory / "a.onnx", ensemble)
    # The next one cleans up.
    export_onnx(other, directory / "a.onnx", verbose=0)
    assert len(names(directory)) == 2
    check(directory / "a.onnx", other)


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_other_precisions_are_for_small_models(
    precision, directory, ensemble, all_are_large
):
    before = tree(directory)
    data = X if precision == "int8" else None
    with pytest.raises(
        ValueError,
        match=rf"precision='{precision}' is for models up to 2 GB\. Export "
        r"fewer members \(`ensemble.select`\), or float32",
    ):
        export_onnx(
            ensemble,
            directory / "a.onnx",
            precision=precision,
            calibration_data=data,
            verbose=0,
        )
    assert tree(directory) == before


def test_triton_gets_both_files(ensemble, tmp_path, all_are_large):
    artefact = export_triton(ensemble, tmp_path / "model", verbose=0)
    files = list((tmp_path / "model/1").iterdir())
    assert len(files) == 2
    assert artefact.num_bytes == sum(path.stat().st_size for path in files)
    check(tmp_path / "model/1/model.onnx", ensemble)


# --- Names that are in the way ---


@pytest.mark.parametrize(
    "name", ["a.onnx.notes.data", "a.onnx.v2.onnx.0123456789ab.data"]
)
def test_data_of_the_user_are_left_alone(name, tmp_path):
    """The second belongs to another model, a.onnx.v2.onnx."""
    (tmp_path / "new").write_bytes(b"model")
    (tmp_path / name).write_text("mine")
    onnx_files.move(tmp_path / "new", tmp_path / "a.onnx")
    assert names(tmp_path) == sorted(["a.onnx", name])


def test_a_name_is_not_a_pattern(ensemble, tmp_path, all_are_large):
    path = tmp_path / "a[1].onnx"
    export_onnx(ensemble, path, verbose=0)
    assert len(names(tmp_path)) == 2
    check(path, ensemble)


# --- Really above 2 GB ---


class SyntheticRun(MemoryRun):
    """Makes up the weights of a member when they are asked for."""

    def load_member(self, step, model):
        generator = np.random.default_rng(step)
        for variable in model.variables:
            values = generator.standard_normal(variable.shape, "float32")
            values *= np.sqrt(2 / variable.shape[0])
            variable.assign(values)


@pytest.mark.large
def test_an_ensemble_above_two_gigabytes(tmp_path):
    """Takes minutes, and memory of several times the weights."""
    inputs = hidden = keras.Input((8,), name="values")
    for units in [3_930] * 13:  # of 742 MB a member
        hidden = layers.Dense(units, activation="relu")(hidden)
    outputs = layers.Dense(5, activation="softmax")(hidden)
    model = keras.Model(inputs, outputs)
    num_bytes = 3 * 4 * model.count_params()
    assert num_bytes > 2.2e9
    run = SyntheticRun(header(model))
    run.rounds = [
        round_at(step, vote) for step, vote in ((1, 1.0), (2, 2.5), (3, 0.7))
    ]
    run.members = [1, 2, 3]
    run.finish()
    ensemble = CheckpointEnsemble(run, model)

    path = tmp_path / "a.onnx"
    artefact = export_onnx(ensemble, path, verbose=0)
    assert artefact.parity.max_difference <= 1e-5
    _, data = names(tmp_path)
    assert data.startswith("a.onnx.") and data.endswith(".data")
    assert path.stat().st_size < 1e6
    assert num_bytes * 0.999 < (tmp_path / data).stat().st_size
    assert num_bytes < artefact.num_bytes < num_bytes * 1.001

    x = np.random.default_rng(0).normal(size=(7, 8)).astype("float32")
    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(["probabilities"], {"values": x})
    expected = ensemble.predict(x, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(found.argmax(1), expected.argmax(1))
    members = np.stack(list(ensemble.member_probabilities(x, verbose=0)))
    assert np.ptp(members, axis=0).max() > 0.1  # members do differ
    assert np.ptp(expected, axis=0).max() > 0.01
    (tmp_path / data).unlink()  # pytest would keep it for a while
