"""An ensemble -> a directory that any web server can serve."""

import dataclasses
import difflib
import os
import pathlib
import re
import shutil
from typing import Any

from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.export import onnx_files, placing, web_page
from cbnn_keras.export.metadata import metadata_from_texts
from cbnn_keras.export.onnx import write_onnx
from cbnn_keras.export.options import ServingOptions
from cbnn_keras.export.placing import Artefact
from cbnn_keras.export.web_options import PageOptions
from cbnn_keras.support import extras
from cbnn_keras.support.aliases import Json, Keywords
from cbnn_keras.support.console import Reporter
from cbnn_keras.support.faults import RunError
from cbnn_keras.support.files import fingerprint, write_new

RUNTIME = "node_modules/onnxruntime-web/dist"  # where npm puts it
# The build for the CPU alone, with all of its script in one file.
_SCRIPT = "ort.wasm.bundle.min.mjs"
_WASM = "ort-wasm-simd-threaded.wasm"
_OUTPUTS = ["probabilities", "members", "disagreement"]
_INVITATIONS = {
    "drawing": "Draw something.",
    "image": "Choose an image.",
    "row": "Type a row of numbers.",
}
# Files with a hash in their names: those of a page never change under it.
_OURS = re.compile(r"(model|ort)-[0-9a-f]{12}\.(onnx|js|wasm)")


def export_web(
    ensemble: CheckpointEnsemble,
    path: str | os.PathLike[str],
    *,
    runtime: str | os.PathLike[str] = RUNTIME,
    precision: str = "float32",
    calibration_data: Any = None,
    verbose: int = 1,
    **options: Any,
) -> Artefact:
    """Writes a page that classifies in the browser, with all that it needs.

        site/index.html        the page: draw, choose an image, or type a row
        site/model-....onnx    what `export_onnx` writes
        site/ort-....js        onnxruntime-web, from npm
        site/ort-....wasm

    The page shows probabilities and what each member says. It asks nothing of
    other hosts, needs no build step, and computes in one thread, so that any
    server of files will do: `python -m http.server --bind 127.0.0.1`.

    The model is compared with the Keras ensemble, in ONNX Runtime, before
    anything is put in place. A page that an export wrote is replaced; files of
    others are left alone.

    Args:
        ensemble: What to export; its model has one input of numbers.
        path: The directory.
        runtime: Where the files of onnxruntime-web are, after
            `npm install onnxruntime-web`.
        precision: What to compute in, see `export_onnx`.
        calibration_data: Real inputs for `"int8"`, see `export_onnx`.
        verbose: 0 for no output.
        **options: The fields of `PageOptions` and, but for `outputs` and
            `cascade`, of `ServingOptions`.

    Returns:
        The directory, its size, and how close the model is to the Keras
        ensemble.

    Raises:
        ImportError, ValueError, OSError: As `export_onnx`; also if the files of
            onnxruntime-web are not there, or if no page can give the model its
            input.
    """
    page, serving_options = _options(options)
    serving_options = serving_options.named(ensemble.run.header.class_names)
    reporter = Reporter(verbose)
    index = pathlib.Path(path).absolute() / "index.html"
    placing.check_allowed(ensemble, serving_options, index)
    placing.check_replaceable(index, web_page.MARK)
    sources = _runtime_files(pathlib.Path(runtime))
    with placing.written_aside(index) as aside:
        model = aside / "model.onnx"
        parity = write_onnx(
            ensemble,
            model,
            reporter,
            serving_options,
            precision=precision,
            calibration_data=calibration_data,
        )
        config = _config(model, page)
        for name, source in sources.items():
            shutil.copyfile(source, aside / name)
        names = {p.name: _hashed(p) for p in sorted(aside.iterdir())}
        config["model"] = names["model.onnx"]
        config["runtime"] = {
            "script": names["ort.js"],
            "wasm": names["ort.wasm"],
        }
        write_new(
            aside / index.name, web_page.page_text(page.title, config).encode()
        )
        _put_in_place(aside, names, index)
    size = sum(
        placing.num_bytes(index.with_name(name))
        for name in (*names.values(), index.name)
    )
    artefact = Artefact(index.parent, size, parity)
    reporter.line(str(artefact))
    return artefact


