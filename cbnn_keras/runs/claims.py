"""What a manifest claims, held against itself and against the files.

A manifest can be of the right types and still say what no training leaves: a
vote that its round did not earn, a member twice, more samples than there are
bits. `check_manifest` needs the manifest alone, `check_rounds` reads the bits.
"""

import math
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from cbnn_keras.auto_restarts import AUTO
from cbnn_keras.boosting import Stage
from cbnn_keras.calibration import (
    LARGEST_SHARE,
    LARGEST_TEMPERATURE,
    SMALLEST_TEMPERATURE,
)
from cbnn_keras.runs.manifest import (
    MODEL,
    OWN_DISTRIBUTION,
    Header,
    Manifest,
    Round,
    file_name,
)
from cbnn_keras.runs.manifest_json import MANIFEST
from cbnn_keras.runs.run import Run
from cbnn_keras.support.faults import RunError

_MOST_SAMPLES = 2**40
_LONGEST_HEADER = 4096  # bytes in front of an array
_LONGEST_NAME = 1000  # of a class
_RECOMPUTED = ("error", "vote", "normaliser", "bound", "exponential_loss")
_LARGEST_LOSS = 20.0  # -log of the smallest probability, 1e-7, is 16.1
_TOLERANCE = 1e-9  # other machines add and exponentiate a little differently
# Votes that an ensemble may be saved with: their sums are exact enough.
SMALLEST_VOTE, LARGEST_VOTE = 1e-9, 1e9
_PARALLEL = "parallel"  # its votes are shares, its rounds those of other runs
_MOST_PARTS = 1000  # of a run, for restarts that held-out data decide on
# In memory, while rounds are recomputed.
BYTES_PER_SAMPLE = 64


def check_manifest(manifest: Manifest, directory: pathlib.Path) -> None:
    """Raises a `RunError` if a manifest contradicts itself."""
    for reason in _contradictions(manifest):
        raise invalid(directory, reason)
    steps = [record.step for record in manifest.rounds]
    needed = [file_name("rounds", step) for step in steps]
    needed += [file_name("members", step) for step in manifest.members]
    if manifest.state is not None:
        needed.append(file_name("resume", manifest.state.step))
    for name in needed:
        if name not in manifest.files:
            raise invalid(directory, f"it has no {name}")
    for name in manifest.files.keys() - {*needed, MODEL, OWN_DISTRIBUTION}:
        raise RunError(
            f"{directory / MANIFEST} names {name!r:.100}, which is no file of "
            "this run. Do not load this run unless you know who made it."
        )
    for reason in _wrong_sizes(manifest):
        raise invalid(directory, reason)


def check_size(
    manifest: Manifest, directory: pathlib.Path, max_bytes: int
) -> None:
    """Raises a `RunError` if an ensemble of the run would take more room."""
    needed = sum(
        file.bytes
        for name, file in manifest.files.items()
        if not name.startswith("resume/")
    )
    needed = max(needed, BYTES_PER_SAMPLE * manifest.header.num_samples)
    if needed > max_bytes:
        raise RunError(
            f"{directory} needs {needed:,} bytes to be loaded, more than "
            f"max_bytes={max_bytes:,}. If you know who made this run, load it "
            f"with `max_bytes={needed}` or more."
        )


def check_rounds(run: Run, directory: pathlib.Path) -> None:
    """Recomputes every round from its bits.

    Raises:
        RunError: If a round says what its bits do not give, or if the first
            distribution is none.
    """
    own = run.own_distribution
    if own is not None and not _is_distribution(own):
        raise RunError(
            f"{directory / OWN_DISTRIBUTION} holds no distribution: its "
            "numbers are not positive, or do not sum to 1. Restore the file, "
            "or train again."
        )
    header = run.header
    if header.method == _PARALLEL or not run.rounds:
        return
    booster = run.begin_boosting()
    for record in run.rounds:
        correct = run.correct(record.step)
        # Absurd settings give NaN, which differs from everything.
        with np.errstate(all="ignore"):
            stage = booster.add(correct, is_final=record.is_final)
        for name in _differences(record, stage):
            raise invalid(
                directory,
                f"its round of step {record.step} says {name}="
                f"{getattr(record, name)!r}, and what was right and wrong in "
                f"that round gives {getattr(stage, name)!r}",
            )


