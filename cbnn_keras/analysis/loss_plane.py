"""The loss on the plane through three members, as in figure 1 of the paper.

p1, p2, p3 are the members' parameters; `geometry` has the coordinates and
`plane_losses` the loss at a point: the L2-regularised cross-entropy, once with
the sample weights omega of each of the three rounds, as boosting moves the
surface.

Numbers only; drawing is elsewhere.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from cbnn_keras.analysis import hashing
from cbnn_keras.analysis.geometry import Plane
from cbnn_keras.analysis.plane_cache import FORMAT, PlaneCache
from cbnn_keras.analysis.plane_losses import Losses, Samples, parameters
from cbnn_keras.boosting import Floats
from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.ensemble.selection import equally_spaced
from cbnn_keras.runs.run import Run
from cbnn_keras.support import arguments
from cbnn_keras.support.console import Reporter

Steps = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, eq=False)
class LossPlane:
    """The loss around three members, p1, p2 and p3.

    Attributes:
        steps: The members' steps.
        x: Coordinates of the grid's columns, shape `(resolution,)`.
        y: Coordinates of its rows, shape `(resolution,)`.
        losses: One panel per member, with omega of its round, shape
            `(3, len(y), len(x))`. NaN where the model's outputs are.
        points: Coordinates `(x, y)` of p1, p2 and p3, shape `(3, 2)`.
        point_losses: The losses right there, shape `(3 panels, 3 members)`.
        l2: The factor of the sum of squares.
    """

    steps: Steps
    x: Floats
    y: Floats
    losses: Floats
    points: Floats
    point_losses: Floats
    l2: float


def loss_plane(
    ensemble: CheckpointEnsemble,
    x: Any,
    y: Any,
    *,
    steps: Sequence[int] | None = None,
    l2: float = 1e-4,
    resolution: int = 21,
    margin: float = 0.25,
    batch_size: int = 256,
    max_samples: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    verbose: int = 1,
) -> LossPlane:
    """The training loss on the plane through three members.

    The plane is that of the trainable variables. BatchNorm's statistics are
    recomputed at every point, in a pass over the same samples in one random
    order; other variables are those of p2. The model is left as it was.

    Args:
        ensemble: An ensemble of three members at least.
        x: The inputs of training in their order, not augmented: an array or a
            structure of arrays.
        y: Their labels, in any of the formats of training.
        steps: The steps of the members p1, p2 and p3. Defaults to None: three
            at equal intervals, the last one among them.
        l2: Factor of the sum of the squared parameters. Defaults to 1e-4.
        resolution: How many columns and rows the grid has, at least 2.
            Defaults to 21.
        margin: Room on each side of the members, as a share of what they
            extend over. Defaults to 0.25.
        batch_size: The largest size of a batch. Defaults to 256.
        max_samples: A random choice of so many samples stands for all of them,
            with their omega made to sum to 1. Defaults to None: all.
        cache: An `.npz` file that is written after each row of the grid. The
            same call reads it, and resumes where it was interrupted. Defaults
            to None: no file.
        verbose: 0 for no progress bar.

    Raises:
        ValueError: If the members give no plane, the data are not those of
            training, an argument is out of range, or the file at `cache` is
            another one.
    """
    chosen = _checked_steps(ensemble, steps)
    options = _Options.checked(l2, resolution, margin)
    samples = Samples.chosen(ensemble, x, y, batch_size, max_samples)
    return _computed(ensemble, chosen, options, samples, cache, verbose)


@dataclasses.dataclass(frozen=True)
class _Options:
    """The arguments of `loss_plane` that are numbers, as Python's own."""

    l2: float
    resolution: int
    margin: float

    @classmethod
    def checked(cls, l2: Any, resolution: Any, margin: Any) -> "_Options":
        owner = "loss_plane"
        return cls(
            l2=arguments.number(
                owner, "l2", l2, at_least=0, allowed="a number of at least 0"
            ),
            resolution=arguments.integer(
                owner, "resolution", resolution, at_least=2
            ),
            margin=arguments.number(
                owner,
                "margin",
                margin,
                at_least=0,
                allowed="a share of at least 0",
            ),
        )


def _checked_steps(
    ensemble: CheckpointEnsemble, steps: Sequence[int] | None
) -> Steps:
    members = [record.step for record in ensemble.rounds]
    if len(members) < 3:
        raise ValueError(
            f"A plane takes three members; the ensemble has {len(members)}. "
            "Train with more checkpoints, or use the ensemble before `select`."
        )
    if steps is None:
        steps = [members[i] for i in equally_spaced(len(members), 3)]
    chosen = [int(step) for step in steps]
    if len(chosen) != 3 or len({*chosen} & {*members}) != 3:
        raise ValueError(
            f"loss_plane(steps={chosen}): these must be three different steps "
            f"of members; the ensemble has those of the steps {members}."
        )
    return chosen[0], chosen[1], chosen[2]


def _computed(
    ensemble: CheckpointEnsemble,
    steps: Steps,
    options: _Options,
    samples: Samples,
    cache: str | os.PathLike[str] | None,
    verbose: int,
) -> LossPlane:
    run = ensemble.run
    distributions = samples.shares(_distributions(run, steps))
    vectors = [parameters(ensemble, step) for step in steps]
    plane = Plane.through(*vectors)
    columns, rows = plane.grid(options.resolution, options.margin)
    grid = np.stack(np.meshgrid(columns, rows), axis=-1).reshape(-1, 2)
    points = np.concatenate([plane.points, grid])
    with ensemble.member(steps[1]) as model:
        key = _key(run, model, vectors, samples, options)
        losses = Losses(
            model, ensemble.classifier, samples, distributions, options.l2
        )
        values = _values(
            losses, plane, points, len(columns), PlaneCache(cache, key), verbose
        )
    return LossPlane(
        steps=steps,
        x=columns,
        y=rows,
        losses=values[3:].T.reshape(3, len(rows), len(columns)),
        points=plane.points,
        point_losses=values[:3].T,
        l2=options.l2,
    )


def _distributions(run: Run, steps: Steps) -> Floats:
    """omega as training saw it in the members' rounds, `(3, num_samples)`."""
    rounds = [record.step for record in run.rounds]
    return np.stack([run.replay(rounds.index(s)).distribution for s in steps])


def _values(
    losses: Losses,
    plane: Plane,
    points: Floats,
    num_columns: int,
    stored: PlaneCache,
    verbose: int,
) -> Floats:
    """The losses at all points, the members' first, `(num_points, 3)`."""
    values = list(stored.read())
    left = points[len(values) :]
    description = f"loss plane, {len(left)} points"
    for x, y in Reporter(verbose).track(left, len(left), description):
        values.append(losses(plane.vector(x, y)))
        if (len(values) - len(plane.points)) % num_columns == 0:
            stored.write(np.stack(values))
    return np.stack(values)


def _key(
    run: Run,
    model: keras.Model,
    vectors: list[Floats],
    samples: Samples,
    options: _Options,
) -> str:
    """sha256 of all that decides on the losses.

    It is that of what was stored or given, and not of what was computed from
    it: sums may be rounded in another way in another process.
    """
    given = [
        FORMAT,
        dataclasses.asdict(options),
        run.header.settings.to_json(),
    ]
    digest = hashlib.sha256(json.dumps(given).encode())
    digest.update(samples.digest)
    others = map(keras.ops.convert_to_numpy, model.non_trainable_weights)
    rounds = [run.correct(record.step) for record in run.rounds]
    arrays = [run.first_distribution, *rounds, *vectors, *others]
    hashing.update(digest, arrays)
    return digest.hexdigest()
