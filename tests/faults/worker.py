"""A process that has TensorFlow loaded and does each case in a fork of itself.

It reads requests, a line of JSON each, and answers with a line of JSON. It
never runs TensorFlow itself, so that a fork of it is as good as a new process.
"""

import json
import os
import pathlib
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from typing import Any

import fuzz
import hostile_files
import hostile_runs
import operations
import pristine
from arena import LIMIT, Case, Place, prepare
from watching import Guard, Watcher, differences, memory, snapshot

# For all operations of a child: of the processor, and until one that waits for
# ever is given up.
CPU_SECONDS = 60
SECONDS = 150.0
RESIDENT_SLACK = 48 * 2**20
VIRTUAL_SLACK = 512 * 2**20
ROOM = 6 * 2**30  # of address space, for the safety of the machine


class Worker:
    """Makes cases and runs operations on them.

    Args:
        root: A directory for everything.
    """

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root
        self._shared = root / "shared"
        self._home = root / "home"
        self._guard = Guard()
        self._cases = {**hostile_runs.cases(), **hostile_files.cases()}
        self._baselines: dict[tuple, list[dict]] = {}
        self._number = 0
        for path in (self._shared, self._home):
            path.mkdir(exist_ok=True)

    def make_pristine(self) -> None:
        """Trains the runs and exports one of them."""
        if (self._shared / "finished.onnx").exists():
            return
        place = Place(self._root / "making")
        for path in (place.out, place.tmp):
            path.mkdir(parents=True, exist_ok=True)

        def make(_) -> None:
            operations.set_up_process(place, self._home)
            pristine.make(self._shared)
            run, to = self._shared / "finished", self._shared
            export = operations.cli.main
            for format, name in (
                ("saved_model", "saved_model"),
                ("onnx", "finished.onnx"),
                ("triton", "triton/model"),
            ):
                arguments = ["export", run, "--format", format, "--output"]
                code = export([str(a) for a in (*arguments, to / name)])
                assert not code, format

        answer = self._fork(make)
        if answer["death"]:
            raise RuntimeError(f"no pristine run: {answer}")

    def judge(self, name: str, names: list[str]) -> list[dict]:
        """Runs these operations, or all, on a case; a verdict for each."""
        case = self._cases[name]
        if case.command is not None:
            return self._judge(case, ("file",))
        reading = tuple(n for n in operations.READING if n in names)
        verdicts = self._judge(case, reading) if reading else []
        for one in operations.WRITING:
            if one in names:
                verdicts += self._judge(case, (one,))
        return verdicts

    def _judge(self, case: Case, names: tuple[str, ...]) -> list[dict]:
        if case.base == "unfinished":  # there is no export of it to compare
            names = tuple(name for name in names if name != "verify")
        baseline = self._baseline(case, names)
        answers, seen = self._attempt(case, names)
        verdicts = [
            _verdict(case, answer, usual)
            for answer, usual in zip(answers, baseline, strict=False)
        ]
        if verdicts:  # what was seen from outside: which one did it?
            verdicts[-1]["outside"] += [
                f"({', '.join(names)}) {s}" for s in seen
            ]
        return verdicts

    def _baseline(self, case: Case, names: tuple[str, ...]) -> list[dict]:
        """The same operations on the pristine run."""
        if names == ("file",):
            names = ("onnx",)  # a command that does about as much
        key = (case.base, names)
        if key not in self._baselines:
            usual = Case("pristine", "", lambda place: None, base=case.base)
            answers, seen = self._attempt(usual, names)
            self._baselines[key] = answers
            # An unfinished run may be refused by some, in good order.
            if seen or any(
                a["outcome"] == "error" or a.get("violations") for a in answers
            ):
                raise RuntimeError(
                    f"not even the pristine run: {answers}, {seen}"
                )
        return self._baselines[key]

    def _attempt(
        self, case: Case, names: tuple[str, ...]
    ) -> tuple[list[dict], list[str]]:
        """Makes the case and runs operations in a child.

        Returns:
            What each operation gave, and what was seen of them from outside.
        """
        self._number += 1
        place = prepare(case, self._root / str(self._number), self._shared)
        try:
            made = self._fork(lambda _: case.make(place))
            if made["death"]:
                raise RuntimeError(f"{case.key} cannot be made: {made}")
            is_reading = names[0] not in operations.WRITING
            before = snapshot(place.outside)
            given = {path: snapshot(path) for path in (place.run, place.inputs)}
            watcher = Watcher(place.outside)
            result = self._fork(
                lambda tell: self._operate(case, place, names, tell)
            )
            seen = watcher.stop()
            seen += differences(before, snapshot(place.outside))
            if is_reading:
                for path, kept in given.items():
                    changed = differences(kept, snapshot(path))
                    seen += [f"{path.name}: {one}" for one in changed]
        finally:
            _remove(place.root)
        answers = result["answers"]
        if result["death"]:
            name = names[len(answers)] if len(answers) < len(names) else "end"
            answers.append(
                {
                    "operation": name,
                    "outcome": "error",
                    "message": f"the process died: {result['death']}",
                    "memory": [0, 0],
                }
            )
        return answers, seen

    def _operate(
        self, case: Case, place: Place, names: tuple[str, ...], tell: Any
    ) -> None:
        operations.set_up_process(place, self._home)
        size = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
        limit = size * resource.getpagesize() + ROOM
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        one = operations.Operations(case, place, self._shared)
        writable = [place.out, place.tmp, self._home]
        if names[0] in operations.WRITING:
            writable.append(place.run)
        readable = [place.run, place.inputs, self._shared]
        self._guard.start(readable, writable)
        for name in names:
            start = len(self._guard.violations)
            was_there = place.marker.exists()
            found = one.run(name)
            tell(
                {
                    "operation": name,
                    **found,
                    "memory": memory(),
                    "executed": place.marker.exists() and not was_there,
                    "violations": self._guard.violations[start:],
                }
            )

    def fuzz(self, seeds: list[int], one: Any = fuzz.judge) -> list[dict]:
        """Verdicts on mutated runs; those of one process, if it lives.

        Args:
            seeds: The numbers of the mutations.
            one: Makes a mutation and judges it.
        """
        place = Place(self._root / "fuzz")
        _remove(place.root)
        for path in (place.out, place.tmp, place.outside):
            path.mkdir(parents=True)

        def operate(tell) -> None:
            operations.set_up_process(place, self._home)
            self._guard.start(
                [place.run, self._shared],
                [place.out, place.tmp, self._home, place.run],
            )
            fuzz.pristine_prediction(self._shared)  # what first takes memory
            for seed in seeds:
                start = len(self._guard.violations)
                peak = memory()
                found = one(seed, self._shared, place)
                seen = self._guard.violations[start:]
                grown = [b - a for a, b in zip(peak, memory(), strict=True)]
                tell({**found, "outside": seen, "grown": grown})

        result = self._fork(operate)
        answers = result["answers"]
        if result["death"] and len(seeds) > 1:
            done = len(answers)
            return answers + [
                v for seed in seeds[done:] for v in self.fuzz([seed], one)
            ]
        if result["death"]:
            return [
                {
                    "seed": seeds[0],
                    "what": f"mutation {seeds[0]}",
                    "faults": [f"other: the process died, {result['death']}"],
                }
            ]
        return answers

    def _fork(self, function: Any) -> dict[str, Any]:
        """Runs a function in a child; what it tells, and how it ended."""
        reader, writer = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if not child:
            os.close(reader)
            _in_child(function, writer)
        os.close(writer)
        data, is_late = _read_all(reader, SECONDS)
        if is_late:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(reader)
        answers = [json.loads(line) for line in data.splitlines()]
        death = f"after {SECONDS} s" if is_late else ""
        if status and not is_late:
            death = f"status {os.waitstatus_to_exitcode(status)}"
        return {"answers": answers, "death": death}


