"""Tests of the hardest samples and of labels that are probably wrong."""

import functools
import hashlib
import math

import cleanlab
import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf
from cleanlab.rank import get_label_quality_scores
from helpers import blobs, dense_model, header, memory_ensemble, trained
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.analysis.samples import (
    as_run,
    final_weights,
    hardest_samples,
    suspects,
)
from cbnn_keras.baselines import PlainCheckpoints
from cbnn_keras.boosting import EQUAL_VOTES
from cbnn_keras.labels import class_indices
from cbnn_keras.runs.run import MemoryRun


def run_of(rounds, **settings):
    """A run of two classes, from what each of its rounds got right."""
    settings = {"deviation_rate": 1.0, "expected_error": 0.05, **settings}
    num_samples = len(rounds[0])
    run = MemoryRun(
        {"num_classes": 2, "num_samples": num_samples, "settings": settings}
    )
    for step, correct in enumerate(rounds, start=1):
        record = {"step": step, "is_final": step == len(rounds)}
        run.add_round(record, np.array(correct, dtype=bool), None)
    return run


@functools.cache
def binary_trained():
    """One sigmoid output, and every seventh label is wrong."""
    keras.utils.set_random_seed(0)  # whichever test is the first
    x, y = blobs(num_samples=60, num_classes=2, seed=3)
    y[::7] = 1 - y[::7]
    model = keras.Sequential(
        [
            keras.Input((4,)),
            # Not worse than chance at first, as chance would have it.
            keras.layers.Dense(1, "sigmoid", kernel_initializer="zeros"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.05), loss="binary_crossentropy")
    cbnn = CBNNCallback()
    train = cbnn.weighted(x, y, batch_size=20, seed=1)
    model.fit(train, epochs=4, callbacks=[cbnn], verbose=0)
    return cbnn.ensemble(), x, y


@functools.cache
def softmax_trained():
    keras.utils.set_random_seed(0)
    callback, _, x, y = trained(epochs=2)
    return callback.ensemble(), x, y


def both_columns(probabilities):
    rows = probabilities.astype(np.float64)
    return np.hstack([1 - rows, rows]) if rows.shape[1] == 1 else rows


def log_margin(row, label):
    """log(p(label) / p(next best)), neither below 1e-7."""
    best = max(p for c, p in enumerate(row) if c != label)
    return math.log(max(row[label], 1e-7)) - math.log(max(best, 1e-7))


def by_loop(ensemble, x, labels, weights):
    """Everything that `suspects` gives, sample by sample, member by member."""
    members = [
        both_columns(p) for p in ensemble.member_probabilities(x, verbose=0)
    ]
    votes = ensemble.votes
    names = ("score", "is_suspect", "predicted", "margin", "agreement")
    found = {name: [] for name in names}
    for i, label in enumerate(labels):
        mean = sum(v * p[i] for v, p in zip(votes, members, strict=True))
        mean = mean / sum(votes)
        of_members = sum(
            v * log_margin(p[i], label)
            for v, p in zip(votes, members, strict=True)
        )
        both = (log_margin(mean, label) + of_members / sum(votes)) / 2
        found["score"].append(both - math.log(weights[i]))
        found["is_suspect"].append(mean[label] < 1 / len(mean))
        found["predicted"].append(int(np.argmax(mean)))
        found["margin"].append(mean[label] - np.delete(mean, label).max())
        agreeing = [
            v
            for v, p in zip(votes, members, strict=True)
            if np.argmax(p[i]) == np.argmax(mean)
        ]
        found["agreement"].append(sum(agreeing) / sum(votes))
    found["decisions"] = [p.argmax(axis=1) for p in members]
    return {name: np.array(values) for name, values in found.items()}


def assert_is(found, expected):
    score = expected["score"]
    np.testing.assert_allclose(
        found.quality, 1 / (1 + np.exp(-score)), atol=1e-9
    )
    assert sorted(found.ranking) == list(range(len(score)))
    assert np.diff(score[found.ranking]).min() > -1e-9
    np.testing.assert_array_equal(found.is_suspect, expected["is_suspect"])
    np.testing.assert_array_equal(found.predicted, expected["predicted"])
    np.testing.assert_array_equal(found.decisions, expected["decisions"])
    np.testing.assert_allclose(found.margin, expected["margin"], atol=1e-9)
    np.testing.assert_allclose(found.agreement, expected["agreement"])


def assert_same(found, expected):
    for name, value in vars(expected).items():
        np.testing.assert_array_equal(getattr(found, name), value)


# --- Is it the training data? ---


@pytest.mark.parametrize("is_on_disk", [False, True])
@pytest.mark.parametrize("has_base", [False, True])
def test_labels_in_the_header_are_a_hash_that_stays(
    tmp_path, is_on_disk, has_base
):
    """Runs from before have it: sha256 of int64 labels and float64 omega."""
    x, y = blobs(num_samples=30)
    base = np.linspace(0.5, 3, 30) if has_base else None
    model = dense_model()
    cbnn = CBNNCallback(tmp_path / "run" if is_on_disk else None)
    train = cbnn.weighted(x, y, sample_weight=base, batch_size=10, seed=1)
    model.fit(train, epochs=1, callbacks=[cbnn], verbose=0)
    first = base / base.sum() if has_base else np.full(30, 1 / 30)
    run = as_run(tmp_path / "run") if is_on_disk else cbnn.ensemble().run
    data = y.astype(np.int64).tobytes() + first.astype(np.float64).tobytes()
    assert run.header["labels"] == hashlib.sha256(data).hexdigest()
    np.testing.assert_allclose(run.first_weights, first, rtol=1e-12)
    assert run.first_weights.dtype == np.float64
    assert run.is_trained_on(y)
    assert run.is_trained_on(y.astype(np.int32))
    one_hot = np.eye(3)[y]
    assert run.is_trained_on(class_indices(one_hot, 3, is_binary=False))
    assert not run.is_trained_on(y[::-1])
    assert not run.is_trained_on(y[:-1])
    assert not run.is_trained_on(np.append(y, 0))
    other = y.copy()
    other[7] = (other[7] + 1) % 3
    assert not run.is_trained_on(other)


def test_other_first_weights_are_another_training():
    y = np.array([0, 1, 1])
    data = y.tobytes() + np.array([0.5, 0.25, 0.25]).tobytes()
    head = {"num_samples": 3, "labels": hashlib.sha256(data).hexdigest()}
    same = MemoryRun(head, np.array([0.5, 0.25, 0.25]))
    assert same.is_trained_on(y)
    assert not MemoryRun(head, np.array([0.25, 0.5, 0.25])).is_trained_on(y)
    assert not MemoryRun(head).is_trained_on(y)
    assert not MemoryRun({"num_samples": 3}).is_trained_on(y)


# --- The hardest samples ---


def test_hardest_samples_worked_out_by_hand():
    # Uniform; e = 1/4, the vote log 3: [1, 1, 1, 3] / 6.
    # e = 1/6, the vote log 5: [5, 1, 1, 3] / 30 of 1/3, times 4.
    # The final round changes no weight, but its mistake ranks 2 before 1.
    run = run_of([[1, 1, 1, 0], [0, 1, 1, 1], [1, 1, 0, 1]])
    found = hardest_samples(run)
    np.testing.assert_array_equal(found.index, [0, 3, 2, 1])
    np.testing.assert_allclose(found.weight, [2, 1.2, 0.4, 0.4])
    np.testing.assert_array_equal(found.num_mistakes, [1, 1, 1, 0])
    assert found.num_rounds == 3
    np.testing.assert_allclose(final_weights(run), [2, 0.4, 0.4, 1.2])
    two = hardest_samples(run, 2)
    np.testing.assert_array_equal(two.index, [0, 3])
    assert len(two.weight) == len(two.num_mistakes) == 2
    assert len(hardest_samples(run, 9).index) == 4


def test_without_boosting_mistakes_rank_then_the_last_of_them():
    rounds = [[0, 1, 1, 1, 0, 0], [1, 1, 0, 1, 0, 1], [1, 0, 1, 1, 1, 1]]
    found = hardest_samples(run_of(rounds, **EQUAL_VOTES))
    # Samples 0 and 5 are alike: in the order of the data.
    np.testing.assert_array_equal(found.index, [4, 1, 2, 0, 5, 3])
    np.testing.assert_array_equal(found.num_mistakes, [2, 1, 1, 1, 1, 0])
    np.testing.assert_allclose(found.weight, 1)


def test_run_without_rounds_has_nothing_to_rank_by():
    run = MemoryRun({"num_classes": 2, "num_samples": 3, "settings": {}})
    run.header["settings"] = {"deviation_rate": 1.0, "expected_error": 0.05}
    found = hardest_samples(run)
    np.testing.assert_array_equal(found.index, [0, 1, 2])
    np.testing.assert_array_equal(found.num_mistakes, [0, 0, 0])
    assert found.num_rounds == 0


def test_hardest_samples_of_a_run_wherever_it_is(tmp_path):
    cbnn, _, _, y = trained(tmp_path / "run", epochs=2)
    ensemble = CheckpointEnsemble.load(tmp_path / "run")
    expected = hardest_samples(ensemble.run)
    for source in (
        tmp_path / "run",
        str(tmp_path / "run"),
        ensemble,
        ensemble.select(2),
        cbnn.ensemble(),
    ):
        assert_same(hardest_samples(source), expected)
    # In training they are float32.
    weights = cbnn.sample_weights.numpy()
    np.testing.assert_allclose(
        expected.weight, weights[expected.index], rtol=1e-5
    )
    assert np.diff(expected.weight).max() <= 0
    assert expected.weight.mean() == pytest.approx(1)
    mistakes = [
        sum(not ensemble.run.correct(r["step"])[i] for r in ensemble.run.rounds)
        for i in expected.index
    ]
    np.testing.assert_array_equal(expected.num_mistakes, mistakes)
    assert expected.num_rounds == len(ensemble.run.rounds)


def test_method_without_boosting_is_ranked_by_mistakes():
    x, y = blobs()
    model = dense_model()
    plain = PlainCheckpoints(num_checkpoints=4)
    train = plain.weighted(x, y, batch_size=20, seed=1)
    model.fit(train, epochs=2, callbacks=[plain], verbose=0)
    found = hardest_samples(plain.ensemble())
    run = plain.ensemble().run
    wrong = np.array([~run.correct(r["step"]) for r in run.rounds])
    # Most mistakes first, then the latest, then the order of the data.
    expected = sorted(
        range(len(y)),
        key=lambda i: (-sum(wrong[:, i]), *(~wrong[::-1, i]), i),
    )
    np.testing.assert_array_equal(found.index, expected)
    np.testing.assert_allclose(found.weight, 1)
    assert found.num_mistakes[0] > found.num_mistakes[-1]


@pytest.mark.parametrize("num", [0, -1])
def test_no_samples_are_refused(num):
    message = rf"hardest_samples\(num={num}\): at least 1\."
    with pytest.raises(ValueError, match=message):
        hardest_samples(run_of([[1, 0]]), num)


def test_directory_must_be_a_run(tmp_path):
    with pytest.raises(ValueError, match="no run"):
        hardest_samples(tmp_path)


def test_damaged_directory_is_noticed(tmp_path):
    trained(tmp_path / "run", epochs=1)
    largest = max(
        (p for p in (tmp_path / "run").rglob("*") if p.is_file()),
        key=lambda path: path.stat().st_size,
    )
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    with pytest.raises(ValueError, match="damaged"):
        hardest_samples(tmp_path / "run")


# --- Suspects ---


@pytest.mark.parametrize("make", [softmax_trained, binary_trained])
def test_suspects_by_loop_over_samples_and_members(make):
    ensemble, x, y = make()
    assert len(ensemble) > 1
    weights = final_weights(ensemble.run)
    assert np.ptp(weights) > 0.05
    found = suspects(ensemble, x, y, verbose=0)
    np.testing.assert_array_equal(found.weight, weights)
    np.testing.assert_array_equal(found.given, y)
    assert_is(found, by_loop(ensemble, x, y, weights))
    # Who is below a guess is not the best; the reverse is not true.
    assert found.is_suspect.any()
    assert (found.predicted != y)[found.is_suspect].all()
    assert found.quality.min() > 0 and found.quality.max() < 1


@pytest.mark.parametrize("make", [softmax_trained, binary_trained])
def test_weights_of_other_data_are_equal(make):
    ensemble, x, y = make()
    order = np.random.default_rng(0).permutation(len(y))[:50]
    found = suspects(ensemble, x[order], y[order], verbose=0)
    np.testing.assert_array_equal(found.weight, 1)
    expected = by_loop(ensemble, x[order], y[order], np.ones(50))
    assert_is(found, expected)


def test_order_of_samples_does_not_matter():
    ensemble, x, y = softmax_trained()
    x, y = x[:70], y[:70]
    order = np.random.default_rng(0).permutation(70)
    found = suspects(ensemble, x, y, verbose=0)
    moved = suspects(ensemble, x[order], y[order], verbose=0)
    np.testing.assert_allclose(moved.quality, found.quality[order], rtol=1e-4)
    ranked = found.quality[order[moved.ranking]]
    np.testing.assert_allclose(ranked, found.quality[found.ranking], rtol=1e-4)
    np.testing.assert_array_equal(moved.is_suspect, found.is_suspect[order])
    np.testing.assert_array_equal(moved.predicted, found.predicted[order])


def test_suspects_of_labels_and_inputs_in_other_forms():
    ensemble, x, y = softmax_trained()
    expected = suspects(ensemble, x, y, verbose=0)
    assert np.ptp(expected.weight) > 0
    found = suspects(ensemble, x, np.eye(3)[y], batch_size=32, verbose=0)
    assert_same(found, expected)
    found = suspects(ensemble, x, y[:, None], verbose=0)
    assert_same(found, expected)
    for labels in (y, np.eye(3, dtype=np.float32)[y]):
        dataset = tf.data.Dataset.from_tensor_slices((x, labels)).batch(32)
        assert_same(suspects(ensemble, dataset, verbose=0), expected)


def test_selected_ensemble_asks_only_its_members():
    ensemble, x, y = softmax_trained()
    selected = ensemble.select(2)
    found = suspects(selected, x, y, verbose=0)
    assert found.decisions.shape == (2, len(y))
    # Weights are of the run, whoever is asked.
    weights = final_weights(ensemble.run)
    np.testing.assert_array_equal(found.weight, weights)
    assert_is(found, by_loop(selected, x, y, weights))


def test_second_best_of_three_is_no_suspect():
    """p(label) is 0.4, which is less than 0.5, but more than a guess."""
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(3, "softmax")]
    )
    model.set_weights([np.eye(3), np.zeros(3)])
    run = MemoryRun(header(model))
    record = {"step": 1, "vote": 1.0, "is_final": True}
    run.add_round(record, np.ones(8, dtype=bool), model)
    x = np.log(np.array([[0.5, 0.4, 0.1]] * 3, dtype=np.float32))
    ensemble = CheckpointEnsemble(run, model)
    found = suspects(ensemble, x, np.arange(3), verbose=0)
    np.testing.assert_array_equal(found.is_suspect, [False, False, True])
    np.testing.assert_array_equal(found.ranking, [2, 1, 0])
    np.testing.assert_allclose(found.margin, [0.1, -0.1, -0.4], rtol=1e-5)
    # Both margins are the same, and the weight is 1: p / (p + next best).
    quality = [0.5 / 0.9, 0.4 / 0.9, 0.1 / 0.6]
    np.testing.assert_allclose(found.quality, quality, rtol=1e-5)


