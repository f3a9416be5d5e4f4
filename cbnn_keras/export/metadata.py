"""What an artefact says about itself, read as something that may be wrong."""

import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from cbnn_keras.calibration import (
    LARGEST_SHARE,
    LARGEST_TEMPERATURE,
    SMALLEST_TEMPERATURE,
)
from cbnn_keras.export.options import OUTPUTS
from cbnn_keras.support.aliases import Json
from cbnn_keras.support.faults import RunError, faults_named
from cbnn_keras.support.files import open_regular

_MAX_BYTES = 2**26  # of the text: the names of a million classes


def read_metadata(path: pathlib.Path) -> Json:
    """Metadata from a file of JSON.

    Raises:
        RunError: If the file is no such file.
    """
    with open_regular(path) as file:
        return metadata_from_bytes(path, file.read(_MAX_BYTES + 1))


def metadata_from_bytes(path: pathlib.Path, content: bytes) -> Json:
    """Metadata from JSON that was found in a file.

    Raises:
        RunError: If the content is no such JSON; names the file.
    """
    with faults_named(path, _ADVICE):
        if len(content) > _MAX_BYTES:
            raise RunError(
                f"{path} has more than {_MAX_BYTES} bytes. {_ADVICE}"
            )
        found = json.loads(content)
    if not isinstance(found, dict):
        raise RunError(f"{path} holds no metadata. {_ADVICE}")
    return found


def metadata_from_texts(properties: dict[str, str]) -> Json:
    """Metadata from texts of JSON; what others put there is left out."""
    found = {}
    for key, text in properties.items():
        try:
            found[key] = json.loads(text)
        except (ValueError, RecursionError):
            continue
    return found


def check_metadata(path: pathlib.Path, metadata: Json) -> None:
    """Raises a `RunError` unless metadata are what an export writes.

    Args:
        path: The artefact.
        metadata: What it says about itself.
    """
    if "cbnn_keras_version" not in metadata:
        raise RunError(f"{path} was not written by an export of cbnn_keras.")
    wrong = [
        name
        for name, is_right in _CHECKS.items()
        if name not in metadata or not is_right(metadata[name])
    ]
    calibration = metadata.get("calibration")
    if not _is_calibration(calibration):
        wrong.append("calibration")
    elif not wrong and "set" in metadata["outputs"]:
        if calibration is None or calibration["threshold"] is None:
            wrong = ["calibration"]
    if not wrong and len(metadata["votes"]) != len(metadata["members"]):
        wrong = ["votes"]
    if not wrong and "cascade" in metadata and not _is_cascade(metadata):
        wrong.append("cascade")
    if wrong:
        raise RunError(
            f"The metadata of {path} are not those of an export: "
            f"{', '.join(wrong)} missing or of the wrong kind. {_ADVICE}"
        )


def _is_cascade(metadata: Json) -> bool:
    """Whether the cascade is what `cascade_option.to_metadata` gives."""
    value = metadata["cascade"]
    keys = {"rule", "order", "confidence"}
    if not isinstance(value, dict) or set(value) != keys:
        return False
    order, confidence = value["order"], value["confidence"]
    is_exact = confidence is None
    return (
        _list_of(_is_integer)(order)
        and sorted(order) == metadata["members"]
        and (is_exact or _is_confidence(confidence, len(order)))
        and value["rule"] == ("exact" if is_exact else "confident")
    )


def _is_confidence(value: Any, num_members: int) -> bool:
    """Whether it is one for all members, or one for each but the last."""
    if isinstance(value, list):
        return _list_of(_is_positive)(value) and len(value) == num_members - 1
    return _is_positive(value) and value < 1


def _is_calibration(value: Any) -> bool:
    """Whether it is None, as in artefacts that are not calibrated, or one."""
    if value is None:
        return True
    if not isinstance(value, dict):
        return False
    # A share of 0 is not said.
    if value.keys() | {"share"} != _CALIBRATION.keys():
        return False
    is_right = all(_CALIBRATION[name](said) for name, said in value.items())
    return is_right and (value["coverage"] is None) == (
        value["threshold"] is None
    )


def _is_integer(value: Any, at_least: int = 1) -> bool:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return is_integer and at_least <= value < 2**53


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # JSON has integers that are no floats.
    return is_number and 0 < value <= sys.float_info.max


def _list_of(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, list) and bool(value) and all(map(is_right, value))
    )


def _or_none(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


def _one_of(*values: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in values


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


# By name; see `ServingGraph.metadata`.
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "cbnn_keras_version": _is_text,
    "members": _list_of(_is_integer),
    "votes": _list_of(_is_positive),
    "num_classes": lambda value: _is_integer(value, 2),
    "precision": _one_of("float32", "float16", "int8"),
    "voting": _one_of("soft", "hard"),
    "priors": _or_none(_list_of(_is_positive)),
    "labels": _or_none(_list_of(_is_text)),
    "outputs": _list_of(_one_of(*OUTPUTS)),
    "top_k": _is_integer,
    "has_preprocess": lambda value: isinstance(value, bool),
}
# Of temperature, share and sets, where an export is calibrated.
_CALIBRATION: dict[str, Callable[[Any], bool]] = {
    "temperature": lambda value: (
        _is_positive(value)
        and SMALLEST_TEMPERATURE < 1.01 * value
        and value < 1.01 * LARGEST_TEMPERATURE
    ),
    "share": lambda value: _is_positive(value) and value <= LARGEST_SHARE,
    "num_samples": _is_integer,
    "coverage": _or_none(lambda value: _is_positive(value) and value < 1),
    "threshold": _or_none(
        lambda value: value == 0.0 or _is_positive(value) and value <= 1
    ),
}
_ADVICE = "Export the run again."