def are_class_names(names: list[str], num_classes: int) -> bool:
    """Whether a manifest can hold them: different, short, and Unicode."""
    if not len(names) == len(set(names)) == num_classes:
        return False
    # Names of directories can be bytes that are no text.
    return all(
        len(name) <= _LONGEST_NAME
        and not any("\ud800" <= letter <= "\udfff" for letter in name)
        for name in names
    )


def invalid(directory: pathlib.Path, reason: str) -> RunError:
    return RunError(
        f"{directory / MANIFEST} is not a valid manifest: {reason}. Restore "
        "the file, or train again."
    )


def _contradictions(manifest: Manifest) -> Iterator[str]:
    header, rounds = manifest.header, manifest.rounds
    yield from _wrong_counts(header)
    steps = [record.step for record in rounds]
    if not _is_ascending([0, *steps]):
        yield "steps of rounds are not positive and ascending"
    for position, record in enumerate(rounds, start=1):
        if record.is_final and position < len(rounds):
            yield f"the round of step {record.step} is final, but not the last"
        if record.epoch < 0 or not -_TOLERANCE <= record.error <= 1 + 1e-6:
            yield f"epoch or error of the round of step {record.step}"
        likelihood = record.negative_log_likelihood
        if likelihood is not None and not 0 <= likelihood <= _LARGEST_LOSS:
            yield f"the likelihood of the round of step {record.step}"
        held_out = record.validation_loss
        if held_out is not None and not 0 <= held_out <= _LARGEST_LOSS:
            yield f"the held-out loss of the round of step {record.step}"
        of_classes = record.class_error
        if of_classes is not None and not 0 <= of_classes <= 1 + 1e-6:
            yield f"the class error of the round of step {record.step}"
        if (record.vote > 0) != record.is_member or record.vote < 0:
            yield (
                f"the vote of step {record.step}: those of members are "
                "positive, others 0"
            )
    taken = {record.step for record in rounds if record.is_member}
    if not _is_ascending([0, *manifest.members]):
        yield "members are not ascending, each of them once"
    for step in manifest.members:
        if step not in taken:
            yield (
                f"it has no {file_name('members', step)} or no round for it "
                "that gave a member"
            )
    yield from _wrong_votes(manifest)
    yield from _wrong_trust(manifest)
    yield from _wrong_restarts(manifest)
    yield from _wrong_phases(manifest)
    yield from _wrong_calibration(manifest)
    state = manifest.state
    if state is not None:
        if min(state.step, state.epoch) < 0 or manifest.is_finished:
            yield "state of a finished run, or with a negative number"


def _wrong_trust(manifest: Manifest) -> Iterator[str]:
    trust = manifest.header.settings.policy.trust
    if not 0 <= (trust.margin or 0) <= 1:
        yield f"trusted_margin is {trust.margin}"
    if not 0 <= (trust.class_margin or 0) <= 1:
        yield f"trusted_class_margin is {trust.class_margin}"
    if not 1 <= (trust.ratio or 1) < math.inf:
        yield f"trusted_ratio is {trust.ratio}"
    if trust.class_margin is not None:
        if any(record.class_error is None for record in manifest.rounds):
            yield "trusted_class_margin, but rounds without a class error"


def _wrong_restarts(manifest: Manifest) -> Iterator[str]:
    settings = manifest.header.settings
    restarts: Any = settings.own.get("restarts", AUTO)
    if restarts != AUTO and (type(restarts) is not int or restarts < 1):
        yield f"restarts is {restarts!r:.100}"
    if settings.own.get("restarts") != AUTO:
        return
    parts: Any = settings.own.get("restart_parts")
    if type(parts) is not int or not 2 <= parts <= _MOST_PARTS:
        yield f"restart_parts is {parts!r:.100}"
    gain = settings.own.get("restart_gain")
    if type(gain) is not float or not 0 <= gain < 1:
        yield f"restart_gain is {gain!r:.100}"
    shortest = settings.own.get("restart_shortest")
    if type(shortest) is not int or not 0 <= shortest < 2**63:
        yield f"restart_shortest is {shortest!r:.100}"
    chance = settings.own.get("restart_chance")
    if type(chance) is not float or not 0 <= chance <= _LARGEST_LOSS:
        yield f"restart_chance is {chance!r:.100}"
    total = settings.total_steps
    if total is not None and not parts <= total < 2**63:
        yield f"total_steps is {total}, with restart_parts of {parts}"


