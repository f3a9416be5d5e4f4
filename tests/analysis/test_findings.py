"""What is found out about runs, and which data are taken for what."""

import shutil

import keras
import numpy as np
import pytest
from helpers import (
    Undescribed,
    blobs,
    dense_model,
    header,
    memory_ensemble,
    round_at,
    trained,
)
from sklearn.metrics import accuracy_score, log_loss

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.analysis import Labelled, examine
from cbnn_keras.analysis.evaluation import Evaluation
from cbnn_keras.analysis.findings import short_names
from cbnn_keras.runs.run import MemoryRun

X, Y = blobs()
# Of the same clusters, in another order: labels tell data apart.
X_NEW, Y_NEW = (array[:119:-1] for array in blobs(num_samples=180))
TRAIN, NEW = Labelled("train.npz", X, Y), Labelled("new.npz", X_NEW, Y_NEW)


@pytest.fixture(scope="module")
def found(blobs_run):
    [found] = examine([blobs_run], [NEW, TRAIN], verbose=0)
    return found


def test_which_data_are_which(blobs_run, found):
    assert found.evaluation.data is NEW
    assert not found.evaluation.is_training
    assert found.scrutiny.data is TRAIN
    assert found.scrutiny.is_training
    assert found.notes == ()
    assert found.name == "blobs"
    assert found.location == str(blobs_run)


def test_training_data_alone_and_new_data_alone(blobs_run):
    one_hot = Labelled("one-hot", X, np.eye(3)[Y])
    [found] = examine([blobs_run], [one_hot], verbose=0)
    assert found.evaluation.is_training
    recorded = ~found.run.correct(found.steps[-1])
    assert found.evaluation.models[0].error == pytest.approx(recorded.mean())
    # Of the members of an ensemble, whatever else the run has.
    chosen = CheckpointEnsemble.load(blobs_run).select(num=2)
    [found] = examine([chosen], [NEW], verbose=0)
    assert found.steps == [record.step for record in chosen.rounds]
    assert found.evaluation.is_certain
    assert found.by_class is None
    assert not found.scrutiny.is_training
    np.testing.assert_array_equal(found.scrutiny.suspects.weight, np.ones(60))


def test_without_data_no_model_is_needed(blobs_run):
    ensemble = CheckpointEnsemble.load(blobs_run)
    for source in (blobs_run, ensemble.select(num=2)):
        [found] = examine([source])
        assert found.ensemble is found.evaluation is None
    assert found.steps == [r.step for r in ensemble.select(num=2).rounds]


def test_other_inputs_with_the_labels_of_training_are_noticed(blobs_run):
    data = Labelled("other", X[::-1], Y)
    [found] = examine([blobs_run], [data], verbose=0)
    assert not found.evaluation.is_training
    [note] = found.notes
    assert note.startswith("The labels of other are those of training, but")
    np.testing.assert_array_equal(found.scrutiny.suspects.weight, np.ones(120))
    # None of several is lost, and the training data are those that fit.
    [found] = examine([blobs_run], [data, TRAIN], verbose=0)
    assert found.evaluation.data is data
    assert found.scrutiny.data is TRAIN
    [found] = examine([blobs_run], [data, NEW], verbose=0)
    assert found.evaluation.data is NEW


def test_training_data_in_another_order_are_doubted(blobs_run):
    order = np.random.default_rng(0).permutation(120)
    data = Labelled("other", X[order], Y[order])
    [found] = examine([blobs_run], [data], verbose=0)
    assert not found.evaluation.is_certain
    [note] = found.notes
    assert note.startswith("other has as many samples as the training set.")


def recorded_run(*records):
    """A run of an untrained model; final models are no members."""
    model = dense_model()
    run = MemoryRun(header(model))
    for record in records:
        member = None if record.is_final else model
        run.add_round(record, np.full(8, True), member)
    return CheckpointEnsemble(run, model)


def test_a_run_that_is_not_finished():
    for data in ([], [NEW]):
        [found] = examine([recorded_run(round_at(1))], data, verbose=0)
        assert found.notes == (
            "The run is not finished: there will be more members.",
        )
    assert [m.name for m in found.evaluation.models] == [
        "last member",
        "plain average",
        "ensemble",
    ]
    assert found.name == "cbnn run"


def test_a_final_model_that_is_no_member():
    ensemble = recorded_run(round_at(1), round_at(2, is_final=True))
    [found] = examine([ensemble], [NEW], verbose=0)
    assert found.evaluation.last == "last member"
    [note] = found.notes
    assert note.startswith("The model at the end of training is not a member")


def test_errors_of_the_models(blobs_run, found):
    ensemble = CheckpointEnsemble.load(blobs_run)
    members = list(ensemble.member_probabilities(X_NEW, verbose=0))
    shares = ensemble.votes / ensemble.votes.sum()
    expected = {
        "final model": members[-1],
        "plain average": sum(members) / 3,
        "ensemble": sum(s * m for s, m in zip(shares, members, strict=True)),
    }
    assert [model.name for model in found.evaluation.models] == list(expected)
    for model in found.evaluation.models:
        p = expected[model.name].astype(np.float64)
        error = 1 - accuracy_score(Y_NEW, p.argmax(axis=1))
        assert model.error == pytest.approx(error)
        likelihood = log_loss(Y_NEW, p / p.sum(axis=1, keepdims=True))
        assert model.before.negative_log_likelihood == pytest.approx(
            likelihood, abs=1e-5
        )