@pytest.mark.parametrize("num_classes", [2, 3, 100])
def test_guess_makes_no_suspects(num_classes):
    """1/100 in float32 is less than 0.01, and seven times 1/7 less than 1."""
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(num_classes, "softmax", use_bias=False),
        ]
    )
    ensemble = memory_ensemble(model, [1.0] * 7)
    x = np.zeros((num_classes, 2), dtype=np.float32)
    found = suspects(ensemble, x, np.arange(num_classes), verbose=0)
    assert not found.is_suspect.any()
    np.testing.assert_allclose(found.quality, 0.5)


def test_certain_of_another_class():
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(2, "softmax")]
    )
    model.set_weights([1e4 * np.eye(2), np.zeros(2)])
    ensemble = memory_ensemble(model, [1.0, 2.0])
    x = np.eye(2, dtype=np.float32)
    found = suspects(ensemble, x, np.array([0, 0]), verbose=0)
    np.testing.assert_array_equal(found.is_suspect, [False, True])
    # p(label) 0 counts as 1e-7, for members and for all of them together.
    assert found.quality[1] == pytest.approx(1e-7, rel=1e-6)
    np.testing.assert_allclose(found.margin, [1, -1])
    np.testing.assert_allclose(found.agreement, 1)


def test_weight_of_zero_is_no_reason_for_suspicion():
    """Training never saw it: it is neither hard nor easy."""
    x, y = blobs(num_samples=30)
    base = np.ones(30)
    base[4] = 0
    model = dense_model()
    cbnn = CBNNCallback()
    train = cbnn.weighted(x, y, sample_weight=base, batch_size=10, seed=1)
    model.fit(train, epochs=1, callbacks=[cbnn], verbose=0)
    found = suspects(cbnn.ensemble(), x, y, verbose=0)
    assert found.weight[4] == 1
    assert_is(found, by_loop(cbnn.ensemble(), x, y, found.weight))


