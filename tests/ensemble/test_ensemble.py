"""Tests of the ensemble, and of the data that it is judged by."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    Undescribed,
    blobs,
    dense_model,
    header,
    round_at,
    same,
    scored_run,
    text_model,
    trained,
)
from sklearn.metrics import accuracy_score, log_loss

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.boosting_policies import Boosting
from cbnn_keras.ensemble.voting import checked_priors
from cbnn_keras.models import keras_internals
from cbnn_keras.models.classifier import Classifier
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.manifest import Settings
from cbnn_keras.runs.run import MemoryRun
from cbnn_keras.support.faults import RunError
from cbnn_keras.trust import Trust

X, Y = blobs()
OTHER_X, OTHER_Y = blobs(60, seed=0)[0] + np.float32(0.3), blobs(60)[1]


def ensemble_of(model, votes, **changes):
    """Members with random weights; the model itself keeps its own."""
    # Put together, as the votes are made up.
    changes = {"method": "parallel", "num_samples": 10, **changes}
    changes.setdefault("num_classes", 3)
    run = MemoryRun(header(model, **changes))
    generator = np.random.default_rng(1)
    kept = model.get_weights()
    for number, vote in enumerate(votes):
        model.set_weights([generator.normal(size=w.shape) for w in kept])
        is_final = number == len(votes) - 1
        record = round_at(4 * number + 4, vote, is_final=is_final)
        run.add_round(record, generator.random(10) < 0.5, model)
    model.set_weights(kept)
    run.finish()
    return CheckpointEnsemble(run, model)


def bits(model):
    return [weight.tobytes() for weight in model.get_weights()]


def loss_of_the_user(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred)


def train(directory=None):
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = dense_model(loss=loss_of_the_user, metrics=["accuracy"])
    callback, *_ = trained(directory, model=model)
    return callback


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A trained run of six members; not to be changed."""
    directory = tmp_path_factory.mktemp("trained") / "run"
    train(directory)
    return directory


@pytest.fixture(scope="module")
def ensemble(directory):
    """Shared: what uses it leaves the model as it was, which is tested."""
    return CheckpointEnsemble.load(directory)


@pytest.fixture(scope="module")
def by_hand(directory):
    """lambda and probabilities of each member, without the package."""
    manifest = json.loads((directory / "manifest.json").read_text())
    rounds = {record["step"]: record for record in manifest["rounds"]}
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    votes, probabilities = [], []
    for step in manifest["members"]:
        error = rounds[step]["error"]
        votes.append(np.log((1 - error) / error) + np.log(2))
        model.load_weights(directory / f"members/{step}.weights.h5")
        probabilities.append(model.predict(X, verbose=0))
    return votes, probabilities


def mean_by_hand(votes, parts):
    total = sum(
        v * p.astype("float64") for v, p in zip(votes, parts, strict=True)
    )
    return total / sum(votes)


def decisions(probabilities):
    return (probabilities == probabilities.max(1, keepdims=True)).astype(float)


# --- Predictions ---


def test_votes_are_the_lambdas(ensemble, by_hand):
    assert len(ensemble) == 6
    np.testing.assert_allclose(ensemble.votes, by_hand[0], rtol=1e-12)
    assert [member["step"] for member in ensemble.members] == [
        *(4, 8, 12, 16, 20, 24)
    ]
    assert len(set(ensemble.votes)) > 1


def test_soft_voting_is_the_weighted_mean(ensemble, by_hand):
    found = ensemble.predict(X, verbose=0)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, mean_by_hand(*by_hand), rtol=1e-6)


def test_hard_voting_is_the_share_of_the_votes(ensemble, by_hand):
    votes, probabilities = by_hand
    expected = mean_by_hand(votes, [decisions(p) for p in probabilities])
    found = ensemble.predict(X, voting="hard", verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert (found.max(axis=1) < 1).any()  # they do not all agree


def test_stages_are_the_means_of_the_first_members(ensemble, by_hand):
    votes, probabilities = by_hand
    stages = list(ensemble.staged_predict(X, verbose=0))
    assert len(stages) == 6
    for num, stage in enumerate(stages, start=1):
        expected = mean_by_hand(votes[:num], probabilities[:num])
        np.testing.assert_allclose(stage, expected, rtol=1e-6)
    np.testing.assert_allclose(stages[0], probabilities[0], rtol=1e-6)
    np.testing.assert_array_equal(stages[-1], ensemble.predict(X, verbose=0))


def test_probabilities_are_divided_by_the_priors(ensemble, by_hand):
    votes, probabilities = by_hand
    priors = [0.7, 0.2, 0.1]
    stages = list(ensemble.staged_predict(X, priors=priors, verbose=0))
    assert len(stages) == 6
    for num, stage in enumerate(stages, start=1):
        weighted = mean_by_hand(votes[:num], probabilities[:num]) / priors
        expected = weighted / weighted.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(stage, expected, rtol=1e-6)
        assert stage.dtype == np.float32
    found = ensemble.predict(X, priors=priors, verbose=0)
    np.testing.assert_array_equal(stages[-1], found)
    # Counts do as well, and equal ones change nothing.
    np.testing.assert_allclose(
        ensemble.predict(X, priors=[70, 20, 10], verbose=0), found, rtol=1e-6
    )
    np.testing.assert_allclose(
        ensemble.predict(X, priors=[5, 5, 5], verbose=0),
        ensemble.predict(X, verbose=0),
        rtol=1e-6,
    )


def test_evaluation_with_priors(ensemble):
    priors = np.array([0.98, 0.01, 0.01])
    found = ensemble.evaluate(X, Y, priors=priors, verbose=0)
    probabilities = ensemble.predict(X, priors=priors, verbose=0)
    assert found["accuracy"] == accuracy_score(Y, probabilities.argmax(axis=1))
    of_truth = probabilities[np.arange(len(Y)), Y].astype("float64")
    assert found["negative_log_likelihood"] == pytest.approx(
        -np.log(of_truth).mean()
    )
    assert found != ensemble.evaluate(X, Y, verbose=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"priors": [0.5, 0.5]},
            r"^priors have the shape \(2,\), but there are 3 classes: give "
            r"\(3,\), such as class_priors\(labels, num_classes\)\.$",
        ),
        ({"priors": [1, 0, 1]}, "^priors must be positive .*; class 1 has 0"),
        ({"priors": [1, 1, np.nan]}, "^priors must be .*; class 2 has nan"),
        (
            {"priors": [1, 1, 1], "voting": "hard"},
            r"^priors are for voting='soft': they divide probabilities, and "
            r"voting='hard' counts predicted classes\. Leave one of the two",
        ),
    ],
)
@pytest.mark.parametrize(
    "method", ["predict", "staged_predict", "evaluate", "as_model"]
)
def test_priors_that_do_not_fit(ensemble, method, options, message):
    arguments = {"evaluate": (X, Y), "as_model": ()}.get(method, (X,))
    with pytest.raises(ValueError, match=message):
        getattr(ensemble, method)(*arguments, **options)


