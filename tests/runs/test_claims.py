"""What a manifest claims is checked, by itself and against the bits."""

import re
import shutil

import numpy as np
import pytest
from helpers import blobs, change_manifest, dense_model, list_file, scored_run

from cbnn_keras import (
    CheckpointEnsemble,
    RunError,
    baselines,
)
from cbnn_keras.boosting_policies import (
    Boosting,
    BoostingFromFirst,
    EqualVotes,
)
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.manifest import Settings


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    return scored_run(tmp_path_factory.mktemp("pristine") / "run").path


@pytest.fixture
def run(pristine, tmp_path):
    return shutil.copytree(pristine, tmp_path / "run")


def invalid(path, reason):
    return pytest.raises(
        RunError,
        match=f"^{re.escape(str(path / 'manifest.json'))} is not a valid "
        f"manifest: {reason}.* Restore the file, or train again.$",
    )


def phase(manifest, **changes):
    """A phase that is over, as a manifest has it."""
    settings = manifest["settings"]
    return {"step": 4, "epoch": 1, "settings": settings, **changes}


def auto(**changes):
    """Settings of restarts by held-out data, and changes of them."""
    rule = {"restarts": "auto", "restart_parts": 12}
    rule |= {"restart_gain": 0.03, "restart_shortest": 10}
    rule |= {"restart_chance": 1.1}
    return lambda m: m["settings"].update(rule, **changes)


def in_round(number, **changes):
    return lambda m: m["rounds"][number].update(changes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(num_classes=1), "num_classes is 1"),
        (lambda m: m.update(num_classes=2**40), "num_classes is 1099511627776"),
        (lambda m: m.update(is_binary=True), "is_binary, but num_classes is 3"),
        (lambda m: m.update(num_samples=0), "num_samples is 0"),
        (lambda m: m.update(num_samples=-8), "num_samples is -8"),
        (lambda m: m.update(num_samples=10**18), "num_samples is 10{18}"),
        (
            lambda m: m.update(num_samples=10**9),
            "num_samples is 10{9}, which r",
        ),
        (lambda m: m.update(num_samples=20), "its round of step 4 says"),
        (lambda m: m.update(num_parameters=-1), "num_parameters is -1"),
        (in_round(0, step=0), "steps of rounds are not positive"),
        (in_round(0, step=-4), "steps of rounds are not positive"),
        (in_round(1, step=4), "steps of rounds are not positive and ascending"),
        (lambda m: m["rounds"].reverse(), "steps of rounds are not positive"),
        (in_round(0, is_final=True), "the round of step 4 is final, but not"),
        (in_round(1, epoch=-1), "epoch or error of the round of step 8"),
        (in_round(1, error=1.5), "epoch or error of the round of step 8"),
        (in_round(1, vote=0.0), "the vote of step 8: those of members are pos"),
        (in_round(1, vote=-1.0), "the vote of step 8: those of members are p"),
        (in_round(1, is_member=False), "the vote of step 8: those of members"),
        (lambda m: m["members"].append(12), "members are not ascending, each"),
        (lambda m: m["members"].reverse(), "members are not ascending, each"),
        (
            lambda m: m.update(state={"step": 9, "epoch": 1}),
            "state of a finished run",
        ),
        (lambda m: m.update(votes=[1.0]), "1 votes for 3 members"),
        (lambda m: m.update(votes=[1.0, 0.0, 1.0]), "votes that are not from"),
        (lambda m: m.update(votes=[1, 1e308, 1]), "votes that are not from 1e"),
        (lambda m: m.update(votes=[1, True, 1]), "votes.1. missing or of the"),
        (
            lambda m: m.update(phases=[phase(m, step=0)]),
            "steps of phases are not positive and ascending",
        ),
        (
            lambda m: m.update(phases=[phase(m, epoch=0)]),
            "epochs of phases are not positive and ascending",
        ),
        (
            lambda m: m.update(
                phases=[
                    phase(m, settings={**m["settings"], "deviation_rate": 1.0})
                ]
            ),
            "its phases do not vote and update alike",
        ),
        (
            lambda m: m.update(phases=[phase(m)], is_finished=False),
            "its state is not that of its last phase",
        ),
        (lambda m: m.update(phases=[{"step": 1}]), "phases.0.*of the wrong"),
        (
            lambda m: m["settings"].update(trusted_margin=-0.1),
            "trusted_margin is -0.1",
        ),
        (
            lambda m: m["settings"].update(trusted_class_margin=1.5),
            "trusted_class_margin is 1.5",
        ),
        (
            lambda m: (
                m["settings"].update(trusted_class_margin=0.1),
                in_round(0, class_error=None)(m),
            ),
            "trusted_class_margin, but rounds without a class error",
        ),
        (in_round(1, class_error=1.1), "the class error of the round of step"),
        (in_round(1, validation_loss=-0.1), "the held-out loss of the round"),
        *(
            (
                lambda m, value=value: m["settings"].update(restarts=value),
                f"restarts is {value!r}",
            )
            for value in ("often", 0, 2.0, True, None)
        ),
        (auto(restart_parts=None), "restart_parts is None"),
        (auto(restart_parts=1), "restart_parts is 1"),
        (auto(restart_parts=2**40), "restart_parts is 1099511627776"),
        (auto(restart_gain=1.0), "restart_gain is 1.0"),
        (auto(restart_gain="much"), "restart_gain is 'much'"),
        (auto(restart_shortest=-1), "restart_shortest is -1"),
        (auto(restart_chance="x"), "restart_chance is 'x'"),
        (auto(total_steps=11), "total_steps is 11, with restart_parts of 12"),
        (
            lambda m: m["settings"].update(trusted_ratio=0.5),
            "trusted_ratio is 0.5",
        ),
        (
            lambda m: m.update(class_names=["a", "b"]),
            "class_names: not 3 different short names",
        ),
        (
            lambda m: m.update(class_names=["a", "b", "a"]),
            "class_names: not 3 different short names",
        ),
        (
            lambda m: m.update(class_names=["a", "b", "c" * 1001]),
            "class_names: not 3 different short names",
        ),
        (
            lambda m: m["files"]["model.keras"].update(bytes=-1),
            "bytes or sha256 of model.keras",
        ),
        (
            lambda m: m["files"]["model.keras"].update(sha256="../x"),
            "bytes or sha256 of model.keras",
        ),
    ],
)
def test_contradictions_are_refused(run, change, reason):
    change_manifest(run, change)
    with invalid(run, reason):
        RunDirectory.open(run).verify()


