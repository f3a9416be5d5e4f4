"""The loss plane against geometry by hand and Keras' `evaluate`."""

import dataclasses
import io
import math
import re

import hypothesis
import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import blobs, dense_model, memory_ensemble, trained

from cbnn_keras.analysis.geometry import Plane
from cbnn_keras.analysis.loss_plane import loss_plane
from cbnn_keras.analysis.plane_cache import FORMAT
from cbnn_keras.analysis.plane_losses import Losses, set_parameters
from cbnn_keras.boosting_policies import Boosting
from cbnn_keras.models.batch_norm import recompute_statistics
from cbnn_keras.runs.run import labels_id
from cbnn_keras.support.faults import RunError

L2 = 0.01


def norm_model():
    """The second BatchNorm layer sees what the first one has made."""
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dense(5),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy"
    )
    return model


def run_of(make):
    """`(ensemble, x, y)` of five members, with very uneven sample weights."""
    keras.utils.set_random_seed(2)
    callback, _, x, y = trained(
        model=make(),
        num_checkpoints=5,
        deviation_rate=0.1,
        # The stop rule leaves room for five.
        expected_error=0.5,
    )
    return callback.ensemble(), x, y


@pytest.fixture(scope="module")
def dense():
    return run_of(dense_model)


@pytest.fixture(scope="module")
def normed():
    return run_of(norm_model)


@pytest.fixture(scope="module")
def dense_plane(dense):
    return plane_of(dense)


def untrained(model, y, **options):
    """Three members of an untrained model, said to be trained on 8 labels."""
    labels = labels_id(y, np.full(8, 1 / 8))
    return memory_ensemble(model, [1.0] * 3, labels=labels, **options)


def plane_of(run, **options):
    return loss_plane(
        *run, **{"l2": L2, "resolution": 3, "verbose": 0} | options
    )


def omega(ensemble, step):
    """A member's round's, by the rounds before it: eq. 6 in a loop."""
    run = ensemble.run
    rate = run.header.settings.policy.deviation_rate
    weights = [1 / run.header.num_samples] * run.header.num_samples
    for record in run.rounds:
        if record.step == step:
            break
        weights = [
            weight * math.exp(-rate * record.vote * right)
            for weight, right in zip(
                weights, run.correct(record.step), strict=True
            )
        ]
        total = sum(weights)
        weights = [weight / total for weight in weights]
    return np.array(weights)


def sum_of_squares(model):
    return sum(
        float(value) ** 2
        for variable in model.trainable_variables
        for value in np.ravel(keras.ops.convert_to_numpy(variable))
    )


def evaluated(model, x, y, weights):
    """The loss by Keras itself, of the model as it is."""
    loss = model.evaluate(
        x, y, sample_weight=weights, batch_size=len(x), verbose=0
    )
    # Keras' mean is over the number of samples, ours over omega.
    return loss * len(x) + L2 * sum_of_squares(model)


def flat(ensemble, step):
    with ensemble.member(step) as model:
        return np.concatenate(
            [np.ravel(v).astype("float64") for v in model.trainable_variables]
        )


def test_plane_by_hand():
    # u = (0, 0, 2); p1 - p2 = (3, 4, 5), of which (3, 4, 0) is v.
    plane = Plane.through([4, 5, 6], [1, 1, 1], [1, 1, 3])
    np.testing.assert_allclose(plane.points, [[5, 5], [0, 0], [2, 0]])
    np.testing.assert_allclose(plane.x_axis, [0, 0, 1])
    np.testing.assert_allclose(plane.y_axis, [0.6, 0.8, 0])
    np.testing.assert_allclose(plane.vector(-1, 10), [7, 9, 0])
    x, y = plane.grid(3, 0.2)
    np.testing.assert_allclose(x, [-1, 2.5, 6])
    np.testing.assert_allclose(y, [-1, 2.5, 6])
    x, y = plane.grid(2, 0)
    np.testing.assert_allclose((x, y), [[0, 5], [0, 5]])


@hypothesis.settings(derandomize=True, deadline=None)
@hypothesis.given(
    arrays.arrays(np.float64, (3, 7), elements=st.floats(-100, 100))
)
def test_points_stand_for_the_vectors_that_gave_the_plane(vectors):
    try:
        plane = Plane.through(*vectors)
    except ValueError:
        return hypothesis.reject()
    for point, vector in zip(plane.points, vectors, strict=True):
        np.testing.assert_allclose(plane.vector(*point), vector, atol=1e-9)
    assert abs(plane.x_axis @ plane.y_axis) < 1e-9
    for axis in (plane.x_axis, plane.y_axis):
        assert np.linalg.norm(axis) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(
    "vectors",
    [
        [[1, 2], [1, 2], [3, 3]],
        [[3, 3], [1, 2], [1, 2]],
        [[1, 2], [3, 3], [1, 2]],
        [[0, 0], [1, 1], [5, 5]],
        [[], [], []],
    ],
)
def test_vectors_on_a_line_are_refused(vectors):
    with pytest.raises(ValueError, match="on a line, or are equal.*`steps=`"):
        Plane.through(*vectors)


