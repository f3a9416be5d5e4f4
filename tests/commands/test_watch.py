"""Tests of `cbnn watch`, and of what opens a report."""

import os
import subprocess
import sys
import webbrowser

import numpy as np
import pytest
from helpers import blobs, dense_model, header, round_at, trained

from cbnn_keras.commands import cli
from cbnn_keras.commands.watch import watch_run
from cbnn_keras.runs.directory import RunDirectory


class Trainer:
    """Goes on with a run whenever the one who watches waits."""

    def __init__(self, directory):
        self.directory = directory
        self.waited = 0

    def __call__(self, seconds):
        self.waited += 1
        model, correct = dense_model(), np.ones(8, dtype=bool)
        if self.waited == 1:
            self.run = RunDirectory.create(self.directory, header(model), model)
        elif self.waited in (2, 3):
            record = round_at(4 * self.waited, 2.0, error=0.25)
            self.run.add_round(record, correct, model)
        elif self.waited == 4:
            self.run.keep_latest(1)
            self.run.finish()
        else:
            raise AssertionError("it goes on when all is over")


def test_every_round_is_a_line_until_the_end(tmp_path, capsys):
    watch_run(tmp_path / "run", wait=Trainer(tmp_path / "run"))
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{tmp_path}/run: waiting for a run to begin there",
        "step 8, epoch 1: weighted error 0.2500, vote 2.000",
        "step 12, epoch 1: weighted error 0.2500, vote 2.000",
        "step 8, epoch 1: weighted error 0.2500, vote 2.000, not kept",
        f"{tmp_path}/run: complete, 1 member",
    ]


def test_a_table_on_a_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    watch_run(tmp_path / "run", wait=Trainer(tmp_path / "run"))
    printed = capsys.readouterr().out
    assert "0 members, step 0; last change 0 s ago" in printed
    assert "1 member, step 8; last change" in printed
    last = printed[printed.rindex("complete, 1 member") :]
    rows = [line for line in last.splitlines() if "0.2500" in line]
    assert len(rows) == 2 and "not kept" in rows[0]


def test_enough_is_enough(tmp_path, capsys):
    def interrupt(seconds):
        raise KeyboardInterrupt

    watch_run(tmp_path / "run", wait=interrupt)
    assert "No longer watched" in capsys.readouterr().out


def test_what_is_no_run(tmp_path, capsys):
    (tmp_path / "run").write_text("")
    assert cli.main(["watch", str(tmp_path / "run")]) == 2
    assert "run" in capsys.readouterr().err


TRAINING = """
import sys
from helpers import trained
trained(sys.argv[1], num_checkpoints=3, epochs=3)
"""


@pytest.mark.large
def test_a_run_of_another_process_is_followed_to_its_end(tmp_path, capsys):
    tests = os.path.dirname(os.path.dirname(__file__))
    path = os.pathsep.join([tests, *sys.path])
    directory = str(tmp_path / "run")
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINING, directory],
        env=os.environ | {"PYTHONPATH": path},
    )
    try:
        assert cli.main(["watch", directory]) == 0
    finally:
        assert trainer.wait() == 0
    printed = capsys.readouterr().out
    assert "final model" in printed
    assert printed.endswith("run: complete, 3 members\n")


@pytest.mark.parametrize("has_browser", [True, False])
@pytest.mark.large
def test_a_report_is_opened_in_the_browser(
    tmp_path, capsys, monkeypatch, has_browser
):
    opened = []

    def open_page(url):
        opened.append(url)
        return has_browser

    monkeypatch.setattr(webbrowser, "open", open_page)
    monkeypatch.chdir(tmp_path)
    trained(tmp_path / "run", num_checkpoints=2, epochs=2)
    x, y = blobs(seed=1)
    np.savez(tmp_path / "test.npz", x=x, y=y)
    command = ["report", "run", "--data", "test.npz"]
    assert cli.main(command) == 0
    assert not opened
    assert "Open it in a browser." in capsys.readouterr().out
    assert cli.main([*command, "--open"]) == 0
    assert opened == [(tmp_path / "report.html").as_uri()]
    printed = capsys.readouterr().out
    assert ("Open it in a browser." in printed) == (not has_browser)