def test_members_predict_by_themselves(ensemble, by_hand):
    found = list(ensemble.member_probabilities(X, verbose=0))
    np.testing.assert_allclose(found, by_hand[1], rtol=1e-6)


@pytest.mark.parametrize("voting", ["soft", "hard"])
def test_equal_votes_are_the_plain_mean(voting):
    ensemble = ensemble_of(dense_model(), [2.5, 2.5, 2.5])
    parts = np.array(list(ensemble.member_probabilities(X, verbose=0)))
    if voting == "hard":
        parts = np.array([decisions(part) for part in parts])
    found = ensemble.predict(X, voting=voting, verbose=0)
    np.testing.assert_allclose(found, parts.mean(axis=0), rtol=1e-6)


def test_logits_are_turned_into_probabilities_before_the_mean():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    ensemble = ensemble_of(model, [1.0, 3.0], from_logits=True)
    logits = []
    for step in (4, 8):
        ensemble.run.load_member(step, model)
        logits.append(X @ model.get_weights()[0] + model.get_weights()[1])
    raised = [np.exp(z.astype("float64")) for z in logits]
    softmax = [r / r.sum(axis=1, keepdims=True) for r in raised]
    np.testing.assert_allclose(
        ensemble.predict(X, verbose=0),
        mean_by_hand([1, 3], softmax),
        rtol=1e-5,
        atol=1e-7,
    )


@pytest.mark.parametrize("from_logits", [False, True])
def test_binary_models_give_the_probability_of_class_one(from_logits):
    last = keras.layers.Dense(1, None if from_logits else "sigmoid")
    model = keras.Sequential([keras.Input((4,)), last])
    ensemble = ensemble_of(
        model,
        [1.0, 3.0],
        num_classes=2,
        is_binary=True,
        from_logits=from_logits,
    )
    sigmoids = []
    for step in (4, 8):
        ensemble.run.load_member(step, model)
        kernel, bias = (w.astype("float64") for w in model.get_weights())
        sigmoids.append(1 / (1 + np.exp(-(X @ kernel + bias))))
    soft, hard = (
        ensemble.predict(X, voting=voting, verbose=0)
        for voting in ("soft", "hard")
    )
    expected = mean_by_hand([1, 3], sigmoids)
    np.testing.assert_allclose(soft, expected, rtol=1e-5, atol=1e-7)
    expected = mean_by_hand([1, 3], [s > 0.5 for s in sigmoids])
    np.testing.assert_allclose(hard, expected, rtol=1e-6)
    labels = (X[:, :1] > 0).astype(int)
    found = ensemble.evaluate(X, labels, verbose=0)
    assert found["accuracy"] == accuracy_score(labels, soft > 0.5)
    assert found["negative_log_likelihood"] == pytest.approx(
        log_loss(labels[:, 0], soft[:, 0].astype("float64").clip(1e-7))
    )


def test_batches_and_datasets_change_nothing(ensemble):
    expected = ensemble.predict(X, verbose=0)
    for inputs, batch_size in (
        (X, 7),
        (X, 1),
        (tf.data.Dataset.from_tensor_slices(X).batch(13), None),
    ):
        found = ensemble.predict(inputs, batch_size=batch_size, verbose=0)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_arrays_are_made_into_batches_once_for_all_members(
    ensemble, monkeypatch
):
    made = []
    make = keras_internals.batches_of_arrays
    monkeypatch.setattr(
        keras_internals,
        "batches_of_arrays",
        lambda *given: made.append(given) or make(*given),
    )
    read = []
    monkeypatch.setattr(
        Classifier,
        "predict",
        lambda self, model, x, size: read.append(x) or np.ones((len(X), 3)),
    )
    ensemble.predict(X, batch_size=7, verbose=0)
    list(ensemble.member_probabilities(X, verbose=0))
    assert [size for _, size in made] == [7, None]
    assert len(read) == 12 and len(set(map(id, read))) == 2
    assert all(isinstance(inputs, tf.data.Dataset) for inputs in read)


def test_progress_bar_is_not_left_on_the_screen(ensemble, capsys):
    ensemble.predict(X)
    assert capsys.readouterr().out.strip() == ""


@pytest.mark.parametrize("method", ["predict", "evaluate", "as_model"])
def test_unknown_voting_is_refused(ensemble, method):
    arguments = {"predict": (X,), "evaluate": (X, Y), "as_model": ()}[method]
    with pytest.raises(
        ValueError, match="voting must be 'soft' or 'hard', not 'median'"
    ):
        getattr(ensemble, method)(*arguments, voting="median")


def test_the_classifier_is_that_of_the_run(ensemble):
    assert ensemble.classifier == Classifier(
        num_classes=3, is_binary=False, from_logits=False
    )
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    changes = {"num_classes": 2, "is_binary": True, "from_logits": True}
    assert ensemble_of(model, [1.0], **changes).classifier == Classifier(
        num_classes=2, is_binary=True, from_logits=True
    )


