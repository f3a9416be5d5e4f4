"""A dataset without the shuffling inside it.

`image_dataset_from_directory` and its kin shuffle by default, and so do most
pipelines that were written for `fit`. `weighted` shuffles by itself: where what
follows a `shuffle` treats every sample alike, it can be taken out.
"""

from typing import NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError

# What comes after a `shuffle` without making the order matter. After `take`,
# say, the dataset would hold other samples without it.
_INDIFFERENT = (
    "AssertCardinalityDataset",
    "BatchDataset",
    "CacheDataset",
    "MapAndBatchDataset",
    "MapDataset",
    "ModelDataset",
    "OptionsDataset",
    "ParallelBatchDataset",
    "ParallelMapDataset",
    "PrefetchDataset",
    "RebatchDataset",
    "UnbatchDataset",
)


class Unshuffled(NamedTuple):
    """A dataset, and the size of the buffer that it was shuffled with."""

    dataset: tf.data.Dataset
    buffer_size: int


def unshuffled(dataset: tf.data.Dataset) -> Unshuffled | None:
    """The dataset without its `shuffle`, or None if it cannot be had."""
    try:
        text = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=1,  # seeds are such a state: no warning
        )
        graph = tf.compat.v1.GraphDef.FromString(text.numpy())
    except (tf.errors.OpError, DecodeError, ValueError):
        return None  # too large, or it holds what is no part of a graph
    nodes = {node.name: node for node in graph.node}
    root = next(node for node in graph.node if node.op == "_Retval")
    last, buffer_size = nodes[root.input[0]], 0
    above = root
    while last.op.rstrip("V23456789") in _INDIFFERENT or _shuffles(last):
        below = nodes[last.input[0].split(":")[0]]
        if _shuffles(last):
            buffer_size = max(buffer_size, _buffer_size(nodes, last))
            above.input[0] = last.input[0]
        else:
            above = last
        last = below
    if not buffer_size:
        return None
    output = f"{root.input[0]}:0"
    graph.node.remove(root)

    def variant() -> tf.Tensor:
        (found,) = tf.import_graph_def(graph, return_elements=[output], name="")
        return found

    made = tf.compat.v1.wrap_function(variant, [])()
    return Unshuffled(
        tf.data.experimental.from_variant(made, dataset.element_spec),
        buffer_size,
    )


def _shuffles(node: tf.compat.v1.NodeDef) -> bool:
    return node.op.startswith("ShuffleDataset")


def _buffer_size(
    nodes: dict[str, tf.compat.v1.NodeDef], node: tf.compat.v1.NodeDef
) -> int:
    value = nodes[node.input[1].split(":")[0]].attr["value"].tensor
    return int(tf.make_ndarray(value))
