"""Tests of the comparison of artefacts with the Keras ensemble."""

import copy
import dataclasses
import json
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from export_helpers import ALL, X, serving_graph, tables
from helpers import dense_model, memory_ensemble

from cbnn_keras.export import (
    Parity,
    export_saved_model,
    runtimes,
    verify_artefact,
)
from cbnn_keras.export.verify import TOLERANCES, compare
from cbnn_keras.support.faults import RunError

FLOAT32 = TOLERANCES["float32"]


class Faulty:
    """Says what the ensemble says, but for a change.

    Attributes:
        batches: The samples of each call.
    """

    def __init__(self, graph, change=lambda found: None):
        self._graph = graph
        self._change = change
        self.batches = []

    def run(self, inputs):
        self.batches.append(inputs["sample"].tolist())
        found = self._graph.reference(inputs)
        self._change(found)
        return found


def graph_of(members, votes=(1.0, 3.0), is_binary=False, **options):
    """Of tables; knows its reference by heart, as Keras takes long."""
    samples = np.arange(np.shape(members)[1], dtype="int32")
    options = {"outputs": ALL, "sample_data": samples, **options}
    graph = serving_graph(
        tables(members, votes, is_binary=is_binary), **options
    )
    known = graph.reference({"sample": samples})
    graph.reference = lambda inputs: {
        name: array[inputs["sample"]] for name, array in known.items()
    }
    return graph


def told(graph, **options):
    """The same graph with other options, as a new one takes long."""
    copied = copy.copy(graph)
    copied.options = dataclasses.replace(graph.options, **options)
    return copied


# Ten clear samples, each of another class; the members agree.
FIRST = [np.roll([0.6, 0.3, 0.1], i) for i in range(10)]
SECOND = [np.roll([0.8, 0.15, 0.05], i) for i in range(10)]


@pytest.fixture(scope="module")
def graph():
    return graph_of([FIRST, SECOND])


# --- What is seen ---


def other(name, values):
    def change(found):
        found[name] = values(found[name])

    return change


def swap_classes(array):
    return array[..., [1, 0, 2]]


def with_nan(array):
    return np.where(np.arange(len(array))[::-1] == 0, np.nan, array.T).T


def off_by(amount):
    return lambda array: array + amount


def last_is_another(classes):
    changed = classes.copy()
    changed[-1] = (changed[-1] + 1) % 3
    return changed


def equal_votes(found):
    """What the outputs would be if votes did not count."""
    found["probabilities"] = found["members"].mean(axis=1)


def depends_on_batch(found):
    found["probabilities"] += 1e-3 * (len(found["probabilities"]) == 7)


NO_MATCH = r"^The export does not match the Keras ensemble: "


@pytest.mark.parametrize(
    "change",
    [
        other("probabilities", swap_classes),
        other("probabilities", with_nan),
        other("probabilities", off_by(2e-5)),
        other("probabilities", off_by(-2e-5)),
        other("members", swap_classes),
        other("members", lambda members: members[:, ::-1]),
        other("members", off_by(2e-4)),
        other("members", with_nan),
        other("top_k_probabilities", off_by(1e-4)),
        other("top_k_probabilities", lambda values: values[:, ::-1]),
        other("top_k_probabilities", with_nan),
        other("top_k_classes", lambda classes: classes[:, [1, 0, 2]]),
        other("class", last_is_another),
        other("disagreement", off_by(0.25)),
        other("disagreement", with_nan),
        equal_votes,
        depends_on_batch,
    ],
)
def test_what_is_not_the_same_is_seen(graph, change):
    with pytest.raises(ValueError, match=NO_MATCH):
        compare(Faulty(graph, change), graph, FLOAT32)


def test_the_message_says_how_far_off(graph):
    change = other("class", lambda classes: np.full_like(classes, 2))
    with pytest.raises(
        ValueError,
        match=NO_MATCH
        + r"max \|delta p\| 0\.0e\+00, the same class for 30\.0% "
        r"of 10 samples; allowed are 1e-05 and 100% of 10 samples that are "
        r"clear\. If it is rounding, as in very deep models, "
        r"give real inputs as `sample_data` or a larger `tolerance`\.$",
    ):
        compare(Faulty(graph, change), graph, FLOAT32)


