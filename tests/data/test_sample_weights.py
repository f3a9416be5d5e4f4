"""Tests of sample weights and of the pipeline that looks them up."""

import gc
import json
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import blobs, dense_model

from cbnn_keras import CBNNCallback, weighted
from cbnn_keras.data import indexed
from cbnn_keras.data.pipelines import (
    indexed_pipeline,
    live_sample_weights,
    weighted_pipeline,
)
from cbnn_keras.data.sample_weights import SampleWeights

SOURCES = ("arrays", "dataset")


def numbered(source, num_samples=23):
    """Arguments of `weighted`: sample i has x = [i] and y = i."""
    index = np.arange(num_samples)
    arrays = (index[:, None].astype("float32"), index)
    if source == "arrays":
        return arrays
    return (tf.data.Dataset.from_tensor_slices(arrays),)


def pipeline(source="arrays", num_samples=23, **options):
    return with_weights(source, num_samples, **options)[0]


def with_weights(source="arrays", num_samples=23, *, batch_size=4, **options):
    """A pipeline, and the weights that it looks up."""
    options.setdefault("seed", 1)
    return weighted_pipeline(
        *numbered(source, num_samples), batch_size=batch_size, **options
    )


def orders(dataset, num_passes):
    return [
        np.concatenate([y for _, y, _ in dataset.as_numpy_iterator()]).tolist()
        for _ in range(num_passes)
    ]


def distinct(num_samples=23, shift=0.0):
    """An omega with another weight for every sample."""
    values = np.arange(1, num_samples + 1) + shift
    return values / values.sum()


def expected_weights(omega, index):
    return np.float32(np.float64(len(omega)) * omega)[index]


# Weights.


def test_without_weights_of_ones_own_all_are_one():
    weights = SampleWeights(7)
    assert weights.variable.dtype == tf.float32
    assert weights.variable.numpy().tolist() == [1.0] * 7
    assert weights.distribution.dtype == np.float64
    assert weights.distribution.sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize(
    ("given", "mean_one"),
    [
        ([1, 3], [0.5, 1.5]),
        ([10, 30], [0.5, 1.5]),
        ([0, 0, 5], [0, 0, 3]),
        (np.array([2, 2, 2, 2], "uint8"), [1, 1, 1, 1]),
        (tf.constant([0.25, 0.75]), [0.5, 1.5]),
    ],
)
def test_weights_of_ones_own_are_scaled_to_mean_one(given, mean_one):
    weights = SampleWeights(len(mean_one), sample_weight=given)
    np.testing.assert_allclose(weights.variable, mean_one, rtol=1e-7)
    np.testing.assert_allclose(
        weights.first_distribution,
        np.array(mean_one) / len(mean_one),
        rtol=1e-15,
    )


@pytest.mark.parametrize("source", SOURCES)
def test_weights_of_ones_own_reach_their_samples(source):
    given = np.arange(23) * 7.0
    for _, y, weight in pipeline(source, sample_weight=given):
        assert weight.dtype == tf.float32
        # mean of 0, 7, ..., 154 is 77
        np.testing.assert_allclose(weight, 7.0 * y.numpy() / 77, rtol=1e-6)


def test_assigning_keeps_the_first_distribution():
    weights = SampleWeights(4, sample_weight=[1, 1, 1, 5])
    weights.assign(np.array([0.1, 0.2, 0.3, 0.4]))
    np.testing.assert_allclose(weights.variable, [0.4, 0.8, 1.2, 1.6])
    np.testing.assert_allclose(weights.distribution, [0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(
        weights.first_distribution, [0.125, 0.125, 0.125, 0.625]
    )
    assert float(tf.reduce_mean(weights.variable)) == pytest.approx(1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, np.nan, 3], "finite and not negative; sample 1 has nan, and 1 of"),
        ([1, 2, np.inf], "finite and not negative; sample 2 has inf, and 1 of"),
        ([-1, 2, -3], r"not negative; sample 0 has -1\.0, and 2 of 3"),
        ([0, 0, 0], "zero for every sample: at least one must be positive"),
        ([1, 2], r"has shape \(2,\), but there are 3.*shape \(3,\)"),
        ([[1], [2], [3]], r"has shape \(3, 1\), but there are 3 samples"),
        (2.0, r"has shape \(\), but there are 3 samples"),
    ],
)
def test_refused_weights(given, message):
    with pytest.raises(ValueError, match=message):
        weighted(np.zeros(3), np.zeros(3), sample_weight=given)


