"""Pairs of the reader's own from a file, held to what the project's own pairs are held to.

    pairs.jsonl   {"source": ..., "target": ..., "source_answer": ..., "target_answer": ...} a line, and optionally
                  "split" (fit, evaluate or reuse; in every line or in none) and "orientation" (at most two in a file)
    pairs.json    {"negative": [...], "positive": [...], "negative_answer": ..., "positive_answer": ...}: lists of
                  equal length, whose k-th prompts are a pair from negative to positive

Answers carry their leading space, as in `" positive"`, unless the prompt ends where none belongs.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from sparse_control.arguments import file_path, whole_number
from sparse_control.errors import InputError
from sparse_control.files import parse_json, read_json_lines, read_text, sha256_file
from sparse_control.protocol.panels.draw import SPLITS, normalised
from sparse_control.protocol.panels.pair import BrokenAnswer, Draft, Pair, Piece, UnequalLength, build_pair
from sparse_control.protocol.panels.xstest import MAXIMUM_SHARE, minimal_edit
from sparse_control.seeds import stream

FIELDS = ("source", "target", "source_answer", "target_answer")
OPTIONAL = ("split", "orientation")
LISTS = ("negative", "positive")
Row = tuple[str, dict[str, str]]  # where a pair is in its file, and its fields
REASONS = ("repeated prompt", "no minimal edit", "token lengths", "answer", "other")


@dataclass(frozen=True)
class PairsReport:
    """What became of the pairs of a file.

    Attributes:
        task: what the pairs are called: the stem of the file.
        source: name and SHA-256 of the file, for the record.
        read: pairs in the file.
        dropped: how many of them were left out, by reason: `repeated prompt` (every prompt is used once, and a pair
            of equal prompts is none), `no minimal edit` (more than `MAXIMUM_SHARE` of the words differ), `token
            lengths` (of source and target, or of an edit), `answer` (not one token after its prompt), `other`.
        first: reason -> the first pair it left out, with its line.
        by_split: how many of them are of each split; without splits in the file they are dealt after the others.
    """

    task: str
    source: str
    read: int
    dropped: Mapping[str, int]
    first: Mapping[str, str]
    by_split: Mapping[str, int]

    def __str__(self) -> str:
        kept = self.read - sum(self.dropped.values())
        told = "; ".join(f"{self.dropped[reason]} {reason} ({self.first[reason]})" for reason in self.dropped)
        return f"{self.source}: {kept} of {self.read} pairs used" + (f"; dropped: {told}" if told else "")


@dataclass
class _Left:
    """Pairs left out, as they are met."""

    count: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    splits: Counter[str | None] = field(default_factory=Counter)

    def out(self, reason: str, why: str, split: str | None) -> None:
        self.count[reason] += 1
        self.first.setdefault(reason, why)
        self.splits[split] += 1


def read_pairs(
    path: str | Path, lm: Any, seed: int = 0, *, name: str | None = None, last_token_only: bool = False
) -> tuple[tuple[Pair, ...], PairsReport]:
    """Pairs of a file as minimal edits, and a report of what was dropped and why (source document, 04 Panels).

    Without `split` in the file the pairs are dealt to the three splits in turn, in the order of the stream
    (seed, task, "all", "splits"). Of two orientations the one the file has first has sign 1, the other -1.

    Args:
        path: a .jsonl of pairs, or a .json of two lists.
        lm: a `LanguageModel` or tokenizer, whose tokens the checks are of.
        seed: of the stream.
        name: what the pairs are called; the stem of the file by default.
        last_token_only: whether pairs that are no minimal edits, or not of equal token length, are kept and marked, to
            be compared and patched at their last tokens alone.

    Raises:
        ValueError: an argument of the wrong type or out of range.
        InputError: one line with file, line, field and value: a file of another form, a missing, blank or unknown
            field, lists of unequal length, an unknown split, a third orientation, or no pair that can be used.
    """
    path = file_path("path", path)
    whole_number("seed", seed, 0)
    task = path.stem if name is None else name
    if isinstance(lm, str | type) or not callable(getattr(lm, "encode", None)):
        raise InputError(f"lm must be a language model or a tokenizer, got {type(lm).__name__}")
    rows = read_rows(path)
    signs = orientation_signs(rows)
    left, used, kept = _Left(), set(), []
    for number, (where, row) in enumerate(rows, start=1):
        prompts = {normalised(row["source"]), normalised(row["target"])}
        if len(prompts) < 2 or prompts & used:
            left.out("repeated prompt", f"{where}: {row['source']!r}", row.get("split"))
            continue
        try:
            pair = build_pair(lm, _draft(task, number, row, signs, last_token_only), last_token_only)
        except InputError as error:
            reason = next((reason for kind, reason in KINDS.items() if isinstance(error, kind)), "other")
            left.out(reason, f"{where}: {error}", row.get("split"))
        else:
            used |= prompts
            kept.append(pair)
    dropped = {reason: left.count[reason] for reason in REASONS if left.count[reason]}
    source = f"{path.name} sha256:{sha256_file(path)}"
    given = "split" in rows[0][1]
    turns = (SPLITS[turn % len(SPLITS)] for turn in range(len(kept), len(rows)))
    by_split = left.splits if given else Counter(turns)
    report = PairsReport(task, source, len(rows), dropped, left.first, {split: by_split[split] for split in SPLITS})
    if not kept:
        raise InputError(f"{path}: {report}")
    return (tuple(kept) if given else _dealt(kept, task, seed)), report


def _dealt(pairs: list[Pair], task: str, seed: int) -> tuple[Pair, ...]:
    """The pairs in the order of the file, with splits dealt in turn over a random order."""
    order = stream(seed, task, "all", "splits").permutation(len(pairs))
    splits = {int(index): SPLITS[turn % len(SPLITS)] for turn, index in enumerate(order)}
    return tuple(replace(pair, split=splits[index]) for index, pair in enumerate(pairs))


# --- the file -------------------------------------------------------------------------------------------------------


def read_rows(path: Path) -> list[Row]:
    """Where each pair is in the file, and its fields; splits and orientations are those that there can be.

    Raises:
        InputError: as `read_pairs`, before a tokenizer is asked.
    """
    rows = list(_rows(path))
    if not rows:
        raise InputError(f"{path}: holds no pairs; each line needs {', '.join(FIELDS)}")
    _check_splits(rows)
    orientation_signs(rows)
    return rows


def _rows(path: Path) -> Iterator[Row]:
    if path.suffix == ".json":
        yield from _contrast_rows(path)
        return
    if path.suffix != ".jsonl":
        raise InputError(f"{path}: pairs are read from .jsonl, or .json with the lists negative and positive")
    for number, row in enumerate(read_json_lines(path), start=1):
        where = f"{path}:{number}"
        _check_fields(where, row, FIELDS, OPTIONAL)
        yield where, {name: _text(where, name, value) for name, value in row.items()}


def _contrast_rows(path: Path) -> Iterator[Row]:
    found = parse_json(read_text(path), str(path))
    answers = tuple(f"{name}_answer" for name in LISTS)
    _check_fields(str(path), found, (*LISTS, *answers))
    for name in LISTS:
        if not isinstance(found[name], list):
            raise InputError(f"{path}: {name}: must be a list of prompts, got {type(found[name]).__name__}")
    lengths = [len(found[name]) for name in LISTS]
    if lengths[0] != lengths[1]:
        raise InputError(f"{path}: negative has {lengths[0]} prompts and positive {lengths[1]}; they are read in pairs")
    source_answer, target_answer = (_text(str(path), name, found[name]) for name in answers)
    for number, prompts in enumerate(zip(found["negative"], found["positive"], strict=True), start=1):
        where = f"{path}: prompts {number}"
        source, target = (_text(where, name, text) for name, text in zip(LISTS, prompts, strict=True))
        row = {"source": source, "target": target, "orientation": "negative-positive"}
        yield where, row | {"source_answer": source_answer, "target_answer": target_answer}


def _check_fields(where: str, row: Any, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected an object with {', '.join(needed)}, got {type(row).__name__}")
    for name in needed:
        if name not in row:
            raise InputError(f"{where}: {name}: the field is missing; needed: {', '.join(needed)}")
    if unknown := sorted(set(row) - {*needed, *optional}):
        raise InputError(f"{where}: {unknown[0]}: unknown field; known: {', '.join((*needed, *optional))}")


def _text(where: str, name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or value != value.rstrip():
        raise InputError(f"{where}: {name}: {value!r} must be text that does not end with white space")
    return value


def orientation_signs(rows: list[Row]) -> dict[str, int]:
    """The sign of each orientation; of two the first has 1."""
    signs: dict[str, int] = {}
    for where, row in rows:
        orientation = row.get("orientation", "source-target")
        if orientation not in signs and len(signs) == 2:
            raise InputError(f"{where}: orientation: {orientation!r} is the third; the others are {', '.join(signs)}")
        signs.setdefault(orientation, -1 if signs else 1)
    return signs


def _check_splits(rows: list[Row]) -> None:
    given = "split" in rows[0][1]
    for where, row in rows:
        if ("split" in row) != given:
            raise InputError(f"{where}: split: must be in every line or in none")
        if given and row["split"] not in SPLITS:
            raise InputError(f"{where}: split: must be one of {', '.join(SPLITS)}, got {row['split']!r}")


# --- drafts ---------------------------------------------------------------------------------------------------------


class _NoMinimalEdit(InputError):
    """Two prompts that differ in too many of their words."""


KINDS = {_NoMinimalEdit: "no minimal edit", UnequalLength: "token lengths", BrokenAnswer: "answer"}


def _draft(task: str, number: int, row: Mapping[str, str], signs: Mapping[str, int], last_token_only: bool) -> Draft:
    orientation = row.get("orientation", "source-target")
    pieces = _edits(row["source"], row["target"])
    share = max(
        sum(len(piece[side].split()) for piece in pieces if isinstance(piece, tuple)) / len(row[name].split())
        for side, name in enumerate(("source", "target"))
    )
    if share > MAXIMUM_SHARE and not last_token_only:
        raise _NoMinimalEdit(f"{share:.0%} of the words differ, at most {MAXIMUM_SHARE:.0%} may")
    return Draft(
        id=f"{task}/{number}",
        task=task,
        split=row.get("split", SPLITS[0]),
        orientation=orientation,
        pieces=pieces,
        source_answers=(row["source_answer"],),
        target_answers=(row["target_answer"],),
        sign=signs[orientation],
    )


def _edits(source: str, target: str) -> tuple[Piece, ...]:
    """The pieces of two prompts: an edit for each run of words that differ, or one edit where the counts differ."""
    a, b = source.split(" "), target.split(" ")
    if len(a) != len(b):
        return minimal_edit(source, target)
    words = [(" " * (index > 0) + x, " " * (index > 0) + y) for index, (x, y) in enumerate(zip(a, b, strict=True))]
    starts = [0, *(k for k, (x, y) in enumerate(pairwise(words), start=1) if (x[0] == x[1]) != (y[0] == y[1]))]
    pieces: list[Piece] = []
    for start, end in pairwise([*starts, len(words)]):
        both = tuple("".join(word[side] for word in words[start:end]) for side in (0, 1))
        pieces.append(both[0] if both[0] == both[1] else both)
    return tuple(pieces)
