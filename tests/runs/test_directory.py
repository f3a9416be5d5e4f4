"""Tests of runs: in memory, and on disk, where files can be spoilt."""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil

import keras
import numpy as np
import pytest
from helpers import (
    blobs,
    change_manifest,
    dense_model,
    header,
    list_file,
    round_at,
    trained,
)

from cbnn_keras import CheckpointEnsemble, __version__
from cbnn_keras.boosting_policies import Boosting
from cbnn_keras.runs import manifest_json
from cbnn_keras.runs.directory import RunDirectory, check_available, holds_run
from cbnn_keras.runs.manifest import Settings, State
from cbnn_keras.runs.run import MemoryRun
from cbnn_keras.support import files
from cbnn_keras.support.faults import RunError

X, Y = blobs()
ETA = 0.05  # large enough to see omega change, small enough to go on


def train(directory):
    """The same training every time."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    trained(directory, num_checkpoints=3, deviation_rate=ETA)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A finished run; not to be changed."""
    directory = tmp_path_factory.mktemp("pristine") / "run"
    train(directory)
    return directory


@pytest.fixture
def run(pristine, tmp_path):
    """A copy of it, to be spoilt."""
    shutil.copytree(pristine, tmp_path / "run")
    return tmp_path / "run"


def uncompiled(model):
    # `clone_model` would compile the clone.
    return keras.Sequential.from_config(model.get_config())


def manifest_of(directory):
    return json.loads((directory / "manifest.json").read_text())


