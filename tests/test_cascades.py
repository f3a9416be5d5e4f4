import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbnn_keras import cascade_choice, cascades, metrics
from cbnn_keras.calibration import Scaling
from cbnn_keras.cascades import Cascade
from cbnn_keras.ensemble.adjusting import adjusted_arrays


@st.composite
def ensembles(draw, max_members=4):
    """Members' probabilities of some samples, votes, and perhaps priors."""
    num_members = draw(st.integers(1, max_members))
    num_classes = draw(st.integers(2, 4))
    seed = draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    # From nearly equal to nearly sure, and some that are the same.
    sharpness = draw(st.sampled_from([0.1, 1.0, 10.0]))
    raw = generator.gamma(sharpness, size=(num_members, 12, num_classes))
    members = raw + 1e-9
    members /= members.sum(axis=-1, keepdims=True)
    members[:, :2] = members[0, :2]
    if draw(st.booleans()):
        members = metrics.one_hot_votes(members)
    votes = draw(
        st.sampled_from(
            [np.ones(num_members), generator.uniform(0.2, 4, num_members)]
        )
    )
    priors = generator.dirichlet(np.ones(num_classes)) + 0.02
    return members, votes, draw(st.sampled_from([None, priors]))


scalings = st.sampled_from([None, Scaling(0.5), Scaling(2.5)])
# With a share, and temperatures on both sides of 1.
with_share = st.sampled_from(
    [Scaling(1.0, 0.2), Scaling(0.5, 0.1), Scaling(1.3, 0.02), Scaling(3, 0.6)]
)


def classes_of(sums, priors, scaling):
    """Predicted classes, by the ensemble's own functions."""
    return metrics.predicted_classes(adjusted_arrays(sums, scaling, priors))


@given(ensembles(), scalings)
def test_no_completion_of_the_votes_changes_what_is_decided(ensemble, scaling):
    """By trying all ways in which the others can vote, for one class each.

    Averages of these are all that they can say.
    """
    members, votes, priors = ensemble
    shares = votes / votes.sum()
    found = cascades.stages(members, votes, priors, scaling)
    num_members, num_samples, num_classes = members.shape
    for asked in range(1, num_members + 1):
        said = np.tensordot(shares[:asked], members[:asked], 1)
        is_decided = found.lead[asked - 1] >= 0
        rest = shares[asked:]
        ends = []
        for choice in itertools.product(range(num_classes), repeat=len(rest)):
            others = np.zeros(num_classes)
            np.add.at(others, list(choice), rest)
            ends.append(classes_of(said + others, priors, scaling))
        is_constant = (np.array(ends) == ends[0]).all(axis=0)
        assert is_constant[is_decided].all()
        # The rule is as early as can be, but for its margin.
        is_close = found.lead[asked - 1] >= -2 * cascades.MARGIN
        assert is_close[is_constant].all()


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    with_share,
    st.integers(2, 4),
    st.floats(0.02, 0.6),
    st.integers(0, 2**32 - 1),
)
def test_nothing_that_others_can_say_changes_what_is_decided_with_a_share(
    scaling, num_classes, rest, seed
):
    """By trying each class alone, all alike, and mixtures.

    The sum of powers is another for each, and so is what a share counts.
    """
    generator = np.random.default_rng(seed)
    priors = generator.dirichlet(np.ones(num_classes)) + 0.02
    sums = (1 - rest) * generator.dirichlet(np.full(num_classes, 0.7), 3000)
    ranks = cascades.ranks(num_classes, priors, scaling)
    lead = cascades.lead(sums, rest, ranks)
    others = np.concatenate(
        [
            np.eye(num_classes),
            np.full((1, num_classes), 1 / num_classes),
            generator.dirichlet(np.full(num_classes, 0.5), 30),
        ]
    )
    ends = [classes_of(sums + rest * p, priors, scaling) for p in others]
    is_constant = (np.array(ends) == ends[0]).all(axis=0)
    is_decided = lead >= 0
    assert is_constant[is_decided].all()
    # What those so far say is among all that can come out.
    now = classes_of(sums / (1 - rest), priors, scaling)
    np.testing.assert_array_equal(now[is_decided], ends[0][is_decided])
    if scaling.temperature == 1:  # the sum of powers is known
        is_close = lead >= -2 * cascades.MARGIN
        assert is_close[is_constant].all()