def test_voting_is_checked():
    classifier = Classifier(3, False, False)
    assert checked_priors("hard", None, classifier) is None
    np.testing.assert_allclose(
        checked_priors("soft", [1, 1, 2], classifier), [0.25, 0.25, 0.5]
    )
    for voting in ("Soft", "", None):
        text = f"^voting must be 'soft' or 'hard', not {voting!r}.$"
        with pytest.raises(ValueError, match=text):
            checked_priors(voting, None, classifier)


def test_run_without_members_gives_no_ensemble():
    with pytest.raises(ValueError, match="^The run has no members yet: train"):
        ensemble_of(dense_model(), [])


def test_run_that_has_just_begun_is_not_taken_for_one_of_a_subclassed_model(
    tmp_path,
):
    model = Undescribed([keras.layers.Dense(3, activation="softmax")])
    model(X)
    RunDirectory.create(tmp_path / "run", header(model, num_classes=3), model)
    with pytest.raises(ValueError, match="^The run has no members yet: train"):
        CheckpointEnsemble.load(tmp_path / "run")


# --- The model is given back as it was ---


def predict_and_fail(ensemble):
    errors = (ValueError, tf.errors.InvalidArgumentError)
    with pytest.raises(errors, match="(?i)incompatible|matrix"):
        ensemble.predict(X[:, :2], verbose=0)


def abandon(ensemble):
    stages = ensemble.staged_predict(X, verbose=0)
    next(stages)
    next(stages)


@pytest.mark.parametrize(
    "use",
    [
        lambda e: e.predict(X, verbose=0),
        lambda e: e.evaluate(X, Y, voting="hard", verbose=0),
        lambda e: list(e.staged_predict(X, verbose=0)),
        abandon,
        predict_and_fail,
        lambda e: e.select(validation_data=(X, Y), verbose=0),
        lambda e: e.as_model(),
        lambda e: e.member_models(),
        lambda e: e.take([8]).predict(X, verbose=0),
    ],
)
def test_weights_of_the_model_are_put_back(use):
    model = dense_model()
    for variable in model.optimizer.variables:  # as if it had been trained
        variable.assign(np.full(variable.shape, 7))
    ensemble = ensemble_of(model, [1.0, 2.0, 3.0])
    before = bits(model)
    optimizer = [v.numpy().tobytes() for v in model.optimizer.variables]
    name = model.name
    use(ensemble)
    assert bits(model) == before
    assert model.name == name and model.compiled
    assert [v.numpy().tobytes() for v in model.optimizer.variables] == optimizer


def test_weights_are_back_between_two_stages():
    model = dense_model()
    ensemble = ensemble_of(model, [1.0, 2.0])
    before = bits(model)
    assert [bits(model) for _ in ensemble.staged_predict(X, verbose=0)] == [
        *(before, before)
    ]


def test_weights_are_put_back_after_saving(tmp_path):
    model = dense_model()
    ensemble = ensemble_of(model, [1.0, 2.0])
    before = bits(model)
    ensemble.save(tmp_path / "run")
    assert bits(model) == before


# --- Evaluation ---


def as_dataset(x, y, batch_size=13):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)


@pytest.mark.parametrize("voting", ["soft", "hard"])
def test_evaluation_is_that_of_scikit_learn(ensemble, voting):
    probabilities = ensemble.predict(OTHER_X, voting=voting, verbose=0)
    probabilities = probabilities.astype("float64").clip(1e-7)
    normed = probabilities / probabilities.sum(axis=1, keepdims=True)
    found = ensemble.evaluate(OTHER_X, OTHER_Y, voting=voting, verbose=0)
    assert found == {
        "accuracy": accuracy_score(OTHER_Y, probabilities.argmax(axis=1)),
        "negative_log_likelihood": pytest.approx(
            log_loss(OTHER_Y, normed), rel=1e-5
        ),
    }
    assert 0.3 < found["accuracy"] < 1


@pytest.mark.parametrize(
    "data",
    [
        lambda: (OTHER_X, OTHER_Y[:, None]),
        lambda: (OTHER_X, np.eye(3)[OTHER_Y]),
        lambda: (as_dataset(OTHER_X, OTHER_Y),),
        lambda: (as_dataset(OTHER_X, np.eye(3)[OTHER_Y]),),
        # with sample weights, which do not count
        lambda: (
            as_dataset(OTHER_X, OTHER_Y).map(lambda x, y: (x, y, x[:, 0])),
        ),
        # shuffled once and for all
        lambda: (
            tf.data.Dataset.from_tensor_slices((OTHER_X, OTHER_Y))
            .shuffle(60, seed=3, reshuffle_each_iteration=False)
            .batch(7),
        ),
    ],
)
def test_evaluation_of_labels_and_datasets_of_any_form(ensemble, data):
    expected = ensemble.evaluate(OTHER_X, OTHER_Y, verbose=0)
    found = ensemble.evaluate(*data(), verbose=0)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("structure", ["tuple", "dict"])
def test_dataset_of_several_inputs(structure):
    inputs = [keras.Input((2,), name=name) for name in ("a", "b")]
    joined = keras.layers.Concatenate()(inputs)
    outputs = keras.layers.Dense(3, "softmax")(joined)
    parts = (OTHER_X[:, :2], OTHER_X[:, 2:])
    x = parts
    if structure == "dict":
        inputs, x = {t.name: t for t in inputs}, dict(a=parts[0], b=parts[1])
    ensemble = ensemble_of(keras.Model(inputs, outputs), [1.0, 2.0])
    arrays = x if structure == "dict" else list(x)
    expected = ensemble.evaluate(arrays, OTHER_Y, verbose=0)
    found = ensemble.evaluate(as_dataset(x, OTHER_Y), verbose=0)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda: (X,), "^The labels are missing: give `x, y` or a tf.data"),
        (lambda: (as_dataset(X, Y), Y), "^A dataset brings its own labels"),
        (
            lambda: (as_dataset(X, Y).map(lambda x, y: x),),
            r"^The dataset must give batches \(x, y\).*Its elements are Tens",
        ),
        (
            lambda: (as_dataset(X, Y).unbatch(),),
            r"must give batches \(x, y\).*add `.batch.*elements are \(",
        ),
        (
            lambda: (as_dataset(X, Y).unbatch().shuffle(120).batch(20),),
            "^The dataset gives its samples in another order in every pass.*"
            r"Remove `.shuffle\(...\)`",
        ),
        (lambda: (X, Y + 1), r"^Labels must be integers in 0\.\.2"),
    ],
)
def test_data_that_cannot_be_evaluated(ensemble, arguments, message):
    with pytest.raises(ValueError, match=message):
        ensemble.evaluate(*arguments(), verbose=0)


