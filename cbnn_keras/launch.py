"""Several processes on JAX: to join them, and to start them on this machine.

`python -m cbnn_keras.launch --processes 2 train.py` starts a script twice and,
if one of the processes dies, ends the others and starts all of them again; with
`resume=True` they go on where the run was. Schedulers do that for several
machines: see docs/several_hosts.md.
"""

import argparse
import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence

from cbnn_keras.support.processes import end_at_once

_GRACE = 10.0  # seconds between SIGTERM and SIGKILL
_LOOK_EVERY = 0.2  # seconds
# What a script would end with again: an error, and wrong arguments, with which
# Python also says that there is no such script.
_WOULD_END_SO_AGAIN = (1, 2)
# What JAX's errors speak of where a process is gone.
_SIGNS_OF_DEATH = ("Gloo", "NCCL", "oordination service", "heartbeat")
# The exit code of a process that may be started again: EX_TEMPFAIL.
_OTHER_HAS_DIED = 75


def join(heartbeat_seconds: int = 30) -> None:
    """Joins the processes of a training, before any model is made.

    Reads JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, as
    `cbnn_keras.launch` sets them; without them the process is alone. Then sets
    `DataParallel` over all devices, and keeps TensorFlow, which reads the data,
    off the GPUs.

    Args:
        heartbeat_seconds: After how long without a sign of life a process
            counts as dead, and the others end.

    Raises:
        ValueError: If Keras does not compute with JAX, or if some of these
            variables are missing or no numbers.
    """
    import keras
    import tensorflow as tf

    if keras.backend.backend() != "jax":
        raise ValueError(
            "cbnn_keras.launch.join() needs Keras' JAX backend, and this is "
            f"{keras.backend.backend()!r}. Set KERAS_BACKEND=jax before Keras "
            "is imported."
        )
    import jax

    count = _number("JAX_NUM_PROCESSES", "1")
    if count > 1 and not jax.distributed.is_initialized():
        address = _needed("JAX_COORDINATOR_ADDRESS")
        index = _number("JAX_PROCESS_ID")
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            coordinator_address=address,
            num_processes=count,
            process_id=index,
            heartbeat_timeout_seconds=heartbeat_seconds,
        )
        sys.excepthook = functools.partial(_end_clearly, sys.excepthook)
    tf.config.set_visible_devices([], "GPU")
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(auto_shard_dataset=False)
    )


def _needed(name: str, default: str = "") -> str:
    found = os.environ.get(name, default)
    if not found:
        raise ValueError(
            f"cbnn_keras.launch.join(): {name} is not set. Each process needs "
            "JAX_COORDINATOR_ADDRESS (host:port of the first), "
            "JAX_NUM_PROCESSES and JAX_PROCESS_ID (from 0); `python -m "
            "cbnn_keras.launch` sets them."
        )
    return found


def _number(name: str, default: str = "") -> int:
    found = _needed(name, default)
    try:
        return int(found)
    except ValueError:
        raise ValueError(
            f"cbnn_keras.launch.join(): {name} is {found!r}, which is no "
            "number."
        ) from None


def _end_clearly(
    hook: Callable[..., object],
    kind: type[BaseException],
    error: BaseException,
    trace: types.TracebackType | None,
) -> None:
    """Ends a process that has an error, at once, so that the others do too.

    That another process has died is said in one line; other errors are shown
    as ever.
    """
    text = " ".join(str(error).split())
    if not any(sign in text for sign in _SIGNS_OF_DEATH):
        hook(kind, error, trace)
        end_at_once(1)
    number, count = (
        os.environ[name] for name in ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES")
    )
    print(
        f"cbnn_keras.launch: process {number} of {count} ends, because another "
        "one has died or cannot be reached. Start all of them again; with "
        f"`resume=True` the run is resumed. ({text[:200]})",
        file=sys.stderr,
        flush=True,
    )
    end_at_once(_OTHER_HAS_DIED)


def supervise(
    command: Sequence[str], num_processes: int, num_restarts: int
) -> int:
    """Runs a command in several processes, all of them or none.

    Args:
        command: What each of them runs.
        num_processes: How many.
        num_restarts: How often all are started again after one has died.

    Returns:
        The exit code: 0 if all have ended well.
    """
    for attempt in range(num_restarts + 1):
        with _own_port() as port:
            processes = _start(command, num_processes, port)
            try:
                number = _first_failure(processes)
            finally:
                _end(processes)
        if number is None:
            return 0
        code = processes[number].returncode
        may_restart = code not in _WOULD_END_SO_AGAIN and attempt < num_restarts
        print(
            f"cbnn_keras.launch: process {number} of {num_processes} "
            f"{_described(code)}; all were ended"
            + (", and are started again." if may_restart else "."),
            file=sys.stderr,
            flush=True,
        )
        if not may_restart:
            break
    return code if code > 0 else 128 - code


@contextlib.contextmanager
def _own_port() -> Iterator[int]:
    """A port for the first process, which nobody else gets in the meantime.

    It is held until all have ended: importing TensorFlow and JAX takes seconds,
    in which another program could be given a port that is only free. gRPC
    shares ports (SO_REUSEPORT), and a socket that does not listen takes no
    connections away from it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def _start(
    command: Sequence[str], num_processes: int, port: int
) -> list[subprocess.Popen[bytes]]:
    address = f"127.0.0.1:{port}"
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_COORDINATOR_BIND_ADDRESS": address,
        "JAX_NUM_PROCESSES": str(num_processes),
    }
    return [
        subprocess.Popen(
            command, env={**environment, "JAX_PROCESS_ID": str(number)}
        )
        for number in range(num_processes)
    ]


def _first_failure(processes: list[subprocess.Popen[bytes]]) -> int | None:
    """Waits until all have ended well, or one has not."""
    while True:
        codes = [process.poll() for process in processes]
        failed = [number for number, code in enumerate(codes) if code]
        if failed:
            # First one that was killed: of that the others have their errors.
            return min(failed, key=lambda number: codes[number] or 0)
        if all(code == 0 for code in codes):
            return None
        time.sleep(_LOOK_EVERY)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ends those that still run: they would wait for the one that died."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _GRACE
    for process in processes:
        try:
            process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _described(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m cbnn_keras.launch`."""
    parser = argparse.ArgumentParser(
        prog="python -m cbnn_keras.launch",
        description="Runs a script in several processes on this machine, on "
        "Keras' JAX backend; if one dies, all are started again.",
        epilog="example: python -m cbnn_keras.launch --processes 2 train.py",
    )
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    parser.add_argument(
        "--restarts",
        type=int,
        default=3,
        metavar="N",
        help="how often all are started again (default: 3)",
    )
    parser.add_argument("script", help="calls cbnn_keras.launch.join() first")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parsed = parser.parse_args(arguments)
    if parsed.processes < 1 or parsed.restarts < 0:
        parser.error("--processes is at least 1, and --restarts at least 0")
    command = [sys.executable, parsed.script, *parsed.arguments]
    # Not without the processes: as an error, it comes past `_end`.
    previous = signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )
    try:
        return supervise(command, parsed.processes, parsed.restarts)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, previous)


if __name__ == "__main__":
    sys.exit(main())
