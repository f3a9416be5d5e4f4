"""Tests of calibration, against scikit-learn and by loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from cbnn_keras.analysis.calibration import (
    calibration,
    fit_temperature,
    scale,
    scale_by_halves,
)
from cbnn_keras.calibration import floor

# The same examples on every machine; no deadline, as CI machines stall.
reproducible = settings(derandomize=True, deadline=None, max_examples=60)


@st.composite
def predictions(draw):
    """Probabilities and labels; one column where k is 2, at times."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_samples = draw(st.integers(2, 40))
    num_classes = draw(st.integers(2, 4))
    probabilities = generator.dirichlet(np.full(num_classes, 0.7), num_samples)
    if num_classes == 2 and draw(st.booleans()):
        probabilities = probabilities[:, 1:]
    return probabilities, generator.integers(0, num_classes, num_samples)


def columns(probabilities):
    """One for each class."""
    if probabilities.shape[1] > 1:
        return probabilities.astype(np.float64)
    of_one = probabilities[:, 0].astype(np.float64)
    return np.stack([1 - of_one, of_one], axis=1)


def powers(probabilities, temperature):
    """Temperature scaling by its definition."""
    least = floor(temperature, probabilities.shape[1])
    rows = columns(probabilities).clip(least) ** (1 / temperature)
    return rows / rows.sum(axis=1, keepdims=True)


def likelihood_loss(probabilities, labels, temperature):
    # In logarithms, as powers of 100 leave nothing of small probabilities.
    logs = np.log(columns(probabilities).clip(1e-7)) / temperature
    logs = log_softmax(logs, axis=1)
    return -np.mean([row[y] for row, y in zip(logs, labels, strict=True)])


