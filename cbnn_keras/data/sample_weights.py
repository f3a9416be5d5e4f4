"""The weights of the training samples, and the pipeline that reads them.

`weighted` makes the `tf.data.Dataset` that `model.fit` is given. Each batch
looks its weights up when it leaves the pipeline, after the last prefetch, so
that an update is seen by the very next batch. The update itself is arithmetic
of `boosting.py`; when it happens is the callback's business.
"""

import gc
import operator
import random
import weakref
from typing import Any

import numpy as np
import tensorflow as tf

from cbnn_keras.data.gate import Gate
from cbnn_keras.data.indexed import (
    ArrayExamples,
    Augment,
    DatasetExamples,
    Examples,
    check_augment,
)
from cbnn_keras.models import replicas


class SampleWeights:
    """One weight a sample, as a `tf.Variable` that pipelines look up.

    Attributes:
        variable: n * omega, float32, shape `(num_samples,)`: mean 1, because
            Keras divides a batch's loss by its size and not by its weights.
        distribution: omega, float64, sums to 1.
        base: The omega that training starts with.
        examples: The samples, or None for a pipeline of the user's own.
        settings: What decides on the batches: `batch_size`, `shuffle`, `seed`.
        num_batches: Of a pass, or None for a pipeline of the user's own.
        gate: Where batches wait for their weights under a strategy.
        can_be_divided: Whether a strategy can have the samples.
    """

    variable: tf.Variable
    gate: Gate

    def __init__(
        self,
        num_samples: int,
        *,
        sample_weight: Any = None,
        examples: Examples | None = None,
        seed: int | None = None,
    ) -> None:
        self.num_samples = num_samples
        self.base = _base_distribution(sample_weight, num_samples)
        self.distribution = self.base
        self.examples = examples
        self.num_batches: int | None = None
        self.can_be_divided = True
        self.has_own_seed = seed is not None
        # Python's generator, as Keras does: `keras.utils.set_random_seed`
        # seeds it.
        seed = random.randrange(2**31) if seed is None else seed
        self.settings: dict[str, Any] = {"seed": seed}
        self._owner: weakref.ref[object] | None = None
        replicas.outside_strategies(self._make_variables)

    def _make_variables(self) -> None:
        self.variable = tf.Variable(
            self._mean_one(), trainable=False, name="sample_weights"
        )
        # (seed, pass): what the order of a pass derives from. A pass takes its
        # number when it starts and leaves the next one behind, so that orders
        # differ even where no callback counts the epochs.
        self._stream = tf.Variable([self.settings["seed"], 0], dtype=tf.int64)
        self._num_lookups = tf.Variable(0, dtype=tf.int64)
        self._num_replicas = tf.Variable(0)
        self._is_averaged = tf.Variable(True)
        self.gate = Gate()

    @property
    def owner(self) -> object | None:
        return None if self._owner is None else self._owner()

    @owner.setter
    def owner(self, owner: object) -> None:
        self._owner = weakref.ref(owner)

    @property
    def is_orphaned(self) -> bool:
        """Whether it had an owner that is gone."""
        return self._owner is not None and self._owner() is None

    @property
    def num_lookups(self) -> int:
        """How many batches have looked their weights up."""
        return int(self._num_lookups)

    def assign(self, distribution: np.ndarray) -> None:
        """Sets omega; the next batch sees it."""
        self.distribution = distribution
        self.variable.assign(self._mean_one())

    def set_seed(self, seed: int) -> None:
        self.settings["seed"] = seed
        self._stream.scatter_nd_update([[0]], [seed])

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass the one that belongs to this epoch."""
        self._stream.scatter_nd_update([[1]], [epoch])

    def set_replicas(self, num_replicas: int, *, is_averaged: bool) -> None:
        """Says how a strategy will divide batches; 0 is without a strategy.

        Batches then wait at the gate and are spread: see `replicas.spread`.
        """
        self._num_replicas.assign(num_replicas)
        self._is_averaged.assign(is_averaged)

    def look_up(self, index: tf.Tensor) -> tf.Tensor:
        """Weights of a batch, float32, from the indices of its samples."""
        self._num_lookups.assign_add(1)
        return tf.gather(self.variable, index)

    def attach_index(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """`(x, y)` examples -> `(index, x, y)`; see `CBNNCallback`."""
        indexed = dataset.enumerate().map(lambda index, xy: (index, *xy))
        # Options hold for the whole pipeline that grows out of this.
        indexed = indexed.with_options(_without_injected_prefetch())
        _live[indexed] = self
        return indexed

    def training_dataset(
        self, *, batch_size: int, shuffle: bool | int, augment: Augment | None
    ) -> tf.data.Dataset:
        """Batches `(x, y, weight)`, shuffled anew every pass."""
        if self.examples is None:
            raise ValueError("SampleWeights: there are no examples to batch.")
        self.settings |= {"batch_size": batch_size, "shuffle": shuffle}
        batches = self.examples.training_batches(
            self._next_key,
            batch_size=batch_size,
            shuffle=shuffle,
            augment=augment,
        ).prefetch(tf.data.AUTOTUNE)
        self.num_batches = -(-self.num_samples // batch_size)
        dataset = (
            tf.data.Dataset.zip(batches, self.gate.tickets(self.num_batches))
            .map(self._weigh)
            .apply(tf.data.experimental.assert_cardinality(self.num_batches))
        )
        options = _without_injected_prefetch()
        options.deterministic = True
        # There is nothing to share out among machines; TensorFlow would warn.
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.OFF
        )
        dataset = dataset.with_options(options)
        _live[dataset] = self
        return dataset

    def _weigh(
        self, batch: tuple[tf.Tensor, Any, tf.Tensor], ticket: tf.Tensor
    ) -> tuple[Any, tf.Tensor, tf.Tensor]:
        index, x, y = batch

        def divided() -> tuple[Any, tf.Tensor, tf.Tensor]:
            with tf.control_dependencies([self.gate.wait(ticket)]):
                weight = self.look_up(index)
            return replicas.spread(
                x,
                y,
                weight,
                num_replicas=self._num_replicas,
                is_averaged=self._is_averaged,
            )

        def whole() -> tuple[Any, tf.Tensor, tf.Tensor]:
            return x, y, self.look_up(index)

        self.can_be_divided = replicas.can_spread(x)
        if not self.can_be_divided:
            return whole()
        return tf.cond(self._num_replicas > 0, divided, whole)

    def _next_key(self) -> tf.Tensor:
        key = self._stream.read_value()
        with tf.control_dependencies([key]):
            self._stream.assign_add([0, 1])
        return key

    def _mean_one(self) -> np.ndarray:
        return (self.num_samples * self.distribution).astype(np.float32)


def _without_injected_prefetch() -> tf.data.Options:
    """TensorFlow would add a prefetch after the lookup: stale weights."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return options


