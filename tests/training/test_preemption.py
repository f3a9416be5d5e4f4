"""SIGTERM ends a run in a directory after the step, and nothing else."""

import builtins
import gc
import os
import pathlib
import signal
import subprocess
import sys
import threading

import keras
import pytest
from helpers import blobs, dense_model, trained
from test_callback import Stop, StopAfter
from test_resume import contents

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.models import engine
from cbnn_keras.support.processes import Alone
from cbnn_keras.training.fit import Fit
from cbnn_keras.training.preemption import Preemption

SCRIPT = pathlib.Path(__file__).with_name("killable_training.py")


def run_script(directory, *signals, epochs=6, **variables):
    """The output, errors and exit code of one start of the script."""
    return subprocess.run(
        [sys.executable, SCRIPT, directory, str(epochs)],
        env={**os.environ, "SIGNALS": ",".join(signals), **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


def line(directory, kept):
    return (
        f"CBNNCallback: training was ended by SIGTERM. The run in {directory} "
        f"{kept}; to resume it, start the same script again with "
        "`resume=True`."
    )


@pytest.mark.faults
@pytest.mark.parametrize(
    "replicas", ["0", pytest.param("2", marks=pytest.mark.large)]
)
def test_resumed_after_sigterm_equals_uninterrupted(tmp_path, replicas):
    options = {"REPLICAS": replicas}
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    first = run_script(killed, "SIGTERM:0:3", **options)
    assert first.returncode == 143
    assert first.stderr.splitlines()[-1] == line(
        killed, "has kept no epoch yet"
    )
    second = run_script(killed, "SIGTERM:4:7", **options)
    assert second.returncode == 143
    assert second.stderr.splitlines()[-1] == line(
        killed, "is kept as it was after epoch 4"
    )
    last = run_script(killed, **options)
    assert last.returncode == 0
    assert last.stdout.split() == ["epoch", "4", "epoch", "5"]
    assert run_script(whole, **options).returncode == 0
    assert contents(killed) == contents(whole)


@pytest.mark.faults
@pytest.mark.slow
def test_a_second_sigterm_ends_at_once(tmp_path):
    ended = run_script(tmp_path / "run", "SIGTERM:1:2", "SIGTERM:1:2")
    assert ended.returncode == -signal.SIGTERM
    assert "ended by SIGTERM" not in ended.stderr
    assert run_script(tmp_path / "run").returncode == 0


class Look(keras.callbacks.Callback):
    """Notes who handles SIGTERM in the middle of `fit`."""

    def on_train_batch_end(self, batch, logs=None):
        self.handler = signal.getsignal(signal.SIGTERM)


@pytest.fixture
def sigterm():
    """Puts the handler from before back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def fit(directory, *others):
    look = Look()
    x, y = blobs()
    callback = CBNNCallback.paper(directory, resume=directory is not None)
    train = callback.weighted(x, y, batch_size=20, seed=1)
    callbacks = [callback, look, *others]
    dense_model().fit(train, epochs=2, callbacks=callbacks, verbose=0)
    return look.handler


def is_ours(handler):
    return isinstance(getattr(handler, "__self__", None), Preemption)


def test_handler_is_there_only_while_fit_runs(tmp_path, sigterm):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert is_ours(fit(tmp_path / "run"))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("owner", ["user", "ignored", "memory", "notebook"])
def test_what_is_left_alone(tmp_path, sigterm, monkeypatch, owner):
    handlers = {"user": lambda *_: None, "ignored": signal.SIG_IGN}
    handler = handlers.get(owner, signal.SIG_DFL)
    if owner == "notebook":
        monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    signal.signal(signal.SIGTERM, handler)
    assert fit(None if owner == "memory" else tmp_path / "run") == handler
    assert signal.getsignal(signal.SIGTERM) == handler


def test_a_fit_outside_the_main_thread_leaves_signals_alone(tmp_path, sigterm):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    found = []
    thread = threading.Thread(target=lambda: found.append(fit(tmp_path / "a")))
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]


@pytest.mark.faults
def test_handlers_of_failed_trainings_do_not_pile_up(tmp_path, sigterm):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for _ in range(2):
        with pytest.raises(Stop):
            fit(tmp_path / "run", StopAfter(epoch=0))
        assert is_ours(signal.getsignal(signal.SIGTERM))
    assert is_ours(fit(tmp_path / "run"))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.large
def test_a_training_within_another_gives_the_handler_back(tmp_path, sigterm):
    class TrainAnother(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                self.before = signal.getsignal(signal.SIGTERM)
                self.within = fit(tmp_path / "inner")
                self.after = signal.getsignal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    other = TrainAnother()
    fit(tmp_path / "outer", other)
    assert is_ours(other.within) and other.within != other.before
    assert other.after == other.before
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


AFTER_A_FAILURE = """
import os, signal, sys, time
sys.path[:0] = {paths!r}
from test_preemption import Stop, StopAfter, fit

class Fork(StopAfter):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3 and self.current == 0:
            end, start = os.pipe()
            child = os.fork()
            if not child:
                os.write(start, b"!")  # before, Python drops signals
                while True:
                    time.sleep(0.01)
            os.read(end, 1)
            os.kill(child, signal.SIGTERM)
            print("child", os.waitpid(child, 0)[1], flush=True)

try:
    fit(sys.argv[1], Fork(epoch=1))
except Stop:
    print("failed", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print("not reached")
"""


@pytest.mark.faults
def test_forked_children_and_a_process_whose_training_failed_end(tmp_path):
    here = pathlib.Path(__file__).parent
    script = AFTER_A_FAILURE.format(paths=[str(here), str(here.parent)])
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, tmp_path / "run"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    # The status of a process that SIGTERM ended is its number.
    assert ended.stdout == f"child {int(signal.SIGTERM)}\nfailed\n"
    assert ended.returncode == -signal.SIGTERM


# Ctrl-C.


class Interrupt(StopAfter):
    """As a person would, once in the middle of an epoch."""

    def __init__(self, epoch, batch):
        super().__init__(epoch, batch, KeyboardInterrupt)


@pytest.mark.faults
def test_after_ctrl_c_the_same_session_resumes(tmp_path):
    whole, _, _, _ = trained(tmp_path / "whole", interval=7)
    for moment in ((0, 2), (2, 4)):
        with pytest.raises(KeyboardInterrupt):
            keras.utils.set_random_seed(0)
            session(tmp_path / "run", Interrupt(*moment))
    keras.utils.set_random_seed(0)
    keras.backend.clear_session(free_memory=False)
    resumed = session(tmp_path / "run")
    assert resumed.history == whole.history
    assert len(CheckpointEnsemble.load(tmp_path / "run")) == len(whole.history)


def session(directory, *others):
    x, y = blobs()
    callback = CBNNCallback.paper(directory, interval=7, resume=True)
    train = callback.weighted(x, y, batch_size=20, seed=1)
    callbacks = [callback, *others]
    dense_model().fit(train, epochs=4, callbacks=callbacks, verbose=0)
    return callback


def test_other_processes_name_the_directory_of_the_user(tmp_path, monkeypatch):
    """Not that of their copy, which is gone with them."""

    class NotFirst(Alone):
        is_first = False

    told = []
    monkeypatch.setattr(engine.in_use(), "processes", NotFirst)
    monkeypatch.setattr(
        Fit, "watch_for_preemption", lambda fit, path: told.append(path)
    )
    callback = CBNNCallback(tmp_path / "run", num_checkpoints=2)
    callback.fit(dense_model(), *blobs(20), batch_size=10, verbose=0, epochs=2)
    assert told == [tmp_path / "run"]
    assert not (tmp_path / "run").exists()
    # The copy lasts as long as an ensemble needs it.
    copy, ensemble = callback.directory, callback.ensemble()
    del callback
    gc.collect()
    assert ensemble.predict(blobs(20)[0], verbose=0).shape == (20, 3)
    del ensemble
    gc.collect()
    assert not copy.exists()
