"""Names of classes, from labels to the run, its exports and its report."""

import json

import numpy as np
import pytest
import tensorflow as tf
from helpers import blobs, dense_model, trained

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.analysis import Labelled, write_report
from cbnn_keras.export import export_saved_model

# As hostile to HTML and to matplotlib's formulas as names get.
NAMES = ["<b>ant", "$bee_{$", "cow"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("named") / "run"
    x, y = blobs()
    trained(directory, data=(x, np.array(NAMES)[y]), num_checkpoints=2)
    return directory


def test_a_run_remembers_names(run, tmp_path):
    ensemble = CheckpointEnsemble.load(run)
    # In alphabetical order, in which they are numbered.
    assert ensemble.run.header.class_names == ["$bee_{$", "<b>ant", "cow"]
    ensemble.save(tmp_path / "copy")
    copy = CheckpointEnsemble.load(tmp_path / "copy")
    assert copy.run.header.class_names == ensemble.run.header.class_names


@pytest.mark.large
def test_evaluate_and_select_take_names(run):
    ensemble = CheckpointEnsemble.load(run)
    x, y = blobs()
    x, y = x[y > 0], y[y > 0]  # one class has no sample
    names, numbers = np.array(NAMES)[y], np.array([1, 0, 2])[y]
    options = {"metrics": ["sparse_categorical_accuracy"], "verbose": 0}
    found = ensemble.evaluate(x, names, **options)
    assert found == ensemble.evaluate(x, numbers, **options)
    dataset = tf.data.Dataset.from_tensor_slices((x, names)).batch(7)
    assert ensemble.evaluate(dataset, **options) == pytest.approx(found)
    chosen = [
        ensemble.select(validation_data=(x, labels), verbose=0).votes
        for labels in (names, numbers)
    ]
    np.testing.assert_array_equal(*chosen)


@pytest.mark.parametrize("num_classes", [3, 4])
def test_what_has_no_names_writes_none(tmp_path, num_classes):
    x, y = blobs()
    labels = y if num_classes == 3 else np.array(NAMES)[y]
    model = dense_model(num_classes)  # one more than there are names
    trained(tmp_path / "a", data=(x, labels), model=model, num_checkpoints=1)
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert "class_names" not in manifest


@pytest.mark.parametrize(
    "names",
    [
        ["a", "b", "caf\udce9"],
        *(
            pytest.param(names, marks=pytest.mark.large)
            for names in (["a", "b", "a"], ["a", "b", "c" * 1001])
        ),
    ],
    ids=["no Unicode", "twice", "long"],
)
def test_names_that_a_manifest_cannot_hold_are_not_remembered(tmp_path, names):
    x, y = blobs()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(20)
    dataset.class_names = names
    for resume in (False, True):
        trained(
            tmp_path / "a",
            data=(dataset, None),
            num_checkpoints=1,
            resume=resume,
        )
    assert (
        CheckpointEnsemble.load(tmp_path / "a").run.header.class_names is None
    )


def test_exports_give_names_unless_told_others(run, tmp_path):
    ensemble = CheckpointEnsemble.load(run)
    x, _ = blobs()
    numbers = ensemble.predict(x, verbose=0).argmax(axis=1)
    for given, names in (
        ({}, sorted(NAMES)),
        ({"class_names": ["a", "b", "c"]}, ["a", "b", "c"]),
    ):
        path = tmp_path / names[-1]
        export_saved_model(ensemble, path, outputs="class", verbose=0, **given)
        served = tf.saved_model.load(path / "1")
        found = served.signatures["serving_default"](tf.constant(x))["class"]
        assert [n.decode() for n in found.numpy()] == [
            names[i] for i in numbers
        ]


@pytest.mark.large
def test_reports_show_names(run, tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    x, y = blobs()
    numbers = np.array([1, 0, 2])[y]  # as they are in the run
    for labels in (numbers, np.array(NAMES)[y]):
        data = [Labelled("training", x, labels)]
        write_report(run, tmp_path / "a.html", data=data, verbose=0)
        html = (tmp_path / "a.html").read_text()
        assert "&lt;b&gt;ant" in html and "<b>ant" not in html


def test_the_accuracy_along_the_way_takes_names():
    x, y = blobs()
    names = np.array(NAMES)[y]
    cbnn = CBNNCallback(num_checkpoints=2, validation_data=(x, names))
    log = cbnn.fit(dense_model(), x, names, epochs=3, verbose=0).history
    found = cbnn.ensemble().evaluate(x, names, verbose=0)["accuracy"]
    assert log["val_ensemble_accuracy"][-1] == pytest.approx(found)
