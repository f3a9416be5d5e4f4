"""How different members are: figure 2(a) of the paper."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pairwise_correlation(probabilities: ArrayLike) -> NDArray[np.float64]:
    """Correlation between the probabilities of any two members.

    Pearson's, over all samples and classes at once. A member that gives all
    classes of all samples the same probability correlates with nothing: 0.

    Args:
        probabilities: Shape `(num_members, num_samples, num_classes)`, or one
            column if binary.

    Returns:
        Shape `(num_members, num_members)`, symmetric, 1 on the diagonal.

    Example:

    >>> first, second = [[0.9, 0.1], [0.2, 0.8]], [[0.1, 0.9], [0.8, 0.2]]
    >>> pairwise_correlation([first, first, second])
    array([[ 1.,  1., -1.],
           [ 1.,  1., -1.],
           [-1., -1.,  1.]])
    """
    rows = _members(probabilities, "pairwise_correlation")
    rows = rows - rows.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(rows, axis=1)
    # Rounding leaves a little of a member that says the same of everything.
    is_constant = lengths < 1e-7 * np.sqrt(rows.shape[1])
    rows[is_constant] = 0
    rows /= np.where(is_constant, 1, lengths)[:, None]
    correlation = np.clip(rows @ rows.T, -1, 1)
    np.fill_diagonal(correlation, 1)
    return correlation


def pairwise_disagreement(classes: ArrayLike) -> NDArray[np.float64]:
    """Share of the samples on which any two members differ.

    Args:
        classes: Predicted classes, or whether they are right, shape
            `(num_members, num_samples)`.

    Returns:
        Shape `(num_members, num_members)`, symmetric, 0 on the diagonal.

    Example:

    >>> pairwise_disagreement([[0, 1, 2, 2], [0, 1, 2, 1], [1, 1, 2, 1]])
    array([[0.  , 0.25, 0.5 ],
           [0.25, 0.  , 0.25],
           [0.5 , 0.25, 0.  ]])
    """
    rows = np.asarray(classes)
    if rows.ndim != 2 or not rows.size:
        raise ValueError(
            "pairwise_disagreement takes classes of shape (num_members, "
            f"num_samples), not {rows.shape}."
        )
    return np.array([(row != rows).mean(axis=1) for row in rows])


def mean_of_pairs(matrix: NDArray[np.float64]) -> float:
    """The mean over all pairs of different members; NaN for one member."""
    above = matrix[np.triu_indices(len(matrix), 1)]
    return float(above.mean()) if above.size else float("nan")


def _members(probabilities: ArrayLike, name: str) -> NDArray[np.float64]:
    values = np.asarray(probabilities, dtype=np.float64)
    if values.ndim != 3 or not values.size:
        raise ValueError(
            f"{name} takes probabilities of shape (num_members, num_samples, "
            f"num_classes), not {values.shape}."
        )
    return values.reshape(len(values), -1)
