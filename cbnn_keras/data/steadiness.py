"""What a dataset is asked, so that position i means sample i in every pass."""

from typing import Any

import tensorflow as tf

EMPTY = (
    "weighted(dataset): the dataset is empty. Give at least one sample: look "
    "at what filters it, and at where it reads from."
)

SHUFFLES_INSIDE = (
    "weighted(dataset): the same position gave another sample in a second "
    "pass, so the dataset shuffles or augments inside and a sample weight "
    "would belong to no sample. Remove `.shuffle(...)` (with TFDS, "
    "`shuffle_files=False`) and random maps from the dataset, or let it "
    "shuffle once (`.shuffle(..., seed=1, reshuffle_each_iteration=False)`); "
    "`weighted` takes `shuffle=` and `augment=` instead."
)


class UnsteadyError(ValueError):
    """The same position gave another sample."""

    def __init__(self) -> None:
        super().__init__(SHUFFLES_INSIDE)


def changed_length(num_samples: int) -> str:
    """What is said of a dataset whose passes are not equally long."""
    return (
        f"weighted(dataset): the dataset had {num_samples} samples, and a "
        "later pass had more or fewer, so a sample weight would belong to no "
        "sample. Give a dataset that is the same in every pass; `.cache()` "
        "keeps what the first one gave."
    )


def holds_cache(dataset: tf.data.Dataset) -> bool:
    """Whether there is a `.cache()` in it.

    TensorFlow logs a warning whenever a cache is read in part before it is
    full.
    """
    if "Cache" in type(dataset).__name__:
        return True
    return any(map(holds_cache, dataset._inputs()))


def sample_hash(x: Any, y: Any) -> tf.Tensor:
    """A number that tells one sample from another, nearly always."""
    tensors = tf.nest.flatten((x, y), expand_composites=True)
    parts = [tf.io.serialize_tensor(tensor) for tensor in tensors]
    # 31 bits: half the memory of 63, and one miss in 2e9 is rare enough.
    code = tf.strings.to_hash_bucket_fast(tf.strings.join(parts), 2**31 - 1)
    return tf.cast(code, tf.int32)


def cardinality(
    dataset: tf.data.Dataset, num_samples: int | None
) -> int | None:
    """The number of samples of a dataset, or what the user says it is.

    Returns:
        None if nobody knows: then they have to be counted.

    Raises:
        ValueError: If that is 0 or without end.
    """
    known = int(dataset.cardinality())
    if known == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "weighted(dataset): the dataset repeats for ever; remove "
            "`.repeat()`. `fit(epochs=...)` sets the number of passes."
        )
    if known == tf.data.UNKNOWN_CARDINALITY:
        if num_samples is not None and num_samples < 1:
            raise ValueError(
                f"weighted(num_samples={num_samples}): at least 1."
            )
        return num_samples
    if num_samples not in (None, known):
        raise ValueError(
            f"weighted(dataset): num_samples={num_samples}, but the dataset "
            f"has {known} samples. Leave `num_samples` out."
        )
    if known == 0:
        raise ValueError(EMPTY)
    return known
