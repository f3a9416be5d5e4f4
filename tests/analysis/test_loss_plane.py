"""The loss plane against geometry by hand, Keras' `evaluate` and NumPy."""

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

from cbnn_keras.analysis import loss_plane as module
from cbnn_keras.analysis.geometry import Plane
from cbnn_keras.analysis.loss_plane import loss_plane
from cbnn_keras.models.batch_norm import recompute_statistics

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


def plane_of(run, **options):
    return loss_plane(
        *run, **{"l2": L2, "resolution": 3, "verbose": 0} | options
    )


def omega(ensemble, step):
    """Of a member's round, by the rounds before it: eq. 6 in a loop."""
    run = ensemble.run
    weights = [1 / run.header["num_samples"]] * run.header["num_samples"]
    for record in run.rounds:
        if record["step"] == step:
            break
        rate = run.header["settings"]["deviation_rate"]
        correct = run.correct(record["step"])
        weights = [
            weight * math.exp(-rate * record["vote"] * right)
            for weight, right in zip(weights, correct, strict=True)
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


def numpy_loss(vector, x, y, weights):
    """The dense model in loops: 4 -> 8 -> 3."""
    kernel, bias = vector[:32].reshape(4, 8), vector[32:40]
    last, last_bias = vector[40:64].reshape(8, 3), vector[64:67]
    total = 0.0
    for sample, label, weight in zip(x, y, weights, strict=True):
        scores = np.maximum(sample @ kernel + bias, 0) @ last + last_bias
        largest = scores.max()
        normaliser = largest + math.log(
            sum(math.exp(score - largest) for score in scores)
        )
        total += weight * (normaliser - scores[label])
    return total + L2 * sum(value**2 for value in vector)


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
    x, y = plane.grid(4, 0.25)
    assert x[0] < plane.points[:, 0].min() < plane.points[:, 0].max() < x[-1]
    assert y[0] < plane.points[:, 1].min() < plane.points[:, 1].max() < y[-1]


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


def test_result_has_the_documented_shapes(dense):
    ensemble, *_ = dense
    plane = plane_of(dense, resolution=4)
    steps = [record["step"] for record in ensemble.members]
    # At equal intervals among five, the last one included.
    assert plane.steps == (steps[1], steps[2], steps[4])
    assert plane.x.shape == plane.y.shape == (4,)
    assert plane.losses.shape == (3, 4, 4)
    assert plane.points.shape == (3, 2)
    assert plane.point_losses.shape == (3, 3)
    assert plane.l2 == L2
    assert plane.losses.dtype == plane.point_losses.dtype == np.float64


def test_points_are_the_members(dense):
    ensemble, x, y = dense
    steps = [record["step"] for record in ensemble.members][2::-1]
    plane = plane_of(dense, steps=steps)
    assert plane.steps == tuple(steps)
    geometry = Plane.through(*(flat(ensemble, step) for step in steps))
    np.testing.assert_allclose(plane.points, geometry.points)
    for step, point in zip(steps, plane.points, strict=True):
        with ensemble.member(step) as model:
            weights = model.get_weights()
            module._set_parameters(model, geometry.vector(*point))
            for one, other in zip(weights, model.get_weights(), strict=True):
                np.testing.assert_allclose(one, other, atol=1e-5)


def test_loss_at_a_member_is_its_own(dense):
    ensemble, x, y = dense
    plane = plane_of(dense)
    for panel, of_round in enumerate(plane.steps):
        weights = omega(ensemble, of_round)
        for position, step in enumerate(plane.steps):
            with ensemble.member(step) as model:
                expected = evaluated(model, x, y, weights)
            assert plane.point_losses[panel, position] == pytest.approx(
                expected, rel=1e-4
            )


def test_loss_at_a_member_with_batch_norm_is_with_its_own_statistics(normed):
    ensemble, x, y = normed
    # One batch: the second layer's statistics do not depend on the order.
    plane = plane_of(normed, batch_size=len(x))
    for panel, of_round in enumerate(plane.steps):
        weights = omega(ensemble, of_round)
        for position, step in enumerate(plane.steps):
            with ensemble.member(step) as model:
                stored = evaluated(model, x, y, weights)
                recompute_statistics(model, [x])
                expected = evaluated(model, x, y, weights)
            found = plane.point_losses[panel, position]
            assert found == pytest.approx(expected, rel=1e-4)
            # Moving statistics lag behind by a hundred steps.
            assert abs(found - stored) > 0.01


def test_grid_points_by_hand(dense):
    ensemble, x, y = dense
    plane = plane_of(dense, resolution=4, batch_size=50)
    p1, p2, p3 = (flat(ensemble, step) for step in plane.steps)
    u = p3 - p2
    v = (p1 - p2) - (p1 - p2) @ u / (u @ u) * u
    for panel, row, column in [(0, 0, 0), (1, 3, 1), (2, 1, 3), (2, 2, 2)]:
        vector = (
            p2
            + plane.x[column] * u / np.sqrt(u @ u)
            + plane.y[row] * v / np.sqrt(v @ v)
        )
        weights = omega(ensemble, plane.steps[panel])
        assert plane.losses[panel, row, column] == pytest.approx(
            numpy_loss(vector, x, y, weights), rel=1e-4
        )


def test_batch_norm_is_recomputed_at_every_grid_point(normed):
    ensemble, x, y = normed
    plane = plane_of(normed, batch_size=len(x))
    geometry = Plane.through(*(flat(ensemble, s) for s in plane.steps))
    weights = omega(ensemble, plane.steps[1])
    with ensemble.member(plane.steps[1]) as model:
        for row, column in [(0, 2), (2, 0)]:
            vector = geometry.vector(plane.x[column], plane.y[row])
            module._set_parameters(model, vector)
            before = evaluated(model, x, y, weights)
            recompute_statistics(model, [x])
            found = plane.losses[1, row, column]
            assert found == pytest.approx(
                evaluated(model, x, y, weights), rel=1e-4
            )
            assert abs(found - before) > 0.01


def test_panels_have_the_weights_of_their_rounds(dense):
    ensemble, *_ = dense
    plane = plane_of(dense)
    # With uniform weights in every round the panels would be one.
    assert np.abs(plane.losses[0] - plane.losses[1]).max() > 0.01
    assert np.abs(plane.losses[1] - plane.losses[2]).max() > 0.01
    # Omega of a later round is heavy where a member was wrong.
    assert plane.point_losses[2, 0] > plane.point_losses[0, 0]


def test_loss_is_a_sum_of_two_terms(dense):
    ensemble, *_ = dense
    without, with_l2 = plane_of(dense, l2=0), plane_of(dense, l2=0.5)
    for position, step in enumerate(without.steps):
        with ensemble.member(step) as model:
            expected = 0.5 * sum_of_squares(model)
        difference = with_l2.point_losses - without.point_losses
        np.testing.assert_allclose(difference[:, position], expected, rtol=1e-5)


def test_some_samples_stand_for_all(dense):
    ensemble, x, y = dense
    plane = plane_of(dense, max_samples=30)
    again = plane_of(dense, max_samples=30, batch_size=7)
    np.testing.assert_allclose(plane.losses, again.losses, rtol=1e-5)
    everything = plane_of(dense, max_samples=len(x) + 1)
    np.testing.assert_allclose(
        everything.losses, plane_of(dense).losses, rtol=1e-5
    )
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
    ensemble = memory_ensemble(
        model, [1.0, 1.0, 1.0], is_binary=is_binary, from_logits=from_logits
    )
    x, y = blobs(8, num_classes=2 if is_binary else 3)
    plane = plane_of((ensemble, x, y))
    with ensemble.member(2):
        expected = evaluated(model, x, y, np.full(8, 1 / 8))
    assert plane.point_losses[0, 1] == pytest.approx(expected, rel=1e-4)


def test_a_certain_mistake_has_a_finite_loss():
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(2, activation="softmax")]
    )
    ensemble = memory_ensemble(model, [1.0, 1.0, 1.0])
    ensemble.run._weights[2] = [np.array([[1e4, -1e4]]), np.zeros(2)]
    plane = plane_of((ensemble, np.ones((8, 1)), np.ones(8)), l2=0)
    # Every sample has probability 0, counted as 1e-7.
    assert plane.point_losses[0, 1] == pytest.approx(-math.log(1e-7))


