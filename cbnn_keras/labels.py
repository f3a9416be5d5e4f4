"""Labels as a classifier's data holds them -> class indices."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def class_indices(
    labels: Any, num_classes: int, *, is_binary: bool
) -> NDArray[np.int64]:
    """Class index of every sample, from any of the usual label formats.

    Args:
        labels: Integers of shape `(n,)` or `(n, 1)` in 0..k-1, or one-hot rows
            of shape `(n, k)`.
        num_classes: k.
        is_binary: Whether the model has one sigmoid output (then k is 2 and
            one-hot rows do not fit its loss).

    Returns:
        Shape `(n,)`.

    Raises:
        ValueError: If the labels are none of these.

    Example:

    >>> class_indices([[0, 1], [1, 0]], num_classes=2, is_binary=False)
    array([1, 0])
    """
    values = np.asarray(labels)
    if values.dtype.kind not in "biuf":
        raise ValueError(
            f"Labels must be numbers, not {values.dtype}. Map class names to "
            f"0..{num_classes - 1} first, e.g. with "
            "`np.unique(y, return_inverse=True)`."
        )
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 1:
        return _checked_indices(values, num_classes)
    if values.ndim == 2 and values.shape[1] == num_classes and not is_binary:
        return _checked_one_hot(values)
    raise ValueError(
        f"Labels have shape {values.shape}, but the model has "
        f"{'one sigmoid output' if is_binary else f'{num_classes} outputs'}: "
        f"give integers of shape (n,) in 0..{num_classes - 1}"
        + ("." if is_binary else f", or one-hot rows (n, {num_classes}).")
    )


def _checked_indices(values: np.ndarray, num_classes: int) -> np.ndarray:
    wrong = ~np.isin(values, np.arange(num_classes))
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"Labels must be integers in 0..{num_classes - 1}, as many as the "
            f"model has classes; sample {first} has {values[first].item()}, "
            f"and {int(wrong.sum())} of {len(values)} are outside. Map your "
            "classes to 0..k-1 or give the model as many outputs as there are "
            "classes. CBNN is for classification: there is no regression."
        )
    return values.astype(np.int64)


def _checked_one_hot(values: np.ndarray) -> np.ndarray:
    is_one_hot = np.isin(values, (0, 1)).all(axis=1) & (values.sum(axis=1) == 1)
    if not is_one_hot.all():
        first = int((~is_one_hot).argmax())
        row = np.array2string(values[first], threshold=8)
        raise ValueError(
            f"Label rows must be one-hot; sample {first} has {row}. Several "
            "labels a sample and regression are not supported; for soft labels "
            "use the loss's `label_smoothing`, and for MixUp see "
            "`CBNNCallback.attach_index`."
        )
    return values.argmax(axis=1)
