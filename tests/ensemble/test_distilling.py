"""Tests of `distil`: one network that learns what an ensemble says."""

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from helpers import Undescribed, blobs, dense_model, memory_ensemble, trained

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.calibration import CalibrationRecord
from cbnn_keras.data.labelled_samples import LabelledSamples, read_unlabelled
from cbnn_keras.ensemble.distillation import (
    Lesson,
    Material,
    check_can_be_blended,
    epoch_counter,
    usual_mixup,
)
from cbnn_keras.ensemble.soft_targets import fresh_optimizer, soft_target_loss
from cbnn_keras.export import export_onnx, export_saved_model
from cbnn_keras.models.classifier import Classifier
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.support.faults import RunError

X, Y = blobs()


@pytest.fixture(scope="module")
def ensemble():
    keras.utils.set_random_seed(0)  # it comes before what does so for tests
    return trained(data=(X, Y))[0].ensemble()


@pytest.fixture(scope="module")
def student(ensemble, tmp_path_factory):
    """A student in a directory: `(ensemble of one, path)`."""
    keras.utils.set_random_seed(0)
    path = tmp_path_factory.mktemp("distilled") / "student"
    made = ensemble.distil(
        X, Y, directory=path, epochs=40, optimizer=adam(0.02), seed=3, verbose=0
    )
    return made, path


def adam(rate):
    return keras.optimizers.Adam(rate)


def linear(num_classes=3, activation="softmax"):
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(num_classes, activation=activation),
        ]
    )


def softmax(logits):
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


# --- The student ---


def test_a_student_comes_near_its_teacher(ensemble, student):
    """Closer than a member is to the ensemble."""
    taught = ensemble.predict(X, verbose=0)
    learnt = student[0].predict(X, verbose=0)
    member = ensemble.take([ensemble.members[0]["step"]]).predict(X, verbose=0)
    assert np.abs(learnt - taught).mean() < 0.03
    assert np.abs(learnt - taught).mean() < np.abs(member - taught).mean() / 2


def test_the_student_is_a_run_of_one_member(ensemble, student):
    made, path = student
    loaded = CheckpointEnsemble.load(path)
    assert len(made) == len(loaded) == 1 and loaded.run.is_finished
    np.testing.assert_array_equal(
        loaded.predict(X, verbose=0), made.predict(X, verbose=0)
    )
    header = loaded.run.header
    assert header.method == "distilled" and header.num_samples == len(Y)
    assert loaded.run.is_trained_on(Y)
    own = header.settings.own
    assert own["made_of"] == "cbnn" and own["epochs"] == 40
    assert own["made_of_members"] == [m["step"] for m in ensemble.members]
    assert own["made_of_votes"] == ensemble.votes.tolist()
    [record] = loaded.members
    found = loaded.predict(X, verbose=0)
    assert record["error"] == pytest.approx((found.argmax(1) != Y).mean())
    assert record["step"] == 40 * 6 and record["is_final"]
    assert len(loaded.select(num=3)) == 1


@pytest.mark.large
def test_equal_seeds_give_equal_students(ensemble):
    first, again, other = (
        ensemble.distil(X, Y, epochs=2, seed=seed, verbose=0).predict(
            X, verbose=0
        )
        for seed in (3, 3, 4)
    )
    assert again.tobytes() == first.tobytes()
    assert np.abs(other - first).max() > 1e-3


@pytest.mark.parametrize(
    ("part", "batch_size", "epochs"),
    [
        (slice(None), None, 8),  # 4 epochs of 6 steps, 6 steps again
        (slice(None, None, 2), None, 16),  # 3 steps an epoch
        (slice(None), 50, 16),  # 3 again: the last batch is a small one
        (slice(100), 28, 12),  # 4
    ],
)
def test_twice_the_steps_of_the_run(ensemble, part, batch_size, epochs):
    student = ensemble.distil(
        X[part], Y[part], batch_size=batch_size, mixup=0, verbose=0
    )
    assert student.run.header.settings.own["epochs"] == epochs


def test_twice_the_steps_that_were_made_before_it_stopped():
    stops = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(
            stops.model, "stop_training", epoch == 1
        )
    )
    cbnn, model = CBNNCallback(stops_early=True), dense_model()
    train = cbnn.weighted(X, Y, batch_size=20)
    model.fit(train, epochs=50, callbacks=[stops, cbnn], verbose=0)
    student = cbnn.ensemble().distil(X, Y, mixup=0, verbose=0)
    assert student.run.header.settings.own["epochs"] == 4