def _wrong_phases(manifest: Manifest) -> Iterator[str]:
    phases, state = manifest.phases or [], manifest.state
    if not _is_ascending([0, *(phase.step for phase in phases)]):
        yield "steps of phases are not positive and ascending"
    if not _is_ascending([0, *(phase.epoch for phase in phases)]):
        yield "epochs of phases are not positive and ascending"
    policy = manifest.header.settings.policy
    if any(phase.settings.policy != policy for phase in phases):
        yield "its phases do not vote and update alike"
    if phases and not manifest.is_finished:
        if state is None or state.step < phases[-1].step:
            yield "its state is not that of its last phase"


def _wrong_votes(manifest: Manifest) -> Iterator[str]:
    votes = manifest.votes
    if votes is None:
        return
    if len(votes) != len(manifest.members):
        yield f"{len(votes)} votes for {len(manifest.members)} members"
    if not all(SMALLEST_VOTE <= vote <= LARGEST_VOTE for vote in votes):
        yield f"votes that are not from {SMALLEST_VOTE:g} to {LARGEST_VOTE:g}"


def _wrong_calibration(manifest: Manifest) -> Iterator[str]:
    found = manifest.calibration
    if found is None:
        return
    if not manifest.is_finished:
        yield "calibration of a run that is not finished"
    low, high = 0.999 * SMALLEST_TEMPERATURE, 1.001 * LARGEST_TEMPERATURE
    if not low <= found.temperature <= high:
        yield f"the temperature of its calibration is {found.temperature}"
    if not 0 <= found.share <= LARGEST_SHARE:
        yield f"the share of its calibration is {found.share}"
    if not 1 <= found.num_samples <= _MOST_SAMPLES:
        yield f"the number of samples of its calibration, {found.num_samples}"
    is_known = set(found.members) <= set(manifest.members)
    if not (found.members and is_known and _is_ascending(found.members)):
        yield "its calibration is of other members"
    is_right = all(SMALLEST_VOTE <= v <= LARGEST_VOTE for v in found.votes)
    if len(found.votes) != len(found.members) or not is_right:
        yield "the votes of its calibration"
    coverage, threshold = found.coverage, found.threshold
    if (coverage is None) != (threshold is None):
        yield "coverage and threshold of its calibration: one without the other"
    if coverage is not None and not 0 < coverage < 1:
        yield f"the coverage of its calibration is {coverage}"
    if threshold is not None and not 0 <= threshold <= 1:
        yield f"the threshold of its calibration is {threshold}"


def _wrong_counts(header: Header) -> Iterator[str]:
    if not 2 <= header.num_classes <= 2**31 - 1:
        yield f"num_classes is {header.num_classes}"
    if header.is_binary and header.num_classes != 2:
        yield f"is_binary, but num_classes is {header.num_classes}"
    if not 1 <= header.num_samples <= _MOST_SAMPLES:
        yield f"num_samples is {header.num_samples}"
    if not 0 <= header.num_parameters <= 2**63 - 1:
        yield f"num_parameters is {header.num_parameters}"
    names = header.class_names
    if names is not None and not are_class_names(names, header.num_classes):
        yield f"class_names: not {header.num_classes} different short names"


def _wrong_sizes(manifest: Manifest) -> Iterator[str]:
    num_samples = manifest.header.num_samples
    for name, file in manifest.files.items():
        if file.bytes < 0 or not re.fullmatch("[0-9a-f]{64}", file.sha256):
            yield f"bytes or sha256 of {name}"
        expected = None
        if name.startswith("rounds/"):
            expected = -(-num_samples // 8)
        elif name == OWN_DISTRIBUTION:
            expected = 8 * num_samples
        if expected is not None:
            if not 0 <= file.bytes - expected <= _LONGEST_HEADER:
                yield (
                    f"num_samples is {num_samples}, which {name} of "
                    f"{file.bytes} bytes does not fit"
                )


def _differences(record: Round, stage: Stage) -> Iterator[str]:
    for name in _RECOMPUTED:
        said, found = getattr(record, name), getattr(stage, name)
        if not math.isclose(said, found, rel_tol=_TOLERANCE, abs_tol=1e-12):
            yield name
    for name in ("is_member", "within_budget"):
        if getattr(record, name) != getattr(stage, name):
            yield name


def _is_ascending(numbers: list[int]) -> bool:
    return all(a < b for a, b in zip(numbers, numbers[1:], strict=False))


def _is_distribution(weights: np.ndarray) -> bool:
    # NaN and infinity make the sum what it is not allowed to be.
    return bool((weights >= 0).all() and abs(weights.sum() - 1) <= 1e-6)
