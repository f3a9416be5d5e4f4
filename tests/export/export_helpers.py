"""Ensembles whose answers are known, and what they must be."""

import pathlib

import keras
import numpy as np
import onnxruntime
import tensorflow as tf
from helpers import header, round_at

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.export import ServingOptions
from cbnn_keras.export.graph import ServingGraph
from cbnn_keras.runs.run import MemoryRun

ALL = ["probabilities", "class", "top_k", "members", "disagreement"]
# With 3 classes, beyond Latin-1.
NAMES = ["rot", "grün", "青い"]
# Samples for `dense_model`.
X = np.random.default_rng(5).normal(0, 3, (40, 4)).astype("float32")


def serving_graph(ensemble, **options):
    return ServingGraph(ensemble, ServingOptions(**options))


def tables(members, votes, **options):
    """An ensemble whose member m says `members[m][i]` of sample i.

    Its model is an embedding of sample numbers.
    """
    members = np.array(members, "float32")
    _, num_samples, num_columns = members.shape
    inputs = keras.Input((), dtype="int32", name="sample")
    outputs = keras.layers.Embedding(num_samples, num_columns)(inputs)
    model = keras.Model(inputs, outputs)
    run = MemoryRun(header(model, **options))
    for number, (table, vote) in enumerate(zip(members, votes, strict=True)):
        model.set_weights([table])
        record = round_at(10 * number + 10, vote)
        run.add_round(record, np.ones(8, dtype=bool), model)
    run.finish()
    return CheckpointEnsemble(run, model)


def tree(directory):
    """All that is in a directory, hidden or not, byte for byte."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        if path.is_file()
        else None
        for path in pathlib.Path(directory).rglob("*")
    }


def opened(saved_model):
    """A function from inputs to outputs of an endpoint, by name."""
    loaded = tf.saved_model.load(str(saved_model))

    def run(inputs, endpoint="serving_default"):
        tensors = {name: tf.constant(a) for name, a in inputs.items()}
        outputs = loaded.signatures[endpoint](**tensors)
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    run.inputs = list(
        loaded.signatures["serving_default"].structured_input_signature[1]
    )
    return run


def run_onnx(path, inputs):
    """Outputs of an ONNX file, by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # half precision has no kernel for some ops
    session = onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def worked_out(ensemble, x=X, *, names=NAMES, priors=None, top_k=2):
    """All outputs for `dense_model`, with NumPy and in double precision."""
    members = []
    for member in ensemble.member_models():
        w, b, w_out, b_out = member.get_weights()
        logits = np.maximum(x.astype("float64") @ w + b, 0) @ w_out + b_out
        members.append(softmax(logits))
    votes = ensemble.votes
    divisors = np.ones(3) if priors is None else np.array(priors)
    opinions = np.array(members) / divisors
    probabilities = np.average(members, axis=0, weights=votes) / divisors
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    order = np.argsort(-probabilities, axis=1)
    against = opinions.argmax(axis=2) != order[:, 0]
    labels = np.array(names)
    return {
        "probabilities": probabilities,
        "class": labels[order[:, 0]],
        "top_k_classes": labels[order[:, :top_k]],
        "top_k_probabilities": -np.sort(-probabilities, axis=1)[:, :top_k],
        "members": np.stack(members, axis=1),
        "disagreement": votes @ against / votes.sum(),
    }


def softmax(values):
    exponentials = np.exp(values - values.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def assert_outputs(found, expected, atol=1e-5):
    """Numbers to a tolerance; names, as text or as bytes, exactly."""
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        array = found[name]
        assert array.shape == values.shape, name
        if values.dtype.kind == "U":
            as_text = np.vectorize(tf.compat.as_str, otypes=[object])
            assert as_text(array).tolist() == values.tolist(), name
        else:
            np.testing.assert_allclose(
                array, values, rtol=0, atol=atol, err_msg=name
            )
