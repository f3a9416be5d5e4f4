"""Metadata of artefacts: what an export writes, or refused by name."""

import json
import re
import shutil

import pytest

from cbnn_keras.export import verify_artefact
from cbnn_keras.export.metadata import (
    check_metadata,
    metadata_from_texts,
    read_metadata,
)
from cbnn_keras.export.runtimes import METADATA
from cbnn_keras.support.faults import RunError


@pytest.fixture(scope="module")
def metadata(full_saved_model):
    return read_metadata(full_saved_model.path / METADATA)


def test_those_of_an_export_are_right(metadata, tmp_path):
    check_metadata(tmp_path, metadata)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("members", []),
        ("members", [1, "2", 3]),
        ("members", [1, 2.5, 3]),
        ("members", [True]),
        ("members", {"1": 2}),
        ("members", [0, 1, 2]),
        ("members", [10**400, 1, 2]),
        ("votes", [1.0]),
        ("votes", [1.0, float("nan"), 1.0]),
        ("votes", [1.0, float("inf"), 1.0]),
        ("votes", [1.0, -1, 1.0]),
        ("votes", [1.0, 10**400, 1.0]),
        ("votes", None),
        ("num_classes", "3"),
        ("num_classes", 1),
        ("precision", "float64"),
        ("precision", ["float32"]),
        ("voting", "loud"),
        ("priors", [0.5, None, 0.5]),
        ("priors", 0.5),
        ("priors", [10**400, 1, 1]),
        ("labels", [1, 2, 3]),
        ("labels", "abc"),
        ("outputs", ["labels"]),
        ("outputs", "class"),
        ("outputs", [[]]),
        ("top_k", 0),
        ("top_k", 1.5),
        ("has_preprocess", None),
        ("cbnn_keras_version", 3),
    ],
)
def test_what_is_wrong_is_named(name, value, metadata, tmp_path):
    with pytest.raises(
        RunError,
        match=rf"^The metadata of {tmp_path} are not those of an export: "
        rf"{name} missing or of the wrong kind\. Export the run again\.$",
    ):
        check_metadata(tmp_path, {**metadata, name: value})


CASCADE = {"rule": "confident", "order": [3, 1, 2], "confidence": 0.5}


def test_a_cascade_is_that_of_an_export(metadata, tmp_path):
    assert metadata["members"] == [1, 2, 3]
    exact = {**CASCADE, "rule": "exact", "confidence": None}
    for right in (CASCADE, exact):
        check_metadata(tmp_path, {**metadata, "cascade": right})


@pytest.mark.parametrize(
    "change",
    [
        {"order": [3, 1]},
        {"order": [3, 1, "2"]},
        {"order": None},
        {"confidence": 1},
        {"confidence": "0.5"},
        {"confidence": None},
        {"rule": "exact"},
        {"more": 1},
    ],
)
def test_a_cascade_that_is_none_is_named(change, metadata, tmp_path):
    with pytest.raises(RunError, match=": cascade missing or of the wrong"):
        check_metadata(tmp_path, {**metadata, "cascade": {**CASCADE, **change}})
    with pytest.raises(RunError, match=": cascade missing or of the wrong"):
        check_metadata(tmp_path, {**metadata, "cascade": None})


def test_what_is_missing_is_named(metadata, tmp_path):
    with pytest.raises(
        RunError, match=r"was not written by an export of cbnn_keras\.$"
    ):
        check_metadata(tmp_path, {})
    for name in set(metadata) - {"cbnn_keras_version"}:
        less = {k: v for k, v in metadata.items() if k != name}
        with pytest.raises(RunError, match=f": {name} missing"):
            check_metadata(tmp_path, less)


def test_texts_of_others_are_left_out():
    texts = {"a": "[1]", "b": "no", "c": "[" * 10**5, "d": "", "e": "9" * 5000}
    assert metadata_from_texts(texts) == {"a": [1]}


@pytest.mark.parametrize(
    "content",
    [b"", b"no", b"\xff", b"[" * 10**5, b"[]", b"3", b"null"],
    ids=["empty", "text", "latin", "deep", "list", "number", "null"],
)
def test_a_file_that_is_none_is_named(
    content, full_saved_model, ensemble, tmp_path
):
    path = shutil.copytree(full_saved_model.path, tmp_path / "1")
    (path / METADATA).write_bytes(content)
    with pytest.raises(RunError, match=re.escape(METADATA)):
        verify_artefact(path, ensemble)


def test_a_file_without_end_is_not_read(tmp_path):
    path = tmp_path / "m.json"
    with path.open("wb") as file:
        file.truncate(2**27)
    with pytest.raises(RunError, match="m.json has more than 67108864 bytes"):
        read_metadata(path)


def test_members_that_the_run_has_not(full_saved_model, ensemble, tmp_path):
    path = shutil.copytree(full_saved_model.path, tmp_path / "1")
    content = json.loads((path / METADATA).read_bytes())
    content["members"] = [7, 8, 9]
    (path / METADATA).write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=r"run has no members of the steps \[7, 8"
    ):
        verify_artefact(path, ensemble)


def test_options_that_no_export_can_have(full_saved_model, ensemble, tmp_path):
    path = shutil.copytree(full_saved_model.path, tmp_path / "1")
    content = json.loads((path / METADATA).read_bytes())
    content["labels"] = ["a"] * content["num_classes"]
    (path / METADATA).write_text(json.dumps(content))
    with pytest.raises(
        RunError,
        match=f"^The metadata of {re.escape(str(path))} are not those of an "
        "export: class_names must differ from each other",
    ):
        verify_artefact(path, ensemble)
