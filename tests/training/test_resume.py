"""A run that was interrupted ends as one that never was, byte for byte."""

import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
from helpers import blobs, change_manifest, dense_model, same, text_model
from test_callback import Stop, StopAfter, images, noisy_cnn

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.models import copying
from cbnn_keras.support import locks

SCRIPT = pathlib.Path(__file__).with_name("killable_training.py")


def contents(directory):
    """Every file of a run, by name."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def fit(directory, *others, seed=0, epochs=5, **options):
    """One start of the script. 6 steps an epoch, a checkpoint every 7."""
    keras.backend.clear_session()  # names of layers as in a new process
    keras.utils.set_random_seed(seed)
    x, y = images()
    model = noisy_cnn()
    make = CBNNCallback if "average" in options else CBNNCallback.paper
    cbnn = make(directory, interval=7, resume=True, **options)
    train = cbnn.weighted(x, y, batch_size=16, seed=4)
    log = model.fit(train, epochs=epochs, callbacks=[cbnn, *others], verbose=0)
    return cbnn, model, log


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("uninterrupted") / "run"
    cbnn, model, _ = fit(directory)
    return directory, cbnn, model


@pytest.mark.parametrize(
    "crash",
    [
        {"epoch": 0, "batch": 2},  # before anything was kept
        # At the end of the first epoch; right after the first checkpoint.
        pytest.param({"epoch": 0}, marks=pytest.mark.large),
        pytest.param({"epoch": 1, "batch": 0}, marks=pytest.mark.large),
        {"epoch": 2, "batch": 5},  # checkpoints after the kept state
        # After the final model, before the end.
        pytest.param({"epoch": 4, "batch": 5}, marks=pytest.mark.large),
        # When all that is missing is the end itself.
        pytest.param({"epoch": 4}, marks=pytest.mark.large),
    ],
    ids=str,
)
def test_resumed_run_equals_uninterrupted(tmp_path, uninterrupted, crash):
    directory, reference, model = uninterrupted
    with pytest.raises(Stop):
        fit(tmp_path / "run", StopAfter(**crash))
    # The new process starts from other weights, which must not matter once an
    # epoch was completed.
    seed = 0 if crash["epoch"] == 0 else 99
    cbnn, resumed, _ = fit(tmp_path / "run", seed=seed)
    assert contents(tmp_path / "run") == contents(directory)
    np.testing.assert_array_equal(cbnn.sample_weights, reference.sample_weights)
    assert cbnn.history == reference.history
    for a, b in zip(resumed.weights, model.weights, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.large
def test_several_interruptions(tmp_path, uninterrupted):
    directory, _, _ = uninterrupted
    for crash in ((0, 3), (1, 4), (1, None), (3, 1)):
        with pytest.raises(Stop):
            fit(tmp_path / "run", StopAfter(*crash))
    fit(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(directory)


@pytest.mark.large
def test_only_the_rest_is_trained_and_initial_epoch_is_left(tmp_path):
    with pytest.raises(Stop):
        fit(tmp_path / "run", StopAfter(epoch=2))
    _, model, log = fit(tmp_path / "run")
    assert log.epoch == [2, 3, 4]  # kept when the next epoch begins
    assert model._initial_epoch is None


@pytest.mark.large
def test_a_finished_run_is_left_alone(tmp_path, capsys):
    _, model, _ = fit(tmp_path / "run")
    before = contents(tmp_path / "run")
    cbnn, again, log = fit(tmp_path / "run", seed=99)
    assert log.epoch == []
    assert contents(tmp_path / "run") == before
    for a, b in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    x, y = images()
    np.testing.assert_array_equal(
        cbnn.ensemble().predict(x),
        CheckpointEnsemble.load(tmp_path / "run").predict(x),
    )


@pytest.mark.large
def test_a_drawn_seed_is_taken_up_again(tmp_path):
    """Without a seed of the user's the run's own decides."""

    def start(seed, *others):
        keras.utils.set_random_seed(seed)
        x, y = images()
        cbnn = CBNNCallback.paper(tmp_path / "run", interval=7, resume=True)
        train = cbnn.weighted(x, y, batch_size=16)
        noisy_cnn().fit(train, epochs=4, callbacks=[cbnn, *others], verbose=0)
        return cbnn

    with pytest.raises(Stop):
        start(1, StopAfter(epoch=2))
    resumed = start(2)
    shutil.rmtree(tmp_path / "run")
    reference = start(1)
    assert resumed.history == reference.history


@pytest.mark.large
def test_logged_ensemble_accuracy_goes_on(tmp_path):
    x, y = images()
    _, _, whole = fit(tmp_path / "whole", validation_data=(x, y))
    with pytest.raises(Stop):
        fit(tmp_path / "run", StopAfter(epoch=2), validation_data=(x, y))
    _, _, rest = fit(tmp_path / "run", validation_data=(x, y))
    for name in ("val_ensemble_accuracy", "cbnn_vote", "loss"):
        assert rest.history[name] == whole.history[name][2:]


@pytest.mark.large
def test_learning_rate_set_by_a_callback_is_kept(tmp_path):
    class Halve(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            optimizer = self.model.optimizer
            optimizer.learning_rate = float(optimizer.learning_rate) / 2

    # After ours, as `ReduceLROnPlateau` on our logs would be.
    def start(*others):
        keras.utils.set_random_seed(0)
        x, y = images()
        model = noisy_cnn()
        cbnn = CBNNCallback.paper(tmp_path / "run", interval=7, resume=True)
        train = cbnn.weighted(x, y, batch_size=16, seed=4)
        callbacks = [cbnn, Halve(), *others]
        model.fit(train, epochs=4, callbacks=callbacks, verbose=0)
        return float(model.optimizer.learning_rate)

    with pytest.raises(Stop):
        start(StopAfter(epoch=1))
    assert start() == pytest.approx(0.01 / 2**4)


def test_first_start_with_resume_on_an_empty_directory(tmp_path):
    (tmp_path / "run").mkdir()
    cbnn, _, _ = fit(tmp_path / "run")
    assert len(cbnn.ensemble()) == 5


@pytest.mark.large
def test_user_weights_survive_a_restart(tmp_path):
    base = np.linspace(1, 2, 120)

    def start(*others):
        keras.utils.set_random_seed(0)
        x, y = blobs()
        cbnn = CBNNCallback.paper(
            tmp_path / "run", interval=6, resume=True, deviation_rate=0.05
        )
        train = cbnn.weighted(x, y, batch_size=20, sample_weight=base, seed=1)
        model = dense_model()
        model.fit(train, epochs=4, callbacks=[cbnn, *others], verbose=0)
        return cbnn.sample_weights.numpy()

    with pytest.raises(Stop):
        start(StopAfter(epoch=2))
    resumed = start()
    shutil.rmtree(tmp_path / "run")
    np.testing.assert_array_equal(resumed, start())


NUM_KILLS = 20
EPOCHS = 150  # more than twenty starts get through before they are killed


def start_script(directory, *fatal_save):
    command = [sys.executable, SCRIPT, directory, EPOCHS, *fatal_save]
    with directory.with_suffix(".stderr").open("a") as errors:
        return subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )


def kill_at_some_moment(process, chance):
    for _ in range(chance.randint(1, 6)):
        assert process.stdout.readline().startswith("epoch")
    time.sleep(chance.uniform(0, 0.1))
    process.kill()


@pytest.mark.large
def test_killed_twenty_times_equals_uninterrupted(tmp_path):
    chance = random.Random(0)
    reference = start_script(tmp_path / "whole")
    for number in range(NUM_KILLS):
        in_a_save = number % 2 == 0
        fatal_save = [chance.randint(1, 25)] if in_a_save else []
        with start_script(tmp_path / "killed", *fatal_save) as process:
            if not in_a_save:
                kill_at_some_moment(process, chance)
            process.communicate(timeout=120)
            assert process.returncode == -signal.SIGKILL
    with start_script(tmp_path / "killed") as process:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        assert "epoch 0\n" not in output  # the others got somewhere
    with reference:
        reference.communicate(timeout=300)
        assert reference.returncode == 0

    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    with (
        np.load(tmp_path / "killed.results.npz") as killed,
        np.load(tmp_path / "whole.results.npz") as whole,
    ):
        for name in ("weights", "predictions", "votes"):
            assert killed[name].tobytes() == whole[name].tobytes()
        assert len(whole["votes"]) == 7
        assert np.ptp(whole["weights"]) > 0


def test_another_optimizer_is_refused_though_its_slots_would_fit(tmp_path):
    x, y = blobs()

    def start(optimizer, *others):
        cbnn = CBNNCallback.paper(tmp_path / "run", resume=True)
        train = cbnn.weighted(x, y, batch_size=20, seed=1)
        model = dense_model(optimizer=optimizer)
        model.fit(train, epochs=3, callbacks=[cbnn, *others], verbose=0)

    with pytest.raises(Stop):
        start(keras.optimizers.Adam(0.05), StopAfter(epoch=1))
    with pytest.raises(ValueError, match="optimizer was 'Adam' and is 'Nadam'"):
        start(keras.optimizers.Nadam(0.05))


HOLD = """
import sys, time
from pathlib import Path
from cbnn_keras.support import locks