def test_result_has_the_documented_shapes(dense, dense_plane):
    steps = [record.step for record in dense[0].rounds]
    # At equal intervals among five, the last one included.
    assert dense_plane.steps == (steps[1], steps[2], steps[4])
    assert dense_plane.x.shape == dense_plane.y.shape == (3,)
    assert dense_plane.losses.shape == (3, 3, 3)
    assert dense_plane.points.shape == (3, 2)
    assert dense_plane.point_losses.shape == (3, 3)
    assert dense_plane.l2 == L2
    assert dense_plane.losses.dtype == np.float64
    # With uniform weights in every round the panels would be one.
    assert np.abs(np.diff(dense_plane.losses, axis=0)).max() > 0.01


def test_points_and_losses_of_the_dense_model(dense):
    ensemble, x, y = dense
    steps = [record.step for record in ensemble.rounds][2::-1]
    plane = plane_of(dense, steps=steps, batch_size=50)
    assert plane.steps == tuple(steps)
    p1, p2, p3 = (flat(ensemble, step) for step in steps)
    u = p3 - p2
    v = (p1 - p2) - (p1 - p2) @ u / (u @ u) * u
    u, v = u / np.sqrt(u @ u), v / np.sqrt(v @ v)
    # Points are where the members are.
    for (x_value, y_value), vector in zip(
        plane.points, (p1, p2, p3), strict=True
    ):
        np.testing.assert_allclose(p2 + x_value * u + y_value * v, vector)
    where = [
        (panel, vector, plane.point_losses[panel, position])
        for panel in range(3)
        for position, vector in enumerate((p1, p2, p3))
    ]
    for panel, row, column in [(0, 0, 0), (1, 2, 1), (2, 1, 2)]:
        vector = p2 + plane.x[column] * u + plane.y[row] * v
        where.append((panel, vector, plane.losses[panel, row, column]))
    for panel, vector, found in where:
        with ensemble.member(steps[0]) as model:
            kernel, bias, last, last_bias = model.trainable_variables
            kernel.assign(vector[:32].reshape(4, 8))
            bias.assign(vector[32:40])
            last.assign(vector[40:64].reshape(8, 3))
            last_bias.assign(vector[64:])
            weights = omega(ensemble, steps[panel])
            expected = evaluated(model, x, y, weights)
        assert found == pytest.approx(expected, rel=1e-4)


def test_batch_norm_is_recomputed_at_every_point(normed):
    """At members, whose own statistics lag behind, and between them."""
    ensemble, x, y = normed
    # One batch: the second layer's statistics do not depend on the order.
    plane = plane_of(normed, batch_size=len(x))
    geometry = Plane.through(*(flat(ensemble, s) for s in plane.steps))
    weights = omega(ensemble, plane.steps[1])
    where = [
        (plane.points[0], plane.point_losses[1, 0]),
        (plane.points[2], plane.point_losses[1, 2]),
        ((plane.x[2], plane.y[0]), plane.losses[1, 0, 2]),
        ((plane.x[0], plane.y[2]), plane.losses[1, 2, 0]),
    ]
    for point, found in where:
        with ensemble.member(plane.steps[1]) as model:
            set_parameters(model, geometry.vector(*point))
            before = evaluated(model, x, y, weights)
            recompute_statistics(model, [x])
            assert found == pytest.approx(
                evaluated(model, x, y, weights), rel=1e-4
            )
            assert abs(found - before) > 0.01


def test_some_samples_stand_for_all(dense, dense_plane):
    ensemble, x, y = dense
    plane = plane_of(dense, max_samples=30)
    again = plane_of(dense, max_samples=30, batch_size=7)
    np.testing.assert_allclose(plane.losses, again.losses, rtol=1e-5)
    whole = plane_of(dense, max_samples=len(x) + 1)
    np.testing.assert_allclose(whole.losses, dense_plane.losses, rtol=1e-5)
    # The choice by its documented seed; omega sums to 1 again.
    chosen = np.random.default_rng(0).permutation(len(x))[:30]
    weights = omega(ensemble, plane.steps[2])[chosen]
    with ensemble.member(plane.steps[0]) as model:
        expected = evaluated(
            model, x[chosen], y[chosen], weights / weights.sum()
        )
    assert plane.point_losses[2, 0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("num_outputs", [1, 3])
def test_outputs_of_every_kind(num_outputs, from_logits):
    keras.utils.set_random_seed(0)
    is_binary = num_outputs == 1
    activation = "sigmoid" if is_binary else "softmax"
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(
                num_outputs, activation=None if from_logits else activation
            ),
        ]
    )
    kind = "Binary" if is_binary else "SparseCategorical"
    loss = getattr(keras.losses, f"{kind}Crossentropy")(from_logits=from_logits)
    model.compile(loss=loss)
    x, y = blobs(8, num_classes=2 if is_binary else 3)
    ensemble = untrained(model, y, is_binary=is_binary, from_logits=from_logits)
    plane = plane_of((ensemble, x, y))
    with ensemble.member(2):
        expected = evaluated(model, x, y, np.full(8, 1 / 8))
    assert plane.point_losses[0, 1] == pytest.approx(expected, rel=1e-4)