def _in_child(function: Any, writer: int) -> None:
    """Ends the child, whatever happens."""
    code = 1
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1):
            os.dup2(nowhere, descriptor)

        def tell(answer: dict) -> None:
            os.write(writer, json.dumps(answer).encode() + b"\n")

        function(tell)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _read_all(descriptor: int, seconds: float) -> tuple[bytes, bool]:
    data, end = b"", time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select([descriptor], [], [], left)
        if ready:
            part = os.read(descriptor, 2**16)
            if not part:
                return data, False
            data += part
    return data, True


def _remove(path: pathlib.Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _verdict(case: Case, answer: dict, usual: dict) -> dict:
    """What is wrong with what an operation did, by the kind of harm."""
    grown = [
        now - then
        for now, then in zip(answer["memory"], usual["memory"], strict=True)
    ]
    allocated = []
    if grown[0] > LIMIT + RESIDENT_SLACK:
        allocated.append(f"{grown[0] / 2**20:.0f} MiB resident")
    if grown[1] > LIMIT + VIRTUAL_SLACK:
        allocated.append(f"{grown[1] / 2**20:.0f} MiB of addresses")
    if answer.get("wanted_memory"):
        allocated.append("asked for memory that was not there")
    silent, accepted = [], []
    if answer["outcome"] == "done":
        is_same = answer.get("prediction") == usual.get("prediction")
        if not is_same and case.expects != "other run":
            silent.append("another prediction")
        if not answer.get("is_finite", True) and not case.is_poisoned:
            silent.append("a prediction that is no number")
        if case.expects == "refused" and answer["operation"] in (
            *("predict", "as_model", "file"),
        ):
            accepted.append("not refused")
    return {
        "case": case.key,
        "operation": answer["operation"],
        "outcome": answer["outcome"],
        "message": answer["message"],
        "executed": ["marker"] if answer.get("executed") else [],
        "outside": answer.get("violations", []),
        "allocated": allocated,
        "other": [answer["message"]] if answer["outcome"] == "error" else [],
        "silent": silent,
        "accepted": accepted,
    }


def main() -> None:
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(pathlib.Path(sys.argv[1]))
    worker.make_pristine()
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "fuzz" in request:
                answer: Any = worker.fuzz(request["fuzz"])
            elif "flips" in request:
                answer = worker.fuzz(request["flips"], fuzz.flip)
            else:
                answer = worker.judge(request["case"], request["operations"])
        except Exception:
            answer = {"failure": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
