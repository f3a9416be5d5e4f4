"""The dataset that `weighted` gives: batches `(x, y, weight)`."""

import abc
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from cbnn_keras.models import keras_internals


class _Hinting(abc.ABCMeta):
    """Keras shows the type of what it cannot split, and nothing else."""

    def __repr__(cls) -> str:
        return (
            f"<class {cls.__name__!r}: give `validation_split` to `weighted`, "
            "not to `fit`, and its result's `validation_data` to `fit`>"
        )


class WeightedDataset(tf.data.Dataset, metaclass=_Hinting):
    """The same batches by two ways, for one device and for several.

    Iterated over, as `fit` does on one device, it takes the short way. A
    strategy takes a dataset apart without asking it for an iterator, and so
    does what is made of it, by `map` and the like: they get the long way, on
    which batches wait for their weights and are spread. That one costs 50 ms
    whenever an iterator is made, which Keras does twice an epoch, and is made
    when it is asked for.

    Args:
        whole: The short way.
        make_divided: Makes the long one.
        on_iteration: Called whenever somebody begins to iterate.
        has_owner: Whether a callback relies on the weights.

    Attributes:
        validation_data: What was held out for `fit`, or None.
        class_names: The names of the classes, where they are known.
    """

    validation_data: Any = None
    class_names: list[str] | None = None

    def __init__(
        self,
        whole: tf.data.Dataset,
        make_divided: Callable[[], tf.data.Dataset],
        on_iteration: Callable[[], None] = lambda: None,
        has_owner: Callable[[], bool] = lambda: False,
    ) -> None:
        self._whole = whole
        self._make_divided = make_divided
        self._on_iteration = on_iteration
        self._has_owner = has_owner
        self._divided: tf.data.Dataset | None = None
        super().__init__(tf.data.experimental.to_variant(whole))

    def __iter__(self) -> Any:
        self._on_iteration()
        return iter(self._whole)

    def cardinality(self) -> tf.Tensor:
        return self._whole.cardinality()

    @property
    def element_spec(self) -> Any:
        return self._whole.element_spec

    def map(self, map_func: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """As of any dataset; `(x, y, weight)` must stay what it is.

        Raises:
            ValueError: If the weights of a callback would be lost, or if it is
                `fit` that maps, for its `class_weight`.
        """
        module = getattr(map_func, "__module__", None) or ""
        if module.startswith("tensorflow."):  # a strategy takes it apart
            return super().map(map_func, *args, **more)
        if keras_internals.weighs_classes(map_func):
            raise ValueError(_CLASS_WEIGHT)
        try:
            mapped = self._whole.map(map_func, *args, **more)
        except TypeError as error:
            if "positional argument" not in str(error):
                raise
            raise ValueError(_THREE) from error
        spec = mapped.element_spec
        if not (isinstance(spec, tuple) and len(spec) == 3):
            if self._has_owner():
                raise ValueError(_THREE)
            return mapped  # of someone who wants the samples alone
        divided = super().map
        behind = WeightedDataset(
            _one_by_one(mapped),
            lambda: _one_by_one(divided(map_func, *args, **more)),
            self._on_iteration,
            self._has_owner,
        )
        behind.validation_data = self.validation_data
        behind.class_names = self.class_names
        return behind

    # What TensorFlow calls a dataset inside, and what it is made of.

    @property
    def _variant_tensor(self) -> tf.Tensor:
        if self._divided is None:
            with tf.init_scope():  # for good, whatever graph is being made
                self._divided = self._make_divided()
        return tf.data.experimental.to_variant(self._divided)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._whole if self._divided is None else self._divided]


def _one_by_one(mapped: tf.data.Dataset) -> tf.data.Dataset:
    """TensorFlow would make the map a parallel one, which reads ahead."""
    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    return mapped.with_options(options)


_CLASS_WEIGHT = (
    "`fit` was given `class_weight` beside a pipeline of `weighted`, which has "
    "weights already. Give it to `weighted(..., class_weight=...)` instead: "
    "boosting then starts from it."
)

_THREE = (
    "A pipeline of `weighted` gives `(x, y, weight)`, and boosting is lost "
    "without the weight: write `.map(lambda x, y, weight: (..., y, weight))`, "
    "or give what is to be done to samples as `augment=` to `weighted`."
)
