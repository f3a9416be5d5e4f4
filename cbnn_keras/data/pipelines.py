"""Pipelines with sample weights, and which callback each belongs to.

`weighted` makes the `tf.data.Dataset` that `model.fit` is given. A callback
that did not make its own pipeline finds, when `fit` begins, the one that it can
mean among those that are alive.
"""

import gc
import inspect
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from cbnn_keras.data import sharding
from cbnn_keras.data.dataset_samples import DatasetSamples
from cbnn_keras.data.indexed import Augment
from cbnn_keras.data.sample_weights import SampleWeights
from cbnn_keras.data.sources import read_source
from cbnn_keras.data.start import hold_out, start_weights
from cbnn_keras.data.weighted_dataset import WeightedDataset
from cbnn_keras.models import engine, keras_internals
from cbnn_keras.support import arguments
from cbnn_keras.support.console import Reporter

# The pipelines in use: an entry lives as long as its dataset does.
_live: "weakref.WeakKeyDictionary[tf.data.Dataset, SampleWeights]"
_live = weakref.WeakKeyDictionary()


def live_sample_weights(owner: object | None) -> list[SampleWeights]:
    """The sample weights of live pipelines, by who holds them.

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


# What users are shown where the short form does not do.
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
    batch_size: int | None = None,
    sample_weight: Any = None,
    class_weight: Mapping[Any, float] | None = None,
    validation_split: float = 0.0,
    shuffle: bool | int | None = None,
    augment: Augment | None = None,
    seed: int | None = None,
    num_samples: int | None = None,
    sharded: bool | None = None,
) -> WeightedDataset:
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
        x: Inputs: arrays, tensors, lists or data frames in any structure that
            Keras accepts; or a `tf.data.Dataset` of `(x, y)`, of single samples
            or of batches, which is the same in every pass (a `shuffle` in it is
            taken out where it can be); or a `keras.utils.PyDataset`.
        y: Labels: integers `(n,)` or `(n, 1)`, one-hot `(n, k)`, booleans, or
            names of classes, which are numbered in alphabetical order. Left out
            with a dataset.
        batch_size: Samples per batch, on all devices together. Defaults to
            None: that of a dataset of batches, or else 32.
        sample_weight: Weights to start from instead of 1/n, shape `(n,)`. Only
            their ratios count: they are scaled to mean 1.
        class_weight: A factor for the weights of each class, by number or by
            name, as in `fit`; 1 for a class that is left out.
        validation_split: The share of the samples, the last ones, that is held
            out, as in `fit`: they are the `validation_data` of the result.
        shuffle: True (all samples), False, or the size of the buffer for a
            dataset that does not fit into memory. Defaults to None: as the
            dataset was shuffled, or else True.
        augment: `augment(x, seed)`, applied to one sample at a time, with a
            seed of shape `(2,)` for TensorFlow's `stateless` functions. Scoring
            sees the samples without it.
        seed: Integer. Defaults to one drawn from Python's generator, which
            `keras.utils.set_random_seed` seeds.
        num_samples: The number of samples, for a dataset that does not know and
            is not to be counted.
        sharded: For several processes (`cbnn_keras.launch`): whether each of
            them reads, augments, weighs and scores samples of its own. Arrays
            are given whole in each, and are read where they are its own; a
            dataset is its own part, as is its `sample_weight`. Defaults to
            None: of arrays of more than 2^24 samples.

    Returns:
        A `tf.data.Dataset` of batches `(x, y, weight)`, with the attribute
        `validation_data`, for `fit`; None without a `validation_split`.

    Example:

    >>> train = weighted(np.zeros((5, 3)), np.arange(5), batch_size=2)
    >>> [weight.numpy().tolist() for _, _, weight in train]
    [[1.0, 1.0], [1.0, 1.0], [1.0]]
    """
    options = {
        "batch_size": batch_size,
        "sample_weight": sample_weight,
        "class_weight": class_weight,
        "validation_split": validation_split,
        "shuffle": shuffle,
        "augment": augment,
        "seed": seed,
        "num_samples": num_samples,
        "sharded": sharded,
    }
    return weighted_pipeline(x, y, **options)[0]


def weighted_pipeline(
    x: Any,
    y: Any = None,
    *,
    batch_size: int | None = None,
    sample_weight: Any = None,
    class_weight: Mapping[Any, float] | None = None,
    validation_split: float = 0.0,
    shuffle: bool | int | None = None,
    augment: Augment | None = None,
    seed: int | None = None,
    num_samples: int | None = None,
    sharded: bool | None = None,
) -> tuple[WeightedDataset, SampleWeights]:
    """What `weighted` gives, together with the weights that it looks up."""
    if batch_size is not None:
        batch_size = arguments.integer("weighted", "batch_size", batch_size)
    shuffle = _checked_shuffle(shuffle)
    if seed is not None:
        seed = arguments.integer("weighted", "seed", seed, at_least=None)
    share = arguments.number(
        "weighted",
        "validation_split",
        validation_split,
        at_least=0,
        below=1,
        allowed="a number of at least 0 and below 1",
    )
    _check_augment(augment)
    processes = engine.in_use().processes()
    track = Reporter(verbose=int(processes.is_first)).tracker(
        "reading the samples"
    )
    part = own_part()
    _check_sharded(sharded, part)
    processes.agree(
        repr(sharded).encode(),
        "weighted(sharded=...). Give each of them the same script.",
    )
    source = read_source(x, y, num_samples, track, part, sharded)
    samples, size = source.samples, batch_size or source.batch_size or 32
    with processes.together():
        weight = start_weights(
            samples, sample_weight, class_weight, source.class_names, track
        )
    validation_data = None
    if share:
        samples, validation_data = hold_out(samples, share, size, track)
        weight = None if weight is None else weight[: samples.num_samples]
    _check_divisible(min(size, samples.num_samples))
    if samples.own is not None:
        _check_shares(size, part)
    if shuffle is None:
        shuffle = source.shuffle or True
    weights = SampleWeights(
        samples.num_samples,
        sample_weight=weight,
        samples=samples,
        seed=seed,
        batch_size=size,
        shuffle=shuffle,
        class_names=source.class_names,
        file_seed=source.file_seed,
        part=part,
        sharded=source.sharded,
    )
    if seed is None and processes.count > 1:
        # The same for all, also where nobody has seeded their generators.
        weights.set_seed(int(processes.broadcast(b"%d" % weights.seed)))
    dataset = weights.training_dataset(augment, _Reminder(weights))
    dataset.validation_data = validation_data
    dataset.class_names = source.class_names
    _leave_out_false_alarm()
    _live[dataset] = weights
    return dataset, weights


