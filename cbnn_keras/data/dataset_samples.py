"""Training samples that come from a `tf.data.Dataset`."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from cbnn_keras.data import order
from cbnn_keras.data.indexed import (
    Augment,
    Finish,
    Samples,
    Track,
    finished,
    unfinished,
    untracked,
)
from cbnn_keras.data.steadiness import (
    EMPTY,
    UnsteadyError,
    cardinality,
    changed_length,
    holds_cache,
    sample_hash,
)


class DatasetSamples(Samples):
    """Samples of a `tf.data.Dataset`, indexed by their position in it.

    That position must mean the same sample in every pass. A hash of each
    sample is kept from the first pass and compared in the later ones, so that
    a dataset that shuffles (or augments) inside is refused: at once if two
    looks at its head differ, or else in the first pass that does.

    Attributes:
        head: A hash of the first samples.
    """

    _HEAD = 256  # samples looked at twice before anything else happens
    _READ_BATCH = 256

    def __init__(
        self,
        dataset: tf.data.Dataset,
        num_samples: int | None = None,
        track: Track = untracked,
    ) -> None:
        spec = dataset.element_spec
        if not (isinstance(spec, tuple) and len(spec) == 2):
            raise ValueError(
                "weighted(dataset): the dataset must give `(x, y)`; its "
                f"elements are {spec!s:.300}. Sample weights go into the "
                "argument `sample_weight`."
            )
        self._check_single_label(spec[1])
        known = cardinality(dataset, num_samples)
        self._dataset = dataset
        self._labels: np.ndarray | None = None
        self._hashes: np.ndarray | None = None
        if holds_cache(dataset):
            self._read(track)  # fills it
        self.head = self._checked_head()
        self.num_samples = len(self._read(track)) if known is None else known

    def training_batches(
        self,
        next_key: Callable[[], tf.Tensor],
        *,
        batch_size: int,
        shuffle: bool | int,
        augment: Augment | None,
        finish: Finish = unfinished,
    ) -> tf.data.Dataset:
        def one_pass(_: tf.Tensor) -> tf.data.Dataset:
            key = next_key()
            samples = self.one_pass(key, shuffle)
            return samples if augment is None else order.with_key(samples, key)

        passes = tf.data.Dataset.range(1).flat_map(one_pass)
        if augment is None:
            return finished(
                passes.batch(batch_size), lambda i, xy: finish(i, *xy)
            )

        def one_sample(
            sample: tuple[tf.Tensor, tuple[Any, tf.Tensor]], key: tf.Tensor
        ) -> Any:
            index, (x, y) = sample
            return index, augment(x, order.sample_seed(key, index)), y

        return finished(
            passes.map(one_sample, num_parallel_calls=tf.data.AUTOTUNE).batch(
                batch_size
            ),
            finish,
        )

    def one_pass(self, key: tf.Tensor, shuffle: bool | int) -> tf.data.Dataset:
        """Single samples `(index, (x, y))`, in the function of a dataset.

        Args:
            key: Of the pass.
            shuffle: Whether to shuffle, or the size of the buffer to use.
        """
        # Refuses a pass that is longer or shorter, as it happens.
        samples = self._dataset.apply(
            tf.data.experimental.assert_cardinality(self.num_samples)
        ).enumerate()
        buffer = self.num_samples if shuffle is True else int(shuffle)
        if not buffer:
            return samples
        # `shuffle` mixes in the seed of the graph, that function's. Unset, it
        # is the global one: then the key does not decide alone, and a global
        # seed of 0 is an error in TensorFlow.
        tf.compat.v1.set_random_seed(1)
        seed = tf.random.stateless_uniform(
            [], key, minval=None, maxval=None, dtype=tf.int64
        )
        return samples.shuffle(
            buffer, seed=seed, reshuffle_each_iteration=False
        )

    def first(self, num: int) -> tf.data.Dataset:
        """The first so many of such samples."""
        return self._dataset.take(num).enumerate()

    def inputs(self, batch_size: int) -> Iterator[Any]:
        hashed = self._dataset.map(
            lambda x, y: (x, sample_hash(x, y)),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        position = 0
        for x, hashes in hashed.batch(batch_size).prefetch(tf.data.AUTOTUNE):
            self._check_hashes(position, hashes.numpy())
            position += len(hashes)
            yield x
        if position != self.num_samples:
            raise ValueError(changed_length(self.num_samples))

    def labels(self, track: Track = untracked) -> np.ndarray:
        labels = self._read(track, -(-self.num_samples // self._READ_BATCH))
        if len(labels) != self.num_samples:
            raise ValueError(
                f"weighted(dataset): the dataset has {len(labels)} samples, "
                f"but {self.num_samples} were announced. Give the true number "
                "as `num_samples`, or leave it out."
            )
        return labels

    def split(self, num: int, batch_size: int) -> tuple[Samples, Any]:
        others = self._dataset.skip(num).batch(batch_size)
        return (
            DatasetSamples(self._dataset.take(num), num),
            others.prefetch(tf.data.AUTOTUNE),
        )

    def _read(self, track: Track, num_batches: int | None = None) -> np.ndarray:
        """All labels, in one pass, in which samples are hashed too."""
        if self._labels is not None:
            return self._labels
        labelled = self._dataset.map(
            lambda x, y: (y, sample_hash(x, y)),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        batches = labelled.batch(self._READ_BATCH).prefetch(tf.data.AUTOTUNE)
        labels, hashes = [], []
        for y, code in track(batches, num_batches):
            labels.append(y.numpy())
            hashes.append(code.numpy())
        self._labels = np.concatenate(labels)
        self._hashes = np.concatenate(hashes)
        return self._labels

    @staticmethod
    def _check_single_label(spec: Any) -> None:
        if tf.nest.is_nested(spec):
            raise ValueError(
                "weighted(dataset): y must be one label per sample, not "
                f"{spec!s:.300}. CBNN boosts one classification output."
            )
        if spec.shape.rank is not None and spec.shape.rank > 0:
            if spec.shape[0] is None or spec.shape.rank > 1:
                raise ValueError(
                    "weighted(dataset): the dataset seems to be batched (its "
                    f"labels have shape {spec.shape}). Give single samples: "
                    "leave out `.batch(...)` or add `.unbatch()`; "
                    "`batch_size` is an argument of `weighted`."
                )

    def _checked_head(self) -> bytes:
        head = self._dataset.take(self._HEAD).map(sample_hash)
        first, second = (
            np.array([code.numpy() for code in head]) for _ in range(2)
        )
        if not len(first):
            raise ValueError(EMPTY)
        if len(first) != len(second):
            raise ValueError(changed_length(len(first)))
        if not np.array_equal(first, second):
            raise UnsteadyError
        return hashlib.sha256(first.tobytes()).digest()

    def _check_hashes(self, position: int, hashes: np.ndarray) -> None:
        if self._hashes is None:
            return
        if position + len(hashes) > self.num_samples:
            raise ValueError(changed_length(self.num_samples))
        known = self._hashes[position : position + len(hashes)]
        if not np.array_equal(known, hashes):
            raise UnsteadyError
