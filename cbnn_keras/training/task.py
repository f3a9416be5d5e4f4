"""What is trained on what, found out and checked when `fit` begins."""

import dataclasses
from typing import Any

import keras
import numpy as np

from cbnn_keras import metrics
from cbnn_keras.data.indexed import Samples, Track
from cbnn_keras.data.labelled import as_pair
from cbnn_keras.data.sample_weights import SampleWeights
from cbnn_keras.data.sources import as_samples
from cbnn_keras.labels import class_indices
from cbnn_keras.models import engine
from cbnn_keras.models.classifier import Classifier, describe_classifier

_DEFAULT_BATCH_SIZE = 128  # to score a pipeline whose batches are not ours
_DEFAULT_BUFFER = 10_000  # to shuffle what such a pipeline is made of


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained on what.

    Attributes:
        model: The model in training.
        classifier: How to read its outputs.
        samples: The training samples.
        labels: Class indices of the samples that this process has.
        weights: The samples' weights.
        batch_size: The size of a batch of inference.
    """

    model: keras.Model
    classifier: Classifier
    samples: Samples
    labels: np.ndarray
    weights: SampleWeights
    batch_size: int

    def all_labels(self) -> np.ndarray:
        """Class indices of all samples; of several processes all ask."""
        if self.samples.own is None:
            return self.labels
        narrow = np.min_scalar_type(self.classifier.num_classes - 1)
        labels = self.labels.astype(narrow)
        return engine.in_use().processes().gather(labels)

    def class_sums(self) -> np.ndarray:
        """What the samples of each class weigh together, before any round."""
        return metrics.sums_by_class(
            self.all_labels(),
            self.weights.first_distribution,
            self.classifier.num_classes,
        )

    @property
    def shuffle(self) -> bool | int:
        """How samples are shuffled where their order must not matter."""
        shuffle = self.weights.shuffle
        return _DEFAULT_BUFFER if shuffle is None else shuffle


def describe_task(
    model: keras.Model,
    weights: SampleWeights,
    *,
    score_data: Any,
    from_logits: bool | None,
    track: Track,
) -> Task:
    """Puts together what `fit` was given.

    Args:
        model: Compiled; built if it was not.
        weights: The sample weights of the pipeline that feeds it.
        score_data: The samples in the order of their index, where the pipeline
            is the user's own.
        from_logits: Whether the model ends in logits, or None to find out.
        track: Shows the progress of reading the labels.

    Raises:
        ValueError: If the model or the data cannot be boosted.
    """
    _check_training(model)
    samples = _find_samples(weights, score_data)
    batch_size = weights.batch_size or _DEFAULT_BATCH_SIZE
    classifier = describe_classifier(
        model, next(samples.inputs(batch_size)), from_logits
    )
    labels = class_indices(
        samples.labels(track),
        classifier.num_classes,
        is_binary=classifier.is_binary,
    )
    return Task(model, classifier, samples, labels, weights, batch_size)


def bare_optimizer(model: keras.Model) -> keras.optimizers.Optimizer:
    """Without the loss scaling of mixed precision around it."""
    optimizer = model.optimizer
    return optimizer.inner_optimizer if is_loss_scaled(model) else optimizer


def is_loss_scaled(model: keras.Model) -> bool:
    """Whether gradients are computed in float16."""
    return isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


def _check_training(model: keras.Model) -> None:
    if getattr(bare_optimizer(model), "use_ema", False):
        raise ValueError(
            "The optimizer has use_ema=True, with which "
            "Keras replaces the weights after the last step: the final "
            "model would be another than the last member. Compile the "
            "model with use_ema=False."
        )


def _find_samples(weights: SampleWeights, score_data: Any) -> Samples:
    if weights.samples is not None:
        if score_data is not None:
            raise ValueError(
                "score_data=... is for a pipeline made with "
                "`attach_index`; `weighted` knows its samples. Leave it "
                "out."
            )
        return weights.samples
    if score_data is None:
        raise ValueError(
            "A pipeline made with `attach_index` needs "
            "`score_data=(x, y)`, the same samples in the same order, to "
            "score the checkpoints."
        )
    samples = as_samples(*as_pair(score_data, "score_data"))
    if samples.num_samples != weights.num_samples:
        raise ValueError(
            f"score_data=... has {samples.num_samples} "
            f"samples, but the pipeline has {weights.num_samples}: sample "
            "i of one must be sample i of the other."
        )
    return samples
