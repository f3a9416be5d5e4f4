"""The data of the paper: CIFAR, Tiny-ImageNet, ImageNet, and how to vary them.

What fits in memory comes as arrays (`load`), ImageNet as two datasets
(`load_imagenet`). The order is the same each time, which sample weights need;
shuffling is left to whoever trains.
"""

import collections
import dataclasses
import functools
import itertools
import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import rich.progress
import tensorflow as tf

TINY_LABELS = "val/val_annotations.txt"
TINY_ADDRESS = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
Place = str | pathlib.Path | None
IMAGENET_FILES = ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar")


@dataclasses.dataclass(frozen=True)
class ImageData:
    """Images, uint8 `(num, size, size, 3)`, and labels, int64 `(num,)`."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    class_names: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def size(self) -> int:
        return int(self.x_train.shape[1])


def load(
    name: str,
    data_dir: Place = None,
    *,
    num_train: int | None = None,
    num_test: int | None = None,
    size: int | None = None,
    download: bool = True,
    verbose: bool = True,
) -> ImageData:
    """Images of a data set, all of them or the first.

    The first are a fair sample: TFDS has shuffled CIFAR, and the classes of
    Tiny-ImageNet take turns here.

    Args:
        name: `"cifar10"`, `"cifar100"` or `"tiny-imagenet"`, whose validation
            images are the test images here: its test labels are not public.
        data_dir: Where the data are: the folder of TensorFlow Datasets, or the
            zip of Tiny-ImageNet, its folder, or a folder with either in it.
            Defaults to `~/tensorflow_datasets`.
        num_train, num_test: How many images. Default to all.
        size: What to shrink the images to; it divides their own size. Defaults
            to their own.
        download: Whether to download CIFAR if it is missing. Defaults to True.
        verbose: Whether to show progress bars. Defaults to True.

    Raises:
        FileNotFoundError: The data are missing; says how to get them.
    """
    nums = {"train": num_train, "test": num_test}
    if name in ("cifar10", "cifar100"):
        data = _load_cifar(name, data_dir, nums, download)
    elif name == "tiny-imagenet":
        data = _load_tiny_imagenet(data_dir, nums, verbose)
    else:
        raise ValueError(
            f"load: name={name!r} is not one of 'cifar10', 'cifar100', "
            "'tiny-imagenet'."
        )
    if size is None:
        return data
    x_train, x_test = shrink(data.x_train, size), shrink(data.x_test, size)
    return dataclasses.replace(data, x_train=x_train, x_test=x_test)


def load_imagenet(
    data_dir: Place = None, *, size: int = 224
) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Training and validation examples `(image, label)` in the order of files.

    Training images are stretched to a square; of validation images, the middle
    is taken. `data_dir` is the folder of TensorFlow Datasets.

    Raises:
        FileNotFoundError: ImageNet is missing; says how to get it.
    """
    tfds = _import_tfds()
    builder = tfds.builder("imagenet2012", data_dir=data_dir)
    if not builder.is_prepared():
        root = pathlib.Path(builder.data_dir).parents[1]
        manual = root / "downloads" / "manual"
        if not all((manual / file).is_file() for file in IMAGENET_FILES):
            raise FileNotFoundError(
                "load_imagenet: no program can download ImageNet. Register at "
                f"https://image-net.org, put {' and '.join(IMAGENET_FILES)} "
                f"(150 GB) into {manual} and call this again."
            )
        builder.download_and_prepare()
    train, test = builder.as_dataset(
        split=["train", "validation"],
        shuffle_files=False,
        as_supervised=True,
        # One file after another: the order must not depend on the machine.
        read_config=tfds.ReadConfig(interleave_cycle_length=1),
    )
    return (
        train.map(lambda x, y: (stretch(x, size), y), tf.data.AUTOTUNE),
        test.map(lambda x, y: (crop_middle(x, size), y), tf.data.AUTOTUNE),
    )


def stretch(image: tf.Tensor, size: int) -> tf.Tensor:
    """The whole image as a square, uint8 `(size, size, 3)`."""
    image = tf.image.resize(image, (size, size), antialias=True)
    return tf.saturate_cast(tf.round(image), tf.uint8)


def crop_middle(image: tf.Tensor, size: int) -> tf.Tensor:
    """The middle of an image whose shorter side becomes 8/7 of `size`."""
    shape = tf.cast(tf.shape(image)[:2], tf.float32)
    shorter = round(size * 8 / 7)  # 256 for 224
    shape = tf.cast(tf.round(shape * shorter / tf.reduce_min(shape)), tf.int32)
    image = tf.image.resize(image, shape, antialias=True)
    image = tf.image.resize_with_crop_or_pad(image, size, size)
    return tf.saturate_cast(tf.round(image), tf.uint8)


