"""Programs that run what was exported, none of them through this package.

Each takes inputs by name and gives outputs by name. A program that is not
installed skips the test; see `npm` for what npm can install.
"""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import npm
import numpy as np
import pytest

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# ONNX Runtime reports to Microsoft since 1.29, unless told so before it starts.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

TESTS = pathlib.Path(__file__).parent
MODEL_SERVER = "tensorflow_model_server"


def run_native(saved_model, requests):
    """Outputs of a SavedModel in TensorFlow's C API, in a new process.

    Args:
        saved_model: The directory of a version.
        requests: Pairs of signature and inputs.

    Returns:
        The outputs of each request, by name.
    """
    arrays = {
        f"{number}/{signature}/{name}": _without_objects(array)
        for number, (signature, inputs) in enumerate(requests)
        for name, array in inputs.items()
    }
    with tempfile.TemporaryDirectory() as directory:
        given, made = (os.path.join(directory, n) for n in ("in.npz", "o.npz"))
        np.savez(given, **arrays)
        _run(
            [sys.executable, TESTS / "native_loader.py"]
            + [saved_model, given, made],
            # The tests' own process may have taken all of a GPU's memory.
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        )
        answers = [{} for _ in requests]
        with np.load(made) as outputs:
            for key, array in outputs.items():
                number, _, name = key.split("/")
                answers[int(number)][name] = array
    return answers


def _without_objects(array):
    """Strings as NumPy keeps them without pickle."""
    if array.dtype != object:
        return array
    texts = [t.decode() if isinstance(t, bytes) else t for t in array.ravel()]
    return np.array(texts, "U").reshape(array.shape)


def run_openvino(path, inputs):
    """Outputs of an ONNX file, or of a SavedModel, in OpenVINO."""
    import openvino

    # Without the hint it may compute in bfloat16.
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    model = openvino.Core().compile_model(str(path), "CPU", config)
    results = model(inputs)
    return {o.get_any_name(): results[o] for o in model.outputs}


def run_node(path, inputs):
    """Outputs of an ONNX file in Node.js."""
    # Its script would fetch the libraries of CUDA.
    modules = npm.node_modules(
        "onnxruntime-node", "1.30.0", ONNXRUNTIME_NODE_INSTALL="skip"
    )
    with tempfile.TemporaryDirectory() as directory:
        given, made = (
            pathlib.Path(directory, "in"),
            pathlib.Path(directory, "out"),
        )
        tensors = {
            name: {
                "type": "string" if x.dtype.kind in "UO" else x.dtype.name,
                "dims": x.shape,
                "data": x.ravel().tolist(),
            }
            for name, x in inputs.items()
        }
        given.write_text(json.dumps(tensors))
        _run(
            ["node", TESTS / "node_runner.cjs", path, given, made],
            env=os.environ | {"NODE_PATH": str(modules)},
        )
        return {
            name: np.array(x["data"], x["type"]).reshape(x["dims"])
            for name, x in json.loads(made.read_text()).items()
        }


def run_model_server(base_path, requests, config=None):
    """Outputs of TensorFlow Serving's REST interface.

    No flag keeps its ports on loopback, so it runs in a network of its own
    (Linux's `unshare`), and so does the client: this file as a script.

    Args:
        base_path: The directory of the versions.
        requests: Pairs of signature and inputs.
        config: Text of a `models.config` whose model is called `ensemble`.

    Returns:
        What the server calls `outputs` of each request: an array, or arrays by
        name for a signature with several outputs.
    """
    if not shutil.which(MODEL_SERVER):
        pytest.skip(f"{MODEL_SERVER} is not on PATH")
    alone = ["unshare", "--map-root-user", "--net"]
    try:
        _run([*alone, "true"])
    except (OSError, RuntimeError) as error:
        pytest.skip(f"{MODEL_SERVER} cannot get a network of its own: {error}")
    config = config or (
        'model_config_list { config { name: "ensemble" '
        f"base_path: {json.dumps(str(pathlib.Path(base_path).absolute()))} "
        'model_platform: "tensorflow" } }'
    )
    bodies = [
        {
            "signature_name": signature,
            "inputs": {n: np.asarray(x).tolist() for n, x in inputs.items()},
        }
        for signature, inputs in requests
    ]
    with tempfile.TemporaryDirectory() as directory:
        paths = [os.path.join(directory, n) for n in ("config", "in", "out")]
        pathlib.Path(paths[0]).write_text(config)
        pathlib.Path(paths[1]).write_text(json.dumps(bodies))
        _run([*alone, sys.executable, __file__, *paths])
        answers = json.loads(pathlib.Path(paths[2]).read_text())
    return [
        {n: np.array(x, "float32") for n, x in outputs.items()}
        if isinstance(outputs, dict)
        else np.array(outputs, "float32")
        for outputs in answers
    ]


def _serve(config, given, made):
    """The server and its client, from start to end."""
    _bring_loopback_up()
    url = "http://127.0.0.1:8501/v1/models/ensemble"
    with subprocess.Popen(
        [
            *[MODEL_SERVER, "--port=8500", "--rest_api_port=8501"],
            *[f"--model_config_file={config}", "--enable_model_warmup"],
        ],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
    ) as server:
        try:
            _wait_until_available(server, url)
            answers = [
                _json_of(f"{url}:predict", body)["outputs"]
                for body in json.loads(pathlib.Path(given).read_text())
            ]
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
    pathlib.Path(made).write_text(json.dumps(answers))


def _bring_loopback_up():
    """A new network has its loopback interface down."""
    up, set_flags = 1, 0x8914  # IFF_UP, SIOCSIFFLAGS
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", up)
        fcntl.ioctl(any_socket, set_flags, request)


def _wait_until_available(server, url, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(urllib.error.URLError):
            (version,) = _json_of(url)["model_version_status"]
            if version["state"] == "AVAILABLE":
                return
        time.sleep(0.1)
    raise RuntimeError("The server did not make the model available.")


def _json_of(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(url, data, timeout=60) as response:
        return json.load(response)


def _run(command, env=None):
    done = subprocess.run(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stdout.strip()}")


if __name__ == "__main__":
    _serve(*sys.argv[1:])
