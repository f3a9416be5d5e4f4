"""A model of a Triton repository, and a real Triton that serves it.

    pytest -m servers -n 0

`triton_server.py` says what is served. Without the packages of the server the
tests are skipped, or fail if CBNN_REQUIRE_SERVERS=1.
"""

import concurrent.futures
import json
import os
import pathlib
import threading
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import triton_server
import tritonclient.grpc
from export_helpers import (
    ALL,
    NAMES,
    X,
    assert_outputs,
    run_onnx,
    tree,
    worked_out,
)
from google.protobuf import text_format
from helpers import trained
from tritonclient.grpc import model_config_pb2

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.export import export_triton
from cbnn_keras.export import onnx as onnx_module
from cbnn_keras.export import triton as triton_module

servers = pytest.mark.servers
NUM_CLIENTS = 64


class Exported(NamedTuple):
    repository: pathlib.Path
    config: Any  # the message `ModelConfig`
    ensemble: CheckpointEnsemble
    x: np.ndarray
    predictions: np.ndarray

    @property
    def input(self):
        return self.config.input[0].name


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    keras.utils.set_random_seed(0)
    callback, _, x, _ = trained()
    ensemble = callback.ensemble()
    repository = tmp_path_factory.mktemp("triton") / "models"
    export_triton(ensemble, repository / "blobs", verbose=0)
    config = config_of(repository / "blobs")
    predictions = ensemble.predict(x, verbose=0)
    return Exported(repository, config, ensemble, x, predictions)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    directory = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = directory.parent  # one for all the workers
    try:
        return triton_server.environment(directory / "triton_environment")
    except triton_server.CannotInstall as error:
        if os.environ.get("CBNN_REQUIRE_SERVERS") == "1":
            raise
        reason = str(error).splitlines()[-1]
        pytest.skip(f"Triton cannot be installed: {reason}")


@pytest.fixture(scope="module")
def server(environment, exported, tmp_path_factory):
    log_file = tmp_path_factory.mktemp("log") / "triton.log"
    with triton_server.serving(
        environment, exported.repository, log_file
    ) as server:
        yield server


def request_body(exported, x, datatype="FP32"):
    """A request of KServe's protocol, version 2."""
    one = {
        "name": exported.input,
        "shape": x.shape,
        "datatype": datatype,
        "data": x.ravel().tolist(),
    }
    return json.dumps({"inputs": [one]})


def post(server, body, model="blobs"):
    status, answer = server.request("POST", f"/v2/models/{model}/infer", body)
    return status, json.loads(answer)


def all_outputs(server, exported, x):
    status, answer = post(server, request_body(exported, x))
    assert status == 200, answer
    return {
        output["name"]: np.reshape(output["data"], output["shape"])
        for output in answer["outputs"]
    }


def http(server, exported, x):
    outputs = all_outputs(server, exported, x)
    assert list(outputs) == ["probabilities"]
    return outputs["probabilities"]


def grpc(server, exported, x, datatype="FP32", model="blobs"):
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        tensor = tritonclient.grpc.InferInput(exported.input, x.shape, datatype)
        tensor.set_data_from_numpy(x)
        return client.infer(model, [tensor]).as_numpy("probabilities")


def statistics(server):
    _, answer = server.request("GET", "/v2/models/blobs/stats")
    (model,) = json.loads(answer)["model_stats"]
    return {
        "requests": model["inference_stats"]["success"]["count"],
        "failures": model["inference_stats"]["fail"]["count"],
        "rows": model["inference_count"],
        "executions": model["execution_count"],
    }


# The repository, without a server.


def config_of(directory):
    text = (directory / "config.pbtxt").read_text(encoding="utf-8")
    return text_format.Parse(text, model_config_pb2.ModelConfig())


@pytest.fixture
def written_before(full_onnx, monkeypatch):
    """Saves the time of an export to ONNX: a file that is there is taken."""

    def write(ensemble, path, reporter, options, **others):
        path.write_bytes(full_onnx.path.read_bytes())
        return full_onnx.parity

    monkeypatch.setattr(triton_module, "write_onnx", write)


def test_versions_are_added(ensemble, tmp_path, written_before):
    directory = tmp_path / "repository" / "colours"
    for _ in range(2):
        artefact = export_triton(ensemble, directory, verbose=0)
    assert artefact.path == directory
    (directory / "9").mkdir()
    (directory / "notes").mkdir()
    export_triton(ensemble, directory, verbose=0)
    files = ["1", "1/model.onnx", "10", "10/model.onnx", "2", "2/model.onnx"]
    assert sorted(tree(directory)) == [*files, "9", "config.pbtxt", "notes"]
    assert artefact.num_bytes == (directory / "2/model.onnx").stat().st_size