def test_a_certain_mistake_has_a_finite_loss():
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(2, activation="softmax")]
    )
    ensemble = untrained(model, np.ones(8))
    ensemble.run._weights[2] = [np.array([[1e4, -1e4]]), np.zeros(2)]
    plane = plane_of((ensemble, np.ones((8, 1)), np.ones(8)), l2=0)
    # Every sample has probability 0, counted as 1e-7.
    assert plane.point_losses[0, 1] == pytest.approx(-math.log(1e-7))


def test_random_layers_are_the_same_everywhere_and_left_alone():
    dropout = keras.layers.Dropout(0.5)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            dropout,
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    x, y = blobs(8)
    ensemble = untrained(model, y)
    first = plane_of((ensemble, x, y))
    state = dropout.seed_generator.state
    state.assign([7, 7])
    second = plane_of((ensemble, x, y))
    np.testing.assert_array_equal(first.losses, second.losses)
    np.testing.assert_array_equal(state, [7, 7])


def test_several_inputs():
    first, second = keras.Input((4,), name="a"), keras.Input((2,), name="b")
    joined = keras.layers.Concatenate()([first, second])
    outputs = keras.layers.Dense(3, activation="softmax")(joined)
    model = keras.Model({"a": first, "b": second}, outputs)
    model.compile(loss="sparse_categorical_crossentropy")
    x, y = blobs(8)
    ensemble = untrained(model, y)
    inputs = {"a": x, "b": x[:, :2] + 1}
    plane = plane_of((ensemble, inputs, y), batch_size=3)
    with ensemble.member(3):
        loss = model.evaluate(inputs, y, verbose=0)
        expected = loss + L2 * sum_of_squares(model)
    assert plane.point_losses[1, 2] == pytest.approx(expected, rel=1e-4)


# --- The file ---


@pytest.fixture
def points(monkeypatch):
    """The points that are computed; `limit` is where Ctrl-C comes."""

    class Points(list):
        limit = math.inf

    computed, compute = Points(), Losses.__call__

    def counting(self, vector):
        if len(computed) == computed.limit:
            raise KeyboardInterrupt
        computed.append(vector)
        return compute(self, vector)

    monkeypatch.setattr(Losses, "__call__", counting)
    return computed


def test_file_is_read_instead_of_computing(
    dense, dense_plane, tmp_path, points
):
    path = tmp_path / "plane.npz"
    for cache in (path, str(path)):
        plane = plane_of(dense, cache=cache)
        assert len(points) == 3 + 9
        np.testing.assert_array_equal(plane.losses, dense_plane.losses)
        np.testing.assert_array_equal(
            plane.point_losses, dense_plane.point_losses
        )
    assert [file.name for file in tmp_path.iterdir()] == ["plane.npz"]


def test_interrupted_computation_is_resumed(normed, tmp_path, points):
    path = tmp_path / "plane.npz"
    ensemble, *_ = normed
    before = [np.array(v) for v in ensemble.model.variables]
    whole = plane_of(normed)
    points.limit = len(points) + 3 + 3 + 2  # in the middle of the second row
    with pytest.raises(KeyboardInterrupt):
        plane_of(normed, cache=path)
    # The model is left as it was, whatever happens.
    for one, other in zip(before, ensemble.model.variables, strict=True):
        np.testing.assert_array_equal(one, other)
    points.clear()
    plane = plane_of(normed, cache=path)
    assert len(points) == 6
    np.testing.assert_array_equal(plane.losses, whole.losses)
    np.testing.assert_array_equal(plane.point_losses, whole.point_losses)


