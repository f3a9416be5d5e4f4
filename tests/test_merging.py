"""Tests of members merged into one ordinary Keras model."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import Undescribed, blobs, dense_model, text_model

from cbnn_keras import CheckpointEnsemble, merging
from cbnn_keras.classifier import Classifier
from cbnn_keras.run import MemoryRun

X, _ = blobs(40)
TEXTS = np.array(["blue red", "pink", "green blue red", "red"])


def ensemble_of(model, votes, classifier):
    """Members with random weights."""
    run = MemoryRun(
        {
            "num_classes": classifier.num_classes,
            "is_binary": classifier.is_binary,
            "from_logits": classifier.from_logits,
            "num_samples": 8,
            "settings": {"deviation_rate": 0.01, "expected_error": 0.05},
        }
    )
    generator = np.random.default_rng(1)
    kept = model.get_weights()
    for step, vote in enumerate(votes, start=1):
        model.set_weights([w + generator.normal(0, 0.5, w.shape) for w in kept])
        record = {"step": step, "vote": vote, "is_final": False}
        run.add_round(record, np.ones(8, dtype=bool), model)
    model.set_weights(kept)
    return CheckpointEnsemble(run, model)


def two_inputs(structure):
    inputs = [keras.Input((2,), name=name) for name in ("left", "right")]
    joined = keras.ops.concatenate(inputs, axis=1)
    outputs = keras.layers.Dense(3, activation="softmax")(joined)
    if structure is dict:
        inputs = {tensor.name: tensor for tensor in inputs}
    return keras.Model(inputs, outputs)


def deferred_model():
    """Learns the shape of its input when it is called."""
    model = keras.Sequential(
        [
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model(X[:2])
    return model


def mixed_model():
    keras.config.set_dtype_policy("mixed_bfloat16")
    return dense_model()


def nested_model():
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(3, activation="softmax")(dense_model()(inputs))
    return keras.Model(inputs, outputs)


def last_layer(units, activation=None):
    layer = keras.layers.Dense(units, activation=activation)
    return keras.Sequential([keras.Input((4,)), layer])


SOFTMAX = Classifier(3, is_binary=False, from_logits=False)
BINARY = Classifier(2, is_binary=True, from_logits=False)
CASES = {
    "sequential": (dense_model, X, SOFTMAX),
    "deferred": (deferred_model, X, SOFTMAX),
    "nested": (nested_model, X, SOFTMAX),
    "list": (lambda: two_inputs(list), [X[:, :2], X[:, 2:]], SOFTMAX),
    "dict": (
        lambda: two_inputs(dict),
        {"right": X[:, 2:], "left": X[:, :2]},
        SOFTMAX,
    ),
    "text": (text_model, TEXTS, SOFTMAX),
    "binary": (lambda: last_layer(1, "sigmoid"), X, BINARY),
    "logits": (lambda: last_layer(3), X, Classifier(3, False, True)),
    "binary logits": (lambda: last_layer(1), X, Classifier(2, True, True)),
    "mixed precision": (mixed_model, X, SOFTMAX),
}


def make(case, votes=(1.0, 2.5, 0.7)):
    build, x, classifier = CASES[case]
    if case == "text":
        x = tf.constant(x)
    return ensemble_of(build(), votes, classifier), x


def compare(found, expected):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-6
    assert len(np.unique(expected, axis=0)) > 1


# --- The same predictions ---


@pytest.mark.parametrize("voting", ["soft", "hard"])
@pytest.mark.parametrize("case", CASES)
def test_merged_model_predicts_as_the_ensemble(case, voting):
    ensemble, x = make(case)
    merged = ensemble.as_model(voting=voting)
    expected = ensemble.predict(x, voting=voting, verbose=0)
    compare(merged.predict(x, verbose=0), expected)
    assert merged.output.dtype == "float32"
    if voting == "hard":  # shares of 1, 2.5 and 0.7 in 4.2
        shares = {0, 10, 25, 7, 35, 17, 32, 42}
        assert set(np.round(42 * expected.ravel()).astype(int)) <= shares


@pytest.mark.parametrize("voting", ["soft", "hard"])
def test_one_member_alone(voting):
    ensemble, x = make("sequential", votes=[2.0])
    merged = ensemble.as_model(voting=voting)
    expected = ensemble.predict(x, voting=voting, verbose=0)
    compare(merged.predict(x, verbose=0), expected)


def test_selected_members_are_merged():
    ensemble, x = make("sequential", votes=[1.0, 2.0, 3.0, 4.0])
    selected = ensemble.select(num=2)
    merged = selected.as_model()
    compare(merged.predict(x, verbose=0), selected.predict(x, verbose=0))
    assert merged.count_params() == 2 * (4 * 8 + 8 + 8 * 3 + 3)


def test_other_batch_sizes_and_a_direct_call():
    ensemble, x = make("sequential")
    merged, expected = ensemble.as_model(), ensemble.predict(x, verbose=0)
    compare(merged.predict(x, batch_size=7, verbose=0), expected)
    compare(np.array(merged(x)), expected)
    assert np.abs(np.array(merged(x[:1])) - expected[:1]).max() <= 1e-6


def test_probabilities_are_averaged_and_not_logits():
    """Two members, two classes: sigmoid(0) and sigmoid(log 9)."""
    members = [last_layer(1), last_layer(1)]
    for member, bias in zip(members, (0.0, np.log(9)), strict=True):
        member.set_weights([np.zeros((4, 1)), np.array([bias])])
    classifier = Classifier(2, is_binary=True, from_logits=True)
    merged = merging.merge(members, np.array([3.0, 1.0]), classifier)
    # (3 * 1/2 + 1 * 9/10) / 4 = 0.6
    np.testing.assert_allclose(merged(X[:1]), [[0.6]], rtol=1e-6)


def test_hard_votes_worked_out_by_hand():
    members = [last_layer(3, "softmax") for _ in range(3)]
    biases = [[1, 0, 0], [0, 2, 1], [0, 0, 0]]  # the last is a tie: class 0
    for member, bias in zip(members, biases, strict=True):
        member.set_weights([np.zeros((4, 3)), np.array(bias, dtype=float)])
    votes = np.array([1.0, 5.0, 2.0])
    merged = merging.merge(members, votes, SOFTMAX, voting="hard")
    np.testing.assert_allclose(merged(X[:1]), [[3 / 8, 5 / 8, 0]], rtol=1e-6)


# --- What it is made of ---


@pytest.mark.parametrize("case", ["sequential", "dict", "nested"])
def test_names_are_unique_and_the_output_is_called_probabilities(case):
    ensemble, _ = make(case)
    merged = ensemble.as_model(voting="hard")
    names = [layer.name for layer in merged.layers]
    assert len(set(names)) == len(names)
    assert merged.output_names == ["probabilities"]
    assert merged.name == "checkpoint_ensemble"
    members = [layer for layer in merged.layers if layer.count_params()]
    assert [m.name for m in members] == ["member_0", "member_1", "member_2"]


def test_inputs_are_those_of_the_model():
    ensemble, _ = make("dict")
    merged = ensemble.as_model()
    assert {k: tuple(t.shape) for k, t in merged.input.items()} == {
        "left": (None, 2),
        "right": (None, 2),
    }
    texts = make("text")[0].as_model()
    assert texts.inputs[0].dtype == "string"


def test_merged_model_has_copies_of_its_own():
    ensemble, x = make("sequential")
    expected = ensemble.predict(x, verbose=0)
    name = ensemble._model.name
    merged = ensemble.as_model()
    merged.set_weights([np.zeros_like(w) for w in merged.get_weights()])
    np.testing.assert_array_equal(ensemble.predict(x, verbose=0), expected)
    assert ensemble._model.name == name


def test_only_layers_of_keras_are_in_it():
    ensemble, _ = make("logits")
    for voting in ("soft", "hard"):
        for layer in ensemble.as_model(voting=voting).layers:
            assert type(layer).__module__.startswith("keras.")


# --- Elsewhere ---

CHILD = """
import sys
import keras
import numpy as np
import tensorflow as tf
for name in sys.argv[1:]:
    with np.load(name + ".npz") as file:
        x = {key: tf.constant(file[key]) for key in file}
    if "left" not in x:
        x = list(x.values())
    if len(x) == 1:
        x = x[0]
    y = keras.saving.load_model(name + ".keras").predict(x, verbose=0)
    np.save(name + ".npy", y)
