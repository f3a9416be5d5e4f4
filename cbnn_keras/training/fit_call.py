"""The arguments of `model.fit`, for a `fit` with `weighted` in front of it."""

from typing import Any

import keras

# What `weighted` takes of them, and what it takes beside them.
_OF_PIPELINE = (
    *("batch_size", "sample_weight", "class_weight", "validation_split"),
    *("shuffle", "augment", "seed", "num_samples"),
)


def divided(
    callback: keras.callbacks.Callback, options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `weighted` is to be given, and what is left for `model.fit`.

    Args:
        callback: Is put in front of the callbacks, which may read its logs.
        options: The arguments of `model.fit` and of `weighted`.
    """
    given = {k: v for k, v in options.items() if v is not None}
    if "validation_data" in given:  # which Keras prefers
        given.pop("validation_split", None)
    if "batch_size" in given:  # which Keras takes for validation too
        given.setdefault("validation_batch_size", given["batch_size"])
    pipeline = {k: given.pop(k) for k in _OF_PIPELINE if k in given}
    others = keras.tree.flatten(given.pop("callbacks", []))
    others = [other for other in others if other is not callback]
    return pipeline, {**given, "callbacks": [callback, *others]}
