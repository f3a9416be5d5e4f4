"""Outputs over runs and inputs, and hostile `--preprocess`."""

import json
import shutil

import attacks_archive
import attacks_code
import attacks_model
from arena import (
    HARMLESS,
    Case,
    Place,
    archive_of,
    entries_of,
    keras_layer,
    layer,
    link,
)
from files_arrays import exporting, file_case
from gadgets import hidden


def _other(place: Place):
    """A second run, of someone who did not ask for anything."""
    return place.inputs / "other"


def _make(place: Place) -> None:
    shared = place.root.parent / "shared"
    shutil.copytree(shared / "unfinished", _other(place))
    shutil.copy(shared / "data.npz", place.inputs / "data.npz")
    shutil.copy(shared / "preprocess.keras", place.inputs / "pre.keras")
    (place.inputs / "names.txt").write_text("a\nb\nc")
    (place.inputs / "priors.txt").write_text("0.3 0.3 0.4")


def _export(format: str, output, *more):
    return lambda place: [
        *("export", place.run, "--format", format),
        *("--output", output(place), *(_given(place, m) for m in more)),
    ]


def _report(output, *more):
    return lambda place: [
        *("report", place.run, "-o", output(place)),
        *(_given(place, m) for m in more),
    ]


def _given(place: Place, argument):
    return argument(place) if callable(argument) else argument


def _at(name: str):
    return lambda place: place.inputs / name


def _outputs() -> list[Case]:
    kind = "output"
    files = [
        *("manifest.json", "model.keras", "base.npy", "rounds/6.npy"),
        *("members/6.weights.h5", "new.onnx", "members/new.onnx"),
    ]
    commands = {}
    for name in files:
        inside = lambda place, name=name: place.run / name  # noqa: E731
        foreign = lambda place, name=name: _other(place) / name  # noqa: E731
        commands[f"ONNX over {name}"] = _export("onnx", inside)
        commands[f"ONNX over {name} of another"] = _export("onnx", foreign)
        commands[f"report over {name}"] = _report(inside)
        commands[f"report over {name} of another"] = _report(foreign)
        commands[f"suspects over {name}"] = _report(
            lambda place: place.out / "report.html",
            *("--data", _at("data.npz"), "--suspects", foreign),
        )
    for name in ("", "members", "rounds", "resume", "model.keras", "new"):
        inside = lambda place, name=name: place.run / name  # noqa: E731
        foreign = lambda place, name=name: _other(place) / name  # noqa: E731
        for format in ("saved_model", "triton"):
            commands[f"{format} into {name or '.'}"] = _export(format, inside)
            commands[f"{format} into {name or '.'} of another"] = _export(
                format, foreign
            )
    inputs = {
        "data.npz": ("--data", "data.npz"),
        "pre.keras": ("--preprocess", "pre.keras"),
        "names.txt": ("--class-names", "names.txt"),
        "priors.txt": ("--priors", "priors.txt"),
    }
    for name, (option, file) in inputs.items():
        commands[f"ONNX over --{name}"] = _export(
            "onnx", _at(name), option, _at(file)
        )
    commands["report over its data"] = _report(
        _at("data.npz"), "--data", _at("data.npz")
    )
    commands["report over its class names"] = _report(
        _at("names.txt"), "--class-names", _at("names.txt")
    )
    commands["suspects over the data"] = _report(
        lambda place: place.out / "r.html",
        *("--data", _at("data.npz"), "--suspects", _at("data.npz")),
    )
    commands["suspects over the report"] = _report(
        lambda place: place.out / "r.html",
        *("--data", _at("data.npz")),
        *("--suspects", lambda place: place.out / "r.html"),
    )
    found = [
        Case(kind, name, _make, command=command)
        for name, command in commands.items()
    ]
    return found + _by_links()


def _by_links() -> list[Case]:
    """The same by other names: links and detours."""

    def make(place: Place) -> None:
        _make(place)
        link(place.out / "link", place.run)
        link(place.out / "page.html", place.run / "manifest.json")
        link(place.out / "data.html", place.inputs / "data.npz")

    commands = {
        "ONNX by a linked directory": _export(
            "onnx", lambda place: place.out / "link/model.keras"
        ),
        "SavedModel by a linked directory": _export(
            "saved_model", lambda place: place.out / "link/members"
        ),
        "ONNX by a detour": _export(
            "onnx", lambda place: place.run / "members/../model.keras"
        ),
        "report by a link": _report(lambda place: place.out / "page.html"),
        "report by a link to its data": _report(
            lambda place: place.out / "data.html",
            *("--data", _at("data.npz")),
        ),
    }
    # A link of the user's own may also be replaced by the output.
    return [
        Case("output", name, make, HARMLESS, command=command)
        for name, command in commands.items()
    ]


def _preprocess(make):
    """The `.keras` file of an attack on a run, as a file of its own."""

    def content(place: Place, path) -> None:
        make(place)
        attacked = place.run / "model.keras"
        shutil.move(attacked, path)
        shared = place.root.parent / "shared"
        shutil.rmtree(place.run)
        shutil.copytree(shared / "finished", place.run)

    return content


def _rescaled(change):
    """Preprocessing that was fine before it was changed."""

    def content(place: Place, path) -> None:
        entries = entries_of(place.root.parent / "shared/preprocess.keras")
        config = json.loads(entries["config.json"])
        change(config, place)
        entries["config.json"] = json.dumps(config).encode()
        path.write_bytes(archive_of(entries))

    return content


def _preprocessing() -> list[Case]:
    kinds = {
        case.name: case
        for module in (attacks_archive, attacks_code, attacks_model)
        for case in module.cases()
    }
    names = [
        *("Lambda layer", "model in a model", "object array as seed"),
        *(
            "calls os.system",
            "calls keras.utils.get_file",
            "activation os.system",
        ),
        *(
            "class 0, keras.layers.TFSMLayer",
            "1 GB as config.json",
            "encrypted",
        ),
        *("class 3, keras.layers.StringLookup", "weights of 4 TB", "deep JSON"),
        *(
            "calls keras.config.enable_unsafe_deserialization",
            "units of 10**12",
        ),
        *("weights with external storage", "models in models", "op tile"),
        *("text", "empty", "cut", "no config", "config of a list"),
    ]
    found = [
        file_case(
            "preprocess",
            name,
            ".keras",
            _preprocess(kinds[name].make),
            exporting("--preprocess"),
        )
        for name in names
    ]

    def poison(config, place):
        """A layer that executes what it hides when it is copied."""
        config["config"]["layers"][1] = keras_layer(
            "LayerNormalization",
            center=False,
            scale=False,
            beta_initializer=layer(
                "keras.initializers", "Constant", {"value": hidden(place)}
            ),
        )

    found.append(
        file_case(
            "preprocess",
            "object array, unused",
            ".keras",
            _rescaled(poison),
            exporting("--preprocess"),
        )
    )

    def scale(value):
        return lambda config, _: config["config"]["layers"][1]["config"].update(
            scale=value
        )

    return found + [
        file_case(
            "preprocess",
            f"scale of {name}",
            ".keras",
            _rescaled(scale(value)),
            exporting("--preprocess"),
        )
        for name, value in {
            "text": "x",
            "an object": {"a": 1},
            "ten numbers": [1.0] * 10,
        }.items()
    ]


def cases() -> list[Case]:
    return [*_outputs(), *_preprocessing()]