@pytest.mark.parametrize("outputs", ["class", "disagreement"])
def test_predicted_classes_alone_are_compared_too(graph, outputs):
    graph = told(graph, outputs=outputs)
    assert compare(Faulty(graph), graph, FLOAT32) == Parity(0.0, 1.0, 10)
    change = other(outputs, lambda values: 1 - values)
    with pytest.raises(ValueError, match=NO_MATCH):
        compare(Faulty(graph, change), graph, FLOAT32)


def remove(name):
    return lambda found: found.pop(name)


@pytest.mark.parametrize(
    ("name", "change", "shape", "expected"),
    [
        ("probabilities", remove("probabilities"), "None", "(10, 3)"),
        (
            "members",
            other("members", lambda members: members[:, :1]),
            "(10, 1, 3)",
            "(10, 2, 3)",
        ),
        (
            "probabilities",
            other("probabilities", lambda array: array[:1]),  # of each batch
            "(3, 3)",
            "(10, 3)",
        ),
    ],
)
def test_outputs_of_other_shapes_are_seen(graph, name, change, shape, expected):
    with pytest.raises(
        ValueError,
        match=rf"^The export's output '{name}' has the shape "
        rf"{re.escape(shape)}, the ensemble's {re.escape(expected)}\.$",
    ):
        compare(Faulty(graph, change), graph, FLOAT32)


@pytest.mark.parametrize("unknown", [0, 1, 2])
def test_names_that_are_no_classes_are_seen(graph, unknown):
    graph = told(graph, outputs=["top_k"], class_names=["a", "b", "c"])
    names = np.array([b"a", b"b", b"c"], object)
    names[unknown] = b"x"
    change = other("top_k_classes", lambda classes: names[classes])
    with pytest.raises(ValueError, match=NO_MATCH):
        compare(Faulty(graph, change), graph, FLOAT32)


@pytest.mark.parametrize(("number", "becomes"), [(0, 3), (0, 99), (2, -1)])
def test_numbers_that_are_no_classes_are_seen(graph, number, becomes):
    change = other(
        "top_k_classes",
        lambda classes: np.where(classes == number, becomes, classes),
    )
    with pytest.raises(ValueError, match=NO_MATCH):
        compare(Faulty(graph, change), graph, FLOAT32)


# --- What is allowed ---


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda found: None, 0.0),
        (other("probabilities", off_by(8e-6)), 8e-6),
        # Ten times as much in single members.
        (other("members", off_by(-9e-5)), 9e-5),
        (lambda found: found.update(another=np.zeros(1)), 0.0),
    ],
)
def test_rounding_is_allowed(graph, change, difference):
    parity = compare(Faulty(graph, change), graph, FLOAT32)
    assert parity.max_difference == pytest.approx(difference, rel=1e-2)
    assert (parity.agreement, parity.num_samples) == (1.0, 10)


# Sample 4 has a margin of 1e-5, which is within what may be rounding.
UNCLEAR = [*FIRST[:4], [0.5 + 5e-6, 0.5 - 5e-6, 0], *FIRST[5:]]


def at_sample_four(name, value):
    """Changes one output of the sample whose members say one half."""

    def change(found):
        row = np.isclose(found["members"][:, 0, 0], 0.5, atol=1e-4)
        found[name] = np.where(row, value, found[name])

    return change


def test_another_class_of_an_unclear_sample_is_allowed():
    graph = graph_of([UNCLEAR, UNCLEAR], outputs=["class", "members"])
    runtime = Faulty(graph, at_sample_four("class", 1))
    assert compare(runtime, graph, FLOAT32) == Parity(0.0, 0.9, 10)


def test_another_class_of_a_clear_sample_is_not():
    clear = [*FIRST[:4], [0.5 + 5e-5, 0.5 - 5e-5, 0], *FIRST[5:]]
    graph = graph_of([clear, clear], outputs=["class", "members"])
    runtime = Faulty(graph, at_sample_four("class", 1))
    with pytest.raises(ValueError, match="for 90.0% of 10 samples; .* of 10 s"):
        compare(runtime, graph, FLOAT32)
    # With a tolerance of 1e-4, a margin of 1e-4 is rounding too.
    graph = told(graph, tolerance=1e-4)
    assert compare(runtime, graph, FLOAT32).agreement == 0.9


