"""`cbnn distil` in the terminal."""

import keras
import numpy as np
import pytest
from helpers import blobs, trained

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.commands import cli

X, Y = blobs()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run, and its data beside it."""
    keras.utils.set_random_seed(0)
    path = tmp_path_factory.mktemp("runs")
    trained(path / "run", num_checkpoints=3)
    np.savez(path / "train.npz", x=X, y=Y)
    np.savez(path / "more.npz", x=X[:40] + 1)
    np.savez(path / "wrong.npz", x=X, y=Y + 1)
    np.savez(path / "wide.npz", x=np.zeros((9, 5), "float32"), y=Y[:9])
    return path


def distil(place, *options, data="train.npz", to="student"):
    words = ["distil", place / "run", "--data", place / data]
    return cli.main([str(w) for w in (*words, "--to", place / to, *options)])


def test_the_network_is_a_run(place, capsys):
    options = ["--epochs", 2, "--batch-size", 40, "--learning-rate", 0.01]
    options += ["--temperature", 3, "--alpha", 0.1, "--mixup", 0.2]
    options += ["--unlabelled", place / "more.npz", "--seed", 7]
    assert distil(place, *options) == 0
    student = CheckpointEnsemble.load(place / "student")
    settings = student.run.header.settings
    expected = {
        "epochs": 2,
        "temperature": 3.0,
        "alpha": 0.1,
        "mixup": 0.2,
        "num_unlabelled": 40,
        "made_of": "cbnn",
    }
    assert expected.items() <= settings.own.items()
    assert (settings.seed, settings.batch_size) == (7, 40)
    shown = capsys.readouterr().out
    assert "One network of 67 parameters is in" in shown
    error = student.members[0]["error"]
    assert f"it gets {error:.2%} of the training data wrong" in shown
    assert f"cbnn export {place / 'student'}" in shown
    before = (place / "student/manifest.json").read_bytes()
    assert distil(place, "--epochs", 1) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert (place / "student/manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        ({"data": "wrong.npz"}, "wrong.npz: Labels must be integers", 2),
        ({"data": "wide.npz"}, "cannot compute with", 2),
        ({"data": "more.npz"}, "holds no labels `y`", 2),
        ({"to": "run/inside"}, "is inside the run", 2),
    ],
)
def test_what_does_not_fit_is_named(place, capsys, options, message, code):
    options = {"to": "another", **options}
    assert distil(place, "--epochs", 1, **options) == code
    assert message in capsys.readouterr().err
    assert not (place / "another").exists()


def test_wrong_numbers(place, capsys):
    assert distil(place, "--epochs", 0, to="another") == 1
    assert "distil(epochs=0): epochs must be" in capsys.readouterr().err