def test_labels_are_needed():
    ensemble = memory_ensemble(dense_model(), [1.0])
    with pytest.raises(ValueError, match="The labels are missing"):
        suspects(ensemble, np.zeros((3, 4), dtype=np.float32), verbose=0)
    assert ensemble.run.header == header(ensemble.model)


# --- The file, and cleanlab ---


class Recording(LogisticRegression):
    """Remembers what it was last trained on."""

    def fit(self, X, y, sample_weight=None):
        self.seen = X, y
        return super().fit(X, y, sample_weight)


COLUMNS = {
    "is_label_issue": "is_suspect",
    "label_quality": "quality",
    "given_label": "given",
    "predicted_label": "predicted",
    "weight": "weight",
    "margin": "margin",
    "agreement": "agreement",
}


@pytest.mark.parametrize("make", [softmax_trained, binary_trained])
def test_file_has_a_row_for_each_sample_in_order(tmp_path, make):
    ensemble, x, y = make()
    found = suspects(ensemble, x, y, verbose=0)
    found.to_csv(tmp_path / "suspects.csv")
    table = pandas.read_csv(tmp_path / "suspects.csv")
    assert list(table.columns) == [
        "is_label_issue",
        "label_quality",
        "given_label",
        "predicted_label",
        "index",
        "rank",
        "weight",
        "margin",
        "agreement",
    ]
    assert len(table) == len(y)
    assert table["is_label_issue"].dtype == bool
    for column, name in COLUMNS.items():
        expected = getattr(found, name)
        np.testing.assert_allclose(table[column], expected, rtol=1e-12)
    np.testing.assert_array_equal(table["index"], np.arange(len(y)))
    ranked = table.sort_values("rank")
    np.testing.assert_array_equal(ranked["index"], found.ranking)
    np.testing.assert_array_equal(ranked["rank"], np.arange(1, len(y) + 1))
    assert ranked["label_quality"].is_monotonic_increasing


