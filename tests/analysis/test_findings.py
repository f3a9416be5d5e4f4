"""What is found out about runs, and which data are taken for what."""

import keras
import numpy as np
import pytest
from helpers import Undescribed, blobs, dense_model, header, trained
from sklearn.metrics import accuracy_score, log_loss

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.analysis import Labelled, examine
from cbnn_keras.analysis.evaluation import Evaluation
from cbnn_keras.analysis.findings import short_names
from cbnn_keras.baselines import PlainCheckpoints
from cbnn_keras.runs.run import MemoryRun

X, Y = blobs()
# Of the same clusters, in another order: labels tell data apart.
X_NEW, Y_NEW = (array[:119:-1] for array in blobs(num_samples=180))
TRAIN, NEW = Labelled("train.npz", X, Y), Labelled("new.npz", X_NEW, Y_NEW)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    keras.utils.set_random_seed(0)
    path = tmp_path_factory.mktemp("runs") / "blobs"
    trained(path, num_checkpoints=3)
    return path


@pytest.fixture(scope="module")
def found(directory):
    [found] = examine([directory], [NEW, TRAIN], verbose=0)
    return found


def test_which_data_are_which(directory, found):
    assert found.evaluation.data is NEW
    assert not found.evaluation.is_training
    assert found.scrutiny.data is TRAIN
    assert found.scrutiny.is_training
    assert found.notes == ()
    assert found.name == directory.name
    assert found.place == str(directory)


def test_training_data_alone_are_judged_and_said_to_be_so(directory):
    [found] = examine([directory], [TRAIN], verbose=0)
    assert found.evaluation.is_training
    recorded = ~found.run.correct(found.steps[-1])
    assert found.evaluation.models[0].error == pytest.approx(recorded.mean())


def test_new_data_alone_are_scrutinised_with_equal_weights(directory):
    [found] = examine([directory], [NEW], verbose=0)
    assert found.by_class is None
    assert not found.scrutiny.is_training
    np.testing.assert_array_equal(found.scrutiny.suspects.weight, np.ones(60))


def test_labels_as_rows_are_those_of_training(directory):
    data = Labelled("one-hot", X, np.eye(3)[Y])
    [found] = examine([directory], [data], verbose=0)
    assert found.evaluation.is_training


def test_other_inputs_with_the_labels_of_training_are_noticed(directory):
    data = Labelled("other", X[::-1], Y)
    [found] = examine([directory], [data], verbose=0)
    assert not found.evaluation.is_training
    [note] = found.notes
    assert note.startswith("The labels of other are those of training, but")
    np.testing.assert_array_equal(found.scrutiny.suspects.weight, np.ones(120))
    # None of several is lost, and the training data are those that fit.
    [found] = examine([directory], [data, TRAIN], verbose=0)
    assert found.evaluation.data is data
    assert found.scrutiny.data is TRAIN
    [found] = examine([directory], [data, NEW], verbose=0)
    assert found.evaluation.data is NEW


def test_training_data_in_another_order_are_doubted(directory):
    order = np.random.default_rng(0).permutation(120)
    data = Labelled("other", X[order], Y[order])
    [found] = examine([directory], [data], verbose=0)
    assert not found.evaluation.is_certain
    [note] = found.notes
    assert note.startswith("other has as many samples as the training set.")
    [found] = examine([directory], [NEW], verbose=0)
    assert found.evaluation.is_certain


def test_a_run_that_is_not_finished(tmp_path):
    callback = CBNNCallback(tmp_path / "run", num_checkpoints=3)
    model = dense_model()

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if callback.history:
                raise KeyboardInterrupt

    train = callback.weighted(X, Y, batch_size=20)
    with pytest.raises(KeyboardInterrupt):
        model.fit(train, epochs=9, callbacks=[callback, Stop()], verbose=0)
    for data in ([], [NEW]):
        [found] = examine([tmp_path / "run"], data, verbose=0)
        assert found.notes == (
            "The run is not finished: there will be more members.",
        )
    assert [m.name for m in found.evaluation.models] == [
        "last member",
        "plain average",
        "ensemble",
    ]


def test_a_final_model_that_is_no_member():
    run = MemoryRun(header(dense_model()))
    model = dense_model()
    for step, is_final in ((1, False), (2, True)):
        correct = np.full(8, not is_final)
        record = {"step": step, "vote": 1.0, "is_final": is_final}
        run.add_round(record, correct, None if is_final else model)
    [found] = examine([CheckpointEnsemble(run, model)], [NEW], verbose=0)
    assert found.evaluation.last == "last member"
    [note] = found.notes
    assert note.startswith("The model at the end of training is not a member")


def test_weights_of_the_user_are_no_sign_of_hard_samples():
    """Boosting raises weights relative to those that it began with."""
    callback = CBNNCallback(num_checkpoints=2)
    own = np.where(Y == 2, 20.0, 1.0)
    train = callback.weighted(X, Y, batch_size=20, sample_weight=own)
    dense_model().fit(train, epochs=4, callbacks=[callback], verbose=0)
    [found] = examine([callback.ensemble()], [TRAIN], verbose=0)
    first = callback.history[0]
    is_right = callback.run.correct(first["step"])
    factors = np.where(is_right, np.exp(-0.01 * first["vote"]), 1)
    np.testing.assert_allclose(found.weights, factors / factors.mean())
    assert found.evaluation.is_training


