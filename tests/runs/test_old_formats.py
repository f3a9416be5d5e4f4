"""Runs of older formats load, predict the same and resume.

`make_old_formats.py` made them, with the last versions that wrote each.
"""

import json
import pathlib
import shutil

import helpers
import numpy as np
import pytest
import training_of_old_formats as training

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.boosting_policies import Boosting, BoostingFromFirst, EqualVotes

RUNS = pathlib.Path(__file__).parent
X, Y = training.data()


@pytest.fixture(
    params=[f"format_1/{m}" for m in ("cbnn", "ssb-reconstruction", "swa")]
    + ["format_2/cbnn", "format_3/cbnn", "format_3/cbnn-trusted"]
    + ["format_4/cbnn-trusted", "format_4/cbnn-defaults"]
)
def old(request):
    """A directory with a run, whole and killed, and what it predicted."""
    return RUNS / request.param


def test_a_run_of_an_old_format_predicts_what_it_predicted(old):
    ensemble = CheckpointEnsemble.load(old / "complete")
    with np.load(old / "expected.npz") as expected:
        np.testing.assert_array_equal(ensemble.votes, expected["votes"])
        # To the last bit on the machine that made them.
        np.testing.assert_allclose(
            ensemble.predict(X, verbose=0),
            expected["predictions"],
            rtol=1e-5,
            atol=1e-6,
        )
        weights = ensemble.run.replay().distribution * len(Y)
        np.testing.assert_allclose(
            weights, expected["sample_weights"], rtol=1e-6
        )


def test_a_run_of_an_old_format_resumes_and_is_then_of_format_4(old, tmp_path):
    # Without empty directories, as Git keeps it.
    shutil.copytree(old / "killed", tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    resumed = training.train(old.name, tmp_path / "run", resume=True)
    complete = CheckpointEnsemble.load(old / "complete")
    # Byte for byte on the machine that made them; members and predictions of
    # another one differ in their last bits.
    assert names(tmp_path / "run") == names(old / "complete")
    for found, expected in zip(
        resumed.history, complete.run.records(), strict=True
    ):
        if expected.pop("negative_log_likelihood") is None:
            found.pop("negative_log_likelihood")  # of new rounds only
        del expected["class_error"], found["class_error"]  # new
        likelihood = found.pop("negative_log_likelihood", None)
        assert found == pytest.approx(expected, rel=1e-9)
        assert likelihood is None or likelihood > 0
    np.testing.assert_allclose(
        resumed.ensemble().predict(X, verbose=0),
        complete.predict(X, verbose=0),
        rtol=1e-4,
        atol=1e-5,
    )
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["format_version"] == 4
    is_cbnn = old.name.startswith("cbnn")
    assert ("expected_error" in manifest["settings"]) == is_cbnn
    # Today's defaults are not those of the run.
    is_new = old.parent.name == "format_4"
    assert ("average" in manifest["settings"]) == is_new
    assert ("trusted_margin" in manifest["settings"]) == is_new
    assert "trusted_class_margin" not in manifest["settings"]


def test_a_calibration_of_format_6_has_no_share(tmp_path):
    """As the last version that wrote format 6 wrote it."""
    run = shutil.copytree(
        RUNS / "format_4/cbnn-defaults/complete", tmp_path / "r"
    )
    raw = CheckpointEnsemble.load(run)
    said = {
        "temperature": 2.0,
        "num_samples": 500,
        "members": [record.step for record in raw.rounds],
        "votes": raw.votes.tolist(),
        "coverage": None,
        "threshold": None,
    }
    helpers.change_manifest(
        run, lambda m: m.update(calibration=said, format_version=6)
    )
    ensemble = CheckpointEnsemble.load(run)
    assert ensemble.calibration.share == 0
    assert ensemble.calibration.temperature == 2
    powers = raw.predict(X, verbose=0).astype("float64") ** 0.5
    np.testing.assert_allclose(
        ensemble.predict(X, verbose=0),
        powers / powers.sum(axis=1, keepdims=True),
        atol=1e-6,
    )


def names(directory):
    paths = (p for p in directory.rglob("*") if p.is_file())
    return {path.relative_to(directory).as_posix() for path in paths}


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("cbnn", Boosting(deviation_rate=0.05, expected_error=0.05)),
        ("swa", EqualVotes()),
        ("ssb-reconstruction", BoostingFromFirst(deviation_rate=0.1)),
    ],
)
def test_settings_of_format_1_that_meant_nothing_are_passed_over(name, policy):
    path = RUNS / "format_1" / name / "complete"
    content = json.loads((path / "manifest.json").read_text())
    assert content["format_version"] == 1
    assert "expected_error" in content["settings"]
    header = CheckpointEnsemble.load(path).run.header
    assert header.settings.policy == policy
    assert "expected_error" not in header.settings.own
