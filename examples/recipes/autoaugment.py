"""AutoAugment (Cubuk et al., 2019) as a stateless map of `tf.data`.

    augment = compose(autoaugment("cifar10"), standard_augment, cutout)
    cbnn.weighted(images, labels, batch_size=128, augment=augment)

One of 25 sub-policies is drawn for each image; each of its two operations is
applied with its own probability. Every operation gives what Pillow gives, and
the same seed gives the same image, so that a resumed run sees what it would
have seen. For CIFAR the usual order is AutoAugment, padding with cropping and
flipping, then Cutout; for ImageNet AutoAugment comes last.

The published sources do not agree with each other. Here:

- the policies are those of the appendix of the paper, 25 sub-policies each;
  the CIFAR-10 code that was released with it draws from 95;
- magnitudes run from 0 to 10, as in that code: 10 is the end of the range, and
  9 the largest that the two policies use. Ten values equally spaced from end
  to end, as in the paper's text, would make each a ninth stronger;
- the ranges are those of table 6. Posterize keeps from 8 down to 4 bits,
  fewer for greater magnitudes (the code: 4 down to 0; other releases by the
  same authors run the other way). A shift is up to 150/331 of the size, the
  150 pixels of the paper at the 331 of its ImageNet models (the code: up to
  10 of 32 pixels). Both are cut to whole numbers, as in the code;
- shear, shift and rotation go either way with equal probability, take the
  nearest pixel and fill with grey, 128 (the code: the mean of the data set);
- shear keeps the corner at the top left in place and rotation the centre.

Magnitudes are worked out in advance, in NumPy. What is left for the map is to
find the row of a table and to run one of eight small graphs: most operations
are a table of the 256 grey levels.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

Augment = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
Operation = tuple[str, float, int]

# Sub-policies of two operations: name, probability, magnitude.
CIFAR10 = """
Invert 0.1 7 Contrast 0.2 6;          Rotate 0.7 2 TranslateX 0.3 9;
Sharpness 0.8 1 Sharpness 0.9 3;      ShearY 0.5 8 TranslateY 0.7 9;
AutoContrast 0.5 8 Equalize 0.9 2;    ShearY 0.2 7 Posterize 0.3 7;
Color 0.4 3 Brightness 0.6 7;         Sharpness 0.3 9 Brightness 0.7 9;
Equalize 0.6 5 Equalize 0.5 1;        Contrast 0.6 7 Sharpness 0.6 5;
Color 0.7 7 TranslateX 0.5 8;         Equalize 0.3 7 AutoContrast 0.4 8;
TranslateY 0.4 3 Sharpness 0.2 6;     Brightness 0.9 6 Color 0.2 8;
Solarize 0.5 2 Invert 0.0 3;          Equalize 0.2 0 AutoContrast 0.6 0;
Equalize 0.2 8 Equalize 0.6 4;        Color 0.9 9 Equalize 0.6 6;
AutoContrast 0.8 4 Solarize 0.2 8;    Brightness 0.1 3 Color 0.7 0;
Solarize 0.4 5 AutoContrast 0.9 3;    TranslateY 0.9 9 TranslateY 0.7 9;
AutoContrast 0.9 2 Solarize 0.8 3;    Equalize 0.8 8 Invert 0.1 3;
TranslateY 0.7 9 AutoContrast 0.9 1
"""
IMAGENET = """
Posterize 0.4 8 Rotate 0.6 9;         Solarize 0.6 5 AutoContrast 0.6 5;
Equalize 0.8 8 Equalize 0.6 3;        Posterize 0.6 7 Posterize 0.6 6;
Equalize 0.4 7 Solarize 0.2 4;        Equalize 0.4 4 Rotate 0.8 8;
Solarize 0.6 3 Equalize 0.6 7;        Posterize 0.8 5 Equalize 1.0 2;
Rotate 0.2 3 Solarize 0.6 8;          Equalize 0.6 8 Posterize 0.4 6;
Rotate 0.8 8 Color 0.4 0;             Rotate 0.4 9 Equalize 0.6 2;
Equalize 0.0 7 Equalize 0.8 8;        Invert 0.6 4 Equalize 1.0 8;
Color 0.6 4 Contrast 1.0 8;           Rotate 0.8 8 Color 1.0 2;
Color 0.8 8 Solarize 0.8 7;           Sharpness 0.4 7 Invert 0.6 8;
ShearX 0.6 5 Equalize 1.0 9;          Color 0.4 0 Equalize 0.6 3;
Equalize 0.4 7 Solarize 0.2 4;        Solarize 0.6 5 AutoContrast 0.6 5;
Invert 0.6 4 Equalize 1.0 8;          Color 0.6 4 Contrast 1.0 8;
Equalize 0.8 8 Equalize 0.6 3
"""


def _parsed(text: str) -> list[tuple[Operation, Operation]]:
    words = text.replace(";", " ").split()
    operations = [
        (name, float(probability), int(magnitude))
        for name, probability, magnitude in zip(
            words[::3], words[1::3], words[2::3], strict=True
        )
    ]
    return list(zip(operations[::2], operations[1::2], strict=True))


POLICIES = {"cifar10": _parsed(CIFAR10), "imagenet": _parsed(IMAGENET)}
FILL = 128
LEVELS = np.arange(256)


def autoaugment(policy: str) -> Augment:
    """AutoAugment for single images; see the text above for the conventions.

    Args:
        policy: `"cifar10"`, which is meant for CIFAR-100 too, or `"imagenet"`.

    Returns:
        `augment(image, seed)` for an image of type uint8 and of known shape
        `(height, width, 3)` and a seed of two integers, shape `(2,)`.

    Raises:
        ValueError: If there is no such policy; by `augment`, if the image has
            another type or shape.
    """
    if policy not in POLICIES:
        raise ValueError(
            f"autoaugment(policy={policy!r}): there is no such policy. Choose "
            f"one of {sorted(POLICIES)}."
        )
    pairs = POLICIES[policy]
    probabilities = np.array([[p for _, p, _ in pair] for pair in pairs], "f4")

    def augment(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        height, width = _size(image)
        if image.dtype != tf.uint8 or image.shape[2] != 3:
            raise ValueError(
                "autoaugment: images must be of type uint8 and have 3 "
                f"channels, not {image.dtype.name} and {image.shape[2]}. "
                "Rescale afterwards, best in the model."
            )
        # Row 0 leaves the image alone; then two rows, for the two signs, for
        # each operation of each sub-policy.
        settings = [_setting("Identity", 0, 1, height, width)] + [
            _setting(name, magnitude, sign, height, width)
            for pair in pairs
            for name, _, magnitude in pair
            for sign in (1, -1)
        ]
        table = Setting(*map(np.stack, zip(*settings, strict=True)))
        # One draw for all that is random: each random operation has its price.
        draws = tf.random.stateless_uniform([5], seed)
        number = tf.cast(draws[0] * len(pairs), tf.int32)
        is_applied = draws[1:3] < tf.gather(probabilities, number)
        is_negative = tf.cast(draws[3:5] < 0.5, tf.int32)
        rows = tf.where(is_applied, 4 * number + [1, 3] + is_negative, 0)
        for row in tf.unstack(rows):
            image = _switch(image, row, table)
        return image

    return augment


def apply_operation(
    image: tf.Tensor, name: str, magnitude: float, sign: int = 1
) -> tf.Tensor:
    """One operation by itself, named as in the policies.

    The magnitude is from 0 to 10; the sign, 1 or -1, is which way shear, shift
    and rotation go.
    """
    setting = _setting(name, magnitude, sign, *_size(image))
    return list(KINDS.values())[setting.kind](image, setting)


def compose(*augments: Augment) -> Augment:
    """One `augment(image, seed)` of several, each with a seed of its own."""

    def augment(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        seeds = tf.random.split(seed, len(augments))
        for number, part in enumerate(augments):
            image = part(image, seeds[number])
        return image

    return augment


def cutout(
    image: tf.Tensor, seed: tf.Tensor, size: int = 16, fill: int = FILL
) -> tf.Tensor:
    """Fills a square around a random pixel (DeVries and Taylor, 2017).

    The centre may be any pixel, so that the square may lie partly outside.

    Args:
        image: Of any number type, known shape `(height, width, channels)`.
        seed: Two integers, shape `(2,)`.
        size: Side of the square in pixels. Defaults to 16, for CIFAR-10; the
            paper has 8 for CIFAR-100.
        fill: What to fill it with. Defaults to 128, grey.
    """
    height, width = _size(image)
    draws = tf.random.stateless_uniform([2], seed)
    top_left = tf.cast(draws * [height, width], tf.int32) - size // 2
    rows = np.arange(height)[:, None, None] - top_left[0]
    columns = np.arange(width)[None, :, None] - top_left[1]
    is_inside = (rows >= 0) & (rows < size) & (columns >= 0) & (columns < size)
    return tf.where(is_inside, tf.cast(fill, image.dtype), image)


class Setting(NamedTuple):
    """All that an operation needs to know, or as many rows of it."""

    kind: np.ndarray  # which of KINDS
    matrix: np.ndarray  # from pixels of the result to those of the image
    levels: np.ndarray  # the new value of each of the 256 grey levels
    factor: np.ndarray  # 0 for what is degenerate, 1 for the image itself


def _setting(
    name: str, magnitude: float, sign: int, height: int, width: int
) -> Setting:
    share = magnitude / 10
    shear = sign * 0.3 * share
    angle = math.radians(sign * 30 * share)
    cosine, sine = math.cos(angle), math.sin(angle)
    x, y = (sign * int(share * size * 150 / 331) for size in (width, height))
    matrices = {
        "ShearX": [[1, shear, 0], [0, 1, 0]],
        "ShearY": [[1, 0, 0], [shear, 1, 0]],
        "TranslateX": [[1, 0, x], [0, 1, 0]],
        "TranslateY": [[1, 0, 0], [0, 1, y]],
        "Rotate": [[cosine, sine, 0], [-sine, cosine, 0]],
    }
    factor = np.float32(0.1 + 1.8 * share)
    threshold = 256 - int(256 * share)
    levels = {
        "Invert": 255 - LEVELS,
        "Solarize": np.where(LEVELS < threshold, LEVELS, 255 - LEVELS),
        "Posterize": LEVELS & -(2 ** int(4 * share)),
        "Brightness": np.minimum(factor * LEVELS.astype("f4"), 255),
    }
    kind = "Move" if name in matrices else "Map" if name in levels else name
    centre = np.array([width, height]) / 2 if name == "Rotate" else np.zeros(2)
    return Setting(
        np.int32(list(KINDS).index(kind)),
        _projection(np.array(matrices.get(name, np.eye(2, 3))), centre),
        levels.get(name, LEVELS).astype(np.uint8),
        factor,
    )


def _projection(matrix: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """For TensorFlow, whose pixels have their centres at whole numbers.

    In Pillow, and in `matrix`, they are half a pixel further.
    """
    linear, shift = matrix[:, :2], matrix[:, 2]
    shift = shift + (np.eye(2) - linear) @ (centre - 0.5)
    rows = np.column_stack([linear, shift])
    return np.append(rows, [0, 0]).astype(np.float32)


def _switch(image: tf.Tensor, row: tf.Tensor, table: Setting) -> tf.Tensor:
    """Computes only the branch that is chosen."""

    def branch(operation: Callable[..., tf.Tensor]) -> Any:
        def change(image: tf.Tensor, row: tf.Tensor) -> tf.Tensor:
            setting = Setting(*(tf.gather(column, row) for column in table))
            return operation(image, setting)

        return tf.function(change, autograph=False).get_concrete_function(
            tf.TensorSpec(image.shape, image.dtype),
            tf.TensorSpec(row.shape, row.dtype),
        )

    # `tf.switch_case` would put all branches into the graph, and to skip those
    # that are not chosen takes a fifth of the time at 32x32.
    (changed,) = tf.raw_ops.StatelessCase(
        branch_index=tf.gather(table.kind, row),
        input=[image, row],
        Tout=[image.dtype],
        branches=[branch(operation) for operation in KINDS.values()],
        output_shapes=[image.shape],
    )
    changed.set_shape(image.shape)
    return changed


def _leave(image: tf.Tensor, setting: Setting) -> tf.Tensor:
    return tf.identity(image)


def _move(image: tf.Tensor, setting: Setting) -> tf.Tensor:
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=setting.matrix[None],
        output_shape=image.shape[:2],
        fill_value=float(FILL),
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )[0]


def _map(image: tf.Tensor, setting: Setting) -> tf.Tensor:
    return tf.gather(setting.levels, tf.cast(image, tf.int32))


def _auto_contrast(image: tf.Tensor, setting: Setting) -> tf.Tensor:
    pixels = tf.cast(tf.reshape(image, [-1, 3]), tf.int32)
    low, high = tf.reduce_min(pixels, 0), tf.reduce_max(pixels, 0)
    # In double precision and in this order, as in Pillow.
    scale = 255 / tf.maximum(high - low, 1)
    offset = -tf.cast(low, tf.float64) * scale
    levels = LEVELS[:, None] * scale + offset
    levels = tf.where(high > low, levels, LEVELS[:, None])
    return _map_channels(_as_bytes(levels), _cells(image))


def _equalize(image: tf.Tensor, setting: Setting) -> tf.Tensor:
    cells = _cells(image)
    histogram = tf.raw_ops.DenseBincount(
        input=tf.reshape(cells, [-1]), size=768, weights=np.zeros(0, "i4")
    )
    num_below = tf.cumsum(tf.reshape(histogram, [256, 3]), exclusive=True)
    # All but the pixels of the highest level that occurs.
    num_pixels = image.shape[0] * image.shape[1]
    num = tf.reduce_max(tf.where(num_below < num_pixels, num_below, 0), 0)
    step = num // 255
    levels = (num_below + step // 2) // tf.maximum(step, 1)
    levels = tf.where(step > 0, levels, LEVELS[:, None])
    return _map_channels(tf.cast(tf.minimum(levels, 255), tf.uint8), cells)


def _contrast(image: tf.Tensor, setting: Setting) -> tf.Tensor:
    total = tf.cast(tf.reduce_sum(_grey(image)), tf.float64)
    mean = tf.floor(total / (image.shape[0] * image.shape[1]) + 0.5)
    levels = _blend(mean, LEVELS, setting)
    return tf.gather(levels, tf.cast(image, tf.int32))


def _color(image: tf.Tensor, setting: Setting) -> tf.Tensor:
    return _blend(_grey(image)[..., None], image, setting)


def _sharpness(image: tf.Tensor, setting: Setting) -> tf.Tensor:
    pixels = tf.cast(image, tf.int32)
    rows = pixels[:-2] + pixels[1:-1] + pixels[2:]
    sums = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    inside = pixels[1:-1, 1:-1]
    # The middle counts five times, the eight around it once; rounded.
    smooth = (2 * (sums + 4 * inside) + 13) // 26
    # The edge lacks neighbours and stays as it is.
    change = tf.pad(smooth - inside, [[1, 1], [1, 1], [0, 0]])
    return _blend(pixels + change, image, setting)


KINDS = {
    "Identity": _leave,
    "Move": _move,
    "Map": _map,
    "AutoContrast": _auto_contrast,
    "Equalize": _equalize,
    "Contrast": _contrast,
    "Color": _color,
    "Sharpness": _sharpness,
}


def _grey(image: tf.Tensor) -> tf.Tensor:
    """Luma of ITU-R 601-2 as Pillow computes it, int32."""
    weighted = tf.cast(image, tf.int32) * [19595, 38470, 7471]
    return (tf.reduce_sum(weighted, -1) + 2**15) // 2**16


def _blend(degenerate: Any, image: Any, setting: Setting) -> tf.Tensor:
    start, end = (tf.cast(x, tf.float32) for x in (degenerate, image))
    return _as_bytes(start + setting.factor * (end - start))


def _as_bytes(values: tf.Tensor) -> tf.Tensor:
    """Cut off rather than rounded, as in Pillow."""
    return tf.cast(tf.clip_by_value(values, 0, 255), tf.uint8)


def _map_channels(levels: tf.Tensor, cells: tf.Tensor) -> tf.Tensor:
    return tf.gather(tf.reshape(levels, [-1]), cells)


def _cells(image: tf.Tensor) -> tf.Tensor:
    """Where each value is in a table of shape `(256, 3)`, row by row."""
    return 3 * tf.cast(image, tf.int32) + [0, 1, 2]


def _size(image: tf.Tensor) -> tuple[int, int]:
    if image.shape.rank != 3 or None in image.shape.as_list():
        raise ValueError(
            f"The image has the shape {image.shape}, but (height, width, "
            "channels) must be known: resize or crop it first, or use "
            "`tf.ensure_shape`."
        )
    return image.shape[0], image.shape[1]