def test_ranks_with_a_share_by_hand():
    """Two classes, T = 2 and s = 1/3, priors 0.8 and 0.2.

    The sum of square roots is between 1 and sqrt(2), and s / (k (1 - s)) is
    1/4. Factors are 1/4 and 1, their largest difference 3/4.
    """
    found = cascades.ranks(2, [0.8, 0.2], Scaling(2.0, 1 / 3))
    np.testing.assert_allclose(found.factors, [0.25, 1])
    assert (found.power, found.floor) == (0.5, 1e-7)
    middle, half = (1 + 2**0.5) / 2, (2**0.5 - 1) / 2
    assert found.offset == pytest.approx(middle / 4, rel=1e-6)
    margin = 0.75 * half / 4 + 2 * 1e-5**0.5
    assert found.margin == pytest.approx(margin, rel=1e-5)
    # The second class, of 0.36 at least and the first of 0.49 at most.
    expected = 0.6 + middle / 4 - 0.25 * (0.7 + middle / 4) - margin
    lead = cascades.lead([[0.4, 0.36]], 0.09, found)
    np.testing.assert_allclose(lead, [expected], rtol=1e-6)
    assert cascades.ranks(2, None, Scaling(2.0, 1 / 3)) is None


def test_a_share_that_rounding_loses_is_none():
    """Manifests and metadata of others may have one."""
    priors = [0.9, 0.09, 0.01]
    found = cascades.ranks(3, priors, Scaling(3.0, 5e-324))
    expected = cascades.ranks(3, priors, Scaling(3.0))
    np.testing.assert_array_equal(found.factors, expected.factors)
    assert (found.power, found.offset) == (1, 0)


@given(ensembles(max_members=6), st.one_of(scalings, with_share))
def test_exact_cascades_predict_what_all_members_do(ensemble, scaling):
    members, votes, priors = ensemble
    found = cascades.stages(members, votes, priors, scaling)
    used = found.members_used(None)
    mean = metrics.weighted_mean(members, votes)
    mean = adjusted_arrays(mean, scaling, priors)
    np.testing.assert_allclose(found.probabilities[-1], mean, atol=1e-12)
    is_clear = np.diff(np.sort(mean)[:, -2:])[:, 0] > 1e-12
    np.testing.assert_array_equal(
        metrics.predicted_classes(found.probabilities_at(used))[is_clear],
        metrics.predicted_classes(mean)[is_clear],
    )


@given(ensembles(max_members=5), st.floats(0.3, 0.99))
def test_samples_leave_as_in_a_loop(ensemble, confidence):
    members, votes, priors = ensemble
    found = cascades.stages(members, votes, priors)
    used = found.members_used(confidence)
    for sample, number in enumerate(used):
        for asked in range(1, len(votes) + 1):
            mean = np.average(
                members[:asked, sample], axis=0, weights=votes[:asked]
            )
            said = mean * votes[:asked].sum() / votes.sum()
            rest = votes[asked:].sum() / votes.sum()
            factors = np.ones(len(mean))
            if priors is not None:
                factors = priors.min() / priors
                mean = mean / priors / (mean / priors).sum()
            best = (said * factors).argmax()
            others = np.delete((said + rest) * factors, best)
            ahead = (said * factors)[best] - others.max()
            if abs(mean.max() - confidence) < 1e-9:
                break  # a matter of rounding
            if ahead > cascades.MARGIN or mean.max() >= confidence:
                break
        else:
            asked = len(votes)
        if abs(mean.max() - confidence) > 1e-9:
            assert number == asked
            np.testing.assert_allclose(
                found.probabilities_at(used)[sample], mean, atol=1e-12
            )


def test_one_column_leaves_as_two_do():
    generator = np.random.default_rng(0)
    column = generator.beta(0.3, 0.3, size=(5, 50, 1))
    votes = np.array([1.0, 2.0, 0.5, 1.0, 0.7])
    both = np.concatenate([1 - column, column], axis=-1)
    for priors in (None, [0.8, 0.2]):
        one = cascades.stages(column, votes, priors)
        two = cascades.stages(both, votes, priors)
        for confidence in (None, 0.9):
            used = one.members_used(confidence)
            np.testing.assert_array_equal(used, two.members_used(confidence))
            np.testing.assert_allclose(
                one.probabilities_at(used)[:, 0],
                two.probabilities_at(used)[:, 1],
            )


def test_what_is_below_the_floor_counts_as_the_floor():
    """By hand: at T = 3 and one column the floor is 0.00025.

    With priors 0.9 and 0.1 the factors are 1/9 and 1, to the third 1/729 and 1.
    The first class ends with 1/729 at most, the second with the floor at least
    as the most it can.
    """
    ranks = cascades.ranks(1, [0.9, 0.1], Scaling(3.0))
    np.testing.assert_allclose(ranks.factors, [1 / 729, 1])
    assert ranks.floor == pytest.approx(0.00025, abs=1e-6)
    found = cascades.lead([[1.0, 0.0]], 0.0, ranks)
    np.testing.assert_allclose(found, 1 / 729 - ranks.floor - cascades.MARGIN)


