"""AutoAugment against Pillow, its probabilities, and blending's weights."""

import collections
import functools
import math
import pathlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from recipes.autoaugment import (
    POLICIES,
    apply_operation,
    autoaugment,
    compose,
    cutout,
)
from recipes.blending import blended, rand_augment
from sklearn.datasets import load_sample_images

from cbnn_keras import CBNNCallback, weighted

# Recipes are no part of the package.
pytestmark = pytest.mark.large

# Beside a checkout, if at all: the data are not part of the project.
DATA = pathlib.Path(__file__).parents[3] / "shared" / "data" / "tfds"
GREY = (128, 128, 128)
GEOMETRIC = ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"]
ENHANCING = ["Color", "Contrast", "Brightness", "Sharpness"]
OF_PIXELS = [
    *["AutoContrast", "Invert", "Equalize", "Solarize", "Posterize"],
    *ENHANCING,
]


@functools.cache
def photographs():
    """Two of them, at the size of CIFAR and not square, and hard cases."""
    pictures = []
    for picture in load_sample_images().images:
        small = Image.fromarray(picture).resize((32, 32))
        pictures += [np.asarray(small), picture[100:196, 200:360]]
    dark = pictures[0] // 4 + 20
    noise = np.random.default_rng(0).integers(0, 256, (33, 47, 3))
    flat = np.full((32, 32, 3), 77, np.uint8)
    two_levels = np.where(pictures[2] > 100, 201, 3).astype(np.uint8)
    return [*pictures, dark, noise.astype(np.uint8), flat, two_levels]


@functools.cache
def cifar100():
    if not DATA.is_dir():
        pytest.skip("the CIFAR-100 files of TFDS are not here")
    import tensorflow_datasets as tfds

    data = tfds.load(
        "cifar100", split="test[:20]", data_dir=DATA, download=False
    )
    return [example["image"].numpy() for example in data]


SOURCES = [
    photographs,
    pytest.param(
        cifar100,
        marks=[
            # tensorflow-datasets and what it imports use deprecated parts of
            # others.
            pytest.mark.filterwarnings("ignore::DeprecationWarning"),
            pytest.mark.filterwarnings("ignore::ResourceWarning"),
            pytest.mark.filterwarnings(
                "ignore::pytest.PytestUnraisableExceptionWarning"
            ),
        ],
    ),
]


def of_pixels_by_pillow(picture, name, magnitude):
    image = Image.fromarray(picture)
    if name in ENHANCING:
        factor = 0.1 + 0.18 * magnitude
        return np.asarray(getattr(ImageEnhance, name)(image).enhance(factor))
    arguments = {
        "Solarize": [256 - int(25.6 * magnitude)],
        "Posterize": [8 - int(0.4 * magnitude)],
    }.get(name, [])
    return np.asarray(getattr(ImageOps, name.lower())(image, *arguments))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", OF_PIXELS)
def test_operations_of_pixels_are_those_of_pillow(name, source):
    for picture in source():
        for magnitude in range(11):
            result = apply_operation(tf.constant(picture), name, magnitude)
            np.testing.assert_array_equal(
                result, of_pixels_by_pillow(picture, name, magnitude)
            )


def matrix_for_pillow(name, magnitude, sign, width, height):
    """From a pixel of the result to the one of the picture, by hand."""
    shear = sign * 0.03 * magnitude
    x, y = (
        sign * int(size * 150 / 331 * magnitude / 10)
        for size in (width, height)
    )
    angle = math.radians(sign * 3 * magnitude)
    cos, sin = math.cos(angle), math.sin(angle)
    return {
        "ShearX": (1, shear, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, shear, 1, 0),
        "TranslateX": (1, 0, x, 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, y),
        # Around the centre (width, height) / 2.
        "Rotate": (
            *(cos, sin, width / 2 - cos * width / 2 - sin * height / 2),
            *(-sin, cos, height / 2 + sin * width / 2 - cos * height / 2),
        ),
    }[name]


def is_between_pixels(matrix, width, height):
    """Where two pixels are equally near, but for 0.005 of a pixel.

    Pillow computes in steps of 2**-16, TensorFlow in float32: on pictures of
    up to 160 pixels either may be off by a few thousandths, and take the
    neighbour. Shear by 0.12 meets the middle in each 25th row, exactly.
    """
    a, b, c, d, e, f = matrix
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    positions = np.stack([a * x + b * y + c, d * x + e * y + f])
    return (np.abs(positions - np.round(positions)) < 0.005).any(axis=0)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", GEOMETRIC)
