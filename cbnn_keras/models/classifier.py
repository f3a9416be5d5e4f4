"""What a Keras model says about the classes: outputs and logits."""

import dataclasses
from typing import Any

import keras
import numpy as np

from cbnn_keras.models import engine, keras_internals
from cbnn_keras.models.state import generators_kept


@dataclasses.dataclass(frozen=True)
class Classifier:
    """How to read the outputs of a model.

    Attributes:
        num_classes: k.
        is_binary: One sigmoid output for two classes.
        from_logits: Whether the outputs are logits and not probabilities.
    """

    num_classes: int
    is_binary: bool
    from_logits: bool

    def predict(
        self, model: keras.Model, x: Any, batch_size: int | None = None
    ) -> np.ndarray:
        """Probabilities of a model, float32, in the shape of its outputs.

        Its random generators are left as they were.
        """
        with generators_kept(model):
            outputs = model.predict(x, batch_size=batch_size, verbose=0)
        values = np.asarray(outputs).astype(np.float32)
        if not self.from_logits:
            return values
        activation = keras.ops.sigmoid if self.is_binary else keras.ops.softmax
        return keras.ops.convert_to_numpy(activation(values))


def describe_classifier(
    model: keras.Model, inputs: Any, from_logits: bool | None = None
) -> Classifier:
    """Reads off a compiled model what its outputs mean.

    Args:
        model: A compiled classifier; it is built if it was not.
        inputs: A batch of x.
        from_logits: What the user said, or None to read the compiled loss and
            the last activation.

    Raises:
        ValueError: If the model is not a classifier with one output, or if
            nothing tells whether the outputs are logits.
    """
    outputs = model(engine.in_use().tensors(inputs), training=False)
    if keras.tree.is_nested(outputs) and len(keras.tree.flatten(outputs)) > 1:
        raise ValueError(
            "An ensemble has one classification output; the model has "
            f"{len(keras.tree.flatten(outputs))}. Train `keras.Model(inputs, "
            "the_one_output)` instead."
        )
    if keras.tree.is_nested(outputs) or len(outputs.shape) != 2:
        found = (
            "a structure" if keras.tree.is_nested(outputs) else outputs.shape
        )
        raise ValueError(
            "The callback needs a model whose output is one row of class "
            f"scores a sample, shape (batch, k); the output is {found}."
        )
    num_outputs = int(outputs.shape[-1])
    is_binary = num_outputs == 1
    is_regression = (
        is_binary
        and loss_name(model) in _REGRESSION_LOSSES
        and _last_activation(model) != "sigmoid"
    )
    if is_regression:
        raise ValueError(
            f"The model is compiled with {loss_name(model)!r} "
            "and has one output, which is regression. CBNN is for "
            "classification: compile a binary classifier with "
            "'binary_crossentropy'."
        )
    if from_logits is None:
        from_logits = _read_from_logits(model)
    return Classifier(max(num_outputs, 2), is_binary, from_logits)


def averages_loss(model: keras.Model) -> bool:
    """Whether the compiled loss is a mean over the samples of a batch."""
    reduction = getattr(compiled_loss(model), "reduction", "mean")
    return reduction not in ("sum", "none", None)


_REGRESSION_LOSSES = {
    "mean_squared_error",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_squared_logarithmic_error",
    "log_cosh",
    "huber",
    "poisson",
}


def _read_from_logits(model: keras.Model) -> bool:
    by_loss = getattr(compiled_loss(model), "from_logits", None)
    if by_loss is None and _is_keras_crossentropy(model):
        by_loss = False  # the functions' default, as with loss="..." strings
    by_activation = _LOGITS_BY_ACTIVATION.get(_last_activation(model))
    if by_loss is None and by_activation is None:
        raise ValueError(
            "One cannot tell whether the model ends in logits or in "
            f"probabilities: neither its loss ({loss_name(model)!r}) nor its "
            "last layer says so. Pass `from_logits=True` or "
            "`from_logits=False`."
        )
    if None not in (by_loss, by_activation) and by_loss != by_activation:
        raise ValueError(
            "The loss is computed with "
            f"from_logits={by_loss}, but the last activation is "
            f"{_last_activation(model)!r}. One of them is probably a mistake; "
            "if not, pass `from_logits=`."
        )
    return bool(by_activation if by_loss is None else by_loss)


_LOGITS_BY_ACTIVATION: dict[str | None, bool] = {
    "linear": True,
    "softmax": False,
    "sigmoid": False,
}


def compiled_loss(model: keras.Model) -> Any:
    """The one loss that a model is compiled with, or None."""
    loss = getattr(model, "loss", None)
    while isinstance(loss, (list, tuple, dict)) and len(loss) == 1:
        loss = next(iter(loss.values() if isinstance(loss, dict) else loss))
    return keras.losses.get(loss) if isinstance(loss, str) else loss


def loss_name(model: keras.Model) -> str:
    """What the function or class of the compiled loss is called."""
    loss = compiled_loss(model)
    function = getattr(loss, "fn", loss)  # of Keras' loss objects
    return getattr(function, "__name__", type(loss).__name__)


def _is_keras_crossentropy(model: keras.Model) -> bool:
    loss = compiled_loss(model)
    module = getattr(loss, "__module__", "") or ""
    return module.startswith("keras.") and "crossentropy" in loss_name(model)


def _last_activation(model: keras.Model, output: int = 0) -> str | None:
    """Name of the activation that makes an output, or None if unknown."""
    position = 0  # among the outputs of the layer
    if isinstance(model, keras.Sequential):
        layer = model.layers[-1] if model.layers else None
    elif getattr(model, "outputs", None):
        layer, position = keras_internals.producer(model.outputs[output])
    else:
        return None  # subclassed: what it calls last cannot be seen
    if isinstance(layer, keras.Model):
        return _last_activation(layer, position)
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    return getattr(getattr(layer, "activation", None), "__name__", None)
