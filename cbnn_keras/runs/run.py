"""A run: what training leaves behind, wherever it is kept.

`MemoryRun` keeps it in memory, `directory.RunDirectory` on disk.
"""

import abc
import dataclasses
import hashlib
from collections.abc import Iterable
from typing import ClassVar

import keras
import numpy as np

from cbnn_keras import auto_restarts, boosting, patterns
from cbnn_keras.auto_restarts import Cycles
from cbnn_keras.calibration import CalibrationRecord
from cbnn_keras.runs.manifest import (
    EndedPhase,
    Header,
    Round,
    Settings,
    State,
)
from cbnn_keras.support.aliases import Json
from cbnn_keras.trust import ALL

# What a method saves to be resumed, by names of its own.
MethodState = dict[str, np.ndarray]
Booster = boosting.Booster | patterns.PatternBooster
# Labels and weights that are hashed at once.
_CHUNK = 2**20


class Run(abc.ABC):
    """Rounds, members and how to read them.

    Attributes:
        header: What holds for the whole run.
        rounds: What each round left, in order.
        members: The steps whose weights are kept.
        own_distribution: The first round's omega where it is the user's and
            not uniform, or None.
        is_finished: Whether training is over.
        phases: The fits that are over, of a run of several.
        state: Where training would be resumed, or None.
        chosen_votes: The votes that an ensemble was saved with, by the step of
            the member, or None for those of the rounds.
        calibration: What was fitted to data after training, or None.
        is_on_disk: Whether members are read from files.
        kept_alive: What has to last as long as the run: the temporary
            directory that a copy of it is in, if it is one.
    """

    header: Header
    rounds: list[Round]
    members: list[int]
    is_finished: bool
    phases: list[EndedPhase]
    state: State | None = None
    chosen_votes: dict[int, float] | None = None
    calibration: CalibrationRecord | None = None
    is_on_disk: ClassVar[bool]
    kept_alive: object = None

    @property
    @abc.abstractmethod
    def own_distribution(self) -> np.ndarray | None: ...

    @property
    def first_distribution(self) -> np.ndarray:
        """The first round's omega, shape `(num_samples,)`."""
        own = self.own_distribution
        if own is not None:
            return own
        return patterns.uniform(self.header.num_samples)

    @property
    def has_bound(self) -> bool:
        """Whether theorem 1 speaks of this method: CBNN's own updates."""
        return self.header.settings.policy.has_bound

    @property
    def auto_cycles(self) -> Cycles | None:
        """The cycles of a run that restarts by held-out data, so far.

        Nothing starts anew after the final round, whatever its loss.
        """
        settings = self.header.settings
        rule = auto_restarts.of_settings(settings.own, settings.total_steps)
        if rule is None:
            return None
        return rule.cycles(
            {
                record.step: record.validation_loss
                for record in self.rounds
                if record.validation_loss is not None and not record.is_final
            }
        )

    @property
    def voters(self) -> list[int]:
        """The steps of the members that vote unless all are asked for."""
        steps, trust = self.members, self.header.settings.policy.trust
        if self.chosen_votes is not None or trust == ALL or not steps:
            return list(steps)
        cycles = self.auto_cycles
        if cycles is not None and cycles.voters is not None:
            # None of them where all were no better than chance.
            found = [step for step in steps if step in cycles.voters]
            return found or steps[-1:]
        rounds = [self.round_at(step) for step in steps]
        is_trusted = trust.voters(
            self.training_errors(steps),
            [record.class_error or 0.0 for record in rounds],
            [record.negative_log_likelihood or 0.0 for record in rounds],
        )
        return [s for s, yes in zip(steps, is_trusted, strict=True) if yes]

    def vote(self, step: int) -> float:
        """The vote of a member: as chosen, or lambda of its round."""
        if self.chosen_votes is not None:
            return self.chosen_votes[step]
        return self.round_at(step).vote

    def training_errors(self, steps: Iterable[int]) -> list[float]:
        """What the checkpoints of these steps got wrong, by the first omega."""
        first = self.first_distribution
        return [boosting.stage_error(first, self.correct(s)) for s in steps]

    def records(self) -> list[Json]:
        """What each round left, as dicts of their own."""
        return [record.to_json() for record in self.rounds]

    def is_trained_on(self, labels: np.ndarray) -> bool:
        """Whether these class indices are those of training, in its order."""
        return len(labels) == self.header.num_samples and (
            labels_id(labels, self.first_distribution) == self.header.labels
        )

    def round_at(self, step: int) -> Round:
        """The round of a step."""
        return next(record for record in self.rounds if record.step == step)

    def begin_boosting(
        self,
        own: slice | None = None,
        exchange: patterns.Exchange = lambda counts: counts,
    ) -> Booster:
        """The state of boosting before the first round; see `patterns`."""
        return patterns.begin_boosting(
            self.first_distribution,
            self.header.num_classes,
            self.header.settings.policy,
            own,
            exchange,
        )

    def replay(
        self,
        num_rounds: int | None = None,
        own: slice | None = None,
        exchange: patterns.Exchange = lambda counts: counts,
    ) -> Booster:
        """The state of boosting after so many rounds; after all by default.

        `replay(i).distribution` is omega as training saw it in round i, from 0.

        Args:
            num_rounds: How many.
            own: Of several processes that replay together, the samples whose
                patterns this one keeps, where there are patterns.
            exchange: Adds the counts of all processes.
        """
        booster = self.begin_boosting(own, exchange)
        if own is None or isinstance(booster, boosting.Booster):
            own = slice(None)
        for record in self.rounds[:num_rounds]:
            correct = self.correct(record.step)[own]
            booster.add(correct, is_final=record.is_final)
        return booster

    @abc.abstractmethod
    def add_round(
        self, record: Round, correct: np.ndarray, member: keras.Model | None
    ) -> None:
        """Keeps a round and, where it gave a member, the model's weights.

        Args:
            record: What is kept in the manifest.
            correct: Which samples were right, as booleans or packed bits.
            member: The model, if it is one.
        """

    def keep_latest(self, num: int) -> None:
        """Gives up all members but the latest ones; their rounds stay.

        On disk this is done with the next state that is saved, or when the run
        is finished, so that a run that is resumed has those of its state.
        """
        for step in self.members[:-num]:
            self._forget_member(step)
        self.members = self.members[-num:]

    @abc.abstractmethod
    def _forget_member(self, step: int) -> None:
        """Gives the room of a member back."""

    @abc.abstractmethod
    def correct(self, step: int) -> np.ndarray:
        """What the checkpoint of that round got right, shape `(n,)`."""

    @abc.abstractmethod
    def load_member(self, step: int, model: keras.Model) -> None:
        """Puts a member's weights into a model of its architecture."""

    @abc.abstractmethod
    def member_bytes(self, step: int) -> int:
        """The room that a member takes."""

    @abc.abstractmethod
    def save_state(
        self,
        model: keras.Model,
        step: int,
        epoch: int,
        method_state: MethodState,
    ) -> None:
        """Keeps what training would be resumed from.

        Args:
            model: Its variables and those of its optimizer are kept.
            step: How many steps were made.
            epoch: The next epoch, from 0.
            method_state: What the method itself has to remember.
        """

    @property
    def first_step(self) -> int:
        """The steps of the phases that are over."""
        return self.phases[-1].step if self.phases else 0

    def settings_of(self, phase: int) -> Settings:
        """What decided on a phase, from 0, that is over or the latest."""
        if phase < len(self.phases):
            return self.phases[phase].settings
        return self.header.settings

    def has_begun(self, phase: int) -> bool:
        """Whether something is known of a phase, from 0."""
        if phase != len(self.phases) or not phase or self.is_finished:
            return phase <= len(self.phases)
        is_kept = self.state is not None and self.state.step > self.first_step
        return is_kept or self.header.settings != self.phases[-1].settings

    def begin_phase(self, settings: Settings) -> None:
        """Goes on with another `fit`; forgets what a first try of it left."""
        self._forget_after(self.first_step)
        self.header = dataclasses.replace(self.header, settings=settings)

    def end_phase(self, step: int, epoch: int) -> None:
        """Notes that a `fit` is over, to be kept with the state of its end."""
        self.phases.append(EndedPhase(step, epoch, self.header.settings))

    def _forget_after(self, step: int) -> None:
        """Gives up later rounds: training will come to them again."""
        for member in self.members:
            if member > step:
                self._forget_member(member)
        self.members = [s for s in self.members if s <= step]
        self.rounds = [r for r in self.rounds if r.step <= step]

    @abc.abstractmethod
    def finish(self) -> None:
        """Marks the run as complete."""

    def keep_calibration(self, record: CalibrationRecord) -> None:
        """Keeps what was fitted to data, in place of an earlier one."""
        self.calibration = record

    def make_last_round_final(self) -> None:
        """For a model that turns out to be the final one after its round."""
        self.rounds[-1] = dataclasses.replace(self.rounds[-1], is_final=True)

    def _append(self, record: Round) -> None:
        # The final model can be one that was just scored and turned down.
        if self.rounds and self.rounds[-1].step == record.step:
            self.rounds.pop()
        self.rounds.append(record)