# --- Selection ---


def steps(ensemble):
    return [member["step"] for member in ensemble.members]


@pytest.mark.parametrize(
    ("num", "expected"),
    [
        (1, [24]),
        (2, [12, 24]),
        (3, [8, 16, 24]),
        (6, [4, 8, 12, 16, 20, 24]),
        (100, [4, 8, 12, 16, 20, 24]),
    ],
)
def test_selection_at_equal_intervals(ensemble, num, expected):
    selected = ensemble.select(num)
    assert steps(selected) == expected
    by_step = dict(zip(steps(ensemble), ensemble.votes, strict=True))
    assert list(selected.votes) == [by_step[step] for step in expected]
    assert len(ensemble) == 6  # as before


def test_selected_members_predict(ensemble, by_hand):
    votes, parts = by_hand
    selected = ensemble.select(num=2)
    np.testing.assert_allclose(
        selected.predict(X, verbose=0),
        mean_by_hand([votes[2], votes[5]], [parts[2], parts[5]]),
        rtol=1e-6,
    )


def test_selection_by_accuracy_is_never_worse_than_the_final_model(ensemble):
    final = ensemble.select(num=1)
    for seed in range(4):
        chosen = np.random.default_rng(seed).choice(60, 25)
        data = (OTHER_X[chosen], OTHER_Y[chosen])
        selected = ensemble.select(
            validation_data=data, by="accuracy", verbose=0
        )
        assert steps(selected)[-1] == 24
        better, alone = (
            e.evaluate(*data, verbose=0)["accuracy"] for e in (selected, final)
        )
        assert better >= alone


def test_selection_leaves_out_what_does_harm():
    """Members that say 0, 1, and the label: the last is kept alone."""
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, "sigmoid")]
    )
    changes = {"num_classes": 2, "is_binary": True}
    ensemble = ensemble_of(model, [1.0, 1.0, 1.0], **changes)
    run = ensemble.run
    for step, (slope, bias) in zip(
        run.members, [(0, -50), (0, 50), (50, 0)], strict=True
    ):
        run._weights[step] = [np.array([[slope]]), np.array([bias])]
    x = np.array([[-1.0], [1.0], [2.0], [-2.0]])
    y = np.array([0, 1, 1, 0])
    options = {"by": "accuracy", "verbose": 0}
    selected = ensemble.select(validation_data=(x, y), **options)
    assert steps(selected) == [12]
    found = ensemble.select(validation_data=as_dataset(x, y, 3), **options)
    assert steps(found) == [12]


@pytest.mark.parametrize(
    "options",
    [
        {"by": "recall"},  # compiled, by its name
        {"by": keras.metrics.Recall(name="mine")},
        {"by": lambda y, p: p[y == 1].min()},
        {"by": lambda y, p: -p[y == 1].min(), "mode": "min"},
    ],
    ids=["compiled", "metric", "function", "min"],
)
def test_selection_by_what_the_user_says(options):
    """Of two members, only the first finds the class 1: it joins the last."""
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, "sigmoid")]
    )
    model.compile(loss="binary_crossentropy", metrics=[keras.metrics.Recall()])
    changes = {"num_classes": 2, "is_binary": True}
    ensemble = ensemble_of(model, [1.5, 1.0, 1.0], **changes)
    run = ensemble.run
    for step, bias in zip(run.members, (5, -5, -5), strict=True):
        run._weights[step] = [np.array([[0.0]]), np.array([bias])]
    # By accuracy the last one alone is best: most are of class 0.
    x, y = np.zeros((5, 1)), np.array([0, 0, 0, 0, 1])
    data = {"validation_data": (x, y), "verbose": 0}
    assert steps(ensemble.select(by="accuracy", **data)) == [12]
    assert steps(ensemble.select(**options, **data)) == [4, 12]


def test_selection_by_likelihood_gives_votes_to_what_helps(tmp_path):
    """The last of three members says the label, the others nothing of use."""
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, "sigmoid")]
    )
    changes = {"num_classes": 2, "is_binary": True}
    ensemble = ensemble_of(model, [2.0, 2.0, 2.0], **changes)
    run = ensemble.run
    for step, (slope, bias) in zip(
        run.members, [(0, -50), (0, 50), (50, 0)], strict=True
    ):
        run._weights[step] = [np.array([[slope]]), np.array([bias])]
    x = np.array([[-1.0], [1.0], [2.0], [-2.0]])
    y = np.array([0, 1, 1, 0])
    selected = ensemble.select(validation_data=(x, y), verbose=0)
    # 25 rounds of the mean vote, 2, for the third: (2 + 2 * 25 + 2) / 56.
    assert selected.votes.tolist() == [2.0, 2.0, 52.0]
    np.testing.assert_allclose(
        selected.predict(x, verbose=0).ravel(),
        [2 / 56, 54 / 56, 54 / 56, 2 / 56],
        rtol=1e-6,
    )
    assert ensemble.votes.tolist() == [2.0, 2.0, 2.0]  # as before
    # Parts of it, and copies on disk, have these votes too.
    assert selected.take([4, 12]).votes.tolist() == [2.0, 52.0]
    selected.save(tmp_path / "run")
    loaded = CheckpointEnsemble.load(tmp_path / "run")
    assert loaded.votes.tolist() == [2.0, 2.0, 52.0]