def test_geometric_operations_are_those_of_pillow(name, source):
    for picture in source():
        image, (height, width) = Image.fromarray(picture), picture.shape[:2]
        for magnitude in (0, 1, 4, 7, 9, 10):
            for sign in (1, -1):
                matrix = matrix_for_pillow(name, magnitude, sign, width, height)
                result = apply_operation(
                    tf.constant(picture), name, magnitude, sign
                )
                expected = image.transform(
                    image.size,
                    Image.Transform.AFFINE,
                    matrix,
                    Image.Resampling.NEAREST,
                    fillcolor=GREY,
                )
                is_clear = ~is_between_pixels(matrix, width, height)
                assert np.mean(is_clear) > 0.9
                np.testing.assert_array_equal(
                    result.numpy()[is_clear], np.asarray(expected)[is_clear]
                )


@pytest.mark.parametrize("magnitude", [1, 5, 10])
def test_rotation_is_that_of_pillow(magnitude):
    for picture in photographs():
        image = Image.fromarray(picture)
        result = apply_operation(tf.constant(picture), "Rotate", magnitude)
        # Pillow's angles are counter-clockwise.
        expected = image.rotate(-3 * magnitude, fillcolor=GREY)
        is_equal = np.all(result == np.asarray(expected), axis=-1)
        # Neighbours instead, where two are equally near.
        assert np.mean(is_equal) > 0.99


@pytest.mark.parametrize("name", ["TranslateX", "TranslateY"])
def test_shift_is_150_of_331_of_the_size(name):
    picture = np.full((331, 331, 3), 255, np.uint8)
    shifted = apply_operation(tf.constant(picture), name, 10).numpy()
    assert np.sum(shifted[:, 0] == 128) == (0 if name[-1] == "X" else 450)
    assert np.sum(shifted == 128) == 331 * 150 * 3


@pytest.mark.parametrize("policy", ["cifar10", "imagenet"])
def test_policies_have_25_pairs_of_operations(policy):
    pairs = POLICIES[policy]
    assert len(pairs) == 25
    for pair in pairs:
        assert len(pair) == 2
        for name, probability, magnitude in pair:
            assert name in GEOMETRIC + OF_PIXELS
            assert 0 <= probability <= 1
            assert magnitude in range(10)


def test_policies_are_those_of_the_paper():
    cifar10, imagenet = POLICIES["cifar10"], POLICIES["imagenet"]
    assert cifar10[0] == (("Invert", 0.1, 7), ("Contrast", 0.2, 6))
    assert cifar10[12] == (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6))
    assert cifar10[24] == (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 1))
    assert imagenet[0] == (("Posterize", 0.4, 8), ("Rotate", 0.6, 9))
    assert imagenet[12] == (("Equalize", 0.0, 7), ("Equalize", 0.8, 8))
    # The last five were found twice.
    assert [imagenet.index(pair) for pair in imagenet[20:]] == [4, 1, 13, 14, 2]
    # How often each is in the tables.
    counts = collections.Counter(name for pair in cifar10 for name, *_ in pair)
    assert counts == {
        **{"Equalize": 9, "AutoContrast": 7, "TranslateY": 5, "Sharpness": 5},
        **{"Color": 5, "Solarize": 4, "Brightness": 4, "Invert": 3},
        **{"Contrast": 2, "TranslateX": 2, "ShearY": 2, "Rotate": 1},
        "Posterize": 1,
    }


def outcomes(picture, pairs):
    """All that a policy can make of a picture, with its probability."""
    probabilities = collections.Counter()
    for pair in pairs:
        states = [(picture, 1 / len(pairs))]
        for name, probability, magnitude in pair:
            following = []
            for state, chance in states:
                following.append((state, chance * (1 - probability)))
                for sign in (1, -1):
                    changed = apply_operation(state, name, magnitude, sign)
                    following.append((changed, chance * probability / 2))
            states = following
        for state, chance in states:
            probabilities[state.numpy().tobytes()] += chance
    return probabilities


def draw(augment, picture, num):
    """The results for the seeds (7, 0), (7, 1), ..."""
    seeds = np.stack([np.full(num, 7), np.arange(num)], axis=1)
    dataset = tf.data.Dataset.from_tensor_slices(seeds).map(
        lambda seed: augment(tf.constant(picture), seed)
    )
    return list(dataset.as_numpy_iterator())