locks.lock(Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(60)
"""


UNFINISHED = (
    r"run is not finished \(rounds so far: 2, members: 2\). Training can be "
    "resumed with `resume=True`.$"
)


@pytest.mark.large
def test_a_directory_that_another_process_trains_in_is_refused(tmp_path):
    with pytest.raises(Stop):
        fit(tmp_path / "run", StopAfter(epoch=2))
    locks.unlock(tmp_path / "run")  # as if this process had ended
    before = contents(tmp_path / "run")
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(ValueError, match="run is in use: another process"):
            fit(tmp_path / "run")
        assert contents(tmp_path / "run") == before
        with pytest.warns(UserWarning, match=UNFINISHED):
            CheckpointEnsemble.load(tmp_path / "run")  # reading is free
        other.kill()
    fit(tmp_path / "run")  # a lock ends with its process
    assert CheckpointEnsemble.load(tmp_path / "run").members[-1]["is_final"]


class AlwaysDropout(keras.layers.Dropout):
    """Monte Carlo dropout; `training=True` at the call is lost in `predict`."""

    def call(self, inputs, training=False):
        return super().call(inputs, training=True)


@pytest.mark.large
def test_random_layers_at_inference_do_not_disturb_a_resumed_run(tmp_path):
    """Monte Carlo dropout draws while it is scored and validated."""

    def start(directory, *others):
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        x, y = blobs()
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(8, activation="relu")(inputs)
        noisy = AlwaysDropout(0.3)(hidden)
        outputs = keras.layers.Dense(3, activation="softmax")(noisy)
        model = keras.Model(inputs, outputs)
        model.compile(
            keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy"
        )
        cbnn = CBNNCallback.paper(
            directory, interval=6, resume=True, validation_data=(x, y)
        )
        train = cbnn.weighted(x, y, batch_size=20, seed=1)
        model.fit(train, epochs=4, callbacks=[cbnn, *others], verbose=0)
        weights = [np.array(weight) for weight in model.weights]
        first, second = (model.predict(x, verbose=0) for _ in range(2))
        assert not np.array_equal(first, second)  # it is random
        return weights

    whole = start(tmp_path / "whole")
    with pytest.raises(Stop):
        start(tmp_path / "run", StopAfter(epoch=2, batch=3))
    for a, b in zip(start(tmp_path / "run"), whole, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "save", ["savez", pytest.param("save", marks=pytest.mark.large)]
)
@pytest.mark.large
def test_a_full_disk_is_explained_and_nothing_is_lost(
    tmp_path, uninterrupted, save, monkeypatch
):
    """`savez` writes the state of an epoch, `save` the bits of a round."""
    directory, _, _ = uninterrupted
    write, num_calls = getattr(np, save), 0

    def fail_at_the_second_call(file, *arrays, **named):
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:
            file.write(b"half of it")
            raise OSError(28, "No space left on device")
        write(file, *arrays, **named)

    monkeypatch.setattr(np, save, fail_at_the_second_call)
    with pytest.raises(
        OSError, match="could not be written.*No space.*intact.*resume=True"
    ):
        fit(tmp_path / "run")
    fit(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(directory)


def test_a_run_with_frozen_layers_of_an_earlier_version_is_resumed(tmp_path):
    """What was frozen was part of its architecture's hash then."""

    def frozen():
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(0)
        model = dense_model()
        model.layers[0].trainable = False
        adam = keras.optimizers.Adam(0.05)
        model.compile(adam, "sparse_categorical_crossentropy")
        return model

    def train(*others, **options):
        x, y = blobs()
        cbnn = CBNNCallback(tmp_path / "run", num_checkpoints=2, **options)
        train = cbnn.weighted(x, y, batch_size=20, seed=1)
        model = frozen()
        model.fit(train, epochs=4, callbacks=[cbnn, *others], verbose=0)
        return cbnn

    with pytest.raises(Stop):
        train(StopAfter(epoch=2, batch=1))
    former = copying.architecture_id(frozen(), as_frozen=True)

    def rename(manifest):
        assert manifest["architecture"] != former
        manifest["architecture"] = former

    change_manifest(tmp_path / "run", rename)
    cbnn = train(resume=True)
    assert [record["step"] for record in cbnn.history] == [12, 24]


def test_another_fit_of_a_callback_that_has_finished(tmp_path):
    """It used to train nothing, and to leave another model behind."""
    x, y = blobs()
    model = dense_model()
    cbnn = CBNNCallback(tmp_path / "run", resume=True)
    train = cbnn.weighted(x, y, batch_size=20, seed=1)
    model.fit(train, epochs=2, callbacks=[cbnn], verbose=0)
    kept = model.get_weights()
    with pytest.raises(ValueError, match="has finished the run in .* its own"):
        model.fit(train, epochs=2, callbacks=[cbnn], verbose=0)
    assert same(kept, model.get_weights())


def fit_files(directory, files, *others, **options):
    """One start of a script that leaves the order of the files to Keras."""
    dataset = keras.utils.text_dataset_from_directory(
        files, batch_size=4, verbose=False, **options
    )
    model = text_model(2)
    model.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy")
    cbnn = CBNNCallback(directory, num_checkpoints=1, resume=True)
    train = cbnn.weighted(dataset.map(lambda x, y: (x, y)))
    model.fit(train, epochs=3, callbacks=[cbnn, *others], verbose=2)


@pytest.mark.large
def test_the_order_of_files_is_had_again_by_the_seed_that_is_said(
    tmp_path, capsys
):
    for i in range(24):
        file = tmp_path / "files" / "ab"[i % 2] / f"{i}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{('red', 'blue green')[i % 2]} {i}")
    start = tmp_path / "run", tmp_path / "files"
    with pytest.raises(Stop):
        fit_files(*start, StopAfter(epoch=0))
    said = re.search(
        r"to\s+resume.*give\s+`seed=(\d+)`", capsys.readouterr().out
    )
    seed = int(said[1])
    with pytest.raises(ValueError, match="another order .*the same `seed=`"):
        fit_files(*start, seed=seed + 1)
    fit_files(*start, seed=seed)
    assert CheckpointEnsemble.load(tmp_path / "run").run.is_finished
    fit_files(tmp_path / "sorted", tmp_path / "files", shuffle=False)
    said = capsys.readouterr().out.split("sorted")[-1]
    assert "seed=" not in said and "Epoch 1" in said
