"""A plane through three points of a space of many dimensions.

The footnote of figure 1 of the paper, after Garipov et al. (2018):
u = p3 - p2, v = (p1 - p2) - <p1 - p2, u> / |u|^2 * u, and a point (x, y) stands
for p2 + x * u / |u| + y * v / |v|.
"""

import dataclasses
from typing import Any

import numpy as np

from cbnn_keras.boosting import Floats

# Below this, relative to |p1 - p2|, v is hardly more than rounding.
_SMALLEST_HEIGHT = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class Plane:
    """A plane in the space of parameters, with coordinates on it.

    Attributes:
        origin: p2, shape `(num_parameters,)`.
        x_axis: u / |u|.
        y_axis: v / |v|.
        points: Coordinates of p1, p2 and p3, shape `(3, 2)`.

    Example:

    >>> plane = Plane.through([1.0, 3.0], [1.0, 1.0], [5.0, 1.0])
    >>> plane.points
    array([[0., 2.],
           [0., 0.],
           [4., 0.]])
    >>> plane.vector(1.0, 0.5)
    array([2. , 1.5])
    """

    origin: Floats
    x_axis: Floats
    y_axis: Floats
    points: Floats

    @classmethod
    def through(cls, *vectors: Any) -> "Plane":
        """The plane of three vectors p1, p2, p3.

        Raises:
            ValueError: If they lie on a line.
        """
        p1, p2, p3 = (np.asarray(p, dtype=np.float64) for p in vectors)
        u, side = p3 - p2, p1 - p2
        length, side_length = np.linalg.norm(u), np.linalg.norm(side)
        x_axis = u / (length or 1.0)
        v = side - (side @ x_axis) * x_axis
        height = np.linalg.norm(v)
        if not length or height <= _SMALLEST_HEIGHT * side_length:
            raise ValueError(
                "Three members that lie on a line, or are equal, give no "
                f"plane: p3 - p2 has length {length:.3g}, p1 - p2 "
                f"{side_length:.3g}, and its part at right angles to the "
                f"former {height:.3g}. Choose other members with `steps=`."
            )
        points = [(side @ x_axis, height), (0.0, 0.0), (length, 0.0)]
        return cls(p2, x_axis, v / height, np.array(points))

    def vector(self, x: float, y: float) -> Floats:
        """The parameters that a point stands for."""
        return self.origin + x * self.x_axis + y * self.y_axis

    def grid(self, resolution: int, margin: float) -> tuple[Floats, Floats]:
        """Coordinates of columns and rows around the three points.

        Args:
            resolution: Number of columns, and of rows.
            margin: Room that is added on each side, as a share of the extent.
        """
        low, high = self.points.min(axis=0), self.points.max(axis=0)
        room = margin * (high - low)
        x, y = np.linspace(low - room, high + room, resolution, axis=1)
        return x, y