def own_part() -> sharding.Part | None:
    """The part of a batch that this process takes, as things are now."""
    if not engine.in_use().divides_batches():
        return None
    found = engine.in_use().processes()
    return sharding.Part(found.index, found.count, found.num_devices)


def check_part(weights: SampleWeights, part: sharding.Part | None) -> None:
    """Raises a `ValueError` for a pipeline that takes another part."""
    if weights.part != part:
        raise ValueError(
            "`keras.distribution` divides batches among devices, and this "
            "pipeline was not made for it. Set the distribution before "
            "`weighted` is called; a pipeline of `attach_index` cannot be "
            "divided."
        )


class _Reminder:
    """Says, once a `fit`, that the callback of a pipeline was forgotten.

    A pipeline that never had a callback may be meant to be read without one,
    and whoever reads batches by hand needs none.
    """

    def __init__(self, weights: SampleWeights) -> None:
        self._weights = weakref.ref(weights)
        self._last_fit: weakref.ref[object] | None = None

    def __call__(self) -> None:
        weights = self._weights()
        fit = keras_internals.callbacks_of_fit(only_if_read=True)
        if weights is None or fit is None or not weights.has_had_owner:
            return
        is_known = self._last_fit is not None and self._last_fit() is fit
        # Of a callback that holds another pipeline, `fit` is told by itself.
        if is_known or any(map(live_sample_weights, fit.callbacks)):
            return
        self._last_fit = weakref.ref(fit)
        warnings.warn(
            "`fit` reads a pipeline that a callback made by `weighted`, but "
            "the callback is not in `callbacks=[...]`: there will be no "
            "checkpoints, no boosting and no ensemble. " + EXPLICIT_FORM,
            stacklevel=2,
        )


def _leave_out_false_alarm() -> None:
    """Keras says of every dataset that `fit` ignores `shuffle=True`.

    That is its default, and pipelines of `weighted` do shuffle.
    """
    warnings.filterwarnings(
        "ignore",
        message="`shuffle=True` was passed, but will be ignored since the data "
        "`x` was provided as a tf.data.Dataset",
        category=UserWarning,
    )


def _checked_shuffle(shuffle: Any) -> bool | int | None:
    if shuffle is None or isinstance(shuffle, bool):
        return shuffle
    if isinstance(shuffle, np.bool_):
        return bool(shuffle)
    return arguments.integer(
        "weighted",
        "shuffle",
        shuffle,
        at_least=0,
        allowed="True, False or the size of the shuffle buffer",
    )


def indexed_pipeline(
    dataset: tf.data.Dataset,
    *,
    num_samples: int | None = None,
    sample_weight: Any = None,
) -> tuple[tf.data.Dataset, SampleWeights]:
    """Samples `(x, y)` as `(index, x, y)`, and weights to be looked up."""
    samples = DatasetSamples(dataset, num_samples)
    weights = SampleWeights(samples.num_samples, sample_weight=sample_weight)
    indexed = weights.indexed(dataset)
    _leave_out_false_alarm()
    _live[indexed] = weights
    return indexed, weights


def _check_augment(augment: Augment | None) -> None:
    if augment is None:
        return
    try:
        inspect.signature(augment).bind(object(), object())
    except TypeError as error:
        raise ValueError(
            "weighted(augment=...) must be a function `augment(x, seed)` of "
            "one sample and a stateless seed of shape (2,), as taken by "
            f"`tf.image.stateless_random_flip_left_right`: {error}."
        ) from None
    except ValueError:
        pass  # no signature to be had, as of some built-in callables


def _check_sharded(sharded: bool | None, part: sharding.Part | None) -> None:
    if sharded is not None and not isinstance(sharded, bool):
        raise ValueError(
            f"weighted(sharded={sharded!r:.80}): sharded must be True, False "
            "or None."
        )
    if sharded and part is None:
        raise ValueError(
            "weighted(sharded=True): samples are divided among the devices of "
            "`keras.distribution`, and none is set. Call `cbnn_keras.launch."
            "join()` before, on Keras' JAX backend, or leave `sharded` out."
        )


def _check_shares(batch_size: int, part: sharding.Part | None) -> None:
    """Where devices have their own samples, each has as many in a batch."""
    num = 1 if part is None else part.num_devices
    if batch_size % num:
        raise ValueError(
            f"weighted(batch_size={batch_size}): each of {num} devices has "
            "samples of its own, as many in every batch. Choose a multiple of "
            f"{num}."
        )


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
