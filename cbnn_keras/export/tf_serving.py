"""What TensorFlow Serving wants: warm-up requests and `models.config`."""

import json
import pathlib

import numpy as np
import tensorflow as tf

from cbnn_keras.export.placing import MARK


def write_warmup(
    path: pathlib.Path,
    inputs: dict[str, np.ndarray],
    *,
    model: str,
    endpoints: list[str],
) -> None:
    """Writes requests that TensorFlow Serving replays when it loads a model.

    One with a single sample and one with all of them for each endpoint.

    Args:
        path: `assets.extra/tf_serving_warmup_requests` of the SavedModel.
        inputs: Samples, by input name.
        model: The name that the model is served under.
        endpoints: Signatures of the SavedModel.
    """
    num = len(next(iter(inputs.values())))
    with tf.io.TFRecordWriter(str(path)) as writer:
        for endpoint in endpoints:
            for size in sorted({1, num}):
                batch = {name: a[:size] for name, a in inputs.items()}
                writer.write(_prediction_log(model, endpoint, batch))


def _prediction_log(
    model: str, endpoint: str, inputs: dict[str, np.ndarray]
) -> bytes:
    """tensorflow.serving.PredictionLog, without its package at run time.

    The fields are PredictionLog.predict_log = 6, PredictLog.request = 1,
    PredictRequest.model_spec = 1 and .inputs = 2 (a map: key = 1, value = 2),
    ModelSpec.name = 1 and .signature_name = 3.
    """
    spec = _field(1, model.encode()) + _field(3, endpoint.encode())
    request = _field(1, spec)
    for name, array in inputs.items():
        tensor = tf.make_tensor_proto(array).SerializeToString()
        request += _field(2, _field(1, name.encode()) + _field(2, tensor))
    return _field(6, _field(1, request))


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field of a protocol buffer."""
    length, size = b"", len(content)
    while size > 127:
        length += bytes([size % 128 + 128])
        size //= 128
    return bytes([number * 8 + 2]) + length + bytes([size]) + content


def models_config(directory: pathlib.Path, base: str, *, new_model: str) -> str:
    """`models.config`, which lists all models of a directory.

    Args:
        directory: Where the models are.
        base: The directory of the models as the server sees it, or "" for
            where it is.
        new_model: The name of a model that is about to be put there.
    """
    found = directory.glob("*/*/saved_model.pb")
    names = sorted({new_model, *(path.parents[1].name for path in found)})
    base = (base or str(directory)).rstrip("/")
    entries = "".join(
        _MODEL_ENTRY.format(name=quoted(name), path=quoted(f"{base}/{name}"))
        for name in names
    )
    return f"{MARK}\nmodel_config_list {{\n{entries}}}\n"


_MODEL_ENTRY = """  config {{
    name: {name}
    base_path: {path}
    model_platform: "tensorflow"
  }}
"""


def quoted(value: str) -> str:
    """A string of a protocol buffer in text form."""
    return json.dumps(value, ensure_ascii=False)