def test_a_state_without_its_file_is_refused(run):
    change_manifest(
        run,
        lambda m: m.update(state={"step": 9, "epoch": 1}, is_finished=False),
    )
    with invalid(run, "it has no resume/9.npz"):
        RunDirectory.open(run)


@pytest.mark.parametrize(
    "name",
    ["members/4.weights.h5/../8.weights.h5", "members/16.weights.h5"]
    + ["rounds/04.npy", "resume/4.npz", "MODEL.KERAS", "/etc/passwd", ""],
)
def test_only_names_of_the_run_are_listed(run, name):
    change_manifest(
        run,
        lambda m: m["files"].update({name: m["files"]["members/4.weights.h5"]}),
    )
    path = re.escape(str(run / "manifest.json"))
    with pytest.raises(RunError, match=f"^{path} names '{name}', which is no "):
        RunDirectory.open(run)


# --- Rounds, recomputed ---


@pytest.mark.parametrize(
    "name", ["error", "vote", "normaliser", "bound", "exponential_loss"]
)
@pytest.mark.parametrize("number", [0, 2])
def test_a_round_that_is_not_what_its_bits_give_is_refused(run, name, number):
    def change(manifest):
        manifest["rounds"][number][name] *= 1 + 1e-8

    change_manifest(run, change)
    opened = RunDirectory.open(run)
    step = 4 * (number + 1)
    with invalid(
        run, f"its round of step {step} says {name}=0?.*and what was "
    ):
        opened.verify()


def test_a_difference_in_the_last_digits_is_that_of_another_machine(run):
    def change(manifest):
        for record in manifest["rounds"]:
            record["vote"] *= 1 + 1e-14

    change_manifest(run, change)
    CheckpointEnsemble.load(run)


def test_a_budget_that_is_not_kept_is_noticed(run):
    change_manifest(run, in_round(2, within_budget=False))
    with invalid(run, "its round of step 12 says within_budget=False"):
        CheckpointEnsemble.load(run)


