"""The command `cbnn`: parse, call one function, print."""

import argparse
import contextlib
import dataclasses
import io
import json
import os
import pathlib
import shlex
import sys
import webbrowser
from collections.abc import Iterator, Sequence

from cbnn_keras.commands import options
from cbnn_keras.support import extras
from cbnn_keras.support.aliases import Keywords
from cbnn_keras.support.faults import RunError
from cbnn_keras.version import __version__

_EXAMPLES = """examples:
  cbnn demo                      train a small ensemble on real digits
  cbnn inspect runs/demo         the members of a run and their votes
  cbnn inspect runs/demo --json  the same for machines
  cbnn watch runs/demo           the same while it is being trained
  cbnn report runs/demo --data runs/demo.train.npz runs/demo.test.npz
                                 what it learned, as a page for the browser
  cbnn calibrate runs/demo --data validation.npz --coverage 0.9
                                 probabilities that mean what they say
  cbnn distil runs/demo --data runs/demo.train.npz --to runs/student
                                 one network that says what all members say
  cbnn export runs/demo          one SavedModel of all members that vote
  cbnn export runs/demo --format onnx --output digits.onnx
  cbnn export runs/demo --format web --output site
                                 a page that classifies in the browser
  cbnn verify digits.onnx --run runs/demo
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code.

    2 for a file or a directory that is not what it should be, as for a wrong
    argument; 1 for other failures, such as an artefact that does not match.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path must not end a command because a terminal cannot show it.
            stream.reconfigure(errors="backslashreplace")
    parsed = _parser().parse_args(arguments)
    try:
        parsed.command(parsed)
    except (ImportError, OSError, ValueError) as error:
        from cbnn_keras.support.console import paragraph

        print(f"cbnn: {paragraph(error)}", file=sys.stderr)
        return 2 if isinstance(error, RunError) else 1
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
    options.add_demo_options(demo)
    demo.set_defaults(command=_demo)

    inspect = commands.add_parser(
        "inspect", help="show the members of a run and its settings"
    )
    options.add_run(inspect)
    inspect.add_argument(
        "--json", action="store_true", help="print JSON instead of a table"
    )
    options.add_max_bytes(inspect)
    inspect.set_defaults(command=_inspect)

    watch = commands.add_parser(
        "watch", help="follow a run that is being trained"
    )
    options.add_run(watch)
    options.add_max_bytes(watch)
    watch.set_defaults(command=_watch)

    report = commands.add_parser(
        "report", help="show what runs have learned, in the browser"
    )
    options.add_report_options(report)
    options.add_import(report)
    options.add_max_bytes(report)
    report.set_defaults(command=_report, error=report.error)

    calibrate = commands.add_parser(
        "calibrate", help="fit probabilities to data, and keep that in the run"
    )
    options.add_run(calibrate)
    options.add_calibrate_options(calibrate)
    options.add_import(calibrate)
    options.add_max_bytes(calibrate)
    calibrate.set_defaults(command=_calibrate)

    distil = commands.add_parser(
        "distil", help="teach one network what the ensemble says"
    )
    options.add_run(distil)
    options.add_distil_options(distil)
    options.add_import(distil)
    options.add_max_bytes(distil)
    distil.set_defaults(command=_distil)

    export = commands.add_parser(
        "export", help="write the ensemble as one artefact for serving"
    )
    options.add_run(export)
    options.add_export_options(export)
    options.add_import(export)
    options.add_max_bytes(export)
    export.set_defaults(command=_export, error=export.error)

    verify = commands.add_parser(
        "verify", help="compare an export with the run that it came from"
    )
    verify.add_argument("artefact", type=pathlib.Path, metavar="ARTEFACT")
    verify.add_argument(
        "--run", type=pathlib.Path, required=True, help="directory of the run"
    )
    options.add_data_options(verify)
    options.add_import(verify)
    options.add_max_bytes(verify)
    verify.set_defaults(command=_verify)
    return parser


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
    content = inspect_run(parsed.run, parsed.max_bytes)
    if parsed.json:
        print(json.dumps(content, indent=1))
    else:
        print_run(content)


def _watch(parsed: argparse.Namespace) -> None:
    with _quiet_start():
        from cbnn_keras.commands.watch import watch_run
    watch_run(parsed.run, parsed.max_bytes)


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
        modules=parsed.modules,
        max_bytes=parsed.max_bytes,
    )
    is_open = parsed.open and webbrowser.open(parsed.output.resolve().as_uri())
    advice = "" if is_open else " Open it in a browser."
    _print(f"The report is in {parsed.output}.{advice}")
    if parsed.suspects is not None:
        _print(f"Suspicious labels are in {parsed.suspects}.")


def _calibrate(parsed: argparse.Namespace) -> None:
    with _quiet_start():
        from cbnn_keras.commands.calibrate import calibrate_run

        _start_devices()
    record = calibrate_run(
        parsed.run,
        data=parsed.data,
        coverage=parsed.coverage,
        modules=parsed.modules,
        max_bytes=parsed.max_bytes,
    )
    _print(f"It is kept in {parsed.run}, for predictions and exports.")
    if record.threshold is not None:
        command = ["cbnn", "export", str(parsed.run), "--outputs"]
        _print(
            f"Sets of coverage {record.coverage:g} have the classes of a "
            f"probability of {record.threshold:.4f} at least: "
            + shlex.join([*command, "probabilities,set"])
        )


def _distil(parsed: argparse.Namespace) -> None:
    with _quiet_start():
        from cbnn_keras.commands.distil import distil_run

        _start_devices()
    student = distil_run(
        parsed.run,
        parsed.to,
        data=parsed.data,
        unlabelled=parsed.unlabelled,
        learning_rate=parsed.learning_rate,
        modules=parsed.modules,
        max_bytes=parsed.max_bytes,
        epochs=parsed.epochs,
        batch_size=parsed.batch_size,
        temperature=parsed.temperature,
        alpha=parsed.alpha,
        mixup=parsed.mixup,
        seed=parsed.seed,
    )
    [record] = student.rounds
    _print(
        f"One network of {student.run.header.num_parameters:,} parameters is "
        f"in {parsed.to}; it gets {record.error:.2%} of the training data "
        "wrong."
    )
    print("\nNext:")
    _print(f"  {shlex.join(['cbnn', 'export', str(parsed.to)])}")


def _export(parsed: argparse.Namespace) -> None:
    if parsed.format == "saved_model" and parsed.precision != "float32":
        parsed.error("--precision is not for --format saved_model")
    if parsed.format != "saved_model" and parsed.serving_config is not None:
        parsed.error("--serving-config is for --format saved_model")
    if parsed.precision == "int8" and parsed.data is None:
        parsed.error("--precision int8 needs --data FILE to calibrate with")
    page = _page_options(parsed)
    if parsed.format != "web" and page:
        name = next(iter(page)).replace("_", "-")
        parsed.error(f"--{name} is for --format web")
    if parsed.format == "web" and parsed.outputs is not None:
        parsed.error("--outputs is not for --format web: a page chooses them")
    _choose_tensorflow()
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
        modules=parsed.modules,
        max_bytes=parsed.max_bytes,
        page=page,
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
        modules=parsed.modules,
    ):
        _print(f"  {command}")


def _verify(parsed: argparse.Namespace) -> None:
    _choose_tensorflow()
    with _quiet_start():
        from cbnn_keras.commands.export import verify_run

        _start_devices()
    verify_run(
        parsed.artefact,
        parsed.run,
        data=parsed.data,
        modules=parsed.modules,
        max_bytes=parsed.max_bytes,
        **_serving_options(parsed),
    )


def _serving_options(parsed: argparse.Namespace) -> Keywords:
    """The arguments that are called like a field of `ServingOptions`."""
    from cbnn_keras.export import ServingOptions

    fields = {field.name for field in dataclasses.fields(ServingOptions)}
    given = {k: value for k, value in vars(parsed).items() if k in fields}
    if given.get("outputs", ()) is None:
        del given["outputs"]
    return given


def _page_options(parsed: argparse.Namespace) -> Keywords:
    """What was said of the page of a web export."""
    return {
        name: value
        for name in options.PAGE_OPTIONS
        if (value := getattr(parsed, name)) is not None
    }


def _print(text: str) -> None:
    from cbnn_keras.support.console import printable

    print(printable(text))


def _choose_tensorflow() -> None:
    """Has Keras compute with TensorFlow, whose graphs exports are."""
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "tensorflow"


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
    with extras.silenced():
        yield
