"""What the README tells people to type works."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.mark.large
def test_python_blocks_run_in_order(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 7
    (tmp_path / "readme.py").write_text("\n".join(blocks))
    subprocess.run(
        [sys.executable, "readme.py"],
        cwd=tmp_path,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    assert (tmp_path / "runs/digits/manifest.json").is_file()
    assert (tmp_path / "ensemble.keras").is_file()


@pytest.mark.parametrize("name", ["demo", "test"])
def test_both_commands_are_where_ci_looks_for_them(name):
    """`.ci/run` takes the line after the marker and the fence."""
    after = README.split(f"<!-- {name} command -->\n```bash\n")
    assert len(after) == 2
    command = after[1].splitlines()[0]
    assert command.startswith("python3 -m venv .venv && ")


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.large
def test_the_example_runs_and_goes_on_where_it_was(tmp_path):
    command = [sys.executable, ROOT / "examples/digits.py", "--seeds", "1"]
    printed = [
        subprocess.run(
            [*command, "--epochs", "4", "--directory", "runs"],
            cwd=tmp_path,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
        for _ in range(2)  # the second finds the run complete
    ]
    assert printed[0] == printed[1]
    assert re.search(r"CBNN, selected +\d+\.\d\d ± 0.00 %", printed[0])