# The pipelines in use: an entry lives as long as its dataset does.
_live: "weakref.WeakKeyDictionary[tf.data.Dataset, SampleWeights]"
_live = weakref.WeakKeyDictionary()


def sample_weights_of(dataset: tf.data.Dataset) -> SampleWeights:
    """The weights that a pipeline made here looks up."""
    return _live[dataset]


def live_sample_weights(owner: object | None) -> list[SampleWeights]:
    """The weights that live pipelines look up, by who holds them.

    Args:
        owner: The callback that made the pipelines, or None for those that
            belong to nobody (any more).
    """
    return list({id(w): w for w in _live.values() if w.owner is owner}.values())


def _candidates(owner: object) -> list[list[SampleWeights]]:
    unowned = live_sample_weights(None)
    return [
        live_sample_weights(owner),
        [weights for weights in unowned if not weights.is_orphaned],
        [weights for weights in unowned if weights.is_orphaned],
    ]


EXPLICIT_FORM = (
    "Write: cbnn = CBNNCallback(...); train = cbnn.weighted(x, y, "
    "batch_size=128); model.fit(train, epochs=..., callbacks=[cbnn])."
)


def claim_sample_weights(owner: object) -> SampleWeights:
    """Finds the one pipeline that a callback can mean, and makes it its own.

    That is the callback's own if it has one, or else the one that never had an
    owner, or else the one whose owner is gone.

    Raises:
        ValueError: If there is none, or more than one.
    """
    groups = _candidates(owner)
    if any(len(found) > 1 for found in groups):
        gc.collect()  # datasets that are dead but not yet gone
        groups = _candidates(owner)
    for found in groups:
        if len(found) > 1:
            raise ValueError(
                f"There are {len(found)} pipelines made by "
                "`weighted`, and any could be meant. Use one callback for "
                "each, or `del` what is no longer needed. " + EXPLICIT_FORM
            )
        if found:
            found[0].owner = owner
            return found[0]
    raise ValueError(
        "`fit` was given no pipeline made by `weighted`, or one "
        "that belongs to another callback; plain arrays carry no weights that "
        "a callback could change. " + EXPLICIT_FORM
    )


