"""Members -> one ordinary Keras model that averages them.

The result is made of Keras' own layers only, so that it opens anywhere Keras
does, without this package.
"""

from typing import Any

import keras
import numpy as np

from cbnn_keras.classifier import Classifier


def merge(
    members: list[keras.Model],
    votes: np.ndarray,
    classifier: Classifier,
    *,
    voting: str = "soft",
    inputs: Any = None,
) -> keras.Model:
    """One model with a shared input and the vote-weighted mean as output.

    Probabilities are averaged, never logits; with `voting="hard"` one-hot
    decisions are. The output layer is called `probabilities`.

    Args:
        members: Models of one architecture with weights of their own. They are
            renamed, since names must be unique within a model.
        votes: lambda of each member.
        classifier: How to read the members' outputs.
        voting: `"soft"` or `"hard"`.
        inputs: `keras.Input`s for subclassed members, whose own are unknown.
    """
    if inputs is None:
        inputs = _inputs_like(members[0])
    shares = np.asarray(votes) / np.sum(votes)
    parts = []
    for number, (member, share) in enumerate(zip(members, shares, strict=True)):
        member.name = f"member_{number}"
        outputs = _probabilities(member(inputs), classifier)
        if voting == "hard":
            outputs = _decisions(outputs)
        parts.append(
            keras.layers.Rescaling(
                float(share), dtype="float32", name=f"vote_{number}"
            )(outputs)
        )
    if len(parts) > 1:
        output = keras.layers.Add(dtype="float32", name="probabilities")(parts)
    else:
        output = keras.layers.Identity(dtype="float32", name="probabilities")(
            parts[0]
        )
    return keras.Model(inputs, output, name="checkpoint_ensemble")


def _inputs_like(model: keras.Model) -> Any:
    if not getattr(model, "inputs", None):
        raise ValueError(
            f"as_model(): {type(model).__name__} is subclassed, so its inputs "
            "are not known. Pass them: as_model(inputs=keras.Input(...))."
        )
    # A Sequential model has one input, and `.input` only once it was called.
    is_sequential = isinstance(model, keras.Sequential)
    return keras.tree.map_structure(
        lambda tensor: keras.Input(
            shape=tensor.shape[1:], dtype=tensor.dtype, name=tensor.name
        ),
        model.inputs[0] if is_sequential else model.input,
    )


def _probabilities(outputs: Any, classifier: Classifier) -> Any:
    if not classifier.from_logits:
        return outputs
    activation = "sigmoid" if classifier.is_binary else "softmax"
    return keras.layers.Activation(activation, dtype="float32")(outputs)


def _decisions(probabilities: Any) -> Any:
    if probabilities.shape[-1] == 1:
        return keras.ops.cast(probabilities > 0.5, "float32")
    winners = keras.ops.argmax(probabilities, axis=-1)
    return keras.ops.one_hot(winners, probabilities.shape[-1])
