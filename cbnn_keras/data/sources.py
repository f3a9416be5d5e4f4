"""What people have -> samples by index.

Arrays, lists and data frames; datasets of single samples or of batches, those
of `keras.utils.image_dataset_from_directory` and its kin among them; a
`keras.utils.PyDataset`, or anything else that gives a batch for a number.
"""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.data import order
from cbnn_keras.data.conversion import as_labels, length
from cbnn_keras.data.dataset_samples import DatasetSamples
from cbnn_keras.data.indexed import (
    ArraySamples,
    Samples,
    Track,
    untracked,
)
from cbnn_keras.data.sharded import ShardedArrays, ShardedDataset
from cbnn_keras.data.sharding import Part
from cbnn_keras.data.steadiness import UnsteadyError
from cbnn_keras.data.unshuffled import unshuffled
from cbnn_keras.models import engine
from cbnn_keras.support.processes import Alone, Processes

_NUM_LOOKED_AT = 16  # labels, where the first one can be read in two ways
# What comes after `batch`, and leaves batches what they are.
_PASSED_ON = (
    *("AssertCardinality", "Cache", "Filter", "Map", "Options"),
    *("ParallelMap", "Prefetch", "Repeat", "Shard", "Shuffle", "Skip", "Take"),
)


@dataclasses.dataclass(frozen=True)
class Source:
    """Samples, and what was found out about where they come from.

    Attributes:
        samples: Single samples by index.
        batch_size: Of the batches that they came in, or None.
        shuffle: The size of the buffer that they were shuffled with, or None.
        class_names: The names of the classes, where they are known.
        file_seed: What Keras has shuffled the names of files by, given or
            drawn, or None if it did not.
        sharded: Whether each process has samples of its own, where that is
            not as it is by default.
    """

    samples: Samples
    batch_size: int | None = None
    shuffle: int | None = None
    class_names: list[str] | None = None
    file_seed: int | None = None
    sharded: bool | None = None


def read_source(
    x: Any,
    y: Any = None,
    num_samples: int | None = None,
    track: Track = untracked,
    part: Part | None = None,
    sharded: bool | None = None,
) -> Source:
    """Finds out what was given, and makes samples of it.

    Args:
        x: See `pipelines.weighted`.
        y: Likewise.
        num_samples: How many samples a dataset has, if the user says so.
        track: Shows the progress of counting.
        part: Which part of batches this process takes, or None for all.
        sharded: Whether it is to have samples of its own; None by their
            number.

    Raises:
        ValueError: If it is nothing that samples can be made of.
    """
    kind = type(x).__name__
    if isinstance(x, tf.data.Dataset) or _gives_batches(x):
        if y is not None:
            raise ValueError(
                "weighted(dataset, y): a dataset brings its own labels; leave "
                "`y` out."
            )
        batches = x if isinstance(x, tf.data.Dataset) else _numbered_batches(x)
        # Keras leaves both on what its `..._dataset_from_directory` give.
        names, paths = (
            getattr(x, n, None) for n in ("class_names", "file_paths")
        )
        if num_samples is None and paths is not None:
            num_samples = len(paths)
        own_part = part if sharded else None
        return _read_dataset(batches, num_samples, track, names, own_part)
    if isinstance(x, Iterator):
        raise ValueError(
            f"weighted({kind}): a {kind} can be read once only, but samples "
            "are read in every epoch and at every checkpoint. Give arrays, a "
            "`tf.data.Dataset` or a `keras.utils.PyDataset`."
        )
    if y is None:
        raise ValueError(
            "weighted(x): the labels are missing. Call `weighted(x, y)` with "
            "arrays, or `weighted(dataset)` with a `tf.data.Dataset` or a "
            f"`keras.utils.PyDataset` of `(x, y)`; received {kind}."
        )
    if num_samples is not None:
        raise ValueError(
            "weighted(num_samples=...) is for datasets; arrays know their "
            "length."
        )
    samples: Samples
    by_default = part is not None and (length(y) or 0) > order.LARGE
    if part is not None and (by_default if sharded is None else sharded):
        processes = engine.in_use().processes()
        with processes.together():
            samples = ShardedArrays(x, y, part)
            processes.agree(
                b"%d" % samples.num_samples,
                "the number of samples. Arrays are given whole in each of "
                "them; samples of its own are a dataset, `tf.data.Dataset."
                "from_tensor_slices((x, y))`.",
            )
    else:
        samples = ArraySamples(x, y)
    is_sharded = samples.own is not None
    return Source(
        samples,
        class_names=samples.class_names,
        sharded=None if is_sharded == by_default else is_sharded,
    )


