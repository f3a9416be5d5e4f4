"""Tests of the samples: their order, their structure, what is refused."""

import gc
import importlib.util
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from cbnn_keras.data.dataset_samples import DatasetSamples
from cbnn_keras.data.indexed import ArraySamples

SOURCES = ("arrays", "dataset")
MOVES = "same position gave another sample in a second pass.*Remove `.shuffle"


def numbered(source, num_samples=37):
    """Sample i has x = [i, -i] and y = 3 * i."""
    index = np.arange(num_samples)
    x = np.stack([index, -index], axis=1).astype("float32")
    y = 3 * index
    if source == "arrays":
        return ArraySamples(x, y)
    return DatasetSamples(tf.data.Dataset.from_tensor_slices((x, y)))


def one_pass(samples, key=(1, 0), *, batch_size=5, shuffle=True, augment=None):
    """All batches `(index, x, y)` of one pass, as NumPy."""
    batches = samples.training_batches(
        lambda: tf.constant(key, tf.int64),
        batch_size=batch_size,
        shuffle=shuffle,
        augment=augment,
    )
    return list(batches.as_numpy_iterator())


def order_of(samples, key=(1, 0), **options):
    return np.concatenate(
        [index for index, _, _ in one_pass(samples, key, **options)]
    ).tolist()


def seed_as_input(x, seed):
    return tf.concat([x[:1], tf.cast(seed, tf.float32)], axis=0)


# The order of a pass.


@pytest.mark.parametrize(
    ("batch_size", "shuffle"),
    [(1, True), (5, True), (5, False), (8, 4), (37, 1000), (64, True)],
)
@pytest.mark.parametrize("source", SOURCES)
def test_a_pass_has_every_sample_once(source, batch_size, shuffle):
    batches = one_pass(numbered(source), batch_size=batch_size, shuffle=shuffle)
    sizes = [len(index) for index, _, _ in batches]
    full, rest = divmod(37, batch_size)
    assert sizes == [batch_size] * full + ([rest] if rest else [])
    seen = np.concatenate([index for index, _, _ in batches])
    assert sorted(seen.tolist()) == list(range(37))
    for index, x, y in batches:
        np.testing.assert_array_equal(x, np.stack([index, -index], axis=1))
        np.testing.assert_array_equal(y, 3 * index)


@pytest.mark.parametrize("shuffle", [True, 8])
@pytest.mark.parametrize("source", SOURCES)
def test_the_order_is_a_function_of_the_key(source, shuffle):
    first = order_of(numbered(source), (7, 3), shuffle=shuffle)
    assert first != list(range(37))
    # New objects, other batches, another state of the global generators.
    keras.utils.set_random_seed(11)
    again = order_of(numbered(source), (7, 3), shuffle=shuffle, batch_size=8)
    assert again == first
    keras.utils.set_random_seed(12)
    assert order_of(numbered(source), (7, 3), shuffle=shuffle) == first
    for other_key in ((7, 4), (8, 3), (3, 7)):
        assert order_of(numbered(source), other_key, shuffle=shuffle) != first


def test_any_global_seed_may_be_set_with_a_dataset():
    # TensorFlow stumbles over a global seed of 0 and a tensor as seed.
    orders = []
    for global_seed in (0, 1, None):
        tf.random.set_seed(global_seed)
        orders.append(order_of(numbered("dataset"), (2, 2)))
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize("source", SOURCES)
def test_the_key_is_asked_for_in_every_pass(source):
    key = tf.Variable([1, 0], dtype=tf.int64)
    batches = numbered(source).training_batches(
        key.read_value, batch_size=37, shuffle=True, augment=None
    )
    (first, *_), *_ = batches.as_numpy_iterator()
    key.assign([1, 1])
    (second, *_), *_ = batches.as_numpy_iterator()
    assert first.tolist() == order_of(numbered(source), (1, 0))
    assert second.tolist() == order_of(numbered(source), (1, 1))
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("buffer", [1, 2, 6])
def test_a_dataset_is_shuffled_in_a_buffer_of_the_given_size(buffer):
    order = order_of(numbered("dataset", 200), shuffle=buffer)
    # A sample cannot leave the buffer before it came in.
    lead = np.array(order) - np.arange(200)
    assert lead.max() == buffer - 1
    assert (order == list(range(200))) == (buffer == 1)


def test_arrays_need_no_buffer():
    everything = order_of(numbered("arrays"), shuffle=True)
    assert order_of(numbered("arrays"), shuffle=2) == everything


