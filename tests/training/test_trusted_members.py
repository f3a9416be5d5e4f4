"""Which members vote: all, as in the paper, or those that are trusted."""

import numpy as np
import pytest
from helpers import blobs, dense_model, trained

from cbnn_keras import CBNNCallback, CheckpointEnsemble


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Early members are weak: ten of the steps of this run are warm-up."""
    directory = tmp_path_factory.mktemp("trusted") / "run"
    cbnn, _, x, y = trained(
        directory, members="trusted", num_checkpoints=6, epochs=8
    )
    return directory, cbnn, x, y


def test_members_of_a_much_lower_likelihood_do_not_vote(run):
    directory, cbnn, x, y = run
    likelihoods = {
        r["step"]: r["negative_log_likelihood"] for r in cbnn.history
    }
    limit = 1.25 * likelihoods[cbnn.history[-1]["step"]]
    expected = [step for step, value in likelihoods.items() if value <= limit]
    assert 1 <= len(expected) < 6
    for ensemble in (cbnn.ensemble(), CheckpointEnsemble.load(directory)):
        assert [m["step"] for m in ensemble.members] == expected
    everyone = CheckpointEnsemble.load(directory, members="all")
    assert len(everyone) == len(cbnn.ensemble("all")) == 6
    assert everyone.select(num=6).votes.tolist() == [
        r["vote"] for r in cbnn.history
    ]


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
    paper = CBNNCallback.paper(num_checkpoints=3)
    assert (paper.horizon, paper.trusted_ratio) == (None, None)
    assert paper.deviation_rate == 0.01
    assert len(cbnn.ensemble()) == 3
    np.testing.assert_array_equal(
        list(cbnn.ensemble().member_probabilities(x, verbose=0))[-1],
        model.predict(x, verbose=0),
    )
    with pytest.raises(TypeError, match="average"):
        CBNNCallback.paper(average=True)


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
