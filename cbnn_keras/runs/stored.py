"""A run on disk as it is read: with care, and nothing of it changed.

Which files there are, and how they are written, is in `directory`.
"""

import dataclasses
import pathlib
from typing import ClassVar, Self

import keras
import numpy as np

from cbnn_keras.models import copying, weight_files
from cbnn_keras.models.foreign import Foreign
from cbnn_keras.runs import arrays, claims
from cbnn_keras.runs.manifest import (
    HELD_OUT,
    MODEL,
    OWN_DISTRIBUTION,
    Header,
    Manifest,
    file_name,
)
from cbnn_keras.runs.run import Run, unpack_bits
from cbnn_keras.runs.run_files import RunFiles, check_no_links
from cbnn_keras.support.faults import RunError, shortened


class StoredRun(Run):
    """What can be asked of a run in a directory; see `open`."""

    is_on_disk: ClassVar[bool] = True

    def __init__(self, path: pathlib.Path, manifest: Manifest) -> None:
        self.path = path
        self.header = manifest.header
        self.rounds = list(manifest.rounds)
        self.members = list(manifest.members)
        self.state = manifest.state
        self.is_finished = manifest.is_finished
        self.phases = list(manifest.phases or [])
        self.calibration = manifest.calibration
        if manifest.votes is not None:
            votes = zip(manifest.members, manifest.votes, strict=True)
            self.chosen_votes = dict(votes)
        self._files = RunFiles(path, manifest.files)

    @classmethod
    def open(cls, path: pathlib.Path, max_bytes: int | None = None) -> Self:
        """Reads a run's manifest and checks what it says.

        Args:
            path: The run directory.
            max_bytes: How much an ensemble of the run may take, of the disk and
                in memory. None, for a run of your own, is no limit.

        Raises:
            RunError: If it is no run, or not one as training leaves them.
        """
        check_no_links(path)
        manifest = Manifest.read(path)
        claims.check_manifest(manifest, path)
        if max_bytes is not None:
            claims.check_size(manifest, path, max_bytes)
        return cls(path, manifest)

    @property
    def own_distribution(self) -> np.ndarray | None:
        if OWN_DISTRIBUTION not in self._files.listed:
            return None
        with self._files.read(OWN_DISTRIBUTION) as file:
            shape = (self.header.num_samples,)
            return arrays.read_npy(file, shape, np.float64)

    @property
    def has_model(self) -> bool:
        return MODEL in self._files.listed

    def verify(self) -> None:
        """Checks each file that an ensemble needs, and every round.

        That is size and sha256 of the files, and that the rounds are what their
        bits give.

        Raises:
            RunError: Names the first file that is damaged.
        """
        for name in self._files.listed:
            if name.startswith("resume/"):
                self._files.path(name)  # not read, but no link either
            else:
                self._files.check(name)
        claims.check_rounds(self, self.path)

    def leave_out_damaged(self) -> list[str]:
        """Forgets members whose files are missing or damaged, in memory.

        Returns:
            What is wrong with each of them.
        """
        reasons = []
        for step in list(self.members):
            try:
                self._files.check(file_name("members", step))
            except RunError as error:
                reasons.append(str(error))
                self.members.remove(step)
                self._forget_member(step)
        return reasons

    def load_model(self, foreign: Foreign | None = None) -> keras.Model:
        """The architecture, as a model with weights of its own."""
        return copying.load_architecture(self._files.path(MODEL), foreign)

    def check_started_with(self, header: Header, phase: int = 0) -> None:
        """Raises a `RunError` for a header that is not this run's."""
        then = dataclasses.replace(
            self.header, settings=self.settings_of(phase)
        )
        if self.header.architecture != header.architecture:
            raise RunError(
                f"resume=True: {self.path} was trained with "
                f"another architecture ({self.header.num_parameters:,} "
                f"parameters then, {header.num_parameters:,} now). Build "
                "the model as before, or start in a new directory."
            )
        # Of labels there is only a hash, which says nothing to anybody.
        now = dataclasses.replace(header, labels=self.header.labels)
        different = then.differences(now)[:10]
        if header.labels != self.header.labels:
            different.append(
                "the labels, or the sample weights to start from, are others "
                "or in another order (that of files read by "
                "`image_dataset_from_directory` and its kin is the same with "
                "the same `seed=`)"
            )
        held_out = [h.settings.own.get(HELD_OUT) for h in (then, header)]
        # Or one of them does not restart by such, which is said above.
        if None not in held_out and held_out[0] != held_out[1]:
            different.append(
                "the labels of validation_data are others or in another order"
            )
        if different:
            raise RunError(
                f"resume=True: the run in {self.path} was "
                f"started with other settings: {'; '.join(different)}. Use the "
                "same ones, or start in a new directory."
            )

    def correct(self, step: int) -> np.ndarray:
        num_samples = self.header.num_samples
        with self._files.read(file_name("rounds", step)) as file:
            bits = arrays.read_npy(file, (-(-num_samples // 8),), np.uint8)
        return unpack_bits(bits, num_samples)

    def load_member(self, step: int, model: keras.Model) -> None:
        # Again: the directory may have got another run since it was opened.
        path = self._files.check(file_name("members", step))
        weight_files.check_hdf5(path)
        try:
            copying.load_weights(model, path)
        except Exception as error:
            raise RunError(
                f"{path} does not fit the model: {shortened(error)}. Load the "
                "run with the architecture that it was trained with."
            ) from error

    def member_bytes(self, step: int) -> int:
        return self._files.listed[file_name("members", step)].bytes
