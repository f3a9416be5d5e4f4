"""One model on several devices: its variables and its statistics.

`tf.distribute.MirroredStrategy` gives each device a replica of the model and a
piece of each batch. What that does to a model is put right here, what it does
to batches in `data/sharding.py`.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import keras
import numpy as np
import tensorflow as tf

T = TypeVar("T")


def outside_strategies(make: Callable[[], T]) -> T:
    """Makes variables that no strategy mirrors.

    A scope belongs to the thread that entered it, and TensorFlow has no way to
    leave it for a while: so another thread makes them.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def is_distributed(model: keras.Model) -> bool:
    """Whether a strategy feeds the model, be it one of a single device."""
    if keras.backend.backend() != "tensorflow":
        return False
    default = outside_strategies(tf.distribute.get_strategy)
    return model.distribute_strategy is not default


def num_replicas(model: keras.Model) -> int:
    """How many devices a strategy has, or 1 without one."""
    if not is_distributed(model):
        return 1
    return int(model.distribute_strategy.num_replicas_in_sync)


def average_statistics(model: keras.Model) -> None:
    """Gives every replica the mean of what the replicas have collected.

    Such are the moving statistics of BatchNorm: each replica has its own, of
    its pieces of the batches, and a save would take the first one's.
    """
    if num_replicas(model) == 1:
        return
    strategy = model.distribute_strategy
    for variable in model.non_trainable_weights:
        if not keras.backend.is_float_dtype(variable.dtype):
            continue
        copies = strategy.experimental_local_results(variable.value)
        values = [keras.ops.convert_to_numpy(copy) for copy in copies]
        if any(not np.array_equal(value, values[0]) for value in values[1:]):
            mean = np.mean(values, axis=0, dtype=np.float64)
            variable.assign(mean.astype(values[0].dtype))
