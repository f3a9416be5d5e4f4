"""The parallel ensemble: members of several runs, averaged."""

import dataclasses
from collections.abc import Iterable

from cbnn_keras.boosting_policies import EqualVotes
from cbnn_keras.ensemble.ensemble import CheckpointEnsemble
from cbnn_keras.runs.manifest import Header, Settings
from cbnn_keras.runs.run import MemoryRun


def parallel_ensemble(
    ensembles: Iterable[CheckpointEnsemble],
) -> CheckpointEnsemble:
    """One ensemble of the members of several runs ("PE").

    For the classical one, of independently trained models:

        runs = [CheckpointEnsemble.load(f"runs/seed-{s}") for s in range(4)]
        ensemble = parallel_ensemble(run.select(num=1) for run in runs)

    Every run counts the same: the votes of its members are divided by their
    sum. Steps go on counting from run to run, so that a member's step tells the
    work that was done up to it. Members are copied into memory; `save` gives
    them a directory.

    Args:
        ensembles: Ensembles of models of one architecture, trained on the same
            samples.

    Raises:
        ValueError: If there are none, or if they do not fit together.
    """
    sources = list(ensembles)
    are_ensembles = all(isinstance(s, CheckpointEnsemble) for s in sources)
    if not sources or not are_ensembles:
        raise ValueError(
            f"parallel_ensemble({sources!r}): give the ensembles to put "
            "together, such as [CheckpointEnsemble.load(d) for d in "
            "directories]."
        )
    first = sources[0].run.header
    for number, source in enumerate(sources[1:], start=2):
        _check_same(first, source.run.header, number)
    headers = [source.run.header for source in sources]
    own = {
        "methods": [header.method for header in headers],
        "seeds": [header.settings.seed for header in headers],
    }
    header = dataclasses.replace(
        first, method="parallel", settings=Settings(EqualVotes(), own)
    )
    combined = MemoryRun(header, sources[0].run.own_distribution)
    offset = 0
    for source in sources:
        _add(combined, source, offset)
        offset += source.run.rounds[-1].step
    combined.make_last_round_final()
    if all(source.run.is_finished for source in sources):
        combined.finish()
    first_source = sources[0]
    return CheckpointEnsemble(
        combined, first_source.model, foreign=first_source.foreign
    )


def _add(combined: MemoryRun, source: CheckpointEnsemble, offset: int) -> None:
    shares = source.votes / source.votes.sum()
    for record, share in zip(source.rounds, shares, strict=True):
        moved = dataclasses.replace(
            record,
            step=record.step + offset,
            vote=float(share),
            is_final=False,
            validation_loss=None,  # of a rule that this run has not
        )
        correct = source.run.correct(record.step)
        with source.member(record.step) as model:
            combined.add_round(moved, correct, model)


def _check_same(first: Header, other: Header, number: int) -> None:
    for key, meaning in _MUST_AGREE.items():
        then, now = getattr(first, key), getattr(other, key)
        if then != now:
            raise ValueError(
                f"parallel_ensemble: ensemble {number} has {meaning} than the "
                f"first ({key}: {then!r} and {now!r}). "
                "Put together runs of one architecture on the same data."
            )


_MUST_AGREE = {
    "num_classes": "other classes",
    "is_binary": "another kind of output",
    "from_logits": "another kind of output",
    "architecture": "another architecture",
    "num_samples": "another number of training samples",
    "labels": "other training labels",
}
