"""What an export is told about a cascade, and what it writes about it."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cbnn_keras import imbalance
from cbnn_keras.calibration import Scaling
from cbnn_keras.cascades import Cascade
from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.support import arguments
from cbnn_keras.support.aliases import Json


def checked(
    cascade: Any,
    outputs: Collection[str],
    voting: str,
    priors: ArrayLike | None,
) -> Cascade | None:
    """What a user gave, as a cascade, if there is to be one.

    Args:
        cascade: `"exact"`, a confidence, a `Cascade` or None.
        outputs: Those that were chosen.
        voting: `"soft"` or `"hard"`.
        priors: What means are divided by.

    Raises:
        ValueError: If it is none of these, does not go with the outputs, or
            was chosen for other probabilities.
    """
    if cascade is None:
        if "members_used" in outputs:
            raise ValueError(
                "outputs='members_used' is for a cascade; without one all "
                "members are used. Add cascade='exact', or leave it out."
            )
        return None
    for name in ("members", "disagreement", "set"):
        if name in outputs:
            raise ValueError(
                f"outputs={name!r} needs the answers of all members, which a "
                "cascade does not compute. Leave one of the two out."
            )
    given = None if priors is None else _shares(priors)
    if isinstance(cascade, Cascade):
        found = cascade
    else:
        found = _from_value(cascade, given)
    if found.confidence is not None and voting == "hard":
        raise ValueError(
            "A cascade by confidence is for voting='soft': the first member's "
            "vote is always for one class alone. Use cascade='exact'."
        )
    if found.confidence is not None:
        _check_priors(found, given)
    return found


def _shares(priors: ArrayLike) -> tuple[float, ...]:
    checked = imbalance.checked_priors(priors, np.size(priors))
    return tuple(checked.tolist())


def _from_value(value: Any, priors: tuple[float, ...] | None) -> Cascade:
    if isinstance(value, str) and value == "exact":
        return Cascade()
    confidence = arguments.number(
        "ServingOptions",
        "cascade",
        value,
        above=0,
        below=1,
        allowed="'exact', a confidence above 0 and below 1, or what "
        "ensemble.cascade(validation_data) gives",
    )
    return Cascade(confidence=confidence, priors=priors)


def _check_priors(cascade: Cascade, priors: tuple[float, ...] | None) -> None:
    """Raises a `ValueError` unless it was chosen with these priors."""
    one, other = cascade.priors or (), priors or ()
    if len(one) != len(other) or not np.allclose(one, other):
        raise ValueError(
            "The confidence of the cascade was chosen with priors="
            f"{cascade.priors}, but the export has priors={priors}. Give the "
            "same to ensemble.cascade(...) and to the export."
        )


def fitted(
    cascade: Cascade, ensemble: CheckpointEnsemble, scaling: Scaling | None
) -> Cascade:
    """A cascade with an order of the ensemble's members.

    Args:
        cascade: What an export was told.
        ensemble: What is exported.
        scaling: What the export scales probabilities by, or None.

    Raises:
        ValueError: If it was chosen for other members, or if its confidence
            was chosen with other votes or another calibration.
    """
    steps = [record.step for record in ensemble.rounds]
    found = cascade.fitted_to(steps, ensemble.votes)
    is_chosen = cascade.order is not None and cascade.confidence is not None
    votes = tuple(ensemble.votes[found.positions(steps)].tolist())
    if is_chosen and cascade.votes not in (None, votes):
        raise ValueError(
            f"The confidence of the cascade was chosen with votes="
            f"{cascade.votes}, but the export has {votes}. Choose it anew: "
            "ensemble.cascade(validation_data)."
        )
    if is_chosen and cascade.scaling != scaling:
        raise ValueError(
            "The confidence of the cascade was chosen with scaling="
            f"{cascade.scaling!r}, but the export has scaling={scaling!r}. "
            "Calibrate first and then choose the cascade; give "
            "calibrated=False to both, or to neither."
        )
    return found


def to_metadata(cascade: Any) -> Json:
    """What an artefact says about its cascade, as JSON can hold it.

    Without one it says nothing.
    """
    if cascade is None:
        return {}
    return {
        "cascade": {
            "rule": "exact" if cascade.confidence is None else "confident",
            "order": list(cascade.order),
            "confidence": cascade.confidence,
        }
    }


def of_metadata(metadata: Mapping[str, Any]) -> Cascade | None:
    """The cascade that an artefact has, if any."""
    found = metadata.get("cascade")
    if found is None:
        return None
    priors, calibration = metadata["priors"], metadata.get("calibration")
    confidence = found["confidence"]
    if isinstance(confidence, list):
        confidence = tuple(confidence)
    return Cascade(
        order=tuple(found["order"]),
        confidence=confidence,
        priors=None if priors is None else tuple(priors),
        scaling=calibration
        and Scaling(calibration["temperature"], calibration.get("share", 0.0)),
    )
