"""An ensemble as one function with named inputs and outputs.

Every format is made from the same `ServingGraph`, and compared with what the
graph's `reference` says, which is computed by another way.
"""

import dataclasses
import functools
import re
from collections.abc import Collection, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras.calibration import CalibrationRecord, Scaling
from cbnn_keras.ensemble import CheckpointEnsemble, merging
from cbnn_keras.ensemble.adjusting import adjusted_tensors
from cbnn_keras.ensemble.predicting import needed_threshold
from cbnn_keras.export import cascade_option, made_up_inputs
from cbnn_keras.export.cascade_graph import (
    CascadeGraph,
    Marks,
    skip_if_decided,
)
from cbnn_keras.export.options import ServingOptions
from cbnn_keras.export.reference import reference
from cbnn_keras.models.keras_internals import is_made_up_name
from cbnn_keras.support.aliases import Json
from cbnn_keras.version import __version__


class ServingGraph:
    """An ensemble with all that an export was told.

    Args:
        ensemble: What to export.
        options: What the export was told.

    Attributes:
        options: The options, fitted to the ensemble.
        calibration: What the probabilities are calibrated by, or None.
        model: Keras model from what clients send to probabilities of the
            ensemble and of the members, all of which it computes.
        input_specs: A `tf.TensorSpec` for each input, by its name.
        reference: What the Keras ensemble says, without the `model`, as a
            function of arrays by input name.
        has_real_samples: Whether the `samples` are the user's.

    Raises:
        ValueError: If the options do not fit the ensemble.
    """

    def __init__(
        self, ensemble: CheckpointEnsemble, options: ServingOptions
    ) -> None:
        _check_backend()
        options = options.fitted_to(ensemble.classifier)
        self._ensemble = ensemble.in_float32()
        self.calibration = _calibration(ensemble, options)
        if options.cascade is not None:
            cascade = cascade_option.fitted(
                options.cascade, ensemble, self._scaling
            )
            options = dataclasses.replace(options, cascade=cascade)
        self.options = options
        members = self._ensemble.member_models()
        inputs = options.inputs
        if inputs is None:  # what the first layers take
            front = options.preprocess
            has_inputs = getattr(front, "inputs", None)
            inputs = merging.inputs_like(front if has_inputs else members[0])
        self.input_specs = _input_specs(
            inputs, has_names=options.inputs is not None
        )
        taken = set(self.input_specs) & set(options.output_names)
        if taken:
            raise ValueError(
                f"{', '.join(sorted(taken))} would be the name of both an "
                "input and an output. Give the input another one: "
                'inputs=keras.Input(..., name="another").'
            )
        self.model = self._merged(members, inputs)
        self._cascade = None
        if options.cascade is not None:
            self._cascade = CascadeGraph(
                self.model,
                options.cascade,
                [record.step for record in ensemble.rounds],
                self._ensemble.votes,
                priors=options.priors,
                scaling=self._scaling,
                voting=options.voting,
            )
        self.reference = functools.partial(
            reference, self._ensemble, options, self.calibration, inputs
        )
        self._sample_data = None
        if options.sample_data is not None:
            self._sample_data = by_name(self.input_specs, options.sample_data)
        self.has_real_samples = options.sample_data is not None

    def _merged(self, members: list[keras.Model], inputs: Any) -> keras.Model:
        options = self.options
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
        if options.preprocess is not None:
            received = options.preprocess(received)
        if options.preprocess is not None or options.inputs is not None:
            _check_shapes(members[0], received)
        return merging.merge(
            members,
            self._ensemble.votes,
            self._ensemble.classifier,
            voting=options.voting,
            scaling=self._scaling,
            priors=options.priors,
            inputs=tensors,
            received=received,
            with_members=True,
        )

    @property
    def _scaling(self) -> Scaling | None:
        found = self.calibration
        return None if found is None else found.scaling

    def metadata(self, precision: str = "float32") -> Json:
        """What an artefact says about itself, as JSON can hold it.

        Args:
            precision: What the artefact computes in.
        """
        ensemble = self._ensemble
        calibration = {}
        if self.calibration is not None:
            said = self.calibration.to_json()
            said = {k: said[k] for k in said.keys() - {"members", "votes"}}
            calibration["calibration"] = said
        return {
            "cbnn_keras_version": __version__,
            "members": [record.step for record in ensemble.rounds],
            "votes": [float(vote) for vote in ensemble.votes],
            "num_classes": ensemble.classifier.num_classes,
            "precision": precision,
            **self.options.metadata(),
            **calibration,
        }

    def function(
        self,
        outputs: Collection[str] | None = None,
        weights: Sequence[keras.Variable] = (),
        is_flat: bool = False,
    ) -> Any:
        """A `tf.function` of one tensor for each input, in their order.

        Args:
            outputs: Which outputs to compute, instead of those of the options.
            weights: Variables whose values become further arguments.
            is_flat: Whether a cascade computes all and marks its branches, see
                `cascade_graph.Marks`.

        Returns:
            A dict of tensors, by output name, and the marks if it is flat.
        """
        chosen = self.options.outputs if outputs is None else outputs
        num_inputs = len(self.input_specs)

        def serve(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
            given = zip(weights, tensors[num_inputs:], strict=True)
            inputs, marks = list(tensors[:num_inputs]), Marks()
            with keras.StatelessScope(state_mapping=list(given)):
                if self._cascade is None:
                    results = self.model(inputs, training=False)
                else:
                    branch = marks if is_flat else skip_if_decided
                    results = self._cascade(inputs, branch)
            return self._derive(results, chosen) | marks.tensors

        return tf.function(serve, autograph=False)

    def _derive(
        self, results: dict[str, tf.Tensor], chosen: Collection[str]
    ) -> dict[str, tf.Tensor]:
        """The chosen outputs from those of the merged model or a cascade."""
        probabilities = results["probabilities"]
        found = {}
        if "probabilities" in chosen:
            found["probabilities"] = probabilities
        if "class" in chosen:
            found["class"] = self._named(_predicted_classes(probabilities))
        columns = probabilities
        if self._ensemble.classifier.is_binary:
            columns = tf.concat([1 - probabilities, probabilities], axis=1)
        if "top_k" in chosen:
            values, best = tf.math.top_k(columns, self.options.top_k)
            found["top_k_classes"] = self._named(tf.cast(best, tf.int64))
            found["top_k_probabilities"] = values
        if "set" in chosen:
            found["set"] = columns >= needed_threshold(self.calibration)
        if "members_used" in chosen:
            found["members_used"] = results["members_used"]
        if "members" in chosen:
            found["members"] = tf.stack(results["members"], axis=1)
        if "disagreement" in chosen:
            classes = _predicted_classes(probabilities)
            members = tf.stack(results["members"], axis=1)
            found["disagreement"] = self._disagreement(members, classes)
        return found

    def _disagreement(self, members: tf.Tensor, classes: tf.Tensor) -> Any:
        """The share of votes that is not for the predicted classes."""
        opinions = adjusted_tensors(members, self._scaling, self.options.priors)
        agrees = tf.equal(_predicted_classes(opinions), classes[:, tf.newaxis])
        shares = self._ensemble.votes / self._ensemble.votes.sum()
        against = tf.where(agrees, 0.0, shares.astype(np.float32))
        return tf.reduce_sum(against, axis=1)

    def _named(self, classes: tf.Tensor) -> tf.Tensor:
        if self.options.class_names is None:
            return classes
        return tf.gather(tf.constant(self.options.class_names), classes)

    def layer_of(self, node: str) -> str:
        """The name of the user's layer that a node of the graph comes from."""
        names = {op.name: op for op in self.model.operations}
        for part in node.split("/"):
            # TensorFlow numbers scopes, as Keras does with layers.
            for name in (re.sub(r"_\d+$", "", part), part):
                if name in names and names[name] is self.options.preprocess:
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


def _calibration(
    ensemble: CheckpointEnsemble, options: ServingOptions
) -> CalibrationRecord | None:
    """What the probabilities are calibrated by, of an ensemble or as given."""
    found: CalibrationRecord | None
    if isinstance(options.calibrated, CalibrationRecord):
        found = options.calibrated
        steps = [record.step for record in ensemble.rounds]
        if not found.holds_for(steps, ensemble.votes):
            raise ValueError(
                "calibrated=...: this was found for other members or votes. "
                "Calibrate what is exported."
            )
    elif options.voting == "soft" and options.calibrated:
        found = ensemble.calibration
    else:
        found = None
    if "set" in options.outputs:
        needed_threshold(found)
    return found


def _check_backend() -> None:
    name = keras.backend.backend()
    if name != "tensorflow":
        raise ValueError(
            "Exports are graphs of TensorFlow, and this process computes with "
            f"{name}. A run exports whatever it was trained with: `cbnn export "
            "RUN` on the command line, or in a process with "
            "KERAS_BACKEND=tensorflow, export_onnx(CheckpointEnsemble.load("
            "directory), path)."
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


def by_name(
    input_specs: dict[str, tf.TensorSpec], data: Any
) -> dict[str, np.ndarray]:
    """Data in the structure of a graph's inputs as an array for each name.

    Args:
        input_specs: The inputs of the graph.
        data: Arrays in the structure that clients send, or by input name.

    Raises:
        ValueError: If the data do not fit the inputs.
    """
    names = list(input_specs)
    if isinstance(data, dict) and set(data) == set(names):
        flat = [data[name] for name in names]
    elif len(names) == 1 and not isinstance(data, dict):
        flat = [data]
    else:
        flat = keras.tree.flatten(data)
    if len(flat) != len(names):
        raise ValueError(
            f"The data have {len(flat)} arrays, but the graph has {len(names)} "
            f"inputs ({', '.join(names)})."
        )
    arrays = {}
    for (name, spec), values in zip(input_specs.items(), flat, strict=True):
        dtype = object if spec.dtype == tf.string else spec.dtype.as_numpy_dtype
        array = np.asarray(values).astype(dtype)
        if not spec.shape.is_compatible_with(array.shape):
            raise ValueError(
                f"The data for the input {name!r} have the shape "
                f"{array.shape}, but the graph takes {tuple(spec.shape)}."
            )
        arrays[name] = array
    if len({len(array) for array in arrays.values()}) > 1 or not len(array):
        raise ValueError(
            "The data must have the same number of samples, at least one, for "
            "every input."
        )
    return arrays


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
            f"The model takes inputs of shape {expected}, but `preprocess` or "
            f"`inputs` give it {found}."
        )


def _input_specs(inputs: Any, *, has_names: bool) -> dict[str, tf.TensorSpec]:
    """A spec for each input, by the name that clients know it by.

    Names are the user's; those that Keras made up become `input`.

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


def _predicted_classes(probabilities: tf.Tensor) -> tf.Tensor:
    """`metrics.predicted_classes` of tensors."""
    if probabilities.shape[-1] == 1:
        return tf.cast(probabilities[..., 0] > 0.5, tf.int64)
    return tf.argmax(probabilities, axis=-1)
