"""The weights of the training samples, and the batches that look them up.

Each batch looks its weights up when it leaves the pipeline, after the last
prefetch, so that an update is seen by the very next batch. The update itself is
arithmetic of `boosting.py`; when it happens is the callback's business. What
users call, and which callback a pipeline belongs to, is in `pipelines.py`.
"""

import functools
import random
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from cbnn_keras.data import sharding
from cbnn_keras.data.gate import Gate
from cbnn_keras.data.indexed import Augment, Samples
from cbnn_keras.data.weight_table import (
    DenseTable,
    GroupedTable,
    weight_table,
)
from cbnn_keras.data.weighted_dataset import WeightedDataset
from cbnn_keras.models import replicas
from cbnn_keras.patterns import GroupedWeights, uniform


class _Variables(NamedTuple):
    """What batches read while they are on their way, on the host.

    Attributes:
        table: n * omega of each sample.
        stream: (seed, pass): what the order of a pass derives from. A pass
            takes its number when it starts and leaves the next one behind, so
            that orders differ even where no callback counts the epochs.
        num_lookups: How many batches have looked their weights up.
        num_replicas: How many pieces a strategy makes of a batch; 0 is none.
        is_averaged: Whether the loss of a piece is a mean.
        gate: Where batches wait for their weights under a strategy.
    """

    table: DenseTable | GroupedTable
    stream: tf.Variable
    num_lookups: tf.Variable
    num_replicas: tf.Variable
    is_averaged: tf.Variable
    gate: Gate


