"""Tests of `--import`: models with classes of the user, in another process."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers import blobs, memory_ensemble

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.commands import cli
from cbnn_keras.commands.imports import imported_objects
from cbnn_keras.models.foreign import Foreign
from cbnn_keras.support.faults import RunError

MODULE = """
import keras
from os.path import join
from keras.layers import Dense

FACTOR = 2.0


class Block(keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.dense = keras.layers.Dense(units)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        return self.dense(x)


def doubled(x):
    return FACTOR * x


class Unrelated:
    pass
"""

TRAINING = """
import keras
from own_layers import Block, doubled

from cbnn_keras import CBNNCallback
from helpers import blobs

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((4,)),
        Block(8),
        keras.layers.Dense(8, activation=doubled),
        keras.layers.Lambda(doubled),
        keras.layers.Dense(3, activation="softmax"),
    ]
)
model.compile(
    keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy"
)
x, y = blobs()
CBNNCallback("run", num_checkpoints=2).fit(
    model, x, y, epochs=4, verbose=0, seed=1
)
"""


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A directory with a module, which is where commands are typed."""
    (tmp_path / "own_layers.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_layers", None)


@pytest.fixture(scope="module")
def trained_in_another_process(tmp_path_factory):
    """A directory with the module and a run of a model that is made of it."""
    directory = tmp_path_factory.mktemp("imports")
    (directory / "own_layers.py").write_text(MODULE)
    tests = os.path.dirname(os.path.dirname(__file__))
    path = os.pathsep.join([str(directory), tests, *sys.path])
    subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", TRAINING],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": path},
        check=True,
    )
    return directory


@pytest.fixture
def with_a_run(trained_in_another_process, monkeypatch):
    monkeypatch.chdir(trained_in_another_process)
    yield trained_in_another_process
    sys.modules.pop("own_layers", None)


@pytest.mark.large
def test_a_model_with_classes_of_the_user_is_exported_and_verified(
    with_a_run, capsys
):
    output = with_a_run / "exported"
    command = ["export", "run", "--output", str(output)]
    assert cli.main(command) == 2
    assert "Block. Open them" in capsys.readouterr().err.replace(
        ", doubled", ""
    )
    assert "own_layers" not in sys.modules
    assert cli.main([*command, "--import", "own_layers"]) == 0
    assert "--run run --import own_layers" in capsys.readouterr().out
    verify = ["verify", str(output / "1"), "--run", "run"]
    assert cli.main(verify) == 2
    assert cli.main([*verify, "--import", "own_layers"]) == 0
    assert "matches" in capsys.readouterr().out


@pytest.mark.large
def test_a_report_of_it(with_a_run, capsys):
    x, y = blobs(seed=1)
    np.savez(with_a_run / "test.npz", x=x, y=y)
    command = ["report", "run", "--data", "test.npz"]
    assert cli.main(command) == 1
    assert "--import my_module" in capsys.readouterr().err
    assert cli.main([*command, "--import", "own_layers"]) == 0
    assert "accuracy" in (with_a_run / "report.html").read_text()


@pytest.mark.large
def test_custom_objects_do_the_same_in_python(with_a_run):
    objects = imported_objects(["own_layers"])
    ensemble = CheckpointEnsemble.load("run", custom_objects=objects)
    x, _ = blobs()
    np.testing.assert_allclose(
        ensemble.as_model().predict(x, verbose=0),
        ensemble.predict(x, verbose=0),
        atol=1e-6,
    )


def test_what_a_module_opens(directory):
    found = imported_objects(["own_layers"])
    # Its own classes for models and its own functions, and nothing it imports.
    assert set(found) == {"Block", "doubled"}
    assert str(directory) not in sys.path
    assert imported_objects([]) == {}
    assert imported_objects(["own_layers", "own_layers"]) == found


