"""An ensemble as one function with named inputs and outputs.

Every format is made from the same `ServingGraph`, and compared with the same
`reference`, which comes from the members one by one and so by another way.
"""

import json
import re
from collections.abc import Collection, Sequence
from typing import Any, TypedDict

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from cbnn_keras import imbalance, metrics
from cbnn_keras.ensemble import CheckpointEnsemble, merging
from cbnn_keras.ensemble.voting import checked_priors
from cbnn_keras.export import made_up_inputs
from cbnn_keras.models.keras_internals import is_made_up_name
from cbnn_keras.version import __version__

OUTPUTS = ("probabilities", "class", "top_k", "members", "disagreement")


class ServingOptions(TypedDict, total=False):
    """What all exports can be told.

    Attributes:
        outputs: Which of `"probabilities"`, `"class"` (the predicted one),
            `"top_k"` (two outputs, `top_k_classes` and `top_k_probabilities`),
            `"members"` (probabilities of each member, shape `(batch,
            num_members, num_classes)`) and `"disagreement"` (share of the votes
            that is not for the predicted class). Defaults to
            `["probabilities"]`.
        top_k: How many classes `"top_k"` gives. Defaults to 5, or all classes
            if there are fewer.
        class_names: One name a class. Kept in the artefact's metadata, and
            given instead of numbers by `"class"` and `"top_k"`.
        preprocess: A Keras layer or model that is put in front, such as one
            from bytes of an image to what the model was trained on.
        inputs: `keras.Input`s, in the structure that the model (or
            `preprocess`) is called with: what clients send. Needed for a
            subclassed model and for a layer as `preprocess` whose inputs have
            another shape or dtype than the model's.
        voting: `"soft"` (default) or `"hard"`, see
            `CheckpointEnsemble.predict`.
        priors: Likewise; kept in the artefact's metadata. All outputs follow
            the probabilities that were divided by them, and a member votes in
            `"disagreement"` for the class that it would then predict; only
            `"members"` are what the members themselves say.
        sample_data: Real inputs, in the structure that clients send, to verify
            with; a few are kept in a SavedModel as warm-up requests. Made up
            from what the model's layers expect by default.
        tolerance: The largest difference in any probability that still counts
            as the same. Defaults to 1e-5 in float32, 2e-2 in float16 and 1 in
            int8, where clear decisions count instead.
    """

    outputs: Sequence[str]
    top_k: int
    class_names: Sequence[str] | None
    preprocess: keras.layers.Layer | None
    inputs: Any
    voting: str
    priors: ArrayLike | None
    sample_data: Any
    tolerance: float | None