def test_thirty_epochs_of_what_was_put_together():
    made = memory_ensemble(dense_model(), [1.0, 2.0])
    student = made.distil(X, Y, batch_size=120, mixup=0, verbose=0)
    assert student.run.header.settings.own["epochs"] == 30


def test_the_teacher_is_left_as_it_was(ensemble):
    before = [np.array(w) for w in ensemble.model.get_weights()]
    ensemble.distil(X, Y, epochs=1, mixup=0.3, verbose=0)
    for kept, now in zip(before, ensemble.model.get_weights(), strict=True):
        np.testing.assert_array_equal(kept, now)
    assert ensemble.model.trainable


def test_exports_of_a_student_in_their_runtimes(student, tmp_path):
    made, _ = student
    expected = made.predict(X, verbose=0)
    export_onnx(made, tmp_path / "student.onnx", verbose=0)
    session = onnxruntime.InferenceSession(
        str(tmp_path / "student.onnx"), providers=["CPUExecutionProvider"]
    )
    [found] = session.run(None, {session.get_inputs()[0].name: X})
    assert np.abs(found - expected).max() <= 1e-5
    path = export_saved_model(made, tmp_path / "saved", verbose=0).path
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    [name] = serve.structured_input_signature[1]
    found = serve(**{name: tf.constant(X)})["probabilities"].numpy()
    assert np.abs(found - expected).max() <= 1e-5


@pytest.mark.large
def test_a_model_of_ones_own(ensemble):
    own = linear(activation=None)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    own.compile(keras.optimizers.SGD(0.1), loss)
    optimizer = own.optimizer
    made = ensemble.distil(own, (X, Y), epochs=5, verbose=0)
    assert made.model is own and own.optimizer is optimizer
    assert made.run.header.settings.optimizer == "SGD"
    assert made.classifier.from_logits
    np.testing.assert_allclose(
        made.predict(X, verbose=0),
        softmax(own.predict(X, verbose=0)),
        atol=1e-6,
    )
    by_name = linear(activation=None)
    by_name.set_weights([np.zeros((4, 3)), np.zeros(3)])
    ensemble.distil(X, Y, student=by_name, epochs=1, verbose=0)
    assert np.abs(by_name.get_weights()[0]).max() > 0


def test_frozen_layers_of_the_members_stay():
    model = dense_model()
    model.layers[0].trainable = False
    frozen = np.array(model.layers[0].kernel)
    model.compile(adam(0.05), "sparse_categorical_crossentropy")
    made = trained(data=(X, Y), model=model)[0].ensemble()
    student = made.distil(X, Y, epochs=1, verbose=0)
    kept = np.array(student.model.layers[0].kernel)
    np.testing.assert_array_equal(kept, frozen)


def test_members_of_a_class_without_a_config_teach_a_model_of_ones_own():
    layers = [keras.layers.Dense(3, activation="softmax")]
    model = Undescribed(layers)
    model.compile(adam(0.05), "sparse_categorical_crossentropy")
    made = trained(data=(X, Y), model=model)[0].ensemble()
    student = made.distil(X, Y, student=linear(), epochs=2, verbose=0)
    assert len(student) == 1


def test_names_of_classes_are_those_of_training(ensemble):
    names = np.array(["ant", "bee", "cat"])
    callback, *_ = trained(data=(X, names[Y]))
    made = callback.ensemble()
    # Without bees: cats would be class 1 of two.
    some = Y != 1
    student = made.distil(X[some], names[Y][some], epochs=1, verbose=0)
    assert student.run.is_trained_on(Y[some])
    assert student.run.header.class_names == names.tolist()


# --- Against a loop by hand ---


