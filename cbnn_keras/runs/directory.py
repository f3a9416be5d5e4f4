"""A run on disk: written so that no crash can spoil it, read with care.

    manifest.json              the header, every round, each file with its hash
    model.keras                the architecture, uncompiled
    base.npy                   the user's own sample weights, where given
    members/<step>.weights.h5  weights, without the optimizer
    rounds/<step>.npy          one bit a sample: right or wrong
    resume/<step>.npz          what training goes on from

The manifest is the only file that is ever replaced, and that atomically. The
others are written once, before the manifest that lists them, and removed after
the manifest that no longer does. So a kill at any instruction leaves the old
state or the new one, plus perhaps files that nobody lists, which `rewind` and
`finish` sweep up.
"""

import contextlib
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from cbnn_keras.models import copying
from cbnn_keras.models import state as training_state
from cbnn_keras.runs.run import Notes, Record, Run, unpack_bits
from cbnn_keras.support import files

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
_MODEL = "model.keras"
_BASE = "base.npy"
_NOTES = "notes/"  # in front of the names of a method's own arrays
_FOLDERS = {"members": ".weights.h5", "rounds": ".npy", "resume": ".npz"}
_REQUIRED = {
    "files": dict,
    "from_logits": bool,
    "is_binary": bool,
    "is_finished": bool,
    "members": list,
    "num_classes": int,
    "num_samples": int,
    "rounds": list,
    "settings": dict,
}
_REQUIRED_OF_SETTINGS = {
    "deviation_rate": (int, float),
    "expected_error": (int, float),
}
_REQUIRED_OF_ROUND = {"step": int, "vote": (int, float), "is_final": bool}
_REQUIRED_OF_FILE = {"bytes": int, "sha256": str}


class RunDirectory(Run):
    """A run in a directory; see `create` and `open`."""

    def __init__(self, path: pathlib.Path, manifest: Record) -> None:
        self.path = path
        self.rounds = manifest.pop("rounds")
        self.members = manifest.pop("members")
        self.state: Record | None = manifest.pop("state", None)
        self.is_finished: bool = manifest.pop("is_finished")
        self._files: dict[str, Record] = manifest.pop("files")
        manifest.pop("format_version", None)
        self.header = manifest

    @classmethod
    def create(
        cls,
        path: pathlib.Path,
        header: Record,
        model: keras.Model,
        *,
        base: np.ndarray | None = None,
        overwrite: bool = False,
    ) -> "RunDirectory":
        """Starts a run in a directory that holds none.

        Args:
            path: Created if missing.
            header: See `Run`.
            model: Gives the architecture; left out of the directory if Keras
                cannot describe it, as with many subclassed models.
            base: See `Run`.
            overwrite: Whether to remove a run that is there.
        """
        check_available(path, overwrite=overwrite)
        run = cls(path, {**header, **_empty_run()})
        try:
            path.mkdir(parents=True, exist_ok=True)
            files.lock(path)
            # First without any file, to mark the directory as ours.
            run._write_manifest()
            for folder in _FOLDERS:
                (path / folder).mkdir(exist_ok=True)
            run._sweep()
            (path / _BASE).unlink(missing_ok=True)
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
        if base is not None:
            np.save(path / _BASE, base)
            run._list(_BASE)
        run._write_manifest()
        return run

    @classmethod
    def open(cls, path: pathlib.Path) -> "RunDirectory":
        """Reads a run's manifest and checks what it names."""
        manifest = _read_manifest(path)
        for name in manifest["files"]:
            files.path_within(path, name)
        run = cls(path, manifest)
        run._check_complete()
        return run

    @classmethod
    def claim(cls, path: pathlib.Path) -> "RunDirectory":
        """`open`, to write: refused while another process does."""
        files.lock(path)
        return cls.open(path)

    @property
    def base(self) -> np.ndarray | None:
        if _BASE not in self._files:
            return None
        return np.load(self.path / _BASE, allow_pickle=False)

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

    def load_model(self) -> keras.Model:
        """The architecture, as a model with weights of its own."""
        return copying.load_architecture(self.path / _MODEL)

    def check_started_with(self, header: Record) -> None:
        """Refuses, by a `ValueError`, a header that is not this run's."""
        if self.header["architecture"] != header["architecture"]:
            raise ValueError(
                f"resume=True: {self.path} was trained with "
                f"another architecture ({self.header['num_parameters']:,} "
                f"parameters then, {header['num_parameters']:,} now). Build "
                "the model as before, or start in a new directory."
            )
        then, now = _flat(self.header), _flat(header)
        different = [
            f"{name} was {then.get(name)!r} and is {now.get(name)!r}"
            for name in sorted(then.keys() | now.keys())
            if then.get(name) != now.get(name)
        ]
        if different:
            raise ValueError(
                f"resume=True: the run in {self.path} was "
                f"started with other settings: {'; '.join(different)}. Use the "
                "same ones, or start in a new directory."
            )

    def add_round(
        self, record: Record, correct: np.ndarray, member: keras.Model | None
    ) -> None:
        step = record["step"]
        bits = self._name("rounds", step)
        with self._failures_explained():
            if bits not in self._files:  # written once, also if scored again
                np.save(self.path / bits, np.packbits(correct))
                self._list(bits)
            if member is not None:
                weights = self._name("members", step)
                copying.save_weights(member, self.path / weights)
                self._list(weights)
                self.members.append(step)
            self._append(record)
            self._write_manifest()

    def correct(self, step: int) -> np.ndarray:
        path = self.path / self._name("rounds", step)
        bits = np.load(path, allow_pickle=False)
        return unpack_bits(bits, self.header["num_samples"])

    def load_member(self, step: int, model: keras.Model) -> None:
        name = self._name("members", step)
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
        return int(self._files[self._name("members", step)]["bytes"])

    def save_state(
        self,
        model: keras.Model,
        step: int,
        epoch: int,
        notes: Notes | None = None,
    ) -> None:
        name = self._name("resume", step)
        # The stubs of NumPy take the names for options.
        arrays: Any = training_state.capture_state(model)
        arrays |= {_NOTES + key: value for key, value in (notes or {}).items()}
        with self._failures_explained():
            np.savez(self.path / name, **arrays)
            self._list(name)
            previous = self.state
            self.state = {"step": step, "epoch": epoch}
            if previous and previous["step"] != step:
                del self._files[self._name("resume", previous["step"])]
            self._write_manifest()
            self._sweep()

    def rewind(self, model: keras.Model) -> tuple[Record, Notes]:
        """Goes back to the kept state, to train on from there.

        Rounds after it are forgotten: training will come to them again.

        Returns:
            The state's `step` and `epoch`, and the notes that it was kept with.
        """
        if self.state is None:
            raise ValueError(f"{self.path} keeps no state to go on from.")
        step = self.state["step"]
        name = self._name("resume", step)
        files.check_fingerprint(self.path / name, self._files[name])
        with np.load(self.path / name, allow_pickle=False) as file:
            arrays = dict(file)
        notes = {
            key.removeprefix(_NOTES): arrays.pop(key)
            for key in list(arrays)
            if key.startswith(_NOTES)
        }
        training_state.restore_state(model, arrays)
        for record in self.rounds:
            if record["step"] > step:
                self._files.pop(self._name("rounds", record["step"]))
                self._files.pop(self._name("members", record["step"]), None)
        self.rounds = [r for r in self.rounds if r["step"] <= step]
        self.members = [s for s in self.members if s <= step]
        self._write_manifest()
        self._sweep()
        return self.state, notes

    def finish(self) -> None:
        if self.state:
            del self._files[self._name("resume", self.state["step"])]
        self.state = None
        self.is_finished = True
        self._write_manifest()
        self._sweep()
        files.unlock(self.path)

    @contextlib.contextmanager
    def _failures_explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                f"The run in {self.path} could not be written: {error}. What "
                "it held before is intact: make room, and go on with "
                "`resume=True`."
            ) from error

    def _write_manifest(self) -> None:
        content = {
            "format_version": FORMAT_VERSION,
            **self.header,
            "rounds": self.rounds,
            "members": self.members,
            "state": self.state,
            "is_finished": self.is_finished,
            "files": dict(sorted(self._files.items())),
        }
        files.replace_json(self.path / MANIFEST, content)

    def _list(self, name: str) -> None:
        """Takes a file that was just written into the next manifest."""
        path = self.path / name
        files.fsync(path)
        files.fsync(path.parent)
        self._files[name] = files.fingerprint(path)

    def _sweep(self) -> None:
        """Removes files of ours that the manifest does not list."""
        for folder, suffix in _FOLDERS.items():
            for path in (self.path / folder).glob(f"*{suffix}"):
                is_ours = re.fullmatch(r"\d+", path.name.removesuffix(suffix))
                if is_ours and self._name_of(path) not in self._files:
                    path.unlink()
        unfinished = copying.unfinished_architecture(self.path / _MODEL)
        unfinished.unlink(missing_ok=True)

    def _check_complete(self) -> None:
        """Raises a `ValueError` if a round or member lacks its file."""
        recorded = {record["step"] for record in self.rounds}
        for folder, steps in (("rounds", recorded), ("members", self.members)):
            for step in steps:
                name = self._name(folder, step)
                if step not in recorded or name not in self._files:
                    raise ValueError(
                        f"{self.path / MANIFEST} is not a valid manifest: it "
                        f"has no {name} or no round for it. Restore the file, "
                        "or train again."
                    )

    def _name_of(self, path: pathlib.Path) -> str:
        return path.relative_to(self.path).as_posix()

    @staticmethod
    def _name(folder: str, step: int) -> str:
        return f"{folder}/{step}{_FOLDERS[folder]}"


def _flat(header: Record) -> Record:
    """Header and settings side by side, without what may well change."""
    flat = {**header, **header["settings"]}
    return {
        name: value
        for name, value in flat.items()
        if name not in ("settings", "package_version")
    }


def _empty_run() -> Record:
    return {
        "rounds": [],
        "members": [],
        "state": None,
        "is_finished": False,
        "files": {},
    }


def holds_run(path: pathlib.Path) -> bool:
    return (path / MANIFEST).is_file()


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
            _read_manifest(path)  # raises if it is not ours to replace
            return
        raise ValueError(
            f"{path} already holds a run, which is never overwritten by "
            f"itself. {advice}"
        )
    taken = [n for n in (_MODEL, _BASE, *_FOLDERS) if (path / n).exists()]
    if taken:
        raise ValueError(
            f"{path} has no {MANIFEST}, but {', '.join(taken)}, which a run "
            "would overwrite. Choose another directory."
        )


def _read_manifest(path: pathlib.Path) -> Record:
    file = path / MANIFEST
    if not file.is_file():
        raise ValueError(
            f"{path} holds no run: there is no {MANIFEST} in it. Give the "
            "directory that the callback or `ensemble.save` was given."
        )
    try:
        manifest = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(
            f"{file} is not JSON ({error}). Restore the file, or train again."
        ) from None
    is_dict = isinstance(manifest, dict)
    version = manifest.get("format_version") if is_dict else None
    if not isinstance(version, int):
        raise ValueError(f"{file} is not the manifest of a cbnn_keras run.")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{file} has format version {version}; this cbnn_keras reads up "
            f"to {FORMAT_VERSION}. Upgrade: pip install -U cbnn-keras."
        )
    wrong = _wrong_keys(manifest)
    if wrong:
        raise ValueError(
            f"{file} is not a valid manifest: {', '.join(wrong)} missing or "
            "of the wrong kind. Restore the file, or train again."
        )
    return manifest


def _wrong_keys(manifest: Record) -> list[str]:
    wrong = _wrong_kinds(manifest, _REQUIRED)
    if wrong:
        return wrong
    parts: list[tuple[str, Any, dict[str, Any]]] = [
        ("settings", manifest["settings"], _REQUIRED_OF_SETTINGS)
    ]
    for i, record in enumerate(manifest["rounds"]):
        parts.append((f"rounds[{i}]", record, _REQUIRED_OF_ROUND))
    for name, file in manifest["files"].items():
        parts.append((f"files[{name}]", file, _REQUIRED_OF_FILE))
    for where, part, kinds in parts:
        wrong += [f"{where}.{key}" for key in _wrong_kinds(part, kinds)]
    if not all(isinstance(step, int) for step in manifest["members"]):
        wrong.append("members")
    return wrong


def _wrong_kinds(part: Any, kinds: dict[str, Any]) -> list[str]:
    found = part if isinstance(part, dict) else {}
    return [
        k for k, kind in kinds.items() if not isinstance(found.get(k), kind)
    ]