def test_everything_is_configured(ensemble, tmp_path, written_before):
    """Triton has no tensors of the batch's dimension alone."""
    export_triton(ensemble, tmp_path / "a", verbose=0)
    config = config_of(tmp_path / "a")
    assert (config.name, config.backend) == ("a", "onnxruntime")
    assert config.max_batch_size == 64
    assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
    assert config.dynamic_batching.max_queue_delay_microseconds > 0
    [given] = config.input
    assert (given.name, list(given.dims)) == ("input", [4])
    found = {
        output.name: (
            model_config_pb2.DataType.Name(output.data_type),
            list(output.dims),
            output.HasField("reshape"),
        )
        for output in config.output
    }
    assert found == {
        "probabilities": ("TYPE_FP32", [3], False),
        "class": ("TYPE_STRING", [1], True),
        "top_k_classes": ("TYPE_STRING", [2], False),
        "top_k_probabilities": ("TYPE_FP32", [2], False),
        "members": ("TYPE_FP32", [3, 3], False),
        "disagreement": ("TYPE_FP32", [1], True),
    }
    assert not any(output.label_filename for output in config.output)
    assert not (tmp_path / "a/labels.txt").exists()


def test_labels_are_for_the_probabilities_in_any_locale(
    ensemble, tmp_path, written_before, c_locale
):
    """Names beyond Latin-1 once left a version without a configuration."""
    export_triton(ensemble, tmp_path / "größe", class_names=NAMES, verbose=0)
    labels = (tmp_path / "größe/labels.txt").read_text(encoding="utf-8")
    assert labels == "rot\ngrün\n青い\n"
    config = config_of(tmp_path / "größe")
    assert config.name == "größe"
    files = {o.name: o.label_filename for o in config.output}
    assert files.pop("probabilities") == "labels.txt"
    assert files and set(files.values()) == {""}


def test_our_configuration_is_replaced(ensemble, tmp_path, written_before):
    for size in (1, 500):
        export_triton(ensemble, tmp_path, max_batch_size=size, verbose=0)
        assert config_of(tmp_path).max_batch_size == size
    first = (tmp_path / "config.pbtxt").read_text().splitlines()[0]
    assert first == "# Written by cbnn export."


@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_batches_have_at_least_one_sample(size, ensemble, tmp_path):
    with pytest.raises(
        ValueError, match="max_batch_size.*integer of at least 1"
    ):
        export_triton(
            ensemble, tmp_path / "new/a", max_batch_size=size, verbose=0
        )
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("name", ["config.pbtxt", "labels.txt"])
def test_files_of_the_user_are_left_alone(name, ensemble, tmp_path):
    (tmp_path / name).write_text("mine")
    with pytest.raises(
        ValueError,
        match=rf"{tmp_path / name} was not written by `cbnn export` and is "
        "left alone",
    ):
        export_triton(ensemble, tmp_path, class_names=NAMES, verbose=0)
    assert tree(tmp_path) == {name: b"mine"}


def test_a_directory_in_place_of_labels_is_seen_first(
    ensemble, tmp_path, written_before
):
    export_triton(ensemble, tmp_path, verbose=0)
    (tmp_path / "labels.txt").mkdir()
    before = tree(tmp_path)
    with pytest.raises(ValueError, match="labels.txt was not written by"):
        export_triton(ensemble, tmp_path, class_names=NAMES, verbose=0)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (onnx_module.onnx_files, "save", OSError),
        (onnx_module, "compare", KeyboardInterrupt),
        (triton_module.triton_config, "config_text", OSError),
        (triton_module.triton_config, "config_text", KeyboardInterrupt),
        (triton_module.placing, "move_directory", OSError),
    ],
)
def test_a_failed_version_leaves_nothing(
    owner, name, error, ensemble, converted_before, tmp_path, monkeypatch
):
    export_triton(ensemble, tmp_path / "a", verbose=0)
    before = tree(tmp_path)

    def fail(*arguments, **options):
        raise error("it failed")

    monkeypatch.setattr(owner, name, fail)
    for path in (tmp_path / "a", tmp_path / "new/b"):
        with pytest.raises(error, match="it failed"):
            export_triton(ensemble, path, class_names=NAMES, verbose=0)
        assert tree(tmp_path) == before


