"""Nothing outside a run directory is read, written or removed by way of it."""

import os
import re
import shutil

import numpy as np
import pytest
from helpers import dense_model, header, round_at, scored_run

from cbnn_keras import CheckpointEnsemble, RunError
from cbnn_keras.runs.directory import RunDirectory, check_available

PARTS = ["members", "rounds", "resume", "manifest.json", "model.keras"]
PARTS += ["base.npy"]
LEFTOVERS = ["manifest.json.new", "unfinished-model.keras"]
RIGHT = np.ones(21, dtype=bool)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A run with all the files that one can have; not to be changed."""
    path = tmp_path_factory.mktemp("pristine") / "run"
    run = scored_run(path, own_distribution=np.full(21, 1 / 21))
    model = dense_model()
    model.optimizer.build(model.trainable_variables)
    run.is_finished = False
    run.save_state(model, 12, 1, {})
    return path


@pytest.fixture
def run(pristine, tmp_path):
    shutil.copytree(pristine, tmp_path / "run")
    return tmp_path / "run"


def displace(run, name, elsewhere):
    """Puts a link in place of a part, to a copy of it that works."""
    part, copy = run / name, elsewhere / name
    if part.is_dir():
        shutil.copytree(part, copy)
        (copy / "7.npz").write_bytes(b"precious")
        shutil.rmtree(part)
    elif part.exists():
        shutil.move(part, copy)
    part.symlink_to(copy)


def contents(directory):
    return {
        path.relative_to(directory): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def load(run):
    CheckpointEnsemble.load(run)


def claim(run):
    RunDirectory.claim(run)


def overwrite(run):
    RunDirectory.create(
        run, header(dense_model()), dense_model(), overwrite=True
    )


def create(run):
    (run / "manifest.json").unlink(missing_ok=True)
    RunDirectory.create(run, header(dense_model()), dense_model())


def ask(run):
    check_available(run, overwrite=True)


@pytest.mark.parametrize("name", PARTS + LEFTOVERS)
@pytest.mark.parametrize("use", [load, claim, overwrite, create, ask])
def test_a_part_that_is_a_link_is_refused(run, tmp_path, name, use):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    displace(run, name, elsewhere)
    before = contents(elsewhere)
    if use is create and name == "manifest.json":
        pytest.skip("removed by the test")
    path = re.escape(str(run / name))
    with pytest.raises(RunError, match=f"^{path} is a link, which leads out"):
        use(run)
    assert contents(elsewhere) == before


@pytest.mark.parametrize(
    "name", ["members/4.weights.h5", "rounds/4.npy", "resume/12.npz"]
)
def test_a_file_that_is_a_link_is_refused(run, tmp_path, name):
    target = tmp_path / "copy"
    shutil.move(run / name, target)
    (run / name).symlink_to(target)
    before = target.read_bytes()
    opened = RunDirectory.open(run)
    model = dense_model()
    with pytest.raises(RunError, match=f"{name} is a link"):
        opened.verify()
        opened.rewind(model)
    assert target.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("members", lambda run, m: run.add_round(round_at(16), RIGHT, m)),
        ("members", lambda run, m: run.load_member(4, m)),
        ("rounds", lambda run, m: run.add_round(round_at(16), RIGHT, None)),
        ("rounds", lambda run, m: run.correct(4)),
        ("resume", lambda run, m: run.save_state(m, 18, 2, {})),
        ("resume", lambda run, m: run.rewind(m)),
        ("resume", lambda run, m: run.finish()),
        ("base.npy", lambda run, m: run.own_distribution),
        ("model.keras", lambda run, m: run.load_model()),
    ],
)
def test_links_that_come_later_are_not_followed(run, tmp_path, name, use):
    """As between one checkpoint and the next."""
    opened, model = RunDirectory.claim(run), dense_model()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    displace(run, name, elsewhere)
    before = contents(elsewhere)
    with pytest.raises(RunError, match=f"run/{name} is a link, which leads"):
        use(opened, model)
    assert contents(elsewhere) == before


def test_a_leftover_that_is_a_link_is_removed_and_not_what_it_leads_to(
    run, tmp_path
):
    (tmp_path / "precious").write_text("precious")
    for name in ("members/3.weights.h5", "rounds/3.npy", "resume/3.npz"):
        (run / name).symlink_to(tmp_path / "precious")
    RunDirectory.claim(run).finish()
    assert (tmp_path / "precious").read_text() == "precious"
    assert not os.path.lexists(run / "members/3.weights.h5")


def test_the_run_directory_itself_may_be_reached_by_a_link(run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    with pytest.warns(UserWarning, match="is not finished"):
        CheckpointEnsemble.load(tmp_path / "link")
    RunDirectory.claim(tmp_path / "link").finish()
    CheckpointEnsemble.load(run)


@pytest.mark.parametrize("name", ["members", "rounds", "resume"])
def test_a_file_in_the_place_of_a_directory_is_refused(run, name):
    """It used to end resuming with an `OSError`, as if the disk were full."""
    shutil.rmtree(run / name)
    (run / name).write_bytes(b"precious")
    wanted = re.escape(f"{run / name} is no directory, but a run keeps files")
    with pytest.raises(RunError, match=wanted):
        RunDirectory.claim(run)
    assert (run / name).read_bytes() == b"precious"