@pytest.mark.parametrize("policy", ["cifar10", "imagenet"])
def test_outcomes_are_as_frequent_as_the_policy_says(policy):
    picture, num = photographs()[0], 3000
    probabilities = outcomes(tf.constant(picture), POLICIES[policy])
    assert sum(probabilities.values()) == pytest.approx(1)
    counts = collections.Counter(
        result.tobytes() for result in draw(autoaugment(policy), picture, num)
    )
    assert counts.keys() <= {k for k, p in probabilities.items() if p > 0}
    for outcome, probability in probabilities.items():
        # Five standard deviations of a binomial, and one for small counts.
        spread = math.sqrt(num * probability * (1 - probability))
        assert abs(counts[outcome] - num * probability) <= 5 * spread + 1


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_each_operation_has_a_probability_of_its_own(monkeypatch, probability):
    pair = ("Invert", probability, 0), ("TranslateX", 0.6, 10)
    monkeypatch.setitem(POLICIES, "one", [pair])
    num, picture = 2000, np.zeros((8, 8, 3), np.uint8)
    results = np.stack(draw(autoaugment("one"), picture, num))
    inverted = np.any(results == 255, axis=(1, 2, 3))
    left, right = (np.all(results[:, :, x] == 128, (1, 2)) for x in (0, -1))

    def check(events, expected):
        spread = math.sqrt(expected * (1 - expected) / num)
        assert abs(np.mean(events) - expected) <= 5 * spread

    check(inverted, probability)
    check(left, 0.3)
    check(right, 0.3)
    check(inverted & left, 0.3 * probability)


@given(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31)))
@settings(max_examples=20, deadline=None)
def test_result_depends_on_the_seed_alone(seed):
    function = graph_of_autoaugment()
    picture = tf.constant(photographs()[0])
    first = function(picture, tf.constant(seed, tf.int64))
    tf.random.set_seed(seed[1])
    function(picture, tf.constant([1, 2], tf.int64))
    again = function(picture, tf.constant(seed, tf.int64))
    np.testing.assert_array_equal(first, again)


@functools.cache
def graph_of_autoaugment():
    return tf.function(autoaugment("cifar10"))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("policy", ["cifar10", "imagenet"])
def test_type_and_shape_are_kept(policy, dtype):
    pictures = np.stack([photographs()[1]] * 8)
    seeds = np.arange(16, dtype=dtype).reshape(8, 2)
    dataset = tf.data.Dataset.from_tensor_slices((pictures, seeds))
    dataset = dataset.map(compose(autoaugment(policy), cutout))
    assert dataset.element_spec == tf.TensorSpec([96, 160, 3], tf.uint8)
    assert len(list(dataset)) == 8