def test_cleanlab_trains_without_the_suspects(tmp_path):
    ensemble, x, y = softmax_trained()
    found = suspects(ensemble, x, y, verbose=0)
    assert found.is_suspect.any()
    found.to_csv(tmp_path / "suspects.csv")
    table = pandas.read_csv(tmp_path / "suspects.csv")
    classifier = Recording(max_iter=1000)
    learning = cleanlab.classification.CleanLearning(clf=classifier)
    learning.fit(x, y, label_issues=table)
    issues = learning.get_label_issues()
    np.testing.assert_array_equal(issues["is_label_issue"], found.is_suspect)
    np.testing.assert_allclose(issues["label_quality"], found.quality)
    np.testing.assert_array_equal(issues["given_label"], y)
    np.testing.assert_array_equal(issues["predicted_label"], found.predicted)
    seen, labels = classifier.seen
    np.testing.assert_array_equal(seen, x[~found.is_suspect])
    np.testing.assert_array_equal(labels, y[~found.is_suspect])
    assert learning.predict(x).shape == y.shape


def test_flipped_labels_are_found():
    """5 % of the labels of real digits, by a model that trains on them.

    0.91 of the first 5 % were flipped ones; of cleanlab's ranking by the
    ensemble's probabilities, 0.88. With three other seeds of the flips it was
    0.92, 0.92, 0.90 and 0.92, 0.92, 0.88.
    """
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    generator = np.random.default_rng(0)
    num_flipped = round(0.05 * len(y))
    flipped = generator.choice(len(y), num_flipped, replace=False)
    labels = y.copy()
    labels[flipped] += generator.integers(1, 10, num_flipped)
    labels %= 10
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.003), loss="sparse_categorical_crossentropy"
    )
    cbnn = CBNNCallback()
    train = cbnn.weighted(x, labels, batch_size=64, seed=1)
    model.fit(train, epochs=6, callbacks=[cbnn], verbose=0)
    ensemble = cbnn.ensemble()
    found = suspects(ensemble, x, labels, verbose=0)
    quality = get_label_quality_scores(
        labels, ensemble.predict(x, verbose=0), method="self_confidence"
    )
    ours, theirs = (
        np.isin(ranking[:num_flipped], flipped).mean()
        for ranking in (found.ranking, np.argsort(quality, kind="stable"))
    )
    assert ours >= 0.8
    assert ours >= theirs
    # What is called a suspect outright is hardly ever right.
    assert np.isin(np.flatnonzero(found.is_suspect), flipped).mean() > 0.8