def as_samples(
    x: Any, y: Any = None, num_samples: int | None = None
) -> Samples:
    """The samples alone."""
    return read_source(x, y, num_samples).samples


def _read_dataset(
    dataset: tf.data.Dataset,
    num_samples: int | None,
    track: Track,
    class_names: Any,
    own_part: Part | None,
) -> Source:
    """Samples of a dataset: of all, or of this process where it has a part."""
    processes = Alone() if own_part is None else engine.in_use().processes()

    def samples_of(
        dataset: tf.data.Dataset, is_batched: bool
    ) -> DatasetSamples:
        return _samples_of(dataset, is_batched, num_samples, track, processes)

    with processes.together():
        buffer_size, batch_size = 0, _batch_size(dataset)
        try:
            held = samples_of(dataset, batch_size is not None)
        except UnsteadyError:
            plain = unshuffled(dataset)
            if plain is None:
                raise
            held = samples_of(plain.dataset, batch_size is not None)
            buffer_size = plain.buffer_size
        # Often the length of a part, of which one may be longer by one.
        buffer_size = int(processes.gather(np.array([buffer_size])).max())
        names = held.class_names or class_names
        names = None if names is None else [str(name) for name in names]
        processes.agree(
            repr(names).encode(),
            "the names of the classes. Give `class_names=` to the function of "
            "Keras that reads the directory.",
        )
        samples: Samples = held
        if own_part is not None:
            samples = ShardedDataset(held, own_part, processes)
    return Source(
        samples,
        batch_size,
        buffer_size or None,
        names,
        _file_seed(dataset),
        sharded=None if own_part is None else True,
    )


def _samples_of(
    dataset: tf.data.Dataset,
    is_batched: bool,
    num_samples: int | None,
    track: Track,
    processes: Processes,
) -> DatasetSamples:
    if is_batched:
        dataset = dataset.unbatch()
    spec = dataset.element_spec
    kind = getattr(spec[1], "dtype", None) if _is_pair(spec) else None
    if kind == tf.bool:
        dataset = dataset.map(lambda x, y: (x, tf.cast(y, tf.int32)))
    samples = DatasetSamples(dataset, num_samples, track)
    if kind == tf.string:
        samples = _with_numbers(dataset, samples, track, processes)
    return samples


def _with_numbers(
    dataset: tf.data.Dataset,
    named: DatasetSamples,
    track: Track,
    processes: Processes,
) -> DatasetSamples:
    """The same samples with numbers for names of classes."""
    _, own_names = as_labels(named.labels(track))
    found = processes.exchange(json.dumps(own_names).encode())
    names = sorted({name for part in found for name in json.loads(part)})
    table = tf.constant(names)

    def numbered(x: Any, y: tf.Tensor) -> tuple[Any, tf.Tensor]:
        return x, tf.argmax(tf.equal(table, y), output_type=tf.int32)

    samples = DatasetSamples(dataset.map(numbered), named.num_samples)
    samples.class_names = names
    return samples


def _is_pair(spec: Any) -> bool:
    return isinstance(spec, tuple) and len(spec) == 2


