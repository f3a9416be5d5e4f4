"""Data without a sample, and data that have other samples in every pass."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import blobs, dense_model, memory_ensemble

# Keras says so first, of what it predicts from.
pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")

X, Y = blobs(10)
NONE = "there are no samples. Give at least one"


@pytest.fixture(scope="module")
def ensemble():
    return memory_ensemble(dense_model(), [1.0, 2.0])


def batches(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays).batch(4)


def filtered_away(*arrays):
    """Of a length that is known only once it was read."""
    return batches(*arrays).filter(lambda *arrays: False)


def changing(lengths, *arrays):
    """Of another length in every pass: first, second, ..., last for ever."""
    lengths = list(lengths)

    def generate():
        length = lengths.pop(0) if len(lengths) > 1 else lengths[0]
        yield from zip(*(array[:length] for array in arrays), strict=True)

    specs = tuple(tf.TensorSpec(a.shape[1:], a.dtype) for a in arrays)
    return tf.data.Dataset.from_generator(generate, output_signature=specs)


EMPTY_INPUTS = {
    "array": X[:0],
    "list": [],
    "dict": {"a": X, "b": X[:0]},
    "dataset": batches(X).take(0),
    "filtered": filtered_away(X),
}


@pytest.mark.parametrize("kind", EMPTY_INPUTS)
@pytest.mark.parametrize(
    "method", ["predict", "staged_predict", "member_probabilities"]
)
def test_nothing_to_predict(ensemble, method, kind):
    with pytest.raises(ValueError, match=f"^The inputs: {NONE}"):
        getattr(ensemble, method)(EMPTY_INPUTS[kind], verbose=0)


EMPTY_DATA = {
    "arrays": (X[:0], Y[:0]),
    "one-hot": (X[:0], np.zeros((0, 3))),
    "dataset": (batches(X, Y).take(0),),
    "filtered": (filtered_away(X, Y),),
    "empty batch": (tf.data.Dataset.from_tensors((X[:0], Y[:0])),),
}


@pytest.mark.parametrize("kind", EMPTY_DATA)
def test_nothing_to_evaluate_or_to_select_on(ensemble, kind):
    data = EMPTY_DATA[kind]
    with pytest.raises(ValueError, match=rf"^evaluate\(\): {NONE}"):
        ensemble.evaluate(*data, verbose=0)
    data = data if len(data) == 2 else data[0]
    message = rf"^select\(validation_data=\.\.\.\): {NONE}"
    with pytest.raises(ValueError, match=message):
        ensemble.select(validation_data=data, verbose=0)


def test_labels_alone_missing_are_another_matter(ensemble):
    with pytest.raises(ValueError, match="0 labels for inputs of length 10"):
        ensemble.evaluate(X, Y[:0], verbose=0)


def test_inputs_of_another_length_in_every_pass(ensemble):
    shrinking = changing(range(10, 1, -1), X).batch(4)
    message = (
        r"^The inputs: one pass gave \d+ samples and the next \d+, but each "
        "member predicts in a pass of its own.*same in every pass"
    )
    with pytest.raises(ValueError, match=message):
        ensemble.predict(shrinking, verbose=0)
    with pytest.raises(ValueError, match=message):
        list(ensemble.staged_predict(shrinking, verbose=0))


@pytest.mark.parametrize(
    ("lengths", "numbers"),
    [
        ((10, 9), "10 samples and the next 9"),  # already for the labels
        ((9, 10), "9 samples and the next 10"),
        ((10, 10, 9), "10 samples and the next 9"),  # members agree
    ],
    ids=str,
)
def test_labelled_data_of_another_length_in_a_later_pass(
    ensemble, lengths, numbers
):
    data = changing(lengths, X, Y).batch(4)
    with pytest.raises(ValueError, match=rf"^evaluate\(\): .* {numbers}"):
        ensemble.evaluate(data, verbose=0)
    data = changing(lengths, X, Y).batch(4)
    with pytest.raises(ValueError, match=rf"^select\(.*\): .* {numbers}"):
        ensemble.select(validation_data=data, verbose=0)