def listing(directory):
    """Every file below with its content."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def refused(path, text):
    return pytest.raises(ValueError, match=f"{re.escape(str(path))} {text}")


# --- What a run writes ---


def test_manifest_lists_every_file_with_size_and_sha256(pristine):
    found = listing(pristine)
    del found["manifest.json"]
    assert manifest_of(pristine)["files"] == {
        name: {
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        for name, content in found.items()
    }
    assert sorted(found) == [
        "members/16.weights.h5",
        "members/24.weights.h5",
        "members/8.weights.h5",
        "model.keras",
        "rounds/16.npy",
        "rounds/24.npy",
        "rounds/8.npy",
    ]


def test_content_of_the_manifest(pristine):
    manifest = manifest_of(pristine)
    # Of those which are hashes and results, more below.
    rounds = manifest.pop("rounds")
    assert len(manifest.pop("files")) == 7
    assert re.fullmatch("[0-9a-f]{64}", manifest.pop("architecture"))
    assert re.fullmatch("[0-9a-f]{64}", manifest.pop("sha256"))
    uniform = np.full(120, 1 / 120)
    labels = hashlib.sha256(Y.astype(np.int64).tobytes() + uniform.tobytes())
    assert manifest == {
        "format_version": 4,
        "votes": None,
        "method": "cbnn",
        "package_version": __version__,
        "num_classes": 3,
        "num_samples": 120,
        "is_binary": False,
        "from_logits": False,
        "num_parameters": 4 * 8 + 8 + 8 * 3 + 3,
        "labels": labels.hexdigest(),
        "settings": {
            "total_steps": 24,
            "interval": 8,
            "first_epoch": 0,
            "deviation_rate": 0.05,
            "expected_error": 0.05,
            "optimizer": "Adam",
            "seed": 1,
            "batch_size": 20,
            "shuffle": True,
        },
        "members": [8, 16, 24],
        "state": None,
        "is_finished": True,
    }
    # 24 steps in 4 epochs of 6: step 8 is in epoch 1.
    assert [(r["step"], r["epoch"]) for r in rounds] == [
        (8, 1),
        (16, 2),
        (24, 3),
    ]
    assert [r["is_final"] for r in rounds] == [False, False, True]
    for record in rounds:
        assert set(record) == {
            "step",
            "epoch",
            "negative_log_likelihood",
            "class_error",
            "error",
            "vote",
            "normaliser",
            "bound",
            "exponential_loss",
            "is_member",
            "within_budget",
            "is_final",
        }


def test_manifest_has_no_value_that_is_not_json(pristine):
    def refuse(text):
        pytest.fail(f"{text} is not JSON")

    text = (pristine / "manifest.json").read_text()
    json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_not_a_number_is_not_written(tmp_path, value):
    run = new_run(tmp_path / "run")
    before = (tmp_path / "run/manifest.json").read_bytes()
    with pytest.raises(ValueError, match="[Oo]ut of range float"):
        run.add_round(round_at(4, vote=value), RIGHT, None)
    assert (tmp_path / "run/manifest.json").read_bytes() == before


def test_floats_survive_the_manifest_bit_for_bit(tmp_path):
    run = new_run(tmp_path / "run")
    floats = [0.1 + 0.2, 1 / 3, 5e-324, 1.7976931348623157e308]
    for step, value in enumerate(floats, start=1):
        run.add_round(round_at(step, vote=value), RIGHT, None)
    opened = RunDirectory.open(tmp_path / "run")
    assert opened.rounds == run.rounds
    assert [record.vote for record in opened.rounds] == floats


def test_same_training_gives_the_same_bytes(pristine, tmp_path):
    """No time, no path, no name of the machine."""
    train(tmp_path / "elsewhere")
    assert listing(tmp_path / "elsewhere") == listing(pristine)


def test_bits_say_what_each_member_gets_right(pristine):
    model = uncompiled(dense_model())
    for step in (8, 16, 24):
        model.load_weights(pristine / f"members/{step}.weights.h5")
        expected = model.predict(X, verbose=0).argmax(axis=1) == Y
        bits = np.load(pristine / f"rounds/{step}.npy", allow_pickle=False)
        assert bits.dtype == np.uint8 and bits.shape == (15,)  # 120 / 8
        np.testing.assert_array_equal(np.unpackbits(bits), expected)
        assert 0 < expected.sum() < 120
        opened = RunDirectory.open(pristine).correct(step)
        np.testing.assert_array_equal(opened, expected)


def omegas(correct, base, eta=ETA, num_classes=3):
    """omega before each round and after the last but one, in plain loops."""
    omega = [float(w) for w in base]
    rows = [omega]
    for right in correct[:-1]:
        error = sum(w for w, r in zip(omega, right, strict=True) if not r)
        vote = np.log((1 - error) / error) + np.log(num_classes - 1)
        raised = [
            w * (np.exp(-eta * vote) if r else 1)
            for w, r in zip(omega, right, strict=True)
        ]
        omega = [w / sum(raised) for w in raised]
        rows.append(omega)
    return rows


def test_replay_gives_the_weights_of_every_round(pristine):
    bits = [
        np.unpackbits(np.load(pristine / f"rounds/{step}.npy"))
        for step in (8, 16, 24)
    ]
    expected = omegas(bits, np.full(120, 1 / 120))
    opened = RunDirectory.open(pristine)
    for number, omega in enumerate(expected):
        np.testing.assert_allclose(
            opened.replay(number).distribution, omega, rtol=1e-12
        )
    # The final round leaves them as they are.
    np.testing.assert_array_equal(
        opened.replay().distribution, opened.replay(2).distribution
    )
    errors = [
        sum(w for w, r in zip(omega, right, strict=True) if not r)
        for omega, right in zip(expected, bits, strict=True)
    ]
    found = [record.error for record in opened.rounds]
    np.testing.assert_allclose(found, errors, rtol=1e-12)


def record_of(step, *, is_member=True, is_final=False):
    vote = 1.5 if is_member else 0.0
    return round_at(step, vote, is_member=is_member, is_final=is_final)


# Put together, as the votes are made up.
HEADER = header(
    dense_model(),
    method="parallel",
    num_samples=11,
    settings=Settings(Boosting(ETA, 0.05)),
)
RIGHT = np.array([True] * 7 + [False] * 4)


def new_run(directory=None, model=None, own_distribution=None, **options):
    """A run without rounds: in memory where there is no directory."""
    if directory is None:
        return MemoryRun(HEADER, own_distribution)
    return RunDirectory.create(
        directory,
        HEADER,
        model or dense_model(),
        own_distribution=own_distribution,
        **options,
    )


@pytest.fixture(params=["memory", "disk"])
def any_run(request, tmp_path):
    """Makes a run of either kind."""

    def make(**options):
        is_on_disk = request.param == "disk"
        return new_run(tmp_path / "run" if is_on_disk else None, **options)

    return make


def test_bits_of_a_number_that_is_no_multiple_of_eight(any_run):
    run = any_run()
    run.add_round(record_of(4), RIGHT, None)
    np.testing.assert_array_equal(run.correct(4), RIGHT)
    assert run.correct(4).dtype == bool


def test_members_keep_the_weights_of_their_time(any_run):
    run, model = any_run(), dense_model()
    start = model.get_weights()
    run.add_round(record_of(1), RIGHT, model)
    model.set_weights([w + 1 for w in start])
    run.add_round(record_of(2, is_member=False), RIGHT, None)
    run.add_round(record_of(3), RIGHT, model)
    other = dense_model()
    for step, added in ((1, 0), (3, 1)):
        run.load_member(step, other)
        for weight, first in zip(other.get_weights(), start, strict=True):
            np.testing.assert_array_equal(weight, first + np.float32(added))
    assert run.members == [1, 3]
    assert [r.step for r in run.rounds] == [1, 2, 3]
    assert run.round_at(2).is_member is False
    assert run.member_bytes(1) >= 4 * model.count_params()


def test_final_model_replaces_the_round_that_was_turned_down(any_run):
    run = any_run()
    run.add_round(record_of(3), RIGHT, dense_model())
    run.add_round(record_of(4, is_member=False), RIGHT, None)
    run.add_round(record_of(4, is_final=True), RIGHT, dense_model())
    assert [(r.step, r.is_final) for r in run.rounds] == [
        (3, False),
        (4, True),
    ]
    assert run.members == [3, 4]


def test_replay_starts_from_the_weights_of_the_user(any_run):
    base = np.arange(1, 12) / 66
    run = any_run(own_distribution=base)
    np.testing.assert_array_equal(run.own_distribution, base)
    run.add_round(record_of(1), RIGHT, None)
    run.add_round(record_of(2), ~RIGHT, None)
    run.add_round(record_of(3, is_final=True), RIGHT, None)
    for number, omega in enumerate(omegas([RIGHT, ~RIGHT, RIGHT], base)):
        np.testing.assert_allclose(
            run.replay(number).distribution, omega, rtol=1e-12
        )


def test_uniform_weights_need_no_file(any_run, tmp_path):
    run = any_run()
    assert run.own_distribution is None
    np.testing.assert_array_equal(
        run.replay().distribution, np.full(11, 1 / 11)
    )
    assert not (tmp_path / "run/base.npy").exists()


# --- Opening what is not as it was ---


def spoil_by_removing(path):
    path.unlink()


def spoil_by_truncating(path):
    path.write_bytes(path.read_bytes()[:-7])


def spoil_one_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    "name",
    ["members/8.weights.h5", "members/24.weights.h5", "rounds/16.npy"]
    + ["model.keras"],
)
@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (spoil_by_removing, "is missing, though the manifest lists it"),
        (spoil_by_truncating, r"has \d+ bytes, the manifest says \d+"),
        (spoil_one_bit, "is not what was saved: its sha256 differs"),
    ],
)
def test_damaged_file_is_named(run, name, spoil, text):
    spoil(run / name)
    with refused(run / name, text):
        CheckpointEnsemble.load(run)


def test_damaged_weights_of_the_user_are_named(tmp_path):
    run = new_run(tmp_path / "run", own_distribution=np.arange(1, 12) / 66)
    run.add_round(record_of(1, is_final=True), RIGHT, dense_model())
    run.finish()
    CheckpointEnsemble.load(tmp_path / "run")
    spoil_one_bit(tmp_path / "run/base.npy")
    with refused(tmp_path / "run/base.npy", "is not what was saved"):
        CheckpointEnsemble.load(tmp_path / "run")


def test_member_of_another_run_is_named(run, tmp_path):
    model = dense_model()  # of the same architecture
    model.set_weights([w + 1 for w in model.get_weights()])
    new_run(tmp_path / "other").add_round(record_of(8), RIGHT, model)
    name = "members/8.weights.h5"
    shutil.copy(tmp_path / "other" / name, run / name)
    with refused(run / name, r"(is not what was saved|has \d+ bytes)"):
        CheckpointEnsemble.load(run)


def test_member_that_does_not_fit_the_model_is_named(pristine):
    other = dense_model(num_classes=5)
    before = other.get_weights()
    ensemble = CheckpointEnsemble.load(pristine, model=other)
    path = pristine / "members/8.weights.h5"
    with refused(path, "does not fit the model"):
        ensemble.predict(X, verbose=0)
    for weight, was in zip(other.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, was)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", r"is not JSON \("),
        ('{"format_version": 1, "rou', r"is not JSON \("),
        (b"\xff\xfe\x00", r"is not JSON \("),
        ("[1, 2]", "is not the manifest of a cbnn_keras run"),
        ("null", "is not the manifest of a cbnn_keras run"),
        ('{"name": "app"}', "is not the manifest of a cbnn_keras run"),
        ('{"format_version": "1"}', "is not the manifest of a cbnn_keras"),
        ('{"format_version": 1}', "is not a valid manifest: method, package_"),
    ],
)
def test_manifest_that_is_none(run, content, text):
    path = run / "manifest.json"
    path.write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )
    with refused(path, text):
        RunDirectory.open(run)


@pytest.mark.parametrize(
    ("content", "version"),
    [
        ({"settings": {"trusted_margin": 0.1}}, 4),
        ({"settings": {}, "phases": []}, 5),
        ({"settings": {"trusted_class_margin": 0.1}}, 6),
        ({"settings": {}, "calibration": {}, "phases": []}, 6),
        ({"settings": {"share": 0.1}, "calibration": {}}, 6),
        ({"settings": {}, "calibration": {"share": 0.1}}, 7),
        ({"settings": {"restarts": 6}}, 4),
        ({"settings": {"restarts": "auto", "restart_gain": 0.03}}, 8),
    ],
)
def test_format_is_the_first_that_knows_what_is_said(
    tmp_path, content, version
):
    """So that earlier versions read whatever they can read rightly."""
    manifest_json.write(tmp_path, content)
    assert manifest_of(tmp_path)["format_version"] == version


def test_manifest_of_a_later_version(run):
    change_manifest(run, lambda m: m.update(format_version=9))
    with refused(
        run / "manifest.json",
        r"has format version 9; this cbnn_keras reads up to 8. Upgrade: pip",
    ):
        RunDirectory.open(run)


@pytest.mark.parametrize(
    "key",
    ["files", "from_logits", "is_binary", "is_finished", "members"]
    + ["num_classes", "num_samples", "rounds", "labels", "method"],
)
def test_manifest_without_a_key(run, key):
    change_manifest(run, lambda m: m.pop(key))
    with refused(
        run / "manifest.json", f"is not a valid manifest: {key} missing"
    ):
        RunDirectory.open(run)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: m.update(num_samples="120"), "num_samples missing or of"),
        (lambda m: m.update(is_binary=0), "is_binary missing or of"),
        (lambda m: m["rounds"][1].pop("step"), r"rounds\[1\].step missing"),
        (lambda m: m["rounds"][0].pop("vote"), r"rounds\[0\].vote missing"),
        (lambda m: m["rounds"].append(3), r"rounds\[3\].error, rounds\[3\].v"),
        (lambda m: m["members"].append([24]), r"members\[3\] missing or of"),
        (
            lambda m: m["files"]["model.keras"].pop("bytes"),
            r"files\[model.keras\].bytes missing",
        ),
        (lambda m: m["files"].update(a="0"), r"files\[a\].bytes, files\[a\].s"),
        (lambda m: m["settings"].clear(), "settings.deviation_rate, settings"),
        (lambda m: m.pop("settings"), "settings, settings.deviation_rate, s"),
        (lambda m: m["settings"].update(seed="1"), "settings.seed missing or"),
        (lambda m: m["rounds"][0].update(vote=True), r"rounds\[0\].vote miss"),
        (lambda m: m.update(state={"step": 3}), "state.epoch missing or of"),
    ],
)
def test_manifest_with_a_part_of_the_wrong_kind(run, change, named):
    change_manifest(run, change)
    with refused(run / "manifest.json", f"is not a valid manifest: {named}"):
        RunDirectory.open(run)


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        (lambda m: m["files"].pop("members/8.weights.h5"), "members/8.weights"),
        (lambda m: m["files"].pop("rounds/16.npy"), "rounds/16.npy"),
        (lambda m: m["members"].append(32), "members/32.weights.h5"),
        (lambda m: m["rounds"].pop(0), "members/8.weights.h5"),
    ],
)
def test_round_or_member_without_its_file(run, change, missing):
    change_manifest(run, change)
    with refused(
        run / "manifest.json", f"is not a valid manifest: it has no {missing}"
    ):
        RunDirectory.open(run)


@pytest.mark.parametrize("name", ["../outside", "members/../../outside", None])
def test_manifest_that_names_a_path_outside(run, tmp_path, name):
    outside = tmp_path / "outside"
    outside.write_text("secret")
    name = name or str(outside)
    list_file(run, name)
    with refused(
        run / "manifest.json", f"names '{re.escape(name)}', which is no"
    ):
        CheckpointEnsemble.load(run)


@pytest.mark.parametrize("exists", [True, False])
def test_directory_without_a_manifest(tmp_path, exists):
    path = tmp_path / "empty"
    if exists:
        path.mkdir()
    with refused(path, "holds no run: there is no manifest.json in it"):
        CheckpointEnsemble.load(path)


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return pathlib.Path.touch, (self.trace,)


def test_pickles_are_not_opened(run, tmp_path):
    trace = tmp_path / "trace"
    # As many as have the size of 120 numbers.
    objects = np.array([Bomb(trace) for _ in range(80)], dtype=object)
    for name in ("rounds/8.npy", "base.npy"):
        np.save(run / name, objects, allow_pickle=True)
        list_file(run, name)
    opened = RunDirectory.open(run)
    with refused(run / "rounds/8.npy", r"cannot be read \(Object arrays"):
        opened.correct(8)
    with refused(run / "base.npy", r"cannot be read \(Object arrays"):
        _ = opened.own_distribution
    assert not trace.exists()
    # It would have gone off.
    np.load(run / "rounds/8.npy", allow_pickle=True)
    assert trace.exists()


def test_pickle_in_the_kept_state_is_not_opened(tmp_path):
    run, model = new_run(tmp_path / "run"), dense_model()
    run.save_state(model, 6, 1, {})
    trace = tmp_path / "trace"
    path = tmp_path / "run/resume/6.npz"
    objects = np.array([Bomb(trace)], dtype=object)
    np.savez(path, **{"model/0": objects}, allow_pickle=True)
    list_file(run.path, "resume/6.npz")
    with refused(path, r"cannot be read \(Object arrays"):
        RunDirectory.open(run.path).rewind(model)
    assert not trace.exists()


# --- Where a run may start ---


def test_file_in_place_of_a_directory(tmp_path):
    (tmp_path / "run").write_text("mine")
    for overwrite in (False, True):
        with refused(tmp_path / "run", "is a file; a run needs a directory"):
            check_available(tmp_path / "run", overwrite=overwrite)
    assert (tmp_path / "run").read_text() == "mine"


def test_directory_that_holds_a_run(run):
    before = listing(run)
    assert holds_run(run)
    with refused(run, "already holds a run, which is never overwritten by it"):
        new_run(run)
    assert listing(run) == before


def test_overwriting_leaves_nothing_of_the_old_run(run):
    np.save(run / "base.npy", np.ones(3))  # as where weights were given
    before = listing(run)
    new = new_run(run, overwrite=True)
    assert set(listing(run)) == {"manifest.json", "model.keras"}
    assert manifest_of(run)["rounds"] == []
    new.add_round(record_of(8, is_final=True), RIGHT, dense_model())
    after = listing(run)
    assert set(after) == {
        *("manifest.json", "model.keras"),
        *("members/8.weights.h5", "rounds/8.npy"),
    }
    assert all(
        after[name] != before[name] for name in after if name != "model.keras"
    )
    RunDirectory.open(run).verify()


@pytest.mark.parametrize("name", ["model.keras", "base.npy", "members/a.txt"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_files_of_the_user_are_not_overwritten(tmp_path, name, overwrite):
    run = tmp_path / "run"
    (run / name).parent.mkdir(parents=True)
    (run / name).write_text("mine")
    taken = name.split("/")[0]
    with refused(run, f"has no manifest.json, but {taken}, which a run would"):
        new_run(run, overwrite=overwrite)
    assert listing(run) == {name: b"mine"}


def test_other_files_do_not_hinder_a_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    new_run(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_directory_that_cannot_be_written():
    path = pathlib.Path("/proc/cbnn")
    check_available(path)
    with pytest.raises(
        ValueError, match="^A run cannot be written to /proc/cbnn: .*Choose a"
    ):
        new_run(path)


def test_directory_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written to .*/file/run: "):
        new_run(tmp_path / "file/run")


def test_kill_before_the_first_manifest_leaves_the_directory_free(
    tmp_path, monkeypatch
):
    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files, "replace_bytes", kill)
        with pytest.raises(KeyboardInterrupt):
            new_run(tmp_path / "run")
    check_available(tmp_path / "run")
    new_run(tmp_path / "run")


# --- What is swept up and what is not ---


def put_files_of_the_user(directory):
    names = ("notes.txt", "members/readme.txt", "members/best.weights.h5")
    names += ("rounds/all.npy", "resume/8a.npz", "members/8.weights.h5.bak")
    for name in names:
        (directory / name).write_text("mine")
    return set(names)


def test_sweeping_spares_the_files_of_the_user(tmp_path):
    path, model = tmp_path / "run", dense_model()
    run = new_run(path, model)
    mine = put_files_of_the_user(path)
    leftovers = ("members/3.weights.h5", "rounds/3.npy", "resume/3.npz")
    leftovers += ("unfinished-model.keras",)
    for name in leftovers:  # as a crash leaves them
        (path / name).write_text("half")
    run.add_round(record_of(4), RIGHT, model)
    run.save_state(model, 6, 1, {})
    ours = {"manifest.json", "model.keras"}
    ours |= {"members/4.weights.h5", "rounds/4.npy"}
    assert set(listing(path)) == mine | ours | {"resume/6.npz"}
    run.save_state(model, 12, 2, {})
    assert set(listing(path)) == mine | ours | {"resume/12.npz"}
    run.finish()
    assert set(listing(path)) == mine | ours
    new_run(path, overwrite=True)
    assert set(listing(path)) == mine | {"manifest.json", "model.keras"}
    assert all((path / name).read_text() == "mine" for name in mine)


# --- Going back to the kept state ---


def test_rewinding_forgets_what_came_after_the_state(tmp_path):
    path, model = tmp_path / "run", dense_model()
    model.optimizer.build(model.trainable_variables)
    run = new_run(path, model)
    run.add_round(record_of(4), RIGHT, model)
    run.save_state(model, 6, 1, {})
    kept = model.get_weights()
    run.add_round(record_of(8, is_member=False), RIGHT, None)
    run.add_round(record_of(12), RIGHT, model)
    model.set_weights([w + 1 for w in kept])
    opened = RunDirectory.open(path)
    assert opened.members == [4, 12] and not opened.is_finished
    assert opened.rewind(model) == (State(6, 1), {})
    for weight, was in zip(model.get_weights(), kept, strict=True):
        np.testing.assert_array_equal(weight, was)
    assert set(listing(path)) == {
        *("manifest.json", "model.keras", "resume/6.npz"),
        *("members/4.weights.h5", "rounds/4.npy"),
    }
    again = RunDirectory.open(path)
    assert again.members == [4] and again.state == State(6, 1)
    assert [r.step for r in again.rounds] == [4]


def test_state_of_another_model_is_named(tmp_path):
    run = new_run(tmp_path / "run")
    run.save_state(dense_model(), 6, 1, {})
    path = tmp_path / "run/resume/6.npz"
    message = "resume=True: the run was left with other variables"
    with pytest.raises(RunError, match=f"{re.escape(str(path))}: {message}"):
        run.rewind(dense_model(num_classes=4))


def test_state_that_is_damaged_is_named(tmp_path):
    run, model = new_run(tmp_path / "run"), dense_model()
    run.save_state(model, 6, 1, {})
    path = tmp_path / "run/resume/6.npz"
    spoil_one_bit(path)
    with refused(path, "is not what was saved"):
        run.rewind(model)
    # An ensemble does not need it.
    run.verify()


def test_state_of_a_method_comes_back_with_the_state(tmp_path):
    model = dense_model()
    model.optimizer.build(model.trainable_variables)
    run = RunDirectory.create(tmp_path / "run", header(model), model)
    notes = {"rate": np.array(0.5), "0": np.arange(3.0)}
    run.save_state(model, 6, 1, notes)
    _, found = RunDirectory.open(tmp_path / "run").rewind(model)
    assert set(found) == set(notes)
    for name, value in notes.items():
        np.testing.assert_array_equal(found[name], value)


def test_run_without_a_state_cannot_be_rewound(run):
    with refused(run, "keeps no state to resume from"):
        RunDirectory.open(run).rewind(dense_model())


def header_with(opened, settings=None, **changes):
    """Its header once more, with other values, those of settings too."""
    changed = dataclasses.replace(opened.header.settings, **(settings or {}))
    return dataclasses.replace(opened.header, settings=changed, **changes)


def test_run_resumes_with_the_same_header_in_a_later_version(run):
    opened = RunDirectory.open(run)
    opened.check_started_with(header_with(opened))
    opened.check_started_with(header_with(opened, package_version="99.0"))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"architecture": "0" * 64, "num_parameters": 1234},
            r"run was trained with another architecture \(67 parameters then, "
            r"1,234 now\)",
        ),
        (
            {"settings": {"seed": 2}, "num_samples": 121},
            "run was started with other settings: num_samples was 120 and is "
            "121; seed was 1 and is 2. Use the same ones",
        ),
        (
            {"settings": {"shuffle": False}},
            "shuffle was True and is False. Use",
        ),
        (
            {"settings": {"own": {"interval": 8, "novel": 3}}},
            "settings: novel was None and is 3. Use",
        ),
    ],
)
def test_run_does_not_resume_with_another_header(run, changes, text):
    opened = RunDirectory.open(run)
    with pytest.raises(ValueError, match=text):
        opened.check_started_with(header_with(opened, **changes))


def test_kill_while_a_round_is_written_leaves_the_old_state(
    tmp_path, monkeypatch
):
    path, model = tmp_path / "run", dense_model()
    run = new_run(path, model)
    run.add_round(record_of(4), RIGHT, model)
    before = (path / "manifest.json").read_bytes()

    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", kill)
        with pytest.raises(KeyboardInterrupt):
            run.add_round(record_of(8), RIGHT, model)
    assert (path / "manifest.json").read_bytes() == before
    opened = RunDirectory.open(path)
    opened.verify()
    assert opened.members == [4]
    opened.finish()
    assert "members/8.weights.h5" not in listing(path)


def test_memory_runs_have_nothing_to_save():
    run = new_run()
    run.save_state(dense_model(), 1, 1, {})
    run.finish()
    assert run.rounds == [] and run.members == []


def test_a_manifest_of_another_program_is_not_overwritten(tmp_path):
    manifest = tmp_path / "manifest.json"
    manifest.write_text('{"name": "a web app"}')
    with pytest.raises(ValueError, match="not the manifest of a cbnn_keras"):
        check_available(tmp_path, overwrite=True)
    assert manifest.read_text() == '{"name": "a web app"}'
