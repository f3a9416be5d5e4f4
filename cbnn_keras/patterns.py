"""The same arithmetic where there are many samples and few first weights.

omega of a sample depends on its first weight and on which members got it right
alone. So samples that have been right and wrong alike share a pattern: one
small number each says which, and a table has the omega of every pattern. Sums
over samples are sums over patterns, each times its count; the counts are
integers, so that those of several hosts can be added in any order, exactly.

`begin_boosting` chooses between this and a float64 per sample, the arithmetic
of `boosting.py`, which it is equal to but for the last bits.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from cbnn_keras.boosting import (
    Bools,
    Booster,
    Floats,
    Integers,
    Policy,
    Stage,
)
from cbnn_keras.metrics import mean_share

# Up to here a float64 per sample is no burden, and runs keep their last bits.
LARGE = 2**24
# More first weights than these are no groups.
_MOST_GROUPS = 256
# Samples that are counted at once: what is made on the way stays in the cache.
_CHUNK = 2**17
# Binary places of numbers that are added as integers. They are added in two
# halves, so that no sum of 2^38 of them is too large.
_PLACES, _HALF = 44, 24

Numbers = NDArray[np.unsignedinteger]
# Booleans, or as `np.packbits` gives them.
Flags = Bools | NDArray[np.uint8]
# Gives the sum of an array of counts over all hosts.
Exchange = Callable[[Integers], Integers]


@dataclasses.dataclass(frozen=True)
class GroupedWeights:
    """omega of many samples with few different values.

    Attributes:
        groups: The group of each sample, in as few bytes as will do, shape
            `(num_samples,)`.
        values: omega of a sample of each group, shape `(num_groups,)`.

    Example:

    >>> groups = np.array([0, 1, 1], np.uint8)
    >>> GroupedWeights(groups, np.array([0.5, 0.25])).dense()
    array([0.5 , 0.25, 0.25])
    """

    groups: Numbers
    values: Floats

    def dense(self) -> Floats:
        """omega of each sample, shape `(num_samples,)`."""
        return self.values[self.groups]


class Patterns:
    """Which samples have been right and wrong alike.

    Args:
        groups: The number of each sample's first group, shape
            `(num_samples,)`; those of one host, where there are several.
        num_patterns: How many groups there are.

    Attributes:
        numbers: The number of each sample's pattern, in as few bytes as will
            do, shape `(num_samples,)`. It is changed in place.
        num_patterns: How many patterns there are.

    Example:

    >>> patterns = Patterns(np.zeros(3, np.uint8), 1)
    >>> correct = np.array([True, False, True])
    >>> patterns.histogram(correct)
    array([[1, 2]])
    >>> patterns.split(correct, np.array([[1, 2]]))
    >>> patterns.numbers
    array([1, 0, 1], dtype=uint8)
    """

    def __init__(self, groups: Numbers, num_patterns: int) -> None:
        self.numbers = groups.copy()
        self.num_patterns = num_patterns

    def histogram(self, correct: Flags) -> Integers:
        """How many samples of each pattern are wrong and how many right.

        Args:
            correct: True where a checkpoint is right, shape `(num_samples,)`,
                or the same as `np.packbits` gives it, in an eighth of the
                memory.

        Returns:
            Shape `(num_patterns, 2)`.
        """
        size = 2 * self.num_patterns
        counts = np.zeros(size, np.int64)
        for part in self._chunks():
            codes = self._codes(correct, part)
            counts += np.bincount(codes, minlength=size)
        return counts.reshape(-1, 2)

    def split(self, correct: Flags, histogram: Integers) -> None:
        """Makes one pattern of the wrong and one of the right of each.

        Args:
            correct: As it was counted.
            histogram: The counts of all hosts. What occurs on none gets no
                number; the others are numbered in the order of the histogram.
        """
        occurs = histogram.ravel() > 0
        self.num_patterns = int(occurs.sum())
        smallest = np.min_scalar_type(self.num_patterns - 1)
        dtype = np.promote_types(smallest, self.numbers.dtype)
        renumbered = np.maximum(np.cumsum(occurs) - 1, 0).astype(dtype)
        numbers = self.numbers.astype(dtype, copy=False)
        for part in self._chunks():
            numbers[part] = renumbered[self._codes(correct, part)]
        self.numbers = numbers

    def _codes(self, correct: Flags, part: slice) -> NDArray[np.intp]:
        codes = self.numbers[part].astype(np.intp)
        codes *= 2
        if correct.dtype == bool:
            codes += correct[part]
        else:  # chunks begin with a byte
            bits = correct[part.start // 8 : -(-part.stop // 8)]
            codes += np.unpackbits(bits.view(np.uint8), count=len(codes))
        return codes

    def _chunks(self) -> Iterator[slice]:
        # A histogram is added once a chunk: none is larger than its chunk.
        size = max(_CHUNK, 8 * self.num_patterns)
        return _slices(len(self.numbers), size)


class PatternBooster:
    """`boosting.Booster` for samples of few first weights.

    An update takes a byte a sample and a second for a hundred million of them,
    as long as there are no more than 256 patterns: 8 rounds of equal first
    weights. With more rounds it takes two bytes, and then four.

    Args:
        first: The first round's omega; on several hosts, the samples of this
            one with the values of all.
        num_classes: k.
        policy: How checkpoints vote and what becomes of the weights.
        exchange: Adds the counts of all hosts; every one has to call `add` in
            the same round. Defaults to one host.

    Attributes:
        votes: lambda of each member so far.
        bound: Product of the normalisers so far.

    Example:

    >>> from cbnn_keras.boosting_policies import Boosting
    >>> first = GroupedWeights(np.zeros(4, np.uint8), np.array([0.25]))
    >>> booster = PatternBooster(first, 2, Boosting(deviation_rate=1.0))
    >>> stage = booster.add(np.array([True, True, True, False]))
    >>> stage.error, round(stage.vote, 4), round(stage.normaliser, 4)
    (0.25, 1.0986, 0.5)
    >>> booster.distribution.round(4)
    array([0.1667, 0.1667, 0.1667, 0.5   ])
    """

    def __init__(
        self,
        first: GroupedWeights,
        num_classes: int,
        policy: Policy,
        exchange: Exchange = lambda counts: counts,
    ) -> None:
        self._patterns = Patterns(first.groups, len(first.values))
        # Its entries are patterns.
        self._booster = Booster(first.values, num_classes, policy)
        self._num_classes = num_classes
        self._exchange = exchange

    @property
    def votes(self) -> list[float]:
        return self._booster.votes

    @property
    def bound(self) -> float:
        return self._booster.bound

    @property
    def weights(self) -> GroupedWeights:
        """omega of the round to come; `add` changes its groups in place."""
        return GroupedWeights(self._patterns.numbers, self._booster.weights)

    @property
    def distribution(self) -> Floats:
        """omega of the round to come, a float64 per sample."""
        return self.weights.dense()

    def may_continue(self) -> bool:
        """As of `boosting.Booster`."""
        return self._booster.may_continue()

    def first_mean(
        self,
        values: NDArray[np.float32],
        part: slice,
        exchange: Exchange = lambda counts: counts,
    ) -> float:
        """The mean of a number per sample, by the first round's omega.

        Numbers are added as integers, multiples of 2^-44, so that the sum is
        the same however they are shared out among hosts.

        Args:
            values: At least 0 and below 2^18, of the samples of `part`.
            part: Which of the samples of `first` they are; every sample is in
                that of one host.
            exchange: Adds the sums of all hosts.
        """
        sums = np.zeros((self._patterns.num_patterns, 2), np.int64)
        numbers = self._patterns.numbers[part]
        for chunk in _slices(len(values), _CHUNK):
            steps = np.rint(values[chunk].astype(np.float64) * 2.0**_PLACES)
            entries = numbers[chunk].astype(np.intp)
            halves = np.divmod(steps.astype(np.int64), 2**_HALF)
            for column, half in enumerate(halves):
                np.add.at(sums[:, column], entries, half)
        totals = [(int(a) << _HALF) + int(b) for a, b in exchange(sums)]
        first = self._booster.first
        return math.fsum(w * t for w, t in zip(first, totals, strict=True)) / (
            2.0**_PLACES
        )

    def first_class_error(
        self,
        correct: Bools,
        labels: Integers,
        part: slice,
        exchange: Exchange = lambda counts: counts,
    ) -> float:
        """`metrics.class_error` by the first round's omega.

        From counts, so that it is the same however samples are shared out
        among hosts.

        Args:
            correct: Which samples of `part` are right.
            labels: Their class indices.
            part: As in `first_mean`.
            exchange: Adds the counts of all hosts.
        """
        values, groups = np.unique(self._booster.first, return_inverse=True)
        shape = (len(values), self._num_classes, 2)
        size = math.prod(shape)
        counts = np.zeros(size, np.int64)
        numbers = self._patterns.numbers[part]
        for chunk in _slices(len(labels), max(_CHUNK, 8 * size)):
            codes = groups[numbers[chunk]] * self._num_classes + labels[chunk]
            counts += np.bincount(2 * codes + correct[chunk], minlength=size)
        sums = np.tensordot(values, exchange(counts).reshape(shape), 1)
        return mean_share(sums[:, 0], sums.sum(axis=1))

    def add(self, correct: Flags, *, is_final: bool = False) -> Stage:
        """As of `boosting.Booster`; also of packed bits."""
        histogram = self._exchange(self._patterns.histogram(correct))
        patterns, sides = np.nonzero(histogram)
        finer = self._booster.split(patterns, histogram[patterns, sides])
        stage = finer.add(sides.astype(bool), is_final=is_final)
        if stage.is_member:  # what got no vote tells no samples apart
            self._patterns.split(correct, histogram)
            self._booster = finer
        return stage


def begin_boosting(
    distribution: Floats,
    num_classes: int,
    policy: Policy,
    own: slice | None = None,
    exchange: Exchange = lambda counts: counts,
) -> Booster | PatternBooster:
    """The state of boosting before the first round.

    Args:
        distribution: The first round's omega, shape `(num_samples,)`.
        num_classes: k.
        policy: How checkpoints vote and what becomes of the weights.
        own: Of several hosts, the samples whose patterns this one keeps; all
            by default.
        exchange: See `PatternBooster`.

    Returns:
        A `PatternBooster` for samples of few weights, more than `LARGE` or
        divided among hosts. The other one is always of all samples.
    """
    first = grouped(distribution, own)
    if first is None:
        return Booster(distribution, num_classes, policy)
    return PatternBooster(first, num_classes, policy, exchange)


def uniform(num_samples: int) -> Floats:
    """omega of samples that weigh the same; not to be written to.

    For more than `LARGE` samples it takes the memory of one.
    """
    if num_samples <= LARGE:
        return np.full(num_samples, 1 / num_samples)
    return np.broadcast_to(np.float64(1 / num_samples), (num_samples,))


def grouped(
    distribution: Floats, own: slice | None = None
) -> GroupedWeights | None:
    """omega as groups, where there is something to gain by it.

    Args:
        distribution: Shape `(num_samples,)`.
        own: The samples whose groups are to be had; all by default.

    Returns:
        None for up to `LARGE` samples, unless a host keeps its own alone, or
        for more than 256 different values.
    """
    num_samples = len(distribution)
    if own is None and num_samples <= LARGE:
        return None
    own_part = distribution if own is None else distribution[own]
    groups = np.zeros(len(own_part), np.uint8)
    if distribution.strides == (0,):  # `uniform` made it
        return GroupedWeights(groups, distribution[:1].copy())
    values = distribution[:1]
    for part in _slices(num_samples, _CHUNK):
        values = np.union1d(values, distribution[part])
        if len(values) > _MOST_GROUPS:
            return None
    for part in _slices(len(groups), _CHUNK):
        groups[part] = np.searchsorted(values, own_part[part])
    return GroupedWeights(groups, values)


def _slices(length: int, size: int) -> Iterator[slice]:
    return (slice(i, i + size) for i in range(0, length, size))
