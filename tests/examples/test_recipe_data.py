"""Tests of the paper's data: what is read, in which order, what is refused."""

import io
import pathlib
import sys
import zipfile

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from recipes import data

# Beside a checkout, if at all: the data are not part of the project.
DATA = pathlib.Path(__file__).parents[3] / "shared" / "data"
TINY = DATA / "tiny-imagenet-20-classes.zip"
ROOT = "tiny-imagenet-200"

needs_tiny = pytest.mark.skipif(
    not TINY.is_file(), reason="Tiny-ImageNet is not here"
)
needs_cifar = pytest.mark.skipif(
    not (DATA / "tfds").is_dir(),
    reason="the CIFAR-100 files of TFDS are not here",
)
# tensorflow-datasets and what it imports use deprecated parts of others.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]


@pytest.fixture(scope="module")
def tiny():
    return data.load("tiny-imagenet", TINY, verbose=False)


@pytest.fixture(scope="module")
def cifar():
    return data.load("cifar100", DATA / "tfds", download=False)


def jpeg(color, mode="RGB", size=64):
    file = io.BytesIO()
    PIL.Image.new(mode, (size, size), color).save(file, "JPEG")
    return file.getvalue()


def small_tiny_imagenet(folder, *, names=True):
    """Two classes with three training images and one validation image each.

    Brightness says which image it is: 100 for the second class, 10 a number.
    """
    root = folder / ROOT
    for number, wnid in enumerate(("n01", "n02")):
        images = root / "train" / wnid / "images"
        images.mkdir(parents=True)
        for index in range(3):
            grey = 100 * number + 10 * index
            (images / f"{wnid}_{index}.JPEG").write_bytes(jpeg((grey,) * 3))
    (root / "val" / "images").mkdir(parents=True)
    rows = []
    for number, wnid in enumerate(("n02", "n01", "n03")):
        name = f"val_{number}.JPEG"
        (root / "val" / "images" / name).write_bytes(jpeg(50 * number, "L"))
        rows.append(f"{name}\t{wnid}\t0\t0\t63\t63\n")
    (root / "val" / "val_annotations.txt").write_text("".join(rows))
    if names:
        # The official files are not in order and list more than there is.
        (root / "wnids.txt").write_text("n02\nn09\nn01\n")
        (root / "words.txt").write_text("n01\ta fish\nn00\tx\nn02\ta cat\n")
    return root


def zipped(root, path):
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(root.rglob("*.*")):
            archive.write(file, file.relative_to(root.parent))
    return path


def brightness(images):
    return images.mean((1, 2, 3)).round(-1).astype(int).tolist()


def same(one, other):
    for name in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.class_names == other.class_names


# Tiny-ImageNet.


@pytest.mark.large
@needs_tiny
def test_tiny_imagenet_is_all_there(tiny):
    assert tiny.x_train.shape == (10_000, 64, 64, 3)
    assert tiny.x_test.shape == (1_000, 64, 64, 3)
    assert tiny.x_train.dtype == tiny.x_test.dtype == np.uint8
    assert tiny.y_train.dtype == tiny.y_test.dtype == np.int64
    assert np.bincount(tiny.y_train).tolist() == [500] * 20
    assert np.bincount(tiny.y_test).tolist() == [50] * 20
    assert (tiny.num_classes, tiny.size) == (20, 64)
    assert tiny.class_names[:2] == ("goldfish, Carassius auratus", "centipede")


@pytest.mark.large
@needs_tiny
def test_tiny_imagenet_decoded_by_pillow(tiny):
    # Round robin: class 3 has its first two training images, in alphabetical
    # order, at 3 and 23.
    with zipfile.ZipFile(TINY) as archive:
        names = sorted(
            name for name in archive.namelist() if name.endswith(".JPEG")
        )
        wnid = sorted({n.split("/")[2] for n in names if "/train/" in n})[3]
        files = [name for name in names if f"/train/{wnid}/" in name]
        for position, file in ((3, files[0]), (23, files[1])):
            image = PIL.Image.open(archive.open(file)).convert("RGB")
            difference = tiny.x_train[position] - np.asarray(image, int)
            assert np.abs(difference).mean() < 2  # decoders round differently
            assert tiny.y_train[position] == 3
        rows = archive.read(f"{ROOT}/val/val_annotations.txt").decode()
        rows = [row.split("\t") for row in rows.splitlines()]
        file = next(row[0] for row in rows if row[1] == wnid)
        image = PIL.Image.open(archive.open(f"{ROOT}/val/images/{file}"))
        difference = tiny.x_test[3] - np.asarray(image.convert("RGB"), int)
        assert np.abs(difference).mean() < 2


