"""The loss on the plane through three members, as in figure 1 of the paper.

p1, p2, p3 are the members' parameters; `geometry` has the coordinates. The loss
is the L2-regularised cross-entropy, once with the sample weights omega of each
of the three rounds: boosting moves the surface.

Numbers only; drawing is elsewhere.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.analysis.geometry import Plane
from cbnn_keras.analysis.plane_cache import FORMAT, PlaneCache
from cbnn_keras.boosting import Floats
from cbnn_keras.data.labelled import split_labels
from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.ensemble.selection import equally_spaced
from cbnn_keras.metrics import SMALLEST_PROBABILITY
from cbnn_keras.models.batch_norm import StatisticsRecomputer
from cbnn_keras.models.classifier import Classifier
from cbnn_keras.runs.run import Run
from cbnn_keras.support import arguments
from cbnn_keras.support.console import Reporter

_SEED = 0


@dataclasses.dataclass(frozen=True, eq=False)
class LossPlane:
    """The loss around three members, p1, p2 and p3.

    Attributes:
        steps: The members' steps.
        x: Coordinates of the grid's columns, shape `(resolution,)`.
        y: Coordinates of its rows, shape `(resolution,)`.
        losses: One panel a member, with omega of its round, shape
            `(3, len(y), len(x))`. NaN where the model's outputs are.
        points: Coordinates `(x, y)` of p1, p2 and p3, shape `(3, 2)`.
        point_losses: The losses right there, shape `(3 panels, 3 members)`.
        l2: The factor of the sum of squares.
    """

    steps: tuple[int, int, int]
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
        ensemble: Of three members at least.
        x: The inputs of training in their order, not augmented: an array or a
            structure of arrays.
        y: Their labels, in any of the formats of training.
        steps: Of the members p1, p2 and p3. Defaults to None: three at equal
            intervals, the last one among them.
        l2: Factor of the sum of the squared parameters. Defaults to 1e-4.
        resolution: How many columns and rows the grid has, at least 2.
            Defaults to 21.
        margin: Room on each side of the members, as a share of what they
            extend over. Defaults to 0.25.
        batch_size: The largest size of a batch. Defaults to 256.
        max_samples: A random choice of so many samples stands for all of them,
            with their omega made to sum to 1. Defaults to None: all.
        cache: An `.npz` file that is written after each row of the grid. The
            same call reads it, and goes on where it was interrupted. Defaults
            to None: no file.
        verbose: 0 for no progress bar.

    Raises:
        ValueError: If the members give no plane, the data are not those of
            training, an argument is out of range, or the file at `cache` is
            another one.
    """
    chosen = _checked_steps(ensemble, steps)
    owner = "loss_plane"
    l2 = arguments.number(
        owner, "l2", l2, at_least=0, allowed="a number of at least 0"
    )
    if not isinstance(resolution, (int, np.integer)) or resolution < 2:
        raise ValueError(
            f"loss_plane(resolution={resolution!r}): an integer of at least 2."
        )
    margin = arguments.number(
        owner, "margin", margin, at_least=0, allowed="a share of at least 0"
    )
    samples = _Samples.chosen(ensemble, x, y, batch_size, max_samples)
    omegas = samples.shares(_omegas(ensemble.run, chosen))
    vectors = [_parameters(ensemble, step) for step in chosen]
    plane = Plane.through(*vectors)
    columns, rows = plane.grid(resolution, margin)
    grid = np.stack(np.meshgrid(columns, rows), axis=-1).reshape(-1, 2)
    points = np.concatenate([plane.points, grid])
    with ensemble.member(chosen[1]) as model:
        options = {"l2": l2, "resolution": int(resolution), "margin": margin}
        key = _key(ensemble.run, model, vectors, samples, options)
        stored = PlaneCache(cache, key)
        losses = _Losses(model, ensemble.classifier, samples, omegas, l2)
        values = _computed(losses, plane, points, resolution, stored, verbose)
    return LossPlane(
        steps=chosen,
        x=columns,
        y=rows,
        losses=values[3:].T.reshape(3, resolution, resolution),
        points=plane.points,
        point_losses=values[:3].T,
        l2=l2,
    )


