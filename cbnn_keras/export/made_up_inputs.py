"""Inputs that a model could have been trained on, when no data are at hand.

What layers say about their inputs is made use of: an embedding takes integers
below its size, a rescaling by 1/255 takes bytes. Real data are better.
"""

from typing import Any

import keras
import numpy as np

from cbnn_keras.models import keras_internals

# For dimensions that the model leaves open, such as the length of a text.
_OPEN_DIMENSION = 32


def plausible_inputs(model: keras.Model, num: int) -> list[np.ndarray]:
    """One array for each input of a Functional model, in flat order."""
    generator = np.random.default_rng(0)
    return [
        _values(tensor, num, generator, model)
        for tensor in keras.tree.flatten(model.input)
    ]


def _values(
    tensor: Any, num: int, generator: np.random.Generator, model: keras.Model
) -> np.ndarray:
    shape = (num, *(size or _OPEN_DIMENSION for size in tensor.shape[1:]))
    reader = _first_reader(tensor, model)
    if tensor.dtype == "string":
        words = ["a", "b"]
        if hasattr(reader, "get_vocabulary"):
            known = reader.get_vocabulary()
            words = [w for w in known if w not in ("", "[UNK]")] or words
        return generator.choice(np.array(words, dtype=object), shape)
    if tensor.dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    dtype = np.dtype(tensor.dtype)
    if isinstance(reader, keras.layers.IntegerLookup):
        known = reader.get_vocabulary()[reader.num_oov_indices :]
        return generator.choice(np.array(known), shape).astype(dtype)
    limit = _num_values(reader, dtype)
    if limit:
        return generator.integers(0, limit, shape).astype(dtype)
    values = generator.normal(size=shape)
    if isinstance(reader, keras.layers.Rescaling):
        # What it maps to 0 ... 1, or to -1 ... 1 if it shifts downward.
        offset, scale = np.asarray(reader.offset), np.asarray(reader.scale)
        low = np.where(offset < 0, -1.0, 0.0)
        values = (generator.uniform(low, 1, shape) - offset) / scale
    elif isinstance(reader, keras.layers.Normalization):
        mean, deviation = np.asarray(reader.mean), np.sqrt(reader.variance)
        values = values * deviation + mean
    return values.astype(dtype)


_READERS = (
    keras.layers.CategoryEncoding,
    keras.layers.Embedding,
    keras.layers.IntegerLookup,
    keras.layers.Normalization,
    keras.layers.Rescaling,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)


def _readers(tensor: Any, model: keras.Model) -> list[Any]:
    """Layers that say what they expect of a tensor, the nearest first."""
    nodes = {id(node) for node in keras_internals.nodes_of(model)}
    waiting, found, seen = [tensor], [], set()
    while waiting:
        current = waiting.pop(0)
        for node in keras_internals.nodes_after(current):
            given = keras.tree.flatten(node.arguments.args)
            is_read = [argument is current for argument in given]
            if id(node) not in nodes or id(node) in seen or not any(is_read):
                continue
            seen.add(id(node))
            readers = _readers_within(node.operation, is_read)
            found += readers
            # Behind weights, values are no longer those of the input.
            if not readers and not getattr(node.operation, "weights", []):
                waiting += node.outputs
    return found


def _readers_within(operation: Any, is_read: list[bool]) -> list[Any]:
    """Readers in a layer, or behind those inputs of a model that are read."""
    if not isinstance(operation, keras.layers.Layer):
        return []
    inputs = getattr(operation, "inputs", None) or []
    if len(inputs) != len(is_read):
        parts = keras_internals.layers_within(operation)
        return [part for part in parts if isinstance(part, _READERS)]
    graph = keras_internals.functional_graph(operation)
    return [
        reader
        for inner, is_given in zip(graph.inputs, is_read, strict=True)
        if is_given
        for reader in _readers(inner, graph)
    ]


def _first_reader(tensor: Any, model: keras.Model) -> Any:
    """The nearest reader; of several embeddings, that with fewest values."""
    found = _readers(tensor, model)
    embeddings = [r for r in found if isinstance(r, keras.layers.Embedding)]
    if found and found[0] in embeddings:
        return min(embeddings, key=lambda layer: layer.input_dim)
    return found[0] if found else None


def _num_values(reader: Any, dtype: np.dtype) -> int:
    """How many integers a layer can take, or 0 if it takes real numbers."""
    if isinstance(reader, keras.layers.Embedding):
        return reader.input_dim
    if isinstance(reader, keras.layers.CategoryEncoding):
        return reader.num_tokens
    if dtype == np.uint8:
        return 256
    return 2 if dtype.kind in "iu" else 0