def best_temperature(probabilities, labels):
    found = minimize_scalar(
        lambda log: likelihood_loss(probabilities, labels, np.exp(log)),
        bounds=(np.log(0.01), np.log(100)),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return np.exp(found.x)


def softmax(logits):
    exponentials = np.exp(logits)
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def drawn(num_samples, factor, num_classes=3, seed=0):
    """Labels of softmax(z), and the probabilities softmax(factor * z)."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(num_samples, num_classes))
    labels = [generator.choice(num_classes, p=p) for p in softmax(logits)]
    return softmax(factor * logits), np.array(labels)


# --- Calibration ---


@reproducible
@given(predictions(), st.integers(1, 20))
def test_curve_is_that_of_scikit_learn_and_its_error_of_a_loop(
    prediction, num_bins
):
    probabilities, labels = prediction
    rows = columns(probabilities)
    is_right = rows.argmax(axis=1) == labels
    accuracy, confidence = calibration_curve(
        is_right.astype(int), rows.max(axis=1), n_bins=num_bins, pos_label=1
    )
    found = calibration(probabilities, labels, num_bins)
    is_filled = found.count > 0
    np.testing.assert_allclose(found.accuracy[is_filled], accuracy)
    np.testing.assert_allclose(found.confidence[is_filled], confidence)
    assert np.isnan(found.accuracy[~is_filled]).all()
    assert np.isnan(found.confidence[~is_filled]).all()
    counts, expected = [], 0.0
    for b in range(num_bins):
        inside = [
            (row.max(), row.argmax() == label)
            for row, label in zip(rows, labels, strict=True)
            if b / num_bins < row.max() <= (b + 1) / num_bins
        ]
        counts.append(len(inside))
        if inside:
            confidence, accuracy = np.mean(inside, axis=0)
            expected += len(inside) / len(labels) * abs(confidence - accuracy)
    np.testing.assert_array_equal(found.count, counts)
    assert found.expected_error == pytest.approx(expected, abs=1e-12)


@reproducible
@given(predictions())
def test_scores_are_those_of_scikit_learn(prediction):
    probabilities, labels = prediction
    rows = columns(probabilities)
    classes = np.arange(rows.shape[1])
    found = calibration(probabilities, labels)
    expected = log_loss(labels, rows.clip(1e-7), labels=classes)
    assert found.negative_log_likelihood == pytest.approx(expected, rel=1e-6)
    expected = brier_score_loss(
        labels, rows, labels=classes, scale_by_half=False
    )
    assert found.brier == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("confidence", "num_bins", "expected"),
    [
        (0.5, 2, 0),  # a bin has its upper end
        (0.75, 4, 2),
        (1.0, 4, 3),
        (0.5, 1, 0),
        (np.nextafter(0.75, 1), 4, 3),
    ],
)
def test_confidence_at_the_end_of_a_bin(confidence, num_bins, expected):
    probabilities = np.array([[1 - confidence, confidence]])
    found = calibration(probabilities, np.array([1]), num_bins)
    assert np.flatnonzero(found.count).tolist() == [expected]


@pytest.mark.parametrize("is_right", [True, False])
def test_extremes(is_right):
    """Certain of everything, with all or nothing right."""
    probabilities = np.array([[1, 0], [0, 1], [1, 0]], dtype=np.float32)
    labels = np.array([0, 1, 0]) if is_right else np.array([1, 0, 1])
    found = calibration(probabilities, labels)
    np.testing.assert_array_equal(found.count, [0] * 14 + [3])
    assert found.confidence[-1] == 1
    assert found.accuracy[-1] == is_right
    assert found.expected_error == 1 - is_right
    assert found.brier == (0 if is_right else 2)
    loss = 0 if is_right else 7 * np.log(10)  # of 1e-7
    assert found.negative_log_likelihood == pytest.approx(loss)


# --- Temperature ---


@reproducible
@given(predictions())
def test_no_other_temperature_makes_labels_more_likely(prediction):
    probabilities, labels = prediction
    found = fit_temperature(probabilities, labels)
    assert 0.00999 < found < 100.001
    loss = likelihood_loss(probabilities, labels, found)
    for temperature in np.geomspace(0.01, 100, 200):
        other = likelihood_loss(probabilities, labels, temperature)
        assert loss <= other + 1e-9
    # 1 is among them: scaling makes nothing worse where it was fitted.
    scaled = calibration(scale(probabilities, found), labels)
    assert scaled.negative_log_likelihood <= (
        calibration(probabilities, labels).negative_log_likelihood + 1e-6
    )


@reproducible
@given(predictions(), st.floats(0.05, 20))
def test_scaling_is_a_power_and_keeps_decisions(prediction, temperature):
    probabilities, _ = prediction
    found = scale(probabilities, temperature)
    assert found.shape == probabilities.shape
    expected = powers(probabilities, temperature)
    np.testing.assert_allclose(columns(found), expected, atol=1e-9)
    np.testing.assert_array_equal(
        columns(found).argmax(axis=1), columns(probabilities).argmax(axis=1)
    )


def test_always_right_is_as_cold_and_always_wrong_as_hot_as_can_be():
    """Without a warning, and still probabilities."""
    certain = np.eye(3, dtype=np.float32)
    found = fit_temperature(certain, np.arange(3))
    assert 0.00999 < found < 1
    np.testing.assert_allclose(scale(certain, found), certain, atol=1e-12)
    found = fit_temperature(certain, np.array([1, 2, 0]))
    assert found == pytest.approx(100)


# --- Halves ---


@pytest.mark.parametrize(
    ("num_samples", "is_one_column"), [(40, False), (41, True)]
)
def test_each_half_has_the_temperature_of_the_other(num_samples, is_one_column):
    probabilities, labels = drawn(num_samples, factor=3, num_classes=2)
    if is_one_column:
        probabilities = probabilities[:, 1:]
    scaled, temperatures = scale_by_halves(probabilities, labels, seed=5)
    order = np.random.default_rng(5).permutation(num_samples)
    middle = (num_samples + 1) // 2
    first, second = order[:middle], order[middle:]
    expected = [
        best_temperature(probabilities[half], labels[half])
        for half in (second, first)
    ]
    assert temperatures == pytest.approx(expected, rel=1e-5)
    assert abs(np.log(expected[0] / expected[1])) > 0.01
    assert scaled.shape == probabilities.shape
    for half, temperature in zip((first, second), expected, strict=True):
        np.testing.assert_allclose(
            columns(scaled)[half],
            powers(probabilities[half], temperature),
            atol=1e-4,
        )


# --- Bad input ---


HALF, LABEL = np.array([[0.5, 0.5]]), np.array([0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: calibration(HALF, LABEL, num_bins=0),
            r"calibration\(num_bins=0\): num_bins must be an integer of at "
            r"least 1\.",
        ),
        (
            lambda: scale(HALF, temperature=0),
            r"scale\(temperature=0\): temperature must be above 0\.",
        ),
        (lambda: scale(HALF, temperature=float("nan")), "must be above 0"),
        (
            lambda: scale_by_halves(HALF, LABEL),
            "scale_by_halves needs two samples at least, one for each half",
        ),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