class MemoryRun(Run):
    """A run that lives as long as the process."""

    is_on_disk: ClassVar[bool] = False

    def __init__(
        self, header: Header, own_distribution: np.ndarray | None = None
    ) -> None:
        self.header = header
        self.rounds = []
        self.members = []
        self.is_finished = False
        self.phases = []
        self._own_distribution = own_distribution
        self._correct: dict[int, np.ndarray] = {}
        self._weights: dict[int, list[np.ndarray]] = {}

    @property
    def own_distribution(self) -> np.ndarray | None:
        return self._own_distribution

    def add_round(
        self, record: Round, correct: np.ndarray, member: keras.Model | None
    ) -> None:
        self._append(record)
        self._correct[record.step] = packed_bits(correct)
        if member is not None:
            weights = [np.array(weight) for weight in member.get_weights()]
            self._weights[record.step] = weights
            self.members.append(record.step)

    def _forget_member(self, step: int) -> None:
        del self._weights[step]

    def correct(self, step: int) -> np.ndarray:
        return unpack_bits(self._correct[step], self.header.num_samples)

    def load_member(self, step: int, model: keras.Model) -> None:
        model.set_weights(self._weights[step])

    def member_bytes(self, step: int) -> int:
        return sum(weight.nbytes for weight in self._weights[step])

    def save_state(
        self,
        model: keras.Model,
        step: int,
        epoch: int,
        method_state: MethodState,
    ) -> None:
        pass  # nothing survives the process anyway

    def finish(self) -> None:
        self.is_finished = True


def labels_id(labels: np.ndarray, first_distribution: np.ndarray) -> str:
    """A hash that tells one run's training labels from those of another."""
    digest = hashlib.sha256()
    pairs = (labels, np.int64), (first_distribution, np.float64)
    for array, dtype in pairs:
        for i in range(0, len(array), _CHUNK):
            digest.update(array[i : i + _CHUNK].astype(dtype).tobytes())
    return digest.hexdigest()


def packed_bits(correct: np.ndarray) -> np.ndarray:
    """Booleans as bits; bits as they are."""
    return np.packbits(correct) if correct.dtype == bool else correct


def unpack_bits(bits: np.ndarray, num_samples: int) -> np.ndarray:
    """The inverse of `np.packbits`, as booleans."""
    return np.unpackbits(bits, count=num_samples).view(bool)
