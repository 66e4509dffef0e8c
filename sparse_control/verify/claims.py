"""Sentences of the paper's results, each tied to cells of tables (`paper/claims.yaml`).

In `paper/results/` every sentence is in a `\\claim{id}{...}`. Its entry says what must hold of the tables for it to be
true, and has a hash of its words: who changes a sentence judges its relations again. What a sentence means no program
can tell; that nobody has read it against the tables, one can.
"""

import hashlib
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from sparse_control.errors import InputError
from sparse_control.files import read_text, read_yaml
from sparse_control.records.base import Name, Record, validate
from sparse_control.tables.cells import Scalar, cell

OPERATORS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class Cell(Record):
    """Another cell, of the relation's own table where it names none."""

    table: Name | None = None
    where: dict[str, Scalar] = {}
    column: Name


class Relation(Record):
    """`table[where].column operator value`."""

    table: Name
    where: dict[str, Scalar]  # column -> value; selects exactly one row, of the paper's model where it names none
    column: Name
    operator: Literal["==", "!=", "<", "<=", ">", ">="]
    value: Scalar | Cell


class Claim(Record):
    """What must hold for one sentence."""

    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
    words: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]  # `words_sha256` of the sentence that was judged
    holds: list[Relation] = []


class Claims(Record):
    """paper/claims.yaml."""

    model: Name  # of every cell that names no other
    claims: list[Any]


@dataclass(frozen=True)
class Sentence:
    """`\\claim{id}{text}` in a file of results."""

    file: str
    line: int
    id: str
    text: str


def words_sha256(text: str) -> str:
    """The first twelve digits of the SHA-256 of a sentence, whatever the spaces and line ends between its words."""
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:12]


def read_claims(path: Path) -> list[Claim]:
    """Read the claims.

    Raises:
        InputError: names the file, the claim, the field and the value; also for an id that is there twice.
    """
    content = validate(Claims, read_yaml(path), str(path))
    claims = []
    for number, entry in enumerate(content.claims, start=1):
        claim = validate(Claim, entry, f"{path}: claim {number}")
        holds = [one.model_copy(update={"where": {"model": content.model} | one.where}) for one in claim.holds]
        claims.append(claim.model_copy(update={"holds": holds}))
    ids = [claim.id for claim in claims]
    if twice := sorted({one for one in ids if ids.count(one) > 1}):
        raise InputError(f"{path}: id: is there twice, got {twice[0]!r}")
    return claims


def check_relation(relation: Relation, frames: Mapping[str, pd.DataFrame]) -> str:
    """The values a relation compares, as text.

    Raises:
        InputError: it does not hold, or names a table, row or column that is not there.
    """
    found = _value(frames, relation.table, relation.where, relation.column)
    expected = relation.value
    if isinstance(expected, Cell):
        expected = _value(frames, expected.table or relation.table, relation.where | expected.where, expected.column)
    if relation.operator not in ("==", "!=") and isinstance(found, str) != isinstance(expected, str):
        raise InputError(f"{relation.column} is {found!r} and cannot be compared with {expected!r}")
    text = f"{relation.column} {found!r} {relation.operator} {expected!r}"
    if not OPERATORS[relation.operator](found, expected):
        raise InputError(f"does not hold: {text} in table {relation.table}")
    return text


def _value(frames: Mapping[str, pd.DataFrame], table: str, where: Mapping[str, Scalar], column: str) -> Any:
    found = cell(frames, table, where, column)
    if found is None:
        raise InputError(f"table {table} has no value in {column} with {dict(where)}")
    return found


# --- the text -------------------------------------------------------------------------------------------------------

_COMMENT = re.compile(r"(?<!\\)%.*")
_START = re.compile(r"\\claim\{([^{}]*)\}\{")
_LAYOUT = re.compile(r"\\(paragraph|section|subsection|label|showtable|showwide|showpart|showfigure)\*?\{[^{}]*\}")
_QUOTED = re.compile(r"\\val\{")
_INSIDE = re.compile(r"\\[a-zA-Z]+(\{[^{}]*\})?|\$[^$]*\$")
_NEXT = re.compile(r"[.!?]\s+[A-Z]")


def read_results(path: Path) -> tuple[list[Sentence], list[str]]:
    """The sentences of a file of results, and what is wrong with its text.

    Raises:
        InputError: it cannot be read, or a claim in it does not end.
    """
    text = "\n".join(_COMMENT.sub("", line) for line in read_text(path).split("\n"))
    sentences, outside, position = [], [], 0
    while start := _START.search(text, position):
        end = _end(text, start.end())
        line = text.count("\n", 0, start.start()) + 1
        if end is None:
            raise InputError(f"{path.name}:{line}: \\claim{{{start[1]}}} does not end")
        outside.append((text.count("\n", 0, position) + 1, text[position : start.start()]))
        sentences.append(Sentence(path.name, line, start[1], text[start.end() : end]))
        position = end + 1
    outside.append((text.count("\n", 0, position) + 1, text[position:]))
    return sentences, [*_outside(path.name, outside), *_several(sentences)]


def _end(text: str, position: int) -> int | None:
    """Index of the brace that closes the one before `position`."""
    depth = 1
    for brace in re.compile(r"(?<!\\)[{}]").finditer(text, position):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.start()
    return None


def _outside(name: str, parts: list[tuple[int, str]]) -> Iterator[str]:
    for line, part in parts:
        if words := re.search(r"\S*\w.*", _LAYOUT.sub(lambda found: "\n" * found[0].count("\n"), part)):
            number = line + part.count("\n", 0, part.find(words[0].split()[0]))
            yield f"{name}:{number}: outside of a claim: {words[0].strip()!r:.80}"


def _several(sentences: list[Sentence]) -> Iterator[str]:
    for one in sentences:
        if _NEXT.search(_INSIDE.sub("", one.text)):
            yield f"{one.file}:{one.line}: claim {one.id} holds more than one sentence"


def wrong_use(claim: Claim, sentences: list[Sentence]) -> str | None:
    """What is wrong with how the text uses a claim; None where nothing is."""
    used = [one for one in sentences if one.id == claim.id]
    if len(used) != 1:
        where = ", ".join(f"{one.file}:{one.line}" for one in used) or "nowhere"
        return f"is to be used once in paper/results, is used {len(used)} times ({where})"
    if words_sha256(used[0].text) != claim.words:
        now = words_sha256(used[0].text)
        return f"the sentence was changed; judge what must hold for it again, then write words: {now}"
    if not claim.holds and not _QUOTED.search(used[0].text):
        return "holds: is empty, and the sentence quotes no cell; say what must hold for it"
    return None