# Structures and types.


def test_lists_and_tuples_of_arrays_are_tuples():
    a, b = np.zeros((3, 2), "float32"), np.arange(3, dtype="int32")
    for x in ([a, b], (a, b)):
        index, found, y = one_pass(ArraySamples(x, b), batch_size=3)[0]
        assert isinstance(found, tuple)
        np.testing.assert_array_equal(found[0], a[index])
        np.testing.assert_array_equal(found[1], b[index])
        np.testing.assert_array_equal(y, b[index])


def test_nested_structures_stay_as_they_are():
    n = 4
    x = {
        "image": np.arange(n * 4, dtype="uint8").reshape(n, 2, 2),
        "more": [np.arange(n), {"deep": np.arange(n) * 0.5}],
    }
    for index, found, _ in one_pass(ArraySamples(x, np.arange(n))):
        assert set(found) == {"image", "more"}
        assert found["image"].dtype == np.uint8
        np.testing.assert_array_equal(found["image"], x["image"][index])
        first, deep = found["more"]
        np.testing.assert_array_equal(first, index)
        np.testing.assert_array_equal(deep["deep"], index * 0.5)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([0.5, 1.5, 2.5]), "float32"),
        ([0.5, 1.5, 2.5], "float32"),
        (np.array([0.5, 1.5, 2.5], "float16"), "float16"),
        (np.array([0, 1, 255], "uint8"), "uint8"),
        (np.array([0, 1, 2]), "int64"),
        (np.array([True, False, True]), "bool"),
        (tf.constant([0.5, 1.5, 2.5], tf.float64), "float64"),
    ],
)
def test_types_of_arrays(values, dtype):
    (x,) = ArraySamples(values, np.arange(3)).inputs(3)
    assert x.dtype == dtype
    np.testing.assert_array_equal(x, np.asarray(values))


def test_float64_becomes_floatx():
    keras.config.set_floatx("float16")
    try:
        (x,) = ArraySamples(np.array([0.5, 1.5]), np.arange(2)).inputs(2)
    finally:
        keras.config.set_floatx("float32")
    assert x.dtype == "float16"


@pytest.mark.parametrize("kind", [np.str_, object, None])
def test_strings(kind):
    words = ["ant", "bee", "wasp"]
    values = tf.constant(words) if kind is None else np.array(words, kind)
    for index, x, _ in one_pass(ArraySamples(values, np.arange(3))):
        assert [w.decode() for w in x] == [words[i] for i in index]


@pytest.mark.skipif(
    importlib.util.find_spec("pandas") is None,
    reason="pandas is not installed, so no data frame can be made",
)
def test_data_frames():
    import pandas as pd

    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]})
    samples = ArraySamples(frame, pd.Series([2, 1, 0]))
    (x,) = samples.inputs(3)
    assert x.dtype == "float32"
    np.testing.assert_array_equal(x, [[1, 4], [2, 5], [3, 6]])
    assert samples.labels().tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    "y",
    [
        [2, 0, 1],
        (2, 0, 1),
        list(np.array([2, 0, 1])),
        np.array([2, 0, 1], "uint8"),
        tf.constant([2, 0, 1]),
    ],
)
def test_labels_may_be_any_sequence(y):
    samples = ArraySamples(np.zeros((3, 2)), y)
    assert samples.labels().tolist() == [2, 0, 1]


def test_one_hot_labels_of_arrays():
    y = np.eye(3, dtype="float32")[[2, 0, 1, 1]]
    samples = ArraySamples(np.zeros(4), y)
    np.testing.assert_array_equal(samples.labels(), y)
    for index, _, rows in one_pass(samples):
        np.testing.assert_array_equal(rows, y[index])


def test_a_dataset_with_a_dict_and_one_hot_labels():
    x = {"a": np.arange(6), "b": np.arange(12.0).reshape(6, 2)}
    y = np.eye(3)[np.arange(6) % 3]
    samples = DatasetSamples(tf.data.Dataset.from_tensor_slices((x, y)))
    for index, found, rows in one_pass(samples, batch_size=4):
        np.testing.assert_array_equal(found["a"], index)
        np.testing.assert_array_equal(found["b"], x["b"][index])
        np.testing.assert_array_equal(rows, y[index])
    np.testing.assert_array_equal(samples.labels(), y)


def generated(num_samples):
    """A dataset that does not know its size."""
    signature = (tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.int32))
    return tf.data.Dataset.from_generator(
        lambda: ((float(i), i) for i in range(num_samples)),
        output_signature=signature,
    )


