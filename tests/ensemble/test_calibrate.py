"""Tests of calibration as users see it: fitted, kept, applied, dropped."""

import dataclasses
import errno
import json
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers import (
    blobs,
    change_manifest,
    dense_model,
    memory_ensemble,
    trained,
)

from cbnn_keras import CheckpointEnsemble, imbalance
from cbnn_keras.calibration import CalibrationRecord
from cbnn_keras.runs import manifest_json
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.support import files, locks
from cbnn_keras.support.faults import RunError

X, _ = blobs(90, seed=3)
Y = np.random.default_rng(1).permutation(np.arange(90) % 3)
OTHER, _ = blobs(40, seed=4)


def noisy(probabilities, seed=2):
    """Labels that are likely, but less so than the probabilities say."""
    draws = np.random.default_rng(seed).random((len(probabilities), 1))
    columns = probabilities
    if columns.shape[1] == 1:
        columns = np.hstack([1 - columns, columns])
    flat = columns**0.5 / (columns**0.5).sum(axis=1, keepdims=True)
    return (flat.cumsum(axis=1) > draws).argmax(axis=1)


@pytest.fixture
def ensemble():
    """Three members that say too much, and labels that show it."""
    keras.utils.set_random_seed(3)
    found = memory_ensemble(dense_model(), [1.0, 2.5, 0.7])
    found.labels = noisy(found.predict(X, verbose=0))
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of training, not calibrated."""
    directory = tmp_path_factory.mktemp("run") / "run"
    keras.utils.set_random_seed(0)
    callback, *_ = trained(directory, num_checkpoints=3, epochs=2)
    assert len(callback.ensemble()) > 1
    return directory


@pytest.fixture
def directory(finished, tmp_path):
    """A copy of it, to be changed."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture(scope="module")
def calibrated(finished, tmp_path_factory):
    """Another copy of it, calibrated, with sets; nothing changes it."""
    copy = tmp_path_factory.mktemp("calibrated") / "run"
    shutil.copytree(finished, copy)
    CheckpointEnsemble.load(copy).calibrate((X, Y), coverage=0.9, verbose=0)
    return copy


def powers(probabilities, temperature):
    """By the definition."""
    found = probabilities.astype("float64") ** (1 / temperature)
    return found / found.sum(axis=1, keepdims=True)


def manifest(directory):
    return json.loads((directory / "manifest.json").read_text())


# --- What is fitted, and applied ---


def test_probabilities_are_scaled_everywhere(ensemble):
    raw = ensemble.predict(OTHER, verbose=0)
    before = ensemble.evaluate(X, ensemble.labels, verbose=0)
    record = ensemble.calibrate((X, ensemble.labels), verbose=0)
    assert record == ensemble.calibration
    assert record.num_samples == 90 and record.members == [1, 2, 3]
    assert 1.2 < record.temperature < 5
    assert record.coverage is None and record.threshold is None
    expected = powers(raw, record.temperature)
    found = ensemble.predict(OTHER, verbose=0)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_array_equal(found.argmax(1), raw.argmax(1))
    *_, last = ensemble.staged_predict(OTHER, verbose=0)
    np.testing.assert_array_equal(last, found)
    model = ensemble.as_model()
    np.testing.assert_allclose(model(OTHER), found, atol=1e-6)
    after = ensemble.evaluate(X, ensemble.labels, verbose=0)
    name = "negative_log_likelihood"
    assert after[name] < before[name] - 0.01
    assert after["accuracy"] == before["accuracy"]


def random_labels(probabilities, share, seed=5):
    """Labels as the probabilities say, but for a share that is any."""
    generator = np.random.default_rng(seed)
    columns = probabilities
    if columns.shape[1] == 1:
        columns = np.hstack([1 - columns, columns])
    num, num_classes = columns.shape
    labels = (columns.cumsum(axis=1) > generator.random((num, 1))).argmax(1)
    is_any = generator.random(num) < share
    return np.where(is_any, generator.integers(0, num_classes, num), labels)