def test_other_settings_give_other_votes(run):
    change_manifest(run, lambda m: m["settings"].update(deviation_rate=1e308))
    with invalid(run, "its round of step 4 says normaliser="):
        CheckpointEnsemble.load(run)


def test_votes_of_runs_that_were_put_together_are_shares(run):
    def change(manifest):
        manifest["method"] = "parallel"
        manifest["rounds"][0]["vote"] = 0.125

    change_manifest(run, change)
    assert CheckpointEnsemble.load(run).votes[0] == 0.125


@pytest.mark.parametrize(
    "policy", [Boosting(0.3, 0.1), BoostingFromFirst(0.3), EqualVotes()]
)
def test_every_policy_is_recomputed(tmp_path, policy):
    own = np.arange(1.0, 22) / 231
    settings = Settings(policy)
    run = scored_run(tmp_path / "run", own_distribution=own, settings=settings)
    RunDirectory.open(run.path).verify()
    change_manifest(run.path, in_round(1, vote=3.25))
    with invalid(run.path, "its round of step 8 says vote=3.25"):
        RunDirectory.open(run.path).verify()


@pytest.mark.large
@pytest.mark.parametrize(
    "make",
    [
        lambda d: baselines.SnapshotEnsemble(d, num_checkpoints=2),
        lambda d: baselines.StochasticWeightAveraging(d, num_checkpoints=2),
        lambda d: baselines.FastGeometricEnsemble(d, num_checkpoints=2),
        lambda d: baselines.HorizontalVoting(d, num_checkpoints=2),
        lambda d: baselines.PlainCheckpoints(d, num_checkpoints=2),
        lambda d: baselines.SnapshotBoosting(d, monitor="loss"),
    ],
)
def test_runs_of_every_method_are_loaded(tmp_path, make):
    callback, model = make(tmp_path / "run"), dense_model()
    batches = callback.weighted(
        *blobs(), batch_size=20, sample_weight=np.arange(1, 121)
    )
    model.fit(batches, epochs=2, callbacks=[callback], verbose=0)
    opened = RunDirectory.open(tmp_path / "run")
    opened.verify()
    assert opened.rounds and opened.is_finished


# --- The first distribution ---


@pytest.mark.parametrize(
    "change",
    [
        lambda own: own * 2,
        lambda own: np.where(own == own.max(), np.nan, own),
        lambda own: np.where(own == own.max(), np.inf, own),
        lambda own: np.where(own == own.max(), -own, own + 2 * own.max() / 20),
    ],
    ids=["sum", "nan", "infinite", "negative"],
)
def test_what_is_no_distribution_is_refused(tmp_path, change):
    own = np.arange(1.0, 22) / 231
    run = scored_run(tmp_path / "run", own_distribution=own)
    np.save(run.path / "base.npy", change(own))
    list_file(run.path, "base.npy")
    path = re.escape(str(run.path / "base.npy"))
    with pytest.raises(RunError, match=f"^{path} holds no distribution"):
        CheckpointEnsemble.load(run.path)


# --- How much a run may take ---


def test_a_run_that_takes_too_much_is_refused_before_it_is_read(run):
    listed = RunDirectory.open(run)
    needed = sum(
        path.stat().st_size
        for path in run.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    )
    assert RunDirectory.open(run, max_bytes=needed).rounds == listed.rounds
    (run / "model.keras").unlink()  # not looked at
    message = (
        rf"^{re.escape(str(run))} needs {needed:,} bytes to be loaded, more "
        rf"than max_bytes={needed - 1:,}\. .*with `max_bytes={needed}` or more"
    )
    with pytest.raises(RunError, match=message):
        RunDirectory.open(run, max_bytes=needed - 1)


def test_samples_take_room_too(run):
    """Bits are an eighth of a byte, what is computed from them is not."""

    def change(manifest):
        manifest["num_samples"] = 10**8
        for name, file in manifest["files"].items():
            if name.startswith("rounds/"):
                file["bytes"] = 128 + 10**8 // 8

    change_manifest(run, change)
    with pytest.raises(RunError, match="needs 6,400,000,000 bytes to be load"):
        RunDirectory.open(run, max_bytes=2**32)
    RunDirectory.open(run)