def test_a_generator_with_num_samples():
    samples = DatasetSamples(generated(9), num_samples=9)
    assert samples.num_samples == 9
    assert samples.labels().tolist() == list(range(9))
    assert sorted(order_of(samples)) == list(range(9))


def test_a_filtered_dataset_with_num_samples():
    dataset = tf.data.Dataset.range(20).map(lambda i: (i, i))
    even = dataset.filter(lambda i, _: i % 2 == 0)
    samples = DatasetSamples(even, num_samples=10)
    for index, x, y in one_pass(samples, batch_size=4):
        np.testing.assert_array_equal(x, 2 * index)
        np.testing.assert_array_equal(y, 2 * index)


def test_samples_of_an_unknown_number_are_counted_once():
    seen = []

    def track(iterable, total):
        for batch in iterable:
            seen.append(total)
            yield batch

    samples = DatasetSamples(generated(600), track=track)
    assert samples.num_samples == 600
    assert samples.labels(track).tolist() == list(range(600))
    assert seen == [None] * 3  # 256 + 256 + 88


def test_a_cache_is_filled_before_it_is_read_in_part():
    # TensorFlow logs a warning otherwise, and the cache stays empty.
    num_read = tf.Variable(0, dtype=tf.int64)
    dataset = tf.data.Dataset.range(600).map(
        lambda i: (i + 0 * num_read.assign_add(1), i)
    )
    samples = DatasetSamples(dataset.cache().map(lambda x, y: (x, y)))
    assert samples.labels().tolist() == list(range(600))
    assert sum(map(len, samples.inputs(64))) == 600
    assert int(num_read) == 600


def test_num_samples_may_repeat_what_is_known():
    dataset = tf.data.Dataset.range(4).map(lambda i: (i, i))
    assert DatasetSamples(dataset, num_samples=4).num_samples == 4


# Inputs to score and labels.


@pytest.mark.parametrize("batch_size", [1, 10, 50])
@pytest.mark.parametrize("source", SOURCES)
def test_inputs_come_in_the_order_of_the_index(source, batch_size):
    batches = [x.numpy() for x in numbered(source).inputs(batch_size)]
    assert [len(x) for x in batches[:-1]] == [batch_size] * (len(batches) - 1)
    index = np.arange(37)
    np.testing.assert_array_equal(
        np.concatenate(batches), np.stack([index, -index], axis=1)
    )


def test_passes_over_arrays_share_a_dataset_that_goes_with_them(monkeypatch):
    samples = numbered("arrays")
    (first,) = samples.inputs(37)
    assert sum(map(len, samples.inputs(5))) == 37  # of that size another one
    with monkeypatch.context() as patch:
        patch.setattr(tf.data.Dataset, "map", None)  # would trace a function
        (second,) = samples.inputs(37)
    np.testing.assert_array_equal(first, second)
    alive = weakref.ref(samples)
    gc.disable()  # no cycle keeps arrays that may be large
    try:
        del samples
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("source", SOURCES)
def test_inputs_and_labels_are_the_same_after_training(source):
    samples = numbered(source)
    one_pass(samples, augment=lambda x, seed: x + 1000)
    (x,) = samples.inputs(37)
    np.testing.assert_array_equal(x[:, 0], np.arange(37))
    assert samples.labels().tolist() == list(range(0, 111, 3))
    assert samples.labels().tolist() == list(range(0, 111, 3))


def test_reading_labels_of_a_dataset_is_tracked():
    seen = []

    def track(iterable, total):
        for batch in iterable:
            seen.append(total)
            yield batch

    labels = numbered("dataset", 600).labels(track)
    assert labels.tolist() == list(range(0, 1800, 3))
    assert seen == [3, 3, 3]  # 256 + 256 + 88


# Augmentation.


@pytest.mark.parametrize("source", SOURCES)
def test_augment_gets_one_sample_and_a_seed(source):
    shapes = []

    def augment(x, seed):
        shapes.append((x.shape.as_list(), x.dtype, seed.shape.as_list()))
        return x + 100

    for index, x, y in one_pass(numbered(source), augment=augment):
        np.testing.assert_array_equal(
            x, np.stack([index, -index], axis=1) + 100
        )
        np.testing.assert_array_equal(y, 3 * index)
    assert set(map(str, shapes)) == {str(([2], tf.float32, [2]))}


