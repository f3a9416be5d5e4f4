"""What the commands of `cbnn` can be told."""

import argparse
import pathlib
import re

# Arguments of `cbnn export` that only the page of a web export has.
PAGE_OPTIONS = (
    "runtime",
    "input",
    "title",
    "image_shape",
    "value_range",
    "invert",
    "margin",
    "pen",
    "crop",
)


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


def add_calibrate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=pathlib.Path,
        required=True,
        metavar="FILE",
        help="an .npz file with inputs `x` and labels `y` that were not "
        "trained on, a thousand samples or more",
    )
    parser.add_argument(
        "--coverage",
        type=float,
        metavar="SHARE",
        help="also find sets of classes that the label is in for this share of "
        "new samples, such as 0.9, for `cbnn export --outputs "
        "probabilities,set`",
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


def add_distil_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=pathlib.Path,
        required=True,
        metavar="FILE",
        help="an .npz file with the training inputs `x` and labels `y`",
    )
    parser.add_argument(
        "--to",
        type=pathlib.Path,
        required=True,
        metavar="DIRECTORY",
        help="where the network is kept: a run of one member, in a new "
        "directory or an empty one",
    )
    parser.add_argument(
        "--unlabelled",
        type=pathlib.Path,
        metavar="FILE",
        help="an .npz file with more inputs, which need no labels",
    )
    parser.add_argument(
        "--epochs",
        type=int,
        help="(default: as many as take twice the steps of the run)",
    )
    parser.add_argument(
        "--batch-size", type=int, help="(default: that of the run, or 32)"
    )
    parser.add_argument(
        "--learning-rate",
        type=float,
        help="of Adam, to begin with; it falls to zero (default: 0.001)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        help="above 1, classes that are not predicted count for more "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--alpha",
        type=float,
        default=0.0,
        help="the share of the labels in the loss (default: %(default)s)",
    )
    parser.add_argument(
        "--mixup",
        type=float,
        help="blends samples; 0 does not, which is faster and makes a worse "
        "student (default: 1, or 0 for texts)",
    )
    parser.add_argument("--seed", type=int, help="of weights and batches")


def add_export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=["saved_model", "onnx", "litert", "triton", "web"],
        default="saved_model",
        help="(default: %(default)s); triton is a model of its repository, web "
        "a directory with a page that classifies in the browser",
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
        help="of all but saved_model (default: %(default)s); int8 needs --data",
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
    add_page_options(parser)
    add_data_options(parser)


def add_page_options(parser: argparse.ArgumentParser) -> None:
    """Arguments that are called like a field of `PageOptions`."""
    page = parser.add_argument_group("the page of --format web")
    page.add_argument(
        "--runtime",
        type=pathlib.Path,
        metavar="DIRECTORY",
        help="files of onnxruntime-web (default: what `npm install "
        "onnxruntime-web` left in node_modules)",
    )
    page.add_argument(
        "--input",
        choices=["drawing", "image", "row"],
        help="what people give it (default: by the shape of the input)",
    )
    page.add_argument("--title", help="its heading")
    page.add_argument(
        "--image-shape",
        type=int,
        nargs=2,
        metavar=("HEIGHT", "WIDTH"),
        help="of images that the model takes as a row (default: a square)",
    )
    page.add_argument(
        "--value-range",
        type=float,
        nargs=2,
        metavar=("DARK", "BRIGHT"),
        help="what the darkest and the brightest pixel become (default: 0 1, "
        "and 0 255 for a model that takes integers)",
    )
    page.add_argument(
        "--invert",
        action=argparse.BooleanOptionalAction,
        help="dark becomes bright before that (default: for drawings)",
    )
    page.add_argument(
        "--margin",
        type=float,
        help="share that stays free at each side of a drawing (default: 0)",
    )
    page.add_argument("--pen", type=float, help="its width, as a share")
    page.add_argument(
        "--crop",
        action=argparse.BooleanOptionalAction,
        help="take the middle of an image instead of stretching it",
    )


def add_serving_options(parser: argparse.ArgumentParser) -> None:
    """Arguments that are called like a field of `ServingOptions`."""
    parser.add_argument(
        "--outputs",
        type=_names,
        help="a list, with commas, of probabilities, class, top_k, set, "
        "members, disagreement, members_used (default: probabilities)",
    )
    parser.add_argument(
        "--uncalibrated",
        dest="calibrated",
        action="store_false",
        help="leave out what `cbnn calibrate` found",
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
        "--cascade",
        type=_cascade,
        metavar="exact|0.95",
        help="ask members one after another, until the others cannot change "
        "the predicted class (exact), or until those so far give a class this "
        "much confidence (default: ask all)",
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


def _cascade(text: str) -> str | float:
    """`exact`, or a number."""
    try:
        return text if text == "exact" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither exact nor a confidence, such as 0.95"
        ) from None


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]
