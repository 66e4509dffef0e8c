"""The sentences of the paper that a number could break, each tied to a cell of a table (`paper/claims.yaml`)."""

import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml

from sparse_control.artifact.records import Name, Record, validate
from sparse_control.errors import InputError
from sparse_control.files import read_text

OPERATORS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
Scalar = bool | int | float | str


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
        InputError: names the file, the claim, the field and the value; also for an id that stands twice.
    """
    text = read_text(path)
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, list):
        raise InputError(f"{path}: expected a list of claims, got {type(content).__name__}")
    claims = [validate(Claim, entry, f"{path}: claim {number}") for number, entry in enumerate(content, start=1)]
    for number, claim in enumerate(claims):
        if claim.id in {other.id for other in claims[:number]}:
            raise InputError(f"{path}: id: stands twice, got {claim.id!r}")
    return claims


def _cell(frame: pd.DataFrame, table: str, where: Mapping[str, Scalar], column: str) -> Any:
    if missing := sorted({*where, column} - set(frame.columns)):
        raise InputError(f"table {table} has no column {missing[0]!r}; there are: {', '.join(frame.columns)}")
    rows = [row for row in frame.to_dict("records") if all(row[name] == value for name, value in where.items())]
    if len(rows) != 1:
        raise InputError(f"table {table} has {len(rows)} rows with {dict(where)}, expected one")
    if rows[0][column] is None:
        raise InputError(f"table {table} has no value in {column} with {dict(where)}")
    return rows[0][column]


def check_claim(claim: Claim, frames: Mapping[str, pd.DataFrame]) -> str:
    """The values a claim compares, as text.

    Raises:
        InputError: the claim does not hold, or names a table, row or column that is not there.
    """
    if claim.table not in frames:
        raise InputError(f"no table {claim.table!r}; there are: {', '.join(frames)}")
    frame = frames[claim.table]
    found = _cell(frame, claim.table, claim.where, claim.column)
    other = claim.value
    expected = _cell(frame, claim.table, other.where, other.column) if isinstance(other, Cell) else other
    if claim.operator not in ("==", "!=") and isinstance(found, str) != isinstance(expected, str):
        raise InputError(f"{claim.column} is {found!r} and cannot be compared with {expected!r}")
    text = f"{claim.column} {found!r} {claim.operator} {expected!r}"
    if not OPERATORS[claim.operator](found, expected):
        raise InputError(f"does not hold: {text} ({claim.sentence})")
    return text
