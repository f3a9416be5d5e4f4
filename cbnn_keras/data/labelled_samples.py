"""Samples by index together with their classes, and samples without any."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from cbnn_keras.data.conversion import numbered_as
from cbnn_keras.data.dataset_samples import DatasetSamples
from cbnn_keras.data.indexed import ArraySamples, Samples
from cbnn_keras.data.sources import read_source
from cbnn_keras.labels import class_indices
from cbnn_keras.models.classifier import Classifier

_PREDICTED_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class LabelledSamples:
    """Samples and their classes.

    Attributes:
        samples: By index.
        labels: Class indices, shape `(num_samples,)`.
        batch_size: Of the batches that they came in, or None.
    """

    samples: Samples
    labels: np.ndarray
    batch_size: int | None = None

    @classmethod
    def read(
        cls,
        x: Any,
        y: Any,
        classifier: Classifier,
        class_names: list[str] | None,
        name: str,
    ) -> "LabelledSamples":
        """Makes samples of what was given.

        Args:
            x: As in `pipelines.weighted`.
            y: Likewise.
            classifier: Says which labels fit.
            class_names: Those of training, where they are known.
            name: What messages call the data.

        Raises:
            ValueError: If it is nothing that samples can be made of, or if a
                label is no class.
        """
        if y is None and hasattr(x, "shape"):
            raise ValueError(
                f"{name}: the labels are missing. Give `x, y`, or a "
                "tf.data.Dataset of (x, y)."
            )
        source = read_source(x, y)
        labels = source.samples.labels()
        if source.samples.class_names is not None:
            # Numbered as they came; training may have known more of them.
            names = np.array(source.samples.class_names)[labels]
            labels = numbered_as(names, class_names)
        found = class_indices(
            labels, classifier.num_classes, is_binary=classifier.is_binary
        )
        return cls(source.samples, found, source.batch_size)

    @property
    def first(self) -> Any:
        """A batch of the first sample's inputs."""
        return next(self.samples.inputs(1))

    @property
    def inputs(self) -> tf.data.Dataset:
        """See `inputs_in_order`."""
        return inputs_in_order(self.samples)


def inputs_in_order(samples: Samples) -> tf.data.Dataset:
    """Batches of inputs as they are, in the order of the index, to predict."""
    batches = samples.training_batches(
        lambda: tf.zeros(2, tf.int64),
        batch_size=_PREDICTED_AT_ONCE,
        shuffle=False,
        augment=None,
        # A tuple of one: Keras would take a pair of inputs for (x, y).
        finish=lambda index, x, y: (x,),
    )
    return counted(batches, samples.num_samples, _PREDICTED_AT_ONCE)


def counted(
    batches: tf.data.Dataset, num_samples: int, batch_size: int
) -> tf.data.Dataset:
    """Batches that know how many they are: Keras warns of others."""
    number = -(-num_samples // batch_size)
    return batches.apply(tf.data.experimental.assert_cardinality(number))


def read_unlabelled(x: Any) -> Samples:
    """Samples of inputs alone: their labels mean nothing.

    Args:
        x: Arrays, or a dataset of batches of inputs.
    """
    if isinstance(x, tf.data.Dataset):
        return DatasetSamples(
            x.unbatch().map(lambda *parts: (_inputs(parts), 0))
        )
    sizes = [len(part) for part in tf.nest.flatten(x)]
    return ArraySamples(x, np.zeros(sizes[0], np.int32))


def _inputs(parts: tuple[Any, ...]) -> Any:
    """Inputs of one, which Keras knows as a tuple too."""
    return parts[0] if len(parts) == 1 else parts
