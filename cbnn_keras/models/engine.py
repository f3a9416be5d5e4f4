"""What differs between Keras' backends, behind one interface.

The rest of the package says `engine.in_use()` where it would otherwise have to
know the backend. TensorFlow's `tf.data` is the input layer on all of them, and
a SavedModel is TensorFlow's: `data` and `export` use TensorFlow by name.
"""

import functools

import keras

from cbnn_keras.models.engine_interface import Engine


@functools.cache
def in_use() -> Engine:
    """The engine of the backend that this process has.

    Raises:
        ValueError: If Keras has a backend that cannot train.
    """
    name = keras.backend.backend()
    if name == "tensorflow":
        from cbnn_keras.models.engine_tensorflow import TensorFlowEngine

        return TensorFlowEngine()
    if name == "jax":
        from cbnn_keras.models.engine_jax import JaxEngine

        return JaxEngine()
    if name == "torch":
        from cbnn_keras.models.engine_torch import TorchEngine

        return TorchEngine()
    raise ValueError(
        f"cbnn_keras computes with Keras' backends tensorflow, jax and torch; "
        f"this is {name!r}. Set KERAS_BACKEND to one of them before Keras is "
        "imported."
    )