def test_clearness_is_the_distance_to_another_exit():
    """Worked out by hand, with votes 2, 1, 1.

    Sample 0 leaves after the first at 0.95 - 0.9 = 0.05 above. Sample 1 is 0.2
    below it after the first, where the lead is 0.35 - 0.15 - 0.5 = -0.3; after
    the second the lead is 0.6 - 0.15 - 0.25 = 0.2. Sample 2 never leaves: the
    smallest step is after the second, 0.5 - 0.25 - 0.25 = 0 and a margin.
    """
    members = np.array(
        [
            [[0.95, 0.05], [0.7, 0.3], [0.5, 0.5]],
            [[0.95, 0.05], [1.0, 0.0], [1.0, 0.0]],
            [[0.95, 0.05], [1.0, 0.0], [0.0, 1.0]],
        ]
    )
    found = cascades.stages(members, [2.0, 1.0, 1.0])
    np.testing.assert_array_equal(found.members_used(0.9), [1, 2, 3])
    np.testing.assert_allclose(
        found.clearness(0.9), [0.05, 0.2 - cascades.MARGIN, cascades.MARGIN]
    )
    np.testing.assert_array_equal(found.members_used(None), [2, 2, 3])


def test_what_is_no_number_leaves_at_once():
    members = np.array([[[np.nan, np.nan]], [[0.5, 0.5]]])
    found = cascades.stages(members, [1.0, 1.0])
    assert found.members_used(0.9).tolist() == [1]
    assert np.isnan(found.clearness(0.9)).all()


def test_a_mean_of_no_samples():
    found = cascades.stages(np.zeros((2, 0, 3)), [1.0, 1.0])
    assert found.members_used(0.9).shape == (0,)


def made_up(num=4000, num_members=5):
    """Members that are right mostly, and surer when they are right."""
    generator = np.random.default_rng(3)
    labels = generator.integers(0, 4, num)
    hardness = generator.exponential(1.0, size=num)
    noise = generator.normal(size=(num_members, num, 4)) * hardness[:, None]
    logits = 3 * np.eye(4)[labels] + noise
    exponents = np.exp(logits)
    return exponents / exponents.sum(axis=-1, keepdims=True), labels


def test_the_loss_stays_within_what_was_stated():
    members, labels = made_up()
    found = cascades.stages(members, np.ones(5))
    full = metrics.accuracy(found.probabilities[-1], labels)
    costs = []
    for loss in (0.002, 0.01, 0.05):
        chosen = cascade_choice.chosen_confidences(found, labels, loss)
        assert len(chosen) == 4
        used = found.members_used(chosen)
        got = metrics.accuracy(found.probabilities_at(used), labels)
        assert full - got <= loss
        costs.append(used.mean())
    assert costs == sorted(costs, reverse=True) and costs[-1] < 2
    # More certainty takes more members.
    sure = cascade_choice.chosen_confidences(
        found, labels, 0.01, standard_errors=9
    )
    assert found.members_used(sure).mean() > costs[1] + 0.01


def test_no_single_confidence_does_better():
    """One for each member costs no more members than any one for all."""
    members, labels = made_up()
    found = cascades.stages(members, np.ones(5))
    losses = cascade_choice.expected_losses(found, labels)
    samples = np.arange(len(labels))
    chosen = cascade_choice.chosen_confidences(found, labels, 0.005, 0.0)
    best = found.members_used(chosen).mean()
    singles = [
        used.mean()
        for used in map(found.members_used, np.linspace(0.3, 0.999, 200))
        if losses[used - 1, samples].mean() <= 0.005
    ]
    assert singles and best <= min(singles)


def test_expected_losses_by_hand():
    """Half of the samples are as sure as they are right: T is 1.

    All say 0.8 to 0.2 of each sample, and are right in 8 of 10; the first
    member alone says the other class of the last sample.
    """
    labels = np.repeat([0, 1], [8, 2])
    first = np.tile([0.9, 0.1], (10, 1))
    first[-1] = [0.4, 0.6]
    second = 2 * np.array([0.8, 0.2]) - first
    found = cascades.stages(np.stack([first, second]), np.ones(2))
    losses = cascade_choice.expected_losses(found, labels)
    np.testing.assert_allclose(losses[0], [0] * 9 + [0.6], atol=1e-6)
    np.testing.assert_array_equal(losses[1], np.zeros(10))
    # Twice the error of one sample as bad as that is added: 0.06 and 0.12.
    assert cascade_choice.chosen_confidences(found, labels, 0.181)[0] <= 0.6
    assert cascade_choice.chosen_confidences(found, labels, 0.179)[0] > 0.6
    assert cascade_choice.chosen_confidences(found, labels, 0.119) is None