def test_selection_by_likelihood_asks_members_that_were_not_trusted():
    """The first gets no training sample right, and all of the others."""
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, "sigmoid")]
    )
    settings = Settings(Boosting(trust=Trust(margin=0.0)))
    changes = {"num_classes": 2, "is_binary": True, "num_samples": 10}
    run = MemoryRun(header(model, settings=settings, **changes))
    for step, slope in ((4, 50.0), (8, 0.0)):
        model.set_weights([np.array([[slope]]), np.array([0.0])])
        run.add_round(round_at(step, 3.0), np.full(10, step == 8), model)
    ensemble = CheckpointEnsemble(run, model)
    assert steps(ensemble) == [8]
    x = np.array([[-1.0], [1.0], [2.0], [-2.0]])
    y = np.array([0, 1, 1, 0])
    options = {"validation_data": (x, y), "verbose": 0}
    # p(label) is 1 for one member and 1/2 for the other: every round helps.
    selected = ensemble.select(**options)
    assert steps(selected) == [4, 8]
    assert selected.votes.tolist() == [75.0, 3.0]
    # Members that were chosen by hand stay the only ones.
    everyone = CheckpointEnsemble(run, model, run.members)
    assert steps(everyone.take([4]).select(**options)) == [4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either `num` or `validation_data`; received num=None and valid"),
        (
            {"num": 2, "validation_data": (X, Y)},
            r"received num=2 and validation_data=\.\.\.",
        ),
        (
            {"validation_data": (X, Y), "by": "luck"},
            r"^select\(by='luck'\): by must be 'likelihood' or one of "
            "'accuracy', 'negative_log_likelihood'. Compile the model with",
        ),
        (
            {"validation_data": (X, Y), "by": 3},
            r"^select\(by=3\): by must be 'likelihood', a name that `evalu",
        ),
        (
            {"validation_data": (X, Y), "by": keras.metrics.AUC},  # no object
            r"^select\(by=<class .*: by must be 'likelihood', a name that `eva",
        ),
        (
            {"validation_data": (X, Y), "by": lambda y, p: np.nan},
            r"^select\(by=...\): it gave array\(nan\) for an ensemble, whi",
        ),
        (
            {"validation_data": (X, Y), "mode": "up"},
            r"^select\(mode='up'\): mode must be 'max' or 'min'",
        ),
        ({"num": 0}, r"^select\(num=0\): num must be an integer of at least 1"),
        ({"num": 2.5}, r"^select\(num=2\.5\): num must be an integer"),
        ({"validation_data": X}, "^validation_data must be .* received ndarra"),
        ({"validation_data": (X, None)}, "^The labels are missing"),
    ],
)
def test_selection_that_cannot_be_made(ensemble, arguments, message):
    with pytest.raises(ValueError, match=message):
        ensemble.select(**arguments, verbose=0)


# --- Votes by hand ---


def test_votes_of_the_users_own(ensemble, by_hand):
    _, parts = by_hand
    chosen = ensemble.select(num=1).with_votes({12: 1, 4: 3.0})
    assert steps(chosen) == [4, 12] and chosen.votes.tolist() == [3.0, 1.0]
    np.testing.assert_allclose(
        chosen.predict(X, verbose=0),
        mean_by_hand([3.0, 1.0], [parts[0], parts[2]]),
        rtol=1e-6,
    )


@pytest.mark.parametrize(
    ("votes", "message"),
    [
        ({5: 1.0}, r"^The run has no members of the steps \[5\]; it has \[4, "),
        ({}, r"^The run has no members of the steps \[\]"),
        ({4: 0.0}, r"^with_votes\(\{4: 0.0\}\): votes must be positive, from "),
        ({4: np.inf}, "must be positive, from 1e-09 to 1e"),
    ],
)
def test_votes_that_cannot_be(ensemble, votes, message):
    with pytest.raises(ValueError, match=message):
        ensemble.with_votes(votes)


# --- Members by their steps ---


@pytest.mark.parametrize(
    "chosen",
    [
        [8, 16, 24],
        [24, 8, 16],
        (16, 24, 8),
        {24, 16, 8},
        np.array([16, 8, 24]),
        (step for step in (24, 16, 8)),
    ],
)
def test_members_are_taken_in_the_order_of_their_steps(
    ensemble, by_hand, chosen
):
    taken = ensemble.take(chosen)
    assert steps(taken) == [8, 16, 24]
    votes, parts = by_hand
    np.testing.assert_allclose(taken.votes, votes[1::2], rtol=1e-12)
    np.testing.assert_allclose(
        taken.predict(X, verbose=0),
        mean_by_hand(votes[1::2], parts[1::2]),
        rtol=1e-6,
    )
    assert len(ensemble) == 6  # as before


def test_one_member_is_taken(ensemble, by_hand):
    taken = ensemble.take([12])
    found = taken.predict(X, verbose=0)
    np.testing.assert_allclose(found, by_hand[1][2], rtol=1e-6)


@pytest.mark.parametrize(
    ("chosen", "missing"),
    [([5], "5"), ([28, 8, 0], "0, 28"), ([4, -4], "-4")],
)
def test_steps_that_are_not_those_of_members(ensemble, chosen, missing):
    with pytest.raises(
        ValueError,
        match=rf"^The ensemble has no members of the steps \[{missing}\]; it "
        r"has \[4, 8, 12, 16, 20, 24\].$",
    ):
        ensemble.take(chosen)


def test_members_that_were_not_taken_are_not_there(ensemble):
    taken = ensemble.take([4, 8])
    with pytest.raises(
        ValueError, match=r"no members of the steps \[12\]; it has \[4, 8\]"
    ):
        taken.take([8, 12])


def test_a_step_given_twice_is_one_member(ensemble):
    assert steps(ensemble.take([8, 4, 8])) == [4, 8]


