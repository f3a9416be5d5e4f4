"""Where attacks are made: pristine runs, copies of them, and signatures.

An attacker computes sha256 as well as we do: whatever a case changes is signed
again, unless a broken signature is its subject.
"""

import copy
import dataclasses
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import zipfile
from collections.abc import Callable
from typing import Any

LIMIT = 64 * 2**20  # `max_bytes` of the tests
CANARY = "canary: nobody reads or changes this"

# What may come of a case, beside no harm at all.
REFUSED = "refused"  # `load` says no
HARMLESS = "harmless"  # refused, or the same predictions as the pristine run
OTHER_RUN = "other run"  # an honest run that predicts something else


@dataclasses.dataclass(frozen=True)
class Place:
    """The directory of one case.

    Attributes:
        root: All of it; all the others are in it.
    """

    root: pathlib.Path

    @property
    def run(self) -> pathlib.Path:
        """The hostile run."""
        return self.root / "run"

    @property
    def outside(self) -> pathlib.Path:
        """Files of the user that no operation has any business with."""
        return self.root / "outside"

    @property
    def out(self) -> pathlib.Path:
        """Where outputs are asked for."""
        return self.root / "out"

    @property
    def inputs(self) -> pathlib.Path:
        """Files that the user gives to a command."""
        return self.root / "in"

    @property
    def tmp(self) -> pathlib.Path:
        """Temporary files of the process."""
        return self.root / "tmp"

    @property
    def marker(self) -> pathlib.Path:
        """What code that runs leaves."""
        return self.outside / "EXECUTED"


@dataclasses.dataclass(frozen=True)
class Case:
    """One attack.

    Attributes:
        kind: The class of the attack.
        name: What it is, in a few words; unique within its kind.
        make: Makes it from copies of the pristine run, in its place.
        expects: `REFUSED`, `HARMLESS` or `OTHER_RUN`.
        base: Which pristine run is copied: `finished` or `unfinished`.
        is_poisoned: Whether the weights of a member are no numbers, so that
            predictions may be none either.
        command: For files of the command line: its arguments.
    """

    kind: str
    name: str
    make: Callable[[Place], Any]
    expects: str = REFUSED
    base: str = "finished"
    is_poisoned: bool = False
    command: Callable[[Place], list[Any]] | None = None

    @property
    def key(self) -> str:
        return f"{self.kind}: {self.name}"


def prepare(case: Case, root: pathlib.Path, pristine: pathlib.Path) -> Place:
    """Copies the pristine run, and puts canaries where nothing may happen."""
    place = Place(root)
    for path in (place.outside, place.inputs, place.out, place.tmp):
        path.mkdir(parents=True)
    shutil.copytree(pristine / case.base, place.run)
    put_canaries(place.outside)
    return place


def put_canaries(outside: pathlib.Path) -> None:
    """Files whose names a sweep, a write or a read would look for."""
    names = [
        *("secret.txt", "model.keras", "manifest.json", "manifest.json.new"),
        *("unfinished-model.keras", "base.npy"),
        *("members/999.weights.h5", "members/8.weights.h5"),
        *("rounds/999.npy", "rounds/8.npy", "resume/999.npz"),
    ]
    for name in names:
        path = outside / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(CANARY)


# ----------------------------------------------------------------- signatures


def sign(run: pathlib.Path) -> None:
    """Makes the manifest list the files as they now are."""
    content = read_manifest(run)
    for name in content["files"]:
        path = run / name
        if path.is_file():
            content["files"][name] = fingerprint(path)
    write_manifest(run, content)