def seeds_by_index(source, key, **options):
    """Seed of each sample: `augment` puts it where x was."""
    seeds = {}
    for index, x, _ in one_pass(
        numbered(source), key, augment=seed_as_input, **options
    ):
        np.testing.assert_array_equal(x[:, 0], index)
        seeds |= {
            i: tuple(s) for i, s in zip(index, x[:, 1:].tolist(), strict=True)
        }
    return seeds


def test_seeds_depend_on_key_and_index_alone():
    expected = seeds_by_index("arrays", (5, 2), shuffle=False)
    assert sorted(expected) == list(range(37))
    assert len(set(expected.values())) == 37
    for source in SOURCES:
        for options in (
            {"shuffle": True},
            {"shuffle": False},
            {"shuffle": 3, "batch_size": 8},
        ):
            assert seeds_by_index(source, (5, 2), **options) == expected


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("other_key", [(5, 3), (6, 2)])
def test_every_seed_differs_with_the_key(source, other_key):
    here = seeds_by_index(source, (5, 2))
    there = seeds_by_index(source, other_key)
    assert [i for i in here if here[i] == there[i]] == []


@pytest.mark.parametrize("source", SOURCES)
def test_random_augmentation_replays(source):
    def noisy(x, seed):
        return x + tf.random.stateless_normal([2], seed)

    first, again, shuffled_by_two = (
        {
            i: tuple(row)
            for index, x, _ in one_pass(
                numbered(source), (3, 1), augment=noisy, shuffle=shuffle
            )
            for i, row in zip(index, x.tolist(), strict=True)
        }
        for shuffle in (True, True, 2)
    )
    assert first == again == shuffled_by_two
    noise = np.array([first[i] for i in range(37)])
    noise -= np.stack([np.arange(37), -np.arange(37)], axis=1)
    assert 0.5 < noise.std() < 2


def test_augment_of_a_structure():
    x = {"a": np.arange(5.0), "b": np.arange(5)}

    def augment(x, seed):
        return {"a": x["a"] * 2, "b": x["b"]}

    for index, found, _ in one_pass(
        ArraySamples(x, np.arange(5)), augment=augment
    ):
        np.testing.assert_array_equal(found["a"], 2 * index)
        np.testing.assert_array_equal(found["b"], index)


# What is refused.


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((3, 2)), np.zeros(4), r"\[3\] for x and 4 for y"),
        (
            [np.zeros(3), np.zeros((2, 2))],
            np.zeros(3),
            r"\[3, 2\] for x and 3 for y",
        ),
        (np.zeros((0, 2)), np.zeros(0), "x and y are empty"),
        (np.zeros(()), np.zeros(3), r"\[None\] for x and 3 for y"),
        (np.zeros(3), 1, r"\[3\] for x and None for y"),
        (
            np.zeros(3),
            {"a": np.zeros(3)},
            "y must be one array of labels; received dict of 1",
        ),
        (
            np.zeros(3),
            [np.zeros(3), np.zeros(3)],
            "y must be one array of labels; received list of 2",
        ),
    ],
)
def test_refused_arrays(x, y, message):
    with pytest.raises(ValueError, match=message):
        ArraySamples(x, y)


def pairs(num_samples=6):
    return tf.data.Dataset.from_tensor_slices(
        (np.zeros((num_samples, 2)), np.arange(num_samples))
    )


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (pairs().batch(2), r"seems to be batched.*\(None,\).*unbatch"),
        (
            tf.data.Dataset.from_tensor_slices(
                (np.zeros((4, 2, 2)), np.zeros((4, 2, 3)))
            ),
            r"seems to be batched.*\(2, 3\)",
        ),
        (pairs().repeat(), r"repeats for ever; remove `.repeat\(\)`"),
        (
            pairs().map(lambda x, y: (x, y, 1.0)),
            r"must give `\(x, y\)`.*the argument `sample_weight`",
        ),
        (pairs().map(lambda x, y: x), r"must give `\(x, y\)`"),
        (
            pairs().map(lambda x, y: {"x": x, "y": y}),
            r"must give `\(x, y\)`",
        ),
        (
            pairs().map(lambda x, y: (x, (y, y))),
            "y must be one label per sample.*one classification output",
        ),
        (
            pairs().map(lambda x, y: (x, {"a": y, "b": y})),
            "y must be one label per sample",
        ),
        (pairs().take(0), "the dataset is empty"),
        (generated(0), "the dataset is empty"),
    ],
)
def test_refused_datasets(dataset, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        DatasetSamples(dataset)


@pytest.mark.parametrize("num_samples", [5, 7])
def test_num_samples_that_contradicts_the_dataset(num_samples):
    with pytest.raises(
        ValueError,
        match=f"num_samples={num_samples}, but the dataset has 6.*Leave",
    ):
        DatasetSamples(pairs(), num_samples)


@pytest.mark.parametrize("num_samples", [0, -3])
def test_num_samples_below_one(num_samples):
    with pytest.raises(
        ValueError, match=rf"num_samples={num_samples}\): at least 1"
    ):
        DatasetSamples(generated(3), num_samples)


@pytest.mark.parametrize("num_samples", [8, 10])
def test_num_samples_that_turns_out_wrong(num_samples):
    samples = DatasetSamples(generated(9), num_samples)
    with pytest.raises(
        ValueError,
        match=f"has 9 samples, but {num_samples} were announced.*true number",
    ):
        samples.labels()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"seed": 3},
        {"seed": 3, "reshuffle_each_iteration": True},
    ],
)
def test_a_dataset_that_shuffles_is_refused(options):
    with pytest.raises(ValueError, match=MOVES):
        DatasetSamples(pairs(50).shuffle(50, **options))