def test_file_of_anything_else_is_refused(dense, normed, tmp_path):
    ensemble, x, y = dense
    path = tmp_path / "plane.npz"
    plane_of(dense, cache=path)
    content = path.read_bytes()
    header = ensemble.run.header
    faster = dataclasses.replace(
        header.settings, policy=Boosting(0.2, expected_error=0.5)
    )
    others = [
        (dense, {"l2": 0.02}),
        (dense, {"margin": 0.5}),
        (dense, {"resolution": 4}),
        (dense, {"batch_size": 7}),
        (dense, {"max_samples": 100}),
        (dense, {"steps": [record.step for record in ensemble.rounds[:3]]}),
        ((ensemble, x + 1e-3, y), {}),
        (normed, {}),
        (dense, {}),
    ]
    for number, (run, options) in enumerate(others, start=1):
        if number == len(others):  # another omega
            ensemble.run.header = dataclasses.replace(header, settings=faster)
        try:
            with pytest.raises(
                ValueError,
                match=r"plane.npz.*other members, data or arguments.*delete "
                r"it, or",
            ):
                plane_of(run, cache=path, **options)
        finally:
            ensemble.run.header = header
    assert path.read_bytes() == content
    path.write_bytes(content[:-100])
    with pytest.raises(ValueError, match="or damaged.*delete it"):
        plane_of(dense, cache=path)


def npz(**arrays):
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"the only copy of a thesis",
        b"",
        npz(x=np.arange(3)),
        npz(format=np.array([{}], dtype=object)),
        npz(format=FORMAT),
        npz(format=FORMAT, key="x", values=np.zeros(3)),
    ],
    ids=["text", "nothing", "arrays", "pickle", "no key", "no plane"],
)
def test_foreign_file_is_refused_and_left_alone(dense, tmp_path, content):
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"mine.npz.*no loss plane.*delete it, or give another"
    ):
        plane_of(dense, cache=path)
    assert path.read_bytes() == content
    with pytest.raises(ValueError, match="no loss plane"):
        plane_of(dense, cache=tmp_path)
    with pytest.raises(ValueError, match="no directory.*nowhere. Create it"):
        plane_of(dense, cache=tmp_path / "nowhere" / "plane.npz")


# --- Bad input ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"resolution": 1},
            "(resolution=1): resolution must be an integer of at least 2.",
        ),
        ({"resolution": 2.5}, "loss_plane(resolution=2.5): resolution must be"),
        (
            {"margin": -0.1},
            "margin=-0.1): margin must be a share of at least 0",
        ),
        ({"l2": -1}, "loss_plane(l2=-1): l2 must be a number of at least 0"),
        ({"l2": math.nan}, "loss_plane(l2=nan): l2 must be a number"),
        ({"batch_size": 0}, "loss_plane(batch_size=0): batch_size must be an"),
        ({"max_samples": 0}, "loss_plane(max_samples=0): max_samples must be"),
        ({"steps": [5, 10]}, "(steps=[5, 10]): these must be three different"),
        ({"steps": [5, 5, 10]}, "(steps=[5, 5, 10]): these must be three"),
        ({"steps": [5, 6, 10]}, "the ensemble has those of the steps [5, 10,"),
        ({"steps": [5, 10, 15, 6]}, "must be three different steps of members"),
    ],
)
def test_arguments_out_of_range(dense, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        plane_of(dense, **options)


def test_members_that_give_no_plane(dense):
    ensemble, x, y = dense
    with pytest.raises(ValueError, match="three members; the ensemble has 2"):
        plane_of((ensemble.select(2), x, y))
    x, y = blobs(8)
    equal = untrained(dense_model(), y)
    stored = equal.run._weights
    stored[3] = [weight.copy() for weight in stored[1]]
    with pytest.raises(ValueError, match="lie on a line, or are equal"):
        plane_of((equal, x, y))


def test_other_data_than_those_of_training_are_refused(dense, dense_plane):
    ensemble, x, y = dense
    order = "labels are not those that the run was trained on, in their order"
    for inputs, labels, message in [
        (
            x[:100],
            y[:100],
            "100 samples, .* trained on 120.*in the order of training",
        ),
        (x, y[:100], "100 labels for inputs of length 120"),
        (x, y + 1, "Labels must be integers in 0..2"),
        (x, np.ones((120, 2)), r"Labels have shape \(120, 2\)"),
        (x[::-1], y[::-1], order),
        (x, (y + 1) % 3, order),
        (
            tf.data.Dataset.from_tensor_slices((x, y)),
            None,
            "as arrays, not as a tf.data.Dataset",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            plane_of((ensemble, inputs, labels))
    one_hot = plane_of((ensemble, x, np.eye(3)[y]))
    np.testing.assert_array_equal(one_hot.losses, dense_plane.losses)


def test_no_file_is_kept_in_a_run(dense, blobs_run):
    before = sorted(blobs_run.rglob("*"))
    for name in ("plane.npz", "manifest.json", "members/1.npz"):
        with pytest.raises(
            RunError, match="is inside the run .*, which is not"
        ):
            plane_of(dense, cache=blobs_run / name)
    assert sorted(blobs_run.rglob("*")) == before
