"""Orders to `server.py`, from a process that may do what it likes."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

SERVER = pathlib.Path(__file__).with_name("server.py")


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: The exit code; that of a signal is negative.
        seconds: How long it took.
        processor_seconds: How long a processor was busy with it.
        num_calls: How many calls changed something on the disk; None if it was
            killed.
        error: The classes of what was raised, by name, and its message; None
            if nothing was.
        output: What it has printed.
    """

    code: int
    seconds: float
    processor_seconds: float
    num_calls: int | None
    error: tuple[list[str], str] | None
    output: str

    @property
    def has_succeeded(self):
        return self.code == 0 and self.error is None


class Processes:
    """Starts pieces of work of `workloads.py`, each in a new process.

    Args:
        folder: For what they print.
    """

    def __init__(self, folder):
        self._folder = folder
        self._num_orders = 0
        paths = [str(SERVER.parents[2]), os.environ.get("PYTHONPATH", "")]
        self._server = subprocess.Popen(
            [sys.executable, SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def run(self, work, *arguments, **options):
        """Does one piece of work.

        Args:
            work: The name of the function.
            *arguments: What it is called with.
            **options: `fatal`, the number of the call that it does not
                survive; `seconds`, after which it gets a `signal`, SIGKILL if
                none is named; `limits`, by name as in `resource`.
        """
        return self.run_together([(work, *arguments)], **options)[0]

    def run_together(self, pieces, **options):
        """Does several pieces of work at once."""
        orders = []
        for work, *arguments in pieces:
            self._num_orders += 1
            orders.append(
                {
                    "work": work,
                    "arguments": [
                        str(a) if isinstance(a, pathlib.Path) else a
                        for a in arguments
                    ],
                    "output": str(self._folder / f"{self._num_orders}.txt"),
                    **options,
                }
            )
        print(json.dumps(orders), file=self._server.stdin, flush=True)
        answers = json.loads(self._server.stdout.readline())
        return [
            Ended(
                **{
                    **answer,
                    "error": answer["error"] and tuple(answer["error"]),
                },
                output=pathlib.Path(order["output"]).read_text(),
            )
            for answer, order in zip(answers, orders, strict=True)
        ]

    def close(self):
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()


def contents(path):
    """Every file in a directory, by name; None if there is none."""
    if not path.exists():
        return None
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }
