"""A run: what training leaves behind, wherever it is kept.

`MemoryRun` keeps it in memory, `run_directory.RunDirectory` on disk.
"""

import abc
import hashlib
from typing import Any

import keras
import numpy as np

from cbnn_keras import boosting

Record = dict[str, Any]
Notes = dict[str, np.ndarray]


class Run(abc.ABC):
    """Rounds, members and how to read them.

    Attributes:
        header: What holds for the whole run: `num_classes`, `num_samples`,
            `is_binary`, `from_logits`, `settings` and more; JSON values only.
        rounds: One record a round, in order: `step`, `epoch` and the fields of
            `boosting.Stage`.
        members: The steps whose weights are kept.
        base: The first round's omega where it is not uniform, or None.
    """

    header: Record
    rounds: list[Record]
    members: list[int]

    @property
    @abc.abstractmethod
    def base(self) -> np.ndarray | None: ...

    @property
    def first_weights(self) -> np.ndarray:
        """The first round's omega, shape `(num_samples,)`."""
        num_samples = self.header["num_samples"]
        base = self.base
        return np.full(num_samples, 1 / num_samples) if base is None else base

    @property
    def has_bound(self) -> bool:
        """Whether theorem 1 speaks of this method: CBNN's own updates."""
        settings = self.header["settings"]
        return not (
            settings.get("equal_votes") or settings.get("updates_from_first")
        )

    def is_trained_on(self, labels: np.ndarray) -> bool:
        """Whether these class indices are those of training, in its order."""
        return len(labels) == self.header["num_samples"] and labels_id(
            labels, self.first_weights
        ) == self.header.get("labels")

    def round_at(self, step: int) -> Record:
        return next(r for r in self.rounds if r["step"] == step)

    def replay(self, num_rounds: int | None = None) -> boosting.Booster:
        """The state of boosting after so many rounds; after all by default.

        `replay(i).weights` is omega as training saw it in round i, from 0.
        """
        settings = self.header["settings"]
        booster = boosting.Booster(
            self.first_weights,
            self.header["num_classes"],
            settings["deviation_rate"],
            settings["expected_error"],
            equal_votes=settings.get("equal_votes", False),
            updates_from_first=settings.get("updates_from_first", False),
        )
        for record in self.rounds[:num_rounds]:
            booster.add(
                self.correct(record["step"]), is_final=record["is_final"]
            )
        return booster

    @abc.abstractmethod
    def add_round(
        self, record: Record, correct: np.ndarray, member: keras.Model | None
    ) -> None:
        """Keeps a round and, where it gave a member, the model's weights."""

    @abc.abstractmethod
    def correct(self, step: int) -> np.ndarray:
        """What the checkpoint of that round got right, shape `(n,)`."""

    @abc.abstractmethod
    def load_member(self, step: int, model: keras.Model) -> None:
        """Puts a member's weights into a model of its architecture."""

    @abc.abstractmethod
    def member_bytes(self, step: int) -> int:
        """The room a member takes."""

    @abc.abstractmethod
    def save_state(
        self,
        model: keras.Model,
        step: int,
        epoch: int,
        notes: Notes | None = None,
    ) -> None:
        """Keeps what training would go on from.

        Args:
            model: Its variables and those of its optimizer.
            step: How many steps were made.
            epoch: The next one.
            notes: What the method itself has to remember.
        """

    @abc.abstractmethod
    def finish(self) -> None:
        """Marks the run as complete."""

    def make_last_round_final(self) -> None:
        """For a model that turns out to be the final one after its round."""
        self.rounds[-1] = {**self.rounds[-1], "is_final": True}

    def _append(self, record: Record) -> None:
        # The final model can be one that was just scored and turned down.
        if self.rounds and self.rounds[-1]["step"] == record["step"]:
            self.rounds.pop()
        self.rounds.append(record)


class MemoryRun(Run):
    """A run that lives as long as the process."""

    def __init__(self, header: Record, base: np.ndarray | None = None) -> None:
        self.header = header
        self._base = base
        self.rounds = []
        self.members = []
        self._correct: dict[int, np.ndarray] = {}
        self._weights: dict[int, list[np.ndarray]] = {}

    @property
    def base(self) -> np.ndarray | None:
        return self._base

    def add_round(
        self, record: Record, correct: np.ndarray, member: keras.Model | None
    ) -> None:
        step = record["step"]
        self._append(record)
        self._correct[step] = np.packbits(correct)
        if member is not None:
            self._weights[step] = [np.array(w) for w in member.get_weights()]
            self.members.append(step)

    def correct(self, step: int) -> np.ndarray:
        return unpack_bits(self._correct[step], self.header["num_samples"])

    def load_member(self, step: int, model: keras.Model) -> None:
        model.set_weights(self._weights[step])

    def member_bytes(self, step: int) -> int:
        return sum(w.nbytes for w in self._weights[step])

    def save_state(
        self,
        model: keras.Model,
        step: int,
        epoch: int,
        notes: Notes | None = None,
    ) -> None:
        pass  # nothing survives the process anyway

    def finish(self) -> None:
        pass


def labels_id(labels: np.ndarray, first_weights: np.ndarray) -> str:
    """What tells the training labels of one run from those of another."""
    digest = hashlib.sha256(labels.astype(np.int64).tobytes())
    digest.update(first_weights.tobytes())
    return digest.hexdigest()


def unpack_bits(bits: np.ndarray, num_samples: int) -> np.ndarray:
    return np.unpackbits(bits, count=num_samples).astype(bool)
