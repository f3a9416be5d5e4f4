"""What a user tells the callback of any method, checked when it is made."""

import os
import pathlib
import shutil
import tempfile
import weakref
from typing import Any, TypedDict

import keras
import numpy as np

from cbnn_keras.data.labelled import as_pair
from cbnn_keras.models import engine
from cbnn_keras.runs.directory import check_available, holds_run
from cbnn_keras.support import arguments
from cbnn_keras.training.weight_holder import WeightHolder


class RunOptions(TypedDict, total=False):
    """Arguments that all callbacks have in common; see `CBNNCallback`."""

    total_steps: int | None
    from_logits: bool | None
    validation_data: Any
    score_data: Any
    resume: bool
    overwrite: bool


class RunArguments(WeightHolder, keras.callbacks.Callback):
    """The arguments of a callback, and which directory this process has."""

    _scratch: "_Scratch | None" = None  # where the copy of a run is

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        num_checkpoints: int | None = None,
        total_steps: int | None = None,
        from_logits: bool | None = None,
        validation_data: Any = None,
        score_data: Any = None,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        super().__init__()
        self._processes = engine.in_use().processes()
        # As the user says it, for messages; `directory` may be that of a copy.
        self._told_directory = _as_path(self._name, directory)
        self.directory = self._own_directory(self._told_directory)
        self.num_checkpoints = self._optional_integer(
            "num_checkpoints", num_checkpoints
        )
        self.total_steps = self._optional_integer("total_steps", total_steps)
        self.from_logits = checked_flag(self._name, "from_logits", from_logits)
        self.validation_data = validation_data
        self.score_data = score_data
        self.resume = resume
        self.overwrite = overwrite
        with self._processes.together():
            self._check_arguments()

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _own_directory(
        self, directory: pathlib.Path | None
    ) -> pathlib.Path | None:
        """The directory itself, or that of a copy: the first process writes."""
        if directory is None or self._processes.is_first:
            return directory
        self._scratch = _Scratch()
        return self._scratch.path / "run"

    def _optional_integer(self, name: str, value: Any) -> int | None:
        if value is None:
            return None
        return arguments.integer(self._name, name, value)

    def _check_arguments(self) -> None:
        engine.in_use()  # or this backend cannot train
        for name in ("validation_data", "score_data"):
            if getattr(self, name) is not None:
                as_pair(getattr(self, name), name)
        if self.resume and self.overwrite:
            raise ValueError(
                f"{self._name}(resume=True, overwrite=True): resume the run or "
                "replace it, not both."
            )
        if self.directory is None and (self.resume or self.overwrite):
            raise ValueError(
                f"{self._name}: resume and overwrite need a directory."
            )
        if not (self.resume and holds_run(self.directory)):
            self._check_directory()

    def _check_directory(self, further_advice: str = "") -> None:
        """Raises a `RunError` if a new run cannot begin in the directory."""
        if self.directory is not None:
            check_available(
                self.directory,
                overwrite=self.overwrite,
                advice="Choose another directory, resume that run "
                "(`resume=True`), or replace it (`overwrite=True`)."
                + further_advice,
            )


class _Scratch:
    """A directory that is removed when nobody needs it any more."""

    def __init__(self) -> None:
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="cbnn-process-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _as_path(owner: str, directory: Any) -> pathlib.Path | None:
    if directory is None:
        return None
    if not isinstance(directory, (str, os.PathLike)):
        raise ValueError(
            f"{owner}({directory!r}): the first argument is the "
            "directory of the run; give numbers by name, as in "
            "`num_checkpoints=6`."
        )
    return pathlib.Path(directory).absolute()


def checked_flag(owner: str, name: str, value: Any) -> bool | None:
    """True, False or None, or a `ValueError`."""
    if value is not None and not isinstance(value, (bool, np.bool_)):
        raise ValueError(
            f"{owner}({name}={value!r}): {name} must be True, False or None."
        )
    return None if value is None else bool(value)
