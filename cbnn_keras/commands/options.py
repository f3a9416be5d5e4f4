"""What the commands of `cbnn` can be told."""

import argparse
import pathlib
import re


def add_demo_options(parser: argparse.ArgumentParser) -> None:
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


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        type=pathlib.Path,
        metavar="RUN",
        help="the directory of a run, as given to CBNNCallback",
    )


def add_max_bytes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-bytes",
        type=_bytes,
        default="4G",
        metavar="N",
        help="what a run, an artefact or a data file may take in memory; K, M "
        "and G stand for powers of 1024 (default: %(default)s)",
    )


def add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module of yours, looked for in the working directory first, "
        "that defines the layers and functions of the model; it is imported, "
        "so its code runs; may be given several times",
    )


def add_report_options(parser: argparse.ArgumentParser) -> None:
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
        "--open",
        action="store_true",
        help="open the page in the browser when it is there",
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


def add_export_options(parser: argparse.ArgumentParser) -> None:
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
        "(default: all that vote)",
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
    parser.add_argument(
        "--allow-unfinished",
        action="store_true",
        help="export the members so far of a run that is not finished",
    )
    add_serving_options(parser)
    add_data_options(parser)


def add_serving_options(parser: argparse.ArgumentParser) -> None:
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


def add_data_options(parser: argparse.ArgumentParser) -> None:
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


def _bytes(text: str) -> int:
    """A number of bytes, such as `4G`."""
    found = re.fullmatch(r"(\d{1,15})([KMG]?)(i?B)?", text.strip(), re.I)
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of bytes, such as 500M or 8G"
        )
    return int(found[1]) * 1024 ** " KMG".index(found[2].upper() or " ")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]
