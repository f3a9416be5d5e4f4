"""What `weighted` takes, in the forms that people have it in."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from cbnn_keras import weighted
from cbnn_keras.data.pipelines import weighted_pipeline

NUM = 23
X = np.stack([np.arange(NUM), -np.arange(NUM)], axis=1).astype("float32")
Y = np.arange(NUM) % 3
NAMES = np.array(["bee", "cow", "ant"])[Y]


def pairs(y=Y, num=NUM):
    return tf.data.Dataset.from_tensor_slices((X[:num], y[:num]))


def found_in(*data, **options):
    """`(x, y, weights)` of one pass, in the order of the index."""
    train, weights = weighted_pipeline(*data, **{"shuffle": False, **options})
    batches = list(train.as_numpy_iterator())
    assert len(batches) == weights.num_batches
    x, y, _ = (np.concatenate(part) for part in zip(*batches, strict=True))
    return x, y, weights


# Datasets.


@pytest.mark.parametrize(
    ("dataset", "batch_size"),
    [
        (pairs().batch(4), 4),
        (pairs().batch(4).prefetch(2), 4),
        (pairs(num=20).batch(4, drop_remainder=True), 4),
        (pairs(Y[:, None]).batch(4), 4),
        (pairs(np.eye(3)[Y]).batch(4), 4),
        (pairs(), 32),
        (pairs(np.eye(3)[Y]), 32),  # as long as three samples would be
        (pairs(Y[:, None]), 32),
    ],
)
def test_batches_are_taken_apart(dataset, batch_size):
    num = 20 if "(4, 2)" in str(dataset.element_spec) else NUM
    x, y, weights = found_in(dataset)
    assert (weights.num_samples, weights.batch_size) == (num, batch_size)
    np.testing.assert_array_equal(x, X[:num])
    labels = y.argmax(axis=1) if y.shape[1:] == (3,) else y.ravel()
    np.testing.assert_array_equal(labels, Y[:num])
    assert found_in(dataset, batch_size=7)[2].batch_size == 7


def test_one_hot_labels_as_many_as_inputs_are_no_batch():
    square = tf.data.Dataset.from_tensor_slices(
        (np.zeros((6, 3, 3)), np.eye(3)[np.arange(6) % 3])
    )
    assert found_in(square)[2].num_samples == 6
    batched = tf.data.Dataset.from_tensor_slices(
        (np.zeros((6, 3)), np.arange(6))
    )
    batched = batched.batch(3, drop_remainder=True)
    assert found_in(batched)[2].num_samples == 6


def one_positive_a_batch(num_batches=3):
    y = np.zeros(4 * num_batches, "int32")
    y[1::4] = 1
    x = np.arange(8.0 * num_batches).reshape(-1, 2)
    return x, y


@pytest.mark.parametrize(
    "behind",
    [
        lambda d: d,
        lambda d: d.prefetch(1),
        lambda d: d.map(lambda x, y: (x + 0, y), num_parallel_calls=2),
        lambda d: d.cache().shuffle(8),
        lambda d: d.take(9).skip(0).with_options(tf.data.Options()),
    ],
)
def test_a_batch_with_one_positive_is_no_one_hot_sample(behind):
    x, y = one_positive_a_batch()
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    found, labels, weights = found_in(
        behind(dataset.batch(4, drop_remainder=True))
    )
    assert (weights.num_samples, weights.batch_size) == (12, 4)
    np.testing.assert_array_equal(found, x)
    np.testing.assert_array_equal(labels, y)


def test_batches_of_ones_own_are_told_by_more_than_the_first():
    x, y = one_positive_a_batch()
    y[-1] = 1  # two in the last batch
    batches = x.reshape(3, 4, 2), y.reshape(3, 4)
    weights = found_in(tf.data.Dataset.from_tensor_slices(batches))[2]
    assert (weights.num_samples, weights.batch_size) == (12, 4)


@pytest.mark.parametrize(
    "made",
    [
        lambda d: d.shuffle(8),
        lambda d: d.shuffle(8, seed=1).batch(4).prefetch(1),
        lambda d: d.batch(1).shuffle(8).unbatch().batch(4),
        lambda d: d.cache().shuffle(8).map(lambda x, y: (x + 0, y)).batch(4),
    ],
)
def test_shuffling_inside_is_taken_out_and_done_outside(made):
    # Longer than the look at its head, so that a `cache` is not full by it.
    x = np.arange(600.0, dtype="float32")[:, None]
    dataset = made(tf.data.Dataset.from_tensor_slices((x, np.arange(600) % 3)))
    found, y, weights = found_in(dataset)
    np.testing.assert_array_equal(found, x)
    np.testing.assert_array_equal(y, np.arange(600) % 3)
    train, weights = weighted_pipeline(dataset)
    assert weights.shuffle == 8
    order = np.concatenate([x[:, 0] for x, _, _ in train.as_numpy_iterator()])
    assert sorted(order) == list(range(600))
    assert (order - np.arange(600)).max() == 7  # a buffer of 8


def test_a_shuffle_that_decides_which_samples_there_are_stays():
    dataset = pairs().shuffle(NUM).take(10)
    with pytest.raises(ValueError, match="shuffle once.*reshuffle_each_iter"):
        weighted(dataset)


def test_random_maps_are_refused_shuffled_or_not():
    tf.random.set_seed(None)  # with one, every pass draws the same numbers
    noisy = pairs().map(lambda x, y: (x + tf.random.normal([2]), y))
    for dataset in (noisy.batch(4), noisy.shuffle(8).batch(4)):
        with pytest.raises(ValueError, match="Remove `.shuffle.*random maps"):
            weighted(dataset)


def write_images(directory):
    for name in ("cat", "dog"):
        (directory / name).mkdir()
        for i in range(9):
            image = np.full((6, 6, 3), 20 * i + (name == "dog"))
            path = directory / name / f"{i}.png"
            keras.utils.save_img(path, image, scale=False)


def write_texts(directory):
    for name in ("cat", "dog"):
        (directory / name).mkdir()
        for i in range(9):
            (directory / name / f"{i}.txt").write_text(f"{name} {i}")


@pytest.mark.parametrize("split", [None, 0.5])
def test_images_from_a_directory_as_they_come(tmp_path, split):
    pytest.importorskip("PIL")
    write_images(tmp_path)
    options = {"validation_split": split, "subset": "both", "seed": 1}
    dataset = keras.utils.image_dataset_from_directory(
        tmp_path,
        image_size=(6, 6),
        batch_size=4,
        verbose=False,
        **(options if split else {}),
    )
    dataset = dataset[0] if split else dataset
    x, y, weights = found_in(dataset)
    assert weights.num_samples == len(dataset.file_paths)
    assert weights.class_names == ["cat", "dog"]
    is_dog = ["dog" in path for path in dataset.file_paths]
    assert y.tolist() == is_dog
    assert len(set(is_dog)) == 2  # not sorted by class
    np.testing.assert_array_equal(x[:, 0, 0, 0] % 20, is_dog)
    assert weighted_pipeline(dataset)[1].shuffle == 32  # Keras' 8 * 4


def test_texts_from_a_directory_as_they_come(tmp_path):
    write_texts(tmp_path)
    dataset = keras.utils.text_dataset_from_directory(
        tmp_path, batch_size=4, verbose=False
    )
    x, y, weights = found_in(dataset)
    assert (weights.num_samples, weights.batch_size) == (18, 4)
    assert weights.class_names == ["cat", "dog"]
    assert [b"dog" in text for text in x] == y.astype(bool).tolist()


# Batches by number.


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return -(-NUM // 5)

    def __getitem__(self, i):
        part = slice(5 * i, 5 * i + 5)
        return [X[part], X[part, 0]], Y[part]

    def on_epoch_end(self):
        raise RuntimeError("would shuffle")


class Indexable:
    __len__ = Batches.__len__
    __getitem__ = Batches.__getitem__


@pytest.mark.parametrize("kind", [Batches, Indexable])
def test_batches_by_number(kind):
    source = kind(workers=2) if kind is Batches else kind()
    train, weights = weighted_pipeline(source)
    assert (weights.num_samples, weights.batch_size) == (NUM, 5)
    order = []
    for (x, first), y, _ in train.as_numpy_iterator():
        np.testing.assert_array_equal(x[:, 0], first)
        np.testing.assert_array_equal(y, first % 3)
        order += first.tolist()
    assert sorted(order) == list(range(NUM))
    assert order != list(range(NUM))


class Weighed(Batches):
    def __getitem__(self, i):
        return X[:5], Y[:5], np.ones(5)


class NoBatches(Batches):
    def __len__(self):
        return 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Weighed(), r"batch must be `\(x, y\)`.*tuple of 3.*`sample_weight`"),
        (NoBatches(), "there are no batches in it"),
        ((x for x in X), "generator can be read once only.*PyDataset"),
    ],
)
def test_refused_batches(source, message):
    with pytest.raises(ValueError, match=message):
        weighted(source)


# Lists and data frames.


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (X.tolist(), (NUM, 2)),
        ([tuple(row) for row in X.tolist()], (NUM, 2)),
        (list(X), (NUM, 2)),  # one array a sample
        (tuple(X[:, 0].tolist()), (NUM,)),
        ([X[:, :1], X[:, 1:]], None),  # two inputs
        ([X[:, 0].tolist(), X[:, 1].tolist()], None),
    ],
)
def test_lists(x, shape):
    train, _ = weighted_pipeline(x, Y.tolist(), shuffle=False, batch_size=NUM)
    ((found, y, _),) = train.as_numpy_iterator()
    if shape is None:
        assert len(found) == 2
        found = np.concatenate([part.reshape(NUM, 1) for part in found], 1)
    else:
        assert found.shape == shape
    np.testing.assert_array_equal(found, X[:, 0] if found.ndim == 1 else X)
    np.testing.assert_array_equal(y, Y)


def test_a_list_of_texts():
    x, y, weights = found_in(["a", "b", "c"], ["no", "yes", "no"])
    assert x.tolist() == [b"a", b"b", b"c"]
    assert y.tolist() == [0, 1, 0]
    assert weights.class_names == ["no", "yes"]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([[1], [1, 2]] * 9, [0, 1] * 9, "list of 18 samples that are not eq"),
        (X.tolist() * 900, Y, r"first axes of \[20700\] for x and 23 for y"),
        (
            tuple(np.zeros(i) for i in range(2, 900)),
            Y,
            r"\[2, 3, 4, 5, 6, ... \(898 in all\)\] for x and 23",
        ),
    ],
)
def test_messages_about_lists_are_short(x, y, message):
    with pytest.raises(ValueError, match=message) as error:
        weighted(x, y)
    assert len(str(error.value)) < 300


# Labels.


@pytest.mark.parametrize(
    "y",
    [
        NAMES,
        NAMES[:, None],
        NAMES.tolist(),
        NAMES.astype(object),
        NAMES.astype("S"),
        tf.constant(NAMES.tolist()),
    ],
)
def test_names_of_classes_are_numbered(y):
    _, found, weights = found_in(X, y)
    assert weights.class_names == ["ant", "bee", "cow"]
    np.testing.assert_array_equal(found.ravel(), (Y + 1) % 3)


def test_names_of_classes_in_a_dataset_are_numbered():
    _, y, weights = found_in(pairs(NAMES).batch(4))
    assert weights.class_names == ["ant", "bee", "cow"]
    np.testing.assert_array_equal(y, (Y + 1) % 3)


def test_labels_of_pandas():
    pandas = pytest.importorskip("pandas")
    series = pandas.Series(NAMES)
    for y in (series, series.astype("category"), series.to_frame()):
        _, found, weights = found_in(pandas.DataFrame(X), y)
        assert weights.class_names == ["ant", "bee", "cow"]
        np.testing.assert_array_equal(found.ravel(), (Y + 1) % 3)
    numbers = pandas.Series(Y.tolist(), dtype=object)
    assert found_in(X, numbers)[1].tolist() == Y.tolist()


@pytest.mark.parametrize("kind", ["array", "list", "tensor", "dataset"])
def test_what_is_true_or_false(kind):
    y = Y > 0
    data = {
        "array": (X, y),
        "list": (X, y.tolist()),
        "tensor": (X, tf.constant(y)),
        "dataset": (pairs(y).batch(4),),
    }[kind]
    _, found, weights = found_in(*data)
    assert found.dtype == np.int32
    assert found.tolist() == y.astype(int).tolist()
    assert weights.class_names is None


def test_labels_of_mixed_kinds_are_refused():
    with pytest.raises(ValueError, match="names of classes; sample 1 has None"):
        weighted(X[:3], ["a", None, "b"])


# Weights of classes.


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        (X, Y[:, None]),
        (X, np.eye(3)[Y]),
        (pairs().batch(4),),
        (X, NAMES),
    ],
)
def test_class_weights_multiply_the_weights_to_start_from(data):
    by_name = data[-1] is NAMES
    factors = {"cow": 5.0} if by_name else {1: 5.0, 2: 1}
    given = np.arange(1.0, NUM + 1)
    weights = found_in(*data, class_weight=factors, sample_weight=given)[2]
    expected = given * np.where(Y == 1, 5, 1)  # cow is 1 in Y
    np.testing.assert_allclose(
        weights.first_distribution, expected / expected.sum(), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("y", "class_weight", "message"),
    [
        (Y, {7: 2.0}, "no sample has class 7; there are 0, 1, 2"),
        (Y, {"cow": 2.0}, "there is no class 'cow'; labels are numbers here"),
        (NAMES, {"elk": 2}, "no class 'elk'; there are 'ant', 'bee', 'cow'"),
        (Y, [1, 2, 3], "must be a dict of factors by class.*received list"),
        (Y, {0: -1.0}, "finite and not negative"),
    ],
)
def test_refused_class_weights(y, class_weight, message):
    with pytest.raises(ValueError, match=message):
        weighted(X, y, class_weight=class_weight)


# What is held out.


def test_the_last_arrays_are_held_out():
    train, weights = weighted_pipeline(
        X, NAMES, validation_split=0.25, sample_weight=np.arange(1.0, NUM + 1)
    )
    assert weights.num_samples == 17  # floor(23 * 0.75)
    seen = np.concatenate([x for x, _, _ in train.as_numpy_iterator()])
    assert sorted(seen[:, 0]) == list(range(17))
    x, y = train.validation_data
    np.testing.assert_array_equal(x, X[17:])
    np.testing.assert_array_equal(y, ((Y + 1) % 3)[17:])
    np.testing.assert_allclose(
        weights.first_distribution, np.arange(1, 18) / 153
    )
    assert weighted(X, Y).validation_data is None


def test_the_last_samples_of_a_dataset_are_held_out():
    train, weights = weighted_pipeline(
        pairs().shuffle(8).batch(4), validation_split=0.5
    )
    assert weights.num_samples == 11
    held_out = list(train.validation_data.as_numpy_iterator())
    assert [len(y) for _, y in held_out] == [4, 4, 4]
    np.testing.assert_array_equal(
        np.concatenate([x for x, _ in held_out]), X[11:]
    )


@pytest.mark.parametrize(
    ("y", "share", "message"),
    [
        (
            np.repeat([0, 2], [19, 4]),
            0.2,
            "class 2 is only in the part.*seem to be sorted",
        ),
        (Y, 0.99, r"validation_split=0\.99\): .*one part would be empty"),
        (Y, 1.0, r"validation_split=1\.0\): .*below 1"),
        (Y, -0.1, r"validation_split=-0\.1\): .*at least 0"),
    ],
)
def test_refused_splits(y, share, message):
    with pytest.raises(ValueError, match=message):
        weighted(X, y, validation_split=share)


@pytest.mark.parametrize(
    "given", [np.ones(NUM - 1), np.ones(NUM + 1), np.ones((NUM, 1))]
)
@pytest.mark.parametrize(
    "options", [{"validation_split": 0.25}, {"class_weight": {0: 2.0}}]
)
def test_weights_are_one_per_sample_before_anything_is_done_to_them(
    given, options
):
    shape = re.escape(str(given.shape))
    with pytest.raises(ValueError, match=f"has shape {shape}, but .* {NUM} sa"):
        weighted(X, Y, sample_weight=given, **options)