def _checked_steps(
    ensemble: CheckpointEnsemble, steps: Sequence[int] | None
) -> tuple[int, int, int]:
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
            f"loss_plane(steps={chosen}): three different steps of members; "
            f"the ensemble has those of the steps {members}."
        )
    return chosen[0], chosen[1], chosen[2]


def _omegas(run: Run, steps: Iterable[int]) -> Floats:
    """omega as training saw it in the members' rounds, `(3, num_samples)`."""
    rounds = [record.step for record in run.rounds]
    return np.stack([run.replay(rounds.index(s)).distribution for s in steps])


def _parameters(ensemble: CheckpointEnsemble, step: int) -> Floats:
    with ensemble.member(step) as model:
        parts = [
            keras.ops.convert_to_numpy(variable).astype(np.float64).ravel()
            for variable in model.trainable_variables
        ]
    return np.concatenate([np.zeros(0), *parts])


@dataclasses.dataclass(frozen=True, eq=False)
class _Samples:
    """What the loss is computed on.

    Attributes:
        order: Positions in the training set, in one random order.
        batches: Inputs and class indices, as tensors.
        digest: sha256 of the arrays in `batches`.
    """

    order: np.ndarray
    batches: list[tuple[Any, tf.Tensor]]
    digest: bytes

    @classmethod
    def chosen(
        cls,
        ensemble: CheckpointEnsemble,
        x: Any,
        y: Any,
        batch_size: int,
        max_samples: int | None,
    ) -> "_Samples":
        owner = "loss_plane"
        size = arguments.integer(owner, "batch_size", batch_size)
        if max_samples is not None:
            arguments.integer(owner, "max_samples", max_samples)
        x, labels = _checked_data(ensemble, x, y)
        generator = np.random.default_rng(_SEED)
        order = generator.permutation(len(labels))[:max_samples]
        # Of nearly equal size: in training mode a last batch of few samples
        # would be normalised by those few.
        pieces = np.array_split(order, -(-len(order) // size))
        arrays = keras.tree.map_structure(np.asarray, (x, labels))
        digest = hashlib.sha256()
        batches = []
        for piece in pieces:
            batch = keras.tree.map_structure(lambda a, i=piece: a[i], arrays)
            _update(digest, keras.tree.flatten(batch))
            batches.append(keras.tree.map_structure(tf.constant, batch))
        return cls(order, batches, digest.digest())

    def shares(self, omegas: Floats) -> Floats:
        """omega of the chosen samples in their order, each row's sum 1."""
        chosen = omegas[:, self.order]
        return chosen / chosen.sum(axis=1, keepdims=True)


def _checked_data(
    ensemble: CheckpointEnsemble, x: Any, y: Any
) -> tuple[Any, np.ndarray]:
    if isinstance(x, tf.data.Dataset):
        raise ValueError(
            "loss_plane takes the training data as arrays, not as a "
            "tf.data.Dataset: each sample needs its omega. Give `x, y` in the "
            "order of training."
        )
    x, labels = split_labels(ensemble.classifier, x, y)
    num_samples = ensemble.run.header.num_samples
    if len(labels) != num_samples:
        raise ValueError(
            f"There are {len(labels)} samples, but the run was trained on "
            f"{num_samples}, each with its omega: give the training data in "
            "the order of training, and `max_samples=` to use fewer of them."
        )
    if not ensemble.run.is_trained_on(labels):
        raise ValueError(
            "The labels are not those that the run was trained on, in their "
            "order, so that omega would belong to other samples: give the "
            "training data in the order of training."
        )
    return x, labels


class _Losses:
    """The losses at any point of the plane, one a panel.

    Args:
        model: Its trainable variables are overwritten, and the statistics of
            BatchNorm and the states of random generators.
        classifier: How its outputs are read.
        samples: On the device for as long as this lives.
        omegas: A row a panel, in the order of the samples.
        l2: Factor of the sum of squares.
    """

    def __init__(
        self,
        model: keras.Model,
        classifier: Classifier,
        samples: _Samples,
        omegas: Floats,
        l2: float,
    ) -> None:
        self._model = model
        self._batches = samples.batches
        self._omegas = omegas
        self._l2 = l2
        self._recompute = StatisticsRecomputer(model)
        self._cross_entropy = _cross_entropy(model, classifier)

    def __call__(self, vector: Floats) -> Floats:
        """sum of omega_i * CE_i + l2 * |p|^2, shape `(3,)`."""
        _set_parameters(self._model, vector)
        _seed_generators(self._model)
        self._recompute(x for x, _ in self._batches)
        parts = [self._cross_entropy(x, y) for x, y in self._batches]
        each = np.concatenate([part.numpy() for part in parts])
        return self._omegas @ each + self._l2 * float(vector @ vector)


def _set_parameters(model: keras.Model, vector: Floats) -> None:
    start = 0
    for variable in model.trainable_variables:
        end = start + int(np.prod(variable.shape))
        variable.assign(vector[start:end].reshape(variable.shape))
        start = end


def _seed_generators(model: keras.Model) -> None:
    """The same random numbers at each point, and in each session.

    Dropout before a BatchNorm layer has a part in its statistics.
    """
    weights = {id(weight) for weight in model.weights}
    others = (v for v in model.variables if id(v) not in weights)
    for number, state in enumerate(others):
        # Which integers Keras' generators hold depends on the backend.
        if "int" in state.dtype and tuple(state.shape) == (2,):
            state.assign([_SEED + number, 0])


def _cross_entropy(
    model: keras.Model, classifier: Classifier
) -> Callable[[Any, tf.Tensor], tf.Tensor]:
    """Inputs and class indices -> cross-entropy of each sample, float64."""

    @tf.function(reduce_retracing=True)
    def cross_entropy(x: Any, labels: tf.Tensor) -> tf.Tensor:
        outputs = tf.cast(model(x, training=False), tf.float64)
        if classifier.is_binary:
            # Two columns, those of the classes 0 and 1.
            first = 0 * outputs if classifier.from_logits else 1 - outputs
            outputs = tf.concat([first, outputs], axis=1)
        if classifier.from_logits:
            return tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels, outputs
            )
        own = tf.gather(outputs, labels, axis=1, batch_dims=1)
        return -tf.math.log(tf.maximum(own, SMALLEST_PROBABILITY))

    return cross_entropy


def _computed(
    losses: Callable[[Floats], Floats],
    plane: Plane,
    points: Floats,
    resolution: int,
    stored: PlaneCache,
    verbose: int,
) -> Floats:
    """The losses at all points, the members' first, `(num_points, 3)`."""
    values = list(stored.read())
    left = points[len(values) :]
    description = f"loss plane, {len(left)} points"
    for x, y in Reporter(verbose).track(left, len(left), description):
        values.append(losses(plane.vector(x, y)))
        if (len(values) - len(plane.points)) % resolution == 0:
            stored.write(np.stack(values))
    return np.stack(values)


def _key(
    run: Run,
    model: keras.Model,
    vectors: list[Floats],
    samples: _Samples,
    options: dict[str, Any],
) -> str:
    """sha256 of all that decides on the losses.

    Of what was stored or given, and not of what was computed from it: sums may
    be rounded in another way in another process.
    """
    settings = json.dumps([FORMAT, options, run.header.settings.to_json()])
    digest = hashlib.sha256(settings.encode())
    digest.update(samples.digest)
    others = map(keras.ops.convert_to_numpy, model.non_trainable_weights)
    rounds = [run.correct(record.step) for record in run.rounds]
    _update(digest, [run.first_distribution, *rounds, *vectors, *others])
    return digest.hexdigest()


def _update(digest: Any, arrays: Iterable[np.ndarray]) -> None:
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        is_object = array.dtype.kind == "O"  # strings: bytes would be addresses
        digest.update(
            repr(array.tolist()).encode() if is_object else array.tobytes()
        )
