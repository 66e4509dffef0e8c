"""The numbers of the paper's prose: `\\val{name}` in a section is a cell of a table (`paper/values.yaml`).

`reproduce` renders them into `paper/tables/values.tex`; `verify` checks that each has its cell and that the texts
which quote some write no number by hand.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field, model_validator

from sparse_control.errors import InputError
from sparse_control.files import read_text, read_yaml
from sparse_control.records.base import Name, Record, validate
from sparse_control.tables.cells import Scalar, cell
from sparse_control.tables.columns import EMPTY, fixed, in_words, significant, with_sign

Sign = Literal["negative", "zero", "positive", "missing"]


class Value(Record):
    """`table[where].column`, as the prose shows it."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
    table: Name
    where: dict[str, Scalar]  # column -> value; selects exactly one row
    column: Name
    format: Annotated[str, Field(pattern=r"^(text|words|whole|(decimal|signed|significant) [0-9])$")] = "text"
    choices: dict[Sign, str] | None = None  # words by the sign of the number, instead of the number

    @model_validator(mode="after")
    def _choices_are_whole(self) -> "Value":
        if self.choices is not None and len(self.choices) != 4:
            raise ValueError(f"choices must have negative, zero, positive and missing, got {sorted(self.choices)}")
        return self


class Values(Record):
    """paper/values.yaml."""

    model: Name  # of every cell that names no other
    values: list[Any]


def read_values(project: Path) -> list[Value]:
    """The values of the project folder's paper; none where it has no such file.

    Raises:
        InputError: names the file, the value and the field; also for a name that is there twice.
    """
    path = Path(project, "paper", "values.yaml")
    if not path.exists():
        return []
    content = validate(Values, read_yaml(path), str(path))
    values = []
    for number, entry in enumerate(content.values, start=1):
        value = validate(Value, entry, f"{path}: value {number}")
        values.append(value.model_copy(update={"where": {"model": content.model} | value.where}))
    names = [value.name for value in values]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"{path}: name: is there twice, got {min(twice)!r}")
    return values


def value_text(value: Value, frames: Mapping[str, pd.DataFrame]) -> str:
    """The cell as the prose shows it, an em-dash where it is empty.

    Raises:
        InputError: no such table or column, not exactly one row, or a cell of another kind than the format.
    """
    found = cell(frames, value.table, value.where, value.column)
    try:
        if value.choices is not None:
            return value.choices["missing" if found is None else _sign(found)]
        return EMPTY if found is None else _formatted(found, value.format)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise InputError(f"value {value.name}: {found!r} cannot be shown as {value.format!r}") from error


def _sign(number: float) -> Sign:
    return "negative" if number < 0 else "positive" if number > 0 else "zero"


def _formatted(found: Any, how: str) -> str:
    kind, _, digits = how.partition(" ")
    if kind == "text":
        return str(found)
    if kind == "words":
        return in_words(found)
    if kind == "whole":
        return f"{int(found):d}"
    if kind == "significant":
        return significant(found, int(digits))
    return (with_sign if kind == "signed" else fixed)(found, int(digits))


def shown_values(values: Sequence[Value], frames: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """Name -> text; an em-dash where the records do not have the cell."""
    texts = {}
    for value in values:
        try:
            texts[value.name] = value_text(value, frames)
        except InputError:  # `verify` names it; other roots need not have every table
            texts[value.name] = EMPTY
    return texts


# arguments that may hold digits without being a number of the text
_COMMAND = re.compile(r"\\(val|ref|label|input|cite|claim|showtable|showpart|showfigure)\{([^{}]*)\}")
_COMMENT = re.compile(r"(?<!\\)%.*")


def misquotes(section: Path, names: set[str]) -> Iterator[str]:
    """What a section that quotes values does wrong: names that are not there, and numbers written by hand."""
    lines = [_COMMENT.sub("", line) for line in read_text(section).split("\n")]
    if not any(match[1] == "val" for line in lines for match in _COMMAND.finditer(line)):
        return
    for number, line in enumerate(lines, start=1):
        for match in _COMMAND.finditer(line):
            if match[1] == "val" and match[2] not in names:
                yield f"{section.name}:{number}: no value {match[2]!r} in paper/values.yaml"
        if digits := re.search(r"\d[\d.,]*", _COMMAND.sub("", line)):
            yield f"{section.name}:{number}: {digits[0]!r} is written by hand; quote a cell with \\val"
