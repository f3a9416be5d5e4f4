"""A model without its training: architecture, weights, copies.

Keras saves a compiled model together with its loss, metrics and optimizer,
which makes a file three times the size with Adam, and one that only opens
where the user's code is at hand. Here the model alone is saved.
"""

import contextlib
import hashlib
import io
import json
import pathlib
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from cbnn_keras.models import keras_internals, live_objects
from cbnn_keras.models.foreign import Foreign
from cbnn_keras.models.revival import quiet_builds, revivable
from cbnn_keras.models.state import process_generators_kept
from cbnn_keras.support import files
from cbnn_keras.support.aliases import Json, NamedObjects
from cbnn_keras.support.faults import RunError, shortened
from cbnn_keras.support.files import Fingerprint


def save_weights(model: keras.Model, path: pathlib.Path) -> Fingerprint:
    """Writes the weights without those of the optimizer, onto the disk."""
    return files.write_new(path, weights_bytes(model))


def weights_bytes(model: keras.Model) -> memoryview:
    """The content of a `.weights.h5` file, without the optimizer's weights.

    Made in memory: HDF5 takes the process down when a disk is full.
    """
    buffer = keras_internals.NamedBuffer("member.weights.h5")
    with _without_training(model):
        keras.saving.save_weights(model, buffer)
    return buffer.getbuffer()


def load_weights(model: keras.Model, path: pathlib.Path) -> None:
    """Reads what `save_weights` wrote; an optimizer is left alone.

    Raises:
        ValueError: If the file does not have all weights of the model.
    """
    with _without_training(model), warnings.catch_warnings():
        # Keras leaves layers in lists of lists as they are, with a warning.
        warnings.filterwarnings("error", "Skipping nested container")
        try:
            keras.saving.load_weights(model, str(path))
        except UserWarning as warning:
            raise ValueError(str(warning)) from None


def save_architecture(model: keras.Model, path: pathlib.Path) -> None:
    """Writes the file of `architecture_bytes`, onto the disk."""
    files.write_new(path, architecture_bytes(model))


def architecture_bytes(model: keras.Model) -> memoryview:
    """The content of an ordinary `.keras` file of the uncompiled model.

    Vocabularies and other assets are in it, and nothing that depends on the
    time or the process: the same model gives the same bytes.

    Raises:
        NotImplementedError, TypeError or ValueError: If Keras cannot describe
            the model, as is the case with many subclassed ones.
    """
    return _architecture_bytes(model, _without_addresses)


def _save_architecture(
    model: keras.Model,
    path: pathlib.Path,
    edit_config: Callable[[bytes], bytes],
) -> None:
    path.write_bytes(_architecture_bytes(model, edit_config))


def _architecture_bytes(
    model: keras.Model, edit_config: Callable[[bytes], bytes]
) -> memoryview:
    plain, edited = keras_internals.NamedBuffer("model.keras"), io.BytesIO()
    try:
        with _without_training(model):
            keras.saving.save_model(model, plain)
    except OSError as error:
        raise OSError(
            f"Keras could not describe the model ({error}). It needs room in "
            "the system's directory for temporary files: make some, or set "
            "TMPDIR to another directory"
        ) from error
    with (
        zipfile.ZipFile(plain) as source,
        zipfile.ZipFile(edited, "w") as target,
    ):
        for name in source.namelist():
            entry = zipfile.ZipInfo(name)  # dated 1980, not now
            with (
                source.open(name) as reader,
                target.open(entry, "w", force_zip64=True) as writer,
            ):
                if name == "metadata.json":
                    writer.write(_without_date(reader.read()))
                elif name == "config.json":
                    writer.write(edit_config(reader.read()))
                else:
                    shutil.copyfileobj(reader, writer, 2**20)
    return edited.getbuffer()


def load_architecture(
    path: pathlib.Path, foreign: Foreign | None = None
) -> keras.Model:
    """Reads a `.keras` file, uncompiled, as one that someone else made."""
    return (foreign or Foreign()).load(path)


