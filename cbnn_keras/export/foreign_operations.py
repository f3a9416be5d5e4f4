"""Which ops of TensorFlow reach out of the computation, by their names.

A SavedModel is a program: to load it runs its initialisers, and to compare it
runs its endpoints. Ops that touch files, other processes or Python are told by
their names, and a few by an attribute, so that ops of versions to come fall
under the same words.
"""

import re
from typing import Any

# Why an op is refused: the first pattern that is found in its name says so.
_REASONS = {
    r"PyFunc": "calls Python",
    r"^Abort$": "ends the process",
    r"^_|Rpc|Remote|Send|Recv|Collective|Nccl|Distributed|TPU|Tpu|Worker"
    r"|DTensor|ToMesh|Relayout|HostCompute|Infeed|Outfeed|SparseCore|Fdo"
    r"|TaskId": "talks to other processes or devices",
    r"XlaCallModule|XlaCustomCall|XlaLaunch|XlaSparse|Mlir": (
        "runs a program in another language"
    ),
    r"File|Save|Restore|Checkpoint|Dataset|Iterator|Reader|RecordInput"
    r"|Debug|Dump|^Copy|SummaryWriter|DbWriter|^Write|ImportEvent"
    r"|StatsAggregator|LoadAndRemap|VocabRemapping|^ImmutableConst$"
    r"|^FixedUnigram|^Skipgram|^CustomAggregator": "reads or writes files",
}

# What saves and restores the variables, in functions that only a saver calls.
SAVER_OPERATIONS = {
    "MergeV2Checkpoints",
    "RestoreV2",
    "SaveV2",
    "ShardedFilename",
}
# Reads a file: allowed for those that are in the SavedModel itself.
TABLE_FROM_FILE = "InitializeTableFromTextFileV2"

# Of `tf.print`; without any it is the second.
_STREAMS = {
    b"",
    b"stderr",
    b"stdout",
    b"log(info)",
    b"log(warning)",
    b"log(error)",
}
_DESCRIPTORS = (b"local://", b"bytes://")


def reason_to_refuse(operation: str) -> str | None:
    """What an op does that a model has no need to, or None.

    Example:

    >>> reason_to_refuse("WriteFile")
    'reads or writes files'
    >>> reason_to_refuse("MatMul")
    """
    for pattern, reason in _REASONS.items():
        if re.search(pattern, operation):
            return reason
    return None


def reason_to_refuse_node(node: Any) -> str | None:
    """`reason_to_refuse` of an op with its attributes, a `NodeDef`."""
    if node.op == "PrintV2" and node.attr["output_stream"].s not in _STREAMS:
        return "reads or writes files"
    if node.op in ("DecodeProtoV2", "EncodeProto"):
        source = node.attr["descriptor_source"].s
        if source and not source.startswith(_DESCRIPTORS):
            return "reads or writes files"
    return reason_to_refuse(node.op)
