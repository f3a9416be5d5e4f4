"""Serves a Triton model repository with the real server, for a test.

No registry has Triton's onnxruntime backend. `nvidia-pytriton` has the server
itself with the python backend, so a copy of the repository is served in which
`backend: "onnxruntime"` is `backend: "python"` and `MODEL` runs `model.onnx`.
"""

import contextlib
import dataclasses
import fcntl
import http.client
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid

SECONDS_TO_START = 60
SECONDS_TO_STOP = 15

# The `model.py` of every model: what the onnxruntime backend would check, and
# one run for all the requests that Triton hands over together.
MODEL = """
import json
import os

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

TYPES = {
    "TYPE_FP16": "tensor(float16)",
    "TYPE_FP32": "tensor(float)",
    "TYPE_FP64": "tensor(double)",
    "TYPE_INT8": "tensor(int8)",
    "TYPE_INT16": "tensor(int16)",
    "TYPE_INT32": "tensor(int32)",
    "TYPE_INT64": "tensor(int64)",
    "TYPE_UINT8": "tensor(uint8)",
    "TYPE_BOOL": "tensor(bool)",
    "TYPE_STRING": "tensor(string)",
}


def check(configured, in_graph, is_batched, is_exact):
    graph = {
        node.name: (
            node.type,
            [size if isinstance(size, int) else -1 for size in node.shape],
        )
        for node in in_graph
    }
    names = sorted(tensor["name"] for tensor in configured)
    if names != sorted(graph):
        raise ValueError(f"config.pbtxt has {names}, model.onnx {graph}")
    for tensor in configured:
        dtype, shape = graph[tensor["name"]]
        dims = tensor.get("reshape", {}).get("shape", tensor["dims"])
        dims = [-1] * is_batched + [int(size) for size in dims]
        agree = (
            TYPES[tensor["data_type"]] == dtype
            and len(dims) == len(shape)
            and all(
                wanted == size or (size == -1 and not is_exact)
                for wanted, size in zip(dims, shape)
            )
        )
        if not agree:
            raise ValueError(f"config.pbtxt {tensor}, model.onnx {graph}")


class TritonPythonModel:
    def initialize(self, args):
        path = os.path.join(
            args["model_repository"], args["model_version"], "model.onnx"
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        config = json.loads(args["model_config"])
        is_batched = int(config["max_batch_size"]) > 0
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        check(config["input"], inputs, is_batched, is_exact=False)
        check(config["output"], outputs, is_batched, is_exact=True)
        self.inputs = [node.name for node in inputs]
        self.outputs = [node.name for node in outputs]

    def execute(self, requests):
        arrays = [
            {
                name: pb_utils.get_input_tensor_by_name(
                    request, name
                ).as_numpy()
                for name in self.inputs
            }
            for request in requests
        ]
        batch = {
            name: np.concatenate([array[name] for array in arrays])
            for name in self.inputs
        }
        sizes = [len(array[self.inputs[0]]) for array in arrays]
        ends = np.cumsum(sizes)[:-1]
        results = [
            np.split(result, ends)
            for result in self.session.run(self.outputs, batch)
        ]
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(name, part)
                    for name, part in zip(self.outputs, parts)
                ]
            )
            for parts in zip(*results)
        ]
"""

# The server ends when the process that started it does, however that ends.
LAUNCH = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
os.execv(sys.argv[1], sys.argv[1:])
"""


class CannotInstall(Exception):
    """No Triton here: pip's output says why."""


