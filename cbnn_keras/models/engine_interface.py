"""What the package asks of the backend that Keras computes with."""

import abc
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Protocol, TypeVar

import keras
import numpy as np

from cbnn_keras.models import keras_internals
from cbnn_keras.support.processes import Alone, Processes

T = TypeVar("T")
# A batch of inputs, and whatever belongs to it.
Batch = tuple[Any, ...]
# Is called with the shape and the dtype of a variable.
CheckVariable = Callable[[tuple[int, ...], Any], None]
# For each layer, mean and variance of each of its calls.
Moments = list[keras_internals.Moments]


class Inference(Protocol):
    """Computes something of each batch, as tensors that are not waited for."""

    def __call__(
        self, batches: Iterable[Batch], num_samples: int | None = None
    ) -> list[Any]:
        """What is computed of each batch.

        Args:
            batches: `(x, *others)`, all of one size but for the last.
            num_samples: Of all batches, where it is known: it tells whether
                the last is smaller before a function is traced for the first.
        """


class Averages(abc.ABC):
    """Averages of variables, in float32, on the devices of the variables.

    One for each variable; where asked for, an average of each average follows.
    """

    @abc.abstractmethod
    def blend(self, share: float) -> None:
        """averages += share * (variables - averages), one after another."""

    @abc.abstractmethod
    def values(self) -> list[Any]:
        """The averages as tensors of the backend."""

    @abc.abstractmethod
    def restore(self, values: list[np.ndarray]) -> None:
        """Sets the averages."""


class Engine(abc.ABC):
    """What differs between the backends of Keras.

    Batches are those of `tf.data`, which is the input layer on each of them.

    Attributes:
        NAME: As `keras.backend.backend()` says it.
    """

    NAME: ClassVar[str]

    def check(self, model: keras.Model) -> None:  # noqa: B027
        """Raises a `ValueError` for a `fit` that could not be boosted."""

    def sync(self, model: keras.Model) -> None:  # noqa: B027
        """Gives the variables the values that training has come to.

        Before anything reads or sets them in the middle of an epoch.
        """

    def begin_training(self, model: keras.Model) -> None:  # noqa: B027
        """Does before the first step what would make it slower."""

    def processes(self) -> Processes:
        """The processes that train together; one that is alone by default."""
        return Alone()

    def divides_batches(self) -> bool:
        """Whether devices get parts of a batch, so that it must be whole."""
        return False

    @contextlib.contextmanager
    def alone(self, model: keras.Model) -> Iterator[None]:
        """Has the model to this process alone for a while.

        For whatever is done between steps: variables then hold values of this
        process, and everything is computed by it. All processes do it at the
        same time; an error of one is raised by all.
        """
        yield

    def repeatable(self, x: Any, batch_size: int | None) -> Any:
        """Inputs for many calls of `predict`, in the form it reads fastest.

        It gives what it gives for `x` and the batch size, which is then
        without effect if the form is a dataset.
        """
        return x

    def tensors(self, batch: T) -> T:
        """A batch of arrays or of tensors of TensorFlow, as the backend's."""
        return keras.tree.map_structure(
            lambda part: (
                part
                if keras.ops.is_tensor(part)
                else keras.ops.convert_to_tensor(host_array(part))
            ),
            batch,
        )

    @abc.abstractmethod
    def inference(
        self, model: keras.Model, head: Callable[..., Any]
    ) -> Inference:
        """Makes a function that computes `head(model(x), *others)`.

        Nothing of the model is changed but states of random generators.

        Args:
            model: Built.
            head: What is made of the outputs, of operations of Keras. Gets
                what else is in the batch behind the inputs.

        Returns:
            A function of batches; it is traced once if it knows what comes.
        """

    @abc.abstractmethod
    def training_pass(
        self,
        model: keras.Model,
        layers: list[keras.layers.BatchNormalization],
    ) -> Callable[[Any], Moments]:
        """Makes a function that gives what layers see of a batch in training.

        The model changes with it, as it does in training, but for what an
        optimizer does.
        """

    @abc.abstractmethod
    def step_gradients(
        self,
        model: keras.Model,
        optimizers: list[keras.optimizers.Optimizer],
        batch: Any,
    ) -> list[np.ndarray]:
        """What a step of training hands to optimizers, which do nothing."""

    @abc.abstractmethod
    def averages(
        self,
        model: keras.Model,
        variables: list[keras.Variable],
        *,
        of_averages: bool = False,
    ) -> Averages:
        """Averages of variables of a model, as they are now to begin with.

        Args:
            model: The model.
            variables: Of it.
            of_averages: Whether averages of the averages follow them.
        """

    @abc.abstractmethod
    def without_memory(self, build: Callable[[], T]) -> T:
        """Builds what is thrown away; its tensors have shapes and no values."""

    @contextlib.contextmanager
    def watched_variables(self, check: CheckVariable) -> Iterator[None]:
        """Tells of shape and dtype of variables before they take memory."""
        with keras_internals.watched_variables(check):
            yield

    def random_state(self) -> dict[str, np.ndarray]:
        """Generators of the backend that layers draw from, by name."""
        return {}

    def set_random_state(  # noqa: B027
        self, state: dict[str, np.ndarray]
    ) -> None:
        """Puts back what `random_state` gave."""


def host_array(part: Any) -> np.ndarray:
    """A part of a batch, of TensorFlow or of arrays, as numbers.

    Raises:
        ValueError: For what other backends have no tensors of.
    """
    array = part.numpy() if hasattr(part, "numpy") else part
    kind = getattr(getattr(array, "dtype", None), "kind", "O")
    if kind in "OSU":
        name = keras.backend.backend()
        raise ValueError(
            f"Keras' {name} backend computes with numbers, and got "
            f"{type(part).__name__} of {getattr(part, 'dtype', 'objects')}. "
            "Turn texts into numbers before `weighted` (`x = vectorize("
            "texts)`), and make sparse or ragged inputs dense; or set "
            "KERAS_BACKEND=tensorflow."
        )
    return array


@contextlib.contextmanager
def replaced(
    owners: Iterable[Any], instead: dict[str, Callable[..., Any]]
) -> Iterator[None]:
    """Has methods of objects replaced, past Keras' `__setattr__`."""
    owners = list(owners)
    for owner in owners:
        vars(owner).update(instead)
    try:
        yield
    finally:
        for owner in owners:
            for name in instead:
                del vars(owner)[name]