@pytest.mark.large
@needs_tiny
def test_grey_files_have_three_equal_channels(tiny):
    with zipfile.ZipFile(TINY) as archive:
        modes = [
            PIL.Image.open(archive.open(name)).mode
            for name in archive.namelist()
            if "/train/" in name and name.endswith(".JPEG")
        ]
    grey = (tiny.x_train == tiny.x_train[..., :1]).all((1, 2, 3))
    assert 0 < modes.count("L") <= grey.sum() < 1_000


@pytest.mark.large
@needs_tiny
def test_first_of_tiny_imagenet_are_an_equal_share_of_each_class(tiny):
    few = data.load(
        "tiny-imagenet", DATA, num_train=105, num_test=40, verbose=False
    )
    assert np.bincount(few.y_train).tolist() == [6] * 5 + [5] * 15
    assert np.bincount(few.y_test).tolist() == [2] * 20
    np.testing.assert_array_equal(few.x_train, tiny.x_train[:105])
    np.testing.assert_array_equal(few.x_test, tiny.x_test[:40])
    assert few.class_names == tiny.class_names


@pytest.mark.large
@needs_tiny
def test_unpacked_tiny_imagenet_is_that_of_the_zip(tiny, tmp_path):
    # Of the first four classes: ten training images, all for validation.
    with zipfile.ZipFile(TINY) as archive:
        wnids = archive.read(f"{ROOT}/wnids.txt").decode().split()
        wnids = sorted(wnids)[:4]
        rows = archive.read(f"{ROOT}/val/val_annotations.txt").decode()
        rows = [row.split("\t") for row in rows.splitlines()]
        files = {f"val/images/{row[0]}" for row in rows if row[1] in wnids}
        files |= {"val/val_annotations.txt", "wnids.txt", "words.txt"}
        for wnid in wnids:
            start = f"train/{wnid}/images/{wnid}_1"
            files |= {f"{start}{digit}.JPEG" for digit in range(10)}
        for file in files:
            archive.extract(f"{ROOT}/{file}", tmp_path)
    root = tmp_path / ROOT
    folder = data.load("tiny-imagenet", root, verbose=False)
    assert np.bincount(folder.y_train).tolist() == [10] * 4
    assert folder.class_names == tiny.class_names[:4]
    np.testing.assert_array_equal(folder.x_test, tiny.x_test[tiny.y_test < 4])
    path = zipped(root, tmp_path / "tiny-imagenet-copy.zip")
    same(folder, data.load("tiny-imagenet", path, verbose=False))


@pytest.mark.parametrize("form", ["root", "parent", "zip", "folder of zip"])
def test_small_tiny_imagenet(form, tmp_path, capsys):
    root = small_tiny_imagenet(tmp_path / "here")
    (tmp_path / "zips").mkdir()
    places = {"root": root, "parent": root.parent}
    places["zip"] = zipped(root, tmp_path / "zips" / f"{ROOT}.zip")
    places["folder of zip"] = places["zip"].parent
    found = data.load("tiny-imagenet", str(places[form]))
    assert brightness(found.x_train) == [0, 100, 10, 110, 20, 120]
    assert found.y_train.tolist() == [0, 1, 0, 1, 0, 1]
    # Classes take turns here too; n03 has no training images.
    assert brightness(found.x_test) == [50, 0]
    assert found.y_test.tolist() == [0, 1]
    assert found.class_names == ("a fish", "a cat")
    assert "Reading Tiny-ImageNet" in capsys.readouterr().out


def test_tiny_imagenet_without_lists_of_names(tmp_path, capsys):
    small_tiny_imagenet(tmp_path, names=False)
    found = data.load("tiny-imagenet", tmp_path, size=8, verbose=False)
    assert found.class_names == ("n01", "n02")
    assert found.x_train.shape == (6, 8, 8, 3)
    assert found.size == 8
    assert brightness(found.x_train) == [0, 100, 10, 110, 20, 120]
    assert not capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "a folder", "no zip"])
def test_missing_tiny_imagenet(content, tmp_path):
    place = tmp_path / "place"
    if content == "a folder":
        (place / "train").mkdir(parents=True)
    elif content == "no zip":
        place.write_text("404 Not Found")
    with pytest.raises(
        FileNotFoundError,
        match=r"Tiny-ImageNet is not in .*place\. Download http://cs231n"
        r"\.stanford\.edu/tiny-imagenet-200\.zip .* as data_dir",
    ):
        data.load("tiny-imagenet", place)


def test_too_many_of_tiny_imagenet(tmp_path):
    small_tiny_imagenet(tmp_path)
    with pytest.raises(
        ValueError, match=r"num_test=3, but there are 2 such images. Use 1 to 2"
    ):
        data.load("tiny-imagenet", tmp_path, num_test=3, verbose=False)


# CIFAR.