def test_a_dataset_that_augments_is_refused():
    tf.random.set_seed(None)  # with one, every pass draws the same numbers
    dataset = pairs().map(
        lambda x, y: (x[0] + tf.random.normal([], dtype=x.dtype), y)
    )
    with pytest.raises(ValueError, match=MOVES):
        DatasetSamples(dataset)


def test_a_dataset_whose_labels_alone_change_is_refused():
    count = tf.Variable(0, dtype=tf.int64)
    dataset = pairs().map(lambda x, y: (x, y + count.assign_add(1)))
    with pytest.raises(ValueError, match=MOVES):
        DatasetSamples(dataset)


def test_a_dataset_shuffled_once_and_for_all_is_accepted():
    dataset = pairs(50).shuffle(50, seed=3, reshuffle_each_iteration=False)
    samples = DatasetSamples(dataset)
    labels = samples.labels()
    assert labels.tolist() != list(range(50))
    assert sorted(labels.tolist()) == list(range(50))
    for index, _, y in one_pass(samples):
        np.testing.assert_array_equal(y, labels[index])
    assert sum(len(x) for x in samples.inputs(8)) == 50


def changing(changes_at, num_samples=400):
    """A dataset, and the variable by which one late sample differs."""
    change = tf.Variable(0.0)
    dataset = tf.data.Dataset.range(num_samples).map(
        lambda i: (
            tf.cast(i, tf.float32) + (change if i == changes_at else 0.0),
            i,
        )
    )
    return DatasetSamples(dataset), change


def test_a_late_change_is_refused_in_the_pass_that_sees_it():
    samples, change = changing(300)
    samples.labels()
    assert sum(len(x) for x in samples.inputs(64)) == 400
    change.assign(0.5)
    given = []
    with pytest.raises(ValueError, match=MOVES):
        for x in samples.inputs(64):
            given.append(len(x))
    # 300 is in the fifth batch, 256..319: it and what follows is held back.
    assert given == [64, 64, 64, 64]
    change.assign(0.0)
    assert sum(len(x) for x in samples.inputs(64)) == 400


def test_a_late_shuffle_is_refused_in_the_next_pass():
    still = pairs(300)
    moving = pairs(60).shuffle(60)
    samples = DatasetSamples(still.concatenate(moving))
    samples.labels()
    with pytest.raises(ValueError, match=MOVES):
        list(samples.inputs(50))


@pytest.mark.parametrize("later", [299, 301])
def test_another_number_of_examples_in_a_later_pass_is_refused(later):
    size = tf.Variable(300, dtype=tf.int64)
    dataset = tf.data.Dataset.range(500).map(lambda i: (i, i))
    dataset = dataset.filter(lambda i, _: i < size)
    samples = DatasetSamples(dataset, num_samples=300)
    samples.labels()
    size.assign(later)
    with pytest.raises(ValueError, match="had 300 samples, and a later pass"):
        list(samples.inputs(100))


def test_sparse_inputs_are_refused_in_one_sentence():
    sparse = tf.sparse.from_dense(np.eye(4, dtype="float32"))
    with pytest.raises(ValueError, match="sparse inputs.*to_dense"):
        ArraySamples(sparse, np.arange(4))


def test_a_frame_of_mixed_columns_says_to_give_a_dict():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    with pytest.raises(ValueError, match="DataFrame of dtype object.*a dict"):
        ArraySamples(frame, [0, 1])
