"""Classes of unequal sizes: making them, balancing them, allowing for them.

The tools of section 5.4 of the paper, after Buda et al., "A systematic study of
the class imbalance problem in convolutional neural networks" (2018). Here are
the formulas, in NumPy; `CheckpointEnsemble` and the exports apply `threshold`
if they are given `priors`.

Functions that choose samples give indices, so that they are of use with any
arrays: `x[keep], y[keep]`. Labels are integers of shape `(n,)` or `(n, 1)` in
0..k-1, or one-hot rows of shape `(n, k)`.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cbnn_keras.labels import class_indices


def step_imbalance(
    labels: ArrayLike,
    *,
    minority_share: float = 0.2,
    ratio: float = 10,
    seed: int,
) -> NDArray[np.int64]:
    """Samples to keep so that some classes, chosen at random, become rare.

    Of k classes, mu * k keep n / rho of their n samples, and at least one;
    both numbers are rounded as Python's `round` does. The other classes keep
    all. If classes are of one size at first, the large ones are rho times as
    large as the small ones in the end. Classes without samples do not count.

    Args:
        labels: The class of each sample, in one of the forms above.
        minority_share: mu, between 0 and 1: share of the classes that become
            rare. Defaults to 0.2.
        ratio: rho, at least 1. Defaults to 10.
        seed: What the choice of classes and of samples derives from.

    Returns:
        Indices in increasing order.

    Raises:
        ValueError: If an argument is not as above, or if there would be no
            rare class, or none that is not.

    Example:

    >>> labels = np.repeat([0, 1], 100)
    >>> keep = step_imbalance(labels, minority_share=0.5, ratio=20, seed=0)
    >>> np.bincount(labels[keep])
    array([100,   5])
    """
    if not 0 < minority_share < 1:
        raise ValueError(
            f"step_imbalance(minority_share={minority_share}): between 0 and "
            "1, both excluded."
        )
    if not 1 <= ratio < np.inf:
        raise ValueError(f"step_imbalance(ratio={ratio}): 1 or more.")
    classes = _samples_by_class(labels)
    num_minorities = round(minority_share * len(classes))
    if not 0 < num_minorities < len(classes):
        raise ValueError(
            f"step_imbalance(minority_share={minority_share}): of "
            f"{len(classes)} classes that makes {num_minorities} rare ones. "
            "There must be one at least, and one that stays as it is."
        )
    generator = np.random.default_rng(seed)
    minorities = generator.choice(len(classes), num_minorities, replace=False)
    for position in minorities:
        samples = classes[position]
        num_kept = max(1, round(len(samples) / ratio))
        classes[position] = generator.choice(samples, num_kept, replace=False)
    return np.sort(np.concatenate(classes))


def oversample(labels: ArrayLike, *, seed: int) -> NDArray[np.int64]:
    """Samples, some of them repeated, so that all classes are of one size.

    Random minority oversampling: all samples are in the result, and each class
    is filled up to the size of the largest with samples of its own, drawn with
    replacement. Classes without samples stay empty.

    Args:
        labels: The class of each sample, in one of the forms above.
        seed: What the choice of samples to repeat derives from.

    Returns:
        Indices in increasing order: shuffle when you train.

    Raises:
        ValueError: If the labels are none.

    Example:

    >>> oversample([0, 0, 0, 1], seed=0)
    array([0, 1, 2, 3, 3, 3])
    """
    classes = _samples_by_class(labels)
    largest = max(len(samples) for samples in classes)
    generator = np.random.default_rng(seed)
    repeated = [
        generator.choice(samples, largest - len(samples)) for samples in classes
    ]
    return np.sort(np.concatenate([*classes, *repeated]))


def class_priors(
    labels: ArrayLike, num_classes: int | None = None
) -> NDArray[np.float64]:
    """Share of the samples that each class has: what `threshold` divides by.

    Args:
        labels: The class of each training sample, in one of the forms above.
        num_classes: k. By default the columns of one-hot rows, or one more
            than the largest label.

    Returns:
        Shape `(num_classes,)`; they sum to 1.

    Raises:
        ValueError: If the labels are none, or not below `num_classes`.

    Example:

    >>> class_priors([0, 0, 0, 1])
    array([0.75, 0.25])
    """
    indices, num_classes = _indices(labels, num_classes)
    counts = np.bincount(indices, minlength=num_classes)
    return counts / counts.sum()


def threshold(
    probabilities: ArrayLike, priors: ArrayLike
) -> NDArray[np.float64]:
    """Probabilities as if all classes had been equally frequent in training.

    p_c / pi_c, divided by the sum over the classes, with the training priors
    pi (Buda et al., thresholding with prior class probabilities).

    Args:
        probabilities: p, shape `(num_samples, num_classes)`, or
            `(num_samples, 1)`, the probability of class 1 of two.
        priors: pi, shape `(num_classes,)`, see `class_priors`. Two for
            probabilities of one column.

    Returns:
        The shape of the probabilities.

    Raises:
        ValueError: If priors and probabilities do not fit, or are none.

    Example:

    0.8 / 0.9 to 0.2 / 0.1 is 4 to 9.

    >>> threshold([[0.8, 0.2]], priors=[0.9, 0.1]).round(3)
    array([[0.308, 0.692]])
    >>> threshold([[0.2]], priors=[0.9, 0.1]).round(3)
    array([[0.692]])
    """
    values = np.asarray(probabilities, dtype=np.float64)
    weights = inverse_priors(priors)
    num_columns = values.shape[-1] if values.ndim > 1 else 0
    if num_columns != len(weights) and (num_columns, len(weights)) != (1, 2):
        raise ValueError(
            f"threshold(): probabilities of shape {values.shape} do not fit "
            f"{len(weights)} priors. Give (num_samples, {len(weights)})"
            + (", or one column." if len(weights) == 2 else ".")
        )
    # Half precision may round upward; what is not a number stays that.
    if (values < 0).any() or (values > 1.001).any():
        raise ValueError(
            "threshold(): probabilities must be between 0 and 1; found "
            f"{np.nanmin(values):g} to {np.nanmax(values):g}. Apply softmax or "
            "sigmoid to logits first."
        )
    if num_columns == 1:
        first, second = (1 - values) * weights[0], values * weights[1]
        return second / (first + second)
    weighted = values * weights
    return weighted / weighted.sum(axis=-1, keepdims=True)


def inverse_priors(priors: ArrayLike) -> NDArray[np.float64]:
    """What `threshold` multiplies by: 1 / pi, but for a factor.

    The largest is 1, so that nothing overflows in half precision.

    Example:

    >>> inverse_priors([0.5, 0.25, 0.25])
    array([0.5, 1. , 1. ])
    """
    shares = checked_priors(priors)
    return shares.min() / shares


def checked_priors(
    priors: ArrayLike, num_classes: int | None = None
) -> NDArray[np.float64]:
    """Priors divided by their sum, so that counts of samples will do.

    Args:
        priors: Shape `(num_classes,)`.
        num_classes: How many there must be.

    Raises:
        ValueError: If they are not positive numbers, one a class.
    """
    values = np.asarray(priors)
    if values.dtype.kind not in "iuf":
        raise ValueError(f"priors must be numbers, not {values.dtype}.")
    if num_classes is not None and values.shape != (num_classes,):
        raise ValueError(
            f"priors have the shape {values.shape}, but there are "
            f"{num_classes} classes: give ({num_classes},), such as "
            "class_priors(labels, num_classes)."
        )
    if values.ndim != 1 or len(values) < 2:
        raise ValueError(
            f"priors have the shape {values.shape}: give one number per class, "
            "(num_classes,)."
        )
    is_wrong = ~((values > 0) & (values < np.inf))
    if is_wrong.any():
        first = int(is_wrong.argmax())
        raise ValueError(
            f"priors must be positive and finite; class {first} has "
            f"{values[first].item()}. Nothing can be said about a class that "
            "was not there in training."
        )
    return values / values.sum(dtype=np.float64)


def _samples_by_class(labels: ArrayLike) -> list[NDArray[np.int64]]:
    """Indices of the samples of each class that has some."""
    indices, _ = _indices(labels, None)
    _, counts = np.unique(indices, return_counts=True)
    return np.split(np.argsort(indices, kind="stable"), np.cumsum(counts)[:-1])


def _indices(
    labels: ArrayLike, num_classes: int | None
) -> tuple[NDArray[np.int64], int]:
    """Classes of all samples, and how many classes there are."""
    values = np.asarray(labels)
    if values.ndim not in (1, 2) or not values.size:
        raise ValueError(
            f"Labels have shape {values.shape}: give one integer or one "
            "one-hot row a sample, and one sample at least."
        )
    if num_classes is None:
        num_classes = _num_classes(values)
    return class_indices(values, num_classes, is_binary=False), num_classes


def _num_classes(values: np.ndarray) -> int:
    if values.ndim == 2 and values.shape[1] > 1:
        return values.shape[1]
    if values.dtype.kind in "biuf" and np.isfinite(values).all():
        return max(int(values.max()), 0) + 1
    return len(np.unique(values))  # for the message: these are no labels
