"""The cascade of an ensemble, chosen on held-out data."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cbnn_keras import cascade_choice, cascades, metrics
from cbnn_keras.cascades import Cascade
from cbnn_keras.data.labelled import as_pair, check_same_length
from cbnn_keras.ensemble.members import Members
from cbnn_keras.ensemble.voting import checked_priors
from cbnn_keras.support import arguments
from cbnn_keras.support.console import Reporter


def choose_cascade(
    ensemble: Members,
    validation_data: Any,
    loss: float,
    *,
    standard_errors: float = 2.0,
    first: int | None = None,
    priors: ArrayLike | None = None,
    calibrated: bool = True,
    batch_size: int | None = None,
    verbose: int = 1,
) -> Cascade:
    """The order of members by likelihood, and the confidences to leave at.

    Args:
        ensemble: Whose members it is for.
        validation_data: `(x, y)` or a dataset of batches that training has not
            seen: some thousands, or nothing can be said about a tenth of a
            point.
        loss: Accuracy that may be lost: what is expected to be lost with its
            standard error, and what is lost of these samples, stay within
            (`cascade_choice.chosen_confidences`).
            If that cannot be said of any confidence, the cascade is exact.
        standard_errors: How many standard errors are added.
        first: The step of the member to ask first, such as that of a student,
            see `CheckpointEnsemble.with_student`. Defaults to None: the one
            that makes the labels most likely.
        priors: As in `predict` and in the export.
        calibrated: Likewise.
        batch_size: As in `predict`.
        verbose: 0 for no output.

    Raises:
        ValueError: If an argument is not what it should be.
    """
    loss = arguments.number(
        "cascade",
        "loss",
        loss,
        above=0,
        below=1,
        allowed="a share of the samples above 0 and below 1; to lose nothing, "
        "export with cascade='exact'",
    )
    standard_errors = arguments.number(
        "cascade",
        "standard_errors",
        standard_errors,
        at_least=0,
        allowed="a number of at least 0",
    )
    shares = checked_priors("soft", priors, ensemble.classifier)
    name = "cascade(validation_data)"
    x, y = as_pair(validation_data)
    inputs, labels = ensemble.split_labels(x, y, name)
    outputs = np.stack(
        list(ensemble.member_probabilities(inputs, batch_size, verbose))
    )
    check_same_length(name, len(labels), outputs.shape[1])
    order = cascade_choice.order_by_likelihood(
        outputs, ensemble.votes, labels, _position(ensemble, first)
    )
    scaling = None
    if calibrated and ensemble.calibration is not None:
        scaling = ensemble.calibration.scaling
    found = cascades.stages(
        outputs[order], ensemble.votes[order], shares, scaling
    )
    confidence = cascade_choice.chosen_confidences(
        found, labels, loss, standard_errors
    )
    used = found.members_used(confidence)
    lost = metrics.accuracy(found.probabilities[-1], labels) - metrics.accuracy(
        found.probabilities_at(used), labels
    )
    cascade = Cascade(
        order=tuple(ensemble.rounds[position].step for position in order),
        confidence=confidence,
        priors=None if shares is None else tuple(shares.tolist()),
        scaling=scaling,
        votes=tuple(ensemble.votes[order].tolist()),
        mean_members=float(used.mean()),
        loss=lost,
    )
    Reporter(verbose).line(f"{cascade}.")
    return cascade


def _position(ensemble: Members, step: int | None) -> int | None:
    """Where the member of a step is.

    Raises:
        ValueError: If there is none.
    """
    steps = [record.step for record in ensemble.rounds]
    if step is None:
        return None
    if step not in steps:
        raise ValueError(
            f"cascade(first={step!r}): must be the step of a member; those are "
            f"{steps}."
        )
    return steps.index(step)
