"""Makes `format_1/` to `format_4/` anew: runs of older versions.

    python tests/runs/make_old_formats.py FORMAT [DIRECTORY]

It checks the last version that wrote the format out beside the repository's own
history, in a temporary worktree, and runs `training_of_old_formats.py` with it.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

# The last versions that wrote each, and what to train with them.
VERSIONS = {
    "1": ("3303cfd", "cbnn", "swa", "ssb-reconstruction"),
    "2": ("5a9e2eb", "cbnn"),
    "3": ("50af58a", "cbnn", "cbnn-trusted"),
    "4": ("143d91d", "cbnn-trusted", "cbnn-defaults"),
}
HERE = pathlib.Path(__file__).resolve().parent


def main(commit, methods, target):
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "--detach", str(tree), commit],
            cwd=HERE,
            check=True,
        )
        try:
            subprocess.run(
                [
                    *(sys.executable, HERE / "training_of_old_formats.py"),
                    *(target, *methods),
                ],
                env={**os.environ, "PYTHONPATH": str(tree)},
                check=True,
            )
        finally:
            subprocess.run(
                ["git", "worktree", "remove", "--force", str(tree)],
                cwd=HERE,
                check=True,
            )


if __name__ == "__main__":
    number, *directory = sys.argv[1:]
    commit, *methods = VERSIONS[number]
    default = HERE / f"format_{number}"
    main(commit, methods, pathlib.Path(*directory or [default]))
