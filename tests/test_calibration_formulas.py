"""Tests of scaling and sets, by hand, by hypothesis and by simulation."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar
from scipy.stats import beta

from cbnn_keras.calibration import (
    LARGEST_SHARE,
    CalibrationRecord,
    Scaling,
    conformal_threshold,
    fit,
    fit_temperature,
    floor,
    prediction_sets,
    scale,
)
from cbnn_keras.metrics import negative_log_likelihood

# The same examples on every machine; no deadline, as CI machines stall.
reproducible = settings(derandomize=True, deadline=None, max_examples=60)


# --- Temperature; its likelihood is tested in analysis/test_calibration.py ---


@pytest.mark.parametrize("is_one_column", [False, True])
def test_temperature_of_two_classes_by_hand(is_one_column):
    """All samples say 0.9 for class 1; 3 of 4 are of it.

    The likelihood is largest where what is said is what is so:
    (0.9 / 0.1)^(1/T) = 3, so T = log 9 / log 3 = 2.
    """
    p = np.array([[0.1, 0.9]] * 4)[:, int(is_one_column) :]
    labels = np.array([1, 1, 0, 1])
    found = fit_temperature(p, labels)
    assert found == pytest.approx(2, rel=1e-7)
    np.testing.assert_allclose(scale(p, found)[:, -1], 0.75, rtol=1e-7)


def test_temperature_of_three_classes_by_scipy():
    generator = np.random.default_rng(0)
    p = generator.dirichlet([0.5, 0.5, 0.5], 200)
    labels = np.array([generator.choice(3, p=row) for row in scale(p, 3.0)])

    def loss(temperature):
        powers = p ** (1 / temperature)
        of_label = powers[np.arange(200), labels] / powers.sum(axis=1)
        return -np.log(of_label).mean()

    expected = minimize_scalar(loss, bounds=(0.1, 10), method="bounded").x
    assert fit_temperature(p, labels) == pytest.approx(expected, rel=1e-4)


@reproducible
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=6),
    st.floats(0.01, 100),
    st.sampled_from([0.0, 0.1, LARGEST_SHARE]),
    st.booleans(),
)
def test_predicted_classes_stay(values, temperature, share, is_one_column):
    """Ties too; and what is given is always a probability."""
    first = np.array(values)[:, np.newaxis]
    p = first if is_one_column else np.hstack([first, 1 - first])
    found = scale(p, temperature, share)
    assert found.shape == p.shape
    assert ((found >= 0) & (found <= 1)).all()
    if is_one_column:
        sure = np.abs(p - 0.5) > 1e-9
        np.testing.assert_array_equal((found > 0.5)[sure], (p > 0.5)[sure])
    else:
        np.testing.assert_allclose(found.sum(axis=1), 1)
        np.testing.assert_allclose(
            found[np.arange(len(p)), p.argmax(axis=1)], found.max(axis=1)
        )


def test_a_stack_of_members_is_scaled_as_each_is():
    p = np.random.default_rng(1).dirichlet([1, 1, 1], (2, 5))
    np.testing.assert_array_equal(
        scale(p, 2.0), np.stack([scale(p[0], 2.0), scale(p[1], 2.0)])
    )


@pytest.mark.parametrize("temperature", [0.2, 1.0, 1.3, 2.0, 3.0, 5.0, 100.0])
def test_the_last_bit_of_one_column_hardly_matters(temperature):
    """Every p in float32 near 1, against its neighbour, at any temperature."""
    last = np.float32(2.0**-24)
    rest = np.unique(np.geomspace(1, 2**20, 3000).astype(np.int64))
    p = (1 - rest.astype(np.float32) * last)[:, np.newaxis]
    found, neighbours = scale(p, temperature), scale(p + last, temperature)
    assert np.abs(found - neighbours).max() <= 1e-5
    # And it is not a floor where there is no need for one.
    assert floor(temperature, 1) <= 1e-3
    assert floor(temperature, 10) == floor(min(temperature, 1.0), 1) == 1e-7


def test_temperature_of_one_column_knows_of_the_floor():
    """Logits 2.6 times too large, many of them beyond what float32 can say."""
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 6, 5000)
    labels = (generator.random(5000) < 1 / (1 + np.exp(-logits))).astype(int)
    p = (1 / (1 + np.exp(-2.6 * logits))).astype(np.float32)[:, np.newaxis]
    assert (p == 1).mean() > 0.1

    def loss(temperature):
        return negative_log_likelihood(scale(p, temperature), labels)

    best = min(map(loss, np.geomspace(1, 5, 400)))
    assert loss(fit_temperature(p, labels)) <= best + 0.001
    assert loss(2.6) > best + 0.003


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan, np.inf])
def test_temperatures_that_are_none(temperature):
    with pytest.raises(
        ValueError,
        match=r"scale\(temperature=.*\): temperature must be above 0\.",
    ):
        scale(np.array([[0.5, 0.5]]), temperature)


# --- Share ---


def drawn(num, num_classes, scaling, seed):
    """Probabilities, and labels for which a scaling makes them right."""
    generator = np.random.default_rng(seed)
    p = generator.dirichlet(np.full(num_classes, 0.4), num)
    p = np.maximum(p, 1e-6) / np.maximum(p, 1e-6).sum(axis=1, keepdims=True)
    powers = p ** (1 / scaling.temperature)
    right = powers / powers.sum(axis=1, keepdims=True)
    right = (1 - scaling.share) * right + scaling.share / num_classes
    draws = generator.random((num, 1))
    labels = (right.cumsum(axis=1) > draws).argmax(axis=1)
    return p, labels


def loss_of(p, labels, temperature, share):
    """The mean of -log p(label), by the definition."""
    powers = p ** (1 / temperature)
    of_label = powers[np.arange(len(p)), labels] / powers.sum(axis=1)
    return -np.log((1 - share) * of_label + share / p.shape[1]).mean()


@pytest.mark.parametrize(
    ("num_classes", "scaling"),
    [(3, Scaling(1.0, 0.2)), (6, Scaling(0.7, 0.1)), (10, Scaling(1.8, 0.5))],
)
def test_temperature_and_share_by_scipy(num_classes, scaling):
    p, labels = drawn(2000, num_classes, scaling, seed=num_classes)
    found = fit(p, labels)
    best = min(
        (
            minimize(
                lambda at: loss_of(p, labels, np.exp(at[0]), at[1]),
                (np.log(start), 0.2),
                bounds=[(-3, 3), (0, LARGEST_SHARE)],
                tol=1e-12,
            )
            for start in (0.3, 1, 3)
        ),
        key=lambda result: result.fun,
    )
    loss = loss_of(p, labels, found.temperature, found.share)
    assert loss == pytest.approx(best.fun, abs=1e-8)
    assert found.temperature == pytest.approx(np.exp(best.x[0]), rel=1e-3)
    assert found.share == pytest.approx(best.x[1], abs=1e-3)
    assert found.share == pytest.approx(scaling.share, abs=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_no_pair_of_a_grid_is_better(seed):
    """Labels that no scaling explains: of two kinds of samples."""
    one = drawn(300, 4, Scaling(0.5, 0.05), seed)
    other = drawn(300, 4, Scaling(3.0, 0.3), seed + 10)
    p, labels = (np.concatenate(pair) for pair in zip(one, other, strict=True))
    found = fit(p, labels)
    assert found.share > 0
    loss = loss_of(p, labels, found.temperature, found.share)
    for temperature in np.geomspace(0.05, 20, 60):
        for share in np.linspace(0, LARGEST_SHARE, 31):
            assert loss <= loss_of(p, labels, temperature, share) + 1e-9


def test_one_column_gets_the_share_that_two_do():
    p, labels = drawn(3000, 2, Scaling(0.9, 0.3), seed=4)
    two, one = fit(p, labels), fit(p[:, 1:], labels)
    assert two.share == pytest.approx(0.3, abs=0.05)
    assert one.share == pytest.approx(two.share, abs=1e-4)
    assert one.temperature == pytest.approx(two.temperature, rel=1e-3)
    np.testing.assert_allclose(
        scale(p[:, 1:], 0.9, 0.3), scale(p, 0.9, 0.3)[:, 1:], atol=1e-12
    )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("num", [200, 2000])
def test_no_share_where_a_temperature_is_right(temperature, num):
    """Where the labels are as a temperature says, 60 times drawn.

    Chance alone may ask for a share in 1 of 100 at these numbers: half of the
    probability of chi-squared beyond log(n), since it cannot be negative.
    """
    shares = []
    for seed in range(60):
        p, labels = drawn(num, 5, Scaling(temperature), seed)
        found = fit(p, labels)
        shares.append(found.share)
        if not found.share:
            assert found == Scaling(fit_temperature(p, labels))
    assert np.count_nonzero(shares) <= 3


def test_one_sure_mistake_asks_for_no_share():
    """Beside 299 samples that are as often right as is said of them.

    With all gains counted, a share of 0.094 would be taken for it.
    """
    p, labels = np.zeros((300, 2)), np.zeros(300, int)
    for start, said, num_wrong in (
        (0, 0.95, 5),
        (100, 0.8, 20),
        (200, 0.6, 40),
    ):
        p[start : start + 100] = [said, 1 - said]
        labels[start : start + num_wrong] = 1
    p[-1] = [1e-5, 1 - 1e-5]
    assert fit(p, labels) == Scaling(fit_temperature(p, labels))


def test_sure_mistakes_ask_for_a_share():
    """Five of them, beside what is as right as it says."""
    p, labels = np.zeros((300, 2)), np.zeros(300, int)
    p[:5] = [1e-5, 1 - 1e-5]
    p[5:150], labels[5:20] = [0.9, 0.1], 1
    p[150:], labels[150:210] = [0.6, 0.4], 1
    assert fit(p, labels).share > 0.01


def test_no_share_where_all_but_sure_mistakes_are_right():
    """T would go to 0 beside it, and 0.7 be as sure as 0.99999."""
    p = np.array([[0.7, 0.3]] * 100 + [[1 - 1e-5, 1e-5]] * 200)
    labels = np.zeros(300, int)
    labels[100:104] = 1
    assert fit(p, labels) == Scaling(fit_temperature(p, labels))
    # Where 0.7 is right in seven of ten it stays what it is.
    labels[:30] = 1
    found = fit(p, labels)
    assert found.share > 0.01
    assert found(p)[0, 0] == pytest.approx(0.7, abs=0.01)


def test_a_share_by_hand():
    """0.8^(1/2) to 0.2^(1/2) is 2 to 1; a quarter of the way to 1/2 each."""
    found = scale(np.array([[0.8, 0.2]]), 2.0, 0.25)
    np.testing.assert_allclose(found, [[0.5 + 0.125, 0.25 + 0.125]])
    found = scale(np.array([[0.2]]), 2.0, 0.25)
    np.testing.assert_allclose(found, [[0.375]])
    np.testing.assert_allclose(Scaling(2.0, 0.25)(np.array([[0.2]])), [[0.375]])


def test_answers_that_are_all_sure_and_partly_wrong():
    """One-hot, and 70 of 100 right, of 4 classes.

    Any low temperature and 30 = 100 s (3 / 4) are the best there is.
    """
    labels = np.arange(100) % 4
    said = np.where(np.arange(100) < 70, labels, (labels + 1) % 4)
    found = fit(np.eye(4)[said], labels)
    shown = found(np.eye(4)[:1])
    np.testing.assert_allclose(shown, [[0.7, 0.1, 0.1, 0.1]], atol=1e-4)


@pytest.mark.parametrize("is_one_column", [False, True])
def test_a_sure_mistake_at_a_low_temperature_is_no_infinity(is_one_column):
    """1e-7 to the power of 1/T is less than 1 - p can be in one column."""
    p = np.array([[0.4, 0.6], [0.4, 0.6], [0.3, 0.7]] * 200)
    p[0] = [1e-7, 1 - 1e-7]
    labels = np.ones(600, int)
    labels[:30:3] = 0
    found = fit(p[:, int(is_one_column) :], labels)
    assert 0.05 < found.temperature < 0.5
    # More than 9 to 1 are right, as is said of all but the one.
    shown = found(p)[1:, 1]
    assert shown.mean() == pytest.approx(590 / 600, abs=0.01)


@pytest.mark.parametrize("share", [-0.1, 1.0, np.nan])
def test_shares_that_are_none(share):
    with pytest.raises(
        ValueError,
        match=r"scale\(share=.*\): share must be at least 0 and below 1\.",
    ):
        scale(np.array([[0.5, 0.5]]), 1.0, share)


# --- Sets ---


@pytest.mark.parametrize(
    ("coverage", "rank"),
    [  # ceil(10 * coverage) of 9 samples
        *((0.1, 1), (0.15, 2), (0.5, 5), (0.55, 6), (0.89, 9), (0.9, 9)),
    ],
)
def test_threshold_by_hand(coverage, rank):
    of_label = np.array([0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.8, 0.4, 0.6])
    p = np.stack([of_label, 1 - of_label], axis=1)
    found = conformal_threshold(p, np.zeros(9, int), coverage)
    assert found == sorted(of_label, reverse=True)[rank - 1]
    # As many of these samples as the rank says have their label in the set.
    assert prediction_sets(p, found)[:, 0].sum() == rank


def test_rank_of_a_product_that_is_rounded_upward():
    """99 samples and 0.55: 100 * 0.55 is 55.00000000000001, the rank 55."""
    assert 100 * 0.55 > 55
    of_label = np.arange(1, 100) / 100
    p = np.stack([of_label, 1 - of_label], axis=1)
    assert conformal_threshold(p, np.zeros(99, int), 0.55) == 0.45


def test_equal_scores_are_all_in():
    p = np.array([[0.8, 0.2]] * 9)
    found = conformal_threshold(p, np.zeros(9, int), 0.5)
    assert found == 0.8
    assert prediction_sets(p, found)[:, 0].all()


def test_sets_of_one_column_have_two():
    p = np.array([[0.9], [0.4], [0.1]])
    np.testing.assert_array_equal(
        prediction_sets(p, 0.35),
        [[False, True], [True, True], [True, False]],
    )
    labels = np.array([1, 0, 0] * 3)
    two = np.hstack([1 - p, p])
    assert conformal_threshold(
        np.tile(p, (3, 1)), labels, 0.5
    ) == conformal_threshold(np.tile(two, (3, 1)), labels, 0.5)


@pytest.mark.parametrize(("coverage", "needed"), [(0.9, 9), (0.95, 19)])
def test_too_few_samples_for_a_coverage(coverage, needed):
    p = np.full((needed, 2), 0.5)
    labels = np.zeros(needed, int)
    assert conformal_threshold(p, labels, coverage) == 0.5
    with pytest.raises(
        ValueError,
        match=rf"A coverage of {coverage} cannot be promised after "
        rf"{needed - 1} samples, but by sets of all classes: it takes "
        rf"{needed} at least\. Give more samples, or choose a lower coverage",
    ):
        conformal_threshold(p[1:], labels[1:], coverage)


@pytest.mark.parametrize("coverage", [0, 1, -0.1, 1.5, np.nan])
def test_coverages_that_are_none(coverage):
    with pytest.raises(
        ValueError,
        match=r"conformal_threshold\(coverage=.*\): coverage must be between "
        r"0 and 1, both excluded\.",
    ):
        conformal_threshold(np.full((9, 2), 0.5), np.zeros(9, int), coverage)


@pytest.mark.parametrize(("num", "coverage"), [(50, 0.9), (200, 0.7)])
def test_coverage_is_what_theory_says(num, coverage):
    """2,000 times, a threshold from `num` samples and 400 further ones.

    Labels are drawn from wrong probabilities: the promise needs no good model.
    Coverage given the threshold is Beta(k, n + 1 - k).
    """
    generator = np.random.default_rng(num)
    shares = []
    for _ in range(2000):
        p = generator.dirichlet([1.0, 1.0, 1.0], num + 400)
        ranks = p.cumsum(axis=1) ** 2 > generator.random((len(p), 1))
        labels = ranks.argmax(axis=1)
        threshold = conformal_threshold(p[:num], labels[:num], coverage)
        sets = prediction_sets(p[num:], threshold)
        shares.append(sets[np.arange(400), labels[num:]].mean())
    rank = int(np.ceil((num + 1) * coverage))
    theory = beta(rank, num + 1 - rank)
    assert coverage <= theory.mean() <= coverage + 1 / (num + 1)
    assert np.mean(shares) == pytest.approx(theory.mean(), abs=0.004)
    # Of the share among 400 there is the spread of drawing those as well.
    drawing = theory.mean() * (1 - theory.mean()) / 400
    expected = np.sqrt(theory.var() + drawing)
    assert np.std(shares) == pytest.approx(expected, rel=0.08)


def test_a_record_holds_for_its_own_members_and_votes():
    record = CalibrationRecord(1.5, 100, [3, 6], [1.0, 2.0])
    assert record.holds_for([3, 6], np.array([1.0, 2.0]))
    assert not record.holds_for([3], np.array([1.0]))
    assert not record.holds_for([3, 6], np.array([1.0, 2.5]))
    assert not record.holds_for([3, 6, 9], np.array([1.0, 2.0, 3.0]))


def test_a_record_without_a_share_is_written_as_before_there_were_any():
    record = CalibrationRecord(1.5, 100, [3, 6], [1.0, 2.0], 0.9, 0.25)
    assert record.scaling == Scaling(1.5, 0.0)
    assert record.to_json() == {
        "temperature": 1.5,
        "num_samples": 100,
        "members": [3, 6],
        "votes": [1.0, 2.0],
        "coverage": 0.9,
        "threshold": 0.25,
    }
    other = dataclasses.replace(record, share=0.125)
    assert other.to_json() == record.to_json() | {"share": 0.125}
    assert str(other.scaling) == "temperature 1.500 and share 0.125"
