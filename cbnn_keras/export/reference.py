"""What the Keras ensemble says, by another way than the exported graph."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras import imbalance, metrics
from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.export.options import ServingOptions


class Reference:
    """The outputs of an ensemble, computed member by member with NumPy.

    Args:
        ensemble: Computes in float32.
        options: What the export was told, fitted to the ensemble.
        structure: The inputs in the structure that the model, or `preprocess`,
            is called with.
    """

    def __init__(
        self,
        ensemble: CheckpointEnsemble,
        options: ServingOptions,
        structure: Any,
    ) -> None:
        self._ensemble = ensemble
        self._options = options
        self._structure = structure

    def __call__(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs that a graph can have, classes by number.

        Args:
            inputs: One array for each input, in flat order.

        Returns:
            The outputs by name; `columns`, the probabilities of all classes,
            also of two; and `opinions`, shape `(num_samples, num_members,
            num_classes)`, the probabilities that members vote by.
        """
        votes = self._ensemble.votes
        members = self._member_probabilities(inputs)
        is_hard = self._options.voting == "hard"
        probabilities = metrics.weighted_mean(
            metrics.one_hot_votes(members) if is_hard else members, votes
        )
        opinions, priors = members, self._options.priors
        if priors is not None:
            opinions = imbalance.threshold(members, priors)
            probabilities = imbalance.threshold(probabilities, priors)
        classes = metrics.predicted_classes(probabilities)
        columns = metrics.class_columns(probabilities)
        best = np.argsort(-columns, axis=1, kind="stable")
        best = best[:, : self._options.top_k]
        return {
            "probabilities": probabilities,
            "class": classes,
            "columns": columns,
            "top_k_classes": best,
            "top_k_probabilities": np.take_along_axis(columns, best, axis=1),
            "members": members.transpose(1, 0, 2),
            "opinions": opinions.transpose(1, 0, 2),
            "disagreement": metrics.disagreement(opinions, votes, classes),
        }

    def _member_probabilities(
        self, inputs: dict[str, np.ndarray]
    ) -> np.ndarray:
        """Shape `(num_members, num_samples, ...)`."""
        received = keras.tree.pack_sequence_as(
            self._structure, [tf.constant(array) for array in inputs.values()]
        )
        if self._options.preprocess is not None:
            received = self._options.preprocess(received, training=False)
        return np.stack(
            list(self._ensemble.member_probabilities(received, verbose=0))
        )
