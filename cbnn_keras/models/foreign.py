"""Models from files that someone else may have made.

A `.keras` file is judged here before Keras sees it, and in the same way with
every version of Keras: the zip file (`keras_archive`), the text of the
architecture (`architecture_config`), and, while the model is built, how much
memory its weights ask for. Keras' own safe mode is on as well.
"""

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from cbnn_keras.models import (
    architecture_config,
    engine,
    keras_archive,
    keras_internals,
)
from cbnn_keras.models.revival import quiet_builds, revivable
from cbnn_keras.support.aliases import Json
from cbnn_keras.support.faults import RunError, faults_named, shortened
from cbnn_keras.support.files import MAX_BYTES, open_regular

_ADVICE = (
    "Use a file whose maker you know, or pass a model that you built in Python."
)


class RebuildError(RunError):
    """A file that Keras cannot make a model of here, though it may elsewhere.

    Either classes of its maker are not known, or another version of Keras
    wrote it.
    """


@dataclasses.dataclass(frozen=True)
class Foreign:
    """How models are read that someone else may have made.

    Attributes:
        custom_objects: Classes and functions of the user that a file may name,
            beside those of Keras and those that are registered with
            `@keras.saving.register_keras_serializable()`.
        max_bytes: How much memory a model may take: what is in the file, its
            weights, and each of its tensors for one sample.
    """

    custom_objects: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_bytes: int = MAX_BYTES

    def load(self, path: pathlib.Path) -> keras.Model:
        """Reads a `.keras` file, uncompiled.

        Raises:
            RebuildError: If it needs classes that are not known here.
            RunError: If anything is wrong with the file.
        """
        try:
            with faults_named(path, _ADVICE):
                text = self._judged_text(path)
        except RunError as error:
            unknown = error.__cause__
            if isinstance(unknown, architecture_config.UnknownClassesError):
                raise _asking_for(path, unknown.names) from None
            raise
        budget = _Budget(self.max_bytes)
        if architecture_config.allocates_while_built(_config(text)):
            # Once without values, to be thrown away.
            config, trial = _config(text), engine.in_use().without_memory
            trial(
                lambda: self._built(path, budget, lambda: self._rebuilt(config))
            )
            budget = _Budget(self.max_bytes)
        return self._built(path, budget, lambda: self._loaded(path))

    def _judged_text(self, path: pathlib.Path) -> bytes:
        with open_regular(path) as file:
            text = keras_archive.read_config(file, self.max_bytes)
        config = architecture_config.parse(text)
        architecture_config.check(config, self.custom_objects, self.max_bytes)
        return text

    def _built(
        self,
        path: pathlib.Path,
        budget: "_Budget",
        build: Callable[[], keras.Model],
    ) -> keras.Model:
        """A model whose weights and tensors were judged as it was built."""
        too_large = RunError(
            f"{path} describes a model that asks for more than "
            f"{self.max_bytes:,} bytes of memory. If you know who made it, "
            "load it with a higher limit, max_bytes."
        )
        try:
            watched = engine.in_use().watched_variables(budget.add)
            with watched, quiet_builds():
                model = build()
            if not isinstance(model, keras.Model):
                raise TypeError(f"it describes a {type(model).__name__}")
            budget.check_tensors(model)
        except Exception as error:
            # Keras hides errors of layers in errors of its own.
            if budget.is_exceeded:
                raise too_large from None
            raise RebuildError(
                f"Keras cannot make a model of {path} ({_reason(error)}). "
                "Perhaps another version of Keras wrote it."
            ) from error
        if budget.is_exceeded:
            raise too_large
        return model

    def _rebuilt(self, config: Json) -> keras.Model:
        return keras.saving.deserialize_keras_object(
            config, revivable(self.custom_objects), safe_mode=True
        )

    def _loaded(self, path: pathlib.Path) -> keras.Model:
        return keras.saving.load_model(
            str(path),
            revivable(self.custom_objects),
            compile=False,
            safe_mode=True,
        )


@contextlib.contextmanager
def faults_of_model(path: pathlib.Path, model: keras.Model) -> Iterator[None]:
    """Names the file of a model that cannot compute, whatever it raises.

    A layer may be built of settings that only fail when it is called. Errors
    for other reasons, such as inputs that do not fit, stay as they are.
    """
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        if can_compute(model):
            raise
        raise RunError(
            f"{path} describes a model that cannot compute ({_reason(error)}). "
            f"{_ADVICE}"
        ) from error


def can_compute(model: keras.Model, inputs: Any = None) -> bool:
    """Whether a model gives an output, in a graph as in `predict`.

    Args:
        model: What is called. One that does not say its inputs is believed.
        inputs: What with, by default zeros.
    """
    if inputs is None:
        inputs = keras_internals.symbolic_inputs(model)
        if inputs is None:
            return True
        inputs = keras.tree.map_structure(_zeros, inputs)
    try:
        engine.in_use().inference(model, lambda outputs: outputs)([(inputs,)])
    except Exception:  # of layers that someone else chose
        return False
    return True


def _zeros(tensor: Any) -> Any:
    shape = [length or 1 for length in tensor.shape]
    if tensor.dtype == "string":
        return tf.zeros(shape, tf.string)
    return keras.ops.zeros(shape, tensor.dtype)


class _TooLargeError(Exception):
    """More than the limit was asked for; no memory was taken for it."""


class _Budget:
    """Adds up what weights take, and refuses the one that is too much."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self.is_exceeded = False

    def add(self, shape: tuple[int, ...], dtype: Any) -> None:
        """Adds a variable that is about to be made."""
        self._bytes += math.prod(shape) * _item_bytes(dtype)
        self._check(self._bytes)

    def check_tensors(self, model: keras.Model) -> None:
        """Judges what the layers of a model give for one sample."""
        for part in keras_internals.layers_within(model):
            graph = keras_internals.functional_graph(part)
            if not keras_internals.is_plain_graph(graph):
                continue
            for node in keras_internals.nodes_of(graph):
                for tensor in node.output_tensors:
                    size = math.prod(length or 1 for length in tensor.shape)
                    self._check(size * _item_bytes(tensor.dtype))

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            self.is_exceeded = True
            raise _TooLargeError(f"{num_bytes:,} bytes")


def _item_bytes(dtype: Any) -> int:
    return tf.as_dtype(dtype).size or 8  # texts have no size


def _reason(error: Exception) -> str:
    # Keras quotes the whole architecture in front of what was wrong.
    _, _, reason = str(error).rpartition("Exception encountered: ")
    return shortened(Exception(reason) if reason else error)


def _config(text: bytes) -> Json:
    # Keras alters what it rebuilds a model from.
    config = architecture_config.parse(text)
    config["compile_config"] = None
    return config


def _asking_for(path: pathlib.Path, names: list[str]) -> RebuildError:
    listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    example = names[0].rpartition(".")[2].rpartition(">")[2]
    return RebuildError(
        f"{path} names classes or functions that are not known here: {listed}. "
        f"Open them by name, custom_objects={{{example!r}: {example}}}, or on "
        "the command line by the module that defines them, --import my_module."
    )
