"""Manifests that claim what is not so."""

import copy
import json

from arena import (
    HARMLESS,
    OTHER_RUN,
    Case,
    Place,
    manifest_change,
    read_manifest,
    write_manifest_text,
)

from cbnn_keras.runs.manifest_json import FORMAT_VERSION


def _set(*path_and_value):
    """Sets a value deep in the manifest."""
    *path, name, value = path_and_value

    def change(content: dict) -> None:
        for part in path:
            content = content[part]
        content[name] = value

    return manifest_change(change)


def _drop(*path):
    def change(content: dict) -> None:
        for part in path[:-1]:
            content = content[part]
        del content[path[-1]]

    return manifest_change(change)


def _text(change):
    """Changes the text, so that it need not be JSON any more."""

    def make(place: Place) -> None:
        text = json.dumps(read_manifest(place.run), indent=1)
        write_manifest_text(place.run, change(text))

    return make


def _bytes(data: bytes):
    return lambda place: write_manifest_text(place.run, data)


def _duplicate(name: str, value: str, at_end: bool = True):
    """The same key twice: who reads it takes the first or the last."""

    def change(text: str) -> str:
        if at_end:
            return text.rstrip()[:-1].rstrip() + f',\n "{name}": {value}\n}}'
        return "{\n" + f'"{name}": {value},' + text.lstrip()[1:]

    return _text(change)


def _long_text(place: Place) -> None:
    # Not before it is needed: it has the size of all other cases together.
    _duplicate("x", '"' + "y" * 2**27 + '"')(place)


def _replaced(old: str, new: str):
    def change(text: str) -> str:
        if old not in text:
            raise AssertionError(f"{old} is not in the manifest")
        return text.replace(old, new, 1)

    return _text(change)


def _round_changes() -> list[tuple]:
    numbers = [
        *(0.0, -1.0, 1e308, 5e-324, 1e999, "1.0", None, True, [1.0], 99.0),
    ]
    return [("rounds", 0, "vote", value) for value in numbers] + [
        *(("rounds", 0, "error", value) for value in (-1, 2.0, 0.5, "x")),
        *(("rounds", 0, "normaliser", value) for value in (-1, 0, 7.0)),
        *(("rounds", 0, "bound", value) for value in (-5.0, 3.0)),
        ("rounds", 0, "exponential_loss", 9.0),
        *(("rounds", 0, "class_error", v) for v in (-1, 2.0, 1e999, "x", [1])),
        *(("rounds", 0, "validation_loss", v) for v in (-1, 99.0, "x", [1])),
        *(("rounds", 0, "step", value) for value in (10, 7, -6, 0, 2**70)),
        ("rounds", 0, "step", "../../outside/rounds/8"),
        *(("rounds", 0, "epoch", value) for value in (-1, 2**70, 0.5)),
        ("rounds", 0, "is_member", False),
        ("rounds", 0, "is_member", 1),
        ("rounds", 0, "is_final", True),
        ("rounds", 2, "is_final", False),
        ("rounds", 0, "within_budget", False),
        ("rounds", 0, "unknown", 1),
    ]


def _calibration(**changes) -> dict:
    """One that could be, but for the changes."""
    return {
        "temperature": 1.5,
        "num_samples": 100,
        "members": [6, 10, 16],
        "votes": [1.0, 2.0, 3.0],
        "coverage": 0.9,
        "threshold": 0.2,
    } | changes


_WRONG_CALIBRATIONS = [
    *({"temperature": value} for value in (0.0, -1.0, 1e-9, 1e308, "1", None)),
    *({"temperature": value} for value in (5e-324, 1e999, True, [1.5])),
    *({"share": value} for value in (-0.1, 0.95, 1, 1e308, 1e999, 2**70)),
    *({"share": value} for value in (None, "0.1", True, [0.1], {})),
    *({"num_samples": value} for value in (0, -1, 2**70, 1.5)),
    *({"members": value} for value in ([], [6, 99, 100], [16, 10, 6], "6")),
    *({"votes": value} for value in ([1.0], [0.0] * 3, [1e308] * 3, ["1"])),
    *({"coverage": value} for value in (None, 0, 1, 1.5, "0.9")),
    *({"threshold": value} for value in (None, -1.0, 1.5, 2**70, "0.2")),
]


