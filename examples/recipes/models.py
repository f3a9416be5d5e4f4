"""The networks of the paper, as Keras models.

Each takes uint8 images `(batch, size, size, 3)` and returns probabilities
`(batch, num_classes)`. They consist of Keras' own layers, so that their files
open anywhere Keras does; the last layer computes in float32 whatever the dtype
policy is. `build` makes one by its name, with the dropout of the paper.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

# Scale and offset: CIFAR has about mean 120, deviation 64. Exact in float16.
STANDARDISE = (1 / 64, -2)
# Mean and standard deviation of ImageNet's red, green and blue, from 0 to 1.
IMAGENET = ((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))
EFFICIENTNETS = {
    "b0": (keras.applications.EfficientNetB0, 0.2),
    "b3": (keras.applications.EfficientNetB3, 0.3),
}


def resnet(
    depth: int,
    num_classes: int,
    *,
    size: int = 32,
    width: int = 16,
    dropout: float = 0.0,
    weight_decay: float = 1e-4,
) -> keras.Model:
    """ResNet for small images (He et al., 2016, section 4.2).

    Three stages of n blocks of two convolutions. Shortcuts have no weights:
    where the image shrinks, they take every other pixel and append zeros to
    the channels (option A).

    Args:
        depth: 6n + 2, such as 8, 20, 110: layers with weights.
        num_classes: Number of classes.
        size: Height and width of the images. Defaults to 32.
        width: Filters of the first stage; the second has twice as many, the
            third four times. Defaults to 16.
        dropout: Rate in front of the last layer. Defaults to 0.
        weight_decay: L2 penalty of the kernels. Defaults to 1e-4.
    """
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(
            f"resnet: depth={depth} is not 6n + 2. Use 8, 14, 20, 32, 110, ..."
        )

    def convolve(x: Any, filters: int, stride: int) -> Any:
        x = _convolve(x, filters, 3, weight_decay, stride)
        return layers.BatchNormalization(momentum=0.9)(x)

    inputs = keras.Input((size, size, 3), dtype="uint8")
    x = layers.Rescaling(*STANDARDISE)(inputs)
    x = layers.ReLU()(convolve(x, width, 1))
    for stage in range(3):
        filters = width * 2**stage
        for block in range((depth - 2) // 6):
            stride = 2 if stage > 0 and block == 0 else 1
            shortcut = _shrink(x) if stride == 2 else x
            x = layers.ReLU()(convolve(x, filters, stride))
            x = layers.ReLU()(layers.Add()([convolve(x, filters, 1), shortcut]))
    outputs = _classify(x, num_classes, dropout, weight_decay)
    return keras.Model(inputs, outputs, name=f"resnet{depth}")


def densenet(
    num_classes: int,
    *,
    depth: int = 40,
    growth: int = 12,
    size: int = 32,
    dropout: float = 0.2,
    weight_decay: float = 1e-4,
) -> keras.Model:
    """DenseNet without bottleneck and compression (Huang et al., 2017).

    Args:
        num_classes: Number of classes.
        depth: 3n + 4 for n layers in each of three blocks. Defaults to 40.
        growth: Channels that a layer adds, k. Defaults to 12.
        size: Height and width of the images. Defaults to 32.
        dropout: Rate after each convolution but the first. Defaults to 0.2.
        weight_decay: L2 penalty of the kernels. Defaults to 1e-4.
    """
    if depth < 7 or (depth - 4) % 3:
        raise ValueError(
            f"densenet: depth={depth} is not 3n + 4. Use 22, 40, 100, ..."
        )

    def convolve(x: Any, filters: int, kernel_size: int) -> Any:
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
        x = _convolve(x, filters, kernel_size, weight_decay)
        return layers.Dropout(dropout)(x) if dropout else x

    inputs = keras.Input((size, size, 3), dtype="uint8")
    x = layers.Rescaling(*STANDARDISE)(inputs)
    x = _convolve(x, 16, 3, weight_decay)
    for block in range(3):
        if block > 0:
            x = layers.AveragePooling2D(2)(convolve(x, x.shape[-1], 1))
        for _ in range((depth - 4) // 3):
            x = layers.Concatenate()([x, convolve(x, growth, 3)])
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    outputs = _classify(x, num_classes, weight_decay=weight_decay)
    return keras.Model(inputs, outputs, name=f"densenet{depth}")


def efficientnet(
    variant: str,
    num_classes: int,
    *,
    size: int = 224,
    dropout: float | None = None,
) -> keras.Model:
    """EfficientNet at 224 x 224 with random weights (Tan and Le, 2019).

    Args:
        variant: `"b0"` or `"b3"`.
        num_classes: Number of classes.
        size: Height and width of the images, which the model resizes to 224.
            Defaults to 224.
        dropout: Rate in front of the last layer. Defaults to that of the
            paper: 0.2 for B0, 0.3 for B3.
    """
    if variant not in EFFICIENTNETS:
        raise ValueError(
            f"efficientnet: variant={variant!r}. Use 'b0' or 'b3'."
        )
    application, usual_dropout = EFFICIENTNETS[variant]
    inputs = keras.Input((size, size, 3), dtype="uint8")
    # Without ImageNet weights, what keras.applications starts with divides by
    # 255 but knows no mean and deviation: these make up for it.
    x = layers.Rescaling(
        [1 / deviation for _, deviation in IMAGENET],
        [-255 * mean / deviation for mean, deviation in IMAGENET],
    )(inputs)
    if size != 224:
        x = layers.Resizing(224, 224)(x)
    x = application(include_top=False, weights=None, input_tensor=x).output
    dropout = usual_dropout if dropout is None else dropout
    outputs = _classify(x, num_classes, dropout)
    return keras.Model(inputs, outputs, name=f"efficientnet_{variant}")


# ResNet-8, 14 and 20 are too small for the data of the paper and underfit
# them: dropout, which the paper uses for its large models, would only harm.
MODELS: dict[str, Callable[[int, int], keras.Model]] = {
    "resnet8": lambda num, size: resnet(8, num, size=size),
    "resnet14": lambda num, size: resnet(14, num, size=size),
    "resnet20": lambda num, size: resnet(20, num, size=size),
    "resnet110": lambda num, size: resnet(110, num, size=size, dropout=0.2),
    "densenet40": lambda num, size: densenet(num, size=size, dropout=0.2),
    "efficientnet-b0": lambda num, size: efficientnet("b0", num, size=size),
    "efficientnet-b3": lambda num, size: efficientnet("b3", num, size=size),
}


def build(name: str, num_classes: int, size: int) -> keras.Model:
    """A model of `MODELS` by its name, for images of `size` x `size`."""
    if name not in MODELS:
        raise ValueError(
            f"There is no model {name!r}. Use one of: {', '.join(MODELS)}."
        )
    return MODELS[name](num_classes, size)


def _convolve(
    x: Any, filters: int, kernel_size: int, weight_decay: float, stride: int = 1
) -> Any:
    return layers.Conv2D(
        filters,
        kernel_size,
        stride,
        padding="same",
        use_bias=False,  # BatchNorm has one
        kernel_initializer="he_normal",
        kernel_regularizer=keras.regularizers.L2(weight_decay),
    )(x)


def _shrink(x: Any) -> Any:
    """Every other pixel and twice the channels, the new ones zero."""
    x = layers.AveragePooling2D(1, 2)(x)
    return layers.Concatenate()([x, layers.Rescaling(0.0)(x)])


def _classify(
    x: Any, num_classes: int, dropout: float = 0.0, weight_decay: float = 0.0
) -> Any:
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(dropout)(x) if dropout else x
    return layers.Dense(
        num_classes,
        activation="softmax",
        dtype="float32",  # in float16, small probabilities would be zero
        kernel_regularizer=keras.regularizers.L2(weight_decay),
    )(x)