@pytest.mark.parametrize(
    ("temperature", "alpha", "share"),
    [(1.0, 0.0, 0.0), (2.0, 0.0, 0.25), (3.0, 0.4, 0.0)],
)
def test_equals_training_by_hand(
    ensemble, temperature, alpha, share, monkeypatch
):
    """A linear student, one batch a step: plain gradient descent in NumPy.

    What is taught is calibrated, if the ensemble is: here by a share.
    """
    student = linear(activation=None)
    weights, bias = (np.array(w, np.float64) for w in student.get_weights())
    epochs, highest = 12, 0.1
    said = ensemble.predict(X, verbose=0).astype(np.float64)
    said = (1 - share) * said + share / 3
    steps = [record.step for record in ensemble.rounds]
    if share:
        votes = ensemble.votes.tolist()
        record = CalibrationRecord(1.0, 9, steps, votes, share=share)
        monkeypatch.setattr(ensemble.run, "calibration", record)
    soft = said ** (1 / temperature)
    soft /= soft.sum(axis=1, keepdims=True)
    for epoch in range(epochs):
        logits = X @ weights + bias
        # The derivative of T^2 * KL(q_T, softmax(z / T)) is T * (p_T - q_T).
        by_teacher = temperature * (softmax(logits / temperature) - soft)
        by_label = softmax(logits) - np.eye(3)[Y]
        slope = (alpha * by_label + (1 - alpha) * by_teacher) / len(X)
        rate = highest * (1 + np.cos(np.pi * epoch / epochs)) / 2
        weights -= rate * X.T @ slope
        bias -= rate * slope.sum(axis=0)
    ensemble.distil(
        X,
        Y,
        student=student,
        epochs=epochs,
        batch_size=len(X),
        temperature=temperature,
        alpha=alpha,
        optimizer=keras.optimizers.SGD(highest),
        from_logits=True,
        mixup=0,
        verbose=0,
    )
    found, found_bias = student.get_weights()
    np.testing.assert_allclose(found, weights, atol=2e-5)
    np.testing.assert_allclose(found_bias, bias, atol=2e-5)


@pytest.mark.large
def test_a_linear_teacher_is_recovered():
    """What it says determines its weights, but for a shift of all logits."""
    teacher = linear()
    made = memory_ensemble(teacher, [1.0])
    with made.member(1) as model:
        expected = model.get_weights()[0]
    generator = np.random.default_rng(0)
    x = generator.normal(size=(256, 4)).astype("float32")
    student = made.distil(
        x, np.zeros(256), epochs=150, optimizer=adam(0.1), verbose=0, seed=1
    )
    with student.member(student.members[0]["step"]) as model:
        found = model.get_weights()[0]
    np.testing.assert_allclose(
        found - found.mean(1, keepdims=True),
        expected - expected.mean(1, keepdims=True),
        atol=0.02,
    )


def test_the_loss_by_hand_for_every_kind_of_output():
    """One sample, T = 2, alpha = 0.25, logits ln 4 and 0."""
    hard, soft = [0.0, 1.0], [0.9, 0.1]  # at T = 2: 3/4 and 1/4
    targets = tf.constant([hard + soft])
    # p = (4/5, 1/5), and at T = 2 (2/3, 1/3).
    by_label = -np.log(1 / 5)
    by_teacher = 3 / 4 * np.log((3 / 4) / (2 / 3))
    by_teacher += 1 / 4 * np.log((1 / 4) / (1 / 3))
    expected = 0.25 * by_label + 0.75 * 4 * by_teacher
    log4 = float(np.log(4))
    for is_binary, from_logits, outputs in (
        (False, True, [[log4, 0.0]]),
        (False, False, [[0.8, 0.2]]),
        (True, True, [[-log4]]),
        (True, False, [[0.2]]),
    ):
        loss = soft_target_loss(Classifier(2, is_binary, from_logits), 2, 0.25)
        [found] = loss(targets, tf.constant(outputs))
        assert float(found) == pytest.approx(expected, rel=1e-5)
    unlabelled = tf.constant([[0.0, 0.0] + soft])
    [found] = soft_target_loss(Classifier(2, True, False), 2, 0.25)(
        unlabelled, tf.constant([[0.2]])
    )
    assert float(found) == pytest.approx(3 * by_teacher, rel=1e-5)


@pytest.mark.large
def test_a_binary_ensemble():
    labels = (Y == 0).astype(int)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")]
    )
    model.compile(adam(0.1), "binary_crossentropy")
    made = trained(data=(X, labels), model=model)[0].ensemble()
    for options in ({}, {"mixup": 0.1}):
        student = made.distil(
            X, labels, epochs=15, optimizer=adam(0.1), verbose=0, **options
        )
        found = student.predict(X, verbose=0)
        assert found.shape == (len(X), 1)
        assert np.abs(found - made.predict(X, verbose=0)).mean() < 0.05


# --- Views ---


def lesson(**changes):
    return Lesson(
        **{
            "batch_size": 8,
            "seed": 5,
            "epochs": 1,
            "temperature": 1.0,
            "alpha": 0.0,
            "mixup": 0.0,
            "augment": None,
            **changes,
        }
    )


