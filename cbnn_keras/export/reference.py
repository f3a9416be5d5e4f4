"""What the Keras ensemble says, by another way than the exported graph."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras import imbalance, metrics
from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.export.options import ServingOptions


def reference(
    ensemble: CheckpointEnsemble,
    options: ServingOptions,
    structure: Any,
    inputs: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """All outputs that a graph can have, member by member and with NumPy.

    Args:
        ensemble: What is exported, in float32.
        options: What the export was told, fitted to the ensemble.
        structure: The inputs in the structure that the model, or `preprocess`,
            is called with.
        inputs: One array for each input, in flat order.

    Returns:
        The outputs by name, classes by number; `columns`, the probabilities of
        all classes, also of two; and `opinions`, shape `(num_samples,
        num_members, num_classes)`, the probabilities that members vote by.
    """
    received = keras.tree.pack_sequence_as(
        structure, [tf.constant(array) for array in inputs.values()]
    )
    if options.preprocess is not None:
        received = options.preprocess(received, training=False)
    members = np.stack(list(ensemble.member_probabilities(received, verbose=0)))
    is_hard = options.voting == "hard"
    probabilities = metrics.weighted_mean(
        metrics.one_hot_votes(members) if is_hard else members, ensemble.votes
    )
    opinions = members
    if options.priors is not None:
        opinions = imbalance.threshold(members, options.priors)
        probabilities = imbalance.threshold(probabilities, options.priors)
    classes = metrics.predicted_classes(probabilities)
    columns = metrics.class_columns(probabilities)
    best = np.argsort(-columns, axis=1, kind="stable")[:, : options.top_k]
    return {
        "probabilities": probabilities,
        "class": classes,
        "columns": columns,
        "top_k_classes": best,
        "top_k_probabilities": np.take_along_axis(columns, best, axis=1),
        "members": members.transpose(1, 0, 2),
        "opinions": opinions.transpose(1, 0, 2),
        "disagreement": metrics.disagreement(opinions, ensemble.votes, classes),
    }
