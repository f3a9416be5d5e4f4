"""A run on disk: written so that no crash can spoil it.

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
`finish` sweep up. How they are read is in `stored`.
"""

import dataclasses
import pathlib

import keras
import numpy as np

from cbnn_keras.calibration import CalibrationRecord
from cbnn_keras.models import copying
from cbnn_keras.models import state as training_state
from cbnn_keras.runs import arrays, claims
from cbnn_keras.runs.manifest import (
    MODEL,
    OWN_DISTRIBUTION,
    Header,
    Manifest,
    Round,
    Settings,
    State,
    file_name,
)
from cbnn_keras.runs.run import MethodState, packed_bits
from cbnn_keras.runs.run_failures import (
    creation_explained,
    run_failures_explained,
)
from cbnn_keras.runs.run_files import (
    check_available,
    check_is_directory,
    check_no_links,
    holds_run,  # noqa: F401  (to be had here too)
)
from cbnn_keras.runs.stored import StoredRun
from cbnn_keras.support import locks
from cbnn_keras.support.faults import RunError, shortened

_METHOD_STATE = "notes/"  # in front of the names of a method's own arrays


class RunDirectory(StoredRun):
    """A run in a directory; see `create`, `open` and `claim`."""

    @classmethod
    def create(
        cls,
        path: pathlib.Path,
        header: Header,
        model: keras.Model,
        *,
        own_distribution: np.ndarray | None = None,
        overwrite: bool = False,
        restart: bool = False,
    ) -> "RunDirectory":
        """Starts a run in a directory that holds none.

        The directory is locked before it is looked into: of several processes
        that come at once, one gets it.

        Args:
            path: Created if missing.
            header: What holds for the whole run.
            model: Gives the architecture; left out of the directory if Keras
                cannot describe it, as with many subclassed models.
            own_distribution: The first omega, if it is the user's own.
            overwrite: Whether to remove a run that is there.
            restart: Whether to remove a run that is there if it has nothing to
                be resumed from.
        """
        run = cls(path, Manifest(header, [], [], None, False, {}))
        check_is_directory(path)
        with creation_explained(path):
            path.mkdir(parents=True, exist_ok=True)
            with locks.kept_on_success(path):
                check_available(path, overwrite=overwrite, restart=restart)
                run._begin(model, own_distribution)
        return run

    @classmethod
    def claim(
        cls,
        path: pathlib.Path,
        header: Header | None = None,
        phase: int = 0,
    ) -> "RunDirectory":
        """`open`, to write: refused while another process does.

        Args:
            path: The run directory.
            header: What the run must have been started with, if given.
            phase: Of a run of several fits, the one that was, from 0.
        """
        with run_failures_explained(path), locks.kept_on_success(path):
            run = cls.open(path)
            if header is not None:
                run.check_started_with(header, phase)
            # Git and object stores, which a run may have come by, keep no empty
            # directories.
            run._files.make_directories()
        return run

    def add_round(
        self, record: Round, correct: np.ndarray, member: keras.Model | None
    ) -> None:
        step = record.step
        bits = file_name("rounds", step)
        with run_failures_explained(self.path):
            if bits not in self._files.listed:  # once, also if scored again
                self._files.add_array(bits, packed_bits(correct))
            if member is not None:
                weights = file_name("members", step)
                self._files.add(weights, copying.weights_bytes(member))
                self.members.append(step)
            self._append(record)
            self._write_manifest()

    def _forget_member(self, step: int) -> None:
        del self._files.listed[file_name("members", step)]

    def save_state(
        self,
        model: keras.Model,
        step: int,
        epoch: int,
        method_state: MethodState,
    ) -> None:
        name = file_name("resume", step)
        state = training_state.capture_state(model)
        state |= {_METHOD_STATE + k: a for k, a in method_state.items()}
        with run_failures_explained(self.path):
            self._files.add_arrays(name, state)
            previous = self.state
            self.state = State(step, epoch)
            if previous and previous.step != step:
                del self._files.listed[file_name("resume", previous.step)]
            self._write_manifest()
            self._files.sweep()

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
        self._files.check(name)
        with self._files.read(name) as file:
            found = arrays.read_npz(file)
        method_state = {
            key.removeprefix(_METHOD_STATE): found.pop(key)
            for key in list(found)
            if key.startswith(_METHOD_STATE)
        }
        try:
            training_state.restore_state(model, found)
        except ValueError as error:
            where = self.path / name
            raise RunError(f"{where}: {shortened(error)}") from error
        self._forget_after(step)
        with run_failures_explained(self.path):
            self._write_manifest()
            self._files.sweep()
        return self.state, method_state

    def _forget_after(self, step: int) -> None:
        for record in self.rounds:
            if record.step > step:
                del self._files.listed[file_name("rounds", record.step)]
        super()._forget_after(step)

    def begin_phase(self, settings: Settings) -> None:
        super().begin_phase(settings)
        with run_failures_explained(self.path):
            self._write_manifest()
            self._files.sweep()

    def finish(self) -> None:
        if self.state:
            del self._files.listed[file_name("resume", self.state.step)]
        self.state = None
        self.is_finished = True
        with run_failures_explained(self.path):
            self._write_manifest()
            self._files.sweep()
        locks.unlock(self.path)

    def keep_calibration(self, record: CalibrationRecord) -> None:
        with (
            run_failures_explained(self.path, then="calibrate again"),
            locks.held(self.path),
        ):
            # Not what this object remembers: members can be left out of it.
            check_no_links(self.path)
            there = Manifest.read(self.path)
            if not self._files.are_among(there.files):
                raise RunError(
                    f"{self.path} holds another run than when it was loaded. "
                    "Load it again, and calibrate that."
                )
            changed = dataclasses.replace(there, calibration=record)
            claims.check_manifest(changed, self.path)
            changed.write(self.path)
        super().keep_calibration(record)

    def _write_manifest(self) -> None:
        Manifest(
            self.header,
            self.rounds,
            self.members,
            self.state,
            self.is_finished,
            self._files.listed,
            None
            if self.chosen_votes is None
            else [self.chosen_votes[step] for step in self.members],
            self.phases,
            self.calibration,
        ).write(self.path)

    def _begin(
        self, model: keras.Model, own_distribution: np.ndarray | None
    ) -> None:
        """Writes what holds for the whole run, in place of another run."""
        # First without any file, to mark the directory as ours.
        self._write_manifest()
        self._files.make_directories()
        self._files.sweep()
        for name in (MODEL, OWN_DISTRIBUTION):
            self._files.path(name).unlink(missing_ok=True)
        try:
            architecture = copying.architecture_bytes(model)
        except OSError:
            raise
        except Exception:  # of the user's classes, or of Keras
            pass  # it cannot be described
        else:
            self._files.add(MODEL, architecture)
        if own_distribution is not None:
            self._files.add_array(
                OWN_DISTRIBUTION, own_distribution.astype(np.float64)
            )
        self._write_manifest()