def test_no_steps_are_refused_and_not_called_a_run_without_members(ensemble):
    with pytest.raises(
        ValueError,
        match=r"^The ensemble has no members of the steps \[\]; it has \[4, 8,",
    ):
        ensemble.take([])


def test_steps_of_numpy_are_plain_numbers_in_the_message(ensemble):
    with pytest.raises(ValueError, match=r"of the steps \[5\]; it has"):
        ensemble.take(np.array([4, 5]))


# --- A model for each member ---


def test_models_of_the_members(ensemble, by_hand):
    models = ensemble.take([4, 16]).member_models()
    for model, part in zip(models, by_hand[1][::3], strict=True):
        np.testing.assert_allclose(model.predict(X, verbose=0), part, rtol=1e-6)
    before = bits(models[1])
    models[0].set_weights([np.zeros_like(w) for w in models[0].get_weights()])
    assert bits(models[1]) == before
    expected = ensemble.take([4]).predict(X, verbose=0)
    np.testing.assert_allclose(expected, by_hand[1][0], rtol=1e-6)


# --- Members in float32 ---


def half_model(policy):
    keras.config.set_dtype_policy(policy)
    part = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, "relu")]
        + [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    )
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(3, "softmax")(part(inputs))
    keras.config.set_dtype_policy("float32")
    return keras.Model(inputs, outputs)


def positive_ensemble(model, votes):
    """As `ensemble_of`, with variances that can be."""
    ensemble = ensemble_of(model, votes)
    weights = ensemble.run._weights
    for step in weights:
        weights[step] = [np.abs(weight) for weight in weights[step]]
    return ensemble


@pytest.mark.parametrize(
    ("policy", "where"),
    # On disk weights of mixed_float16 are those of any other run.
    [("mixed_float16", "memory"), ("bfloat16", "memory"), ("bfloat16", "disk")],
)
def test_members_in_float32(policy, where, tmp_path):
    model = half_model(policy)
    ensemble = positive_ensemble(model, [1.0, 3.0])
    plain, parts = half_model("float32"), []
    for step in (4, 8):
        weights = ensemble.run._weights[step]
        plain.set_weights([weight.astype("float32") for weight in weights])
        parts.append(plain.predict(X, verbose=0))
    expected = mean_by_hand([1, 3], parts)
    if where == "disk":
        ensemble.save(tmp_path / "run")
        ensemble = CheckpointEnsemble.load(tmp_path / "run")
    before = bits(model)
    found = ensemble.in_float32()
    assert steps(found) == [4, 8]
    np.testing.assert_array_equal(found.votes, [1.0, 3.0])
    np.testing.assert_allclose(found.predict(X, verbose=0), expected, rtol=1e-5)
    # As training computed, it is something else.
    half = ensemble.predict(X, verbose=0)
    assert np.abs(half - expected).max() > 1e-5
    np.testing.assert_allclose(half, expected, atol=0.05)
    assert bits(model) == before
    assert found.in_float32() is found


@pytest.mark.parametrize("policy", ["float32", "float64"])
def test_members_that_are_in_float32_stay_what_they_are(policy):
    ensemble = ensemble_of(half_model(policy), [1.0, 2.0])
    assert ensemble.in_float32() is ensemble


def test_members_taken_and_put_in_float32_are_merged():
    ensemble = positive_ensemble(half_model("mixed_float16"), [1.0, 2.0, 4.0])
    taken = ensemble.take([12, 4]).in_float32()
    assert steps(taken) == [4, 12]
    merged = taken.as_model()
    assert {str(weight.dtype) for weight in merged.weights} == {"float32"}
    np.testing.assert_allclose(
        merged.predict(X, verbose=0), taken.predict(X, verbose=0), atol=1e-6
    )


def test_members_of_a_class_without_a_description_stay_in_half_precision():
    keras.config.set_dtype_policy("mixed_float16")
    ensemble = ensemble_of(undescribed_model(), [1.0])
    with pytest.raises(
        ValueError,
        match="^Keras cannot copy Undescribed. Give Undescribed a `get_config`",
    ):
        ensemble.in_float32()


# --- Saving and loading ---


def test_ensemble_in_memory_is_saved_and_loaded(tmp_path):
    callback = train()
    ensemble = callback.ensemble()
    ensemble.save(tmp_path / "run")
    loaded = CheckpointEnsemble.load(tmp_path / "run")
    np.testing.assert_array_equal(
        loaded.predict(X, verbose=0), ensemble.predict(X, verbose=0)
    )
    np.testing.assert_array_equal(loaded.votes, ensemble.votes)
    assert loaded.run.records() == callback.history
    assert loaded.run.header == ensemble.run.header
    for step in steps(ensemble):
        np.testing.assert_array_equal(
            loaded.run.correct(step), ensemble.run.correct(step)
        )


def test_run_in_memory_is_saved_as_the_run_on_disk(directory, tmp_path):
    train().ensemble().save(tmp_path / "run")
    for name in ("members", "rounds"):
        files = sorted(os.listdir(directory / name))
        assert files and sorted(os.listdir(tmp_path / "run" / name)) == files
        for file in files:
            saved = (tmp_path / "run" / name / file).read_bytes()
            assert saved == (directory / name / file).read_bytes()
    manifests = [
        json.loads((path / "manifest.json").read_text())
        for path in (directory, tmp_path / "run")
    ]
    for manifest in manifests:
        del manifest["files"]["model.keras"]  # of the start, of the end
        del manifest["sha256"]
    assert manifests[0] == manifests[1]


def test_selected_members_alone_are_saved(ensemble, tmp_path):
    selected = ensemble.select(num=2)
    selected.save(tmp_path / "run")
    assert sorted(os.listdir(tmp_path / "run/members")) == [
        "12.weights.h5",
        "24.weights.h5",
    ]
    loaded = CheckpointEnsemble.load(tmp_path / "run")
    assert steps(loaded) == [12, 24]
    np.testing.assert_array_equal(
        loaded.predict(X, verbose=0), selected.predict(X, verbose=0)
    )
    # The history is that of the training.
    assert len(loaded.run.rounds) == 6
    np.testing.assert_array_equal(
        loaded.run.replay().distribution, ensemble.run.replay().distribution
    )