@pytest.mark.parametrize("is_binary", [False, True])
def test_a_share_is_applied_everywhere(is_binary):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(1, "sigmoid")
            if is_binary
            else keras.layers.Dense(3, "softmax"),
        ]
    )
    ensemble = memory_ensemble(model, [1.0, 2.5, 0.7], is_binary=is_binary)
    x = 3 * blobs(1000, seed=3)[0]
    raw = ensemble.predict(x, verbose=0)
    labels = random_labels(raw, share=0.3)
    record = ensemble.calibrate((x, labels), coverage=0.9, verbose=0)
    assert record.share == pytest.approx(0.3, abs=0.1)
    both = np.hstack([1 - raw, raw]) if is_binary else raw
    both = powers(np.maximum(both, 1e-7), record.temperature)
    expected = (1 - record.share) * both + record.share / both.shape[1]
    # Of one column what is nearly 1 counts as less, see `calibration.floor`.
    is_clear = (both.min(axis=1) > 1e-3) | (not is_binary)
    found = ensemble.predict(x, verbose=0)
    shown = np.hstack([1 - found, found]) if is_binary else found
    np.testing.assert_allclose(shown[is_clear], expected[is_clear], atol=1e-5)
    np.testing.assert_array_equal(shown.argmax(1), expected.argmax(1))
    *_, last = ensemble.staged_predict(x, verbose=0)
    np.testing.assert_array_equal(last, found)
    np.testing.assert_allclose(ensemble.as_model()(x), found, atol=1e-5)
    rows = np.arange(len(x))
    evaluated = ensemble.evaluate(x, labels, verbose=0)
    assert evaluated["negative_log_likelihood"] == pytest.approx(
        -np.log(shown[rows, labels]).mean(), abs=1e-5
    )
    sets = ensemble.prediction_sets(x, verbose=0)
    assert sets[rows, labels].sum() == 901  # ceil(1001 * 0.9)
    np.testing.assert_array_equal(sets, shown >= record.threshold)
    # Priors divide what has its share already.
    num_classes = both.shape[1]
    priors = np.arange(1, num_classes + 1) / np.arange(num_classes + 1).sum()
    by_priors = shown / priors
    by_priors /= by_priors.sum(axis=1, keepdims=True)
    given = ensemble.predict(x, priors=priors, verbose=0)
    first = num_classes - given.shape[1]
    np.testing.assert_allclose(given, by_priors[:, first:], atol=1e-5)
    model = ensemble.as_model(priors=priors)
    np.testing.assert_allclose(model(x), given, atol=1e-5)


def test_what_members_say_can_still_be_had(ensemble):
    x_and_y = (X, ensemble.labels)
    calls = [
        lambda **how: ensemble.predict(OTHER, verbose=0, **how),
        lambda **how: list(ensemble.staged_predict(OTHER, verbose=0, **how)),
        lambda **how: list(
            ensemble.evaluate(*x_and_y, verbose=0, **how).values()
        ),
    ]
    before = [call() for call in calls]
    ensemble.calibrate(x_and_y, verbose=0)
    for call, expected in zip(calls, before, strict=True):
        np.testing.assert_array_equal(call(calibrated=False), expected)
        assert not np.allclose(call(), expected, atol=1e-4)
    model = ensemble.as_model(calibrated=False)
    np.testing.assert_allclose(model(OTHER), before[0], atol=1e-6)


def test_one_vote_each_is_as_it_was(ensemble):
    """A temperature is of averaged probabilities, not of shares of votes."""
    before = ensemble.predict(OTHER, voting="hard", verbose=0)
    ensemble.calibrate((X, ensemble.labels), verbose=0)
    for call in (
        ensemble.predict(OTHER, voting="hard", verbose=0),
        list(ensemble.staged_predict(OTHER, voting="hard", verbose=0))[-1],
    ):
        np.testing.assert_array_equal(call, before)
    model = ensemble.as_model(voting="hard")
    np.testing.assert_allclose(model(OTHER), before)


def test_priors_divide_what_is_calibrated(ensemble):
    priors = [0.6, 0.3, 0.1]
    raw = ensemble.predict(OTHER, verbose=0)
    record = ensemble.calibrate((X, ensemble.labels), verbose=0)
    expected = powers(raw, record.temperature) / priors
    expected /= expected.sum(axis=1, keepdims=True)
    found = ensemble.predict(OTHER, priors=priors, verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    *_, last = ensemble.staged_predict(OTHER, priors=priors, verbose=0)
    np.testing.assert_array_equal(last, found)
    model = ensemble.as_model(priors=priors)
    np.testing.assert_allclose(model(OTHER), found, atol=1e-6)
    np.testing.assert_allclose(
        found,
        imbalance.threshold(ensemble.predict(OTHER, verbose=0), priors),
        atol=1e-6,
    )


@pytest.mark.parametrize("from_logits", [False, True])
def test_one_column(from_logits):
    activation = None if from_logits else "sigmoid"
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(1, activation)]
    )
    ensemble = memory_ensemble(
        model, [1.0, 2.0], is_binary=True, from_logits=from_logits
    )
    raw = ensemble.predict(X, verbose=0)
    labels = noisy(raw)
    record = ensemble.calibrate((X, labels), coverage=0.8, verbose=0)
    both = np.hstack([1 - raw, raw])
    assert both.min() > 1e-4  # none is so small that it counts as more
    found = ensemble.predict(X, verbose=0)
    assert found.shape == (90, 1)
    np.testing.assert_allclose(
        found, powers(both, record.temperature)[:, 1:], atol=1e-5
    )
    np.testing.assert_allclose(ensemble.as_model()(X), found, atol=1e-5)
    sets = ensemble.prediction_sets(X, verbose=0)
    assert sets.shape == (90, 2)
    assert sets[np.arange(90), labels].sum() == 73  # ceil(91 * 0.8)


