"""Tests of the hardest samples and of labels that are probably wrong."""

import hashlib
import math

import cleanlab
import numpy as np
import pandas
import pytest
import tensorflow as tf
from cleanlab.rank import get_label_quality_scores
from disks import small_disk
from helpers import blobs, dense_model, header, round_at, trained
from sklearn.linear_model import LogisticRegression

from cbnn_keras.analysis.samples import (
    as_run,
    final_weights,
    hardest_samples,
    rank_suspects,
    suspects,
)
from cbnn_keras.boosting_policies import Boosting, EqualVotes
from cbnn_keras.runs.manifest import Settings
from cbnn_keras.runs.run import MemoryRun
from cbnn_keras.support.faults import RunError


def run_of(rounds, policy=None, own_distribution=None):
    """A run of two classes, from what each of its rounds got right."""
    settings = Settings(policy or Boosting(deviation_rate=1.0))
    num_samples = len(rounds[0])
    head = header(
        dense_model(num_classes=2), num_samples=num_samples, settings=settings
    )
    run = MemoryRun(head, own_distribution)
    for step, correct in enumerate(rounds, start=1):
        record = round_at(step, is_final=1 < step == len(rounds))
        run.add_round(record, np.array(correct, dtype=bool), None)
    return run


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
    found["member_classes"] = [p.argmax(axis=1) for p in members]
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
    np.testing.assert_array_equal(
        found.member_classes, expected["member_classes"]
    )
    np.testing.assert_allclose(found.margin, expected["margin"], atol=1e-9)
    np.testing.assert_allclose(found.agreement, expected["agreement"])


def assert_same(found, expected):
    for name, value in vars(expected).items():
        np.testing.assert_array_equal(getattr(found, name), value)


# --- Is it the training data? ---


@pytest.mark.parametrize("has_own", [False, True])
def test_labels_in_the_header_are_a_hash_that_stays(tmp_path, has_own):
    """Runs from before have it: sha256 of int64 labels and float64 omega."""
    own = np.linspace(0.5, 3, 30) if has_own else None
    _, _, _, y = trained(
        tmp_path / "run",
        data=blobs(num_samples=30),
        epochs=1,
        sample_weight=own,
    )
    run = as_run(tmp_path / "run")
    first = own / own.sum() if has_own else np.full(30, 1 / 30)
    data = y.astype(np.int64).tobytes() + first.astype(np.float64).tobytes()
    assert run.header.labels == hashlib.sha256(data).hexdigest()
    np.testing.assert_allclose(run.first_distribution, first, rtol=1e-12)
    assert run.first_distribution.dtype == np.float64
    assert run.is_trained_on(y.astype(np.int32))
    # Other labels, another order, and another first distribution are another.
    for other in (
        y[::-1],
        y[:-1],
        np.append(y, 0),
        np.r_[(y[0] + 1) % 3, y[1:]],
    ):
        assert not run.is_trained_on(other)
    uneven = np.linspace(1, 2, 30) / 45
    assert not MemoryRun(run.header, uneven).is_trained_on(y)


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
    found = hardest_samples(run_of(rounds, EqualVotes()))
    # Samples 0 and 5 are alike: in the order of the data.
    np.testing.assert_array_equal(found.index, [4, 1, 2, 0, 5, 3])
    np.testing.assert_array_equal(found.num_mistakes, [2, 1, 1, 1, 1, 0])
    np.testing.assert_allclose(found.weight, 1)


def test_weights_are_relative_to_those_of_the_user():
    own = np.array([0.5, 0.25, 0.25, 0.0])
    run = run_of([[True, True, False, True]], own_distribution=own)
    # e = 1/4, lambda = log 3: those that are right are a third of the other.
    # Training never saw the last one: it is neither hard nor easy.
    raised = np.array([1 / 3, 1 / 3, 1.0])
    np.testing.assert_allclose(
        final_weights(run), [*raised / raised.mean(), 1.0]
    )
    assert hardest_samples(run).index[0] == 2