@dataclasses.dataclass
class Server:
    http: str  # host:port
    grpc: str
    process: subprocess.Popen

    def request(self, method, path, body=None):
        """`(status, body)`, whatever the status."""
        connection = http.client.HTTPConnection(self.http, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()


def environment(directory):
    """A virtual environment with Triton, made there unless it is there.

    Raises:
        CannotInstall: If pip does not get the packages.
    """
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    complete = directory / "complete"
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            _install(directory)
            complete.touch()
    return directory


def _install(directory):
    _run(sys.executable, "-m", "venv", directory)
    pip = (directory / "bin/python", "-m", "pip", "install", "--retries=1")
    # Of pytriton only the server is used, and nothing that its Python needs.
    # With NumPy 2 the python backend's outputs are empty; there is no NumPy 1
    # for Python 3.13.
    _run(*pip, "--no-deps", "nvidia-pytriton==0.7.0")
    _run(*pip, "--only-binary=:all:", "onnxruntime", "numpy<2")
    triton = _triton(directory)
    stubs = triton / "python_backend_stubs" / "{}.{}".format(*sys.version_info)
    shutil.copy(
        stubs / "triton_python_backend_stub", triton / "backends" / "python"
    )


def _run(*command):
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode != 0:
        command = " ".join(map(str, command))
        raise CannotInstall(f"{command}\n{result.stdout}")


def _triton(environment):
    (path,) = environment.glob("lib/python*/site-packages/pytriton")
    return path / "tritonserver"


@contextlib.contextmanager
def serving(environment, repository, log_file):
    """A `Server` of the repository's models, gone at the end of the block.

    Raises:
        RuntimeError: If the server is not ready within a minute. Its log, which
            is `log_file`, is in the message.
    """
    shared_memory = f"cbnn_{uuid.uuid4().hex}_"
    with (
        tempfile.TemporaryDirectory() as directory,
        open(log_file, "wb") as log,
    ):
        served = pathlib.Path(directory) / "models"
        shutil.copytree(repository, served)
        for config in served.glob("*/config.pbtxt"):
            _use_python_backend(config)
        http_port, grpc_port = _free_ports(2)
        triton = _triton(environment)
        command = [
            triton / "bin/tritonserver",
            f"--model-repository={served}",
            f"--backend-directory={triton / 'backends'}",
            f"--backend-config=python,shm-region-prefix-name={shared_memory}",
            "--disable-auto-complete-config",  # what is written must suffice
            "--http-address=127.0.0.1",
            f"--http-port={http_port}",
            "--grpc-address=127.0.0.1",
            f"--grpc-port={grpc_port}",
            "--allow-metrics=false",
            "--exit-timeout-secs=5",
        ]
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *command],
            env=_variables(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a process group, with the children
        )
        server = Server(
            f"127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}", process
        )
        try:
            _wait_until_ready(server, log_file)
            yield server
        finally:
            _stop(process)
            for path in pathlib.Path("/dev/shm").glob(f"{shared_memory}*"):
                path.unlink()  # left only by a server that was killed


def _use_python_backend(config):
    text, num_changes = re.subn(
        r'^backend: *"onnxruntime"',
        'backend: "python"',
        config.read_text(),
        flags=re.MULTILINE,
    )
    if num_changes != 1:
        raise ValueError(f'no `backend: "onnxruntime"` in {config}:\n{text}')
    config.write_text(text)
    for graph in config.parent.glob("*/model.onnx"):
        graph.with_name("model.py").write_text(MODEL)


def _free_ports(number):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _variables(environment):
    """The backend finds its packages by PATH, and libpython by the other."""
    libraries = [
        *environment.glob("lib/python*/site-packages/nvidia_pytriton.libs"),
        sysconfig.get_config_var("LIBDIR"),
    ]
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONHOME", "PYTHONPATH")
    }
    return kept | {
        "PATH": os.pathsep.join(
            [str(environment / "bin"), os.environ.get("PATH", "")]
        ),
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
    }


def _wait_until_ready(server, log_file):
    deadline = time.monotonic() + SECONDS_TO_START
    while not _is_ready(server):
        code = server.process.poll()
        if code is not None or time.monotonic() > deadline:
            reason = "is not ready" if code is None else f"ended with {code}"
            log = pathlib.Path(log_file).read_text(errors="replace")
            raise RuntimeError(f"tritonserver {reason}. Its log:\n{log}")
        time.sleep(0.1)


def _is_ready(server):
    try:
        status, _ = server.request("GET", "/v2/health/ready")
    except (OSError, http.client.HTTPException):
        return False
    return status == 200


def _stop(process):
    process.terminate()
    try:
        process.wait(SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
