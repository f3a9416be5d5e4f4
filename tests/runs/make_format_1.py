"""Makes `format_1/` anew: runs as the last version that wrote format 1 did.

    python tests/runs/make_format_1.py [DIRECTORY]

It checks that version out beside the repository's own history, in a temporary
worktree, and runs `training_of_format_1.py` with it.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

COMMIT = "3303cfd"  # the last one that wrote format 1
HERE = pathlib.Path(__file__).resolve().parent


def main(target):
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "--detach", str(tree), COMMIT],
            cwd=HERE,
            check=True,
        )
        try:
            subprocess.run(
                [sys.executable, HERE / "training_of_format_1.py", target],
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
    main(pathlib.Path(sys.argv[1] if sys.argv[1:] else HERE / "format_1"))
