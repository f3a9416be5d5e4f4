"""Keras' metrics of probabilities that an ensemble has predicted."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.metrics import SMALLEST_PROBABILITY
from cbnn_keras.models import keras_internals
from cbnn_keras.models.classifier import Classifier


class KerasMetrics:
    """Metrics that a model was compiled with, and others, of probabilities.

    Args:
        model: The model; it need not be compiled.
        extra: Other metrics of Keras, by name, as objects or as functions.
        classifier: Whether metrics were made for logits.
        labels: Gives them as the model's `evaluate` is given them. It is only
            called where there are metrics, and once.
    """

    def __init__(
        self,
        model: keras.Model,
        extra: Sequence[Any],
        classifier: Classifier,
        labels: Callable[[], Any],
    ) -> None:
        self._wanted = [*keras_internals.compiled_metrics(model), *extra]
        self._classifier = classifier
        self._labels = labels

    def values(self, probabilities: np.ndarray) -> dict[str, float]:
        """The metrics of what was predicted, one row a sample, by name.

        Raises:
            ValueError: If Keras cannot compute one of them.
        """
        if not self._wanted:
            return {}
        outputs = probabilities
        if self._classifier.from_logits:
            outputs = _as_logits(probabilities, self._classifier)
        with _states_kept(self._wanted):
            passed_on = self._passed_on(outputs.shape[1:])
            try:
                found = passed_on.evaluate(
                    outputs, self._given, verbose=0, return_dict=True
                )
            except Exception as error:  # of Keras, or of the user's metrics
                raise ValueError(
                    "evaluate(): a metric cannot be computed from labels of "
                    f"shape {self._given.shape} and probabilities of shape "
                    f"{outputs.shape}: {error}"
                ) from error
        return {k: float(value) for k, value in found.items() if k != "loss"}

    @functools.cached_property
    def _given(self) -> np.ndarray:
        return np.asarray(self._labels())

    @functools.cache  # noqa: B019  (as short-lived as what it keeps)
    def _passed_on(self, shape: tuple[int, ...]) -> keras.Model:
        """A model that passes on what it is given.

        Keras knows best what a metric's name means for labels of a kind.
        """
        # In full precision, whatever the policy of the process is.
        inputs = keras.Input(shape, dtype="float32")
        same = keras.layers.Identity(dtype="float32")
        model = keras.Model(inputs, same(inputs))
        model.compile(loss=_no_loss, metrics=self._wanted)
        return model


def labels_of(x: Any, y: Any) -> Callable[[], Any]:
    """Gives labels as they were given, of arrays or a dataset of batches.

    A function, as a dataset has to be read for them once more.
    """

    def labels() -> Any:
        if not isinstance(x, tf.data.Dataset):
            return y
        return np.concatenate([label.numpy() for _, label, *_ in x])

    return labels


def _as_logits(probabilities: np.ndarray, classifier: Classifier) -> np.ndarray:
    """Logits of which a softmax, or a sigmoid, gives the probabilities."""
    least = SMALLEST_PROBABILITY
    logits = np.log(np.clip(probabilities, least, None))
    if classifier.is_binary:
        logits -= np.log(np.clip(1 - probabilities, least, None))
    return logits


def _no_loss(labels: Any, outputs: Any) -> Any:
    return keras.ops.zeros_like(outputs[..., 0])


@contextlib.contextmanager
def _states_kept(metrics: Sequence[Any]) -> Iterator[None]:
    """Has metrics count from zero, and puts back what they had counted."""
    objects = [m for m in metrics if isinstance(m, keras.metrics.Metric)]
    variables = [variable for one in objects for variable in one.variables]
    kept = [np.array(keras.ops.convert_to_numpy(v)) for v in variables]
    for one in objects:  # Keras does not, in a model that is new
        one.reset_state()
    try:
        yield
    finally:
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)