def test_starting_weights_of_the_user_are_saved(tmp_path):
    base = np.arange(1, 11) / 55
    ensemble = ensemble_of(dense_model(), [1.0])
    ensemble.run._own_distribution = base
    ensemble.save(tmp_path / "run")
    loaded = CheckpointEnsemble.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.run.own_distribution, base)


def test_saving_does_not_overwrite_a_run(ensemble, directory, tmp_path):
    before = (directory / "manifest.json").read_bytes()
    with pytest.raises(ValueError, match="run already holds a run, which is"):
        ensemble.save(directory)
    assert (directory / "manifest.json").read_bytes() == before
    ensemble.save(tmp_path / "run")
    with pytest.raises(ValueError, match="run already holds a run, which is"):
        ensemble.save(tmp_path / "run")


def test_directory_may_be_given_as_text(directory):
    assert len(CheckpointEnsemble.load(str(directory))) == 6


CHILD = """
import sys
import numpy as np
from cbnn_keras import CheckpointEnsemble
for name in sys.argv[1:]:
    x = np.load(name + "-x.npy")
    if x.dtype.kind == "U":
        import tensorflow as tf
        x = tf.constant(x)
    np.save(name + "-y.npy", CheckpointEnsemble.load(name).predict(x))
"""


@pytest.mark.large
def test_run_is_loaded_by_another_process_without_the_code_of_the_user(
    directory, tmp_path
):
    texts = np.array(["blue red", "pink", "green blue red"])
    ensemble_of(text_model(), [1.0, 2.0]).save(tmp_path / "text")
    CheckpointEnsemble.load(directory).save(tmp_path / "dense")
    names = []
    for name, x in (("dense", X), ("text", texts)):
        np.save(tmp_path / f"{name}-x.npy", x)
        names.append(str(tmp_path / name))
    subprocess.run([sys.executable, "-c", CHILD, *names], check=True)
    for name, x in (("dense", X), ("text", tf.constant(texts))):
        here = CheckpointEnsemble.load(tmp_path / name).predict(x, verbose=0)
        there = np.load(tmp_path / f"{name}-y.npy")
        assert here.tobytes() == there.tobytes()
        assert len(np.unique(there, axis=0)) >= 3


# --- Subclassed models ---


def undescribed_model():
    model = Undescribed([keras.layers.Dense(3, "softmax")])
    model(X[:1])
    return model


def test_subclassed_run_needs_a_model(tmp_path):
    ensemble = ensemble_of(undescribed_model(), [1.0, 2.0])
    expected = ensemble.predict(X, verbose=0)
    ensemble.save(tmp_path / "run")
    assert not (tmp_path / "run/model.keras").exists()
    with pytest.raises(
        ValueError,
        match="run holds no architecture, because the model is subclassed.*"
        r"CheckpointEnsemble.load\(directory, model=model\)",
    ):
        CheckpointEnsemble.load(tmp_path / "run")
    model = undescribed_model()
    before = bits(model)
    loaded = CheckpointEnsemble.load(tmp_path / "run", model=model)
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), expected)
    assert bits(model) == before


def test_model_without_weights_is_refused(directory):
    model = Undescribed([keras.layers.Dense(3)])
    with pytest.raises(
        ValueError, match=r"load\(model=...\): the model has no weights yet"
    ):
        CheckpointEnsemble.load(directory, model=model)


def test_class_that_is_not_known_is_asked_for(tmp_path):
    class Local(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3, "softmax")

        def call(self, x):
            return self.dense(x)

    model = Local()
    model(X[:1])
    ensemble_of(model, [1.0]).save(tmp_path / "run")
    with pytest.raises(
        ValueError,
        match="^The architecture in .*run cannot be rebuilt here.*"
        r"not known here: test_ensemble\.Local\. Open them by name, "
        r"custom_objects=\{'Local': Local\}, or on .* --import my_module\. Or "
        r"pass a model that you built: .*load\(directory, model=model\)\.$",
    ):
        CheckpointEnsemble.load(tmp_path / "run")
    loaded = CheckpointEnsemble.load(tmp_path / "run", model=model)
    assert loaded.predict(X, verbose=0).shape == (120, 3)


def test_wrong_voting_is_refused_before_the_first_stage():
    cbnn, _, x, _ = trained()
    with pytest.raises(ValueError, match="voting must be 'soft' or 'hard'"):
        cbnn.ensemble().staged_predict(x, voting="loud")


@pytest.mark.large
def test_a_directory_that_got_another_run_is_noticed(tmp_path):
    """The old votes must not meet the new weights."""
    _, _, x, _ = trained(tmp_path / "run")
    loaded = CheckpointEnsemble.load(tmp_path / "run")
    trained(tmp_path / "run", overwrite=True)
    with pytest.raises(ValueError, match="is not what was saved"):
        loaded.predict(x)


def test_a_relative_directory_outlives_chdir(tmp_path, monkeypatch):
    _, _, x, _ = trained(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    loaded = CheckpointEnsemble.load("run")
    monkeypatch.chdir("/")
    assert loaded.predict(x).shape == (120, 3)


@pytest.mark.parametrize("num", [1, 90])
def test_labels_of_another_number_than_samples_are_refused(num):
    cbnn, _, x, y = trained()
    with pytest.raises(ValueError, match=f"{num} labels for inputs of .*120"):
        cbnn.ensemble().evaluate(x, y[:num])


def test_a_generator_is_refused():
    cbnn, _, x, _ = trained()
    with pytest.raises(ValueError, match="generator can be read only once"):
        cbnn.ensemble().predict(x[i : i + 10] for i in range(0, 120, 10))


def test_repr_says_how_many_members_and_which_votes():
    cbnn, _, _, _ = trained(num_checkpoints=2)
    first, last = cbnn.ensemble().votes
    expected = f"CheckpointEnsemble(2 members, votes {first:.3f}, {last:.3f})"
    assert repr(cbnn.ensemble()) == expected


def test_lambda_layers_of_a_live_model_are_merged():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Lambda(lambda x: 2 * x),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy"
    )
    cbnn, _, x, _ = trained(model=model)
    merged = cbnn.ensemble().as_model()
    np.testing.assert_allclose(
        merged.predict(x, verbose=0), cbnn.ensemble().predict(x), atol=1e-6
    )


