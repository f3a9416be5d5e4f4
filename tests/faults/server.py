"""Runs pieces of work in processes of their own, and ends them as it is told.

    python server.py < orders > answers

TensorFlow is imported once: a process for each order is forked before
TensorFlow's runtime was ever used, which is when that is still possible. An
order is a line of JSON, and so is the answer; see `processes.Orders`.
"""

import builtins
import contextlib
import io
import json
import os
import resource
import select
import signal
import sys
import time
import traceback

# One thread: faster for little work, and a fork has nothing to wait for.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import tensorflow as tf  # noqa: E402
import workloads  # noqa: E402

_FATAL = ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir")


class Calls:
    """Counts the calls that change something on a disk, up to a fatal one.

    Args:
        fatal: The number of the call that this process does not survive, or
            None.
    """

    def __init__(self, fatal):
        self.num = 0
        self._fatal = fatal
        for name in _FATAL:
            setattr(os, name, self._counted(getattr(os, name)))
        os.open = self._counted(
            os.open, lambda _, flags, *rest, **more: flags & 3
        )
        io.open = builtins.open = self._counted(
            io.open, lambda _, mode="r", *rest, **more: set(mode) & set("wax+")
        )

    def _counted(self, function, applies=lambda *arguments, **more: True):
        def counted(*arguments, **more):
            if applies(*arguments, **more):
                self.num += 1
                if self.num == self._fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **more)

        return counted


def work(order, report):
    """In the child: does what was ordered and says how it went."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    # Neither changes a result; both together take half of the time.
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": True}
    )
    ordered = tf.autograph.experimental.do_not_convert(
        getattr(workloads, order["work"])
    )
    with open(order["output"], "w") as output:  # in the end, for people
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    for name, limit in order.get("limits", {}).items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    calls = Calls(order.get("fatal"))
    error = None
    try:
        ordered(*order["arguments"])
    except BaseException as raised:
        kinds = [kind.__name__ for kind in type(raised).__mro__]
        error = [kinds, str(raised)]
        with contextlib.suppress(OSError):  # a limit holds for this too
            traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os.write(report, json.dumps([calls.num, error]).encode())
    os._exit(0)


def start(order):
    """Forks a child; gives its number and where its report will come from."""
    source, sink = os.pipe()
    child = os.fork()
    if not child:
        os.close(source)
        work(order, sink)
    os.close(sink)
    return child, source


def finish(order, child, source):
    """Waits for a child, or ends it in the middle."""
    begin = time.monotonic()
    deadline = order.get("seconds")
    if deadline is not None:
        select.select([source], [], [], deadline)  # or until it is over
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, getattr(signal, order.get("signal", "SIGKILL")))
    report = b"".join(iter(lambda: os.read(source, 4096), b""))
    os.close(source)
    _, status, usage = os.wait4(child, 0)
    num_calls, error = json.loads(report) if report else (None, None)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "seconds": time.monotonic() - begin,
        "processor_seconds": usage.ru_utime + usage.ru_stime,
        "num_calls": num_calls,
        "error": error,
    }


def main():
    for line in sys.stdin:
        orders = json.loads(line)
        children = [(order, *start(order)) for order in orders]
        answers = [finish(*child) for child in children]
        print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()
