"""Which members vote: all, as in the paper, or those that are trusted."""

import dataclasses

import keras
import numpy as np
import pytest
from helpers import blobs, dense_model, header, round_at, trained
from sklearn.metrics import balanced_accuracy_score

from cbnn_keras import CBNNCallback, CheckpointEnsemble, RunError, metrics
from cbnn_keras.boosting_policies import Boosting
from cbnn_keras.runs.manifest import Settings
from cbnn_keras.runs.run import MemoryRun
from cbnn_keras.training.boosting_options import Averaging
from cbnn_keras.trust import ALL, Trust


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Early members are weak: ten of the steps of this run are warm-up."""
    directory = tmp_path_factory.mktemp("trusted") / "run"
    cbnn, _, x, y = trained(
        directory, members="trusted", num_checkpoints=6, epochs=8
    )
    return directory, cbnn, x, y


def test_members_of_a_higher_training_error_do_not_vote(run):
    directory, cbnn, x, y = run
    everyone = CheckpointEnsemble.load(directory, members="all")
    errors = [
        np.mean(p.argmax(axis=1) != y)
        for p in everyone.member_probabilities(x, verbose=0)
    ]
    expected = [
        record["step"]
        for record, error in zip(cbnn.history, errors, strict=True)
        if error <= errors[-1] + 0.005 + 1e-9
    ]
    assert 1 <= len(expected) < 6
    for ensemble in (cbnn.ensemble(), CheckpointEnsemble.load(directory)):
        assert [m["step"] for m in ensemble.members] == expected
    assert len(everyone) == len(cbnn.ensemble("all")) == 6
    assert everyone.select(num=6).votes.tolist() == [
        r["vote"] for r in cbnn.history
    ]


def test_a_member_that_is_weak_in_a_rare_class_does_not_vote():
    """One of a hundred is 0.01 of the error, and a half of a class of two."""
    y = np.array([0] * 198 + [1] * 2)
    for wrong, expected in (((0,), [4, 8]), ((198,), [8])):
        model = dense_model()
        run = MemoryRun(
            header(
                model,
                num_samples=200,
                settings=Settings(Boosting(trust=Trust(0.005, 0.005))),
            )
        )
        for step, mistakes in ((4, wrong), (8, ())):
            correct = ~np.isin(np.arange(200), mistakes)
            found = metrics.class_error(correct, y, np.full(200, 1 / 200))
            run.add_round(
                dataclasses.replace(round_at(step, 1.0), class_error=found),
                correct,
                model,
            )
        assert run.voters == expected
        assert len(CheckpointEnsemble(run, model)) == len(expected)


def test_what_a_round_says_of_classes_is_that_of_its_member():
    """Against the members themselves, with weights that are not equal."""
    x, y = blobs()
    y = np.where(y == 2, np.arange(len(y)) % 2, y)
    y[:4] = 2  # a rare class
    given = 1.0 + np.arange(len(y)) % 3
    cbnn = CBNNCallback(num_checkpoints=3)
    train = cbnn.weighted(x, y, batch_size=20, seed=1, sample_weight=given)
    dense_model().fit(train, epochs=4, callbacks=[cbnn], verbose=0)
    everyone = cbnn.ensemble("all")
    for record, found in zip(
        cbnn.history, everyone.member_probabilities(x, verbose=0), strict=True
    ):
        expected = 1 - balanced_accuracy_score(
            y, found.argmax(axis=1), sample_weight=given
        )
        assert record["class_error"] == pytest.approx(expected)


def test_a_saved_ensemble_is_the_one_that_was_saved(run, tmp_path):
    """All members were asked for: they vote in the copy, too."""
    directory, cbnn, x, _ = run
    everyone = cbnn.ensemble("all")
    everyone.save(tmp_path / "run")
    loaded = CheckpointEnsemble.load(tmp_path / "run")
    np.testing.assert_array_equal(
        loaded.predict(x, verbose=0), everyone.predict(x, verbose=0)
    )
    cbnn.ensemble().save(tmp_path / "trusted")
    trusted = CheckpointEnsemble.load(tmp_path / "trusted")
    assert trusted.run.chosen_votes is None  # those of the rounds
    np.testing.assert_array_equal(
        trusted.predict(x, verbose=0), cbnn.ensemble().predict(x, verbose=0)
    )


def test_defaults():
    found = CBNNCallback().boosting
    assert (found.averaging, found.trust) == (
        Averaging(0.05),
        Trust(0.005, 0.005),
    )
    assert (found.largest_ratio, found.deviation_rate) == (1.0, None)
    # Members that start anew are worth the same, whichever comes last.
    assert CBNNCallback(restarts=3).boosting.trust == ALL
    chosen = CBNNCallback(restarts=3, members="trusted")
    assert chosen.boosting.trust == found.trust


def test_what_is_left_open_is_as_the_run_began(tmp_path):
    """Killed after two of four epochs, and resumed by another script."""
    x, y = blobs()

    def fit(epochs, **options):
        cbnn = CBNNCallback(tmp_path / "run", num_checkpoints=2, **options)
        train = cbnn.weighted(x, y, batch_size=20, seed=1)
        stop = keras.callbacks.LambdaCallback(on_epoch_begin=interrupt(epochs))
        dense_model().fit(train, epochs=4, callbacks=[cbnn, stop], verbose=0)
        return cbnn

    def interrupt(epochs):
        def begin(epoch, logs):
            if epoch == epochs:
                raise KeyboardInterrupt

        return begin

    with pytest.raises(KeyboardInterrupt):
        fit(2, deviation_rate=0.02, average=False, members="all")
    cbnn = fit(5, resume=True)
    policy = cbnn.run.header.settings.policy
    assert (policy.deviation_rate, policy.trust) == (0.02, ALL)
    assert "average" not in cbnn.run.header.settings.own
    with pytest.raises(RunError, match="average was None and is 0.1"):
        fit(5, resume=True, average=True)


def test_accuracy_in_the_logs_is_that_of_the_voters():
    x, y = blobs()
    model = dense_model()
    cbnn = CBNNCallback(
        members="trusted", num_checkpoints=3, validation_data=(x, y)
    )
    train = cbnn.weighted(x, y, batch_size=20, seed=1)
    log = model.fit(train, epochs=6, callbacks=[cbnn], verbose=0).history
    found = cbnn.ensemble().evaluate(x, y, verbose=0)["accuracy"]
    assert log["val_ensemble_accuracy"][-1] == pytest.approx(found)


def test_the_paper_lets_all_vote_as_they_are(run):
    directory, _, x, y = run
    cbnn, model, _, _ = trained(num_checkpoints=3)
    paper = CBNNCallback.paper(num_checkpoints=3).boosting
    assert (paper.averaging, paper.trust) == (None, ALL)
    assert paper.deviation_rate == 0.01
    assert len(cbnn.ensemble()) == 3
    np.testing.assert_array_equal(
        list(cbnn.ensemble().member_probabilities(x, verbose=0))[-1],
        model.predict(x, verbose=0),
    )
    assert CBNNCallback.paper(deviation_rate=None).boosting == paper
    for name in ("average", "members", "largest_ratio", "restarts"):
        with pytest.raises(ValueError, match=rf"^CBNNCallback.paper\({name}="):
            CBNNCallback.paper(**{name: None})


def test_largest_ratio_is_about_the_ratio_in_the_end():
    """Blobs that overlap: some samples are wrong at every checkpoint."""
    cbnn, _, _, _ = trained(
        largest_ratio=3.0, expected_error=0.15, num_checkpoints=4, epochs=8
    )
    weights = cbnn.sample_weights.numpy()
    assert 2 < weights.max() / weights.min() < 4.5
    plain, _, _, _ = trained(largest_ratio=1.0, num_checkpoints=4)
    assert np.ptp(plain.sample_weights.numpy()) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": "best"}, "members='best'.: must be 'trusted' or 'all'"),
        (
            {"largest_ratio": 0.5},
            "must be a number of at least 1",
        ),
        (
            {"largest_ratio": 2, "deviation_rate": 0.1},
            "deviation_rate=0.1, largest_ratio=2.: give one of them",
        ),
    ],
    ids=str,
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        CBNNCallback(**options)


def test_members_that_nobody_knows(run):
    with pytest.raises(ValueError, match="members='best': must be 'trusted'"):
        CheckpointEnsemble.load(run[0], members="best")