# --- Members are read once ---


@pytest.fixture
def reads(monkeypatch):
    """The steps of the members that were read from a directory."""
    steps, original = [], RunDirectory.load_member

    def load_member(self, step, model):
        steps.append(step)
        original(self, step, model)

    monkeypatch.setattr(RunDirectory, "load_member", load_member)
    return steps


def test_small_repeated_calls_do_not_read_the_disk_each_time(directory, reads):
    ensemble = CheckpointEnsemble.load(directory)
    first = ensemble.predict(X[:1], verbose=0)
    # The final model, which the model is to be, and then each of them once.
    assert reads == [24] + [4, 8, 12, 16, 20, 24]
    for _ in range(3):
        again = ensemble.predict(X[:1], verbose=0)
        np.testing.assert_array_equal(again, first)
    list(ensemble.member_probabilities(X[:1], verbose=0))
    ensemble.select(num=3).evaluate(X[:2], Y[:2], verbose=0)
    assert len(reads) == 7


@pytest.mark.parametrize(
    ("cache_bytes", "num_kept"),
    # 67 parameters of 4 bytes: 268 bytes a member.
    [(0, 0), (267, 0), (268, 1), (3 * 268 + 100, 3)],
)
def test_the_cache_has_the_size_that_was_asked_for(
    directory, ensemble, reads, cache_bytes, num_kept
):
    expected = ensemble.predict(X, verbose=0)
    other = CheckpointEnsemble.load(directory, cache_bytes=cache_bytes)
    reads.clear()
    for _ in range(2):
        found = other.predict(X, verbose=0)
        np.testing.assert_array_equal(found, expected)
    assert reads == [4, 8, 12, 16, 20, 24] + [4, 8, 12, 16, 20, 24][num_kept:]


@pytest.mark.parametrize("cache_bytes", [-1, 1.5, "1 GB"])
def test_sizes_of_the_cache_that_are_refused(directory, cache_bytes):
    with pytest.raises(
        ValueError, match=r"load\(cache_bytes=.*an integer of at least 0"
    ):
        CheckpointEnsemble.load(directory, cache_bytes=cache_bytes)


def test_the_users_weights_are_kept_once_for_all_members(ensemble, monkeypatch):
    num_calls, original = 0, ensemble.model.set_weights

    def set_weights(weights):
        nonlocal num_calls
        num_calls += 1
        original(weights)

    ensemble.predict(X, verbose=0)  # fills the cache
    before = bits(ensemble.model)
    monkeypatch.setattr(ensemble.model, "set_weights", set_weights)
    ensemble.predict(X, verbose=0)
    assert num_calls == 6 + 1  # each member, and the user's own in the end
    assert bits(ensemble.model) == before


@pytest.mark.parametrize("name", ["predict", "staged_predict", "evaluate"])
def test_misspelled_options_are_not_ignored(ensemble, name):
    data = (X, Y) if name == "evaluate" else (X,)
    with pytest.raises(TypeError, match="votng"):
        getattr(ensemble, name)(*data, votng="hard")


# --- Runs with something missing ---


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_run_with_a_member_missing_loads_the_others(tmp_path, is_damaged):
    cbnn, *_ = trained(tmp_path / "run", num_checkpoints=3, epochs=3)
    whole = cbnn.ensemble()
    [first, second, final] = [record.step for record in whole.rounds]
    path = tmp_path / f"run/members/{second}.weights.h5"
    if is_damaged:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    else:
        path.unlink()
    with pytest.raises(RunError, match=f"{second}.weights.h5"):
        CheckpointEnsemble.load(tmp_path / "run")
    with pytest.warns(
        UserWarning, match=f"(?s)left out .* 2 are there: .*{second}.weights.h5"
    ):
        loaded = CheckpointEnsemble.load(tmp_path / "run", allow_missing=True)
    assert steps(loaded) == [first, final]
    np.testing.assert_array_equal(
        loaded.predict(X, verbose=0),
        whole.take([first, final]).predict(X, verbose=0),
    )
    for step in (first, final):
        (tmp_path / f"run/members/{step}.weights.h5").unlink()
    with pytest.warns(UserWarning, match="0 are there"):
        with pytest.raises(ValueError, match="no members"):
            CheckpointEnsemble.load(tmp_path / "run", allow_missing=True)


def test_a_whole_run_loads_without_a_word_and_holds_the_final_model(tmp_path):
    _, model, x, _ = trained(tmp_path / "run", num_checkpoints=2)
    loaded = CheckpointEnsemble.load(tmp_path / "run", allow_missing=True)
    assert same(loaded.model.get_weights(), model.get_weights())
    loaded.predict(x, verbose=0)
    assert same(loaded.model.get_weights(), model.get_weights())
    # A model that the user brings stays as it is.
    mine = dense_model()
    before = mine.get_weights()
    CheckpointEnsemble.load(tmp_path / "run", model=mine)
    assert same(mine.get_weights(), before)


def test_missing_members_do_not_leave_their_votes_to_others(tmp_path):
    run = scored_run(tmp_path / "run")
    ensemble = CheckpointEnsemble(run, dense_model())
    first, second, third = steps(ensemble)
    chosen = ensemble.with_votes({first: 1.0, second: 2.0, third: 5.0})
    chosen.save(tmp_path / "saved")
    (tmp_path / f"saved/members/{first}.weights.h5").unlink()
    with pytest.warns(UserWarning):
        loaded = CheckpointEnsemble.load(tmp_path / "saved", allow_missing=True)
    assert loaded.votes.tolist() == [2.0, 5.0]