# The order of the passes.


@pytest.mark.parametrize("source", SOURCES)
def test_passes_differ_and_have_every_sample_once(source):
    passes = orders(pipeline(source), 3)
    assert [sorted(order) for order in passes] == [list(range(23))] * 3
    assert len(set(map(tuple, passes))) == 3


@pytest.mark.parametrize("source", SOURCES)
def test_the_same_seed_gives_the_same_passes(source):
    first = orders(pipeline(source), 2)
    keras.utils.set_random_seed(99)
    assert orders(pipeline(source), 2) == first
    other = orders(pipeline(source, seed=2), 2)
    assert other[0] != first[0] and other[1] != first[1]


# What seed 1 gave when runs were first kept: they must resume with it.
FIRST_ORDERS = {
    "arrays": [
        [5, 13, 12, 19, 16, 15, 21, 9, 4, 6, 0, 10]
        + [2, 18, 22, 20, 3, 14, 11, 17, 1, 8, 7],
        [1, 2, 7, 6, 12, 21, 3, 0, 20, 17, 16, 15]
        + [13, 11, 10, 22, 5, 18, 19, 9, 14, 8, 4],
    ],
    "dataset": [
        [22, 7, 8, 1, 13, 9, 16, 6, 12, 15, 3, 21]
        + [10, 11, 20, 2, 17, 18, 5, 0, 19, 14, 4],
        [15, 19, 18, 11, 2, 10, 12, 16, 0, 1, 3, 9]
        + [17, 22, 7, 13, 5, 6, 4, 21, 14, 8, 20],
    ],
}


@pytest.mark.parametrize("augment", [None, lambda x, seed: x])
@pytest.mark.parametrize("source", SOURCES)
def test_orders_are_those_of_older_versions(source, augment):
    found = orders(pipeline(source, augment=augment), 2)
    assert found == FIRST_ORDERS[source]


@pytest.mark.parametrize("source", SOURCES)
def test_set_epoch_replays_an_epoch(source):
    train, weights = with_weights(
        source, augment=lambda x, seed: x + seed_noise(seed)
    )
    batches = [list(train.as_numpy_iterator()) for _ in range(4)]
    for epoch in (2, 0, 3):
        weights.set_epoch(epoch)
        again = list(train.as_numpy_iterator())
        assert len(again) == 6
        for (x, y, _), (x_again, y_again, _) in zip(
            batches[epoch], again, strict=True
        ):
            np.testing.assert_array_equal(y_again, y)
            np.testing.assert_array_equal(x_again, x)
    # Another pipeline that never saw the epochs before.
    new, weights = with_weights(
        source, augment=lambda x, seed: x + seed_noise(seed)
    )
    weights.set_epoch(3)
    np.testing.assert_array_equal(
        np.concatenate([x for x, _, _ in new.as_numpy_iterator()]),
        np.concatenate([x for x, _, _ in batches[3]]),
    )


def seed_noise(seed):
    return tf.random.stateless_uniform([1], seed)


@pytest.mark.parametrize("source", SOURCES)
def test_an_abandoned_pass_does_not_disturb_the_next_epoch(source):
    train, weights = with_weights(source)
    expected = orders(pipeline(source), 2)
    next(iter(train))  # as of someone who looks at a batch
    weights.set_epoch(1)
    assert orders(train, 1) == expected[1:]


def test_set_seed_is_as_if_made_with_it():
    train, weights = with_weights(seed=None)
    assert not weights.has_own_seed
    weights.set_seed(8)
    assert weights.seed == 8
    assert orders(train, 2) == orders(pipeline(seed=8), 2)


def test_a_drawn_seed_follows_keras_seed():
    seeds = [with_weights(seed=None)[1].seed for _ in range(2)]
    keras.utils.set_random_seed(0)
    seeds.append(with_weights(seed=None)[1].seed)
    assert seeds[0] != seeds[1]
    assert seeds[0] == seeds[2]
    assert with_weights(seed=5)[1].has_own_seed


