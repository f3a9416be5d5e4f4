"""Training on probabilities: the loss, the step, the optimizer of a student.

Keras' own `keras.distillation.Distiller` asks the teacher in every step, for
logits, and leaves the losses of regularizers out; so it is a model of our own
that is trained here, no larger than that.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.metrics import SMALLEST_PROBABILITY
from cbnn_keras.models import engine
from cbnn_keras.models.classifier import Classifier


class _Learner(keras.Model):
    """The student in training; the user's own `compile` stays as it is.

    Args:
        student: What is trained.
        teacher: Gives probabilities of a batch as it is, or None where they
            are in the targets.
    """

    def __init__(
        self, student: keras.Model, teacher: keras.Model | None
    ) -> None:
        super().__init__(name="learner")
        self.student = student
        self.teacher = teacher
        if teacher is not None:
            teacher.trainable = False

    def call(self, x: Any, training: bool | None = None) -> Any:
        return self.student(x, training=training)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        if self.teacher is not None:
            soft = _columns(self.teacher(x, training=False))
            y = keras.ops.concatenate([y, keras.ops.cast(soft, y.dtype)], 1)
        return super().compute_loss(x, y, y_pred, sample_weight, training)


def teach(
    student: keras.Model,
    classifier: Classifier,
    batches: tf.data.Dataset,
    epoch: tf.Variable,
    optimizer: keras.optimizers.Optimizer,
    *,
    epochs: int,
    temperature: float,
    alpha: float,
    teacher: keras.Model | None = None,
    verbose: Any = 1,
) -> None:
    """Trains a student, in place.

    Args:
        student: A model that is built.
        classifier: How its outputs are read.
        batches: `(x, targets)` of an epoch; targets are the labels and what
            the teacher says, side by side, each with a column for each class,
            or the labels alone if it is asked.
        epoch: Is set to the number of each epoch.
        optimizer: One of its own.
        epochs: How many epochs there are.
        temperature: See `soft_target_loss`.
        alpha: Likewise.
        teacher: What is asked in every step; gives probabilities.
        verbose: As in `fit`.

    Raises:
        ValueError: If training diverges.
    """
    learner = _Learner(student, teacher)
    learner.compile(optimizer, soft_target_loss(classifier, temperature, alpha))
    counting = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda number, logs: epoch.assign(number)
    )
    engine.in_use().begin_training(learner)
    learner.fit(batches, epochs=epochs, callbacks=[counting], verbose=verbose)
    weights = map(np.asarray, student.get_weights())
    if not all(np.isfinite(w).all() for w in weights if w.dtype.kind == "f"):
        raise ValueError(
            "distil(): training has diverged, the student's weights are not "
            "finite. Give an optimizer with a smaller learning rate: "
            "distil(..., optimizer=keras.optimizers.Adam(1e-4))."
        )


def soft_target_loss(
    classifier: Classifier, temperature: float, alpha: float
) -> Callable[[Any, Any], Any]:
    """The loss of distillation, a sample at a time.

    alpha * CE(labels, p) + (1 - alpha) * T^2 * KL(q_T, p_T), where q is what
    the teacher says, p what the student does, CE the cross-entropy, KL the
    divergence, which is 0 where both say the same, and p_T the softmax of the
    logits of p divided by T; T^2 keeps the size of the gradients. A sample
    without a label has no first term.

    Args:
        classifier: How the student's outputs are read.
        temperature: T.
        alpha: The share of the labels.
    """

    def loss(targets: Any, outputs: Any) -> Any:
        ops, num = keras.ops, classifier.num_classes
        hard, soft = targets[:, :num], targets[:, num:]
        logits = _logits(outputs, classifier)
        taught = ops.log_softmax(_log(soft) / temperature)
        learnt = ops.log_softmax(logits / temperature)
        by_teacher = ops.sum(ops.exp(taught) * (taught - learnt), 1)
        by_label = -ops.sum(hard * ops.log_softmax(logits), 1)
        return alpha * by_label + (1 - alpha) * temperature**2 * by_teacher

    return loss


def _logits(outputs: Any, classifier: Classifier) -> Any:
    """A column for each class, in float32, whose softmax is what is said."""
    outputs = keras.ops.cast(outputs, "float32")
    if not classifier.from_logits:
        return _log(_columns(outputs))
    if classifier.is_binary:
        return keras.ops.pad(outputs, [[0, 0], [1, 0]])  # 0 for class 0
    return outputs


def _columns(probabilities: Any) -> Any:
    """`metrics.class_columns` of tensors."""
    if probabilities.shape[-1] != 1:
        return probabilities
    return keras.ops.concatenate([1 - probabilities, probabilities], 1)


def _log(probabilities: Any) -> Any:
    return keras.ops.log(keras.ops.maximum(probabilities, SMALLEST_PROBABILITY))


def fresh_optimizer(
    given: Any, student: keras.Model, num_steps: int
) -> keras.optimizers.Optimizer:
    """An optimizer of its own for the student.

    Its learning rate falls to zero along a cosine, unless it is a schedule.

    Args:
        given: A name or an optimizer, which is copied; None for the one that
            the student is compiled with, or else Adam.
        student: The model to be trained.
        num_steps: How many steps there are going to be.

    Raises:
        ValueError: If it is none, or has a learning rate of 0.
    """
    if given is None:
        given = getattr(student, "optimizer", None) or "adam"
    try:
        found = keras.optimizers.get(given)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"distil(optimizer={given!r:.100}): must be the name of an "
            "optimizer of Keras, such as 'adam', or an optimizer."
        ) from error
    found = getattr(found, "inner_optimizer", found)  # Keras scales by itself
    config = found.get_config()
    rate = config.get("learning_rate")
    if isinstance(rate, (int, float)):
        if not rate > 0:
            raise ValueError(
                "distil(): the student is to be trained with a learning rate "
                f"of {rate}, at which a schedule may have left its optimizer. "
                "Give another one: distil(..., "
                "optimizer=keras.optimizers.Adam(1e-3))."
            )
        config["learning_rate"] = keras.optimizers.schedules.CosineDecay(
            float(rate), num_steps
        )
    return type(found).from_config(config)