def test_hardest_samples_of_a_run_wherever_it_is(softmax_run):
    ensemble = softmax_run.ensemble
    expected = hardest_samples(ensemble.run)
    for source in (
        str(softmax_run.path),
        ensemble.select(2),
        softmax_run.callback.ensemble(),
    ):
        assert_same(hardest_samples(source), expected)
    # In training they are float32.
    weights = softmax_run.callback.sample_weights.numpy()
    np.testing.assert_allclose(
        expected.weight, weights[expected.index], rtol=1e-5
    )
    assert np.diff(expected.weight).max() <= 0
    assert expected.weight.mean() == pytest.approx(1)


def test_labels_and_predicted_classes_of_the_hardest_samples(softmax_run):
    ensemble, x, y = softmax_run.ensemble, softmax_run.x, softmax_run.y
    hardest = hardest_samples(ensemble, num=7, suspects=softmax_run.found)
    np.testing.assert_array_equal(hardest.label, y[hardest.index])
    members = ensemble.member_probabilities(x, verbose=0)
    expected = [p.argmax(axis=1)[hardest.index] for p in members]
    np.testing.assert_array_equal(hardest.member_classes, expected)
    others = suspects(ensemble, x[:50], y[:50], verbose=0)
    with pytest.raises(ValueError, match=r"suspects=\.\.\.\): these must be"):
        hardest_samples(ensemble, suspects=others)
    message = r"hardest_samples\(num=0\): num must be an integer of at least 1"
    with pytest.raises(ValueError, match=message):
        hardest_samples(ensemble, 0)


# --- Suspects ---


def test_suspects_by_loop_over_samples_and_members(either_run):
    ensemble, x, y = either_run.ensemble, either_run.x, either_run.y
    found, weights = either_run.found, final_weights(ensemble.run)
    assert len(ensemble) > 1
    assert np.ptp(weights) > 0.05
    np.testing.assert_array_equal(found.weight, weights)
    np.testing.assert_array_equal(found.given, y)
    assert_is(found, by_loop(ensemble, x, y, weights))
    # Who is below a guess is not the best; the reverse is not true.
    assert found.is_suspect.any()
    assert (found.predicted != y)[found.is_suspect].all()
    assert found.quality.min() > 0 and found.quality.max() < 1
    # Other data have equal weights, and only members of the ensemble are asked.
    order = np.random.default_rng(0).permutation(len(y))[:50]
    selected = ensemble.select(2)
    found = suspects(selected, x[order], y[order], verbose=0)
    assert found.member_classes.shape == (2, 50)
    np.testing.assert_array_equal(found.weight, 1)
    assert_is(found, by_loop(selected, x[order], y[order], np.ones(50)))


def test_suspects_of_labels_and_inputs_in_other_forms(softmax_run):
    ensemble, x, y = softmax_run.ensemble, softmax_run.x, softmax_run.y
    found = suspects(ensemble, x, np.eye(3)[y], batch_size=32, verbose=0)
    assert_same(found, softmax_run.found)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    found = suspects(softmax_run.path, dataset, verbose=0)
    assert_same(found, softmax_run.found)
    with pytest.raises(ValueError, match="The labels are missing"):
        suspects(ensemble, x, verbose=0)


def test_second_best_of_three_is_no_suspect():
    """p(label) is 0.4, which is less than 0.5, but more than a guess."""
    members = [np.array([[0.5, 0.4, 0.1]] * 3)]
    found = rank_suspects(members, np.ones(1), np.arange(3), np.ones(3))
    np.testing.assert_array_equal(found.is_suspect, [False, False, True])
    np.testing.assert_array_equal(found.ranking, [2, 1, 0])
    np.testing.assert_allclose(found.margin, [0.1, -0.1, -0.4])
    # Both margins are the same, and the weight is 1: p / (p + next best).
    quality = [0.5 / 0.9, 0.4 / 0.9, 0.1 / 0.6]
    np.testing.assert_allclose(found.quality, quality)


@pytest.mark.parametrize("num_classes", [2, 3, 100])
def test_guess_makes_no_suspects(num_classes):
    """1/100 in float32 is less than 0.01, and seven times 1/7 less than 1."""
    guess = np.full((num_classes, num_classes), 1 / num_classes, np.float32)
    found = rank_suspects(
        [guess] * 7, np.ones(7), np.arange(num_classes), np.ones(num_classes)
    )
    assert not found.is_suspect.any()
    np.testing.assert_allclose(found.quality, 0.5)