def test_several_inputs():
    first, second = keras.Input((4,), name="a"), keras.Input((2,), name="b")
    joined = keras.layers.Concatenate()([first, second])
    outputs = keras.layers.Dense(3, activation="softmax")(joined)
    model = keras.Model({"a": first, "b": second}, outputs)
    model.compile(loss="sparse_categorical_crossentropy")
    ensemble = memory_ensemble(model, [1.0, 1.0, 1.0])
    x, y = blobs(8)
    inputs = {"a": x, "b": x[:, :2] + 1}
    plane = plane_of((ensemble, inputs, y), batch_size=3)
    with ensemble.member(3):
        loss = model.evaluate(inputs, y, verbose=0)
        expected = loss + L2 * sum_of_squares(model)
    assert plane.point_losses[1, 2] == pytest.approx(expected, rel=1e-4)


def everything(model):
    return [np.array(v) for v in (*model.variables, *model.get_weights())]


def test_model_is_left_as_it_was(normed, monkeypatch):
    ensemble, *_ = normed
    before = everything(ensemble.model)
    plane_of(normed)
    interrupt_after(monkeypatch, 5)
    with pytest.raises(KeyboardInterrupt):
        plane_of(normed)
    after = everything(ensemble.model)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


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
    ensemble = memory_ensemble(model, [1.0, 1.0, 1.0])
    x, y = blobs(8)
    first = plane_of((ensemble, x, y))
    state = dropout.seed_generator.state
    state.assign([7, 7])
    second = plane_of((ensemble, x, y))
    np.testing.assert_array_equal(first.losses, second.losses)
    np.testing.assert_array_equal(state, [7, 7])