def copies(
    model: keras.Model,
    num: int,
    *,
    in_float32: bool = False,
    foreign: Foreign | None = None,
) -> list[keras.Model]:
    """Models of the same architecture with weights of their own.

    Args:
        model: What to copy.
        num: How many.
        in_float32: Whether layers that compute in half precision shall do so
            in float32.
        foreign: How the model was read, if it is from a file: the copies are
            read in the same way. None for a model that was made in this
            process, whose classes and functions are the user's own.

    Raises:
        RunError: If it is refused as `foreign` says, `max_bytes` say.
        OSError: If there is no room for temporary files.
        ValueError: If the model cannot be described or not be rebuilt from its
            description.
    """
    own: contextlib.AbstractContextManager[NamedObjects] = (
        contextlib.nullcontext({})
        if foreign
        else live_objects.named_objects(model)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        try:
            with own as named:
                _save_architecture(
                    model, path, _with_float32 if in_float32 else bytes
                )
            load = foreign.load if foreign else _loader(named)
            policy = "float32" if in_float32 else keras.config.dtype_policy()
            with _policy(policy), quiet_builds():
                return [load(path) for _ in range(num)]
        except (RunError, OSError):
            raise  # which say themselves what to do
        except Exception as error:  # of Keras, or of the user's classes
            raise ValueError(_not_copied(model, error)) from error


def _loader(named: Mapping[str, Any]) -> Callable[[pathlib.Path], keras.Model]:
    def load(path: pathlib.Path) -> keras.Model:
        return keras.saving.load_model(
            str(path), revivable(named), compile=False, safe_mode=False
        )

    return load


def _not_copied(model: keras.Model, error: Exception) -> str:
    """Says which classes have no `get_config` that does, if it is that."""
    names = []
    for layer in keras_internals.layers_within(model):
        try:
            layer.get_config()
        except Exception:  # of the user's classes
            if not keras_internals.is_of_keras(type(layer)):
                names.append(type(layer).__name__)
    culprits = " and ".join(sorted(set(names))) or "its classes"
    return (
        f"Keras cannot copy {type(model).__name__}. Give {culprits} a "
        "`get_config` that returns all arguments of `__init__`, or build the "
        "model from Keras' own layers, Functional or Sequential. Keras: "
        f"{shortened(error)}"
    )


@contextlib.contextmanager
def _policy(name: Any) -> Iterator[None]:
    """Sets the policy of layers that are made by a class of the user."""
    kept = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(kept)


def why_not_rebuilt(model: keras.Model) -> str | None:
    """Why files alone will not give a model again, as a sentence, or None.

    It is tried, with a copy, where a model has classes of the user; those can
    be given by name. Generators of the process are left as they were.
    """
    if not live_objects.has_own_parts(model):
        return None
    with _without_training(model):
        has_lambda = live_objects.has_lambda(model)
    if has_lambda:
        return (
            "It has a lambda, which is code that no file is trusted with: a "
            "named function, `def`, can be given by its name."
        )
    try:
        with process_generators_kept():
            copies(model, 1)
    except (ValueError, OSError) as error:
        return str(error)
    return None


def is_float32(model: keras.Model) -> bool:
    """Whether no layer computes in half precision."""
    return not any(
        layer.compute_dtype in _HALF_PRECISION
        for layer in keras_internals.layers_within(model)
    )


def architecture_id(model: keras.Model, *, as_frozen: bool = False) -> str:
    """A hash that is equal for models of the same architecture.

    Names that Keras made up and seeds do not count: the same script gives
    others in another session. Nor does it count what is frozen: that changes
    from one phase of a training to the next.

    Args:
        model: The model.
        as_frozen: Whether it counts all the same, as it did in runs of earlier
            versions.
    """
    shapes = [[list(v.shape), str(v.dtype)] for v in model.weights]
    try:
        # Serialised, as `get_config` may hold layers and functions, whose
        # `str` has an address or a name in it.
        with _without_training(model):
            config = keras.saving.serialize_keras_object(model.get_config())
    except Exception:  # of the user's classes, or of Keras
        config = {}
    settings = _anonymous(config, as_frozen)
    description = [type(model).__name__, shapes, settings]
    text = json.dumps(description, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def _without_training(model: keras.Model) -> Iterator[None]:
    """Makes the model look as if it had never been compiled.

    And so for models within it: a pretrained part often is.
    """
    hidden = {"compiled": False, "optimizer": None}
    layers = keras_internals.layers_within(model)
    parts = [part for part in layers if isinstance(part, keras.Model)]
    # Past Keras' `__setattr__`, which would track and untrack.
    kept = [{k: vars(p)[k] for k in hidden if k in vars(p)} for p in parts]
    for part in parts:
        vars(part).update(hidden)
    try:
        yield
    finally:
        for part, attributes in zip(parts, kept, strict=True):
            for name in hidden:
                del vars(part)[name]
            vars(part).update(attributes)


def _without_date(metadata: bytes) -> bytes:
    content = json.loads(metadata)
    content.pop("date_saved", None)
    return json.dumps(content).encode()


def _without_addresses(config: bytes) -> bytes:
    """Numbers objects that layers share; Keras gives their addresses."""
    numbers: dict[int, int] = {}

    def renumber(node: Json) -> Json:
        if "shared_object_id" in node:
            address = node["shared_object_id"]
            node["shared_object_id"] = numbers.setdefault(address, len(numbers))
        return node

    return json.dumps(json.loads(config, object_hook=renumber)).encode()


_HALF_PRECISION = {
    f"{prefix}{dtype}"
    for prefix in ("", "mixed_")
    for dtype in ("float16", "bfloat16")
}


def _with_float32(config: bytes) -> bytes:
    """Replaces the policies of half precision."""

    def replace(node: Json) -> Json:
        if node.get("class_name") == "DTypePolicy":
            if node["config"]["name"] in _HALF_PRECISION:
                node["config"]["name"] = "float32"
        for key in ("dtype", "default_policy"):
            if str(node.get(key)) in _HALF_PRECISION:  # others are policies
                node[key] = "float32"
        return node

    return json.dumps(json.loads(config, object_hook=replace)).encode()


# What differs between sessions: seeds, and shapes with the batch size in them.
_SESSION = {"seed", "build_config", "build_input_shape"}
_REFERENCES = {"name", "keras_history", "input_layers", "output_layers"}


def _anonymous(config: Any, as_frozen: bool) -> Any:
    """The config with names replaced by the order in which they appear."""
    numbers: dict[str, str] = {}

    def rename(node: Any, is_reference: bool = False) -> Any:
        if isinstance(node, dict):
            if "DTypePolicy" in str(node.get("class_name")):
                return node  # its "name" is no name, but what it does
            if node.get("class_name") == "__lambda__":
                return "lambda"  # its code has the file and line in it
            return {
                k: rename(
                    v[1:] if k == "batch_shape" else v,
                    is_reference or k in _REFERENCES,
                )
                for k, v in _unfrozen(node, as_frozen).items()
                if k not in _SESSION
            }
        if isinstance(node, (list, tuple)):
            return [rename(value, is_reference) for value in node]
        if is_reference and isinstance(node, str):
            return numbers.setdefault(node, f"name {len(numbers)}")
        return node

    return rename(config)


def _unfrozen(node: Json, as_frozen: bool) -> Json:
    # True, as for most: their hash stays what it was.
    if as_frozen or "trainable" not in node:
        return node
    return {**node, "trainable": True}