def test_a_file_does_not_choose_what_a_function_is_called_with(
    directory, tmp_path
):
    """`wipe` is the user's own, and was never part of a model."""
    (directory / "with_wipe.py").write_text(
        "def wipe(x, path=None):\n"
        "    open(path or 'no path', 'w').close()\n"
        "    return x\n"
    )
    objects = imported_objects(["with_wipe"])
    layer = keras.layers.Lambda(
        objects["wipe"], arguments={"path": str(tmp_path / "wiped")}
    )
    keras.Sequential([keras.Input((2,)), layer]).save(tmp_path / "model.keras")
    (tmp_path / "wiped").unlink()  # by the user, who built the model
    with pytest.raises(
        RunError,
        match=r"calls 'wipe' with arg.*custom_objects=\{'wipe': \.\.\.",
    ):
        Foreign(objects).load(tmp_path / "model.keras")
    assert not (tmp_path / "wiped").exists()
    # Opened by its name, it is the user's word.
    Foreign({"wipe": objects["wipe"]}).load(tmp_path / "model.keras")
    assert (tmp_path / "wiped").exists()
    sys.modules.pop("with_wipe")


def test_a_module_that_is_not_there_or_fails(directory):
    with pytest.raises(
        ValueError,
        match=r"--import no_such: No module named 'no_such'\. .*without \.py",
    ):
        imported_objects(["no_such"])
    (directory / "failing.py").write_text("1 / 0")
    with pytest.raises(
        ValueError, match="--import failing: .* ZeroDivisionError: division by"
    ):
        imported_objects(["failing"])


def test_a_name_that_two_have_is_refused_where_it_is_needed(directory):
    (directory / "second.py").write_text(
        "import keras\n"
        "class Block(keras.layers.Layer): pass\n"
        "def helper(x): return x\n"
        "first, second = lambda x: x, lambda x: -x\n"
    )
    (directory / "third.py").write_text("def helper(x): return -x\n")
    objects = imported_objects(["second", "third"])
    assert set(objects) == {"Block"}
    objects = imported_objects(["own_layers", "second", "third"])
    assert set(objects) == {"doubled"}
    layers = [
        imported_objects(["own_layers"])["Block"](8),
        keras.layers.Dense(3, activation="softmax"),
    ]
    model = keras.Sequential([keras.Input((4,)), *layers])
    memory_ensemble(model, [1.0]).save("run")
    with pytest.raises(
        RunError, match="names 'Block', and there are two of.* one module only"
    ):
        CheckpointEnsemble.load("run", custom_objects=objects)
    for name in ("second", "third"):
        sys.modules.pop(name)


def test_a_run_with_a_lambda_says_so_before_training(tmp_path):
    def made(*layers):
        model = keras.Sequential(
            [
                keras.Input((4,)),
                *layers,
                keras.layers.Dense(3, activation="softmax"),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy"
        )
        return model

    x, y = blobs()
    model = made(keras.layers.Lambda(lambda x: 2 * x))
    cbnn = CBNNCallback(tmp_path / "run", num_checkpoints=2)
    with pytest.warns(
        UserWarning,
        match=r"CBNNCallback: the model cannot be built again from the run "
        r"alone\. It has a lambda.*load\(directory, model=model\)\.$",
    ):
        cbnn.fit(model, x, y, epochs=3, verbose=0)
    # What it advises works, exports included.
    ensemble = CheckpointEnsemble.load(tmp_path / "run", model=model)
    expected = ensemble.predict(x, verbose=0)
    np.testing.assert_allclose(
        ensemble.as_model().predict(x, verbose=0), expected, atol=1e-6
    )
    np.testing.assert_array_equal(
        cbnn.ensemble().predict(x, verbose=0), expected
    )


def test_a_class_without_a_description_is_named_before_training(tmp_path):
    class Shy(keras.layers.Layer):
        def __init__(self, thing):
            super().__init__()

        def call(self, x):
            return x

    model = keras.Sequential(
        [keras.Input((4,)), Shy(object()), keras.layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.1), loss)
    cbnn = CBNNCallback(tmp_path / "run", num_checkpoints=2)
    with pytest.warns(UserWarning, match="Give Shy a `get_config` that ret"):
        cbnn.fit(model, *blobs(), epochs=3, verbose=0)
    loaded = CheckpointEnsemble.load(
        tmp_path / "run", model=model, members="all"
    )
    assert len(loaded) == 2