def interrupt_after(monkeypatch, num_points):
    """Makes the next point after so many raise what Ctrl-C does."""
    count = counted(monkeypatch)
    compute = module._Losses.__call__

    def interrupted(self, vector):
        if len(count) == num_points:
            raise KeyboardInterrupt
        return compute(self, vector)

    monkeypatch.setattr(module._Losses, "__call__", interrupted)


def counted(monkeypatch):
    """A list that grows with every point that is computed."""
    count = []
    compute = module._Losses.__call__

    def counting(self, vector):
        count.append(vector)
        return compute(self, vector)

    monkeypatch.setattr(module._Losses, "__call__", counting)
    return count


def test_cache_is_read_instead_of_computing(dense, tmp_path, monkeypatch):
    path = tmp_path / "plane.npz"
    without = plane_of(dense)
    count = counted(monkeypatch)
    first = plane_of(dense, cache=path)
    assert len(count) == 3 + 9
    second = plane_of(dense, cache=str(path))
    assert len(count) == 3 + 9
    for plane in (first, second):
        np.testing.assert_array_equal(plane.losses, without.losses)
        np.testing.assert_array_equal(plane.point_losses, without.point_losses)
    assert [file.name for file in tmp_path.iterdir()] == ["plane.npz"]


def test_interrupted_computation_goes_on(normed, tmp_path, monkeypatch):
    path = tmp_path / "plane.npz"
    whole = plane_of(normed)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3 + 3 + 2)  # in the middle of the second row
        with pytest.raises(KeyboardInterrupt):
            plane_of(normed, cache=path)
    count = counted(monkeypatch)
    plane = plane_of(normed, cache=path)
    assert len(count) == 6
    np.testing.assert_array_equal(plane.losses, whole.losses)
    np.testing.assert_array_equal(plane.point_losses, whole.point_losses)


def test_cache_of_anything_else_is_refused(dense, normed, tmp_path):
    ensemble, x, y = dense
    path = tmp_path / "plane.npz"
    plane_of(dense, cache=path)
    content = path.read_bytes()
    steps = [record["step"] for record in ensemble.members]
    others = [
        (dense, {"l2": 0.02}),
        (dense, {"margin": 0.5}),
        (dense, {"resolution": 4}),
        (dense, {"batch_size": 7}),
        (dense, {"max_samples": 100}),
        (dense, {"steps": steps[:3]}),
        ((ensemble, x + 1e-3, y), {}),
        (normed, {}),
    ]
    for run, options in others:
        with pytest.raises(
            ValueError,
            match=r"plane.npz.*other members, data or arguments.*delete it, or",
        ):
            plane_of(run, cache=path, **options)
    assert path.read_bytes() == content


def test_cache_of_other_omega_is_refused(dense, tmp_path):
    ensemble, *_ = dense
    path = tmp_path / "plane.npz"
    plane_of(dense, cache=path)
    settings = ensemble.run.header["settings"]
    rate = settings["deviation_rate"]
    settings["deviation_rate"] = 0.2
    try:
        with pytest.raises(ValueError, match="other members, data or"):
            plane_of(dense, cache=path)
    finally:
        settings["deviation_rate"] = rate


