"""Members -> one ordinary Keras model that averages them.

The result is made of Keras' own layers only, so that it opens anywhere Keras
does, without this package. It is for prediction: what members have in common,
such as a frozen backbone, is computed once, and layers that only act while a
model is trained are left out.
"""

import dataclasses
from collections.abc import Collection
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from cbnn_keras.calibration import Scaling
from cbnn_keras.ensemble.adjusting import adjusted_tensors
from cbnn_keras.models import keras_internals
from cbnn_keras.models.classifier import Classifier


def merge(
    members: list[keras.Model],
    votes: np.ndarray,
    classifier: Classifier,
    *,
    voting: str = "soft",
    scaling: Scaling | None = None,
    priors: ArrayLike | None = None,
    inputs: Any = None,
    received: Any = None,
    with_members: bool = False,
) -> keras.Model:
    """One model with a shared input and the vote-weighted mean as output.

    Probabilities are averaged, never logits; with `voting="hard"` one-hot
    votes are. The output layer is called `probabilities`.

    Args:
        members: Models of one architecture with weights of their own. They are
            taken apart: use them no further.
        votes: lambda of each member.
        classifier: How to read the members' outputs.
        voting: `"soft"` or `"hard"`.
        scaling: What the mean is scaled by, see `adjusting`.
        priors: What it is divided by then.
        inputs: `keras.Input`s for subclassed members, whose own are unknown.
        received: What the members are called with, where layers are in front
            of them: made from the `inputs`. Defaults to the `inputs`.
        with_members: Whether the outputs are a dict of `probabilities` and
            `members`, a list with the probabilities of each member.
    """
    if inputs is None:
        inputs = inputs_like(members[0])
    if "probabilities" in {t.name for t in keras.tree.flatten(inputs)}:
        raise ValueError(
            "An input of the model is called 'probabilities', which is the "
            "name of the output. Give it another name: inputs=keras.Input(..., "
            'name="another").'
        )
    received = inputs if received is None else received
    # Inputs, and the layers between them and what members receive.
    front = keras.Model(
        keras.tree.flatten(inputs), keras.tree.flatten(received), name="front"
    )
    taken = {operation.name for operation in front.operations}
    outputs = member_outputs(members, received, classifier, taken=taken)
    average = combine(
        outputs,
        votes,
        voting=voting,
        scaling=scaling,
        priors=priors,
        taken=taken,
    )
    results = average
    if with_members:
        results = {
            "probabilities": average,
            "members": [keras.ops.cast(o, "float32") for o in outputs],
        }
    return keras.Model(inputs, results, name="checkpoint_ensemble")


def inputs_like(model: keras.Model) -> Any:
    """New `keras.Input`s in the structure that the model is called with."""
    if not getattr(model, "inputs", None):
        raise ValueError(
            f"{type(model).__name__} is subclassed, so its inputs are not "
            "known. Pass them: inputs=keras.Input(...)."
        )
    # A Sequential model has one input, and `.input` only once it was called.
    is_sequential = isinstance(model, keras.Sequential)
    return keras.tree.map_structure(
        lambda tensor: keras.Input(
            shape=tensor.shape[1:], dtype=tensor.dtype, name=tensor.name
        ),
        model.inputs[0] if is_sequential else model.input,
    )


def member_outputs(
    members: list[keras.Model],
    inputs: Any,
    classifier: Classifier,
    *,
    taken: Collection[str] = (),
) -> list[Any]:
    """The probabilities of each member, as symbolic tensors.

    A layer whose inputs and weights are the same in several members is called
    once. Layers are renamed, since names must be unique within a model: those
    that all members have in common start with `shared_`, the others with
    `member_0_`, `member_1_`, ...

    Args:
        members: As in `merge`.
        inputs: What they are called with, in their structure.
        classifier: How to read their outputs.
        taken: Names that layers must not get.
    """
    calls = _Calls(len(members))
    outputs = []
    for number, member in enumerate(members):
        calls.member, calls.position = number, 0
        outputs.append(_probabilities(calls.run(member, inputs), classifier))
    calls.rename(taken)
    return outputs