@pytest.mark.large
@pytest.mark.slow
@needs_cifar
def test_cifar100_is_all_there(cifar):
    assert cifar.x_train.shape == (50_000, 32, 32, 3)
    assert cifar.x_test.shape == (10_000, 32, 32, 3)
    assert cifar.x_train.dtype == cifar.x_test.dtype == np.uint8
    assert cifar.y_train.dtype == cifar.y_test.dtype == np.int64
    assert np.bincount(cifar.y_train).tolist() == [500] * 100
    assert np.bincount(cifar.y_test).tolist() == [100] * 100
    assert (cifar.num_classes, cifar.size) == (100, 32)
    assert cifar.class_names[0] == "apple"


@pytest.mark.large
@pytest.mark.slow
@needs_cifar
def test_first_of_cifar_at_half_the_size(cifar):
    few = data.load(
        "cifar100", DATA / "tfds", num_train=70, num_test=30, size=16
    )
    np.testing.assert_array_equal(few.y_train, cifar.y_train[:70])
    np.testing.assert_array_equal(few.y_test, cifar.y_test[:30])
    for small, large in (
        (few.x_train, cifar.x_train[:70]),
        (few.x_test, cifar.x_test[:30]),
    ):
        corners = [large[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
        expected = np.rint(np.mean(corners, axis=0))
        np.testing.assert_array_equal(small, expected)
        assert small.dtype == np.uint8
    assert few.size == 16


@needs_cifar
@pytest.mark.parametrize("num", [0, -1, 50_001])
def test_number_of_images(num):
    with pytest.raises(
        ValueError,
        match=f"num_train={num}, but there are 50000 such images. Use 1 to "
        "50000, or None for all",
    ):
        data.load("cifar100", DATA / "tfds", num_train=num)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_missing_cifar(name, tmp_path):
    with pytest.raises(
        FileNotFoundError,
        match=rf"load: {name} is not in .*{name}.* Pass download=True .* "
        f"data_dir .* a folder with {name} in it",
    ):
        data.load(name, tmp_path, download=False)


def test_cifar_that_cannot_be_downloaded(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    def fail(builder):
        raise ConnectionError("no network")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    with pytest.raises(
        FileNotFoundError, match="Download failed. load: cifar10 is not in"
    ) as error:
        data.load("cifar10", tmp_path)
    assert isinstance(error.value.__cause__, ConnectionError)


def test_missing_tensorflow_datasets(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    for load in (lambda: data.load("cifar10"), data.load_imagenet):
        with pytest.raises(
            ImportError, match=r'pip install "cbnn-keras\[examples\]"'
        ):
            load()


def test_unknown_name():
    with pytest.raises(
        ValueError,
        match="name='mnist' is not one of 'cifar10', 'cifar100', 'tiny-",
    ):
        data.load("mnist")


# Sizes.


def test_shrink_by_hand():
    image = np.array([[0, 1, 255, 255], [1, 1, 255, 254]], np.uint8)
    image = np.stack([np.vstack([image, image])] * 3, axis=-1)[None]
    # Means 0.75 and 254.75.
    expected = np.full((2, 2, 3), [[[1], [255]]])
    np.testing.assert_array_equal(data.shrink(image, 2)[0], expected)
    np.testing.assert_array_equal(data.shrink(image, 4), image)
    # Two rows of sum 511, two of sum 511: 4 * 511 / 16 = 127.75.
    np.testing.assert_array_equal(data.shrink(image, 1), [[[[128] * 3]]])


@pytest.mark.parametrize("size", [0, -2, 5, 24, 64])
def test_size_that_does_not_divide(size):
    with pytest.raises(
        ValueError,
        match=f"size={size} does not divide the size of the images, 32. Use "
        "one of 1, 2, 4, 8, 16, 32",
    ):
        data.shrink(np.zeros((1, 32, 32, 3), np.uint8), size)


# ImageNet.


def test_missing_imagenet(tmp_path):
    with pytest.raises(
        FileNotFoundError,
        match="Register at https://image-net.org, put ILSVRC2012_img_train.tar "
        "and ILSVRC2012_img_val.tar .* into .*downloads.manual and call",
    ) as error:
        data.load_imagenet(tmp_path)
    assert str(tmp_path / "downloads" / "manual") in str(error.value)


def test_imagenet_is_prepared_once_its_files_are_there(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    def prepare(builder):
        raise RuntimeError(f"preparing {builder.name}")

    builder = tfds.core.DatasetBuilder
    monkeypatch.setattr(builder, "download_and_prepare", prepare)
    manual = tmp_path / "downloads" / "manual"
    manual.mkdir(parents=True)
    (manual / "ILSVRC2012_img_train.tar").touch()
    with pytest.raises(FileNotFoundError, match="img_val.tar"):
        data.load_imagenet(tmp_path)
    (manual / "ILSVRC2012_img_val.tar").touch()
    with pytest.raises(RuntimeError, match="preparing imagenet2012"):
        data.load_imagenet(tmp_path)


def test_imagenet_of_random_images(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    builder = tfds.core.DatasetBuilder
    monkeypatch.setattr(builder, "is_prepared", lambda self: True)
    with tfds.testing.mock_data(num_examples=5):
        for dataset in data.load_imagenet(tmp_path, size=40):
            image, label = dataset.element_spec
            assert (image.shape, image.dtype) == ((40, 40, 3), tf.uint8)
            assert (label.shape, label.dtype) == ((), tf.int64)
            passes = [list(dataset.as_numpy_iterator()) for _ in range(2)]
            assert len(passes[0]) == 5
            for one, other in zip(*passes, strict=True):
                np.testing.assert_array_equal(one[0], other[0])
                assert one[1] == other[1]


@pytest.mark.parametrize(
    "shape", [(375, 500), (500, 375), (20, 31), (224, 224)]
)
@pytest.mark.parametrize("prepare", [data.stretch, data.crop_middle])
def test_any_shape_becomes_a_square(prepare, shape):
    halves = np.zeros((*shape, 3), np.uint8)
    halves[:, shape[1] // 2 :] = [200, 100, 50]
    found = prepare(tf.constant(halves), 32)
    assert (found.shape, found.dtype) == ((32, 32, 3), tf.uint8)
    # The left is still black, the right still coloured, the middle is between.
    assert not found.numpy()[:, :14].any()
    np.testing.assert_array_equal(
        found[:, 18:], np.full((32, 14, 3), [200, 100, 50])
    )


def test_middle_without_scaling():
    # The shorter side is what it becomes, 256: pixels are taken as they are.
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (256, 300, 3), dtype=np.uint8)
    found = data.crop_middle(tf.constant(image), 224)
    np.testing.assert_array_equal(found, image[16:240, 38:262])


@pytest.mark.parametrize("shape", [(91, 37), (37, 91), (9, 9)])
def test_stretched_as_by_pillow(shape):
    # Pillow's filter widens with the factor, as antialiasing should.
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
    expected = PIL.Image.fromarray(image).resize(
        (16, 16), PIL.Image.Resampling.BILINEAR
    )
    found = data.stretch(tf.constant(image), 16).numpy()
    difference = found.astype(int) - np.asarray(expected, int)
    assert np.abs(difference).max() <= 1


# Augmentation.


@pytest.mark.parametrize(("size", "margin"), [(16, 2), (32, 4), (64, 8)])
def test_augmented_image_is_a_crop_or_its_mirror_image(size, margin):
    rng = np.random.default_rng(0)
    image = rng.integers(1, 256, (size, size, 3), dtype=np.uint8)
    padded = np.pad(image, [(margin, margin), (margin, margin), (0, 0)])
    found = set()
    for number in range(40):
        seed = tf.constant([number, 1])
        result = data.standard_augment(tf.constant(image), seed).numpy()
        assert (result.shape, result.dtype) == (image.shape, np.uint8)
        places = [
            (top, left, is_flipped)
            for top in range(2 * margin + 1)
            for left in range(2 * margin + 1)
            for is_flipped in (False, True)
            if np.array_equal(
                padded[top : top + size, left : left + size],
                result[:, ::-1] if is_flipped else result,
            )
        ]
        assert len(places) == 1
        found.update(places)
    tops, lefts, flips = zip(*found, strict=True)
    assert max(tops) - min(tops) >= margin
    assert max(lefts) - min(lefts) >= margin
    assert set(flips) == {False, True}


def test_crop_and_flip_are_independent():
    # Pixels count their column from 1: the middle tells shift and direction.
    image = tf.constant(np.tile(np.arange(1, 33, dtype=np.uint8), (32, 1)))
    image = tf.repeat(image[..., None], 3, axis=-1)
    seeds = tf.data.Dataset.range(4_000).map(lambda i: tf.stack([i, 7]))
    rows = seeds.map(lambda seed: data.standard_augment(image, seed)[16, :, 0])
    rows = np.stack(list(rows.as_numpy_iterator())).astype(int)
    is_flipped = rows[:, 15] > rows[:, 16]
    shifts = np.where(is_flipped, rows[:, 16], rows[:, 15]) - 16
    assert sorted(set(shifts.tolist())) == list(range(-4, 5))
    assert abs(is_flipped.mean() - 0.5) < 0.04  # five standard deviations
    for shift in range(-4, 5):
        # About 444 images each: 0.12 are five standard deviations.
        assert abs(is_flipped[shifts == shift].mean() - 0.5) < 0.12


def test_same_seed_gives_the_same_image():
    image = tf.random.stateless_uniform([32, 32, 3], [1, 2])
    one, again, other = (
        data.standard_augment(image, tf.constant(seed, tf.int64)).numpy()
        for seed in ([3, 4], [3, 4], [4, 3])
    )
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
