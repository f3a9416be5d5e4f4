"""What a student learns from, and how (Hinton et al. 2015).

The targets are probabilities: those of the ensemble, and the labels with a
share of their own. Where teacher and student see the samples as they are, the
teacher predicts each of them once, before training. Where views are made, by
an augmentation or MixUp, it predicts every batch, so that both see the same.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from cbnn_keras.data.indexed import Augment, Samples
from cbnn_keras.data.labelled_samples import LabelledSamples, counted
from cbnn_keras.support import arguments
from cbnn_keras.support.aliases import Keywords

_NO_LABEL = -1  # whose one-hot row is all zeros
_BYTES = tf.uint8


@dataclasses.dataclass(frozen=True)
class Lesson:
    """How a student is taught.

    Attributes:
        batch_size: Samples with labels in a step.
        seed: What order, views and blends derive from.
        epochs: Passes over the samples.
        temperature: What the logits of both are divided by, T.
        alpha: The share of the labels in the loss.
        mixup: a of Beta(a, a), which gives the shares of two samples that are
            blended; 0 for none.
        augment: `augment(x, seed)` for single samples, or None.
    """

    batch_size: int
    seed: int
    epochs: int
    temperature: float
    alpha: float
    mixup: float
    augment: Augment | None

    def __post_init__(self) -> None:
        for name, at_least in (("epochs", 1), ("batch_size", 1), ("seed", 0)):
            given = getattr(self, name)
            found = arguments.integer("distil", name, given, at_least=at_least)
            object.__setattr__(self, name, found)
        limits: dict[str, Keywords] = {
            "temperature": {"above": 0, "allowed": "a number above 0"},
            "alpha": {
                "at_least": 0,
                "below": 1,
                "allowed": "a share of at least 0 and below 1; the rest is for "
                "what the ensemble says",
            },
            "mixup": {"at_least": 0, "allowed": "a number of at least 0"},
        }
        for name, limit in limits.items():
            number = arguments.number(
                "distil", name, getattr(self, name), **limit
            )
            object.__setattr__(self, name, number)
        if self.augment is not None and not callable(self.augment):
            raise ValueError(
                f"distil(augment={self.augment!r}): must be a function "
                "`augment(x, seed)` of one sample."
            )

    @property
    def has_views(self) -> bool:
        """Whether a sample looks different in every epoch."""
        return self.augment is not None or self.mixup > 0


@dataclasses.dataclass(frozen=True)
class Material:
    """What a student learns from.

    Attributes:
        labelled: Samples with labels.
        unlabelled: Others, or None.
        soft: What the teacher says of all, the unlabelled ones last, shape
            `(num_samples, num_classes)`; None if it is asked in every step.
    """

    labelled: LabelledSamples
    unlabelled: Samples | None = None
    soft: np.ndarray | None = None

    @property
    def parts(self) -> list[Samples]:
        """All samples: with labels, then without."""
        return [s for s in (self.labelled.samples, self.unlabelled) if s]

    def num_steps(self, lesson: Lesson) -> int:
        """The steps of an epoch: one pass over what has labels."""
        return math.ceil(len(self.labelled.labels) / lesson.batch_size)

    def batches(
        self, lesson: Lesson, num_classes: int, epoch: tf.Variable
    ) -> tf.data.Dataset:
        """Batches `(x, targets)` of one epoch.

        Targets are the labels, and beside them what the teacher says where
        that is known, each with a column for each class.

        Args:
            lesson: How they are made.
            num_classes: k.
            epoch: The number of the epoch, int64, as it is when a pass starts.
        """
        targets = self._targets(num_classes)

        def stream(samples: Samples, start: int) -> tf.data.Dataset:
            return samples.training_batches(
                lambda: tf.stack([lesson.seed, epoch.read_value()]),
                batch_size=lesson.batch_size,
                shuffle=True,
                augment=lesson.augment,
                finish=lambda index, x, y: (x, targets(index + start)),
            )

        batches = stream(self.labelled.samples, 0)
        if self.unlabelled is not None:
            others = stream(self.unlabelled, len(self.labelled.labels))
            pairs = tf.data.Dataset.zip(batches, others.repeat())
            batches = pairs.map(_joined)
        if lesson.mixup:
            batches = _blended(batches, lesson, epoch)
        num, size = len(self.labelled.labels), lesson.batch_size
        return counted(batches, num, size).prefetch(tf.data.AUTOTUNE)

    def _targets(self, num_classes: int) -> Callable[[tf.Tensor], tf.Tensor]:
        labels = self.labelled.labels
        if self.unlabelled is not None:
            blank = np.full(self.unlabelled.num_samples, _NO_LABEL)
            labels = np.concatenate([labels, blank])
        with tf.device("CPU:0"):  # where the pipeline runs
            classes = tf.constant(labels, tf.int32)
            soft = None if self.soft is None else tf.constant(self.soft)

        def targets(index: tf.Tensor) -> tf.Tensor:
            hard = tf.one_hot(tf.gather(classes, index), num_classes)
            if soft is None:
                return hard
            return tf.concat([hard, tf.gather(soft, index)], 1)

        return targets


def epoch_counter() -> tf.Variable:
    """A number that a pipeline reads, and training sets."""
    with tf.device("CPU:0"):
        return tf.Variable(0, dtype=tf.int64, trainable=False)


def _joined(one: Any, other: Any) -> Any:
    """Two batches as one."""
    return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), one, other)


def _blended(
    batches: tf.data.Dataset, lesson: Lesson, epoch: tf.Variable
) -> tf.data.Dataset:
    """MixUp (Zhang et al. 2018) of each sample with one of its batch.

    A batch is in random order: from both ends on, they are random pairs. Of
    integers, such as tokens, there is nothing between two: each entry is that
    of one sample or of the other, as often as their shares say.
    """

    def blend(number: tf.Tensor, batch: tuple[Any, tf.Tensor]) -> Any:
        size = tf.shape(batch[1])[0]
        first = lesson.seed + 2**32 * epoch.read_value()
        seed = tf.stack([first, number])
        draws = tf.random.stateless_gamma([size, 2], seed, lesson.mixup)
        # With a tiny `mixup` both can be 0: then it is the sample alone.
        shares = tf.math.divide_no_nan(draws[:, 1], tf.reduce_sum(draws, 1))

        def mix(part: tf.Tensor) -> tf.Tensor:
            shape = [size] + [1] * (part.shape.rank - 1)
            share = tf.reshape(shares, shape)
            other = tf.reverse(part, [0])
            if not _has_values_between(part.dtype):
                chance = tf.random.stateless_uniform(tf.shape(part), seed)
                return tf.where(chance < share, other, part)
            if part.dtype.is_floating:
                return part + tf.cast(share, part.dtype) * (other - part)
            values, others = (tf.cast(p, tf.float32) for p in (part, other))
            return tf.cast(tf.round(values + share * (others - values)), _BYTES)

        return tf.nest.map_structure(mix, batch)

    return batches.enumerate().map(blend)


def _has_values_between(dtype: tf.DType) -> bool:
    """Whether the mean of two values means something: bytes are pixels."""
    return dtype.is_floating or dtype == _BYTES


def usual_mixup(inputs: Any) -> float:
    """What `mixup` is where nobody says: 1, or 0 for texts.

    Args:
        inputs: A batch.
    """
    is_text = [p.dtype == tf.string for p in tf.nest.flatten(inputs)]
    return 0.0 if any(is_text) else 1.0


def check_can_be_blended(inputs: Any) -> None:
    """Raises a `ValueError` for inputs that cannot be blended.

    Args:
        inputs: A batch.
    """
    for part in tf.nest.flatten(inputs):
        if part.dtype == tf.string:
            raise ValueError(
                "distil(mixup=...): inputs that are texts cannot be blended. "
                "Leave `mixup` out, or give what `TextVectorization` makes of "
                "them."
            )
