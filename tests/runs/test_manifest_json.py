"""The text of a manifest: strict JSON, with a checksum of its own."""

import json
import re

import pytest
from helpers import change_manifest, scored_run

from cbnn_keras import RunError
from cbnn_keras.runs.directory import RunDirectory
from cbnn_keras.runs.manifest import Manifest


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """The manifest of a small run."""
    directory = tmp_path_factory.mktemp("run")
    scored_run(directory / "run", num_rounds=2)
    return (directory / "run/manifest.json").read_text()


def refused(path, message):
    return pytest.raises(RunError, match=f"^{re.escape(str(path))} {message}")


@pytest.mark.slow
def test_no_flipped_bit_changes_what_a_manifest_says(text, tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text(text)
    expected = Manifest.read(tmp_path)
    content = bytearray(text.encode())
    num_refused = 0
    with open(path, "r+b", buffering=0) as file:
        for position in range(len(content)):
            for bit in range(8):
                file.seek(position)
                file.write(bytes([content[position] ^ (1 << bit)]))
                try:
                    assert Manifest.read(tmp_path) == expected
                except RunError:
                    num_refused += 1
            file.seek(position)
            file.write(content[position : position + 1])
    # What is left changes nothing, such as a tabulator into a line break.
    assert num_refused > 0.99 * 8 * len(content)


def test_a_changed_vote_is_noticed(text, tmp_path):
    content = json.loads(text)
    content["rounds"][0]["vote"] *= 2
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(content))
    with refused(path, "is not what was saved: its content does not have the"):
        RunDirectory.open(tmp_path)


def test_the_checksum_does_not_depend_on_order_and_spaces(text, tmp_path):
    content = dict(reversed(json.loads(text).items()))
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(content, indent=7, ensure_ascii=False))
    RunDirectory.open(tmp_path)


def test_a_manifest_that_says_an_older_format_has_a_key_too_many(
    text, tmp_path
):
    path = tmp_path / "manifest.json"
    path.write_text(text.replace('"format_version": 4', '"format_version": 2'))
    with refused(path, "is not a valid manifest: it has 'sha256', which no ma"):
        RunDirectory.open(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(extra=1),
        lambda m: m.update(header=m["settings"]),
    ],
)
def test_a_key_that_nobody_knows_is_refused(text, tmp_path, change):
    path = tmp_path / "manifest.json"
    path.write_text(text)
    change_manifest(tmp_path, change)
    with refused(path, "is not a valid manifest: it has '.*', which no manife"):
        RunDirectory.open(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"epoch": 1', '"epoch": 1, "epoch": 2', "a key that is there twice"),
        ('"is_binary"', '"method": "cbnn", "is_binary"', "a key that is there"),
        ('"epoch": 1', '"epoch": NaN', "NaN is no number"),
        ('"epoch": 1', '"epoch": -Infinity', "-Infinity is no number"),
        ('"epoch": 1', '"epoch": 1e999', "1e999 is too large"),
        ('"epoch": 1', f'"epoch": {"9" * 50}', "a number of 50 digits"),
        ('"epoch": 1', f'"epoch": {"9" * 9999}', "a number of 9999 digits"),
        ('"epoch": 1', f'"epoch": {"[" * 100_000}', "recursion|nested"),
        ('"cbnn"', r'"\ud800"', "surrogates not allowed"),
        ('"cbnn"', '"cbnn', "control character|delimiter"),
    ],
    ids=["twice", "twice-above", "nan", "infinity", "huge-float", "huge"]
    + ["huger", "deep", "surrogate", "open"],
)
def test_what_is_not_strict_json_is_refused(text, tmp_path, old, new, reason):
    assert old in text
    path = tmp_path / "manifest.json"
    path.write_text(text.replace(old, new, 1))
    with refused(path, rf"is not JSON \(.*({reason})"):
        RunDirectory.open(tmp_path)


def test_nested_settings_are_refused(text, tmp_path):
    nested = "[" * 300 + "]" * 300
    path = tmp_path / "manifest.json"
    path.write_text(text)
    change_manifest(
        tmp_path, lambda m: m["settings"].update(own=json.loads(nested))
    )
    with refused(path, "is not a valid manifest: settings.own missing or of"):
        RunDirectory.open(tmp_path)


def test_a_manifest_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "manifest.json"
    with open(path, "wb") as file:
        file.truncate(2**40)  # of holes: it takes no room
    with refused(path, "has more than 16,777,216 bytes, which no manifest has"):
        RunDirectory.open(tmp_path)


def test_whole_numbers_are_read_as_floats_where_those_belong(text, tmp_path):
    (tmp_path / "manifest.json").write_text(text)

    def change(content):
        content["rounds"][0]["vote"] = 2

    change_manifest(tmp_path, change)
    vote = RunDirectory.open(tmp_path).rounds[0].vote
    assert vote == 2 and isinstance(vote, float)
