"""A run on disk: written so that no crash can spoil it, read with care.

    manifest.json              the header, every round, each file with its hash
    model.keras                the architecture, uncompiled
    base.npy                   the user's own sample weights, where given
    members/<step>.weights.h5  weights, without the optimizer
    rounds/<step>.npy          one bit per sample: right or wrong
    resume/<step>.npz          what training is resumed from

The manifest is the only file that is ever replaced, and that atomically. The
others are written once, before the manifest that lists them, and removed after
the manifest that no longer does. So a kill at any instruction leaves the old
state or the new one, plus perhaps files that nobody lists, which `rewind` and
`finish` sweep up.
"""

import contextlib
import pathlib
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import keras
import numpy as np

from cbnn_keras.models import copying
from cbnn_keras.models import state as training_state
from cbnn_keras.models.foreign import Foreign
from cbnn_keras.runs.manifest import (
    MANIFEST,
    SUFFIXES,
    Header,
    Manifest,
    Round,
    State,
    file_name,
)
from cbnn_keras.runs.run import MethodState, Run, unpack_bits
from cbnn_keras.support import files, locks

_MODEL = "model.keras"
_OWN_DISTRIBUTION = "base.npy"
_METHOD_STATE = "notes/"  # in front of the names of a method's own arrays


class RunDirectory(Run):
    """A run in a directory; see `create` and `open`."""

    is_on_disk: ClassVar[bool] = True

    def __init__(self, path: pathlib.Path, manifest: Manifest) -> None:
        self.path = path
        self.header = manifest.header
        self.rounds = list(manifest.rounds)
        self.members = list(manifest.members)
        self.state = manifest.state
        self.is_finished = manifest.is_finished
        self._files = dict(manifest.files)

    @classmethod
    def create(
        cls,
        path: pathlib.Path,
        header: Header,
        model: keras.Model,
        *,
        own_distribution: np.ndarray | None = None,
        overwrite: bool = False,
    ) -> "RunDirectory":
        """Starts a run in a directory that holds none.

        Args:
            path: Created if missing.
            header: What holds for the whole run.
            model: Gives the architecture; left out of the directory if Keras
                cannot describe it, as with many subclassed models.
            own_distribution: The first omega, if it is the user's own.
            overwrite: Whether to remove a run that is there.
        """
        check_available(path, overwrite=overwrite)
        run = cls(path, Manifest(header, [], [], None, False, {}))
        try:
            path.mkdir(parents=True, exist_ok=True)
            locks.lock(path)
            # First without any file, to mark the directory as ours.
            run._write_manifest()
            for name in SUFFIXES:
                (path / name).mkdir(exist_ok=True)
            run._sweep()
            (path / _OWN_DISTRIBUTION).unlink(missing_ok=True)
        except OSError as error:
            raise ValueError(
                f"A run cannot be written to {path}: {error}. Choose a "
                "directory that you may write to."
            ) from error
        try:
            copying.save_architecture(model, path / _MODEL)
        except (NotImplementedError, TypeError, ValueError):
            (path / _MODEL).unlink(missing_ok=True)
        else:
            run._list(_MODEL)
        if own_distribution is not None:
            np.save(path / _OWN_DISTRIBUTION, own_distribution)
            run._list(_OWN_DISTRIBUTION)
        run._write_manifest()
        return run

    @classmethod
    def open(cls, path: pathlib.Path) -> "RunDirectory":
        """Reads a run's manifest and checks what it names."""
        return cls(path, Manifest.read(path))

    @classmethod
    def claim(cls, path: pathlib.Path) -> "RunDirectory":
        """`open`, to write: refused while another process does."""
        locks.lock(path)
        run = cls.open(path)
        # Git and object stores, which a run may have come by, keep no empty
        # directories.
        for name in SUFFIXES:
            (path / name).mkdir(exist_ok=True)
        return run

    @property
    def own_distribution(self) -> np.ndarray | None:
        if _OWN_DISTRIBUTION not in self._files:
            return None
        return np.load(self.path / _OWN_DISTRIBUTION, allow_pickle=False)

    @property
    def has_model(self) -> bool:
        return _MODEL in self._files

    def verify(self) -> None:
        """Checks size and sha256 of each file that an ensemble needs.

        Raises:
            ValueError: Names the first file that is damaged.
        """
        for name, expected in self._files.items():
            if not name.startswith("resume/"):
                files.check_fingerprint(self.path / name, expected)

    def load_model(self, foreign: Foreign | None = None) -> keras.Model:
        """The architecture, as a model with weights of its own."""
        return copying.load_architecture(self.path / _MODEL, foreign)

    def check_started_with(self, header: Header) -> None:
        """Raises a `ValueError` for a header that is not this run's."""
        if self.header.architecture != header.architecture:
            raise ValueError(
                f"resume=True: {self.path} was trained with "
                f"another architecture ({self.header.num_parameters:,} "
                f"parameters then, {header.num_parameters:,} now). Build "
                "the model as before, or start in a new directory."
            )
        different = self.header.differences(header)
        if different:
            raise ValueError(
                f"resume=True: the run in {self.path} was "
                f"started with other settings: {'; '.join(different)}. Use the "
                "same ones, or start in a new directory."
            )

    def add_round(
        self, record: Round, correct: np.ndarray, member: keras.Model | None
    ) -> None:
        step = record.step
        bits = file_name("rounds", step)
        with _failures_explained(self.path):
            if bits not in self._files:  # written once, also if scored again
                np.save(self.path / bits, np.packbits(correct))
                self._list(bits)
            if member is not None:
                weights = file_name("members", step)
                copying.save_weights(member, self.path / weights)
                self._list(weights)
                self.members.append(step)
            self._append(record)
            self._write_manifest()

    def correct(self, step: int) -> np.ndarray:
        path = self.path / file_name("rounds", step)
        bits = np.load(path, allow_pickle=False)
        return unpack_bits(bits, self.header.num_samples)

    def load_member(self, step: int, model: keras.Model) -> None:
        name = file_name("members", step)
        path = self.path / name
        # Again: the directory may have got another run since it was opened.
        files.check_fingerprint(path, self._files[name])
        try:
            copying.load_weights(model, path)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{path} does not fit the model: {error}. Load the run with "
                "the architecture that it was trained with."
            ) from error

    def member_bytes(self, step: int) -> int:
        return self._files[file_name("members", step)].bytes

    def save_state(
        self,
        model: keras.Model,
        step: int,
        epoch: int,
        method_state: MethodState,
    ) -> None:
        name = file_name("resume", step)
        # The stubs of NumPy take the names for options.
        arrays: Any = training_state.capture_state(model)
        arrays |= {_METHOD_STATE + k: a for k, a in method_state.items()}
        with _failures_explained(self.path):
            np.savez(self.path / name, **arrays)
            self._list(name)
            previous = self.state
            self.state = State(step, epoch)
            if previous and previous.step != step:
                del self._files[file_name("resume", previous.step)]
            self._write_manifest()
            self._sweep()

    def rewind(self, model: keras.Model) -> tuple[State, MethodState]:
        """Takes the model back to the kept state, to train on from there.

        Rounds after it are forgotten: training will come to them again.

        Returns:
            The state, and what the method had to remember.
        """
        if self.state is None:
            raise ValueError(f"{self.path} keeps no state to resume from.")
        step = self.state.step
        name = file_name("resume", step)
        files.check_fingerprint(self.path / name, self._files[name])
        with np.load(self.path / name, allow_pickle=False) as file:
            arrays = dict(file)
        method_state = {
            key.removeprefix(_METHOD_STATE): arrays.pop(key)
            for key in list(arrays)
            if key.startswith(_METHOD_STATE)
        }
        training_state.restore_state(model, arrays)
        for record in self.rounds:
            if record.step > step:
                self._files.pop(file_name("rounds", record.step))
                self._files.pop(file_name("members", record.step), None)
        self.rounds = [r for r in self.rounds if r.step <= step]
        self.members = [s for s in self.members if s <= step]
        self._write_manifest()
        self._sweep()
        return self.state, method_state

    def finish(self) -> None:
        if self.state:
            del self._files[file_name("resume", self.state.step)]
        self.state = None
        self.is_finished = True
        self._write_manifest()
        self._sweep()
        locks.unlock(self.path)

    def _write_manifest(self) -> None:
        Manifest(
            self.header,
            self.rounds,
            self.members,
            self.state,
            self.is_finished,
            self._files,
        ).write(self.path)

    def _list(self, name: str) -> None:
        """Takes a file that was just written into the next manifest."""
        path = self.path / name
        files.fsync(path)
        files.fsync(path.parent)
        self._files[name] = files.fingerprint(path)

    def _sweep(self) -> None:
        """Removes files of ours that the manifest does not list."""
        for kind, suffix in SUFFIXES.items():
            for path in (self.path / kind).glob(f"*{suffix}"):
                number = path.name.removesuffix(suffix)
                is_ours = re.fullmatch(r"\d+", number)
                if is_ours and f"{kind}/{path.name}" not in self._files:
                    path.unlink()
        unfinished = copying.unfinished_architecture(self.path / _MODEL)
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def _failures_explained(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(
            f"The run in {path} could not be written: {error}. What "
            "it held before is intact: make room, and resume it "
            "with `resume=True`."
        ) from error


def holds_run(path: pathlib.Path | None) -> bool:
    """Whether there is a manifest in a directory, if there is one."""
    return path is not None and (path / MANIFEST).is_file()


def check_available(
    path: pathlib.Path,
    *,
    overwrite: bool = False,
    advice: str = "Choose another directory.",
) -> None:
    """Raises a `ValueError` unless a run may be started in `path`."""
    if path.exists() and not path.is_dir():
        raise ValueError(
            f"{path} is a file; a run needs a directory. Choose another name."
        )
    if holds_run(path):
        if overwrite:
            Manifest.read(path)  # raises if it is not ours to replace
            return
        raise ValueError(
            f"{path} already holds a run, which is never overwritten by "
            f"itself. {advice}"
        )
    names = (_MODEL, _OWN_DISTRIBUTION, *SUFFIXES)
    taken = [name for name in names if (path / name).exists()]
    if taken:
        raise ValueError(
            f"{path} has no {MANIFEST}, but {', '.join(taken)}, which a run "
            "would overwrite. Choose another directory."
        )