def combine(
    outputs: list[Any],
    votes: np.ndarray,
    *,
    voting: str = "soft",
    scaling: Scaling | None = None,
    priors: ArrayLike | None = None,
    taken: Collection[str] = (),
) -> Any:
    """The vote-weighted mean of symbolic probabilities, `probabilities`.

    Votes are constants of the graph, divided by their sum.

    Args:
        outputs: What `member_outputs` gave.
        votes: lambda of each member.
        voting: `"soft"` or `"hard"`.
        scaling: What the mean is scaled by, see `adjusting`.
        priors: What it is divided by then.
        taken: Names that layers must not get.
    """
    shares = np.asarray(votes) / np.sum(votes)
    parts = [
        keras.layers.Rescaling(
            float(share),
            dtype="float32",
            name=_free_name(f"vote_{number}", taken),
        )(one_hot_votes(output) if voting == "hard" else output)
        for number, (output, share) in enumerate(
            zip(outputs, shares, strict=True)
        )
    ]
    last = _free_name("probabilities", taken)
    is_adjusted = scaling is not None or priors is not None
    if not is_adjusted and len(parts) > 1:
        return keras.layers.Add(dtype="float32", name=last)(parts)
    average = parts[0]
    if len(parts) > 1:
        name = _free_name("average", taken)
        average = keras.layers.Add(dtype="float32", name=name)(parts)
    average = adjusted_tensors(average, scaling, priors)
    return keras.layers.Identity(dtype="float32", name=last)(average)


@dataclasses.dataclass
class _Call:
    operation: Any
    path: str
    arguments: list[int]
    outputs: Any
    members: list[int]


class _Calls:
    """Calls the layers of one member after another, and equal ones once.

    Members have one architecture, so the n-th call of one stands where the n-th
    call of another does.

    Attributes:
        member: The number of the member that is called.
        position: How many of its calls were made.
    """

    def __init__(self, num_members: int) -> None:
        self._num_members = num_members
        self.member = 0
        self.position = 0
        self._made: list[list[_Call]] = []
        self._casts: dict[tuple[int, str], Any] = {}
        # Tensors are told apart by their ids, so they must live on.
        self._alive: list[Any] = []

    def run(self, model: Any, inputs: Any, path: str = "") -> Any:
        """Calls a model layer by layer where its layers are known."""
        if not keras_internals.is_plain_graph(model):
            return self._call_once(model, path, (inputs,), {})
        if isinstance(model, keras.Sequential):
            [tensor] = self._as_declared(model, inputs)
            for layer in model.layers:
                tensor = self._call(layer, path, tensor)
            return tensor

        def call(operation: Any, *args: Any, **kwargs: Any) -> Any:
            return self._call(operation, path, *args, **kwargs)

        outputs = keras_internals.run_through_graph(
            model, self._as_declared(model, inputs), call
        )
        is_alone = isinstance(outputs, (list, tuple)) and len(outputs) == 1
        return outputs[0] if is_alone else outputs

    def _call(
        self, operation: Any, path: str, *args: Any, **kwargs: Any
    ) -> Any:
        is_tensor = args and isinstance(args[0], keras.KerasTensor)
        if type(operation) in _TRAINING_ONLY and is_tensor:
            kept = operation.compute_output_spec(*args).dtype
            return self._cast(args[0], kept)
        # `training` says how a part is called while the whole is trained.
        given = {
            name
            for name, value in kwargs.items()
            if any(part is not None for part in keras.tree.flatten(value))
        }
        is_plain = len(args) == 1 and given <= {"training"}
        is_graph = keras_internals.is_plain_graph(operation)
        if is_plain and is_graph and _fits(operation, args[0]):
            return self.run(operation, args[0], f"{path}{operation.name}_")
        return self._call_once(operation, path, args, kwargs)

    def _call_once(
        self, operation: Any, path: str, args: Any, kwargs: Any
    ) -> Any:
        if self.position == len(self._made):
            self._made.append([])
        earlier = self._made[self.position]
        self.position += 1
        arguments = [
            id(value)
            for value in keras.tree.flatten((args, kwargs))
            if isinstance(value, keras.KerasTensor)
        ]
        for call in earlier:
            if call.arguments == arguments and _have_equal_weights(
                call.operation, operation
            ):
                call.members.append(self.member)
                return call.outputs
        outputs = operation(*args, **kwargs)
        self._alive.append((args, kwargs, outputs))
        earlier.append(
            _Call(operation, path, arguments, outputs, [self.member])
        )
        return outputs

    def _as_declared(self, model: keras.Model, inputs: Any) -> list[Any]:
        """The inputs in the order and dtypes of the model, as Keras does it."""
        names = [tensor.name for tensor in model.inputs]
        if isinstance(inputs, dict) and not _takes_dict(model):
            inputs = [inputs[name] for name in names]
        return [
            self._cast(tensor, declared.dtype)
            for tensor, declared in zip(
                keras.tree.flatten(inputs), model.inputs, strict=True
            )
        ]

    def _cast(self, tensor: Any, dtype: str) -> Any:
        """The tensor in a dtype; the same result for all members."""
        if tensor.dtype == dtype:
            return tensor
        key = (id(tensor), dtype)
        if key not in self._casts:
            is_float = "float" in tensor.dtype and "float" in dtype
            self._casts[key] = (
                keras.layers.Identity(dtype=dtype)(tensor)  # keeps a mask
                if is_float
                else keras.ops.cast(tensor, dtype)
            )
            self._alive.append(tensor)
        return self._casts[key]

    def rename(self, taken: Collection[str]) -> None:
        """Gives each layer that was called a name of its own."""
        names, renamed = set(taken), set()
        for call in (call for calls in self._made for call in calls):
            if id(call.operation) in renamed:
                continue  # called several times
            renamed.add(id(call.operation))
            is_shared = len(call.members) == self._num_members > 1
            owner = "shared" if is_shared else f"member_{call.members[0]}"
            call.operation.name = _free_name(
                f"{owner}_{call.path}{call.operation.name}", names
            )
            names.add(call.operation.name)