def test_certain_of_another_class():
    found = rank_suspects(
        [np.eye(2)] * 2, np.array([1.0, 2.0]), np.array([0, 0]), np.ones(2)
    )
    np.testing.assert_array_equal(found.is_suspect, [False, True])
    # p(label) 0 counts as 1e-7, for members and for all of them together.
    assert found.quality[1] == pytest.approx(1e-7, rel=1e-6)
    np.testing.assert_allclose(found.margin, [1, -1])
    np.testing.assert_allclose(found.agreement, 1)


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
    "index": None,
    "rank": None,
    "weight": "weight",
    "margin": "margin",
    "agreement": "agreement",
}


def test_file_has_a_row_for_each_sample_in_order(tmp_path, either_run):
    found, num = either_run.found, len(either_run.y)
    found.to_csv(tmp_path / "new" / "directory" / "suspects.csv")
    table = pandas.read_csv(tmp_path / "new/directory/suspects.csv")
    assert list(table.columns) == list(COLUMNS)
    assert table["is_label_issue"].dtype == bool
    for column, name in COLUMNS.items():
        if name:
            expected = getattr(found, name)
            np.testing.assert_allclose(table[column], expected, rtol=1e-12)
    np.testing.assert_array_equal(table["index"], np.arange(num))
    ranked = table.sort_values("rank")
    np.testing.assert_array_equal(ranked["index"], found.ranking)
    np.testing.assert_array_equal(ranked["rank"], np.arange(1, num + 1))
    assert ranked["label_quality"].is_monotonic_increasing


def test_cleanlab_trains_without_the_suspects(tmp_path, softmax_run):
    found, x, y = softmax_run.found, softmax_run.x, softmax_run.y
    assert found.is_suspect.any()
    found.to_csv(tmp_path / "suspects.csv")
    classifier = Recording(max_iter=1000)
    learning = cleanlab.classification.CleanLearning(clf=classifier)
    table = pandas.read_csv(tmp_path / "suspects.csv")
    learning.fit(x, y, label_issues=table)
    issues = learning.get_label_issues()
    np.testing.assert_array_equal(issues["is_label_issue"], found.is_suspect)
    np.testing.assert_allclose(issues["label_quality"], found.quality)
    np.testing.assert_array_equal(issues["predicted_label"], found.predicted)
    seen, labels = classifier.seen
    np.testing.assert_array_equal(seen, x[~found.is_suspect])
    np.testing.assert_array_equal(labels, y[~found.is_suspect])


def test_flipped_labels_are_found(digits):
    """5 % of the labels of real digits, by a model that trains on them.

    0.91 of the first 5 % were flipped ones; of cleanlab's ranking by the
    ensemble's probabilities, 0.88. With three other seeds of the flips it was
    0.92, 0.92, 0.90 and 0.92, 0.92, 0.88.
    """
    x, y, model = digits
    generator = np.random.default_rng(0)
    num_flipped = round(0.05 * len(y))
    flipped = generator.choice(len(y), num_flipped, replace=False)
    labels = y.copy()
    labels[flipped] += generator.integers(1, 10, num_flipped)
    labels %= 10
    cbnn, *_ = trained(data=(x, labels), model=model(), batch_size=64, epochs=6)
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


def test_a_table_is_not_written_into_a_run(softmax_run, tmp_path):
    before = (softmax_run.path / "manifest.json").read_bytes()
    with pytest.raises(RunError, match="is inside the run .*, which is not"):
        softmax_run.found.to_csv(softmax_run.path / "manifest.json")
    assert (softmax_run.path / "manifest.json").read_bytes() == before


def test_a_table_on_a_full_disk(softmax_run, tmp_path):
    with small_disk(tmp_path / "disk", 4) as disk:
        path = disk / "suspects.csv"
        path.write_text("old")
        with pytest.raises(
            OSError,
            match=rf"^{path} could not be written: No space left on device\. "
            r"Nothing was changed there: make room, and try",
        ):
            softmax_run.found.to_csv(path)
        assert path.read_text() == "old"
        assert list(disk.iterdir()) == [path]
