"""Every op that TensorFlow has is refused or allowed on purpose."""

import re

import pytest
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

from cbnn_keras.export.foreign_operations import (
    SAVER_OPERATIONS,
    TABLE_FROM_FILE,
    reason_to_refuse,
    reason_to_refuse_node,
)

# Words in names of ops that make one look at them.
NAMES = re.compile(
    r"File|Save|Restore|Dataset|Iterator|Read|Write|Py|Rpc|Server|Socket"
    r"|Bigtable|Grpc|Remote|Collective|Send|Recv|Host|Debug|Summary|Checkpoint"
    r"|Load|Proto|Print|Call|Launch|Copy|Custom|TPU|Tpu|Url|Path|Shard|Dump"
    r"|Record|Client|Service|Worker|Distributed|Nccl|Exec|Event|Trace|Vocab"
    r"|Database|Sql|CSV|Wav|Session|Cluster|Device|Config|Abort|Remap|Import"
    r"|Export|Snapshot|Mlir|Memory|Library|Env|Infeed|Outfeed|Mesh|DTensor"
)
# And in names of their arguments and attributes.
ARGUMENTS = re.compile(
    r"file|path(?!s$)|url|dir(?!ection)|address|uri|command|logdir|prefix"
    r"|memory_region|descriptor_source|output_stream|token|call_target"
)
# Looked at, and found to compute, to keep something in memory or to print.
HARMLESS = {
    *("AnonymousMemoryCache", "DeleteMemoryCache", "DummyMemoryCache"),
    *("AudioSummary", "AudioSummaryV2", "HistogramSummary", "ImageSummary"),
    *("MergeSummary", "ScalarSummary", "TensorSummary", "TensorSummaryV2"),
    *("BarrierReadySize", "BoostedTreesMakeStatsSummary", "CheckPinned"),
    *("DecodeCSV", "DecodeWav", "EncodeWav", "DeepCopy", "DisableCopyOnRead"),
    *("DeviceIndex", "DevicePlacementOp", "SyncDevice", "HostConst"),
    *("DeleteSessionTensor", "GetSessionHandle", "GetSessionHandleV2"),
    *("GetSessionTensor", "LookupTableExport", "LookupTableExportV2"),
    *("LookupTableImport", "LookupTableImportV2", "PartitionedCall"),
    *("StatefulPartitionedCall", "Print", "ReadVariableOp", "Snapshot"),
    *("ReadVariableXlaSplitND", "RngReadAndSkip", "XlaClusterOutput"),
    *("TensorArrayRead", "TensorArrayReadV2", "TensorArrayReadV3"),
    *("TensorArrayWrite", "TensorArrayWriteV2", "TensorArrayWriteV3"),
    *("XlaSpmdFullToShardShape", "XlaSpmdShardToFullShape", "XlaSharding"),
    *("ApproxTopK", "BoostedTreesCreateEnsemble"),
    "BoostedTreesDeserializeEnsemble",
}
# Harmless with the attributes that they mostly have.
CONDITIONAL = {"PrintV2", "DecodeProtoV2", "EncodeProto"}


def registered():
    """All ops of the TensorFlow that is installed."""
    buffer = pywrap_tf_session.TF_GetAllOpList()
    content = pywrap_tf_session.TF_GetBuffer(buffer)
    return list(op_def_pb2.OpList.FromString(content).op)


def test_every_op_with_such_a_name_is_classified_on_purpose():
    operations = registered()
    assert len(operations) > 1000
    seen = {
        op.name
        for op in operations
        if NAMES.search(op.name)
        or any(ARGUMENTS.search(a.name) for a in [*op.input_arg, *op.attr])
    }
    allowed = {name for name in seen if reason_to_refuse(name) is None}
    assert allowed - HARMLESS - CONDITIONAL == set()
    assert HARMLESS - {op.name for op in operations} == set()
    assert len(seen - allowed) > 400


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (
            "ReadFile WriteFile MatchingFiles SaveV2 RestoreV2 Save Restore "
            "MergeV2Checkpoints TFRecordDataset TextLineDataset LMDBDataset "
            "TFRecordReaderV2 FixedLengthRecordReader WholeFileReader "
            "InitializeTableFromTextFile InitializeTableFromTextFileV2 "
            "DebugIdentity DumpTensor CreateSummaryFileWriter WriteSummary "
            "ImmutableConst FixedUnigramCandidateSampler LoadAndRemapMatrix "
            "GenerateVocabRemapping RecordInput SqlDataset CacheDatasetV2 "
            "CalibrationStatisticsSaver FileSystemSetConfiguration Skipgram",
            "reads or writes files",
        ),
        (
            "RpcCall RpcServer RpcClient RemoteCall _Send _Recv Send Recv "
            "CollectiveReduceV2 ConfigureDistributedTPU DistributedSave "
            "WorkerHeartbeat NcclAllReduce",
            "talks to other processes or devices",
        ),
        ("PyFunc PyFuncStateless EagerPyFunc", "calls Python"),
        ("XlaCallModule XlaCustomCallV2", "runs a program in another language"),
        ("Abort", "ends the process"),
    ],
)
def test_ops_that_reach_out(names, reason):
    there = {op.name for op in registered()}
    for name in names.split():
        assert name in there
        assert reason_to_refuse(name) == reason


def test_the_exceptions_are_refused_by_name():
    for name in (*SAVER_OPERATIONS, TABLE_FROM_FILE):
        assert reason_to_refuse(name) == "reads or writes files"


@pytest.mark.parametrize(
    ("operation", "attribute", "value", "is_refused"),
    [
        ("PrintV2", "output_stream", None, False),
        ("PrintV2", "output_stream", b"stderr", False),
        ("PrintV2", "output_stream", b"log(info)", False),
        ("PrintV2", "output_stream", b"file:///tmp/x", True),
        ("PrintV2", "output_stream", b"gs://bucket/x", True),
        ("DecodeProtoV2", "descriptor_source", b"local://", False),
        ("DecodeProtoV2", "descriptor_source", b"bytes://\x00", False),
        ("DecodeProtoV2", "descriptor_source", b"/etc/passwd", True),
        ("EncodeProto", "descriptor_source", b"/etc/passwd", True),
    ],
)
def test_ops_that_depend_on_an_attribute(
    operation, attribute, value, is_refused
):
    node = tf.compat.v1.NodeDef(name="n", op=operation)
    if value is not None:
        node.attr[attribute].s = value
    reason = reason_to_refuse_node(node)
    assert reason == ("reads or writes files" if is_refused else None)