def test_sets_cover_what_they_were_fitted_to_by_rank(ensemble):
    record = ensemble.calibrate((X, ensemble.labels), coverage=0.9, verbose=0)
    assert record.coverage == 0.9
    sets = ensemble.prediction_sets(X, verbose=0)
    assert sets.dtype == bool and sets.shape == (90, 3)
    assert sets[np.arange(90), ensemble.labels].sum() == 82  # ceil(91 * 0.9)
    found = ensemble.predict(OTHER, verbose=0)
    np.testing.assert_array_equal(
        ensemble.prediction_sets(OTHER, verbose=0), found >= record.threshold
    )


def test_what_is_said(ensemble, capsys):
    ensemble.calibrate((X, ensemble.labels))
    text = capsys.readouterr().out
    assert "from 90 samples, on which the negative log-likelihood" in text


# --- For which members it holds ---


def test_other_members_or_votes_are_not_calibrated(ensemble):
    everyone = ensemble.select(num=3)
    single = ensemble.take([1])
    revoted = ensemble.with_votes({1: 1.0, 2: 2.0, 3: 1.0})
    raw = [e.predict(OTHER, verbose=0) for e in (single, revoted)]
    ensemble.calibrate((X, ensemble.labels), coverage=0.9, verbose=0)
    # Also what was made before, over the same run.
    assert everyone.calibration is ensemble.calibration is not None
    assert ensemble.in_float32().calibration is not None
    for other, before in zip((single, revoted), raw, strict=True):
        assert other.calibration is None
        np.testing.assert_array_equal(other.predict(OTHER, verbose=0), before)
        with pytest.raises(
            ValueError,
            match="Sets need a coverage that these members and votes were "
            r"calibrated for: ensemble.calibrate\(\(x_val, y_val\), "
            r"coverage=0.9\)\.",
        ):
            other.prediction_sets(OTHER)


def test_sets_need_a_coverage(ensemble):
    ensemble.calibrate((X, ensemble.labels), verbose=0)
    with pytest.raises(ValueError, match="Sets need a coverage"):
        ensemble.prediction_sets(OTHER)


def test_what_was_selected_can_be_calibrated(ensemble):
    ensemble.calibrate((X, ensemble.labels), verbose=0)
    chosen = ensemble.take([2, 3])
    record = chosen.calibrate((X, ensemble.labels), verbose=0)
    assert record.members == [2, 3] and record.votes == [2.5, 0.7]
    assert chosen.calibration == record
    assert ensemble.calibration is None  # the run keeps one


def test_saved_with_its_members(ensemble, tmp_path):
    ensemble.calibrate((X, ensemble.labels), coverage=0.8, verbose=0)
    ensemble.save(tmp_path / "all")
    ensemble.take([1, 3]).save(tmp_path / "two")
    found = CheckpointEnsemble.load(tmp_path / "all")
    assert found.calibration == ensemble.calibration
    np.testing.assert_array_equal(
        found.predict(OTHER, verbose=0), ensemble.predict(OTHER, verbose=0)
    )
    assert manifest(tmp_path / "all")["format_version"] == 6
    assert CheckpointEnsemble.load(tmp_path / "two").calibration is None
    content = manifest(tmp_path / "two")
    assert content["format_version"] == 4 and "calibration" not in content


# --- In a directory ---


