"""The loss at any point of a plane, under the sample weights of each panel."""

import dataclasses
import hashlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.analysis import hashing
from cbnn_keras.boosting import Floats
from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.metrics import SMALLEST_PROBABILITY
from cbnn_keras.models import engine
from cbnn_keras.models.batch_norm import StatisticsRecomputer
from cbnn_keras.models.classifier import Classifier
from cbnn_keras.support import arguments

_SEED = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """What the loss is computed on.

    Attributes:
        order: Positions in the training set, in one random order.
        batches: Inputs, as tensors, and class indices.
        digest: sha256 of the arrays in `batches`.
    """

    order: np.ndarray
    batches: list[tuple[Any, np.ndarray]]
    digest: bytes

    @classmethod
    def chosen(
        cls,
        ensemble: CheckpointEnsemble,
        x: Any,
        y: Any,
        batch_size: int,
        max_samples: int | None,
    ) -> "Samples":
        """A random choice of the training samples, for `loss_plane`."""
        owner = "loss_plane"
        size = arguments.integer(owner, "batch_size", batch_size)
        if max_samples is not None:
            arguments.integer(owner, "max_samples", max_samples)
        x, labels = _checked_data(ensemble, x, y)
        generator = np.random.default_rng(_SEED)
        order = generator.permutation(len(labels))[:max_samples]
        # All of nearly one size: in training mode a last batch of few samples
        # would be normalised by those few.
        pieces = np.array_split(order, -(-len(order) // size))
        arrays = keras.tree.map_structure(np.asarray, (x, labels))
        digest = hashlib.sha256()
        batches = []
        for piece in pieces:
            batch = keras.tree.map_structure(lambda a, i=piece: a[i], arrays)
            hashing.update(digest, batch)
            batches.append((engine.in_use().tensors(batch[0]), batch[1]))
        return cls(order, batches, digest.digest())

    def shares(self, distributions: Floats) -> Floats:
        """omega of the chosen samples in their order, each row's sum 1."""
        chosen = distributions[:, self.order]
        return chosen / chosen.sum(axis=1, keepdims=True)


def _checked_data(
    ensemble: CheckpointEnsemble, x: Any, y: Any
) -> tuple[Any, np.ndarray]:
    if isinstance(x, tf.data.Dataset):
        raise ValueError(
            "loss_plane takes the training data as arrays, not as a "
            "tf.data.Dataset: each sample needs its omega. Give `x, y` in the "
            "order of training."
        )
    x, labels = ensemble.split_labels(x, y)
    num_samples = ensemble.run.header.num_samples
    if len(labels) != num_samples:
        raise ValueError(
            f"There are {len(labels)} samples, but the run was trained on "
            f"{num_samples}, each with its omega: give the training data in "
            "the order of training, and `max_samples=` to use fewer of them."
        )
    if not ensemble.run.is_trained_on(labels):
        raise ValueError(
            "The labels are not those that the run was trained on, in their "
            "order, so that omega would belong to other samples: give the "
            "training data in the order of training."
        )
    return x, labels


class Losses:
    """The losses at any point of the plane, one per panel.

    Args:
        model: The model to compute them with. Its trainable variables are
            overwritten, and the statistics of BatchNorm and the states of
            random generators.
        classifier: How its outputs are read.
        samples: The samples, on the device for as long as this lives.
        distributions: omega of each panel in a row, in the order of the
            samples.
        l2: Factor of the sum of squares.
    """

    def __init__(
        self,
        model: keras.Model,
        classifier: Classifier,
        samples: Samples,
        distributions: Floats,
        l2: float,
    ) -> None:
        self._model = model
        self._batches = samples.batches
        self._labels = np.concatenate([y for _, y in samples.batches])
        self._distributions = distributions
        self._l2 = l2
        self._recompute = StatisticsRecomputer(model)
        self._classifier = classifier
        self._outputs = engine.in_use().inference(model, lambda found: found)

    def __call__(self, vector: Floats) -> Floats:
        """sum of omega_i * CE_i + l2 * |p|^2, shape `(3,)`."""
        set_parameters(self._model, vector)
        _seed_generators(self._model)
        self._recompute(x for x, _ in self._batches)
        found = self._outputs((x,) for x, _ in self._batches)
        parts = map(keras.ops.convert_to_numpy, found)
        outputs = np.concatenate([part.astype(np.float64) for part in parts])
        each = _cross_entropy(outputs, self._labels, self._classifier)
        return self._distributions @ each + self._l2 * float(vector @ vector)


def parameters(ensemble: CheckpointEnsemble, step: int) -> Floats:
    """The trainable variables of a member as one vector."""
    with ensemble.member(step) as model:
        parts = [
            keras.ops.convert_to_numpy(variable).astype(np.float64).ravel()
            for variable in model.trainable_variables
        ]
    return np.concatenate([np.zeros(0), *parts])


def set_parameters(model: keras.Model, vector: Floats) -> None:
    """Gives the trainable variables the values of a vector."""
    start = 0
    for variable in model.trainable_variables:
        end = start + int(np.prod(variable.shape))
        variable.assign(vector[start:end].reshape(variable.shape))
        start = end


def _seed_generators(model: keras.Model) -> None:
    """The same random numbers at each point, and in each session.

    Dropout before a BatchNorm layer has a part in its statistics.
    """
    weights = {id(weight) for weight in model.weights}
    others = (v for v in model.variables if id(v) not in weights)
    for number, state in enumerate(others):
        # Which integers Keras' generators hold depends on the backend.
        if "int" in state.dtype and tuple(state.shape) == (2,):
            state.assign([_SEED + number, 0])


def _cross_entropy(
    outputs: Floats, labels: np.ndarray, classifier: Classifier
) -> Floats:
    """-log p(label) of each sample, float64."""
    if classifier.is_binary:
        # Two columns, those of the classes 0 and 1.
        first = 0 * outputs if classifier.from_logits else 1 - outputs
        outputs = np.concatenate([first, outputs], axis=1)
    own = np.take_along_axis(outputs, labels[:, None], axis=1)[:, 0]
    if not classifier.from_logits:
        return np.asarray(-np.log(np.maximum(own, SMALLEST_PROBABILITY)))
    largest = outputs.max(axis=1)
    spread = np.exp(outputs - largest[:, None]).sum(axis=1)
    return np.asarray(largest + np.log(spread) - own)