def test_numpy_numbers_are_as_good_as_pythons():
    # They ended up in the manifest, and JSON knows none of them.
    train, weights = with_weights(
        "dataset",
        batch_size=np.int64(4),
        shuffle=np.True_,
        seed=np.uint8(1),
    )
    found = [weights.seed, weights.batch_size, weights.shuffle]
    assert json.dumps(found) == "[1, 4, true]"
    assert orders(train, 1) == orders(pipeline("dataset"), 1)
    _, weights = with_weights("dataset", shuffle=np.int32(3))
    assert json.dumps(weights.shuffle) == "3"


@pytest.mark.parametrize("source", SOURCES)
def test_keras_is_told_the_number_of_batches(source):
    assert int(pipeline(source).cardinality()) == 6  # 5 * 4 + 3 = 23
    unknown = tf.data.Dataset.range(10).map(lambda i: (i, i))
    unknown = unknown.filter(lambda i, _: i < 7)
    train = weighted(unknown, batch_size=2, num_samples=7)
    assert int(train.cardinality()) == 4
    assert sorted(orders(train, 1)[0]) == list(range(7))


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_made_of_the_pipeline_has_the_same_batches(source):
    # Iterated over, the dataset takes another way than `map` and strategies.
    expected = orders(pipeline(source), 2)
    mapped = pipeline(source).map(lambda x, y, weight: (x, y, 2 * weight))
    assert orders(mapped, 2) == expected
    assert {w for *_, weight in mapped for w in weight.numpy()} == {2.0}
    assert int(mapped.cardinality()) == 6


# Weights meet samples.


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": False},
        {"shuffle": 5},
        {"augment": lambda x, seed: x + 0.25},
        {"batch_size": 23},
        {"batch_size": 1},
    ],
)
@pytest.mark.parametrize("source", SOURCES)
def test_every_weight_belongs_to_its_sample(source, options):
    train, weights = with_weights(source, **options)
    omega = distinct()
    weights.assign(omega)
    num_seen = 0
    for x, y, weight in train.as_numpy_iterator():
        index = np.floor(x[:, 0]).astype(int)  # 0.25 is the augmentation
        np.testing.assert_array_equal(y, index)
        np.testing.assert_array_equal(weight, expected_weights(omega, index))
        num_seen += len(y)
    assert num_seen == 23


@pytest.mark.parametrize(
    "options", [{}, {"augment": lambda x, seed: x}, {"shuffle": 3}]
)
@pytest.mark.parametrize("source", SOURCES)
def test_the_very_next_batch_has_the_new_weights(source, options):
    check_the_very_next_batch(*with_weights(source, 200, **options))


def test_the_very_next_batch_is_new_where_batches_are_prefetched(monkeypatch):
    monkeypatch.setattr(indexed, "_LIGHT_BATCH", 0)
    assert orders(pipeline(), 2) == FIRST_ORDERS["arrays"]
    check_the_very_next_batch(*with_weights("arrays", 200))


def check_the_very_next_batch(train, weights):
    # Many small batches, so that the prefetch buffer is full.
    batches = iter(train)
    for i in range(40):
        _, y, weight = next(batches)
        omega = distinct(200, shift=i - 1.0) if i else np.full(200, 1 / 200)
        np.testing.assert_array_equal(
            weight, expected_weights(omega, y.numpy())
        )
        weights.assign(distinct(200, shift=float(i)))
    assert weights.num_lookups == 40