def _batch_size(dataset: tf.data.Dataset) -> int | None:
    """How many samples the first batch has, or None for single samples."""
    spec = dataset.element_spec
    if not _is_pair(spec) or tf.nest.is_nested(spec[1]):
        return None  # is refused later
    rank = spec[1].shape.rank
    if rank == 0 or (rank == 1 and not _may_be_batch(spec)):
        return None
    labels = (label.numpy() for _, label in dataset.take(_NUM_LOOKED_AT))
    first = next(labels, None)
    if first is None or first.ndim == 0:
        return None
    if first.ndim == 1 and spec[1].shape.is_fully_defined():
        # One-hot, of a single sample? Or 0 or 1 of each sample of a batch?
        looks_single = _is_one_hot(first) and all(map(_is_one_hot, labels))
        if looks_single and not _ends_in_batches(dataset):
            return None
    return len(first)


def _is_one_hot(label: np.ndarray) -> bool:
    return bool(np.isin(label, (0, 1)).all() and label.sum() == 1)


def _ends_in_batches(dataset: tf.data.Dataset) -> bool:
    """Whether a dataset is one of batches by the way that it was made."""
    kind = ""
    while kind in ("", *_PASSED_ON):
        kind = type(dataset).__name__.strip("_").removesuffix("Dataset")
        inputs = dataset._inputs()
        if not inputs:
            break
        dataset = inputs[0]
    return kind in ("Batch", "ParallelBatch")


def _may_be_batch(spec: tuple[Any, Any]) -> bool:
    """Whether inputs have as many entries as there are labels."""
    size = spec[1].shape[0]
    sizes = {
        part.shape[0] if part.shape.rank else 0
        for part in tf.nest.flatten(spec[0])
    }
    return size is None or (size > 1 and sizes == {size})


def _file_seed(dataset: tf.data.Dataset) -> int | None:
    """The seed of `image_dataset_from_directory` or its kin in a dataset.

    By it, Keras shuffles the names of files once, and then its dataset, which
    knows it. A seed that was drawn looks like one that was given.
    """
    is_of_keras = False
    while True:
        is_of_keras |= hasattr(dataset, "class_names")
        inputs = dataset._inputs()
        if not inputs:
            return None
        if is_of_keras and type(dataset).__name__ == "_ShuffleDataset":
            is_of_files = type(inputs[0]).__name__ == "_ZipDataset"
            return int(dataset._seed2) if is_of_files else None
        dataset = inputs[0]


def _gives_batches(x: Any) -> bool:
    """Whether it is a `PyDataset`, or works like one."""
    if isinstance(x, keras.utils.PyDataset):
        return True
    is_array = hasattr(x, "shape") or hasattr(x, "__array__")
    is_structure = isinstance(x, (list, tuple, dict, str, bytes))
    return (
        not is_array
        and not is_structure
        and hasattr(x, "__len__")
        and hasattr(x, "__getitem__")
    )


def _numbered_batches(source: Any) -> tf.data.Dataset:
    """The batches of a `PyDataset`, as they are now, in their order."""
    num_batches = getattr(source, "num_batches", None) or len(source)
    if not num_batches:
        raise ValueError(
            f"weighted({type(source).__name__}): there are no batches in it."
        )
    first = source[0]
    if not isinstance(first, (tuple, list)) or len(first) != 2:
        raise ValueError(
            f"weighted({type(source).__name__}): a batch must be `(x, y)`; "
            f"the first one is a {type(first).__name__}"
            + (f" of {len(first)}. " if isinstance(first, tuple) else ". ")
            + "Sample weights go into the argument `sample_weight`."
        )
    first = keras.tree.lists_to_tuples(tuple(first))
    arrays = [np.asarray(part) for part in tf.nest.flatten(first)]

    def read(number: np.ndarray) -> list[np.ndarray]:
        batch = keras.tree.lists_to_tuples(tuple(source[int(number)]))
        return [
            np.asarray(part).astype(array.dtype, copy=False)
            for part, array in zip(tf.nest.flatten(batch), arrays, strict=True)
        ]

    def batch(number: tf.Tensor) -> Any:
        parts = tf.numpy_function(read, [number], [a.dtype for a in arrays])
        for part, array in zip(parts, arrays, strict=True):
            part.set_shape([None, *array.shape[1:]])
        return tf.nest.pack_sequence_as(first, parts)

    return tf.data.Dataset.range(num_batches).map(
        batch, num_parallel_calls=max(getattr(source, "workers", 1), 1)
    )
