"""What the Keras ensemble says, by another way than the exported graph."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras import cascades, metrics
from cbnn_keras.calibration import CalibrationRecord, Scaling, prediction_sets
from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.ensemble.adjusting import adjusted_arrays
from cbnn_keras.ensemble.predicting import needed_threshold
from cbnn_keras.export.options import ServingOptions


def reference(
    ensemble: CheckpointEnsemble,
    options: ServingOptions,
    calibration: CalibrationRecord | None,
    structure: Any,
    inputs: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """All outputs that a graph can have, member by member and with NumPy.

    Args:
        ensemble: What is exported, in float32.
        options: What the export was told, fitted to the ensemble.
        calibration: What the probabilities are calibrated by, or None.
        structure: The inputs in the structure that the model, or `preprocess`,
            is called with.
        inputs: One array for each input, in flat order.

    Returns:
        The outputs by name, classes by number; `columns`, the probabilities of
        all classes, also of two; `set_threshold`, if sets are an output; and
        `opinions`, shape `(num_samples, num_members, num_classes)`, the
        probabilities that members vote by. Of a cascade also `clearness`, see
        `cascades.Stages`.
    """
    received = keras.tree.pack_sequence_as(
        structure, [tf.constant(array) for array in inputs.values()]
    )
    if options.preprocess is not None:
        received = options.preprocess(received, training=False)
    members = np.stack(list(ensemble.member_probabilities(received, verbose=0)))
    is_hard = options.voting == "hard"
    voted = metrics.one_hot_votes(members) if is_hard else members
    probabilities = metrics.weighted_mean(voted, ensemble.votes)
    scaling = None if calibration is None else calibration.scaling
    opinions, probabilities = (
        adjusted_arrays(found, scaling, options.priors)
        for found in (members, probabilities)
    )
    of_cascade = {}
    if options.cascade is not None:
        of_cascade = _cascade(ensemble, options, voted, scaling)
        probabilities = of_cascade["probabilities"]
    classes = metrics.predicted_classes(probabilities)
    columns = metrics.class_columns(probabilities)
    best = np.argsort(-columns, axis=1, kind="stable")[:, : options.top_k]
    sets = {}
    if "set" in options.outputs:
        threshold = needed_threshold(calibration)
        sets["set"] = prediction_sets(probabilities, threshold)
        sets["set_threshold"] = np.array(threshold)
    return {
        **sets,
        "probabilities": probabilities,
        "class": classes,
        "columns": columns,
        "top_k_classes": best,
        "top_k_probabilities": np.take_along_axis(columns, best, axis=1),
        "members": members.transpose(1, 0, 2),
        "opinions": opinions.transpose(1, 0, 2),
        "disagreement": metrics.disagreement(opinions, ensemble.votes, classes),
        **of_cascade,
    }


def _cascade(
    ensemble: CheckpointEnsemble,
    options: ServingOptions,
    voted: np.ndarray,
    scaling: Scaling | None,
) -> dict[str, np.ndarray]:
    """What a cascade says, and how clear its decisions were."""
    cascade = options.cascade
    order = cascade.positions([record.step for record in ensemble.rounds])
    stages = cascades.stages(
        voted[order], ensemble.votes[order], options.priors, scaling
    )
    used = stages.members_used(cascade.confidence)
    return {
        "probabilities": stages.probabilities_at(used),
        "members_used": used,
        "clearness": stages.clearness(cascade.confidence),
    }
