"""Kills at chosen instructions and at random moments, and what they leave.

A kind of kill is a function that does one of them: it gives what was wrong
afterwards, which is nothing. `test_kills.py` does some, `benchmarks/kills.py`
as many as it is asked for.
"""

import shutil

from processes import contents

from cbnn_keras.runs.directory import RunDirectory, holds_run

# What can be wrong, by its name in tables.
LOST, DAMAGED, UNEQUAL = "lost", "damaged", "unequal"


class Kills:
    """Does kills in a folder, with what they are compared to.

    Args:
        processes: Where work is done.
        folder: For directories that are killed in; those that left something
            wrong stay there.
        chance: A `random.Random`: what it draws decides on the kills.

    Attributes:
        kinds: The kinds of kills, by name.
        whole: The files of a run that nobody interrupted, by name.
        train_seconds: How long that run took.
        num_killed: How many processes were killed.
    """

    def __init__(self, processes, folder, chance):
        self._processes = processes
        self.folder = folder
        self._chance = chance
        self._num = 0
        self.num_killed = 0
        self.kinds = {
            "training": self.training,
            "a save in training": self.saving,
            "resuming": self.resuming,
            "ensemble.save": self.save,
            "export_saved_model": self.saved_model,
            "export_onnx": self.onnx,
        }
        self._whole = folder / "whole"
        self._half = folder / "half"
        self._reference = {}
        self._prepare()

    def _prepare(self):
        """What the same work leaves that nobody interrupts."""
        first = self._succeed("train", self._whole)
        self._reference["train"] = first
        self._processes.run("train", self._half, fatal=first.num_calls // 2)
        resumed = self.folder / "resumed"
        shutil.copytree(self._half, resumed)
        self._reference["resume"] = self._succeed("train", resumed)
        for work in ("save", "saved_model", "onnx"):
            target = self.folder / f"whole-{work}"
            self._reference[work] = self._succeed(work, self._whole, target)
        self.whole = contents(self._whole)
        self.train_seconds = self._reference["train"].seconds

    def _succeed(self, *work):
        ended = self._processes.run(*work)
        if not ended.has_succeeded:
            raise RuntimeError(f"{work} failed unkilled:\n{ended.output}")
        return ended

    # One method a kind.

    def training(self):
        """At a random moment, wherever the process is."""
        path = self._new()
        self._kill_at_a_moment("train", path)
        return self._finish_training(path)

    def saving(self):
        """Where something is about to change on the disk."""
        path = self._new()
        self._kill_at_a_call("train", self._reference["train"], path)
        return self._finish_training(path)

    def resuming(self):
        """The same in a second and in a third start."""
        path = self._new()
        shutil.copytree(self._half, path)
        kept = _kept(path)
        wrong = set()
        for _ in range(2):
            self._kill_at_a_call("train", self._reference["resume"], path)
            if _kept(path) < kept:
                wrong.add(LOST)
            kept = _kept(path)
        return wrong | self._finish_training(path)

    def save(self):
        """`ensemble.save` leaves nothing or all of it."""
        path = self._new()
        whole = contents(self.folder / "whole-save")
        self._kill_at_a_call("save", self._reference["save"], self._whole, path)
        found = contents(path)
        wrong = {DAMAGED} if found not in (None, {}, whole) else set()
        if found != whole:
            again = self._processes.run("save", self._whole, path)
            if not again.has_succeeded:
                wrong.add(LOST)
            elif contents(path) != whole:
                wrong.add(UNEQUAL)
        return wrong | self._source_changed()

    def saved_model(self):
        """The version is there or not, and the one before it stays."""
        path = self._new()
        shutil.copytree(self.folder / "whole-saved_model" / "1", path / "1")
        before = contents(path / "1")
        self._kill_somehow("saved_model", self._whole, path)
        wrong = set() if contents(path / "1") == before else {LOST}
        if (path / "2").exists():
            wrong |= self._wrong_saved_model(path / "2")
            shutil.rmtree(path / "2")
        again = self._processes.run("saved_model", self._whole, path)
        if not again.has_succeeded:
            wrong.add(LOST)
        else:
            wrong |= self._wrong_saved_model(path / "2")
        return wrong | self._source_changed()

    def onnx(self):
        """The file is the old one or the new one."""
        path = self._new().with_suffix(".onnx")
        old, new = b"old", (self.folder / "whole-onnx").read_bytes()
        path.write_bytes(old)
        self._kill_somehow("onnx", self._whole, path)
        wrong = set()
        if not path.exists():
            wrong.add(LOST)
        elif path.read_bytes() not in (old, new):
            wrong.add(DAMAGED)
        again = self._processes.run("onnx", self._whole, path)
        if not again.has_succeeded:
            wrong.add(LOST)
        elif path.read_bytes() != new:
            wrong.add(UNEQUAL)
        return wrong | self._source_changed()

    # What they have in common.

    def _new(self):
        self._num += 1
        return self.folder / f"killed-{self._num}"

    def _kill_at_a_call(self, work, reference, *arguments):
        fatal = self._chance.randint(1, reference.num_calls)
        ended = self._processes.run(work, *arguments, fatal=fatal)
        # A start that has less to do than the reference can survive.
        self.num_killed += ended.code < 0

    def _kill_at_a_moment(self, work, *arguments):
        seconds = self._reference[work].seconds * self._chance.random()
        ended = self._processes.run(work, *arguments, seconds=seconds)
        self.num_killed += ended.code < 0

    def _kill_somehow(self, work, *arguments):
        if self._chance.random() < 0.5:
            self._kill_at_a_moment(work, *arguments)
        else:
            self._kill_at_a_call(work, self._reference[work], *arguments)

    def _finish_training(self, path):
        """Starts the script again, which looks at what is there first."""
        ended = self._processes.run("train", path)
        if not ended.has_succeeded:
            is_damaged = ended.error and "Damaged" in ended.error[0]
            return {DAMAGED if is_damaged else LOST}
        return set() if contents(path) == self.whole else {UNEQUAL}

    def _wrong_saved_model(self, path):
        names = {file.name for file in path.rglob("*")}
        whole = self.folder / "whole-saved_model" / "1"
        if names != {file.name for file in whole.rglob("*")}:
            return {DAMAGED}
        ended = self._processes.run("check_saved_model", self._whole, path)
        return set() if ended.has_succeeded else {DAMAGED}

    def _source_changed(self):
        return set() if contents(self._whole) == self.whole else {LOST}


def _kept(path):
    """How many epochs a run in a directory keeps."""
    if not holds_run(path):
        return 0
    run = RunDirectory.open(path)
    if run.is_finished:
        return float("inf")
    return run.state.epoch if run.state else 0
