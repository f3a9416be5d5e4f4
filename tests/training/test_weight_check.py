"""Tests that code which ignores the sample weights is refused by name."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import blobs, build_optimizer, dense_model, same, trained

from cbnn_keras import CBNNCallback, weighted
from cbnn_keras.baselines import PlainCheckpoints
from cbnn_keras.models.step_gradients import step_gradients
from cbnn_keras.training import weight_check


def layers(*extra):
    return [
        keras.Input((4,)),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.BatchNormalization(momentum=0.5),
        keras.layers.Dropout(0.3, seed=3),
        *extra,
        keras.layers.Dense(3),
    ]


class Distiller(keras.Model):
    """As those that people write: the loss is computed in `compute_loss`."""

    def __init__(self, uses_weights):
        super().__init__()
        self.student = keras.Sequential(layers())
        self.teacher = keras.Sequential(layers())
        self.teacher.trainable = False
        self.uses_weights = uses_weights
        self.student_loss = keras.losses.SparseCategoricalCrossentropy(True)
        self.teacher_loss = keras.losses.KLDivergence()

    def call(self, x, training=None):
        return self.student(x, training=training)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        weight = sample_weight if self.uses_weights else None
        wanted = keras.ops.softmax(self.teacher(x, training=False) / 3)
        return self.student_loss(y, y_pred, weight) + 9 * self.teacher_loss(
            wanted, keras.ops.softmax(y_pred / 3), weight
        )


class OwnStep(keras.Sequential):
    """A `train_step` as in many tutorials, with metrics of its own."""

    takes_weights = uses_weights = True

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.tracker = keras.metrics.Mean(name="own")

    def noise(self):
        return keras.random.uniform(())

    def train_step(self, data):
        if self.takes_weights:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        else:
            x, y = data
            weight = None
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(
                x, y, y_pred, weight if self.uses_weights else None
            )
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_variables, strict=True)
        )
        self.tracker.update_state(self.noise())
        return {"own": self.tracker.result(), "loss": loss}


class ShortStep(OwnStep):
    takes_weights = False


class DeafStep(OwnStep):
    uses_weights = False


class TracedStep(DeafStep):
    @tf.function
    def train_step(self, data):
        return super().train_step(data)


def mean_loss(y, y_pred):
    values = keras.losses.sparse_categorical_crossentropy(y, y_pred, True)
    return keras.ops.mean(values)


def sample_loss(y, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y, y_pred, True)


class DeafLoss(keras.losses.Loss):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return mean_loss(y_true, y_pred)


def compiled(model, loss=None, **options):
    loss = loss or keras.losses.SparseCategoricalCrossentropy(True)
    model.compile(keras.optimizers.Adam(0.05), loss, **options)
    build_optimizer(model)
    return model


def sequential(loss):
    return compiled(keras.Sequential(layers()), loss)


def fit(model, rate=0.05, callback=CBNNCallback, **weighted):
    options = {"deviation_rate": rate} if callback is CBNNCallback else {}
    cbnn = callback(num_checkpoints=2, from_logits=True, **options)
    train = cbnn.weighted(*blobs(), seed=1, batch_size=20, **weighted)
    model.fit(train, epochs=3, callbacks=[cbnn], verbose=0)
    return [np.array(v) for v in model.variables]


def distiller(uses_weights):
    keras.utils.set_random_seed(0)
    model = Distiller(uses_weights)
    model.compile(keras.optimizers.SGD(0.05))
    return model


@pytest.mark.large
def test_a_distiller_is_refused_until_its_losses_get_the_weights():
    with pytest.raises(
        ValueError,
        match=r"(?s)CBNNCallback: sample weights do not reach.*`compute_loss` "
        r"of Distiller ignores.*`loss = self\.my_loss\(y, y_pred, "
        r"sample_weight=sample_weight\)`",
    ):
        fit(distiller(False))
    boosted, plain = (fit(distiller(True), rate) for rate in (0.05, 0))
    assert not same(boosted, plain)


@pytest.mark.large
def test_weights_that_are_all_equal_may_be_ignored():
    fit(distiller(False), rate=0)
    fit(distiller(False), callback=PlainCheckpoints)
    with pytest.raises(
        ValueError, match="do not reach.*training begins with"
    ) as error:
        fit(distiller(False), rate=0, sample_weight=np.arange(120) + 1)
    assert "boosted" not in str(error.value)


@pytest.mark.parametrize("rate", [0, 0.05])
def test_x_y_of_data_gets_the_two_lines_and_not_keras_error(rate):
    with pytest.raises(
        ValueError,
        match=r"(?s)`train_step` of ShortStep takes batches of \(x, y\).*`x, "
        r"y, sample_weight = keras\.utils\.unpack_x_y_sample_weight\(data\)`"
        r".*compute_loss\(x, y, y_pred, sample_weight\)",
    ):
        fit(compiled(ShortStep(layers())), rate)


@pytest.mark.parametrize("kind", [DeafStep, TracedStep])
def test_a_step_that_drops_the_weights_is_refused(kind):
    with pytest.raises(ValueError, match=f"`train_step` of {kind.__name__} ig"):
        fit(compiled(kind(layers())))


@pytest.mark.parametrize(
    ("loss", "name"),
    [(mean_loss, "mean_loss"), (DeafLoss(), "DeafLoss")],
)
def test_a_loss_that_sees_no_single_weight_is_refused(loss, name):
    with pytest.raises(
        ValueError, match=f"(?s)the loss '{name}' ignores.*axis=-1"
    ):
        fit(sequential(loss))


def test_losses_in_layers_alone_are_refused():
    class Endpoint(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.mean(x**2))
            return x

    model = keras.Sequential([*layers(Endpoint())])
    model.compile("adam")
    with pytest.raises(ValueError, match="compiled without a loss ignores"):
        fit(model)


def test_a_loss_of_ones_own_that_gives_a_value_a_sample_is_taken():
    fit(sequential(sample_loss))


def test_samples_that_are_all_the_same_say_nothing_and_are_taken():
    x, y = np.zeros((40, 4)), np.zeros(40, int)
    model = sequential(sample_loss)
    cbnn = CBNNCallback.paper(num_checkpoints=2, from_logits=True)
    train = cbnn.weighted(x, y, batch_size=20)
    model.fit(train, epochs=2, callbacks=[cbnn], verbose=0)


def test_keras_own_models_are_not_tried(monkeypatch):
    def refuse(*args):
        raise AssertionError("tried")

    monkeypatch.setattr(
        "cbnn_keras.training.weight_check._uses_weights", refuse
    )
    trained()
    trained(
        model=dense_model(loss=keras.losses.SparseCategoricalCrossentropy())
    )


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_the_check_leaves_nothing_behind(policy):
    keras.config.set_dtype_policy(policy)
    model = compiled(OwnStep(layers()))
    x, y = blobs(20)
    model.fit(x, y, verbose=0, batch_size=20)
    before = [
        np.array(v)
        for v in [
            *model.variables,
            *model.optimizer.variables,
            *model.metrics_variables,
        ]
    ]
    batch = tuple(map(tf.constant, (x, y, np.ones(20, "float32"))))
    keras.utils.set_random_seed(3)
    expected = float(keras.random.uniform(())), np.random.random()
    keras.utils.set_random_seed(3)
    first = step_gradients(model, batch)
    assert len(first) == len(model.trainable_variables)
    assert same(first, step_gradients(model, batch))
    assert (float(keras.random.uniform(())), np.random.random()) == expected
    after = [
        *model.variables,
        *model.optimizer.variables,
        *model.metrics_variables,
    ]
    assert same(before, [np.array(v) for v in after])
    assert "apply" not in vars(model.optimizer)
    assert not tf.config.functions_run_eagerly()


class Keeping(keras.Sequential):
    """Has optimizers and a counter where Keras does not look for them."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.inner = keras.Sequential([keras.Input((4,))])
        self.inner.compile(keras.optimizers.Adam())
        self.kept = {"a": [keras.optimizers.Adam()], "b": tf.Variable(0)}
        self.kept["itself"] = self.kept

    def all_optimizers(self):
        return [self.optimizer, *self.kept["a"], self.inner.optimizer]

    def train_step(self, data):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True), weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        for optimizer in self.all_optimizers():
            optimizer.apply(gradients, self.trainable_variables)
        self.kept["b"].assign_add(1)
        return {"loss": loss}