def test_kept_in_the_directory_and_nothing_else_changed(directory):
    before = manifest(directory)
    contents = {
        path: path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    ensemble = CheckpointEnsemble.load(directory)
    record = ensemble.calibrate((X, Y), coverage=0.9, verbose=0)
    after = manifest(directory)
    assert after.pop("calibration") == record.to_json()
    assert (before.pop("format_version"), after.pop("format_version")) == (4, 6)
    assert before.pop("sha256") != after.pop("sha256")
    assert after == before
    assert contents == {path: path.read_bytes() for path in contents}
    assert not (directory / "manifest.json.new").exists()
    again = CheckpointEnsemble.load(directory)
    assert again.calibration == record
    np.testing.assert_array_equal(
        again.predict(OTHER, verbose=0), ensemble.predict(OTHER, verbose=0)
    )
    # A second one takes the place of the first.
    record = again.calibrate((X, Y), verbose=0)
    assert manifest(directory)["calibration"] == record.to_json()
    assert record.threshold is None


def with_share(directory, share):
    """Calibrates a run as if a share had been found."""
    ensemble = CheckpointEnsemble.load(directory)
    record = ensemble.calibrate((X, Y), verbose=0)
    record = dataclasses.replace(record, share=share)
    ensemble.run.keep_calibration(record)
    return record


def test_a_share_makes_it_format_7(directory, monkeypatch):
    record = with_share(directory, 0.125)
    content = manifest(directory)
    assert content["format_version"] == 7
    assert content["calibration"] == vars(record)
    again = CheckpointEnsemble.load(directory)
    assert again.calibration == record
    raw = again.predict(OTHER, calibrated=False, verbose=0)
    expected = 0.875 * powers(raw, record.temperature) + 0.125 / 3
    np.testing.assert_allclose(
        again.predict(OTHER, verbose=0), expected, atol=1e-6
    )
    again.save(directory.parent / "copy")
    assert CheckpointEnsemble.load(directory.parent / "copy").calibration == (
        record
    )
    # What the version before says, which knows no share.
    monkeypatch.setattr(manifest_json, "FORMAT_VERSION", 6)
    with pytest.raises(
        RunError, match="has format version 7; this cbnn_keras reads up to 6"
    ):
        CheckpointEnsemble.load(directory)
    monkeypatch.undo()
    # Without one it is as before again.
    with_share(directory, 0.0)
    content = manifest(directory)
    assert content["format_version"] == 6
    assert "share" not in content["calibration"]
    assert CheckpointEnsemble.load(directory).calibration.share == 0.0


def test_a_calibrated_run_is_still_finished(directory):
    """The same script again finds it so, and leaves it as it is."""
    CheckpointEnsemble.load(directory).calibrate((X, Y), verbose=0)
    before = (directory / "manifest.json").read_bytes()
    callback, *_ = trained(directory, num_checkpoints=3, epochs=2, resume=True)
    assert callback.ensemble().calibration is not None
    assert (directory / "manifest.json").read_bytes() == before


def test_members_that_were_left_out_stay_in_the_directory(directory):
    step = manifest(directory)["members"][0]
    path = directory / "members" / f"{step}.weights.h5"
    content = path.read_bytes()
    path.write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="Members are left out"):
        ensemble = CheckpointEnsemble.load(directory, allow_missing=True)
    record = ensemble.calibrate((X, Y), verbose=0)
    assert step not in record.members and step in manifest(directory)["members"]
    path.write_bytes(content)
    assert CheckpointEnsemble.load(directory).calibration is None


def test_another_run_has_taken_the_place(directory):
    ensemble = CheckpointEnsemble.load(directory)
    trained(directory, num_checkpoints=2, epochs=1, overwrite=True)
    before = (directory / "manifest.json").read_bytes()
    record = CalibrationRecord(1.5, 9, [r.step for r in ensemble.rounds], [1.0])
    with pytest.raises(
        RunError,
        match="holds another run than when it was loaded. Load it again, and "
        "calibrate that",
    ):
        ensemble.run.keep_calibration(record)
    assert (directory / "manifest.json").read_bytes() == before


def test_nothing_is_written_that_would_be_refused(directory):
    ensemble = CheckpointEnsemble.load(directory)
    before = (directory / "manifest.json").read_bytes()
    record = CalibrationRecord(1.5, 9, [1], [1.0])
    with pytest.raises(RunError, match="its calibration is of other members"):
        ensemble.run.keep_calibration(record)
    assert (directory / "manifest.json").read_bytes() == before
    assert ensemble.calibration is None


