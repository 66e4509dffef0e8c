"""tests/README.md: every known fault has a row, and every test it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROW = re.compile(r"\| (\S+) \| (.+?) \| (.+) \|")
REFERENCE = re.compile(r"`([\w/]+\.py)::(\w+)`")
ROWS = [match.groups() for match in map(ROW.fullmatch, (TESTS / "README.md").read_text("utf-8").splitlines()) if match]
ROWS = [row for row in ROWS if row[0] != "#"]
EXPECTED = [
    *(f"F{n}" for n in range(1, 34)), *(f"Q{n}" for n in range(1, 13)), *(str(n) for n in range(1, 50)),
    *(f"P{n}" for n in range(1, 30)),
]  # fmt: skip


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_bytes())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_fault_has_its_row_in_order():
    assert [number for number, *_ in ROWS] == EXPECTED


@pytest.mark.parametrize(("number", "fault", "found"), ROWS, ids=[row[0] for row in ROWS])
def test_the_named_tests_exist(number, fault, found):
    references = REFERENCE.findall(found)
    assert references or found.startswith("cannot apply: "), "name a test, or say why there can be none"
    for file, name in references:
        assert (TESTS / file).is_file(), file
        assert name in functions(file), f"{file} has no {name}"
    assert found.count("::") == len(references), "write tests as `file::test`"
