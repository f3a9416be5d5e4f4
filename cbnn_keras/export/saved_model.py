"""An ensemble -> one SavedModel, as TensorFlow Serving wants it."""

import json
import os
import pathlib
from typing import Any

import tensorflow as tf

from cbnn_keras.ensemble import CheckpointEnsemble
from cbnn_keras.export import placing, tf_serving
from cbnn_keras.export.endpoints import (
    check_input_names,
    errors_of_the_system,
    holder,
)
from cbnn_keras.export.graph import ServingGraph, trace
from cbnn_keras.export.options import ServingOptions
from cbnn_keras.export.placing import Artefact
from cbnn_keras.export.runtimes import METADATA, SavedModelRuntime
from cbnn_keras.export.verify import (
    NUM_SAMPLES,
    TOLERANCES,
    Parity,
    compare,
)
from cbnn_keras.support.console import Reporter
from cbnn_keras.support.faults import RunError

# Ops that call back into the Python process that made the graph.
_PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


def export_saved_model(
    ensemble: CheckpointEnsemble,
    path: str | os.PathLike[str],
    *,
    serving_config: str | None = None,
    verbose: int = 1,
    **options: Any,
) -> Artefact:
    """Writes the ensemble as one SavedModel that is ready to be served.

    It has the endpoint `serving_default`, with the chosen outputs, and, unless
    it is a cascade, `members`, with the probabilities of each member, to watch
    how much they disagree. Requests to warm up a server are in it.

    Nothing is left at `path` unless the SavedModel, opened again, says the same
    as the Keras ensemble.

    Args:
        ensemble: What to export.
        path: The directory of the model, which gets the next version (1, 2,
            ...), or that of a version which is not there yet.
        serving_config: If given, `models.config` beside the model's directory
            lists all models there. The value is the directory as the server
            sees it: `"/models"` in TensorFlow Serving's container, or `""` for
            where it is here.
        verbose: 0 for no output.
        **options: The fields of `ServingOptions`.

    Returns:
        Where it is, how big, and how close to the Keras ensemble.

    Raises:
        ValueError: If the version is there already or inside a run, if the run
            is not finished, if an option does not fit, or if the SavedModel
            does not match the ensemble.
        OSError: If it cannot be written, as on a full disk.
    """
    serving_options = ServingOptions.from_keywords(options)
    serving_options = serving_options.named(ensemble.run.header.class_names)
    reporter = Reporter(verbose)
    destination = _destination(pathlib.Path(path).absolute())
    name, config = destination.parent.name, _config_of(destination)
    placing.check_allowed(ensemble, serving_options, destination)
    if serving_config is not None:
        placing.check_replaceable(config)
    with reporter.status("merging the members"):
        graph = ServingGraph(ensemble, serving_options)
    check_input_names(graph, "A SavedModel")
    with placing.written_aside(destination) as aside:
        unfinished = aside / "model"
        with reporter.status("writing the SavedModel"):
            _write(graph, unfinished, name)
        with reporter.status("comparing it with the Keras ensemble"):
            parity = _compare(unfinished, graph)
        texts = _texts(config, serving_config, name)
        with placing.prepared(texts) as put_in_place:
            placing.move_directory(unfinished, destination)
            put_in_place()
    artefact = Artefact(destination, placing.num_bytes(destination), parity)
    reporter.line(str(artefact))
    return artefact


def _destination(path: pathlib.Path) -> pathlib.Path:
    if not path.name.isdecimal():
        if os.path.lexists(path) and not path.is_dir():
            raise RunError(
                f"{path} is a file; a SavedModel is a directory of versions. "
                "Choose another name."
            )
        return placing.next_version(path)
    if os.path.lexists(path):
        raise RunError(
            f"{path} is there already, and versions are never replaced: a "
            f"server may be using it. Give {path.parent} to get the next one."
        )
    return path


def _config_of(destination: pathlib.Path) -> pathlib.Path:
    """`models.config` beside the directory of a version's model."""
    return destination.parent.parent / "models.config"


def _texts(
    config: pathlib.Path, base: str | None, name: str
) -> dict[pathlib.Path, str]:
    """The configuration of the server, where it is asked for."""
    if base is None:
        return {}
    text = tf_serving.models_config(config.parent, base, new_model=name)
    return {config: text}


def _write(graph: ServingGraph, directory: pathlib.Path, name: str) -> None:
    """Writes a SavedModel with metadata and warm-up requests.

    Args:
        graph: What to write.
        directory: Where to.
        name: The name that the model is served under.
    """
    others = _other_endpoints(graph)
    # One function for both endpoints, so that it is in the file once.
    function = graph.function({*graph.options.outputs, *others})
    run = trace(function, list(graph.input_specs.values()))
    _check_operations(graph, run.graph.as_graph_def())
    endpoints = {
        "serving_default": _endpoint(graph, run, graph.options.output_names),
        **{name: _endpoint(graph, run, [name]) for name in others},
    }
    module = holder(graph, endpoints.values())
    samples = graph.samples(NUM_SAMPLES)
    with errors_of_the_system():
        tf.saved_model.save(module, str(directory), signatures=endpoints)
        extra = directory / METADATA
        extra.parent.mkdir()
        text = json.dumps(graph.metadata(), indent=1) + "\n"
        extra.write_text(text, encoding="utf-8")
        tf_serving.write_warmup(
            extra.with_name("tf_serving_warmup_requests"),
            samples,
            model=name,
            endpoints=list(endpoints),
        )


def _other_endpoints(graph: ServingGraph) -> list[str]:
    """Endpoints that are called like their one output.

    A cascade does not compute the answers of all members.
    """
    return ["members"] if graph.options.cascade is None else []


def _compare(directory: pathlib.Path, graph: ServingGraph) -> Parity:
    """Compares all endpoints; gives the parity of the first."""
    tolerance = TOLERANCES["float32"]
    parity = compare(SavedModelRuntime(directory), graph, tolerance)
    for name in _other_endpoints(graph):
        runtime = SavedModelRuntime(directory, name)
        compare(runtime, graph, tolerance, outputs=[name])
    return parity


def _endpoint(graph: ServingGraph, run: Any, outputs: list[str]) -> Any:
    """Some outputs of a function, from inputs by name, traced."""
    names = list(graph.input_specs)

    def by_name(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        results = run(*(tensors[name] for name in names))
        return {name: results[name] for name in outputs}

    return tf.function(by_name, autograph=False).get_concrete_function(
        **graph.input_specs
    )


def _check_operations(
    graph: ServingGraph, definition: tf.compat.v1.GraphDef
) -> None:
    """Raises a `ValueError` if a graph needs this process to run."""
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes += function.node_def
    for node in nodes:
        if node.op in _PYTHON_OPS:
            raise ValueError(
                f"The layer {graph.layer_of(node.name)!r} calls Python code "
                f"(op {node.op}, from tf.numpy_function or tf.py_function), "
                "which no server can run. Write the layer with keras.ops or "
                "TensorFlow's functions. Nothing was written."
            )
