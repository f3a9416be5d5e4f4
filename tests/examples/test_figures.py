"""The paper's figures on CIFAR-100, as `examples/figures.py` makes them."""

import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from PIL import Image

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.models.batch_norm import recompute_statistics

ROOT = pathlib.Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "tfds"
IMAGES = [
    "class-weights.png",
    "correlation.png",
    "errors-and-calibration.png",
    "loss-plane.png",
]
L2, BATCH_SIZE = 1e-4, 256  # defaults of `loss_plane`


def make_figures(folder, *options):
    command = [sys.executable, ROOT / "examples/figures.py", *options]
    command += ["--directory", folder / "runs", "--images", folder / "images"]
    command += ["--numbers", folder / "figures.npz"]
    return subprocess.run(
        command,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


@pytest.mark.large
@pytest.mark.skipif(not DATA.is_dir(), reason=f"CIFAR-100 is not in {DATA}")
def test_figures_on_cifar100(tmp_path):
    printed = make_figures(tmp_path, "--quick", "--data-dir", DATA)
    assert f"cbnn report {tmp_path}/runs/cbnn {tmp_path}/runs/sse" in printed
    with np.load(tmp_path / "figures.npz") as file:
        numbers = dict(file)
    all_figures_are_drawn_and_drawn_again(tmp_path)
    members_lie_where_the_coordinates_say(tmp_path, numbers)
    the_loss_at_the_members_is_their_own(tmp_path, numbers)
    rare_classes_end_with_more_weight(numbers)


def parameters(model):
    return np.concatenate(
        [np.ravel(v).astype(np.float64) for v in model.trainable_variables]
    )


def all_figures_are_drawn_and_drawn_again(folder):
    images = sorted((folder / "images").iterdir())
    assert [path.name for path in images] == IMAGES
    before = [path.read_bytes() for path in images]
    make_figures(folder, "--draw")
    assert [path.read_bytes() for path in images] == before
    for path in images:
        assert np.asarray(Image.open(path)).std() > 10  # not empty


def members_lie_where_the_coordinates_say(folder, numbers):
    ensemble = CheckpointEnsemble.load(folder / "runs" / "cbnn")
    vectors = []
    for step in numbers["plane.steps"]:
        with ensemble.member(int(step)) as model:
            vectors.append(parameters(model))
    p1, p2, p3 = vectors
    u = p3 - p2
    along = (p1 - p2) @ u / np.linalg.norm(u)
    height = np.sqrt(np.linalg.norm(p1 - p2) ** 2 - along**2)
    np.testing.assert_allclose(
        numbers["plane.points"],
        [[along, height], [0, 0], [np.linalg.norm(u), 0]],
        rtol=1e-5,
        atol=1e-9,
    )


def the_loss_at_the_members_is_their_own(folder, numbers):
    """By Keras' own cross-entropy, with the sample weights of each round."""
    ensemble = CheckpointEnsemble.load(folder / "runs" / "cbnn")
    run = ensemble.run
    with np.load(folder / "runs" / "train.npz") as file:
        x, y = file["x"], file["y"]
    order = np.random.default_rng(0).permutation(len(y))
    batches = np.array_split(order, -(-len(y) // BATCH_SIZE))
    rounds = [record["step"] for record in run.rounds]
    steps = [int(step) for step in numbers["plane.steps"]]
    for member, step in enumerate(steps):
        with ensemble.member(step) as model:
            recompute_statistics(model, [x[batch] for batch in batches])
            p = model.predict(x, batch_size=300, verbose=0)
            squares = sum(np.sum(np.square(v)) for v in [parameters(model)])
        losses = keras.losses.sparse_categorical_crossentropy(y, p)
        for panel, other in enumerate(steps):
            omega = run.replay(rounds.index(other)).weights
            expected = omega @ np.asarray(losses) + L2 * squares
            found = numbers["plane.point_losses"][panel, member]
            assert found == pytest.approx(expected, abs=1e-4)


def rare_classes_end_with_more_weight(numbers):
    """Figure 2(b)."""
    mean, is_rare = numbers["rare.mean"], numbers["rare.is_minority"]
    # With so few images some classes are small by chance.
    assert 20 <= is_rare.sum() <= 30
    assert mean[is_rare].mean() > mean[~is_rare].mean() + 0.005
