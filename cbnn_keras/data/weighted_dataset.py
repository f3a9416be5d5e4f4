"""The dataset that `weighted` gives: batches `(x, y, weight)`."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class WeightedDataset(tf.data.Dataset):
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

    Attributes:
        validation_data: What was held out for `fit`, or None.
    """

    validation_data: Any = None

    def __init__(
        self,
        whole: tf.data.Dataset,
        make_divided: Callable[[], tf.data.Dataset],
    ) -> None:
        self._whole = whole
        self._make_divided = make_divided
        self._divided: tf.data.Dataset | None = None
        super().__init__(tf.data.experimental.to_variant(whole))

    def __iter__(self) -> Any:
        return iter(self._whole)

    def cardinality(self) -> tf.Tensor:
        return self._whole.cardinality()

    @property
    def element_spec(self) -> Any:
        return self._whole.element_spec

    # What TensorFlow calls a dataset inside, and what it is made of.

    @property
    def _variant_tensor(self) -> tf.Tensor:
        if self._divided is None:
            with tf.init_scope():  # for good, whatever graph is being made
                self._divided = self._make_divided()
        return tf.data.experimental.to_variant(self._divided)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._whole if self._divided is None else self._divided]