# What does nothing to its inputs unless a model is trained. By exact type: a
# class derived from one of these may well do something.
_TRAINING_ONLY = {
    getattr(keras.layers, name)
    for name in (
        "ActivityRegularization AlphaDropout AugMix CutMix Dropout "
        "GaussianDropout GaussianNoise MixUp RandAugment RandomBrightness "
        "RandomColorDegeneration RandomColorJitter RandomContrast "
        "RandomElasticTransform RandomErasing RandomFlip RandomGaussianBlur "
        "RandomGrayscale RandomHue RandomInvert RandomPerspective "
        "RandomPosterization RandomRotation RandomSaturation RandomSharpness "
        "RandomShear RandomTranslation RandomZoom SpatialDropout1D "
        "SpatialDropout2D SpatialDropout3D"
    ).split()
    if hasattr(keras.layers, name)  # older versions of Keras lack some
}


def _takes_dict(model: keras.Model) -> bool:
    # A Sequential model has no `.input` before it was called.
    return not isinstance(model, keras.Sequential) and isinstance(
        model.input, dict
    )


def _fits(model: keras.Model, inputs: Any) -> bool:
    """Whether a model takes the inputs as they are, but for their dtypes."""
    tensors = keras.tree.flatten(inputs)
    if len(tensors) != len(model.inputs):
        return False
    if len(tensors) > 1 and type(inputs) is not type(model.input):
        return False
    return all(
        len(tensor.shape) == len(declared.shape)
        for tensor, declared in zip(tensors, model.inputs, strict=True)
    )


def _have_equal_weights(one: Any, other: Any) -> bool:
    return one is other or all(
        np.array_equal(*map(keras.ops.convert_to_numpy, pair))
        for pair in zip(
            getattr(one, "weights", []),
            getattr(other, "weights", []),
            strict=True,
        )
    )


def _probabilities(outputs: Any, classifier: Classifier) -> Any:
    if not classifier.from_logits:
        return outputs
    activation = "sigmoid" if classifier.is_binary else "softmax"
    return keras.layers.Activation(activation, dtype="float32")(outputs)


def one_hot_votes(probabilities: Any) -> Any:
    """`metrics.one_hot_votes` of symbolic tensors; ties to the lower class."""
    if probabilities.shape[-1] == 1:
        return keras.ops.cast(probabilities > 0.5, "float32")
    # Without an argmax, which Keras makes of an op that ONNX does not have.
    best = keras.ops.max(probabilities, axis=-1, keepdims=True)
    is_best = keras.ops.cast(keras.ops.equal(probabilities, best), "float32")
    is_first = keras.ops.cumsum(is_best, axis=-1) < 1.5
    return is_best * keras.ops.cast(is_first, "float32")


def _free_name(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_again"
    return name