def test_disagreement_about_an_unclear_member_is_allowed():
    # The ensemble is clear about sample 4, where it follows the second.
    graph = graph_of([UNCLEAR, SECOND], outputs=["disagreement", "members"])
    [before] = graph.reference({"sample": np.array([4])})["disagreement"]
    assert before == 0.25
    runtime = Faulty(graph, at_sample_four("disagreement", 0.0))
    assert compare(runtime, graph, FLOAT32) == Parity(0.0, 0.9, 10)
    graph = graph_of([UNCLEAR, SECOND])
    runtime = Faulty(graph, at_sample_four("class", 0))
    with pytest.raises(ValueError, match=NO_MATCH):
        compare(runtime, told(graph, outputs=["class"]), FLOAT32)


def test_a_member_that_priors_make_unclear_is_allowed_to_change():
    # 0.6 / 0.6 to 0.4 / 0.4: nobody can tell what the first member says.
    graph = graph_of([[[0.6, 0.4]], [[0.8, 0.2]]], priors=[0.6, 0.4])
    change = other("disagreement", off_by(0.25))
    assert compare(Faulty(graph, change), graph, FLOAT32).agreement == 0.0
    graph = graph_of([[[0.6, 0.4]], [[0.8, 0.2]]])
    with pytest.raises(ValueError, match=NO_MATCH):
        compare(Faulty(graph, change), graph, FLOAT32)


def test_outputs_can_be_chosen(graph):
    runtime = Faulty(graph, other("probabilities", off_by(1.0)))
    compare(runtime, graph, FLOAT32, outputs=["members", "class"])
    with pytest.raises(ValueError, match=NO_MATCH):
        compare(runtime, graph, FLOAT32, outputs=["probabilities"])


def test_equal_classes_may_change_places_in_top_k():
    tie = [[0.4, 0.4, 0.2]] * 10
    graph = graph_of([tie, tie], outputs=["top_k"])
    change = other("top_k_classes", lambda classes: classes[:, [1, 0, 2]])
    assert compare(Faulty(graph, change), graph, FLOAT32).max_difference == 0


@pytest.mark.parametrize(
    ("off", "tolerance", "is_same"),
    [
        (5e-4, 1e-3, True),
        (5e-4, 1e-4, False),
        (2e-6, 1e-6, False),
        (2e-6, None, True),
        (2e-5, None, False),
        (2e-6, 0.0, False),
    ],
)
def test_tolerance_is_the_users(graph, off, tolerance, is_same):
    graph = told(graph, outputs=["probabilities"], tolerance=tolerance)
    runtime = Faulty(graph, other("probabilities", off_by(off)))
    if is_same:
        assert compare(runtime, graph, FLOAT32).max_difference > off / 2
    else:
        allowed = 1e-5 if tolerance is None else tolerance
        with pytest.raises(ValueError, match=f"allowed are {allowed:g} and"):
            compare(runtime, graph, FLOAT32)


@pytest.mark.parametrize(("num_wrong", "is_same"), [(2, True), (3, False)])
def test_int8_may_change_the_class_of_one_clear_sample_in_twenty(
    num_wrong, is_same
):
    table = [np.roll([0.6, 0.3, 0.1], i) for i in range(40)]
    graph = graph_of([table, table], outputs=["probabilities"])
    wrong = table.copy()
    wrong[:num_wrong] = [np.roll(row, 1) for row in table[:num_wrong]]
    runtime = Faulty(graph_of([wrong, wrong], outputs=["probabilities"]))
    if is_same:
        parity = compare(runtime, graph, TOLERANCES["int8"], num=40)
        assert parity.agreement == 1 - num_wrong / 40
    else:
        with pytest.raises(
            ValueError, match="allowed are 1 and 95% of 40 samples that are cl"
        ):
            compare(runtime, graph, TOLERANCES["int8"], num=40)


def test_float16_may_be_off_by_a_hundredth(graph):
    runtime = Faulty(graph, other("probabilities", off_by(1e-2)))
    compare(runtime, graph, TOLERANCES["float16"])
    runtime = Faulty(graph, other("probabilities", off_by(3e-2)))
    with pytest.raises(ValueError, match="allowed are 0.02 and 100%"):
        compare(runtime, graph, TOLERANCES["float16"])


@pytest.mark.parametrize(
    ("probability", "is_clear"), [(0.5 + 5e-6, False), (0.5 + 5e-5, True)]
)
def test_margin_of_one_sigmoid(probability, is_clear):
    # Twice the distance to one half: 1e-5 and 1e-4.
    graph = graph_of(
        [[[0.9], [probability]]], [1.0], is_binary=True, outputs=["class"]
    )
    runtime = Faulty(
        graph_of([[[0.9], [0.4]]], [1.0], is_binary=True, outputs=["class"])
    )
    if is_clear:
        with pytest.raises(ValueError, match="50.0% of 2 .* of 2 samples"):
            compare(runtime, graph, FLOAT32)
    else:
        assert compare(runtime, graph, FLOAT32).agreement == 0.5