def _header_changes() -> list[tuple]:
    return [
        *(("format_version", v) for v in (99, 0, -1, True, 2.0, "2", None)),
        *(("format_version", v) for v in (FORMAT_VERSION + 1, 2**70)),
        *(("phases", v) for v in ({}, [1], [{"step": 4, "epoch": 1}])),
        ("phases", [{"step": 2**70, "epoch": 1, "settings": {}}]),
        *(("calibration", v) for v in ([], 1.5, {}, {"temperature": 1.5})),
        *(("calibration", _calibration(**c)) for c in _WRONG_CALIBRATIONS),
        *(("num_classes", v) for v in (0, 1, 2, 4, -3, 2**62, 3.0, True)),
        *(("num_samples", v) for v in (0, 1, 59, 61, 64, 10**12, -60, 2**70)),
        ("num_samples", 60.0),
        ("is_binary", True),
        ("is_binary", 0),
        ("from_logits", True),
        ("from_logits", "no"),
        *(("num_parameters", v) for v in (0, 66, -1, 10**15, 2**70)),
        ("architecture", ""),
        ("architecture", 5),
        ("labels", None),
        ("method", 7),
        ("method", "x" * 100_000),
        ("settings", []),
        ("settings", None),
        *(("settings", "deviation_rate", v) for v in (-1, 1e308, "x", 0.5)),
        ("settings", "deviation_rate", 1e999),
        ("settings", "expected_error", 2.0),
        *(("settings", "trusted_class_margin", v) for v in (-1, 2.0, "x")),
        ("settings", "trusted_class_margin", 1e999),
        ("settings", "equal_votes", True),
        ("settings", "updates_from_first", True),
        ("settings", "restarts", "auto"),
        ("settings", "total_steps", -1),
        ("settings", "batch_size", 2**70),
        ("unknown", {"a": 1}),
        ("header", {"num_classes": 2}),
        ("rounds", {}),
        ("rounds", []),
        ("rounds", None),
        ("rounds", [1, 2, 3]),
        ("state", {"step": 16, "epoch": 4}),
        ("state", {"step": -1, "epoch": -1}),
        ("state", []),
        ("is_finished", 1),
        ("is_finished", None),
        *(("members", v) for v in ([], [6, 6, 6], [16, 10, 6], [6, 10, 99])),
        *(("members", v) for v in ([6.0, 10, 16], ["6"], [-6], None, {}, "6")),
        ("members", [6, 10, 16] * 1000),
        ("members", [True, 10, 16]),
        ("files", {}),
        ("files", []),
        ("files", "model.keras", None),
        ("files", "model.keras", {"bytes": -1, "sha256": "0"}),
        ("files", "model.keras", "bytes", 2**70),
        ("files", "model.keras", "bytes", 1e3),
        ("files", "model.keras", "sha256", 7),
        ("files", "model.keras", "sha256", "\u0665" * 64),
        ("files", "model.keras", "sha256", "../../x"),
    ]


# What is not wrong by itself: another honest run, or nothing that matters.
_HONEST = {
    ("from_logits", True),
    ("num_samples", 59),
    ("num_samples", 61),
    ("num_samples", 64),
    ("settings", "deviation_rate", 0.5),
    ("settings", "equal_votes", True),
    ("settings", "updates_from_first", True),
    ("rounds", 0, "is_member", False),
}
_NO_MATTER = {
    ("architecture", ""),
    ("method", "x" * 100_000),
    ("settings", "expected_error", 2.0),
    ("settings", "total_steps", -1),
    ("settings", "batch_size", 2**70),
    ("rounds", 0, "epoch", -1),
    ("rounds", 0, "epoch", 2**70),
    ("rounds", 0, "unknown", 1),
    ("rounds", 2, "is_final", False),
    ("files", "model.keras", None),
}


def _expected(change: tuple) -> dict:
    try:
        if change in _HONEST:
            return {"expects": OTHER_RUN}
        if change in _NO_MATTER:
            return {"expects": HARMLESS}
    except TypeError:  # a list or a dict
        pass
    return {}


def _nested(depth: int):
    return _text(
        lambda text: (
            text.rstrip()[:-1].rstrip()
            + ',\n "deep": '
            + "[" * depth
            + "]" * depth
            + "}"
        )
    )


def _more_rounds(content: dict) -> None:
    """A round that votes twice."""
    content["rounds"].insert(0, copy.deepcopy(content["rounds"][0]))


def _unsorted(content: dict) -> None:
    content["rounds"].reverse()


def _fewer(content: dict) -> None:
    content["members"] = [16]
    del content["files"]["members/6.weights.h5"]
    del content["files"]["members/10.weights.h5"]


def _swapped(content: dict) -> None:
    """Each member with the file of another one, all hashes right."""
    files = content["files"]
    a, b = "members/6.weights.h5", "members/10.weights.h5"
    files[a], files[b] = files[b], files[a]


def _swapped_files(place: Place) -> None:
    a, b = (place.run / f"members/{step}.weights.h5" for step in (6, 10))
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second), b.write_bytes(first)
    manifest_change(_swapped)(place)


def _downgraded(changes: dict):
    """Format 2 has no checksum of its own: votes must still be those."""

    def make(place: Place) -> None:
        content = read_manifest(place.run)
        content["format_version"] = changes.pop("format_version", 2)
        content.pop("sha256", None)
        content["rounds"][0].update(changes)
        text = json.dumps(content, indent=1)
        (place.run / "manifest.json").write_text(text)

    return make