def test_a_disk_that_is_full(directory, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    ensemble = CheckpointEnsemble.load(directory)
    before = (directory / "manifest.json").read_bytes()
    monkeypatch.setattr(files, "replace_bytes", full)
    with pytest.raises(OSError, match="What it held before is intact.*calibra"):
        ensemble.calibrate((X, Y), verbose=0)
    assert ensemble.calibration is None
    assert (directory / "manifest.json").read_bytes() == before


def test_while_another_process_writes(directory):
    ensemble = CheckpointEnsemble.load(directory)
    code = (
        "import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDONLY); "
        "fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        holder.stdout.readline()
        with pytest.raises(RunError, match="is in use: another process"):
            ensemble.calibrate((X, Y), verbose=0)
        holder.communicate(b"\n")
    ensemble.calibrate((X, Y), verbose=0)
    assert locks.lock(directory)  # it was released
    locks.unlock(directory)


# --- What is refused ---


def unfinished(ensemble):
    ensemble.run.is_finished = False
    return ensemble


@pytest.mark.parametrize(
    ("change", "data", "options", "message"),
    [
        (
            unfinished,
            (X, Y),
            {},
            r"calibrate\(\): the run is not finished, and its members may "
            r"change\. Finish training first\.",
        ),
        (
            None,
            (X, Y),
            {"coverage": 1.0},
            r"calibrate\(coverage=1\.0\): coverage must be between 0 and 1, "
            r"both excluded\.",
        ),
        (None, (X, Y), {"coverage": "90%"}, r"coverage must be between"),
        (None, X, {}, "validation_data must be `"),
        (None, (X, Y[:5]), {}, "There are 5 labels for inputs of length 90"),
    ],
)
def test_what_is_refused(ensemble, change, data, options, message):
    ensemble = ensemble if change is None else change(ensemble)
    with pytest.raises(ValueError, match=message):
        ensemble.calibrate(data, verbose=0, **options)
    assert ensemble.calibration is None


def test_too_few_samples_for_the_coverage(ensemble):
    with pytest.raises(
        ValueError, match="A coverage of 0.99 cannot be promised after 90 samp"
    ):
        ensemble.calibrate((X, ensemble.labels), coverage=0.99, verbose=0)
    assert ensemble.calibration is None


def test_labels_that_tell_no_temperature(ensemble):
    right = ensemble.predict(X, verbose=0).argmax(axis=1)
    with pytest.raises(
        ValueError,
        match="no temperature can be told from these 90 samples, on which the "
        "ensemble is right: any that is lower would be better. Give more "
        "samples, with labels in their order",
    ):
        ensemble.calibrate((X, right), verbose=0)
    wrong = ensemble.predict(X, verbose=0).argmin(axis=1)
    with pytest.raises(
        ValueError, match="no better than chance: any that is higher"
    ):
        ensemble.calibrate((X, wrong), verbose=0)


def test_training_data_are_found_out(finished):
    ensemble = CheckpointEnsemble.load(finished)
    with pytest.raises(
        ValueError,
        match=r"calibrate\(\): these are the training data, or those that a "
        "soup was made with, on which members "
        r"are surer than on any others\. Give data that they have not seen",
    ):
        ensemble.calibrate(blobs(), verbose=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "the temperature of its calibration is 0.0"),
        ({"temperature": 1e6}, "the temperature of its calibration is"),
        ({"temperature": "1"}, "calibration.temperature missing or of the"),
        ({"share": -0.1}, "the share of its calibration is -0.1"),
        ({"share": 0.95}, "the share of its calibration is 0.95"),
        ({"share": "0"}, "calibration.share missing or of the wrong kind"),
        ({"share": None}, "calibration.share missing or of the wrong kind"),
        ({"num_samples": 0}, "the number of samples of its calibration, 0"),
        ({"members": []}, "its calibration is of other members"),
        ({"members": [1]}, "its calibration is of other members"),
        ({"votes": [1.0]}, "the votes of its calibration"),
        ({"threshold": None}, "coverage and threshold of its calibration: one"),
        ({"coverage": 1.0}, "the coverage of its calibration is 1.0"),
        ({"threshold": -0.1}, "the threshold of its calibration is -0.1"),
    ],
)
def test_manifests_that_cannot_be(calibrated, tmp_path, changes, message):
    directory = shutil.copytree(calibrated, tmp_path / "run")
    change_manifest(directory, lambda m: m["calibration"].update(changes))
    with pytest.raises(RunError, match=message):
        RunDirectory.open(directory)


def test_a_manifest_of_an_unfinished_run_has_none(directory):
    CheckpointEnsemble.load(directory).calibrate((X, Y), verbose=0)
    change_manifest(directory, lambda m: m.update(is_finished=False))
    with pytest.raises(
        RunError, match="calibration of a run that is not finished"
    ):
        RunDirectory.open(directory)
