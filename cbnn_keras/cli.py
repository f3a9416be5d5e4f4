"""The command `cbnn`: parse, call one function, print."""

import argparse
import contextlib
import io
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence

from cbnn_keras.version import __version__

_EXAMPLES = """examples:
  cbnn demo                      train a small ensemble on real digits
  cbnn inspect runs/demo         the members of a run and their votes
  cbnn inspect runs/demo --json  the same for machines
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path must not end a command because a terminal cannot show it.
            stream.reconfigure(errors="backslashreplace")
    parsed = _parser().parse_args(arguments)
    try:
        parsed.run(parsed)
    except (ImportError, OSError, ValueError) as error:
        print(f"cbnn: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("cbnn: interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cbnn",
        description="Checkpoint ensembles for Keras (CBNN).",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"cbnn-keras {__version__}"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo", help="train a small ensemble on handwritten digits"
    )
    demo.add_argument(
        "--directory",
        type=pathlib.Path,
        help="where the run is kept (default: runs/demo, or the next free "
        "runs/demo-2, ...)",
    )
    demo.add_argument(
        "--epochs", type=int, default=30, help="(default: %(default)s)"
    )
    demo.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of split, model and batches (default: %(default)s)",
    )
    demo.set_defaults(run=_demo)

    inspect = commands.add_parser(
        "inspect", help="show the members of a run and its settings"
    )
    inspect.add_argument(
        "directory",
        type=pathlib.Path,
        metavar="RUN",
        help="the directory of a run, as given to CBNNCallback",
    )
    inspect.add_argument(
        "--json", action="store_true", help="print JSON instead of a table"
    )
    inspect.set_defaults(run=_inspect)
    return parser


def _demo(parsed: argparse.Namespace) -> None:
    if parsed.epochs < 1:
        raise ValueError(f"--epochs {parsed.epochs}: at least 1.")
    with _quiet_start():
        import tensorflow as tf

        from cbnn_keras.demo import run_demo

        tf.config.list_logical_devices()  # starts the devices, which log too
    run_demo(
        parsed.directory or _free_directory(pathlib.Path("runs/demo")),
        epochs=parsed.epochs,
        seed=parsed.seed,
    )


def _inspect(parsed: argparse.Namespace) -> None:
    with _quiet_start():
        from cbnn_keras.inspection import inspect_run, print_run
    content = inspect_run(parsed.directory)
    if parsed.json:
        print(json.dumps(content, indent=1))
    else:
        print_run(content)


def _free_directory(wanted: pathlib.Path) -> pathlib.Path:
    names = (f"{wanted.name}-{number}" for number in itertools.count(2))
    candidates = itertools.chain([wanted], map(wanted.with_name, names))
    return next(path for path in candidates if not path.exists())


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """Hides what TensorFlow's libraries log while they are loaded.

    They write to the file descriptor before any setting of theirs is read.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