def _options(given: Keywords) -> tuple[PageOptions, ServingOptions]:
    if "outputs" in given:
        raise TypeError(
            "export_web has no option 'outputs': a page needs "
            f"{', '.join(_OUTPUTS)}."
        )
    if given.get("cascade") is not None:
        raise ValueError(
            "cascade is not for a page, which shows what every member says. "
            "Leave it out, or export an ONNX file."
        )
    known = {field.name for field in dataclasses.fields(PageOptions)}
    _check_known(given, known)
    page = {name: v for name, v in given.items() if name in known}
    rest = {name: v for name, v in given.items() if name not in known}
    return (
        PageOptions(**page),
        ServingOptions.from_keywords({**rest, "outputs": _OUTPUTS}),
    )


def _check_known(given: Keywords, of_page: set[str]) -> None:
    """Raises a `TypeError` for what is neither of the page nor of a graph."""
    of_graph = {field.name for field in dataclasses.fields(ServingOptions)}
    known = sorted(of_page | of_graph - {"outputs", "cascade"})
    for name in given.keys() - {*known, "cascade"}:
        close = difflib.get_close_matches(name, known, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise TypeError(
            f"export_web has no option {name!r}.{hint} The options are "
            f"{', '.join(known)}; see PageOptions and ServingOptions."
        )


def _runtime_files(directory: pathlib.Path) -> dict[str, pathlib.Path]:
    """The files of onnxruntime-web, by the kind of name they get."""
    found = {"ort.js": directory / _SCRIPT, "ort.wasm": directory / _WASM}
    for path in found.values():
        if not path.is_file():
            raise RunError(
                f"{path} is missing. Get it with `npm install onnxruntime-web` "
                f"and give the directory as runtime={RUNTIME!r} (--runtime)."
            )
    return found


def _config(model: pathlib.Path, page: PageOptions) -> Json:
    """What the page has to know, read off the ONNX file."""
    if onnx_files.data_files(model):
        raise ValueError(
            "A page can load models up to 2 GB. Export fewer members "
            "(`ensemble.select`)."
        )
    onnx = extras.need("onnx", "onnx")
    proto = onnx.load_model(str(model))
    if len(proto.graph.input) != 1:
        names = ", ".join(value.name for value in proto.graph.input)
        raise ValueError(
            f"A page gives a model one input, but this one takes {names}. Put "
            "a layer in front that makes them of one: preprocess=."
        )
    [value] = proto.graph.input
    kind = value.type.tensor_type
    sizes = [d.dim_value or None for d in kind.shape.dim[1:]]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    fitted = page.fitted_to(sizes, dtype)
    metadata = metadata_from_texts(
        {entry.key: entry.value for entry in proto.metadata_props}
    )
    votes = metadata["votes"]
    classes = metadata["labels"] or range(metadata["num_classes"])
    return fitted | {
        "input": {"name": value.name, "type": dtype, "shape": [1, *sizes]},
        "classes": [str(name) for name in classes],
        "members": [
            {"step": step, "share": vote / sum(votes)}
            for step, vote in zip(metadata["members"], votes, strict=True)
        ],
        "invitation": _INVITATIONS[fitted["kind"]],
    }


def _hashed(path: pathlib.Path) -> str:
    """A name of its own for each content."""
    return f"{path.stem}-{fingerprint(path).sha256[:12]}{path.suffix}"


def _put_in_place(
    aside: pathlib.Path, names: dict[str, str], index: pathlib.Path
) -> None:
    """Moves the files, the page last: at every moment there is a whole one."""
    was_ours = index.exists()
    for name, final in names.items():
        os.replace(aside / name, index.with_name(final))
    os.replace(aside / index.name, index)
    for path in index.parent.iterdir() if was_ours else ():
        is_old = _OURS.fullmatch(path.name) and path.name not in names.values()
        if is_old and path.is_file() and not path.is_symlink():
            path.unlink()