def test_errors_of_the_models(directory, found):
    ensemble = CheckpointEnsemble.load(directory)
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
    np.testing.assert_allclose(found.weights, run.replay().weights * 120)
    rights = [run.correct(step) for step in found.steps]
    expected = [[np.mean(a != b) for b in rights] for a in rights]
    np.testing.assert_allclose(found.mistakes_disagreement, expected)
    by_class = [found.weights[c == Y].mean() for c in range(3)]
    np.testing.assert_allclose(found.by_class.mean, by_class)


def test_without_data_no_model_is_needed(directory):
    [found] = examine([directory])
    assert found.ensemble is None
    assert found.evaluation is None
    assert found.steps == CheckpointEnsemble.load(directory).run.members


def test_an_ensemble_that_was_selected_has_its_members_only(directory):
    chosen = CheckpointEnsemble.load(directory).select(num=2)
    for data in ([], [NEW]):
        [found] = examine([chosen], data, verbose=0)
        assert found.steps == [m["step"] for m in chosen.members]


def test_runs_on_different_data_have_their_own():
    callback, _, _, _ = trained(num_checkpoints=2)
    rare = CBNNCallback(num_checkpoints=2)
    model = dense_model()
    model.fit(
        rare.weighted(X[:60], Y[:60], batch_size=20),
        epochs=4,
        callbacks=[rare],
        verbose=0,
    )
    both = [callback.ensemble(), rare.ensemble()]
    half = Labelled("half", X[:60], Y[:60])
    first, second = examine(both, [half, TRAIN, NEW], verbose=0)
    assert first.scrutiny.data is TRAIN
    assert second.scrutiny.data is half
    assert first.evaluation.data is NEW
    assert second.evaluation.data is NEW
    # What one was trained on is not new to the other, but not its own either.
    first, second = examine(both, [half], verbose=0)
    assert first.evaluation is None
    assert second.evaluation.is_training


def test_methods_that_do_not_boost():
    callback = PlainCheckpoints(num_checkpoints=2)
    dense_model().fit(
        callback.weighted(X, Y, batch_size=20),
        epochs=2,
        callbacks=[callback],
        verbose=0,
    )
    [found] = examine([callback.ensemble()], [TRAIN], verbose=0)
    np.testing.assert_allclose(found.weights, np.ones(120))
    assert found.name == "no-cycle run"
    assert not found.run.has_bound


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (["a"], ["a"]),
        (["runs/a/"], ["a"]),
        (["/x/a", "/y/a", "/x/b"], ["x/a", "y/a", "x/b"]),
        (["b/a", "a"], ["b/a", "a"]),
        (["a", "a"], ["a (1)", "a (2)"]),
        (["."], ["."]),
    ],
)
def test_short_names(places, expected):
    assert short_names(places) == expected


# --- Bad input ---


def test_two_data_sets_that_were_not_trained_on(directory):
    other = Labelled("other.npz", X[:30], Y[:30])
    with pytest.raises(
        ValueError,
        match=r"The labels of new\.npz, other\.npz are not those of training: "
        r"give one data set at most .* in the order of training\.",
    ):
        examine([directory], [NEW, other, TRAIN], verbose=0)


def test_labels_that_do_not_fit_are_named_with_their_data(directory):
    data = Labelled("bad.npz", X, Y + 1)
    with pytest.raises(ValueError, match=r"^bad\.npz: Labels must be integers"):
        examine([directory], [data])
    data = Labelled("few.npz", X[:1], Y[:1])
    with pytest.raises(ValueError, match=r"^few\.npz: two samples at least"):
        examine([directory], [data])


def test_runs_of_other_classes(directory, tmp_path):
    x, y = blobs(num_classes=4)
    callback = CBNNCallback(tmp_path / "four", num_checkpoints=2)
    model = dense_model(4)
    train = callback.weighted(x, y, batch_size=20)
    model.fit(train, epochs=3, callbacks=[callback], verbose=0)
    with pytest.raises(
        ValueError,
        match=r"different numbers of classes \(blobs has 3, four has 4\).*"
        r"Make a report for each\.",
    ):
        examine([directory, tmp_path / "four"], [NEW])
    assert len(examine([directory, tmp_path / "four"])) == 2


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
def test_inputs_that_do_not_fit(data, message, directory):
    with pytest.raises(ValueError, match=message):
        examine([directory], [Labelled("mine", data, Y)], verbose=0)


def test_a_model_that_only_python_can_load(tmp_path):
    layers = [keras.layers.Dense(3, activation="softmax")]
    model = Undescribed(layers)
    model.compile("adam", "sparse_categorical_crossentropy")
    callback = CBNNCallback(tmp_path / "run", num_checkpoints=1)
    train = callback.weighted(X, Y, batch_size=60)
    model.fit(train, epochs=3, callbacks=[callback], verbose=0)
    message = (
        r"(?s)load\(directory, model=model\).*write_report\(\[ensemble\], "
    )
    with pytest.raises(ValueError, match=message):
        examine([tmp_path / "run"], [NEW])
    assert len(examine([tmp_path / "run"])) == 1
    loaded = CheckpointEnsemble.load(tmp_path / "run", model=model)
    [found] = examine([loaded], [NEW], verbose=0)
    assert found.evaluation.labels.shape == (60,)


def test_what_is_no_run(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        examine([tmp_path])
