"""A student among the members that taught it."""

import dataclasses

import numpy as np

from cbnn_keras.boosting_policies import EqualVotes
from cbnn_keras.ensemble.members import Members
from cbnn_keras.models import copying
from cbnn_keras.runs.manifest import Settings
from cbnn_keras.runs.run import MemoryRun


def joined_run(ensemble: Members, student: Members) -> tuple[MemoryRun, int]:
    """A run in memory of the members of an ensemble and of one network.

    The student comes last, as if it had been trained after the others, with
    the mean of their votes.

    Args:
        ensemble: The members.
        student: An ensemble of one, of their architecture and classes.

    Returns:
        The run, and the step of the student in it.

    Raises:
        ValueError: If the student is none.
    """
    _check(ensemble, student)
    header = ensemble.run.header
    # Of several runs, as `parallel_ensemble` has it: no round follows from the
    # one before.
    methods = [header.method, student.run.header.method]
    header = dataclasses.replace(
        header,
        method="parallel",
        settings=Settings(EqualVotes(), {"methods": methods}),
    )
    run = MemoryRun(header, ensemble.run.own_distribution)
    for record, vote in zip(ensemble.rounds, ensemble.votes, strict=True):
        moved = dataclasses.replace(
            record, vote=float(vote), is_final=False, validation_loss=None
        )
        with ensemble.member(record.step) as model:
            run.add_round(moved, ensemble.run.correct(record.step), model)
    [own], last = student.rounds, ensemble.rounds[-1]
    record = dataclasses.replace(
        own,
        step=last.step + own.step,
        epoch=last.epoch + own.epoch + 1,
        vote=float(np.mean(ensemble.votes)),
    )
    with student.member(own.step) as model:
        run.add_round(record, student.run.correct(own.step), model)
    run.finish()
    return run, record.step


def _check(ensemble: Members, student: Members) -> None:
    if len(student) != 1:
        raise ValueError(
            "with_student(student): must be one network, such as `distil` "
            f"gives, not {len(student)} members."
        )
    own, other = (copying.architecture_id(e.model) for e in (ensemble, student))
    if own != other or student.classifier != ensemble.classifier:
        raise ValueError(
            "with_student(student): the student must have the members' "
            "architecture, as `distil` gives it by default."
        )
    num, others = (e.run.header.num_samples for e in (student, ensemble))
    if num != others:
        raise ValueError(
            f"with_student(student): the student was made from {num} samples "
            f"and the members from {others}. Distil it from the same ones; "
            "more can be given as `unlabelled`."
        )
