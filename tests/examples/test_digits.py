"""The example on digits, from the command line."""

import pathlib
import re
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "digits.py"


@pytest.mark.large
def test_it_runs_and_finds_its_run_complete_the_second_time(tmp_path):
    command = [sys.executable, SCRIPT, "--seeds", "1"]
    printed = [
        subprocess.run(
            [*command, "--epochs", "4", "--directory", "runs"],
            cwd=tmp_path,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
        for _ in range(2)
    ]
    assert printed[0] == printed[1]
    assert re.search(r"CBNN, restarts=3 +\d+\.\d\d ± 0.00 %", printed[0])