# --- Batches ---


@pytest.mark.parametrize(
    ("num", "sizes"),
    [
        (2, [1, 1]),
        (10, [1, 2, 7]),
        (25, [1, 2, 7, 1, 2, 7, 1, 2, 2]),
    ],
)
def test_every_sample_is_compared_once_in_batches(num, sizes):
    table = [np.roll([0.6, 0.3, 0.1], i) for i in range(25)]
    graph = graph_of([table], votes=[1.0], outputs=["probabilities"])
    runtime = Faulty(graph)
    parity = compare(runtime, graph, FLOAT32, num=num)
    assert [len(batch) for batch in runtime.batches] == sizes
    assert sum(runtime.batches, []) == list(range(num))
    assert parity.num_samples == num


# --- Artefacts that are there ---


@pytest.fixture(scope="module")
def artefact(ensemble, tmp_path_factory):
    """Of the first and the third member, with all that can be chosen."""
    return export_saved_model(
        ensemble.take([1, 3]),
        tmp_path_factory.mktemp("verify") / "model",
        outputs=ALL,
        top_k=2,
        class_names=["a", "b", "c"],
        voting="hard",
        verbose=0,
    ).path


def test_artefact_of_fewer_members_matches(ensemble, artefact, capsys):
    parity = verify_artefact(artefact, ensemble)
    assert parity.max_difference <= 1e-5
    assert (parity.agreement, parity.num_samples) == (1.0, 10)
    assert capsys.readouterr().out == f"{artefact} matches: {parity}.\n"


def test_artefact_is_given_by_the_directory_above_too(
    ensemble, artefact, capsys
):
    verify_artefact(str(artefact.parent), ensemble, verbose=0)
    assert capsys.readouterr().out == ""


def test_artefact_is_compared_with_what_it_says_of_itself(
    ensemble, full_saved_model, tmp_path
):
    path = shutil.copytree(full_saved_model.path, tmp_path / "1")
    parity = verify_artefact(path, ensemble, sample_data=X, verbose=0)
    assert (parity.agreement, parity.num_samples) == (1.0, len(X))
    file = path / "assets.extra" / "cbnn_keras.json"
    metadata = json.loads(file.read_text())
    assert metadata["priors"] == pytest.approx([0.1, 0.6, 0.3])
    for changes in (
        {"priors": [0.1, 0.3, 0.6]},
        {"priors": None},
        {"labels": ["a", "b", "c"]},
    ):
        file.write_text(json.dumps(metadata | changes))
        with pytest.raises(ValueError, match=NO_MATCH):
            verify_artefact(path, ensemble, sample_data=X, verbose=0)
    file.write_text(json.dumps(metadata | {"priors": [0.6, 0.4]}))
    with pytest.raises(ValueError, match=r"priors have the shape \(2,\)"):
        verify_artefact(path, ensemble)


def test_artefact_of_another_run_does_not_match(artefact):
    keras.utils.set_random_seed(9)
    other = memory_ensemble(dense_model(), [1.0, 2.5, 0.7])
    with pytest.raises(ValueError, match=NO_MATCH):
        verify_artefact(artefact, other, sample_data=X)


def test_tolerance_is_passed_on(ensemble, artefact):
    with pytest.raises(ValueError, match="allowed are 1e-12 and"):
        verify_artefact(artefact, ensemble, tolerance=1e-12)


def test_members_that_the_run_lacks(artefact):
    short = memory_ensemble(dense_model(), [1.0, 2.0])
    with pytest.raises(
        RunError,
        match=r"is not an export of this run: The run has no members of the "
        r"steps \[3\]; it has \[1, 2\]\.$",
    ):
        verify_artefact(artefact, short)


def test_artefact_with_votes_of_its_own(ensemble, tmp_path):
    """Of members that were selected: the run alone does not know them."""
    chosen = ensemble.with_votes({1: 5.0, 3: 0.1})
    path = export_saved_model(chosen, tmp_path / "model")
    found = verify_artefact(path.path, ensemble, verbose=0)
    assert found.max_difference <= 1e-5


