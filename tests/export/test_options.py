"""What exports can be told: each option is checked once, and here."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from cbnn_keras.export import (
    ServingOptions,
    export_onnx,
    export_saved_model,
    export_triton,
)
from cbnn_keras.models.classifier import Classifier

THREE = Classifier(3, is_binary=False, from_logits=False)
DATASET = tf.data.Dataset.from_tensor_slices(np.zeros((8, 4))).batch(4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"outputs": []},
            r"^outputs must be chosen, each once, from probabilities, class, "
            r"top_k, set, members, disagreement, members_used; received "
            r"\[\]\.$",
        ),
        ({"outputs": "logits"}, r"received \['logits'\]"),
        ({"outputs": ["class", "scores"]}, r"received \['class', 'scores'\]"),
        ({"outputs": ["class", "class"]}, "each once"),
        ({"outputs": ["top_k_classes"]}, r"received \['top_k_classes'\]"),
        ({"top_k": 0}, "top_k.*integer of at least 1"),
        ({"top_k": -3}, "top_k.*integer of at least 1"),
        ({"top_k": 2.5}, "top_k.*integer of at least 1"),
        ({"top_k": True}, "top_k.*integer of at least 1"),
        ({"tolerance": -1e-9}, "tolerance.*number of at least 0"),
        ({"tolerance": float("nan")}, "tolerance.*number of at least 0"),
        ({"tolerance": "small"}, "tolerance.*number of at least 0"),
        (
            {"class_names": "abc"},
            r"^class_names must be a list with one name per class, not the "
            r"text 'abc'\.$",
        ),
        (
            {"class_names": ["a", "b", "a"]},
            r"^class_names must differ from each other, but 'a' is there 2 "
            r"times\.$",
        ),
        ({"class_names": [1, "1"]}, "^class_names must differ .* '1' is there"),
        (
            {"preprocess": np.tanh},
            r"^preprocess must be a Keras layer or model, not ufunc\. Wrap a "
            r"function: keras\.layers\.Lambda\(function\)\.$",
        ),
        ({"preprocess": "model.keras"}, "^preprocess must be .* not str"),
        ({"preprocess": keras.layers.Rescaling}, "preprocess .* not type"),
        (
            {"inputs": np.zeros(4)},
            r"^inputs must be keras\.Input\(\.\.\.\), in the structure that "
            r"the model is called with, not ndarray\. Real inputs to verify "
            r"with are `sample_data`\.$",
        ),
        (
            {"sample_data": DATASET},
            r"^sample_data must be arrays of inputs, in the structure that the "
            r"model is called with, not a tf\.data\.Dataset\. Take some "
            r"batches: next\(iter\(dataset\.batch\(64\)\)\)\.$",
        ),
    ],
)
def test_what_cannot_be_right_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ServingOptions(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"class_names": ["a", "b"]},
            r"^class_names must have one name per class, 3 in all, not 2\.$",
        ),
        ({"class_names": []}, "one name per class, 3 in all, not 0"),
        ({"voting": "loud"}, "^voting must be 'soft' or 'hard', not 'loud'"),
        ({"priors": [1, 1]}, r"^priors have the shape \(2,\), but there are 3"),
        ({"priors": [1, 0, 1]}, "^priors must be positive .* class 1 has 0"),
        (
            {"priors": [1, 2, 1], "voting": "hard"},
            "^priors are for voting='soft'",
        ),
    ],
)
def test_what_does_not_fit_the_classes_is_refused(options, message):
    options = ServingOptions(**options)
    with pytest.raises(ValueError, match=message):
        options.fitted_to(THREE)


def test_options_are_fitted_to_the_classes():
    names = ["a", "b", "c"]
    options = ServingOptions(class_names=names, priors=[10, 20, 10])
    fitted = options.fitted_to(THREE)
    assert (options.top_k, fitted.top_k) == (5, 3)
    assert fitted.priors.tolist() == [0.25, 0.5, 0.25]
    assert fitted.fitted_to(THREE).metadata() == fitted.metadata()


def test_options_are_kept_as_they_were_given():
    names = [10, 20]
    options = ServingOptions(
        outputs=iter(["top_k", "class"]), class_names=names, tolerance=0
    )
    names.append(30)
    assert options.outputs == ("class", "top_k")
    assert options.class_names == ("10", "20")
    assert options.output_names == [
        *("class", "top_k_classes", "top_k_probabilities")
    ]
    assert ServingOptions(outputs="members").outputs == ("members",)
    with pytest.raises(AttributeError, match="top_k"):
        options.top_k = 3


def test_an_artefact_says_its_options():
    options = ServingOptions(
        outputs=["class", "top_k"],
        class_names=["a", "b", "c"],
        top_k=2,
        priors=np.array([1, 2, 1]),
    ).fitted_to(THREE)
    metadata = options.metadata()
    assert metadata == {
        "voting": "soft",
        "priors": [0.25, 0.5, 0.25],
        "labels": ["a", "b", "c"],
        "outputs": ["class", "top_k"],
        "top_k": 2,
        "has_preprocess": False,
    }
    read = ServingOptions.of_artefact(metadata, tolerance=0.5)
    assert read.fitted_to(THREE).metadata() == metadata
    assert read.tolerance == 0.5


def test_numbers_of_classes_that_have_names():
    options = ServingOptions(class_names=["a cat", "größer", "猫"])
    texts = np.array([["猫".encode(), b"a cat"], ["größer", "dog"]], object)
    assert options.class_numbers(texts).tolist() == [[2, 0], [1, -1]]
    numbers = np.array([1, 7])
    assert ServingOptions().class_numbers(numbers) is numbers


@pytest.mark.parametrize(
    "export", [export_onnx, export_saved_model, export_triton]
)
def test_a_misspelled_option_is_named(export, tmp_path):
    with pytest.raises(
        TypeError,
        match=r"^Exports have no option 'class_name'\. Did you mean "
        r"'class_names'\? The options are outputs, top_k, class_names, .*"
        r"tolerance, allow_unfinished; see ServingOptions\.$",
    ):
        export(None, tmp_path / "new/a", class_name=["a", "b"])
    with pytest.raises(TypeError, match=r"no option 'x'\. The options are"):
        export(None, tmp_path / "new/a", x=1)
    # Neither is a wrong value found after minutes of work.
    with pytest.raises(ValueError, match="^outputs must be chosen"):
        export(None, tmp_path / "new/a", outputs=["logits"])
    assert not any(tmp_path.iterdir())


def test_a_word_is_no_calibration():
    message = r"calibrated='no'\): must be True, False, or what `ensemble"
    with pytest.raises(ValueError, match=message):
        ServingOptions(calibrated="no")