class Recording(keras.Model):
    """A classifier that keeps what its last training step was given."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2, activation="softmax")
        self.seen_index = tf.Variable(np.zeros(2, "int64"), trainable=False)
        self.seen_weight = tf.Variable(np.zeros(2, "float32"), trainable=False)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y, weight = data
        self.seen_index.assign(tf.cast(x[:, 0], tf.int64))
        self.seen_weight.assign(weight)
        return super().train_step((x, tf.zeros_like(y), weight))


class Assigning(keras.callbacks.Callback):
    """New weights after every batch; compares what the next one was given."""

    def __init__(self, weights):
        super().__init__()
        self.weights = weights
        self.expected = weights.distribution
        self.num_batches = 0

    def on_train_batch_end(self, batch, logs=None):
        np.testing.assert_array_equal(
            self.model.seen_weight,
            expected_weights(self.expected, self.model.seen_index.numpy()),
        )
        self.num_batches += 1
        self.expected = distinct(100, shift=float(self.num_batches))
        self.weights.assign(self.expected)


@pytest.mark.parametrize("source", SOURCES)
def test_no_weight_is_stale_inside_fit(source):
    train, weights = with_weights(source, 100, batch_size=2)
    assigning = Assigning(weights)
    model = Recording()
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(train, epochs=2, callbacks=[assigning], verbose=0)
    assert assigning.num_batches == 100


def test_keras_loss_is_that_of_the_weights():
    x, y = np.eye(3, dtype="float32"), np.arange(3)
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(3, activation="softmax")]
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    train = weighted(x, y, batch_size=3, sample_weight=[1, 2, 6])
    probabilities = model(x).numpy()[y, y]
    # mean over the batch of (1/3, 2/3, 2) * -log p
    expected = -np.mean(np.log(probabilities) * [1 / 3, 2 / 3, 2])
    assert model.evaluate(train, verbose=0) == pytest.approx(expected, 1e-5)


def test_lookups_are_counted_in_batches():
    train, weights = with_weights(batch_size=4)
    assert weights.num_lookups == 0
    list(train)
    assert weights.num_lookups == 6
    next(iter(train))
    assert weights.num_lookups == 7  # nothing runs ahead


def test_no_batch_of_an_own_pipeline_has_old_weights():
    # TensorFlow used to add a prefetch of its own behind the lookup.
    samples = tf.data.Dataset.range(60).map(lambda i: (i, i))
    indexed, weights = indexed_pipeline(samples)
    train = (
        indexed.batch(2)
        .prefetch(tf.data.AUTOTUNE)
        .map(lambda index, x, y: weights.look_up(index))
    )
    for number, weight in enumerate(train, start=1):
        if number > 1:
            assert weight.numpy().tolist() == [number, number]
        time.sleep(0.01)  # as long as a step, for what would run ahead
        weights.variable.assign(np.full(60, number + 1.0))


def test_attach_index_numbers_the_samples():
    indexed, weights = indexed_pipeline(numbered("dataset")[0])
    weights.assign(distinct())
    train = (
        indexed.shuffle(23)
        .batch(4)
        .prefetch(2)
        .map(lambda index, x, y: (x, y, weights.look_up(index)))
    )
    seen = []
    for x, y, weight in train.as_numpy_iterator():
        np.testing.assert_array_equal(x[:, 0], y)
        np.testing.assert_array_equal(weight, expected_weights(distinct(), y))
        seen.extend(y.tolist())
    assert sorted(seen) == list(range(23))


def test_weights_without_samples_make_no_batches():
    with pytest.raises(ValueError, match="no samples to batch"):
        SampleWeights(3).training_dataset(augment=None)


# Which pipelines are in use.


def is_live(weights, owner=None):
    gc.collect()
    return weights in live_sample_weights(owner)


@pytest.mark.parametrize("source", SOURCES)
def test_a_pipeline_is_live_as_long_as_its_dataset(source):
    train, weights = with_weights(source)
    assert is_live(weights)
    del train
    assert not is_live(weights)


def same(x, y, weight):
    return x, y, weight


@pytest.mark.parametrize(
    "derive",
    [
        lambda train: train.map(same),
        lambda train: train.take(2),
        lambda train: train.repeat().prefetch(1).skip(3),
        lambda train: train.enumerate(),
    ],
)
def test_a_derived_dataset_keeps_the_pipeline_live(derive):
    train, weights = with_weights()
    train = derive(train)
    assert is_live(weights)
    next(iter(train))
    assert weights.num_lookups > 0
    del train
    assert not is_live(weights)


def test_an_index_is_live_as_long_as_what_it_is_made_into():
    train, weights = indexed_pipeline(numbered("dataset")[0])
    train = train.shuffle(23).batch(4)
    assert is_live(weights)
    del train
    assert not is_live(weights)


def test_an_owner_holds_its_pipeline_while_it_lives():
    owner = CBNNCallback.paper()
    train = owner.weighted(*numbered("arrays"), batch_size=4)
    [weights] = live_sample_weights(owner)
    assert weights.owner is owner
    assert not is_live(weights)
    del owner
    gc.collect()
    assert weights.owner is None
    assert is_live(weights)
    del train  # had to live until here


def test_a_callback_that_trained_releases_its_pipeline_too():
    owner = CBNNCallback.paper(num_checkpoints=1)
    train = owner.weighted(*blobs(), batch_size=20)
    [weights] = live_sample_weights(owner)
    model = dense_model()
    model.fit(train, epochs=3, callbacks=[owner], verbose=0)
    del owner, model
    gc.collect()
    assert weights.owner is None


# Bad arguments of `weighted`.


class AsObject:
    def __call__(self, x, seed):
        return x


@pytest.mark.parametrize(
    "augment",
    [
        lambda x, seed: x,
        lambda *args: args[0],
        lambda x, seed, strength=2: x,
        AsObject(),
    ],
)
def test_accepted_augment_functions(augment):
    next(iter(pipeline(augment=augment)))


@pytest.mark.parametrize(
    "augment",
    [
        lambda x: x,
        lambda: 0,
        lambda x, seed, strength: x,
        lambda x, *, seed: x,
        "flip",
        3,
    ],
)
def test_refused_augment_functions(augment):
    with pytest.raises(
        ValueError, match=r"must be a function `augment\(x, seed\)`.*shape"
    ):
        pipeline(augment=augment)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (
            (np.zeros(3),),
            {},
            r"the labels are missing. Call `weighted\(x, y\)`.*ndarray",
        ),
        (
            ([np.zeros(3), np.zeros(3)],),
            {},
            "the labels are missing.*received list",
        ),
        (
            (*numbered("dataset"), np.arange(23)),
            {},
            "a dataset brings its own labels; leave `y` out",
        ),
        ((np.zeros(3), np.zeros(4)), {}, r"\[3\] for x and 4 for y"),
        (
            numbered("arrays"),
            {"num_samples": 23},
            "is for datasets; arrays know their length",
        ),
        (
            numbered("arrays"),
            {"batch_size": True},  # once taken as 1
            r"batch_size=True\): .*an integer of at least",
        ),
        (
            numbered("arrays"),
            {"batch_size": 0},
            r"=0\): .*an integer of at least",
        ),
        (
            numbered("arrays"),
            {"batch_size": -2},
            r"batch_size=-2\): .*an integer",
        ),
        (
            numbered("arrays"),
            {"shuffle": -1},
            r"shuffle=-1\): .*True, False or the size of the shuffle buffer",
        ),
        (
            numbered("arrays"),
            {"shuffle": 2.5},
            r"shuffle=2\.5\): .*True, False",
        ),
        (
            numbered("arrays"),
            {"seed": 1.5},
            r"seed=1\.5\): .*an integer",
        ),
        (
            numbered("arrays"),
            {"augment": lambda x: x},
            r"must be a function `augment\(x, seed\)`.*too many positional",
        ),
        (numbered("arrays"), {"augment": 1}, "not a callable object"),
    ],
)
def test_refused_arguments(arguments, options, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        weighted(*arguments, **options)


def test_a_weighted_pipeline_cannot_be_weighted_again():
    with pytest.raises(ValueError, match="must give.*`sample_weight`"):
        weighted(pipeline())


def test_sparse_inputs_of_a_dataset():
    dense = np.eye(5, dtype="float32")
    dataset = tf.data.Dataset.from_tensor_slices((dense, np.arange(5)))
    sparse = dataset.map(lambda x, y: (tf.sparse.from_dense(x), y))
    train = weighted(sparse, batch_size=2, shuffle=False)
    found = [(tf.sparse.to_dense(x).numpy(), y.numpy()) for x, y, _ in train]
    np.testing.assert_array_equal(np.concatenate([x for x, _ in found]), dense)
