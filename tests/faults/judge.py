"""Judges what operations do to hostile runs and files, in a process apart.

What is looked for, and must never be: code that ran (`executed`), a read or a
write outside the run and the output (`outside`), memory above the limit
(`allocated`), an exception of another type (`other`), another prediction
(`silent`), and an attack that was taken for a run (`accepted`).
"""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

FAULTS = ("executed", "outside", "allocated", "other", "silent", "accepted")
CHEAP = ("load", "predict", "as_model", "inspect")
ALL = (
    *CHEAP,
    *("report", "saved_model", "onnx", "verify", "save"),
    *("resume", "overwrite"),
)
_BATCH = 25  # mutations in one process
_RESIDENT, _VIRTUAL = 112 * 2**20, 576 * 2**20  # the limit, and some slack


class Judge:
    """A worker process, started anew if it dies.

    Args:
        directory: An empty directory, for all that the cases need.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Judge":
        self._start()
        return self

    def __exit__(self, *_: Any) -> None:
        assert self._process is not None
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(60)
        self._process.stdout.close()  # type: ignore[union-attr]
        self._log.close()

    @property
    def shared(self) -> pathlib.Path:
        """Where the pristine runs are."""
        return self._directory / "shared"

    def run(
        self, case: str, operations: Sequence[str] = CHEAP
    ) -> list[dict[str, Any]]:
        """A verdict on each operation on a case."""
        return self._ask({"case": case, "operations": list(operations)})

    def fuzz(self, seeds: Iterable[int]) -> Iterator[dict[str, Any]]:
        """A verdict on each mutation."""
        yield from self._in_batches("fuzz", seeds, _BATCH)

    def flips(self, bits: Iterable[int]) -> Iterator[dict[str, Any]]:
        """A verdict on each bit of the manifest that is flipped."""
        yield from self._in_batches("flips", bits, 500)

    def _in_batches(
        self, name: str, numbers: Iterable[int], size: int
    ) -> Iterator[dict[str, Any]]:
        left = list(numbers)
        for start in range(0, len(left), size):
            for verdict in self._ask({name: left[start : start + size]}):
                yield _with_growth(verdict)

    def _start(self) -> None:
        variables = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
            "ORT_DISABLE_TELEMETRY": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "MPLCONFIGDIR": str(self._directory / "home"),
        }
        script = pathlib.Path(__file__).with_name("worker.py")
        self._log = (self._directory / "worker.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(self._directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | variables,
        )
        self._answer()

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process is not None
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            log = (self._directory / "worker.log").read_text()[-3000:]
            raise RuntimeError(f"The worker died:\n{log}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "failure" in answer:
            raise RuntimeError(answer["failure"])
        return answer


def _with_growth(verdict: dict[str, Any]) -> dict[str, Any]:
    resident, virtual = verdict.pop("grown", (0, 0))
    if resident > _RESIDENT or virtual > _VIRTUAL:
        size = max(resident, virtual) / 2**20
        verdict["faults"].append(f"allocated: {size:.0f} MiB")
    for seen in verdict.pop("outside", []):
        verdict["faults"].append(f"outside: {seen}")
    return verdict


def faults(verdict: dict[str, Any]) -> list[str]:
    """What is wrong, in lines for people."""
    return [
        f"{verdict['case']} [{verdict['operation']}] {name}: {text}"
        for name in FAULTS
        for text in verdict[name]
    ]


def main() -> None:
    """`judge.py [PART OF A NAME] [all]`: what is wrong with these cases."""
    import collections
    import tempfile

    import hostile_files
    import hostile_runs

    part = sys.argv[1] if len(sys.argv) > 1 else ""
    operations = ALL if "all" in sys.argv[2:] else CHEAP
    counts: collections.Counter[str] = collections.Counter()
    names = {**hostile_runs.cases(), **hostile_files.cases()}
    with tempfile.TemporaryDirectory() as directory:
        with Judge(pathlib.Path(directory)) as judge:
            for name in (n for n in names if part in n):
                for verdict in judge.run(name, operations):
                    counts["operations"] += 1
                    if "-v" in sys.argv:
                        print(
                            *(verdict[k] for k in ("case", "operation")),
                            *(verdict[k] for k in ("outcome", "message")),
                            sep=" | ",
                        )
                    for line in faults(verdict):
                        counts[line.split("] ")[1].split(":")[0]] += 1
                        print(line[:300], flush=True)
                counts["cases"] += 1
    print(dict(counts))


if __name__ == "__main__":
    main()
