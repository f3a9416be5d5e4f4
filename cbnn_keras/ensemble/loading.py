"""What a run directory has to be for an ensemble: checked as it is loaded."""

import warnings
from collections.abc import Mapping
from typing import Any

import keras

from cbnn_keras.models.foreign import Foreign, RebuildError
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.run import Run
from cbnn_keras.support.faults import RunError


def warn_of_missing(run: RunDirectory) -> None:
    """Leaves members out whose files are missing or damaged, and says so."""
    reasons = run.leave_out_damaged()
    if reasons:
        warnings.warn(
            f"Members are left out of the ensemble of {run.path}, "
            f"{len(run.members)} are there: {' '.join(reasons)}",
            stacklevel=3,
        )


def warn_of_unfinished(run: RunDirectory) -> None:
    """Says that training was interrupted, or goes on."""
    warnings.warn(
        f"The run in {run.path} is not finished (rounds so far: "
        f"{len(run.rounds)}, members: {len(run.members)}). Training can be "
        "resumed with `resume=True`.",
        stacklevel=3,
    )


class ModelNeededError(RunError):
    """A run whose model cannot be built without the user's own code."""


def checked_objects(custom_objects: Any) -> Mapping[str, Any]:
    """Classes and functions by name, as a user gave them."""
    found = {} if custom_objects is None else custom_objects
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and callable(value)
        for name, value in found.items()
    ):
        raise ValueError(
            f"CheckpointEnsemble.load(custom_objects={custom_objects!r}): "
            "custom_objects must be a dict of classes and functions by name, "
            "such as {'MyLayer': MyLayer}."
        )
    return found


def load_model(run: RunDirectory, foreign: Foreign) -> keras.Model:
    """The model of a run, as the manifest says that it is."""
    if not run.has_model:
        raise ModelNeededError(
            f"{run.path} holds no architecture, because the model is "
            "subclassed. Build a model of that class, call it once on data, "
            "and pass it: CheckpointEnsemble.load(directory, model=model)."
        )
    try:
        model = run.load_model(foreign)
    except RebuildError as error:
        raise ModelNeededError(
            f"The architecture in {run.path} cannot be rebuilt here. {error} "
            "Or pass a model that you built: "
            "CheckpointEnsemble.load(directory, model=model)."
        ) from error
    if not model.built:
        raise RunError(
            f"The architecture in {run.path} has no weights, because its model "
            "was never called on data. Train again."
        )
    _check_is_described(run, model)
    return model


def _check_is_described(run: RunDirectory, model: keras.Model) -> None:
    """Compares a model with what the manifest says of it.

    Members that do not fit would be refused later, but not all that fit
    agree with what the manifest says of the classes.
    """
    classifier = run.header.classifier
    expected = 1 if classifier.is_binary else classifier.num_classes
    found = getattr(model, "output_shape", None)
    if found is not None and tuple(found)[1:] != (expected,):
        raise RunError(
            f"The architecture in {run.path} has outputs of shape {found}, but "
            f"the manifest speaks of {expected} for each sample. Restore the "
            "files, or train again."
        )
    num_parameters = run.header.num_parameters
    if model.count_params() != num_parameters:
        raise RunError(
            f"The architecture in {run.path} has {model.count_params():,} "
            f"parameters, but the manifest speaks of {num_parameters:,}. "
            "Restore the files, or train again."
        )


def voting_members(run: Run, members: str) -> list[int]:
    """The steps of the members of a run that a user asks for.

    Raises:
        ValueError: If that is neither `"trusted"` nor `"all"`.
    """
    if members not in ("trusted", "all"):
        raise ValueError(
            f"members={members!r}: must be 'trusted' or 'all'; `select` and "
            "`take` choose among them."
        )
    return run.voters if members == "trusted" else list(run.members)