def test_optimizers_and_variables_in_containers_are_left_alone():
    model = compiled(Keeping(layers()))
    before = [np.array(v) for v in model.variables]
    x, y = blobs(20)
    batch = tuple(map(tf.constant, (x, y, np.ones(20, "float32"))))
    found = step_gradients(model, batch)
    assert len(found) == 3 * len(model.trainable_variables)
    assert [int(o.iterations) for o in model.all_optimizers()] == [0, 0, 0]
    assert int(model.kept["b"]) == 0
    assert same(before, [np.array(v) for v in model.variables])


def test_samples_of_all_classes_are_tried():
    labels = np.array([2, 2, 0, 2, 1, 0, 0])
    order = weight_check._mixed_order(labels)
    assert order.tolist() == [0, 2, 4, 1, 5, 3, 6]
    # A batch that is the whole data set: seconds if all pairs were compared.
    begin = time.process_time()
    many = weight_check._mixed_order(np.arange(300_000) // 100)
    assert time.process_time() - begin < 2
    assert many[:3].tolist() == [0, 100, 200]


@pytest.mark.parametrize("kind", [OwnStep, TracedStep])
def test_training_without_boosting_is_that_of_plain_keras(kind):
    def made():
        keras.utils.set_random_seed(0)
        return compiled(kind(layers()))

    cbnn = CBNNCallback(num_checkpoints=2, deviation_rate=0)
    model = made()
    train = cbnn.weighted(*blobs(), seed=1, batch_size=20)
    model.fit(train, epochs=2, callbacks=[cbnn], verbose=0)
    plain = made()
    train = weighted(*blobs(), seed=1, batch_size=20)
    plain.fit(train, epochs=2, verbose=0)
    assert same(model.get_weights(), plain.get_weights())


def test_gradients_are_those_of_the_loss():
    # By another route: a tape around the model and a loss of NumPy's weights.
    model = compiled(keras.Sequential([keras.Input((4,)), layers()[-1]]))
    x, y = blobs(6)
    weights = np.array([2, 0, 2, 0, 1, 1], "float32")
    found = step_gradients(model, tuple(map(tf.constant, (x, y, weights))))
    with tf.GradientTape() as tape:
        losses = sample_loss(y, model(x))
        mean = tf.reduce_sum(losses * weights) / 6
    for a, b in zip(
        found, tape.gradient(mean, model.trainable_variables), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.large
def test_a_deaf_step_is_refused_on_several_devices(monkeypatch):
    # Its generator would be made in a step, which Keras cannot do here.
    monkeypatch.setattr(OwnStep, "noise", lambda self: 0.0)
    # Collectives allow one number of devices a process: another test's.
    reduced = tf.distribute.ReductionToOneDevice()
    devices = ["CPU:0", "CPU:1"]
    with tf.distribute.MirroredStrategy(devices, reduced).scope():
        model = compiled(DeafStep(layers()))
        with pytest.raises(ValueError, match="`train_step` of DeafStep ignore"):
            fit(model)
    with tf.distribute.MirroredStrategy(devices, reduced).scope():
        fit(compiled(OwnStep(layers())))
