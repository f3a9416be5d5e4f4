"""`manifest.json` as text: strict JSON that carries a checksum of its own.

The checksum is over what the manifest says and not over its bytes: whoever
changes a run by hand can compute it with any JSON library. It protects against
damage; against people, `claims` recomputes what can be recomputed.
"""

import hashlib
import json
import math
import pathlib
from typing import Any

from cbnn_keras.support import files
from cbnn_keras.support.aliases import Json
from cbnn_keras.support.faults import RunError, shortened

MANIFEST = "manifest.json"
FORMAT_VERSION = 8
# What is new in a format; without it, earlier versions of the package read what
# is written.
_NEW_IN = {
    8: {"settings.restart_gain", "settings.lag_free"},
    7: {"calibration.share"},
    6: {"calibration", "settings.trusted_class_margin"},
    5: {"phases"},
}
_WITHOUT_ANY = 4
_FIRST_WITH_CHECKSUM = 3
_CHECKSUM = "sha256"
_LARGEST = 2**24  # bytes: some ten thousand rounds
_MOST_DIGITS = 40


def write(directory: pathlib.Path, content: Json) -> None:
    """Replaces the manifest of a directory, atomically.

    Args:
        directory: The run directory.
        content: What to write; parts of it may be objects with a `to_json`, or
            with the attributes to write.
    """
    text = json.dumps(content, allow_nan=False, default=_as_json)
    parts = json.loads(text)
    names = set(parts)
    for outer in ("settings", "calibration"):
        names |= {f"{outer}.{inner}" for inner in parts.get(outer, ())}
    needed = (number for number, new in _NEW_IN.items() if new & names)
    parts = {"format_version": next(needed, _WITHOUT_ANY), **parts}
    parts[_CHECKSUM] = checksum(parts)
    text = json.dumps(parts, indent=1, allow_nan=False)
    files.replace_bytes(directory / MANIFEST, f"{text}\n".encode())


def read(directory: pathlib.Path) -> Json:
    """What the manifest of a directory says, without format and checksum.

    Raises:
        RunError: If there is none, or if it is damaged or of a later version.
    """
    file = directory / MANIFEST
    if not holds_manifest(directory):
        raise RunError(
            f"{directory} holds no run: there is no {MANIFEST} in it. Give the "
            "directory that the callback or `ensemble.save` was given."
        )
    content, found = _parse(file)
    is_dict = isinstance(content, dict)
    version = content.pop("format_version", None) if is_dict else None
    if type(version) is not int or version < 1:
        raise RunError(f"{file} is not the manifest of a cbnn_keras run.")
    if version > FORMAT_VERSION:
        raise RunError(
            f"{file} has format version {version}; this cbnn_keras reads up "
            f"to {FORMAT_VERSION}. Upgrade: pip install -U cbnn-keras."
        )
    # Older ones have none: there, it is a key that nobody knows.
    if version >= _FIRST_WITH_CHECKSUM:
        if content.pop(_CHECKSUM, None) != found:
            raise RunError(
                f"{file} is not what was saved: its content does not have the "
                f"{_CHECKSUM} that it says. Restore the file, or train again."
            )
    return content


def holds_manifest(directory: pathlib.Path) -> bool:
    """Whether there is a manifest in a directory, be it only a link."""
    path = directory / MANIFEST
    return path.is_symlink() or path.exists()


def checksum(content: Json) -> str:
    """The sha256 of a manifest: of all of it but the entry `sha256`."""
    rest = {key: value for key, value in content.items() if key != _CHECKSUM}
    # Not in ASCII, so that half of a surrogate pair is found out here.
    text = json.dumps(
        rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _parse(file: pathlib.Path) -> tuple[Any, str]:
    """The content of a file, and the checksum that it should have."""
    with files.open_regular(file) as opened:
        text = opened.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise RunError(
            f"{file} has more than {_LARGEST:,} bytes, which no manifest has. "
            "Restore the file, or train again."
        )
    try:
        content = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse,
            parse_float=_finite,
            parse_int=_short,
        )
        return content, checksum(content if isinstance(content, dict) else {})
    except (ValueError, RecursionError, MemoryError) as error:
        raise RunError(
            f"{file} is not JSON ({shortened(error)}). Restore the file, or "
            "train again."
        ) from None


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key that is there twice")
    return content


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text} is too large")
    return float(text)


def _short(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _as_json(part: Any) -> Any:
    return part.to_json() if hasattr(part, "to_json") else vars(part)