def test_what_the_ensemble_gains_and_loses():
    # Final model: right, wrong, right, wrong. Together: right, right, wrong,
    # wrong.
    final = [[0.9, 0.1], [0.6, 0.4], [0.6, 0.4], [0.9, 0.1]]
    first = [[0.9, 0.1], [0.1, 0.9], [0.1, 0.9], [0.9, 0.1]]
    evaluation = Evaluation(
        TRAIN,
        False,
        True,
        "final model",
        np.array([0, 1, 0, 1]),
        np.array([first, final], dtype=np.float32),
        np.array([1.0, 1.0]),
    )
    assert evaluation.gained_and_lost == (1, 1)
    np.testing.assert_allclose(evaluation.member_errors, [0.5, 0.5])


def test_weights_and_mistakes(found):
    run = found.run
    np.testing.assert_allclose(found.weights, run.replay().distribution * 120)
    rights = [run.correct(step) for step in found.steps]
    expected = [[np.mean(a != b) for b in rights] for a in rights]
    np.testing.assert_allclose(found.mistakes_disagreement, expected)
    by_class = [found.weights[c == Y].mean() for c in range(3)]
    np.testing.assert_allclose(found.by_class.mean, by_class)


def test_runs_on_different_data_have_their_own(blobs_run, tmp_path):
    half = Labelled("half", X[:60], Y[:60])
    callback, *_ = trained(num_checkpoints=2, data=(half.x, half.y))
    both = [blobs_run, callback.ensemble()]
    first, second = examine(both, [half, TRAIN, NEW], verbose=0)
    assert first.scrutiny.data is TRAIN
    assert second.scrutiny.data is half
    assert first.evaluation.data is second.evaluation.data is NEW
    # What one was trained on is not new to the other, but not its own either.
    first, second = examine(both, [half], verbose=0)
    assert first.evaluation is None
    assert second.evaluation.is_training


@pytest.mark.parametrize(
    ("locations", "expected"),
    [
        (["runs/a/"], ["a"]),
        (["/x/a", "/y/a", "/x/b"], ["x/a", "y/a", "x/b"]),
        (["b/a", "a"], ["b/a", "a"]),
        (["a", "a"], ["a (1)", "a (2)"]),
        (["."], ["."]),
    ],
)
def test_short_names(locations, expected):
    assert short_names(locations) == expected


# --- Bad input ---


def test_two_data_sets_that_were_not_trained_on(blobs_run):
    other = Labelled("other.npz", X[:30], Y[:30])
    with pytest.raises(
        ValueError,
        match=r"The labels of new\.npz, other\.npz are not those of training: "
        r"give one data set at most .* in the order of training\.",
    ):
        examine([blobs_run], [NEW, other, TRAIN], verbose=0)


def test_labels_that_do_not_fit_are_named_with_their_data(blobs_run):
    data = Labelled("bad.npz", X, Y + 1)
    with pytest.raises(ValueError, match=r"^bad\.npz: Labels must be integers"):
        examine([blobs_run], [data])
    data = Labelled("few.npz", X[:1], Y[:1])
    with pytest.raises(ValueError, match=r"^few\.npz must have two samples"):
        examine([blobs_run], [data])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"x": X, "ids": Y},
            r"^mine holds ids, x, but the inputs of the model are \w+\. Give",
        ),
        (
            X[:, :3],
            r"^mine: samples have the shape \(3,\), but the model takes",
        ),
    ],
)
def test_inputs_that_do_not_fit(data, message, blobs_run):
    with pytest.raises(ValueError, match=message):
        examine([blobs_run], [Labelled("mine", data, Y)], verbose=0)


def test_runs_of_other_classes(blobs_run):
    four = memory_ensemble(dense_model(num_classes=4), [1.0], method="cbnn")
    with pytest.raises(
        ValueError,
        match=r"different numbers of classes \(blobs has 3, cbnn run has 4\).*"
        r"Make a report for each\.",
    ):
        examine([blobs_run, four], [NEW])
    assert len(examine([blobs_run, four])) == 2


def test_a_model_that_only_python_can_load(tmp_path):
    model = Undescribed([keras.layers.Dense(3, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    with pytest.warns(UserWarning, match="cannot be built again from the run"):
        trained(tmp_path / "run", model=model, num_checkpoints=1)
    message = (
        r"(?s)load\(directory, model=model\).*write_report\(\[ensemble\], "
    )
    with pytest.raises(ValueError, match=message):
        examine([tmp_path / "run"], [NEW])
    assert len(examine([tmp_path / "run"])) == 1
    loaded = CheckpointEnsemble.load(tmp_path / "run", model=model)
    [found] = examine([loaded], [NEW], verbose=0)
    assert found.evaluation.labels.shape == (60,)


def test_what_is_no_run_or_a_damaged_one(blobs_run, tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        examine([tmp_path])
    shutil.copytree(blobs_run, tmp_path / "run")
    member = next((tmp_path / "run/members").iterdir())
    member.write_bytes(b"x" + member.read_bytes()[1:])
    with pytest.raises(ValueError, match=f"{member} is not what was saved"):
        examine([tmp_path / "run"])