def test_suspects_of_a_directory(tmp_path):
    callback, _, x, y = trained(tmp_path / "run", epochs=2)
    found = suspects(tmp_path / "run", x, y, verbose=0)
    expected = suspects(callback.ensemble(), x, y, verbose=0)
    np.testing.assert_array_equal(found.ranking, expected.ranking)
    found.to_csv(tmp_path / "new" / "folder" / "a.csv")
    assert len(pandas.read_csv(tmp_path / "new/folder/a.csv")) == len(y)


def test_labels_and_opinions_of_the_hardest_samples():
    ensemble, x, y = softmax_trained()
    opinions = suspects(ensemble, x, y, verbose=0)
    hardest = hardest_samples(ensemble, num=7, opinions=opinions)
    np.testing.assert_array_equal(hardest.label, y[hardest.index])
    members = ensemble.member_probabilities(x, verbose=0)
    expected = [p.argmax(axis=1)[hardest.index] for p in members]
    np.testing.assert_array_equal(hardest.decisions, expected)
    others = suspects(ensemble, x[:50], y[:50], verbose=0)
    with pytest.raises(
        ValueError, match=r"opinions=\.\.\.\): those must be of"
    ):
        hardest_samples(ensemble, opinions=others)


def test_weights_are_relative_to_those_of_the_user():
    base = np.array([0.5, 0.25, 0.25, 0.0])
    settings = {"deviation_rate": 1.0, "expected_error": 0.05}
    run = MemoryRun(
        {"num_classes": 2, "num_samples": 4, "settings": settings}, base
    )
    correct = np.array([True, True, False, True])
    run.add_round({"step": 1, "is_final": False}, correct, None)
    # e = 1/4, lambda = log 3: those that are right are a third of the other.
    raised = np.array([1 / 3, 1 / 3, 1.0])
    np.testing.assert_allclose(
        final_weights(run), [*raised / raised.mean(), 1.0]
    )
    assert hardest_samples(run).index[0] == 2