def test_batches_hold_each_sample_with_its_targets():
    soft = np.random.default_rng(0).dirichlet(np.ones(3), 20)
    data = LabelledSamples.read(
        X[:20], Y[:20], Classifier(3, False, False), None, "test"
    )
    material = Material(data, soft=soft.astype(np.float32))
    epoch, orders = epoch_counter(), []
    for number in (0, 1, 0):
        epoch.assign(number)
        batches = list(material.batches(lesson(), 3, epoch))
        assert [len(x) for x, _ in batches] == [8, 8, 4]
        x, targets = (np.concatenate(p) for p in zip(*batches, strict=True))
        order = [int(np.flatnonzero((X[:20] == row).all(1))[0]) for row in x]
        assert sorted(order) == list(range(20))
        np.testing.assert_allclose(targets[:, :3], np.eye(3)[Y[order]])
        np.testing.assert_allclose(targets[:, 3:], soft[order], rtol=1e-6)
        orders.append(order)
    assert orders[0] == orders[2] != orders[1]


def test_unlabelled_samples_come_beside_the_others(ensemble):
    """Batches are twice as large; rows without a label have no hard target."""
    more = X[:30] + 100
    classifier = Classifier(3, False, False)
    data = LabelledSamples.read(X[:20], Y[:20], classifier, None, "test")
    for given in (more, tf.data.Dataset.from_tensor_slices(more).batch(7)):
        others = read_unlabelled(given)
        soft = np.arange(150, dtype=np.float32).reshape(50, 3)
        material = Material(data, others, soft)
        batches = list(material.batches(lesson(), 3, epoch_counter()))
        assert [len(x) for x, _ in batches] == [16, 16, 12]
        for x, targets in batches:
            is_more = x.numpy()[:, 0] > 50
            assert (targets[:, :3].numpy().sum(1) == ~is_more).all()
            rows = (targets[:, 3].numpy() / 3).astype(int)
            known = np.concatenate([X[:20], more])
            np.testing.assert_array_equal(known[rows], x)
    made = ensemble.distil(X, Y, unlabelled=more, epochs=2, verbose=0)
    assert made.run.header.settings.own["num_unlabelled"] == 30


def test_mixup_blends_pairs_of_a_batch():
    data = LabelledSamples.read(
        X[:20], Y[:20], Classifier(3, False, False), None, "test"
    )
    epoch = epoch_counter()
    plain = list(Material(data).batches(lesson(), 3, epoch))
    mixed = list(Material(data).batches(lesson(mixup=1.0), 3, epoch))
    for (x, hard), (blend, target) in zip(plain, mixed, strict=True):
        x, hard = x.numpy(), hard.numpy()
        # The share of the partner, from the first feature.
        share = (blend[:, 0] - x[:, 0]) / (x[::-1, 0] - x[:, 0])
        share = share.numpy()[:, None]
        assert ((share >= 0) & (share <= 1)).all() and share.std() > 0.05
        np.testing.assert_allclose(
            blend, x + share * (x[::-1] - x), rtol=1e-3, atol=1e-4
        )
        np.testing.assert_allclose(
            target, hard + share * (hard[::-1] - hard), atol=1e-3
        )


@pytest.mark.parametrize("kind", ["int32", "int64", "bool"])
def test_mixup_of_what_has_nothing_between(kind):
    """Each entry is of one of both; so many of the other as it has a share."""
    x = np.arange(20 * 500).reshape(20, 500).astype(kind)
    data = LabelledSamples.read(
        x, Y[:20], Classifier(3, False, False), None, "test"
    )
    epoch = epoch_counter()
    soft = np.eye(20, dtype="float32")
    taught = Material(data, soft=soft)
    [(plain, _)] = taught.batches(lesson(batch_size=20), 3, epoch)
    [(found, targets)] = taught.batches(
        lesson(batch_size=20, mixup=1.0), 3, epoch
    )
    plain, found = plain.numpy(), found.numpy()
    other = plain[::-1]
    assert found.dtype == kind
    assert ((found == plain) | (found == other)).all()
    if kind == "bool":
        return
    soft = targets.numpy()[:, 3:]  # 1 - share, and share, of two samples
    order = plain[:, 0] // 500
    shares = soft[np.arange(20), order[::-1]]
    np.testing.assert_allclose((found == other).mean(1), shares, atol=0.1)
    assert shares.std() > 0.1


def test_mixup_of_pixels():
    x = np.array([[0, 100, 7], [255, 101, 7]], "uint8")
    data = LabelledSamples.read(
        x, Y[:2], Classifier(3, False, False), None, "test"
    )
    batches = Material(data, soft=np.eye(2, dtype="float32")).batches(
        lesson(mixup=1.0), 3, epoch_counter()
    )
    [(found, targets)] = batches
    shares = targets.numpy()[:, 3:]
    assert found.dtype == tf.uint8 and (shares.min(axis=1) > 0.02).all()
    np.testing.assert_array_equal(found, np.round(shares @ x.astype(float)))


