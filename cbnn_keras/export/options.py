"""What every export can be told, checked in one place."""

import collections
import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from cbnn_keras.calibration import CalibrationRecord
from cbnn_keras.ensemble.voting import checked_priors
from cbnn_keras.export import cascade_option
from cbnn_keras.models.classifier import Classifier
from cbnn_keras.support import arguments
from cbnn_keras.support.aliases import Json, Keywords

OUTPUTS = (
    *("probabilities", "class", "top_k", "set", "members", "disagreement"),
    "members_used",
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ServingOptions:
    """What all exports can be told, as keyword arguments.

    `export_onnx(ensemble, path, outputs="class", class_names=names)`

    Args:
        outputs: Which of `"probabilities"`, `"class"` (the predicted one),
            `"top_k"` (two outputs, `top_k_classes` and `top_k_probabilities`),
            `"set"` (whether each class is in the set of
            `CheckpointEnsemble.prediction_sets`), `"members"` (probabilities of
            each member, shape `(batch, num_members, num_classes)`),
            `"disagreement"` (share of the votes that is not for the predicted
            class) and `"members_used"` (how many a cascade asked). Defaults to
            `["probabilities"]`.
        top_k: How many classes `"top_k"` gives. Defaults to 5, or all classes
            if there are fewer.
        class_names: One name per class. Kept in the artefact's metadata, and
            given instead of numbers by `"class"` and `"top_k"`. Defaults to
            those that the run remembers, if any.
        preprocess: A Keras layer or model that is put in front, such as one
            from bytes of an image to what the model was trained on.
        inputs: `keras.Input`s, in the structure that the model (or
            `preprocess`) is called with: what clients send. Needed for a
            subclassed model and for a layer as `preprocess` whose inputs have
            another shape or dtype than the model's.
        voting: `"soft"` (default) or `"hard"`, see
            `CheckpointEnsemble.predict`.
        priors: Shares of the classes in training that the probabilities are
            divided by, see `CheckpointEnsemble.predict`; kept in the artefact's
            metadata. All outputs follow the probabilities that were divided by
            them, and a member votes in `"disagreement"` for the class that it
            would then predict; only `"members"` are what the members themselves
            say.
        calibrated: Whether what `CheckpointEnsemble.calibrate` found is
            applied, if there is something: to all outputs but `"members"`. Kept
            in the artefact's metadata. Defaults to True. Or what `calibrate`
            gave for these members and votes, to apply just that.
        cascade: Members are asked one after another, and a sample leaves when
            it needs no more; it gets the mean of those that were asked.
            `"exact"`: when no vote of the others can change the predicted
            class, so that all predicted classes are the ensemble's. A number
            below 1: also when the mean so far gives a class this much. Or what
            `ensemble.cascade(validation_data)` has chosen. Defaults to None:
            all members are asked.
        sample_data: Real inputs, in the structure that clients send, to verify
            with; a few are kept in a SavedModel as warm-up requests. Made up
            from what the model's layers expect by default.
        tolerance: The largest difference in any probability that still counts
            as the same. Defaults to 1e-5 in float32, 2e-2 in float16 and 1 in
            int8, where the predicted classes of clear samples count instead.
        allow_unfinished: Whether to export the members so far of a run that
            was interrupted or is still being trained. Defaults to False: such
            a run is refused.

    Raises:
        ValueError: If an option cannot be right, whatever the ensemble.
    """

    outputs: Sequence[str] = ("probabilities",)
    top_k: int = 5
    class_names: Sequence[str] | None = None
    preprocess: keras.layers.Layer | None = None
    inputs: Any = None
    voting: str = "soft"
    priors: ArrayLike | None = None
    calibrated: bool | CalibrationRecord = True
    cascade: Any = None  # a `Cascade` once it is checked, or None
    sample_data: Any = None
    tolerance: float | None = None
    allow_unfinished: bool = False

    def __post_init__(self) -> None:
        owner = type(self).__name__
        checked: Keywords = {
            "outputs": _checked_outputs(self.outputs),
            "top_k": arguments.integer(owner, "top_k", self.top_k),
        }
        if not isinstance(self.calibrated, (bool, np.bool_, CalibrationRecord)):
            raise ValueError(
                f"{owner}(calibrated={self.calibrated!r}): must be True, "
                "False, or what `ensemble.calibrate` gave."
            )
        if self.preprocess is not None:
            _check_preprocess(self.preprocess)
        if self.inputs is not None:
            _check_inputs(self.inputs)
        if self.sample_data is not None:
            check_data("sample_data", self.sample_data)
        if self.class_names is not None:
            checked["class_names"] = _checked_names(self.class_names)
        checked["cascade"] = cascade_option.checked(
            self.cascade, checked["outputs"], self.voting, self.priors
        )
        if self.tolerance is not None:
            checked["tolerance"] = arguments.number(
                owner,
                "tolerance",
                self.tolerance,
                at_least=0,
                allowed="a number of at least 0",
            )
        for name, value in checked.items():  # in place of what was given
            object.__setattr__(self, name, value)

    @classmethod
    def from_keywords(cls, given: Mapping[str, Any]) -> Self:
        """The options that a function received as keyword arguments.

        Raises:
            TypeError: If there is no option of a name; says which there are.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                raise TypeError(
                    f"Exports have no option {name!r}.{hint} The options are "
                    f"{', '.join(known)}; see {cls.__name__}."
                )
        return cls(**given)

    def named(self, class_names: Sequence[str] | None) -> Self:
        """With names that a run remembers, if none were given."""
        if self.class_names is not None or class_names is None:
            return self
        return dataclasses.replace(self, class_names=class_names)

    @classmethod
    def of_artefact(
        cls, metadata: Mapping[str, Any], **client_side: Any
    ) -> Self:
        """The options that an artefact was exported with.

        Args:
            metadata: What the artefact says about itself.
            **client_side: The options that it does not say.
        """
        calibration = metadata.get("calibration")
        return cls(
            outputs=metadata["outputs"],
            top_k=metadata["top_k"],
            class_names=metadata["labels"],
            voting=metadata["voting"],
            priors=metadata["priors"],
            calibrated=calibration is not None
            and CalibrationRecord(
                members=metadata["members"],
                votes=metadata["votes"],
                **calibration,
            ),
            cascade=cascade_option.of_metadata(metadata),
            **client_side,
        )

    def fitted_to(self, classifier: Classifier) -> Self:
        """The same options for an ensemble, with its number of classes.

        Raises:
            ValueError: If `class_names` or `priors` do not fit the classes, or
                `outputs`, `voting` and `priors` each other.
        """
        num_classes = classifier.num_classes
        names = self.class_names
        if names is not None and len(names) != num_classes:
            raise ValueError(
                f"class_names must have one name per class, {num_classes} in "
                f"all, not {len(names)}."
            )
        if "set" in self.outputs and (
            self.voting != "soft"
            or self.priors is not None
            or not self.calibrated
        ):
            raise ValueError(
                "outputs='set' is of calibrated probabilities: it goes with "
                "voting='soft', and neither with priors nor calibrated=False."
            )
        is_record = isinstance(self.calibrated, CalibrationRecord)
        if is_record and self.voting != "soft":
            raise ValueError(
                "calibrated=...: calibration is for voting='soft'; the "
                "outputs of voting='hard' are shares of votes. Leave one of "
                "the two out."
            )
        return dataclasses.replace(
            self,
            top_k=min(self.top_k, num_classes),
            priors=checked_priors(self.voting, self.priors, classifier),
        )

    @property
    def output_names(self) -> list[str]:
        """The names of the graph's outputs, in order: `"top_k"` has two."""
        pair = ["top_k_classes", "top_k_probabilities"]
        return [
            name
            for output in self.outputs
            for name in (pair if output == "top_k" else [output])
        ]

    def class_numbers(self, classes: np.ndarray) -> np.ndarray:
        """The numbers of classes that outputs may give by name.

        A text that is the name of no class gets the number -1.
        """
        if self.class_names is None:
            return classes
        numbers = {name: i for i, name in enumerate(self.class_names)}
        texts = np.vectorize(tf.compat.as_str, otypes=[object])(classes)
        return np.vectorize(lambda text: numbers.get(text, -1))(texts)

    def metadata(self) -> Json:
        """What an artefact says about its options, as JSON can hold it."""
        names, priors = self.class_names, self.priors
        return {
            "voting": self.voting,
            "priors": None if priors is None else np.asarray(priors).tolist(),
            "labels": None if names is None else list(names),
            "outputs": list(self.outputs),
            "top_k": self.top_k,
            "has_preprocess": self.preprocess is not None,
            **cascade_option.to_metadata(self.cascade),
        }


def check_data(name: str, data: Any) -> None:
    """Raises a `ValueError` for a dataset where arrays are needed.

    Args:
        name: What the argument is called.
        data: Its value.
    """
    if isinstance(data, tf.data.Dataset):
        raise ValueError(
            f"{name} must be arrays of inputs, in the structure that the model "
            "is called with, not a tf.data.Dataset. Take some batches: "
            "next(iter(dataset.batch(64)))."
        )


def _checked_outputs(outputs: Sequence[str]) -> tuple[str, ...]:
    """The chosen outputs in the order of `OUTPUTS`."""
    chosen = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    unknown = [name for name in chosen if name not in OUTPUTS]
    if unknown or not chosen or len(set(chosen)) != len(chosen):
        raise ValueError(
            f"outputs must be chosen, each once, from {', '.join(OUTPUTS)}; "
            f"received {list(chosen)}."
        )
    return tuple(name for name in OUTPUTS if name in chosen)


def _checked_names(class_names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(class_names, str):
        raise ValueError(
            "class_names must be a list with one name per class, not the text "
            f"{class_names!r}."
        )
    names = tuple(str(name) for name in class_names)
    [(name, count)] = collections.Counter(names).most_common(1) or [("", 1)]
    if count > 1:
        raise ValueError(
            f"class_names must differ from each other, but {name!r} is there "
            f"{count} times."
        )
    return names


def _check_preprocess(preprocess: Any) -> None:
    if not isinstance(preprocess, keras.layers.Layer):
        raise ValueError(
            "preprocess must be a Keras layer or model, not "
            f"{type(preprocess).__name__}. Wrap a function: "
            "keras.layers.Lambda(function)."
        )


def _check_inputs(inputs: Any) -> None:
    for tensor in keras.tree.flatten(inputs):
        if not isinstance(tensor, keras.KerasTensor):
            raise ValueError(
                "inputs must be keras.Input(...), in the structure that the "
                f"model is called with, not {type(tensor).__name__}. Real "
                "inputs to verify with are `sample_data`."
            )