def test_what_was_really_lost_counts_too():
    """All members are unsure, and right: the labels tell what is lost.

    They say 0.52 to 0.48 of every sample. The first member says the other
    class of 20 of 1,000, less surely than that of the others: by what all say
    0.04 is lost of each of these, by the labels 1.
    """
    labels = np.tile([0, 1], 500)
    columns = np.eye(2)[labels]
    all_say = 0.48 + 0.04 * columns
    first = 0.3 + 0.4 * columns
    first[:20] = 0.4 + 0.2 * (1 - columns[:20])
    found = cascades.stages(np.stack([first, 2 * all_say - first]), np.ones(2))
    # Calibration would make right answers sure ones.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            cascade_choice.calibration, "fit", lambda *_: Scaling(1.0)
        )
        losses = cascade_choice.expected_losses(found, labels)
        np.testing.assert_allclose(losses.sum(axis=1), [20 * 0.04, 0])
        chosen = [
            cascade_choice.chosen_confidences(found, labels, loss, 0.0)
            for loss in (0.001, 0.019, 0.02)
        ]
    # Expected is 0.0008; by labels it is 0.02.
    used = [found.members_used(c).mean() for c in chosen]
    np.testing.assert_allclose(used, [1.02, 1.02, 1.0])


def test_too_few_samples_say_nothing():
    members, labels = made_up(num=400)
    found = cascades.stages(members, np.ones(5))
    assert cascade_choice.chosen_confidences(found, labels, 0.001) is None
    alone = cascades.stages(members[:1], np.ones(1))
    assert cascade_choice.chosen_confidences(alone, labels, 0.5) is None


def test_a_confidence_for_each_number_of_members():
    members = np.array([[[0.8, 0.2]], [[0.6, 0.4]], [[0.3, 0.7]]])
    found = cascades.stages(members, np.ones(3))
    assert found.members_used((0.8, 0.9)) == [1]
    assert found.members_used((0.81, 0.7)) == [2]
    assert found.members_used((cascades.NEVER, 0.71)) == [3]
    assert found.clearness((0.85, 0.68)) == pytest.approx([0.02])
    assert Cascade((1, 2, 3), 0.9).confidences(3) == [0.9, 0.9]
    assert Cascade((1, 2, 3)).confidences(3) == [cascades.NEVER] * 2
    assert Cascade((1, 2, 3), (0.5, 0.6)).confidences(3) == [0.5, 0.6]
    with pytest.raises(ValueError, match="for 4 members: one for each but the"):
        Cascade((1, 2, 3), (0.5, 0.6)).confidences(4)
    text = str(Cascade((1, 2, 3), (0.5, cascades.NEVER)))
    assert text == "cascade: leave at a confidence of 0.5, none"


def test_orders():
    members, labels = made_up(num=200)
    members[3] = np.eye(4)[labels] * 0.9 + 0.025
    members[1] = 0.25
    order = cascade_choice.order_by_likelihood(members, np.ones(5), labels)
    assert sorted(order) == list(range(5))
    assert order[0] == 3 and order[-1] == 1


def test_a_cascade_gets_an_order_of_its_members():
    cascade = Cascade().fitted_to([10, 20, 30], [1.0, 3.0, 1.0])
    assert cascade.order == (20, 30, 10)
    assert cascade.positions([10, 20, 30]) == [1, 2, 0]
    assert cascade.fitted_to([30, 20, 10], [1, 1, 1]) is cascade
    with pytest.raises(
        ValueError,
        match=r"members of the steps \[10, 20, 30\], but the ensemble has "
        r"\[10, 20\]\. Choose it anew",
    ):
        cascade.fitted_to([10, 20], [1.0, 1.0])


def test_a_cascade_says_what_it_does():
    assert str(Cascade()) == "cascade: leave when no vote can change the answer"
    chosen = Cascade((1, 2), 0.9, mean_members=1.25, loss=0.001)
    assert str(chosen) == (
        "cascade: leave at a confidence of 0.9; 1.25 of 2 members on average, "
        "0.10% of accuracy lost on the data it was chosen on"
    )
    better = dataclasses.replace(chosen, loss=-0.02)
    assert "2.00% of accuracy gained on the data" in str(better)
