"""The same callback on JAX and on torch, each in a process of its own."""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers import trained

from cbnn_keras import CBNNCallback, CheckpointEnsemble, RunError
from cbnn_keras.export import export_onnx, export_saved_model
from cbnn_keras.models import engine
from cbnn_keras.models.engine_interface import host_array

HERE = pathlib.Path(__file__).parent
PACKAGES = {"jax": "jax", "torch": "torch"}


def run_on(backend, *command):
    """Runs a process with another backend; its output is in the error."""
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def needs(backend):
    if importlib.util.find_spec(PACKAGES[backend]) is None:
        pytest.skip(f"{backend} is not installed")


class Seen:
    """What backend_worker.py left in its directory."""

    def __init__(self, directory):
        self.directory = directory
        self.values = json.loads((directory / "seen.json").read_text())

    def __getitem__(self, name):
        return self.values[name]

    def array(self, name):
        return np.load(self.directory / name)


@pytest.fixture(scope="module")
def of_tensorflow(tmp_path_factory):
    """What the worker does on the backend of this process."""
    directory = tmp_path_factory.mktemp("tensorflow")
    run_on("tensorflow", HERE / "backend_worker.py", directory)
    return Seen(directory)


@pytest.fixture(scope="module", params=["jax", "torch"])
def seen(request, tmp_path_factory, of_tensorflow):
    needs(request.param)
    directory = tmp_path_factory.mktemp(request.param)
    shutil.copytree(of_tensorflow.directory / "whole", directory / "tensorflow")
    run_on(request.param, HERE / "backend_worker.py", directory)
    found = Seen(directory)
    assert found["backend"] == request.param
    return found


@pytest.mark.large
class TestOtherBackends:
    def test_eta_of_zero_is_plain_fit_bit_for_bit(self, seen):
        assert seen["same_as_fit"] == {"weights": True, "logs": True}

    def test_averages_outlast_what_predicts_with_them(self, seen):
        """A model without BatchNorm predicts with the very averages."""
        assert seen["without_norm"] == [7, 13, 20]

    def test_killed_and_resumed_is_the_run_that_was_not(self, seen):
        assert seen["was_killed"]
        assert seen["same_bytes"]

    def test_averages_of_averages(self, seen, of_tensorflow):
        """Three steps of one: averages of 1, 1.5 and 1.875, of them 1.40625."""
        for found in (seen["behind"], of_tensorflow["behind"]):
            np.testing.assert_allclose(found[0], 1.875 - 3, atol=1e-5)
            np.testing.assert_allclose(found[1], 1.40625 - 3, atol=1e-5)

    def test_its_run_loads_and_predicts_here(self, seen):
        loaded = CheckpointEnsemble.load(seen.directory / "whole")
        found = loaded.predict(worker_inputs(), verbose=0)
        expected = seen.array("probabilities.npy")
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
        assert loaded.run.header.settings.backend == seen["backend"]

    def test_a_run_of_tensorflow_predicts_there(self, seen, of_tensorflow):
        found = seen.array("of_tensorflow.npy")
        expected = of_tensorflow.array("probabilities.npy")
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
        assert (
            "backend"
            not in json.loads(
                (seen.directory / "tensorflow" / "manifest.json").read_text()
            )["settings"]
        )

    def test_its_architecture_is_the_same(self, seen, of_tensorflow):
        there, here = (
            CheckpointEnsemble.load(one.directory / "whole").run.header
            for one in (seen, of_tensorflow)
        )
        assert there.architecture == here.architecture
        assert there.labels == here.labels

    def test_its_run_is_exported_here(self, seen, tmp_path):
        loaded = CheckpointEnsemble.load(seen.directory / "whole")
        x = worker_inputs()
        expected = seen.array("probabilities.npy")
        import onnxruntime
        import tensorflow as tf

        export_saved_model(loaded, tmp_path / "served", verbose=0)
        served = tf.saved_model.load(str(tmp_path / "served" / "1"))
        name = next(
            iter(
                served.signatures["serving_default"].structured_input_signature[
                    1
                ]
            )
        )
        found = served.signatures["serving_default"](**{name: tf.constant(x)})
        np.testing.assert_allclose(
            found["probabilities"], expected, rtol=0, atol=1e-5
        )
        export_onnx(loaded, tmp_path / "one.onnx", verbose=0)
        session = onnxruntime.InferenceSession(tmp_path / "one.onnx")
        [probabilities] = session.run(
            ["probabilities"], {session.get_inputs()[0].name: x}
        )
        np.testing.assert_allclose(probabilities, expected, rtol=0, atol=1e-5)

    def test_exporting_there_says_where_to(self, seen):
        assert f"computes with {seen['backend']}" in seen["export"]
        assert "cbnn export RUN" in seen["export"]

    def test_resuming_is_per_backend(self, seen):
        cbnn = CBNNCallback(
            seen.directory / "left",
            num_checkpoints=3,
            members="all",
            resume=True,
        )
        with pytest.raises(
            RunError,
            match=f"on Keras' backend {seen['backend']}, and this is "
            f"tensorflow.*KERAS_BACKEND={seen['backend']}",
        ):
            worker().train(worker().network(), cbnn)

    def test_rates_by_step_reach_the_optimizer(self, seen, of_tensorflow):
        there, here = (
            list(np.load(one.directory / "snapshots.npz").values())
            for one in (seen, of_tensorflow)
        )
        for found, expected in zip(there, here, strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)

    def test_merged_evaluated_reported(self, seen):
        assert seen["as_model"] < 1e-6
        assert seen["evaluated"]["accuracy"] > 0.6
        assert len(seen["restarts"]) == 2
        assert np.isfinite(seen["plane"]).all()
        assert seen["report"] > 50_000

    def test_refusals(self, seen):
        assert "sample weights do not reach the loss" in seen["ignored"]
        assert (
            f"{seen['backend']} backend computes with numbers"
            in (seen["texts"])
        )

    def test_refusals_of_jax(self, seen):
        if seen["backend"] != "jax":
            pytest.skip("torch neither looks ahead nor divides batches")
        expected = {
            "look_ahead": "'gpu'.*a step ahead.*DataParallel",
            "no_distribution": "2 processes.*no distribution.*join",
            "divided": r"keras\.distribution\.ModelParallel.*DataParallel",
            "auto_shard": "auto_shard_dataset=True.*auto_shard_dataset=False",
            "too_late": "Set the distribution before `weighted`",
        }
        for name, pattern in expected.items():
            assert re.search(pattern, seen[name], re.DOTALL), name

    def test_memory_is_judged_before_it_is_taken(self, seen):
        # Kernel, recurrent kernel, bias and two states; kernel and bias.
        shapes = {(2, 40), (10, 40), (40,), (20, 10), (10, 3), (3,)}
        assert shapes <= {tuple(shape) for shape in seen["variables"]}
        assert seen["without_memory"]
        assert " of " in seen["refused"]