assert "cbnn_keras" not in sys.modules
"""


def by_name(inputs):
    """Arrays in any structure as what `np.savez` takes."""
    if isinstance(inputs, np.ndarray):
        inputs = [inputs]
    if isinstance(inputs, list):
        return {str(i): array for i, array in enumerate(inputs)}
    return inputs


@pytest.mark.slow
def test_saved_model_opens_in_a_process_without_this_package(tmp_path):
    expected = {}
    for case, voting in (
        *((case, "soft") for case in CASES),
        *(("sequential", "hard"), ("binary logits", "hard")),
    ):
        ensemble, x = make(case)
        keras.config.set_dtype_policy("float32")
        name = str(tmp_path / f"{case} {voting}")
        np.savez(name + ".npz", **by_name(CASES[case][1]))
        ensemble.as_model(voting=voting).save(name + ".keras")
        expected[name] = ensemble.predict(x, voting=voting, verbose=0)
    subprocess.run([sys.executable, "-c", CHILD, *expected], check=True)
    for name, probabilities in expected.items():
        compare(np.load(name + ".npy"), probabilities)


# --- Subclassed models ---


@keras.saving.register_keras_serializable("test_merging")
class Registered(keras.Model):
    def __init__(self, units, **options):
        super().__init__(**options)
        self.units = units
        self.hidden = keras.layers.Dense(units, activation="relu")
        self.last = keras.layers.Dense(3, activation="softmax")

    def call(self, x):
        return self.last(self.hidden(x))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def called(model):
    model(X[:2])
    return model


def test_registered_class_is_merged_with_the_inputs_that_are_given(tmp_path):
    ensemble = ensemble_of(called(Registered(5)), [1.0, 2.0], SOFTMAX)
    with pytest.raises(
        ValueError,
        match=r"^as_model\(\): Registered is subclassed, so its inputs are not "
        r"known. Pass them: as_model\(inputs=keras.Input\(...\)\)",
    ):
        ensemble.as_model()
    merged = ensemble.as_model(inputs=keras.Input((4,)))
    expected = ensemble.predict(X, verbose=0)
    compare(merged.predict(X, verbose=0), expected)
    merged.save(tmp_path / "merged.keras")
    loaded = keras.saving.load_model(tmp_path / "merged.keras")
    compare(loaded.predict(X, verbose=0), expected)


def test_registered_class_is_loaded_without_a_model(tmp_path):
    ensemble = ensemble_of(called(Registered(5)), [1.0, 2.0], SOFTMAX)
    ensemble.save(tmp_path / "run")
    loaded = CheckpointEnsemble.load(tmp_path / "run")
    np.testing.assert_array_equal(
        loaded.predict(X, verbose=0), ensemble.predict(X, verbose=0)
    )


def test_class_without_a_description_is_not_merged():
    model = called(Undescribed([keras.layers.Dense(3, activation="softmax")]))
    ensemble = ensemble_of(model, [1.0, 2.0], SOFTMAX)
    with pytest.raises(
        ValueError,
        match="^Keras cannot copy Undescribed. Give the class a `get_config` "
        "and decorate it with `@keras.saving.register_keras_serializable",
    ):
        ensemble.as_model(inputs=keras.Input((4,)))


def test_class_that_is_not_registered_is_not_merged():
    class Local(Registered):
        pass

    ensemble = ensemble_of(called(Local(5)), [1.0, 2.0], SOFTMAX)
    with pytest.raises(
        ValueError, match="^Keras cannot copy Local.*Keras: .*Local"
    ):
        ensemble.as_model(inputs=keras.Input((4,)))
