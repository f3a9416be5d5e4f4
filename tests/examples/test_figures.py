"""The paper's figures on CIFAR-100, as `examples/figures.py` makes them."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

ROOT = pathlib.Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "tfds"
IMAGES = [
    "class-weights.png",
    "correlation.png",
    "errors-and-calibration.png",
    "loss-plane.png",
]


def make_figures(directory, *options):
    command = [sys.executable, ROOT / "examples/figures.py", *options]
    command += ["--directory", directory / "runs"]
    command += ["--images", directory / "images"]
    command += ["--numbers", directory / "figures.npz"]
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
    rare_classes_end_with_more_weight(numbers)


def all_figures_are_drawn_and_drawn_again(directory):
    images = sorted((directory / "images").iterdir())
    assert [path.name for path in images] == IMAGES
    before = [path.read_bytes() for path in images]
    make_figures(directory, "--draw")
    assert [path.read_bytes() for path in images] == before
    for path in images:
        assert np.asarray(Image.open(path)).std() > 10  # not empty


def rare_classes_end_with_more_weight(numbers):
    """Figure 2(b)."""
    mean, is_rare = numbers["rare.mean"], numbers["rare.is_minority"]
    # With so few images some classes are small by chance.
    assert 20 <= is_rare.sum() <= 30
    assert mean[is_rare].mean() > mean[~is_rare].mean() + 0.005