def test_model_with_other_inputs(artefact):
    inputs = keras.Input((4,), name="row")
    outputs = keras.layers.Dense(3, activation="softmax")(inputs)
    other = memory_ensemble(keras.Model(inputs, outputs), [1.0, 2.0, 0.5])
    with pytest.raises(
        ValueError,
        match=rf"^{re.escape(str(artefact))} takes input, but the run's model "
        r"takes row: it is not an export of this run\.$",
    ):
        verify_artefact(artefact, other)
    # Unless it was exported with such inputs.
    with pytest.raises(ValueError, match=NO_MATCH):
        verify_artefact(artefact, other, inputs=keras.Input((4,), name="input"))


@pytest.fixture(scope="module")
def preprocessed(ensemble, tmp_path_factory):
    return export_saved_model(
        ensemble,
        tmp_path_factory.mktemp("verify") / "bytes",
        preprocess=keras.layers.Rescaling(1 / 255),
        inputs=keras.Input((4,), dtype="uint8", name="bytes"),
        verbose=0,
    ).path


def test_artefact_with_preprocess(ensemble, preprocessed):
    inputs = keras.Input((4,), dtype="uint8", name="bytes")
    with pytest.raises(
        ValueError,
        match=rf"^{re.escape(str(preprocessed))} was exported with "
        r"`preprocess`\. Give it here too: on the command line as --preprocess "
        r"FILE\.keras\.$",
    ):
        verify_artefact(preprocessed, ensemble, inputs=inputs)
    parity = verify_artefact(
        preprocessed,
        ensemble,
        preprocess=keras.layers.Rescaling(1 / 255),
        inputs=inputs,
        verbose=0,
    )
    assert parity.agreement == 1.0
    with pytest.raises(ValueError, match=NO_MATCH):
        verify_artefact(
            preprocessed,
            ensemble,
            preprocess=keras.layers.Rescaling(1 / 127.5),
            inputs=inputs,
        )


def test_of_several_versions_the_last_number_is_taken(
    ensemble, artefact, preprocessed, tmp_path
):
    shutil.copytree(preprocessed, tmp_path / "9")
    shutil.copytree(artefact, tmp_path / "10")
    (tmp_path / "11.old").mkdir()
    verify_artefact(tmp_path, ensemble, verbose=0)
    (tmp_path / "10").rename(tmp_path / "8")
    with pytest.raises(ValueError, match="was exported with `preprocess`"):
        verify_artefact(tmp_path, ensemble)
    verify_artefact(tmp_path / "8", ensemble, verbose=0)


def test_saved_model_of_somebody_else(ensemble, tmp_path):
    module = tf.Module()
    module.serve = tf.function(
        lambda x: {"y": x}, input_signature=[tf.TensorSpec([None, 4])]
    )
    path = str(tmp_path / "foreign")
    tf.saved_model.save(module, path, signatures=module.serve)
    with pytest.raises(
        ValueError,
        match=rf"^{path} was not written by an export of cbnn_keras\.$",
    ):
        verify_artefact(path, ensemble)


def test_saved_model_without_endpoints(ensemble, tmp_path):
    tf.saved_model.save(tf.Module(), str(tmp_path / "foreign"))
    with pytest.raises(ValueError, match="was not written by an export of"):
        verify_artefact(tmp_path / "foreign", ensemble)


@pytest.mark.parametrize("make", [None, "directory", "version"])
def test_what_is_no_artefact(ensemble, tmp_path, make):
    path = tmp_path / "model"
    if make:
        (path / "1" if make == "version" else path).mkdir(parents=True)
    with pytest.raises(
        ValueError,
        match=rf"^{re.escape(str(path))} is neither a SavedModel, nor an ONNX "
        r"or LiteRT file, nor a model of a Triton repository, nor a page\. "
        r"Give what `cbnn export` wrote\.$",
    ):
        verify_artefact(path, ensemble)


def test_file_that_is_no_onnx_file(ensemble, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(
        RunError,
        match=r"notes\.txt cannot be read \(.+\)\. Give what `cbnn export`",
    ):
        verify_artefact(tmp_path / "notes.txt", ensemble)


def test_where_an_onnx_file_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(runtimes, "OnnxRuntime", lambda path: path)
    monkeypatch.setattr(runtimes, "check_onnx", lambda path, room: None)
    for version in ("1", "2", "10"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "model.onnx").touch()
    last = tmp_path / "10" / "model.onnx"
    assert runtimes.open_artefact(tmp_path) == last
    assert runtimes.open_artefact(last) == last
    assert runtimes.open_artefact(last.parent) == last
