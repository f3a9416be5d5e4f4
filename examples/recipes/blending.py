"""RandAugment, MixUp and CutMix of KerasCV in the pipelines of CBNN.

    cbnn.weighted(images, labels, batch_size=128, augment=rand_augment())

    cbnn = CBNNCallback("runs/a", score_data=(images, labels))
    train = blended(cbnn, images, labels, num_classes=100, batch_size=128)
    model.fit(train, callbacks=[cbnn], ...)

KerasCV's layers have random generators of their own. Training with them can
be resumed, but not bit for bit: `autoaugment.py` can be.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from cbnn_keras import CBNNCallback

Augment = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
METHODS = {"mixup": "MixUp", "cutmix": "CutMix"}


def rand_augment(
    *, num_operations: int = 2, magnitude: float = 0.5, **options: Any
) -> Augment:
    """KerasCV's RandAugment as an `augment(image, seed)` for `weighted`.

    Args:
        num_operations: Operations an image. Defaults to 2.
        magnitude: From 0 to 1. Defaults to 0.5.
        **options: Others of `keras_cv.layers.RandAugment`.

    Returns:
        A function of an image of type uint8 and a seed, which is not used: the
        layer draws for itself, and differently after a resume.
    """
    layer = _layers().RandAugment(
        value_range=(0, 255),
        augmentations_per_image=num_operations,
        magnitude=magnitude,
        **options,
    )

    def augment(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        changed = tf.round(layer(image, training=True))
        changed = tf.saturate_cast(changed, image.dtype)
        return tf.ensure_shape(changed, image.shape)

    return augment


def blended(
    cbnn: CBNNCallback,
    x: Any,
    y: Any,
    *,
    num_classes: int,
    batch_size: int,
    method: str = "mixup",
    alpha: float = 1.0,
    seed: int | None = None,
    augment: Augment | None = None,
) -> tf.data.Dataset:
    """Batches in which each image is blended with another one of its batch.

    Labels and sample weights are blended alike. KerasCV keeps to itself which
    images it has blended and to what shares, but blends any columns that the
    labels have: here also those of a unit matrix, which become the shares. The
    weights are looked up at the very end, and multiplied by these.

    For CutMix, KerasCV's shares are those of the square before it is cut off
    at the edges of the image.

    Args:
        cbnn: The callback, with `score_data=(x, y)`.
        x: Images, values from 0 to 255, shape `(num, height, width, 3)`.
        y: Classes as integers, shape `(num,)`.
        num_classes: Number of classes.
        batch_size: Samples a batch; the last one may be smaller.
        method: `"mixup"` or `"cutmix"`. Defaults to `"mixup"`.
        alpha: Of the beta distribution of the shares. Defaults to 1, uniform.
        seed: Of the order of the samples and of the seeds of `augment`. What
            KerasCV draws follows `keras.utils.set_random_seed`.
        augment: `augment(image, seed)`, before blending. Defaults to None.

    Returns:
        A dataset of `(x, y, sample_weight)`, all float32: images of values
        from 0 to 255, labels of shape `(batch, num_classes)` and weights of
        shape `(batch,)`.

    Raises:
        ValueError: If there is no such method.
    """
    if method not in METHODS:
        raise ValueError(
            f"blended(method={method!r}): there is no such method. Choose one "
            f"of {sorted(METHODS)}."
        )
    layer = getattr(_layers(), METHODS[method])(alpha=alpha, seed=seed)

    def blend(index: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> Any:
        one_hot = tf.one_hot(y, num_classes)
        labels = tf.concat([one_hot, tf.eye(tf.shape(index)[0])], axis=1)
        images = tf.cast(x, tf.float32)
        result = layer({"images": images, "labels": labels}, training=True)
        labels = result["labels"]
        shares = labels[:, num_classes:]
        return result["images"], labels[:, :num_classes], shares, index

    def weigh(
        x: tf.Tensor, y: tf.Tensor, shares: tf.Tensor, index: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return x, y, tf.linalg.matvec(shares, cbnn.look_up(index))

    examples = tf.data.Dataset.from_tensor_slices((x, np.reshape(y, -1)))
    dataset = cbnn.attach_index(examples).shuffle(len(x), seed)
    if augment is not None:
        dataset = _augmented(dataset, augment, seed)
    dataset = dataset.batch(batch_size).map(blend)
    options = tf.data.Options()
    options.deterministic = True
    # After the last prefetch, so that no weight is an old one.
    dataset = dataset.prefetch(tf.data.AUTOTUNE).map(weigh)
    return dataset.with_options(options)


def _augmented(
    dataset: tf.data.Dataset, augment: Augment, seed: int | None
) -> tf.data.Dataset:
    numbers = tf.data.Dataset.random(seed, rerandomize_each_iteration=True)

    def one_example(example: Any, seed: tf.Tensor) -> Any:
        index, x, y = example
        return index, augment(x, seed), y

    return tf.data.Dataset.zip(
        dataset, numbers.batch(2, drop_remainder=True)
    ).map(one_example, num_parallel_calls=tf.data.AUTOTUNE)


def _layers() -> Any:
    try:
        import keras_cv
    except ImportError as error:
        raise ImportError(
            "RandAugment, MixUp and CutMix are KerasCV's, which is not "
            'installed: pip install "cbnn-keras[examples]"'
        ) from error
    return keras_cv.layers