def weighted(
    x: Any,
    y: Any = None,
    *,
    batch_size: int = 32,
    sample_weight: Any = None,
    shuffle: bool | int = True,
    augment: Augment | None = None,
    seed: int | None = None,
    num_samples: int | None = None,
) -> tf.data.Dataset:
    """Training data whose sample weights a `CBNNCallback` can change.

    Give the result to `model.fit` together with a callback. The order of an
    epoch derives from `(seed, epoch)` alone and the seed of an augmentation
    from `(seed, epoch, index)`, so that a run that is resumed sees exactly the
    batches of one that was never interrupted.

    Do not `cache()` or `prefetch()` the result: that freezes weights or makes
    them old, and is refused. Under `tf.distribute.MirroredStrategy`, which
    prefetches by itself, batches wait for their weights. MixUp and CutMix blend
    two samples, and so must their weights: see `CBNNCallback.attach_index`.

    Args:
        x: Inputs: arrays, tensors or data frames in any structure that Keras
            accepts; or a `tf.data.Dataset` of single examples `(x, y)` that
            always come in the same order.
        y: Labels: integers `(n,)` or `(n, 1)`, or one-hot `(n, k)`. Left out
            with a dataset.
        batch_size: Samples per batch, on all devices together. Defaults to 32.
        sample_weight: Weights to start from instead of 1/n, shape `(n,)`. Only
            their ratios count: they are scaled to mean 1.
        shuffle: True (all samples), False, or the size of the buffer for a
            dataset that does not fit into memory. Defaults to True.
        augment: `augment(x, seed)`, applied to one sample at a time, with a
            seed of shape `(2,)` for the `stateless` functions of TensorFlow.
            Scoring sees the samples without it.
        seed: Integer. Defaults to one drawn from Python's generator, which
            `keras.utils.set_random_seed` seeds.
        num_samples: The number of examples, for a dataset that does not know.

    Returns:
        A `tf.data.Dataset` of batches `(x, y, weight)`.

    Raises:
        ValueError: If the data or an argument is not one of these.

    Example:

    >>> train = weighted(np.zeros((5, 3)), np.arange(5), batch_size=2)
    >>> [weight.numpy().tolist() for _, _, weight in train]
    [[1.0, 1.0], [1.0, 1.0], [1.0]]
    """
    size = _plain_integer(batch_size)
    if size is None or size < 1:
        raise ValueError(
            f"weighted(batch_size={batch_size!r}): an integer of at least 1."
        )
    is_flag = isinstance(shuffle, (bool, np.bool_))
    buffer = bool(shuffle) if is_flag else _plain_integer(shuffle)
    if buffer is None or buffer < 0:
        raise ValueError(
            f"weighted(shuffle={shuffle!r}): True, False or the size of the "
            "shuffle buffer."
        )
    if seed is not None and _plain_integer(seed) is None:
        raise ValueError(f"weighted(seed={seed!r}): an integer.")
    check_augment(augment)
    examples = as_examples(x, y, num_samples)
    _check_divisible(min(size, examples.num_samples))
    weights = SampleWeights(
        examples.num_samples,
        sample_weight=sample_weight,
        examples=examples,
        seed=_plain_integer(seed),
    )
    return weights.training_dataset(
        batch_size=size, shuffle=buffer, augment=augment
    )


def as_examples(x: Any, y: Any, num_samples: int | None = None) -> Examples:
    """Arrays `x, y` or a dataset `x` of `(x, y)` -> `Examples`."""
    if isinstance(x, tf.data.Dataset):
        if y is not None:
            raise ValueError(
                "weighted(dataset, y): a dataset brings its own labels; leave "
                "`y` out."
            )
        return DatasetExamples(x, num_samples)
    if y is None:
        raise ValueError(
            "weighted(x): the labels are missing. Call `weighted(x, y)` with "
            "arrays, or `weighted(dataset)` with a `tf.data.Dataset` of "
            f"`(x, y)`; received {type(x).__name__}."
        )
    if num_samples is not None:
        raise ValueError(
            "weighted(num_samples=...) is for datasets; arrays know their "
            "length."
        )
    return ArrayExamples(x, y)


def _check_divisible(batch_size: int) -> None:
    """Keras takes a first batch apart before any callback is asked."""
    num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if batch_size % num_replicas:
        raise ValueError(
            f"weighted(batch_size=...): a first batch of {batch_size} samples "
            f"cannot be divided equally among {num_replicas} devices, which "
            "Keras needs under a strategy. Choose a multiple of "
            f"{num_replicas} of at most the number of samples."
        )


def _plain_integer(value: Any) -> int | None:
    """Python's own int, which a manifest can hold; None if it is none."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def _base_distribution(sample_weight: Any, num_samples: int) -> np.ndarray:
    if sample_weight is None:
        return np.full(num_samples, 1 / num_samples)
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (num_samples,):
        raise ValueError(
            f"weighted(sample_weight=...) has shape {weights.shape}, but there "
            f"are {num_samples} samples: give one weight a sample, shape "
            f"({num_samples},)."
        )
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            "weighted(sample_weight=...) must be finite and not negative; "
            f"sample {first} has {weights[first]}, and {int(wrong.sum())} of "
            f"{num_samples} are wrong."
        )
    if not weights.any():
        raise ValueError(
            "weighted(sample_weight=...) is zero for every sample: at least "
            "one must be positive."
        )
    return np.asarray(weights / weights.sum())