class SampleWeights:
    """One weight per sample, as a `tf.Variable` that pipelines look up.

    Args:
        num_samples: n.
        sample_weight: The weights to start from, shape `(n,)`, or None.
        samples: The samples, or None for a pipeline of the user's own.
        seed: Drawn if it is None.
        batch_size: The size of a batch, for a pipeline that is made here.
        shuffle: Whether to shuffle, or the size of the buffer, likewise.
        class_names: The names of the classes, where they are known.
        file_seed: What files were shuffled by before: see `sources.Source`.
        part: Which part of a batch this process takes, or None for all.
        sharded: See `sources.Source`.

    Attributes:
        first_distribution: The omega that training starts with.
        own: The samples that this process has, or None if it has all.
        has_own_seed: Whether the seed was given and not drawn.
        num_batches: The batches of a pass; None for a pipeline of the user's.
        can_be_divided: Whether a strategy can have the samples.
        gate: Where batches wait for their weights under a strategy.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        sample_weight: Any = None,
        samples: Samples | None = None,
        seed: int | None = None,
        batch_size: int | None = None,
        shuffle: bool | int | None = None,
        class_names: list[str] | None = None,
        file_seed: int | None = None,
        part: sharding.Part | None = None,
        sharded: bool | None = None,
    ) -> None:
        self.num_samples = num_samples
        self.part = part
        self.sharded = sharded
        self.class_names = class_names
        self.file_seed = file_seed
        self.first_distribution = _distribution(sample_weight, num_samples)
        self.samples = samples
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.own = None if samples is None else samples.own
        self.num_batches = batch_size and -(-num_samples // batch_size)
        self.can_be_divided = True
        self.has_own_seed = seed is not None
        # Python's generator, as Keras does: `keras.utils.set_random_seed`
        # seeds it.
        self.seed = random.randrange(2**31) if seed is None else seed
        self._owner: weakref.ref[object] | None = None
        self._variables = replicas.outside_strategies(self._make_variables)
        self.gate = self._variables.gate

    def _make_variables(self) -> _Variables:
        with tf.device("CPU:0"):
            return _Variables(
                table=weight_table(self.first_distribution, self.own),
                stream=tf.Variable([self.seed, 0], dtype=tf.int64),
                num_lookups=tf.Variable(0, dtype=tf.int64),
                num_replicas=tf.Variable(0),
                is_averaged=tf.Variable(True),
                gate=Gate(),
            )

    @property
    def variable(self) -> tf.Variable:
        """n * omega, float32, of all samples that this process has.

        Mean 1 over all, because Keras divides the loss of a batch by its size
        and not by its weights. For very many samples, and for its own
        alone, it is a copy: see `GroupedTable`.
        """
        return self._variables.table.variable

    @property
    def distribution(self) -> np.ndarray:
        """omega, float64; that of all samples sums to 1."""
        return self._variables.table.distribution

    @property
    def owner(self) -> object | None:
        """The callback that holds the pipeline, if there is one."""
        return None if self._owner is None else self._owner()

    @owner.setter
    def owner(self, owner: object) -> None:
        self._owner = weakref.ref(owner)

    @property
    def has_had_owner(self) -> bool:
        """Whether a callback holds it, or did while it lived."""
        return self._owner is not None

    @property
    def is_orphaned(self) -> bool:
        """Whether it had an owner that is gone."""
        return self._owner is not None and self._owner() is None

    @property
    def num_lookups(self) -> int:
        """How many batches have looked their weights up."""
        return int(self._variables.num_lookups)

    def assign(self, weights: np.ndarray | GroupedWeights) -> None:
        """Sets omega; the next batch sees it.

        Args:
            weights: As a `Booster` of these samples has them.
        """
        table: Any = self._variables.table  # made for the same kind
        table.assign(weights)

    def set_seed(self, seed: int) -> None:
        """Sets what the order of the samples derives from."""
        self.seed = seed
        self._variables.stream.scatter_nd_update([[0]], [seed])

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass the one that belongs to this epoch."""
        self._variables.stream.scatter_nd_update([[1]], [epoch])

    def set_replicas(self, num_replicas: int, *, is_averaged: bool) -> None:
        """Says how a strategy will divide batches; 0 is without a strategy.

        Batches then wait at the gate and are spread: see `sharding.spread`.
        """
        self._variables.num_replicas.assign(num_replicas)
        self._variables.is_averaged.assign(is_averaged)

    def look_up(self, index: tf.Tensor) -> tf.Tensor:
        """Weights of a batch, float32, from the indices of its samples."""
        self._variables.num_lookups.assign_add(1)
        return self._variables.table.look_up(index)

    def indexed(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Samples `(x, y)` as `(index, x, y)`, for a user's own pipeline."""
        indexed = dataset.enumerate().map(lambda index, xy: (index, *xy))
        # Options hold for the whole pipeline that grows out of this.
        return indexed.with_options(_without_injected_prefetch())

    def training_dataset(
        self,
        augment: Augment | None,
        on_iteration: Callable[[], None] = lambda: None,
    ) -> WeightedDataset:
        """Batches `(x, y, weight)`, shuffled anew every pass.

        Args:
            augment: `augment(x, seed)` for single samples, or None.
            on_iteration: Called whenever somebody begins to iterate.
        """
        if not (self.samples and self.batch_size and self.num_batches):
            raise ValueError("SampleWeights: there are no samples to batch.")
        batches = functools.partial(
            self.samples.training_batches,
            self._next_key,
            batch_size=self.batch_size,
            shuffle=self.shuffle or False,
            augment=augment,
        )
        whole = self._counted(batches(finish=self._weigh))
        # Samples of other kinds, sparse ones, cannot be repeated.
        self.can_be_divided = all(
            isinstance(spec, (tf.TensorSpec, tf.RaggedTensorSpec))
            for spec in tf.nest.flatten(whole.element_spec[0])
        )
        num_batches = self.num_batches

        def divided() -> tf.data.Dataset:
            if not self.can_be_divided:
                return whole
            return self._divided(batches(), num_batches)

        return WeightedDataset(
            whole, divided, on_iteration, lambda: self.has_had_owner
        )

    def _divided(
        self, batches: tf.data.Dataset, num_batches: int
    ) -> tf.data.Dataset:
        """For a strategy: batches wait for their weights and are spread."""
        ticketed = tf.data.Dataset.zip(
            batches.prefetch(tf.data.AUTOTUNE), self.gate.tickets(num_batches)
        )
        return self._counted(ticketed.map(self._weigh_divided))

    def _counted(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Tells Keras the number of batches, and TensorFlow what to leave."""
        options = _without_injected_prefetch()
        options.deterministic = True
        # There is nothing to share out among machines; TensorFlow would warn.
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.OFF
        )
        return dataset.apply(
            tf.data.experimental.assert_cardinality(self.num_batches)
        ).with_options(options)

    def _weigh(
        self, index: tf.Tensor, x: Any, y: tf.Tensor
    ) -> tuple[Any, tf.Tensor, tf.Tensor]:
        if self.part is None:
            return x, y, self.look_up(index)
        if self.own is not None:
            index, share = index  # see `order.shard_batches`
            is_there = tf.cast(share > 0, tf.float32)
            share = tf.where(self._variables.is_averaged, share, is_there)
            return x, y, self.look_up(index) * share
        rows, factor = sharding.local_part(
            tf.size(index, tf.int32), self.part, self._variables.is_averaged
        )
        index, x, y = tf.nest.map_structure(
            lambda array: tf.gather(array, rows), (index, x, y)
        )
        return x, y, self.look_up(index) * factor

    def _weigh_divided(
        self, batch: tuple[tf.Tensor, Any, tf.Tensor], ticket: tf.Tensor
    ) -> tuple[Any, tf.Tensor, tf.Tensor]:
        def divided() -> tuple[Any, tf.Tensor, tf.Tensor]:
            index, x, y = batch
            with tf.control_dependencies([self.gate.wait(ticket)]):
                weight = self.look_up(index)
            return sharding.spread(
                x,
                y,
                weight,
                num_replicas=self._variables.num_replicas,
                is_averaged=self._variables.is_averaged,
            )

        return tf.cond(
            self._variables.num_replicas > 0,
            divided,
            lambda: self._weigh(*batch),
        )

    def _next_key(self) -> tf.Tensor:
        stream = self._variables.stream
        key = stream.read_value()
        with tf.control_dependencies([key]):
            stream.assign_add([0, 1])
        return key


def _without_injected_prefetch() -> tf.data.Options:
    """TensorFlow would add a prefetch after the lookup: stale weights."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return options


def one_per_sample(sample_weight: Any, num_samples: int) -> np.ndarray:
    """Weights as an array; a `ValueError` unless each sample has one."""
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (num_samples,):
        raise ValueError(
            f"weighted(sample_weight=...) has shape {weights.shape}, but there "
            f"are {num_samples} samples: give one weight per sample, shape "
            f"({num_samples},)."
        )
    return weights


def _distribution(sample_weight: Any, num_samples: int) -> np.ndarray:
    """omega that weights start from: their shares, or 1/n."""
    if sample_weight is None:
        return uniform(num_samples)
    weights = one_per_sample(sample_weight, num_samples)
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
    with np.errstate(over="ignore"):
        total = weights.sum()
    if np.isinf(total):  # each is a number, but their sum is not
        weights = weights / weights.max()
        total = weights.sum()
    return np.asarray(weights / total)