def _parallel(vote: float):
    """Votes of a method whose rounds cannot be recomputed."""

    def change(content: dict) -> None:
        content["method"] = "parallel"
        content["rounds"][0]["vote"] = vote

    return manifest_change(change)


def _no_round_file(content: dict) -> None:
    del content["files"]["rounds/6.npy"]


def _many_files(content: dict) -> None:
    one = content["files"]["model.keras"]
    content["files"].update({f"x/{i}.npy": one for i in range(20_000)})


def cases() -> list[Case]:
    kind = "manifest"
    changes = [*_round_changes(), *_header_changes()]
    found = [
        Case(
            kind,
            f"{number}, {'.'.join(map(str, change))[:40]}",
            _set(*change),
            **_expected(change),
        )
        for number, change in enumerate(changes)
    ]
    found += [
        Case(kind, f"without {name}", _drop(name))
        for name in [
            *("format_version", "num_classes", "num_samples", "rounds"),
            *("members", "files", "settings", "is_finished", "architecture"),
        ]
    ]
    found += [
        Case(kind, f"without rounds[0].{name}", _drop("rounds", 0, name))
        for name in ("vote", "step", "error", "is_member")
    ]
    found += [
        Case(kind, "two votes", _replaced('"vote":', '"vote": 9.0, "vote":')),
        Case(kind, "second votes", _replaced('"is_member": true', _VOTE)),
        Case(kind, "members twice", _duplicate("members", "[16]")),
        Case(kind, "members first", _duplicate("members", "[16]", False)),
        Case(kind, "files twice", _duplicate("files", "{}", False)),
        Case(kind, "NaN", _replaced('"error": ', '"error": NaN, "e": ')),
        Case(kind, "Infinity", _replaced('"vote": ', '"vote": Infinity,"v": ')),
        Case(kind, "-Infinity", _duplicate("x", "-Infinity")),
        Case(kind, "1e400", _replaced('"bound": ', '"bound": 1e400, "b": ')),
        Case(kind, "huge integer", _duplicate("x", "9" * 10_000)),
        Case(kind, "deep", _nested(500)),
        Case(kind, "very deep", _nested(200_000)),
        Case(kind, "empty", _bytes(b"")),
        Case(kind, "zeros", _bytes(b"\0" * 4096)),
        Case(kind, "null", _bytes(b"null")),
        Case(kind, "a list", _bytes(b"[]")),
        Case(kind, "a number", _bytes(b"3")),
        Case(kind, "an object", _bytes(b"{}")),
        Case(
            kind, "invalid UTF-8", _bytes(b'{"format_version": 2, "\xff": 1}')
        ),
        Case(kind, "UTF-16", _text(lambda text: text.encode("utf-16"))),
        Case(kind, "BOM", _text(lambda text: "\ufeff" + text)),
        Case(kind, "surrogate", _replaced('"cbnn"', '"\\ud800"')),
        Case(kind, "NUL in text", _replaced('"cbnn"', '"a\0b"')),
        Case(kind, "two objects", _text(lambda text: text + text)),
        Case(kind, "comment", _text(lambda text: text + "// no")),
        Case(kind, "cut", _text(lambda text: text[: len(text) // 2])),
        Case(kind, "long", _text(lambda text: text + " " * 200 * 2**20)),
        Case(kind, "long text", _long_text),
        Case(kind, "a round twice", manifest_change(_more_rounds)),
        Case(kind, "rounds unsorted", manifest_change(_unsorted)),
        Case(kind, "one member", manifest_change(_fewer), OTHER_RUN),
        Case(kind, "files swapped", manifest_change(_swapped)),
        Case(kind, "members swapped", _swapped_files, OTHER_RUN),
        Case(kind, "no round file", manifest_change(_no_round_file)),
        Case(kind, "20,000 files", manifest_change(_many_files)),
        Case(kind, "parallel, vote", _parallel(99.0), OTHER_RUN),
        Case(kind, "parallel, tiny vote", _parallel(5e-324), OTHER_RUN),
        Case(kind, "parallel, huge vote", _parallel(1e308), OTHER_RUN),
        Case(kind, "parallel, negative vote", _parallel(-1.0)),
        Case(kind, "format 2, vote", _downgraded({"vote": 99.0})),
        Case(kind, "format 2, no vote", _downgraded({"vote": -1.0})),
        Case(kind, "format 2, error", _downgraded({"error": 0.01})),
        Case(
            kind,
            "format 1, vote",
            _downgraded({"vote": 99.0, "format_version": 1}),
        ),
    ]
    return found


_VOTE = '"is_member": true, "vote": 9.0'