def test_strings_are_told_apart():
    hashes = []
    for text in ("one", "one", "two"):
        array = np.array([text, "".join(list("three"))], dtype=object)
        digest = module.hashlib.sha256()
        module._update(digest, [array])
        hashes.append(digest.hexdigest())
    assert hashes[0] == hashes[1] != hashes[2]


def write_text(path):
    path.write_text("the only copy of a thesis")


def write_nothing(path):
    path.touch()


def write_array(path):
    with path.open("wb") as file:
        np.save(file, np.arange(3))


def write_arrays(path):
    np.savez(path, x=np.arange(3))


def write_pickle(path):
    np.savez(path, format=np.array([{}], dtype=object))


@pytest.mark.parametrize(
    "write",
    [write_text, write_nothing, write_array, write_arrays, write_pickle],
)
def test_foreign_file_is_refused_and_left_alone(dense, tmp_path, write):
    path = tmp_path / "mine.npz"
    write(path)
    content = path.read_bytes()
    with pytest.raises(
        ValueError, match=r"mine.npz.*no loss plane.*delete it, or give another"
    ):
        plane_of(dense, cache=path)
    assert path.read_bytes() == content


def test_damaged_cache_is_refused(dense, tmp_path):
    path = tmp_path / "plane.npz"
    plane_of(dense, cache=path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="or damaged.*delete it"):
        plane_of(dense, cache=path)
    with pytest.raises(ValueError, match="no loss plane"):
        plane_of(dense, cache=tmp_path)
    with pytest.raises(ValueError, match="no directory.*nowhere. Create it"):
        plane_of(dense, cache=tmp_path / "nowhere" / "plane.npz")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resolution": 1}, "loss_plane(resolution=1): an integer of at least"),
        ({"resolution": 2.5}, "loss_plane(resolution=2.5): an integer"),
        ({"margin": -0.1}, "loss_plane(margin=-0.1): a share of at least 0"),
        ({"l2": -1}, "loss_plane(l2=-1): a number of at least 0"),
        ({"l2": math.nan}, "loss_plane(l2=nan): a number of at least 0"),
        ({"batch_size": 0}, "loss_plane(batch_size=0): an integer of at least"),
        ({"max_samples": 0}, "loss_plane(max_samples=0): an integer of at"),
        ({"steps": [5, 10]}, "loss_plane(steps=[5, 10]): three different"),
        ({"steps": [5, 5, 10]}, "(steps=[5, 5, 10]): three different steps"),
        ({"steps": [5, 6, 10]}, "the ensemble has those of the steps [5, 10,"),
        ({"steps": [5, 10, 15, 6]}, "three different steps of members"),
    ],
)
def test_arguments_out_of_range(dense, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        plane_of(dense, **options)


def test_two_members_give_no_plane(dense):
    ensemble, x, y = dense
    with pytest.raises(ValueError, match="three members; the ensemble has 2"):
        plane_of((ensemble.select(2), x, y))


def test_members_on_a_line_give_no_plane():
    model = dense_model()
    ensemble = memory_ensemble(model, [1.0, 1.0, 1.0])
    stored = ensemble.run._weights
    stored[3] = [weight.copy() for weight in stored[1]]
    with pytest.raises(ValueError, match="lie on a line, or are equal"):
        plane_of((ensemble, *blobs(8)))


def test_other_data_than_those_of_training_are_refused(dense):
    ensemble, x, y = dense
    for run, message in [
        (
            (ensemble, x[:100], y[:100]),
            "100 samples, .* trained on 120.*in the order of training",
        ),
        ((ensemble, x, y[:100]), "100 labels for inputs of length 120"),
        ((ensemble, x, y + 1), "Labels must be integers in 0..2"),
        ((ensemble, x, np.ones((120, 2))), r"Labels have shape \(120, 2\)"),
        (
            (ensemble, tf.data.Dataset.from_tensor_slices((x, y)), None),
            "as arrays, not as a tf.data.Dataset",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            plane_of(run)
    one_hot = plane_of((ensemble, x, np.eye(3)[y]))
    np.testing.assert_array_equal(one_hot.losses, plane_of(dense).losses)


def test_training_data_in_another_order_are_refused(dense):
    ensemble, x, y = dense
    message = "labels are not those that the run was trained on, in their order"
    with pytest.raises(ValueError, match=message):
        plane_of((ensemble, x[::-1], y[::-1]))
    with pytest.raises(ValueError, match=message):
        plane_of((ensemble, x, (y + 1) % 3))