def fingerprint(path: pathlib.Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def read_manifest(run: pathlib.Path) -> dict[str, Any]:
    return json.loads((run / "manifest.json").read_bytes())


def write_manifest(run: pathlib.Path, content: dict[str, Any]) -> None:
    write_manifest_text(run, json.dumps(content, indent=1) + "\n")


def write_manifest_text(run: pathlib.Path, text: str | bytes) -> None:
    """Writes a manifest, whatever it is, with a checksum that is right."""
    data = text if isinstance(text, bytes) else text.encode()
    path = run / "manifest.json"
    path.unlink(missing_ok=True)
    path.write_bytes(sealed(data))


def sealed(data: bytes) -> bytes:
    """The bytes of a manifest with the checksum that belongs to them.

    From format 3 on: the sha256 of the content without it, as JSON with sorted
    keys and without spaces.
    """
    try:
        content = json.loads(data)
        content.pop("sha256")
        text = json.dumps(
            content,
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
        ).encode()
    except (KeyError, RecursionError, TypeError, ValueError, AttributeError):
        return data  # there is no checksum, or nothing to compute it from
    digest = hashlib.sha256(text).hexdigest()
    return re.sub(
        rb'(?m)^ "sha256": "[0-9a-f]{64}"',
        f' "sha256": "{digest}"'.encode(),
        data,
    )


# -------------------------------------------------------------------- changes


def manifest_change(change: Callable[[dict[str, Any]], Any]) -> Callable:
    """A `make` that changes what the manifest says, and signs it."""

    def make(place: Place) -> None:
        content = read_manifest(place.run)
        replaced = change(content)
        write_manifest(place.run, content if replaced is None else replaced)

    return make


def put_file(place: Place, name: str, data: bytes) -> None:
    """Puts a file into the run, listed and signed."""
    path = place.run / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    content = read_manifest(place.run)
    content["files"][name] = fingerprint(path)
    write_manifest(place.run, content)


def entries_of(path: pathlib.Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(entries: dict[str, bytes], **options: Any) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **options) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def put_model(place: Place, entries: dict[str, bytes], **options: Any) -> None:
    """Replaces the entries of `model.keras`, signed."""
    put_file(place, "model.keras", archive_of(entries, **options))


def config_change(change: Callable[[dict, Place], Any]) -> Callable:
    """A `make` that changes the architecture's `config.json`, and signs."""

    def make(place: Place) -> None:
        entries = entries_of(place.run / "model.keras")
        config = json.loads(entries["config.json"])
        replaced = change(config, place)
        text = config if replaced is None else replaced
        if not isinstance(text, (bytes, str)):
            text = json.dumps(text)
        data = text if isinstance(text, bytes) else text.encode()
        put_model(place, {**entries, "config.json": data})

    return make


def layer(module: str, class_name: str, config: Any, **more: Any) -> dict:
    """An object as Keras writes it down."""
    return {
        "module": module,
        "class_name": class_name,
        "config": config,
        "registered_name": None,
        **more,
    }


def keras_layer(class_name: str, **config: Any) -> dict:
    config.setdefault("name", f"the_{class_name.lower()}")
    return layer("keras.layers", class_name, config)


def with_layer(make_layer: Callable[[Place], Any], at: int = 1) -> Callable:
    """A `make` that inserts a layer into the Sequential model."""

    def change(config: dict, place: Place) -> None:
        config["config"]["layers"].insert(at, make_layer(place))

    return config_change(change)


def functional(node: dict, shape: list[Any] | None = None) -> dict:
    """A Functional model around one object that is called while it loads."""
    first = layer(
        "keras.layers",
        "InputLayer",
        {"batch_shape": shape or [None, 4], "dtype": "float32", "name": "in"},
        name="in",
        inbound_nodes=[],
    )
    node = copy.deepcopy(node)
    node.setdefault("name", "node")
    return layer(
        "keras.src.models.functional",
        "Functional",
        {
            "name": "functional",
            "trainable": True,
            "layers": [first, node],
            "input_layers": [["in", 0, 0]],
            "output_layers": [[node["name"], 0, 0]],
        },
    )


def history(name: str, shape: list[Any] | None = None) -> dict:
    """The output of a layer, as an argument of the next one."""
    return {
        "class_name": "__keras_tensor__",
        "config": {
            "shape": shape or [None, 4],
            "dtype": "float32",
            "keras_history": [name, 0, 0],
        },
    }


def pickled(place: Place) -> bytes:
    """A pickle that leaves the marker when it is loaded."""
    return f"cos\nsystem\n(S'touch {place.marker}'\ntR.".encode()


def lambda_code(place: Place) -> dict[str, Any]:
    """A function that leaves the marker, in Keras' own encoding."""
    from keras.src.utils import python_utils

    opened = f"__import__('os').open({str(place.marker)!r}, 65)"
    function = eval(f"lambda x, *a, **k: ({opened}, x)[1]")
    code, defaults, closure = python_utils.func_dump(function)
    # A Lambda layer looks for the names, all others for the value.
    return {
        "code": code,
        "defaults": defaults,
        "closure": closure,
        "value": [code, defaults, closure],
    }


def link(path: pathlib.Path, target: str | os.PathLike[str]) -> None:
    """Puts a symbolic link in place of whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)