def test_samples_are_blended_unless_they_are_texts(ensemble):
    made = ensemble.distil(X, Y, epochs=1, verbose=0)
    assert made.run.header.settings.own["mixup"] == 1
    assert usual_mixup({"a": tf.constant(X), "b": tf.constant([1, 2])}) == 1
    texts = tf.constant(["a", "b"])
    assert usual_mixup({"a": tf.constant(X), "b": texts}) == 0
    with pytest.raises(ValueError, match="texts cannot be blended. Leave"):
        check_can_be_blended([texts])


@pytest.mark.parametrize("kind", ["augment", "mixup"])
def test_teacher_and_student_see_the_same_view(kind):
    """A student that is its teacher has nothing to learn from any view."""
    model = linear()
    made = memory_ensemble(model, [1.0])
    [student] = made.member_models()
    before = [np.array(w) for w in student.get_weights()]
    options = {
        "augment": {
            "augment": lambda x, seed: (
                x + tf.random.stateless_normal(x.shape, seed)
            )
        },
        "mixup": {"mixup": 1.0},
    }[kind]
    made.distil(
        X,
        Y,
        student=student,
        epochs=5,
        optimizer=keras.optimizers.SGD(1.0),
        verbose=0,
        **options,
    )
    for old, new in zip(before, student.get_weights(), strict=True):
        np.testing.assert_allclose(new, old, atol=1e-5)


# --- What is refused ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, r"distil\(epochs=0\): epochs must be an integer"),
        ({"batch_size": 0}, r"distil\(batch_size=0\)"),
        ({"seed": -1}, r"distil\(seed=-1\)"),
        ({"temperature": 0}, r"temperature must be a number above 0"),
        ({"alpha": 1}, r"alpha must be a share of at least 0 and below 1"),
        ({"mixup": -1}, r"mixup must be a number of at least 0"),
        ({"augment": 3}, r"distil\(augment=3\): must be a function"),
        ({"optimizer": "none"}, r"distil\(optimizer='none'\): must be the"),
        (
            {"optimizer": keras.optimizers.SGD(0.0)},
            r"learning rate of 0.0, at which a schedule may have left",
        ),
        (
            {"student": linear(4)},
            r"the student has 4 classes and the ensemble 3",
        ),
        ({"y": None}, r"distil\(\): the labels are missing"),
        ({"y": Y + 1}, r"Labels must be integers in 0\.\.2"),
    ],
)
def test_refused(ensemble, options, message):
    y = options.get("y", Y)
    options = {k: v for k, v in options.items() if k != "y"}
    with pytest.raises(ValueError, match=message):
        ensemble.distil(X, y, **{"verbose": 0, **options})


def test_refused_forms(ensemble):
    with pytest.raises(ValueError, match=r"distil\(student, data\): data must"):
        ensemble.distil(linear(), X, verbose=0)
    with pytest.raises(ValueError, match="training has diverged"):
        ensemble.distil(
            X * 1e30,
            Y,
            epochs=3,
            optimizer=keras.optimizers.SGD(1e30),
            verbose=0,
            student=linear(activation=None),
            from_logits=True,
        )


def test_nothing_is_written_over(ensemble, student, tmp_path):
    """Said before anything is trained."""
    _, path = student
    before = (path / "manifest.json").read_bytes()
    with pytest.raises(RunError, match="already holds a run"):
        ensemble.distil(X, Y, directory=path, epochs=10**9, verbose=0)
    assert (path / "manifest.json").read_bytes() == before
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="is not empty"):
        ensemble.distil(X, Y, directory=tmp_path, epochs=10**9, verbose=0)


def test_a_failure_leaves_no_run(ensemble, tmp_path, monkeypatch):
    def fail(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(RunDirectory, "finish", fail)
    with pytest.raises(KeyboardInterrupt):
        ensemble.distil(X, Y, directory=tmp_path / "s", epochs=1, verbose=0)
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_of_ones_own_is_kept():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.3, 10, 0.5)
    made = fresh_optimizer(keras.optimizers.SGD(schedule), linear(), 100)
    assert made.get_config()["learning_rate"]["config"]["decay_rate"] == 0.5
    made = fresh_optimizer("sgd", linear(), 100)
    rates = [float(made._learning_rate(step)) for step in (0, 50, 100)]
    np.testing.assert_allclose(rates, [0.01, 0.005, 0], atol=1e-8)