def test_weighted_pipeline_repeats_its_images():
    pictures = np.stack([photographs()[0]] * 12)

    def one_pass(seed):
        dataset = weighted(
            *(pictures, np.arange(12)),
            batch_size=4,
            augment=compose(autoaugment("cifar10"), cutout),
            seed=seed,
        )
        return np.concatenate([x for x, _, _ in dataset])

    first, again, other = (one_pass(seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


def test_unknown_policy_is_refused():
    message = r"policy='svhn'.*no such policy.*\['cifar10', 'imagenet'\]"
    with pytest.raises(ValueError, match=message):
        autoaugment("svhn")


def test_unknown_size_is_refused():
    images = tf.data.Dataset.from_generator(
        lambda: iter([photographs()[0]]),
        output_signature=tf.TensorSpec([None, None, 3], tf.uint8),
    )
    augment = autoaugment("imagenet")
    with pytest.raises(ValueError, match="must be known: resize or crop"):
        images.map(lambda image: augment(image, [0, 0]))


@pytest.mark.parametrize(
    ("shape", "dtype"), [([32, 32, 3], "float32"), ([28, 28, 1], "uint8")]
)
def test_other_images_are_refused(shape, dtype):
    message = f"must be of type uint8.*not {dtype} and {shape[2]}"
    with pytest.raises(ValueError, match=message):
        autoaugment("cifar10")(tf.zeros(shape, dtype), [0, 0])


def test_composed_functions_run_in_order_with_seeds_of_their_own():
    seeds = []

    def add_one(image, seed):
        seeds.append(tuple(seed.numpy()))
        return image + 1

    def double(image, seed):
        seeds.append(tuple(seed.numpy()))
        return image * 2

    augment = compose(add_one, double, double)
    for seed in ([3, 4], [3, 5], [3, 4]):
        image = augment(tf.constant(10), tf.constant(seed, tf.int64))
        assert int(image) == 44  # (10 + 1) * 2 * 2
    assert seeds[:3] == seeds[6:]
    assert len({*seeds, (3, 4), (3, 5)}) == 8


@pytest.mark.parametrize("size", [1, 3, 4])
def test_cutout_fills_a_square_around_any_pixel(size):
    height, width = 5, 6
    expected = set()
    for row in range(height):
        for column in range(width):
            picture = np.zeros((height, width, 3), np.uint8)
            top, left = row - size // 2, column - size // 2
            rows = slice(max(top, 0), top + size)
            picture[rows, max(left, 0) : left + size] = 9
            expected.add(picture.tobytes())
    picture = np.zeros((height, width, 3), np.uint8)
    augment = functools.partial(cutout, size=size, fill=9)
    # Missing one of 30 centres: 30 * (29 / 30)**500 = 1e-6.
    results = {result.tobytes() for result in draw(augment, picture, 500)}
    assert results == expected


def test_cutout_is_grey_and_16_wide():
    picture = np.zeros((64, 64, 3), np.uint8)
    results = np.stack(draw(cutout, picture, 50))
    assert set(np.unique(results)) == {0, 128}
    assert np.max(np.sum(results == 128, axis=(1, 2, 3))) == 16 * 16 * 3


def numbered_pictures(num):
    """The picture, the class and the weight tell the sample."""
    x = np.arange(num, dtype=np.uint8)[:, None, None, None]
    weights = np.random.default_rng(0).uniform(0.5, 1.5, num)
    weights = (weights / weights.mean()).astype("float32")
    return np.tile(x, (1, 8, 8, 3)), np.arange(num), weights


@pytest.mark.parametrize("method", ["mixup", "cutmix"])
def test_weights_are_blended_as_labels_are(tmp_path, method):
    x, y, weights = numbered_pictures(20)
    cbnn = CBNNCallback.paper(tmp_path, score_data=(x, y))
    # The last batch has four samples.
    train = blended(
        *(cbnn, x, y), num_classes=20, batch_size=8, method=method, seed=1
    )
    cbnn.sample_weights.assign(weights)
    sizes, num_blended = [], 0
    for images, labels, weight in train:
        sizes.append(len(images))
        labels = labels.numpy()
        np.testing.assert_allclose(labels.sum(axis=1), 1, rtol=1e-6)
        # The classes are the samples: the labels are the shares.
        np.testing.assert_allclose(weight, labels @ weights, rtol=1e-5)
        num_blended += np.sum(np.sum(labels > 0, axis=1) == 2)
        for image, label in zip(images.numpy(), labels, strict=True):
            if method == "mixup":
                np.testing.assert_allclose(
                    image, label @ np.arange(20), rtol=1e-5
                )
            else:  # a square cut off at the edge counts as a whole one
                assert set(np.unique(image)) <= set(np.flatnonzero(label))
    assert sizes == [8, 8, 4]
    assert num_blended >= 5


def test_blended_weights_are_looked_up_after_the_last_prefetch(tmp_path):
    x, y, _ = numbered_pictures(40)
    cbnn = CBNNCallback.paper(tmp_path, score_data=(x, y))
    train = blended(cbnn, x, y, num_classes=40, batch_size=8)
    for number, (_, _, weight) in enumerate(train):
        np.testing.assert_allclose(weight, np.full(8, 1.0 + number), rtol=1e-5)
        cbnn.sample_weights.assign_add(np.ones(40))


def test_blended_images_are_augmented_anew_every_pass(tmp_path):
    x, y, _ = numbered_pictures(20)
    cbnn = CBNNCallback.paper(tmp_path, score_data=(x, y))
    train = blended(
        *(cbnn, x, y),
        num_classes=20,
        batch_size=20,
        augment=functools.partial(cutout, size=2, fill=255),
    )
    assert int(train.cardinality()) == 1
    first, second = (next(iter(train))[0].numpy() for _ in range(2))
    assert np.max(first) > 20 and np.max(second) > 20
    assert np.any(first != second)


@pytest.mark.parametrize("method", ["mixup", "cutmix"])
def test_model_trains_on_blended_images(tmp_path, method):
    x, y, _ = numbered_pictures(24)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Rescaling(1 / 24),
            keras.layers.Flatten(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile("sgd", "categorical_crossentropy")
    labels = y % 3
    score_data = x.astype("float32"), keras.utils.to_categorical(labels, 3)
    cbnn = CBNNCallback.paper(
        tmp_path, num_checkpoints=2, score_data=score_data
    )
    train = blended(
        *(cbnn, x, labels), num_classes=3, batch_size=8, method=method
    )
    model.fit(train, epochs=4, callbacks=[cbnn], verbose=0)
    assert len(cbnn.history) == 2
    assert np.ptp(cbnn.sample_weights.numpy()) > 0


def test_rand_augment_keeps_type_and_shape_in_a_weighted_pipeline():
    pictures = np.stack([photographs()[0]] * 8)
    dataset = weighted(
        pictures, np.arange(8), batch_size=8, augment=rand_augment()
    )
    images, _, _ = next(iter(dataset))
    assert images.dtype == tf.uint8 and images.shape == (8, 32, 32, 3)
    assert np.any(images != pictures)


def test_unknown_method_is_refused(tmp_path):
    x, y, _ = numbered_pictures(4)
    cbnn = CBNNCallback.paper(tmp_path, score_data=(x, y))
    message = r"method='mix'.*no such method.*\['cutmix', 'mixup'\]"
    with pytest.raises(ValueError, match=message):
        blended(cbnn, x, y, num_classes=4, batch_size=2, method="mix")


def test_missing_keras_cv_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_cv", None)
    with pytest.raises(ImportError, match=r'pip install "cbnn-keras\[exam'):
        rand_augment()