def standard_augment(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Pads by an eighth with zeros, crops at random, flips every other one.

    Args:
        image: `(height, width, channels)`.
        seed: Two integers: the same seed gives the same image.
    """
    # With one seed, both would be drawn from the same random bits.
    crop_seed, flip_seed = tf.unstack(tf.random.split(seed, 2))
    height, width = image.shape[0] // 8, image.shape[1] // 8
    padded = tf.pad(image, [[height, height], [width, width], [0, 0]])
    image = tf.image.stateless_random_crop(padded, image.shape, crop_seed)
    return tf.image.stateless_random_flip_left_right(image, flip_seed)


def shrink(images: np.ndarray, size: int) -> np.ndarray:
    """The rounded mean of each square of pixels, for integer factors only."""
    own = images.shape[1]
    if size < 1 or own % size:
        allowed = [str(n) for n in range(1, own + 1) if own % n == 0]
        raise ValueError(
            f"size={size} does not divide the size of the images, {own}. Use "
            f"one of {', '.join(allowed)}."
        )
    factor = own // size
    squares = images.reshape(-1, size, factor, size, factor, images.shape[-1])
    # Exact: float32 holds sums of up to 256 x 256 bytes.
    return np.rint(squares.mean((2, 4), dtype=np.float32)).astype(np.uint8)


def _load_cifar(
    name: str, data_dir: Place, nums: dict[str, int | None], download: bool
) -> ImageData:
    builder = _import_tfds().builder(name, data_dir=data_dir)
    if not builder.is_prepared():
        missing = (
            f"load: {name} is not in {builder.data_dir}. Pass download=True "
            "where there is internet access, or the data_dir where TensorFlow "
            f"Datasets has prepared it: a folder with {name} in it."
        )
        if not download:
            raise FileNotFoundError(missing)
        try:
            builder.download_and_prepare()
        except Exception as error:  # network, disk, TFDS: one remedy for all
            raise FileNotFoundError(f"Download failed. {missing}") from error
    arrays: list[Any] = []
    for split in nums:
        num = _how_many(nums, split, builder.info.splits[split].num_examples)
        read = builder.as_dataset(split=f"{split}[:{num}]", batch_size=-1)
        arrays += [read["image"].numpy(), read["label"].numpy()]
    class_names = tuple(builder.info.features["label"].names)
    return ImageData(*arrays, class_names=class_names)


def _load_tiny_imagenet(
    data_dir: Place, nums: dict[str, int | None], verbose: bool
) -> ImageData:
    files = _find_tiny_imagenet(
        pathlib.Path(data_dir or "~/tensorflow_datasets").expanduser()
    )

    def table(name: str) -> list[list[str]]:
        text = files[name]().decode() if name in files else ""
        return [line.split("\t") for line in text.splitlines()]

    train = [
        (name, name.split("/")[1])
        for name in sorted(files)
        if name.startswith("train/") and name.endswith(".JPEG")
    ]
    test = [(f"val/images/{row[0]}", row[1]) for row in table(TINY_LABELS)]
    there = {wnid for _, wnid in train}
    listed = {row[0] for row in table("wnids.txt")} or there
    wnids = sorted(there & listed)
    indices = {wnid: index for index, wnid in enumerate(wnids)}
    words = {row[0]: row[1] for row in table("words.txt")}
    arrays: list[Any] = []
    for split, named in {"train": train, "test": test}.items():
        # The first of each class, then the second of each, and so on.
        turns: Any = collections.defaultdict(itertools.count)
        ordered = sorted(
            (next(turns[wnid]), indices[wnid], name)
            for name, wnid in named
            if wnid in indices
        )
        ordered = ordered[: _how_many(nums, split, len(ordered))]
        arrays.append(_decode([files[name] for *_, name in ordered], verbose))
        arrays.append(np.array([label for _, label, _ in ordered], np.int64))
    class_names = tuple(words.get(wnid, wnid) for wnid in wnids)
    return ImageData(*arrays, class_names=class_names)


def _find_tiny_imagenet(place: pathlib.Path) -> dict[str, Callable[[], bytes]]:
    """For each file, its name in the official folder and how to read it."""
    usual = place / "tiny-imagenet-200"
    others = sorted(place.glob("tiny-imagenet*.zip"))
    for found in (place, usual, usual.with_suffix(".zip"), *others):
        files: dict[str, Callable[[], bytes]] = {}
        if zipfile.is_zipfile(found):
            archive = zipfile.ZipFile(found)
            for name in archive.namelist():  # less the folder they are all in
                read = functools.partial(archive.read, name)
                files[name.partition("/")[2]] = read
        elif (found / "train").is_dir():
            for path in found.rglob("*.*"):
                files[path.relative_to(found).as_posix()] = path.read_bytes
        if TINY_LABELS in files:
            return files
    raise FileNotFoundError(
        f"load: Tiny-ImageNet is not in {place}. Download {TINY_ADDRESS} "
        "(240 MB) and pass it, or the folder that it is in, as data_dir; it "
        "need not be unpacked."
    )


def _decode(reads: list[Callable[[], bytes]], verbose: bool) -> np.ndarray:
    """The images in RGB, also those few that are grey."""
    dataset = tf.data.Dataset.from_generator(
        lambda: (read() for read in reads),
        output_signature=tf.TensorSpec((), tf.string),
    ).map(lambda x: tf.io.decode_jpeg(x, channels=3), tf.data.AUTOTUNE)
    images = np.empty((len(reads), 64, 64, 3), np.uint8)
    for number, image in rich.progress.track(
        enumerate(dataset.as_numpy_iterator()),
        "Reading Tiny-ImageNet",
        total=len(reads),
        disable=not verbose,
    ):
        images[number] = image
    return images


def _how_many(nums: dict[str, int | None], split: str, available: int) -> int:
    num = nums[split]
    if num is None or 1 <= num <= available:
        return num or available
    raise ValueError(
        f"load: num_{split}={num}, but there are {available} such images. Use "
        f"1 to {available}, or None for all."
    )


def _import_tfds() -> Any:
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise ImportError(
            'TensorFlow Datasets is missing: pip install "cbnn-keras[examples]"'
        ) from error
    return tensorflow_datasets
