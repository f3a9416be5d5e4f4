"""The command `cbnn`: parse, call one function, print."""

import argparse
import contextlib
import dataclasses
import io
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from cbnn_keras.version import __version__

_EXAMPLES = """examples:
  cbnn demo                      train a small ensemble on real digits
  cbnn inspect runs/demo         the members of a run and their votes
  cbnn inspect runs/demo --json  the same for machines
  cbnn report runs/demo --data runs/demo.train.npz runs/demo.test.npz
                                 what it learned, as a page for the browser
  cbnn export runs/demo          one SavedModel of all members
  cbnn export runs/demo --format onnx --output digits.onnx
  cbnn verify digits.onnx --run runs/demo
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path must not end a command because a terminal cannot show it.
            stream.reconfigure(errors="backslashreplace")
    parsed = _parser().parse_args(arguments)
    try:
        parsed.command(parsed)
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
    _add_demo_options(demo)
    demo.set_defaults(command=_demo)

    inspect = commands.add_parser(
        "inspect", help="show the members of a run and its settings"
    )
    _add_run(inspect)
    inspect.add_argument(
        "--json", action="store_true", help="print JSON instead of a table"
    )
    inspect.set_defaults(command=_inspect)

    report = commands.add_parser(
        "report", help="show what runs have learned, in the browser"
    )
    _add_report_options(report)
    report.set_defaults(command=_report, error=report.error)

    export = commands.add_parser(
        "export", help="write the ensemble as one artefact for serving"
    )
    _add_run(export)
    _add_export_options(export)
    export.set_defaults(command=_export, error=export.error)

    verify = commands.add_parser(
        "verify", help="compare an export with the run that it came from"
    )
    verify.add_argument("artefact", type=pathlib.Path, metavar="ARTEFACT")
    verify.add_argument(
        "--run", type=pathlib.Path, required=True, help="directory of the run"
    )
    _add_data_options(verify)
    verify.set_defaults(command=_verify)
    return parser


def _add_demo_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory",
        type=pathlib.Path,
        help="where the run is kept, with its data beside it (default: "
        "runs/demo, or the next free runs/demo-2, ...)",
    )
    parser.add_argument(
        "--epochs", type=int, default=30, help="(default: %(default)s)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of split, model and batches (default: %(default)s)",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        type=pathlib.Path,
        metavar="RUN",
        help="the directory of a run, as given to CBNNCallback",
    )


def _add_report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        type=pathlib.Path,
        nargs="*",
        metavar="RUN",
        help="directories of runs of any method; several are shown side by "
        "side",
    )
    parser.add_argument(
        "--data",
        type=pathlib.Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help=".npz files with inputs `x` and labels `y`: data that were not "
        "trained on (one file at most), the training data in their order, or "
        "both; which is which is found out",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("report.html"),
        help="the page; a file that is there is replaced (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--suspects",
        type=pathlib.Path,
        metavar="FILE",
        help="also write how likely each label is wrong, as CSV in the form "
        "that cleanlab reads; of the training data if they are given",
    )
    parser.add_argument(
        "--class-names",
        type=pathlib.Path,
        metavar="FILE",
        help="a text file with the name of a class in each line",
    )
    parser.add_argument(
        "--loss-plane",
        action="store_true",
        help="also draw the loss around three members (figure 1 of the "
        "paper); takes minutes and needs the training data",
    )


def _add_export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=["saved_model", "onnx", "triton"],
        default="saved_model",
        help="(default: %(default)s); triton is a model of its repository",
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        help="where to (default: exports/ and the run's name); a SavedModel "
        "and a Triton model get the next version number in that directory",
    )
    parser.add_argument(
        "--members",
        type=int,
        metavar="N",
        help="at most so many, at equal intervals, the final model among them "
        "(default: all)",
    )
    parser.add_argument(
        "--precision",
        choices=["float32", "float16", "int8"],
        default="float32",
        help="of onnx and triton (default: %(default)s); int8 needs --data",
    )
    parser.add_argument(
        "--serving-config",
        nargs="?",
        const="",
        metavar="DIRECTORY",
        help="also write models.config for TensorFlow Serving; DIRECTORY is "
        "where the server sees the models (/models in its container)",
    )
    _add_serving_options(parser)
    _add_data_options(parser)


def _add_serving_options(parser: argparse.ArgumentParser) -> None:
    """Arguments that are called like a field of `ServingOptions`."""
    parser.add_argument(
        "--outputs",
        type=_names,
        default="probabilities",
        help="a list, with commas, of probabilities, class, top_k, members, "
        "disagreement (default: %(default)s)",
    )
    parser.add_argument(
        "--top-k", type=int, default=5, help="(default: %(default)s)"
    )
    parser.add_argument(
        "--voting",
        choices=["soft", "hard"],
        default="soft",
        help="(default: %(default)s)",
    )
    parser.add_argument(
        "--priors",
        type=pathlib.Path,
        metavar="FILE",
        help="divide probabilities by the shares that classes had in training: "
        "an .npy file, or a text file with one in each line",
    )
    parser.add_argument(
        "--class-names",
        type=pathlib.Path,
        metavar="FILE",
        help="a text file with the name of a class in each line",
    )


def _add_data_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=pathlib.Path,
        metavar="FILE",
        help="an .npz file with real inputs as `x`, or one array for each "
        "input, to verify with and to calibrate int8 (default: made up)",
    )
    parser.add_argument(
        "--preprocess",
        type=pathlib.Path,
        metavar="FILE",
        help="a .keras file with layers that are put in front of the model",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        help="largest difference in any probability (default: 1e-5 in float32)",
    )


def _demo(parsed: argparse.Namespace) -> None:
    if parsed.epochs < 1:
        raise ValueError(
            f"--epochs must be at least 1; received {parsed.epochs}."
        )
    with _quiet_start():
        from cbnn_keras.commands.demo import run_demo

        _start_devices()
    run_demo(parsed.directory, epochs=parsed.epochs, seed=parsed.seed)


def _inspect(parsed: argparse.Namespace) -> None:
    with _quiet_start():
        from cbnn_keras.commands.inspect import inspect_run, print_run
    content = inspect_run(parsed.run)
    if parsed.json:
        print(json.dumps(content, indent=1))
    else:
        print_run(content)


def _report(parsed: argparse.Namespace) -> None:
    # `--data FILE RUN` takes the run for one more file.
    parsed.runs += [path for path in parsed.data if path.is_dir()]
    parsed.data = [path for path in parsed.data if not path.is_dir()]
    if not parsed.runs:
        parsed.error("the following arguments are required: RUN")
    if parsed.suspects is not None and (
        len(parsed.runs) > 1 or not parsed.data
    ):
        parsed.error("--suspects is for one RUN and needs --data FILE")
    if parsed.loss_plane and not parsed.data:
        parsed.error("--loss-plane needs --data FILE with the training data")
    with _quiet_start():
        from cbnn_keras.commands.report import report_files

        _start_devices()
    report_files(
        parsed.runs,
        parsed.output,
        data=parsed.data,
        class_names=parsed.class_names,
        suspects=parsed.suspects,
        with_loss_plane=parsed.loss_plane,
    )
    print(f"The report is in {parsed.output}. Open it in a browser.")
    if parsed.suspects is not None:
        print(f"Suspicious labels are in {parsed.suspects}.")


def _export(parsed: argparse.Namespace) -> None:
    if parsed.format == "saved_model" and parsed.precision != "float32":
        parsed.error("--precision is for --format onnx and triton")
    if parsed.format != "saved_model" and parsed.serving_config is not None:
        parsed.error("--serving-config is for --format saved_model")
    if parsed.precision == "int8" and parsed.data is None:
        parsed.error("--precision int8 needs --data FILE to calibrate with")
    with _quiet_start():
        from cbnn_keras.commands.export import export_run, next_commands

        _start_devices()
    artefact = export_run(
        parsed.run,
        format=parsed.format,
        output=parsed.output,
        num_members=parsed.members,
        precision=parsed.precision,
        serving_config=parsed.serving_config,
        data=parsed.data,
        **_serving_options(parsed),
    )
    print("\nNext:")
    for command in next_commands(
        parsed.format,
        artefact.path,
        parsed.run,
        preprocess=parsed.preprocess,
        data=parsed.data,
        tolerance=parsed.tolerance,
    ):
        print(f"  {command}")


def _verify(parsed: argparse.Namespace) -> None:
    with _quiet_start():
        from cbnn_keras.commands.export import verify_run

        _start_devices()
    verify_run(
        parsed.artefact,
        parsed.run,
        data=parsed.data,
        **_serving_options(parsed),
    )


def _serving_options(parsed: argparse.Namespace) -> dict[str, Any]:
    """The arguments that are called like a field of `ServingOptions`."""
    from cbnn_keras.export import ServingOptions

    fields = {field.name for field in dataclasses.fields(ServingOptions)}
    return {k: value for k, value in vars(parsed).items() if k in fields}


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _start_devices() -> None:
    """Starts TensorFlow's devices now, since they log when they start."""
    import tensorflow as tf

    tf.config.list_logical_devices()


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
