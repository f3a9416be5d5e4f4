"""A real Triton serves the repository that `export_triton` writes.

    pytest -m servers -n 0

`triton_server.py` says what is served. Without the packages of the server the
tests are skipped, or fail if CBNN_REQUIRE_SERVERS=1.
"""

import concurrent.futures
import json
import os
import pathlib
import shutil
import threading
import time
from typing import Any, NamedTuple

import keras
import numpy as np
import onnx
import pytest
import triton_server
import tritonclient.grpc
from google.protobuf import text_format
from helpers import trained
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import InferenceServerException

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.export import export_triton

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
    text = (repository / "blobs" / "config.pbtxt").read_text()
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    predictions = ensemble.predict(x, verbose=0)
    return Exported(repository, config, ensemble, x, predictions)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # one for all the workers
    try:
        return triton_server.environment(folder / "triton_environment")
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


def test_the_configuration_is_one_of_triton(exported):
    config = exported.config
    assert config.name == "blobs"  # Triton wants the folder's name
    assert config.backend == "onnxruntime"
    (given,), (answer,) = config.input, config.output
    assert given.data_type == answer.data_type == model_config_pb2.TYPE_FP32
    # Without the dimension of the batch.
    assert list(given.dims) == [4]
    assert (answer.name, list(answer.dims)) == ("probabilities", [3])


def test_the_configuration_batches_requests(exported):
    config = exported.config
    assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
    batching = config.dynamic_batching
    assert batching.max_queue_delay_microseconds > 0
    for size in batching.preferred_batch_size:
        assert 1 < size <= config.max_batch_size


def test_the_configuration_agrees_with_the_graph(exported):
    model = onnx.load(exported.repository / "blobs" / "1" / "model.onnx")
    for tensors, values in [
        (exported.config.input, model.graph.input),
        (exported.config.output, model.graph.output),
    ]:
        (tensor,), (value,) = tensors, values
        batch, *sizes = value.type.tensor_type.shape.dim
        assert value.name == tensor.name
        assert value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        assert batch.dim_param == "batch"
        assert [size.dim_value for size in sizes] == list(tensor.dims)


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


@servers
@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"x": np.zeros((2, 3), "float32")}, 400, "unexpected shape"),
        ({"x": np.zeros((2, 4, 1), "float32")}, 400, "unexpected shape"),
        ({"x": np.zeros((999, 4), "float32")}, 400, "batch-size must be <="),
        ({"x": np.zeros((2, 4)), "datatype": "FP64"}, 400, "expects 'FP32'"),
        ({"model": "no_such"}, 404, "unknown model: 'no_such'"),
    ],
    ids=["columns", "rank", "batch", "dtype", "model"],
)
def test_bad_requests_are_refused(server, exported, change, status, message):
    good = exported.x[:2]
    arguments = {"x": good, "datatype": "FP32", "model": "blobs"} | change
    model = arguments.pop("model")
    body = request_body(exported, **arguments)
    got, answer = post(server, body, model)
    assert (got, list(answer)) == (status, ["error"])
    assert message in answer["error"]
    with pytest.raises(InferenceServerException, match=message) as error:
        grpc(server, exported, model=model, **arguments)
    assert (
        error.value.status()
        == {
            400: "StatusCode.INVALID_ARGUMENT",
            404: "StatusCode.NOT_FOUND",
        }[status]
    )
    # And the server goes on.
    expected = exported.predictions[:2]
    np.testing.assert_allclose(
        http(server, exported, good), expected, rtol=0, atol=1e-5
    )


# Other exports, each with a server of its own.


@servers
def test_every_output_is_served(environment, exported, tmp_path):
    ensemble, x = exported.ensemble, exported.x[:9]
    names = np.array(["red", "grün", "blue"])
    export_triton(
        ensemble,
        tmp_path / "models" / "blobs",
        outputs=["probabilities", "class", "top_k", "members", "disagreement"],
        top_k=2,
        class_names=names.tolist(),
        verbose=0,
    )
    with triton_server.serving(
        environment, tmp_path / "models", tmp_path / "log"
    ) as server:
        outputs = all_outputs(server, exported, x)
    predictions = exported.predictions[:9]
    members = np.stack(list(ensemble.member_probabilities(x, verbose=0)), 1)
    best = np.argsort(-predictions, axis=1)
    against = members.argmax(axis=2) != best[:, :1]
    expected = {
        "probabilities": predictions,
        "class": names[best[:, 0]],
        "top_k_classes": names[best[:, :2]],
        "top_k_probabilities": np.take_along_axis(predictions, best, 1)[:, :2],
        "members": members,
        "disagreement": against @ ensemble.votes / ensemble.votes.sum(),
    }
    assert sorted(outputs) == sorted(expected)
    for name, values in expected.items():
        # Triton has no tensors of the batch's dimension alone: (9, 1) for (9,).
        answer = outputs[name].reshape(values.shape)
        if values.dtype.kind == "U":
            assert answer.tolist() == values.tolist()
        else:
            np.testing.assert_allclose(answer, values, rtol=0, atol=1e-5)


@servers
def test_the_newest_version_is_served(environment, exported, tmp_path):
    ensemble, x = exported.ensemble, exported.x[:9]
    folder = tmp_path / "models" / "blobs"
    export_triton(ensemble, folder, verbose=0)
    export_triton(ensemble.select(1), folder, verbose=0)
    with triton_server.serving(
        environment, tmp_path / "models", tmp_path / "log"
    ) as server:
        _, answer = server.request("GET", "/v2/models/blobs")
        assert json.loads(answer)["versions"] == ["2"]
        answer = http(server, exported, x)
    expected = ensemble.select(1).predict(x, verbose=0)
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-5)
    assert np.abs(answer - exported.predictions[:9]).max() > 1e-3


# The harness: a server that it starts is gone in the end.


def is_alive(process):
    """Whether the server or a child of it is there after five seconds."""
    for _ in range(50):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True


@servers
def test_a_failing_test_leaves_no_server(environment, exported, tmp_path):
    with pytest.raises(ZeroDivisionError):
        with triton_server.serving(
            environment, exported.repository, tmp_path / "log"
        ) as server:
            raise ZeroDivisionError
    assert not is_alive(server.process)


@servers
def test_a_server_that_does_not_start_says_why(
    environment, exported, tmp_path, monkeypatch
):
    repository = tmp_path / "models"
    shutil.copytree(exported.repository, repository)
    config = model_config_pb2.ModelConfig()
    config.CopyFrom(exported.config)
    config.input[0].dims[0] = 5  # and 4 in the graph
    text = text_format.MessageToString(config)
    (repository / "blobs" / "config.pbtxt").write_text(text)
    processes = []
    start = triton_server.subprocess.Popen
    monkeypatch.setattr(
        triton_server.subprocess,
        "Popen",
        lambda *a, **b: processes.append(start(*a, **b)) or processes[0],
    )
    with pytest.raises(RuntimeError, match=r"(?s)ended with 1.*'dims': \[5\]"):
        with triton_server.serving(environment, repository, tmp_path / "log"):
            pytest.fail("it was served")
    assert not is_alive(processes[0])
