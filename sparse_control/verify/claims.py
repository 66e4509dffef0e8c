"""The sentences of the paper that a number could break, each tied to a cell of a table (`paper/claims.yaml`)."""

import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from sparse_control.errors import InputError
from sparse_control.files import read_yaml
from sparse_control.records.base import Name, Record, validate
from sparse_control.tables.cells import Scalar, cell

OPERATORS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class Cell(Record):
    """Another cell of the claim's table."""

    where: dict[str, Scalar]
    column: Name


class Claim(Record):
    """`table[where].column operator value`."""

    id: Name
    sentence: Name  # as the paper has it
    table: Name
    where: dict[str, Scalar]  # column -> value; selects exactly one row
    column: Name
    operator: Literal["==", "!=", "<", "<=", ">", ">="]
    value: Scalar | Cell


def read_claims(path: Path) -> list[Claim]:
    """Read the claims.

    Raises:
        InputError: names the file, the claim, the field and the value; also for an id that is there twice.
    """
    content = read_yaml(path)
    if not isinstance(content, list):
        raise InputError(f"{path}: expected a list of claims, got {type(content).__name__}")
    claims = [validate(Claim, entry, f"{path}: claim {number}") for number, entry in enumerate(content, start=1)]
    for number, claim in enumerate(claims):
        if claim.id in {other.id for other in claims[:number]}:
            raise InputError(f"{path}: id: is there twice, got {claim.id!r}")
    return claims


def _value(frames: Mapping[str, pd.DataFrame], table: str, where: Mapping[str, Scalar], column: str) -> Any:
    found = cell(frames, table, where, column)
    if found is None:
        raise InputError(f"table {table} has no value in {column} with {dict(where)}")
    return found


def check_claim(claim: Claim, frames: Mapping[str, pd.DataFrame]) -> str:
    """The values a claim compares, as text.

    Raises:
        InputError: the claim does not hold, or names a table, row or column that is not there.
    """
    found = _value(frames, claim.table, claim.where, claim.column)
    other = claim.value
    expected = _value(frames, claim.table, other.where, other.column) if isinstance(other, Cell) else other
    if claim.operator not in ("==", "!=") and isinstance(found, str) != isinstance(expected, str):
        raise InputError(f"{claim.column} is {found!r} and cannot be compared with {expected!r}")
    text = f"{claim.column} {found!r} {claim.operator} {expected!r}"
    if not OPERATORS[claim.operator](found, expected):
        raise InputError(f"does not hold: {text} ({claim.sentence})")
    return text
