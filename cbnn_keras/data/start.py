"""What training starts with: the weights of classes, and what is held out."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cbnn_keras.data.conversion import listed
from cbnn_keras.data.indexed import Samples, Track
from cbnn_keras.data.sample_weights import one_per_sample
from cbnn_keras.models import engine


def start_weights(
    samples: Samples,
    sample_weight: Any,
    class_weight: Mapping[Any, float] | None,
    class_names: list[str] | None,
    track: Track,
) -> np.ndarray | None:
    """The weights to start from: those of the samples times their classes'.

    Args:
        samples: The training samples.
        sample_weight: Of the samples that were given here, or None.
        class_weight: A factor by class, or None.
        class_names: With which classes can be called by name, or None.
        track: Shows the progress of reading labels.

    Raises:
        ValueError: For a class that there is not, or a `sample_weight` that
            does not have one number for each sample.
    """
    processes = engine.in_use().processes()
    is_part = samples.num_given < samples.num_samples
    if is_part:
        processes.agree(
            repr(sample_weight is None).encode(),
            "whether it has a sample_weight. Give one to all or to none.",
        )
    if sample_weight is not None:
        sample_weight = one_per_sample(sample_weight, samples.num_given)
        if is_part:
            sample_weight = processes.gather(sample_weight)
    if class_weight is None:
        return sample_weight
    labels = class_numbers(samples.labels(track))
    if samples.own is not None:
        labels = processes.gather(labels)
    factors = np.ones(len(labels))
    for name, factor in _by_number(class_weight, class_names).items():
        chosen = labels == name
        if not chosen.any():
            raise ValueError(
                f"weighted(class_weight=...): no sample has class {name!r}; "
                f"there are {listed(np.unique(labels).tolist())}."
            )
        factors[chosen] = factor
    return factors if sample_weight is None else factors * sample_weight


def hold_out(
    samples: Samples, share: float, batch_size: int, track: Track
) -> tuple[Samples, Any]:
    """Splits the last samples off, as Keras does.

    Returns:
        The samples to train on, and the others as `fit` takes them.

    Raises:
        ValueError: If a part is empty, or one has classes that training would
            never see.
    """
    num = int(samples.num_samples * (1 - share))
    if num in (0, samples.num_samples):
        raise ValueError(
            f"weighted(validation_split={share}): of {samples.num_samples} "
            "samples, one part would be empty. Give more samples, or another "
            "share."
        )
    parts = samples.split(num, batch_size)
    labels = class_numbers(samples.labels(track))
    unseen = np.setdiff1d(labels[num:], labels[:num])
    if len(unseen):
        raise ValueError(
            f"weighted(validation_split={share}): class {unseen[0]} is only "
            "in the part that would be held out, the last "
            f"{len(labels) - num} samples, so the data seem to be sorted. "
            "Shuffle them first, x and y alike, or split them yourself."
        )
    return parts


def class_numbers(labels: np.ndarray) -> np.ndarray:
    """Numbers of classes, from numbers or one-hot rows."""
    if labels.ndim == 2:
        return labels.argmax(axis=1) if labels.shape[1] > 1 else labels[:, 0]
    return labels


def _by_number(
    class_weight: Mapping[Any, float], class_names: list[str] | None
) -> dict[Any, float]:
    if not isinstance(class_weight, Mapping):
        raise ValueError(
            "weighted(class_weight=...) must be a dict of factors by class, "
            f"such as {{0: 1.0, 1: 5.0}}; received "
            f"{type(class_weight).__name__}."
        )
    numbers = {name: i for i, name in enumerate(class_names or [])}
    for name in class_weight:
        if isinstance(name, str) and name not in numbers:
            raise ValueError(
                f"weighted(class_weight=...): there is no class {name!r:.80}; "
                + (
                    f"there are {listed(class_names)}."
                    if class_names
                    else "labels are numbers here, so give numbers."
                )
            )
    return {numbers.get(name, name): f for name, f in class_weight.items()}
