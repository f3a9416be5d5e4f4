"""`docs/reliability.md` names tests and messages that are there."""

import ast
import pathlib
import re

import hostile_files
import hostile_runs
import pytest

pytestmark = pytest.mark.faults

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()


def rows():
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    table = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    return [row for row in table if "`tests/" in row[-1]]


ROWS = rows()


def texts():
    """All texts in the package, with a mark for what is filled in."""
    found = set()
    for path in (ROOT / "cbnn_keras").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    part.value if isinstance(part, ast.Constant) else "\0"
                    for part in node.values
                ]
                found.add("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def test_the_table_is_read():
    assert len(ROWS) > 20


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("| ")[:40])
def test_named_tests_and_kinds_of_attack_exist(row):
    path, name = re.search(r"`(tests/[\w/]+\.py)::(\w+)`", row[-1]).groups()
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M)
    kinds = {*hostile_runs.kinds(), *hostile_files.kinds()}
    rest = row[-1].split("`", 2)[2]
    for kind in re.findall(r"`([^`]+)`", rest):
        assert kind in kinds


def test_named_messages_are_in_the_package():
    known = texts()
    for row in ROWS:
        for message in re.findall(r"`([^`]+)`", row[-2]):
            parts = [part.strip() for part in message.split("...")]
            pattern = ".*".join(re.escape(part) for part in parts if part)
            assert any(re.search(pattern, text, re.S) for text in known), (
                message
            )