@pytest.mark.large
def test_the_command_exports_whatever_the_backend_is(of_tensorflow, tmp_path):
    """`cbnn export` chooses TensorFlow, be it installed beside JAX or not."""
    run_on(
        "jax",
        *("-m", "cbnn_keras", "export", of_tensorflow.directory / "whole"),
        *("--format", "onnx", "--output", tmp_path / "one.onnx"),
    )
    assert (tmp_path / "one.onnx").stat().st_size > 1000


@pytest.mark.large
def test_every_kind_of_model_on_jax():
    needs("jax")
    done = run_on(
        "jax",
        *("-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", "-m", ""),
        *(HERE / "test_matrix.py", "-k", "test_trains_saves_loads"),
    )
    assert "14 passed, 1 skipped" in done.stdout


def worker():
    sys.path.insert(0, str(HERE))
    import backend_worker

    return backend_worker


def worker_inputs():
    return worker().TEST


def test_a_backend_that_cannot_train(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "numpy")
    engine.in_use.cache_clear()
    with pytest.raises(ValueError, match="tensorflow, jax and torch.*'numpy'"):
        CBNNCallback()
    engine.in_use.cache_clear()


def test_what_processes_of_jax_say_is_bytes_and_so_are_their_numbers(
    monkeypatch,
):
    pytest.importorskip("jax")
    from cbnn_keras.models import engine_jax

    def of_two(array):
        assert array.dtype == np.uint8  # of 64 bits JAX would keep 32
        return np.stack([array, array])

    gather = engine_jax.multihost_utils
    monkeypatch.setattr(gather, "process_allgather", of_two)
    monkeypatch.setattr(engine_jax.jax, "process_count", lambda: 2)
    found = engine_jax.JaxProcesses()
    assert found.exchange(b"a long one" * 30) == [b"a long one" * 30] * 2
    array = np.array([1.5, -2])
    assert found.gather(array).tolist() == [1.5, -2, 1.5, -2]


def test_texts_are_no_numbers():
    assert host_array(np.ones(2)).tolist() == [1, 1]
    with pytest.raises(ValueError, match="computes with numbers.*`weighted`"):
        host_array(np.array(["a"]))


def test_a_run_of_another_backend_is_not_resumed(tmp_path, monkeypatch):
    cbnn, *_ = trained(tmp_path / "run", epochs=2, num_checkpoints=2)
    assert cbnn.run.header.settings.backend is None
    monkeypatch.setattr(type(engine.in_use()), "NAME", "jax")
    with pytest.raises(
        RunError,
        match="backend tensorflow, and this is jax.*KERAS_BACKEND=tensorflow",
    ):
        trained(tmp_path / "run", epochs=2, num_checkpoints=2, resume=True)


def test_exports_are_made_by_tensorflow(monkeypatch, tmp_path):
    cbnn, *_ = trained(epochs=2, num_checkpoints=2)
    ensemble = cbnn.ensemble()
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="computes with jax.*`cbnn export RUN"):
        export_saved_model(ensemble, tmp_path / "served", verbose=0)
