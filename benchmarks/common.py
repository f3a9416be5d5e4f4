"""What the benchmarks share: data, models, alternating measurement."""

import os
import platform
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf


def alternate(
    functions: dict[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each function, measured in turns so that drift is shared.

    With `clock=time.process_time` they are those of the processor, all threads
    added up, which other programs on the machine disturb less. The first round
    warms up and is not counted; every other round goes the other way round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(repeats + 1):
        names = list(functions) if turn % 2 else list(reversed(functions))
        for name in names:
            start = clock()
            functions[name]()
            if turn:
                seconds[name].append(clock() - start)
    return seconds


def onnx_session(path: str | os.PathLike[str], threads: int = 1):
    """An ONNX file in ONNX Runtime, on so many threads of the processor."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        os.fspath(path), options, providers=["CPUExecutionProvider"]
    )


def ratio(above: list[float], below: list[float]) -> str:
    """Median of the ratios of each turn, with their range."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    return (
        f"{statistics.median(ratios):.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} turns)"
    )


def versions() -> str:
    return (
        f"Python {platform.python_version()}, TensorFlow {tf.__version__}, "
        f"Keras {keras.__version__}, {os.cpu_count()} cores, "
        f"{len(tf.config.list_physical_devices('GPU'))} GPUs"
    )


def small_resnet(num_classes: int = 10, size: int = 16) -> keras.Model:
    """Three residual blocks, uncompiled."""
    layers = keras.layers
    inputs = keras.Input((size, size, 3))
    x = layers.Conv2D(16, 3, padding="same")(inputs)
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        x = layers.ReLU()(layers.BatchNormalization()(x))
        shortcut = layers.Conv2D(filters, 1, strides=strides)(x)
        x = layers.Conv2D(filters, 3, strides=strides, padding="same")(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Conv2D(filters, 3, padding="same")(x)
        x = layers.Add()([x, shortcut])
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(x))
    return keras.Model(
        inputs, layers.Dense(num_classes, activation="softmax")(x)
    )


def random_images(
    num: int, num_classes: int = 10, size: int = 16
) -> tuple[np.ndarray, np.ndarray]:
    """Noise with a class-dependent brightness: cheap, and learnable."""
    generator = np.random.default_rng(0)
    y = generator.integers(num_classes, size=num)
    x = generator.normal(size=(num, size, size, 3)).astype("float32")
    return x + y[:, None, None, None].astype("float32") / num_classes, y
