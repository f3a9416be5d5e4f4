"""Whether sample weights reach the loss: without that nothing is boosted.

Keras' own `train_step`, `compute_loss` and losses use them. Those of a user may
not, and nothing would say so: training, votes and bound would look as usual.
"""

import inspect
import traceback
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.models import engine
from cbnn_keras.models.classifier import compiled_loss, loss_name
from cbnn_keras.models.keras_internals import is_of_keras
from cbnn_keras.models.step_gradients import step_gradients
from cbnn_keras.training.task import Task

_NUM_SAMPLES = 8


def check_weights_are_used(owner: str, task: Task, *, is_boosted: bool) -> None:
    """Raises a `ValueError` if a user's own code ignores the sample weights.

    Gradients of a few samples are computed twice, with weights that differ and
    have the same mean: equal gradients are those of code that does not see
    them, or sees their mean alone. The model is left as it was. A model that is
    all Keras' own is not looked at. One is believed whose step fails here for
    other reasons (`fit` will say so), or draws random numbers by
    TensorFlow's global generator.

    Args:
        owner: The class of the callback, for messages.
        task: What is trained on what.
        is_boosted: Whether weights will change. If they do not, and are all
            equal, they may be ignored.
    """
    parts = _own_parts(task.model)
    batch = _few_samples(task) if parts else None
    if batch is None:
        return
    try:
        is_used = _uses_weights(task.model, *batch)
    except Exception as error:  # of the user's code
        if _is_of_unpacking(error):
            raise ValueError(
                f"{owner}: `train_step` of {type(task.model).__name__} takes "
                "batches of (x, y), but those of `weighted` are (x, y, "
                f"sample_weight). {_REMEDIES['train_step']}"
            ) from None
        return
    first = task.weights.first_distribution
    if not is_used and (is_boosted or first.min() < first.max()):
        lost = "nothing would be boosted"
        if not is_boosted:
            lost = "those that training begins with would mean nothing"
        raise ValueError(
            f"{owner}: sample weights do not reach the loss, so that {lost}: "
            f"{_described(parts, task.model)} ignores them. "
            f"{_REMEDIES[parts[0]]}"
        )


def _own_parts(model: keras.Model) -> list[str]:
    """What of the way to the loss is not Keras' own, from the outside in."""
    parts = [
        name
        for name in ("train_step", "compute_loss")
        if name in vars(model) or not is_of_keras(getattr(type(model), name))
    ]
    loss = compiled_loss(model)
    kind = loss if inspect.isfunction(loss) else type(loss)
    function = getattr(loss, "fn", kind)  # of those that wrap one
    is_own = not (is_of_keras(kind) and is_of_keras(function))
    return [*parts, "loss"] if is_own else parts


def _few_samples(task: Task) -> tuple[Any, Any] | None:
    """Some samples `(x, y)`, of different classes as far as can be seen."""
    batches = task.samples.training_batches(
        lambda: tf.constant([0, 0], tf.int64),
        batch_size=task.batch_size,
        shuffle=False,
        augment=None,
    )
    _, x, y = next(iter(batches))
    if any(isinstance(part, tf.SparseTensor) for part in tf.nest.flatten(x)):
        return None  # of which nothing can be taken
    order = _mixed_order(task.labels[: len(y)])
    return _taken((x, y), order[: _batch_size(task.model)])


def _mixed_order(labels: np.ndarray) -> np.ndarray:
    """The first sample of each class, the second of each, and so on."""
    by_class = np.argsort(labels, kind="stable")
    _, begins, sizes = np.unique(
        labels[by_class], return_index=True, return_counts=True
    )
    # How many samples of its class come before each.
    ranks = np.empty(len(labels), np.int64)
    ranks[by_class] = np.arange(len(labels)) - np.repeat(begins, sizes)
    return np.argsort(ranks, kind="stable")


def _batch_size(model: keras.Model) -> int:
    """A few, or as many as the model was built for."""
    shapes = [tensor.shape for tensor in getattr(model, "inputs", None) or []]
    fixed = [shape[0] for shape in shapes if shape and shape[0]]
    return fixed[0] if fixed else _NUM_SAMPLES


def _uses_weights(model: keras.Model, x: Any, y: Any) -> bool:
    """Whether gradients follow the weights of single samples."""
    ones = np.ones(len(y), np.float32)
    # 2, 0, 2, 0, ...; of an odd number the last one stays 1.
    weights = ones.copy()
    pairs = len(y) // 2 * 2
    weights[0:pairs:2], weights[1:pairs:2] = 2, 0
    if not _are_same(model, (x, y, weights), (x, y, 2 - weights)):
        return True
    # Are they also the same because the samples are, for this model?
    even = np.arange(len(y)) // 2 * 2
    odd = np.minimum(even + 1, len(y) - 1)
    return _are_same(model, *((*_taken((x, y), i), ones) for i in (even, odd)))


def _are_same(model: keras.Model, *batches: Any) -> bool:
    """Whether the gradients of batches are equal, to the last bit."""
    one, other = (
        step_gradients(model, engine.in_use().tensors(b)) for b in batches
    )
    return len(one) == len(other) and all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


def _taken(batch: tuple[Any, Any], index: np.ndarray) -> Any:
    return tf.nest.map_structure(lambda part: tf.gather(part, index), batch)


def _is_of_unpacking(error: Exception) -> bool:
    """Whether an error is that of `x, y = data` in a user's `train_step`."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.name == "train_step" and "values to unpack" in str(error)


def _described(parts: list[str], model: keras.Model) -> str:
    methods = [f"`{part}`" for part in parts if part != "loss"]
    if methods:
        return f"{' or '.join(methods)} of {type(model).__name__}"
    if compiled_loss(model) is None:
        return "a model that is compiled without a loss"
    return f"the loss {loss_name(model)!r}"


_REMEDIES = {
    "train_step": "Add two lines to it: `x, y, sample_weight = "
    "keras.utils.unpack_x_y_sample_weight(data)`, and `loss = "
    "self.compute_loss(x, y, y_pred, sample_weight)` or another loss that is "
    "given `sample_weight=sample_weight`.",
    "compute_loss": "Two lines make it use them: `def compute_loss(self, "
    "x=None, y=None, y_pred=None, sample_weight=None, training=True):`, and "
    "`loss = self.my_loss(y, y_pred, sample_weight=sample_weight)` for each "
    "loss in it.",
    "loss": "Compile the model with a loss that returns one value a sample "
    "and not their mean, as with `return keras.ops.mean(values, axis=-1)` in "
    "its last line; in a subclass of `keras.losses.Loss` that is `call`, and "
    "`__call__` stays Keras' own.",
}
