"""What a manifest says: header, settings, rounds, state and files, typed.

The dataclasses are the schema, and the only one: they are written to
`manifest.json` and read from it here, and what is read is checked against the
types of their fields. Their text is that of `manifest_json`, and whether they
can be true is asked in `claims`.

Format 8 differs from format 7 in runs that restart by held-out data and in
averages without lag, format 7 from format 6 in the share of a calibration,
format 6 from format 5 in the calibration of a run and in members that are
trusted by the error of each class, and format 5 from format 4 in the phases of
a run of several fits; a run without is still written in the format before.
Format 4 differs from format 3 in the votes that an ensemble was saved with.
Format 3 differs from format 2 in the checksum that the manifest has of itself.
Format 2 differs from format 1 in the settings of methods that do not boost as
CBNN does: format 1 had a `deviation_rate` and an `expected_error` for them too,
which meant nothing and are passed over.
"""

import dataclasses
import pathlib
import typing
from collections.abc import Mapping
from typing import Any

from cbnn_keras.boosting import Policy, Stage
from cbnn_keras.boosting_policies import Boosting, BoostingFromFirst, EqualVotes
from cbnn_keras.calibration import CalibrationRecord
from cbnn_keras.models.classifier import Classifier
from cbnn_keras.runs import manifest_json
from cbnn_keras.runs.typed_json import fits, is_nested, typed
from cbnn_keras.support.aliases import Json
from cbnn_keras.support.console import printable
from cbnn_keras.support.faults import RunError
from cbnn_keras.support.files import Fingerprint
from cbnn_keras.trust import Trust