class ServingGraph:
    """See `ServingOptions` for the arguments.

    Attributes:
        model: Keras model from what clients send to probabilities of the
            ensemble and of the members.
        input_specs: A `tf.TensorSpec` for each input, by its name.
        outputs: What was chosen, in order.
        output_names: Their names, in order: `top_k` has two.
        tolerance: What the user gave.
        has_real_samples: Whether `samples` are the user's.
        metadata: What an artefact says about itself.
    """

    def __init__(
        self,
        ensemble: CheckpointEnsemble,
        *,
        outputs: Sequence[str] = ("probabilities",),
        top_k: int = 5,
        class_names: Sequence[str] | None = None,
        preprocess: keras.layers.Layer | None = None,
        inputs: Any = None,
        voting: str = "soft",
        priors: ArrayLike | None = None,
        sample_data: Any = None,
        tolerance: float | None = None,
    ) -> None:
        num_classes = ensemble.classifier.num_classes
        self.outputs = _checked_outputs(outputs)
        self._top_k = _checked_top_k(top_k, num_classes)
        self._class_names = _checked_class_names(class_names, num_classes)
        self._preprocess = preprocess
        self._voting = voting
        self._priors = checked_priors(voting, priors, ensemble.classifier)
        self._ensemble = ensemble.in_float32()
        members = self._ensemble.member_models()
        self._inputs = _checked_inputs(inputs, preprocess, members[0])
        self.input_specs = _input_specs(
            self._inputs, has_names=inputs is not None
        )
        self.output_names = _flat_names(self.outputs)
        self._check_names()
        self.model = _build_model(
            members,
            self._ensemble,
            preprocess,
            self._inputs,
            voting,
            self._priors,
        )
        self.tolerance = tolerance
        self._sample_data = self._arrays(sample_data)
        self.has_real_samples = sample_data is not None
        self.metadata = {
            "cbnn_keras_version": __version__,
            "members": [int(member["step"]) for member in ensemble.members],
            "votes": [float(vote) for vote in ensemble.votes],
            "voting": voting,
            "priors": None if self._priors is None else self._priors.tolist(),
            "num_classes": num_classes,
            "labels": self._class_names,
            "outputs": list(self.outputs),
            "top_k": self._top_k,
            "has_preprocess": preprocess is not None,
        }

    def function(
        self,
        outputs: Collection[str] | None = None,
        weights: Sequence[keras.Variable] = (),
    ) -> Any:
        """A `tf.function` of one tensor for each input, in their order.

        Args:
            outputs: Others than those of the graph.
            weights: Variables whose values become further arguments.

        Returns:
            A dict of tensors, by output name.
        """
        chosen = self.outputs if outputs is None else outputs
        num_inputs = len(self.input_specs)

        def serve(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
            given = zip(weights, tensors[num_inputs:], strict=True)
            with keras.StatelessScope(state_mapping=list(given)):
                results = self.model(list(tensors[:num_inputs]), training=False)
            return self._derive(results, chosen)

        return tf.function(serve, autograph=False)

    def _derive(
        self, results: dict[str, tf.Tensor], chosen: Collection[str]
    ) -> dict[str, tf.Tensor]:
        probabilities, members = results["probabilities"], results["members"]
        winners = _winners(probabilities)
        found = {}
        if "probabilities" in chosen:
            found["probabilities"] = probabilities
        if "class" in chosen:
            found["class"] = self._named(winners)
        if "top_k" in chosen:
            columns = probabilities
            if self._ensemble.classifier.is_binary:
                columns = tf.concat([1 - probabilities, probabilities], axis=1)
            values, classes = tf.math.top_k(columns, self._top_k)
            found["top_k_classes"] = self._named(tf.cast(classes, tf.int64))
            found["top_k_probabilities"] = values
        if "members" in chosen:
            found["members"] = members
        if "disagreement" in chosen:
            choices = _winners(merging.threshold(members, self._priors))
            agrees = tf.equal(choices, winners[:, tf.newaxis])
            shares = self._ensemble.votes / self._ensemble.votes.sum()
            against = tf.where(agrees, 0.0, shares.astype(np.float32))
            found["disagreement"] = tf.reduce_sum(against, axis=1)
        return found

    def _named(self, classes: tf.Tensor) -> tf.Tensor:
        if self._class_names is None:
            return classes
        return tf.gather(tf.constant(self._class_names), classes)

    def reference(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What the Keras ensemble says, member by member.

        Args:
            inputs: One array for each input.

        Returns:
            All outputs that a graph can have, classes by number, `columns`:
            the probabilities of all classes, also of two, and `choices`: those
            that the members vote by.
        """
        structure = keras.tree.pack_sequence_as(
            self._inputs, [tf.constant(a) for a in inputs.values()]
        )
        if self._preprocess is not None:
            structure = self._preprocess(structure, training=False)
        votes = self._ensemble.votes
        members = np.stack(
            list(self._ensemble.member_probabilities(structure, verbose=0))
        )
        opinions = (
            metrics.one_hot_votes(members)
            if self._voting == "hard"
            else members
        )
        choices = members
        probabilities = metrics.weighted_mean(opinions, votes)
        if self._priors is not None:
            choices = imbalance.threshold(members, self._priors)
            probabilities = imbalance.threshold(probabilities, self._priors)
        winners = metrics.predicted_classes(probabilities)
        columns = probabilities
        if columns.shape[1] == 1:
            columns = np.concatenate([1 - columns, columns], axis=1)
        best = np.argsort(-columns, axis=1, kind="stable")[:, : self._top_k]
        return {
            "probabilities": probabilities,
            "class": winners,
            "columns": columns,
            "top_k_classes": best,
            "top_k_probabilities": np.take_along_axis(columns, best, axis=1),
            "members": members.transpose(1, 0, 2),
            "choices": choices.transpose(1, 0, 2),
            "disagreement": metrics.disagreement(choices, votes, winners),
        }

    def class_numbers(self, classes: np.ndarray) -> np.ndarray:
        """Numbers of classes that outputs may give by name."""
        if self._class_names is None:
            return classes
        numbers = {name: i for i, name in enumerate(self._class_names)}
        texts = np.vectorize(tf.compat.as_str, otypes=[object])(classes)
        return np.vectorize(lambda text: numbers.get(text, -1))(texts)

    def layer_of(self, node: str) -> str:
        """Name of the user's layer that a node of the graph comes from."""
        names = {op.name: op for op in self.model.operations}
        for part in node.split("/"):
            # TensorFlow numbers scopes, as Keras does with layers.
            for name in (re.sub(r"_\d+$", "", part), part):
                if name in names and names[name] is self._preprocess:
                    return name
                if name in names:
                    return re.sub(r"^(shared|member_\d+)_", "", name)
        return node

    def samples(self, num: int) -> dict[str, np.ndarray]:
        """At most `num` inputs, real ones if there are, by input name."""
        if self._sample_data is not None:
            return {k: array[:num] for k, array in self._sample_data.items()}
        arrays = made_up_inputs.plausible_inputs(self.model, num)
        return dict(zip(self.input_specs, arrays, strict=True))

    def _arrays(self, data: Any) -> dict[str, np.ndarray] | None:
        """Data in the structure of the inputs -> an array for each name."""
        return None if data is None else by_name(self, data)

    def _check_names(self) -> None:
        taken = set(self.input_specs) & set(self.output_names)
        if taken:
            raise ValueError(
                f"Export: {', '.join(sorted(taken))} would be the name of both "
                "an input and an output. Give `inputs=keras.Input(..., name="
                '"another")`.'
            )


def trace(function: Any, specs: Sequence[tf.TensorSpec]) -> Any:
    """A concrete function that calls no other.

    Keras puts grouped convolutions into a function that XLA has to compile. In
    ONNX that would be a call of something unknown, and not every server has
    XLA at hand.
    """
    was_eager = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)  # that is: as part of their caller
    try:
        return function.get_concrete_function(*specs)
    finally:
        tf.config.run_functions_eagerly(was_eager)


def by_name(graph: ServingGraph, data: Any) -> dict[str, np.ndarray]:
    """Data in the structure of a graph's inputs -> an array for each name.

    Raises:
        ValueError: If the data do not fit the inputs.
    """
    if isinstance(data, tf.data.Dataset):
        raise ValueError(
            "Export: sample and calibration data are arrays of inputs, in "
            "the structure that the model is called with, not a "
            "tf.data.Dataset. Take some batches: next(iter(dataset.batch(64)))."
        )
    names = list(graph.input_specs)
    if isinstance(data, dict) and set(data) == set(names):
        flat = [data[name] for name in names]
    elif len(names) == 1 and not isinstance(data, dict):
        flat = [data]
    else:
        flat = keras.tree.flatten(data)
    if len(flat) != len(names):
        raise ValueError(
            f"Export: the data have {len(flat)} arrays, but the graph has "
            f"{len(names)} inputs ({', '.join(names)})."
        )
    arrays = {}
    for (name, spec), values in zip(
        graph.input_specs.items(), flat, strict=True
    ):
        dtype = object if spec.dtype == tf.string else spec.dtype.as_numpy_dtype
        array = np.asarray(values).astype(dtype)
        if not spec.shape.is_compatible_with(array.shape):
            raise ValueError(
                f"Export: data for the input {name!r} have the shape "
                f"{array.shape}; the graph takes {tuple(spec.shape)}."
            )
        arrays[name] = array
    if len({len(array) for array in arrays.values()}) > 1 or not len(array):
        raise ValueError(
            "Export: the data need the same number of samples, at least one, "
            "for every input."
        )
    return arrays


def metadata_as_text(metadata: dict[str, Any]) -> dict[str, str]:
    """Each value as JSON, for formats that keep strings."""
    return {key: json.dumps(value) for key, value in metadata.items()}


def _checked_inputs(
    inputs: Any, preprocess: keras.layers.Layer | None, model: keras.Model
) -> Any:
    """What clients send: the user's inputs, or those of the first layers."""
    if preprocess is not None and not isinstance(
        preprocess, keras.layers.Layer
    ):
        raise ValueError(
            "Export: preprocess must be a Keras layer or model, not "
            f"{type(preprocess).__name__}. Wrap a function: "
            "keras.layers.Lambda(function)."
        )
    if inputs is not None:
        return inputs
    has_inputs = getattr(preprocess, "inputs", None)
    return merging.inputs_like(preprocess if has_inputs else model)


def _build_model(
    members: list[keras.Model],
    ensemble: CheckpointEnsemble,
    preprocess: keras.layers.Layer | None,
    inputs: Any,
    voting: str,
    priors: np.ndarray | None,
) -> keras.Model:
    # With names that no layer has; what clients see are the `input_specs`.
    tensors = [
        keras.Input(
            batch_shape=tensor.shape,
            dtype=tensor.dtype,
            name=f"input_of_graph_{number}",
        )
        for number, tensor in enumerate(keras.tree.flatten(inputs))
    ]
    received = keras.tree.pack_sequence_as(inputs, tensors)
    if preprocess is not None:
        received = preprocess(received)
    _check_shapes(members[0], received)
    return merging.merge(
        members,
        ensemble.votes,
        ensemble.classifier,
        voting=voting,
        priors=priors,
        inputs=tensors,
        received=received,
        with_members=True,
    )


def _check_shapes(model: keras.Model, received: Any) -> None:
    """Raises a `ValueError` if a model cannot take what it is to receive."""
    expected = [tensor.shape for tensor in getattr(model, "inputs", None) or []]
    found = [tensor.shape for tensor in keras.tree.flatten(received)]
    if not expected:  # of a subclassed model, which says so itself
        return
    fits = len(expected) == len(found) and all(
        tf.TensorShape(e).is_compatible_with(f)
        for e, f in zip(expected, found, strict=True)
    )
    if not fits:
        raise ValueError(
            f"Export: the model takes inputs of shape {expected}, but "
            f"`preprocess` or `inputs` give it {found}."
        )


def _input_specs(inputs: Any, *, has_names: bool) -> dict[str, tf.TensorSpec]:
    """Names are the user's; those that Keras made up become `input`.

    Args:
        inputs: In the structure that the model is called with.
        has_names: Whether they were given for the export: then their own names
            count and not the keys of a dict.
    """
    tensors = keras.tree.flatten(inputs)
    names = [t.name for t in tensors]
    if isinstance(inputs, dict) and len(inputs) == len(tensors):
        names = [  # in the order in which Keras flattens
            name if has_names and not is_made_up_name(name) else key
            for key, name in zip(sorted(inputs), names, strict=True)
        ]
    unnamed = [i for i, name in enumerate(names) if is_made_up_name(name)]
    for number, index in enumerate(unnamed):
        name = "input" if len(unnamed) == 1 else f"input_{number}"
        while name in names:
            name += "_"
        names[index] = name
    return {
        name: tf.TensorSpec(tensor.shape, tf.as_dtype(tensor.dtype), name=name)
        for name, tensor in zip(names, tensors, strict=True)
    }


def _winners(probabilities: tf.Tensor) -> tf.Tensor:
    if probabilities.shape[-1] == 1:
        return tf.cast(probabilities[..., 0] > 0.5, tf.int64)
    return tf.argmax(probabilities, axis=-1)


def _checked_outputs(outputs: Sequence[str]) -> tuple[str, ...]:
    chosen = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    unknown = [name for name in chosen if name not in OUTPUTS]
    if unknown or not chosen or len(set(chosen)) != len(chosen):
        raise ValueError(
            f"Export: outputs={list(chosen)}; choose, each once, from "
            f"{', '.join(OUTPUTS)}."
        )
    return tuple(name for name in OUTPUTS if name in chosen)


def _flat_names(outputs: Sequence[str]) -> list[str]:
    pair = ["top_k_classes", "top_k_probabilities"]
    return [
        name
        for output in outputs
        for name in (pair if output == "top_k" else [output])
    ]


def _checked_top_k(top_k: int, num_classes: int) -> int:
    if top_k < 1:
        raise ValueError(f"Export: top_k={top_k}; at least 1.")
    return min(top_k, num_classes)


def _checked_class_names(
    class_names: Sequence[str] | None, num_classes: int
) -> list[str] | None:
    if class_names is None:
        return None
    if isinstance(class_names, str):
        raise ValueError("Export: class_names is a list of names, not a text.")
    names = [str(name) for name in class_names]
    if len(names) != num_classes or len(set(names)) != len(names):
        raise ValueError(
            f"Export: {len(names)} class_names, {len(set(names))} of them "
            f"different, for {num_classes} classes."
        )
    return names