def test_a_name_that_utf_8_does_not_have_leaves_nothing(
    ensemble, tmp_path, written_before
):
    with pytest.raises(UnicodeEncodeError):
        export_triton(ensemble, tmp_path / "new/\udcff", verbose=0)
    assert tree(tmp_path) == {}


def test_triton_gets_the_file_of_export_onnx(
    ensemble, converted_before, tmp_path, capfd
):
    """The whole way, with options."""
    artefact = export_triton(
        ensemble,
        tmp_path / "a",
        precision="float16",
        sample_data=X,
        class_names=NAMES,
    )
    assert artefact.parity.num_samples == 40
    np.testing.assert_allclose(
        run_onnx(tmp_path / "a/1/model.onnx", {"input": X})["probabilities"],
        worked_out(ensemble)["probabilities"],
        rtol=0,
        atol=2e-2,
    )
    shown, errors = capfd.readouterr()
    assert errors == ""
    assert "converting to float16 ..." in shown
    assert f"{tmp_path / 'a'}: " in shown.splitlines()[-1]


# Served.


@servers
@pytest.mark.parametrize("num_rows", [1, 2, 7])
@pytest.mark.parametrize("infer", [http, grpc])
def test_triton_answers_what_predict_does(server, exported, infer, num_rows):
    answer = infer(server, exported, exported.x[:num_rows])
    assert answer.shape == (num_rows, 3)
    np.testing.assert_allclose(
        answer, exported.predictions[:num_rows], rtol=0, atol=1e-5
    )


@servers
def test_triton_has_understood_the_configuration(server, exported):
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        served = client.get_model_config("blobs").config
    for field in ("max_batch_size", "input", "output"):
        assert getattr(served, field) == getattr(exported.config, field)
    delay, expected = (
        config.dynamic_batching.max_queue_delay_microseconds
        for config in (served, exported.config)
    )
    assert delay == expected


@servers
def test_concurrent_requests_get_their_own_answers(server, exported):
    slices = [slice(i, i + 1 + i % 3) for i in range(NUM_CLIENTS)]
    together = threading.Barrier(NUM_CLIENTS)

    def ask(rows):
        together.wait()
        return http(server, exported, exported.x[rows])

    before = statistics(server)
    with concurrent.futures.ThreadPoolExecutor(NUM_CLIENTS) as pool:
        answers = list(pool.map(ask, slices))
    after = statistics(server)
    for rows, answer in zip(slices, answers, strict=True):
        np.testing.assert_allclose(
            answer, exported.predictions[rows], rtol=0, atol=1e-5
        )
    done = {name: after[name] - before[name] for name in after}
    assert done["requests"] == NUM_CLIENTS
    assert done["failures"] == 0
    assert done["rows"] == sum(len(answer) for answer in answers)
    assert done["executions"] < NUM_CLIENTS  # batches of several requests


# Other exports, each with a server of its own.


@servers
def test_every_output_is_served(environment, ensemble, exported, tmp_path):
    x = X[:9]
    export_triton(
        ensemble,
        tmp_path / "models" / "blobs",
        outputs=ALL,
        top_k=2,
        class_names=NAMES,
        verbose=0,
    )
    with triton_server.serving(
        environment, tmp_path / "models", tmp_path / "log"
    ) as server:
        outputs = all_outputs(server, exported, x)
    expected = worked_out(ensemble, x)
    # Triton has no tensors of the batch's dimension alone: (9, 1) for (9,).
    shaped = {k: a.reshape(expected[k].shape) for k, a in outputs.items()}
    assert_outputs(shaped, expected)


@servers
def test_the_newest_version_is_served(environment, exported, tmp_path):
    ensemble, x = exported.ensemble, exported.x[:9]
    directory = tmp_path / "models" / "blobs"
    export_triton(ensemble, directory, verbose=0)
    export_triton(ensemble.select(1), directory, verbose=0)
    with triton_server.serving(
        environment, tmp_path / "models", tmp_path / "log"
    ) as server:
        _, answer = server.request("GET", "/v2/models/blobs")
        assert json.loads(answer)["versions"] == ["2"]
        answer = http(server, exported, x)
    expected = ensemble.select(1).predict(x, verbose=0)
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-5)
    assert np.abs(answer - exported.predictions[:9]).max() > 1e-3