MODEL = "model.keras"
OWN_DISTRIBUTION = "base.npy"
# The hash of held-out labels, in the settings of a run that restarts by them.
HELD_OUT = "held_out"
# Of a header: what may differ, or is told apart in words.
_NO_DIFFERENCES = (
    *("settings", "package_version", "class_names"),
    *(HELD_OUT, "restart_chance"),
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What decides on a run: it is resumed with the same settings only.

    Attributes:
        policy: How checkpoints vote and sample weights change.
        own: What else the method was told, by name; JSON values.
        total_steps: T. None, as the next two, for a run that was put together.
        first_epoch: The epoch that training began with, from 0.
        optimizer: The name of its class.
        seed: What the order of the samples derives from.
        batch_size: None, as the next one, for a pipeline of the user's own.
        shuffle: Whether samples are shuffled, or the size of the buffer.
        backend: The backend of Keras that trains, if it is not TensorFlow.
        sharded: Whether each process has samples of its own, where that is
            not as it is by default for so many.
    """

    policy: Policy
    own: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    total_steps: int | None = None
    first_epoch: int | None = None
    optimizer: str | None = None
    seed: int | None = None
    batch_size: int | None = None
    shuffle: bool | int | None = None
    backend: str | None = None
    sharded: bool | None = None

    def to_json(self) -> Json:
        """All settings side by side; what is None is left out."""
        given = {
            name: value
            for name, value in vars(self).items()
            if name in _COMMON_SETTINGS and value is not None
        }
        marks = {
            "equal_votes": isinstance(self.policy, EqualVotes),
            "updates_from_first": isinstance(self.policy, BoostingFromFirst),
        }
        marks = {name: True for name, is_set in marks.items() if is_set}
        policy = _policy_to_json(self.policy)
        policy = {k: v for k, v in policy.items() if v is not None}
        return {**given, **policy, **marks, **self.own}

    @classmethod
    def from_json(cls, content: Any, wrong: list[str]) -> "Settings":
        """Settings from what `to_json` gave.

        Args:
            content: What JSON gave.
            wrong: Gets the names of what does not fit.
        """
        if not isinstance(content, dict):
            wrong.append("settings")
            content = {}
        policy = _policy_from_json(content)
        wrong += [
            f"settings.{name}"
            for name, value in _policy_to_json(policy).items()
            if not (fits(value, float) or name in _TRUST and value is None)
        ]
        known = {*_COMMON_SETTINGS, *_POLICY_SETTINGS}
        own = {k: v for k, v in content.items() if k not in known}
        wrong += [f"settings.{k}" for k, v in own.items() if is_nested(v)]
        return cls(
            policy=policy,
            own=own,
            **{
                name: typed(kind, content.get(name), f"settings.{name}", wrong)
                for name, kind in _COMMON_SETTINGS.items()
            },
        )


# By name, those that a method need not know of.
_COMMON_SETTINGS = {
    name: kind
    for name, kind in typing.get_type_hints(Settings).items()
    if name not in ("policy", "own")
}
# The rules of trust, by their names in the file.
_TRUST = {
    "trusted_margin": "margin",
    "trusted_ratio": "ratio",
    "trusted_class_margin": "class_margin",
}
_POLICY_SETTINGS = (
    "deviation_rate",
    "expected_error",
    *_TRUST,
    "equal_votes",
    "updates_from_first",
)


def _policy_to_json(policy: Policy) -> Json:
    """The numbers of a policy, side by side; None where it has none."""
    numbers = {k: v for k, v in vars(policy).items() if k != "trust"}
    if "trust" in vars(policy):
        rules = {k: getattr(policy.trust, v) for k, v in _TRUST.items()}
        numbers.update(rules)
    return numbers


def _policy_from_json(content: Json) -> Policy:
    if content.get("equal_votes"):
        return EqualVotes()
    rate: Any = content.get("deviation_rate")
    if content.get("updates_from_first"):
        return BoostingFromFirst(rate)
    error: Any = content.get("expected_error")
    rules = {rule: content.get(name) for name, rule in _TRUST.items()}
    return Boosting(rate, error, Trust(**rules))


@dataclasses.dataclass(frozen=True)
class Header:
    """What holds for the whole run.

    Attributes:
        method: The short name of the method, such as `"cbnn"`.
        package_version: The version of this package that began the run.
        num_classes: k.
        num_samples: n, the number of training samples.
        is_binary: Whether the model has one sigmoid output for two classes.
        from_logits: Whether the model's outputs are logits.
        num_parameters: The number of the model's parameters.
        architecture: A hash that is equal for equal architectures.
        labels: A hash of the training labels and of the first distribution.
        settings: What decides on the run.
        class_names: The names of the classes, where they are known.
    """

    method: str
    package_version: str
    num_classes: int
    num_samples: int
    is_binary: bool
    from_logits: bool
    num_parameters: int
    architecture: str
    labels: str
    settings: Settings
    class_names: list[str] | None = None

    @property
    def classifier(self) -> Classifier:
        """How the model's outputs are read."""
        return Classifier(self.num_classes, self.is_binary, self.from_logits)

    def to_json(self) -> Json:
        return {**vars(self), "settings": self.settings.to_json()}

    def differences(self, other: "Header") -> list[str]:
        """What another header says otherwise, but for version and names.

        And but for what held-out labels decide, which says nothing to anybody.
        """
        then, now = ({**vars(h), **h.settings.to_json()} for h in (self, other))
        return [
            f"{printable(name)} was {then.get(name)!r:.300} and is "
            f"{now.get(name)!r:.300}"
            for name in sorted(then.keys() | now.keys())
            if name not in _NO_DIFFERENCES and then.get(name) != now.get(name)
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round(Stage):
    """What a round leaves: when it was, and what it found.

    Attributes:
        step: The number of steps made before it.
        epoch: The epoch it fell into, from 0.
        negative_log_likelihood: The mean of -log p(label) over the training
            set, by the first distribution; None in runs of format 1 and 2.
        class_error: The share of a class that is wrong, by the first
            distribution, averaged over the classes; None in runs of earlier
            versions.
        validation_loss: The mean of -log p(label) over held-out samples, at
            the best temperature; None, and not in the file, unless the run
            restarts by it.
    """

    step: int
    epoch: int
    negative_log_likelihood: float | None = None
    class_error: float | None = None
    validation_loss: float | None = None

    def to_json(self) -> Json:
        content = {"step": self.step, "epoch": self.epoch, **vars(self)}
        if self.validation_loss is None:
            del content["validation_loss"]
        return content


@dataclasses.dataclass(frozen=True)
class State:
    """Where training would be resumed.

    Attributes:
        step: The number of steps made.
        epoch: The next epoch, from 0.
    """

    step: int
    epoch: int


@dataclasses.dataclass(frozen=True)
class EndedPhase:
    """A `fit` that is over, in a run that goes on with another.

    Attributes:
        step: The number of steps of the run when it ended.
        epoch: The epoch of the run that comes next, from 0.
        settings: What decided on it.
    """

    step: int
    epoch: int
    settings: Settings


@dataclasses.dataclass(frozen=True)
class Manifest:
    """All of a run but the contents of its files.

    Attributes:
        header: What holds for the whole run.
        rounds: What each round left, in order.
        members: The steps whose weights are kept.
        state: Where training would be resumed, or None.
        is_finished: Whether training is over.
        votes: Those that the ensemble was saved with, one for each member, or
            None for those of the rounds.
        phases: The fits that are over, of a run of several, but for the last;
            the settings of the header are those of the latest. None for a run
            of one.
        calibration: What was fitted to data after training, or None.
        files: Size and hash of every file, by its name in the directory.
    """

    header: Header
    rounds: list[Round]
    members: list[int]
    state: State | None
    is_finished: bool
    files: dict[str, Fingerprint]
    votes: list[float] | None = None
    phases: list[EndedPhase] | None = None
    calibration: CalibrationRecord | None = None

    def write(self, directory: pathlib.Path) -> None:
        """Replaces the manifest of a directory, atomically."""
        # The header's fields stand beside the others in the file.
        content = {
            **vars(self.header),
            **{k: v for k, v in vars(self).items() if k != "header"},
            "files": dict(sorted(self.files.items())),
        }
        if self.header.class_names is None:  # as before there were any
            del content["class_names"]
        if not self.phases:
            del content["phases"]
        if self.calibration is None:
            del content["calibration"]
        manifest_json.write(directory, content)

    @classmethod
    def read(cls, directory: pathlib.Path) -> "Manifest":
        """Reads the manifest of a directory, of the right types.

        Raises:
            RunError: If there is none, or if it is not valid.
        """
        content = manifest_json.read(directory)
        wrong: list[str] = []
        parsed: Manifest = typed(cls, {**content, "header": content}, "", wrong)
        # Ten are enough; whoever made the file can have chosen the names.
        names = [
            printable(name.removeprefix(".").removeprefix("header."))[:100]
            for name in wrong[:10]
        ]
        unknown = sorted(content.keys() - _KNOWN)
        if names or unknown:
            reasons = [f"{', '.join(names)} missing or of the wrong kind"]
            reasons = reasons if names else []
            if unknown:
                reasons.append(
                    f"it has {unknown[0]!r:.100}, which no manifest has"
                )
            raise RunError(
                f"{directory / manifest_json.MANIFEST} is not a valid "
                f"manifest: {'; '.join(reasons)}. Restore the file, or train "
                "again."
            )
        return parsed


_KNOWN = {
    field.name
    for part in (Header, Manifest)
    for field in dataclasses.fields(part)
} - {"header"}


# The directories of a run and how the names in them end.
SUFFIXES = {"members": ".weights.h5", "rounds": ".npy", "resume": ".npz"}


def file_name(kind: str, step: int) -> str:
    """The name of a file of a run, within its directory."""
    return f"{kind}/{step}{SUFFIXES[kind]}"
