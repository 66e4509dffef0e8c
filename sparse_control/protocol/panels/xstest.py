"""Refusal pairs from XSTest: a safe prompt and an unsafe one that share most of their words."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse_control.protocol.panels.draw import SPLITS, Plan
from sparse_control.protocol.panels.loaders import XsTest
from sparse_control.protocol.panels.pair import Piece
from sparse_control.protocol.panels.refusal import TASK, refusal_draft

MAXIMUM_SHARE = 0.6  # of a prompt's words that an edit may take


@dataclass(frozen=True)
class Match:
    """A safe prompt and its unsafe partner, by text and row number."""

    safe: str
    unsafe: str
    rows: tuple[int, int]


def matches(data: XsTest, encoder: Any) -> tuple[Match, ...]:
    """Partners of one kind and equal token length, the nearest first; every prompt has one partner at most."""
    lengths: dict[str, int] = {}

    def length(text: str) -> int:
        return lengths.setdefault(text, len(encoder.encode(text)))

    found: list[Match] = []
    for kind in data.safe:
        near = sorted(
            (distance, safe, unsafe)
            for safe in data.safe[kind]
            for unsafe in data.unsafe.get(kind, ())
            if (distance := _distance(safe[1], unsafe[1])) <= MAXIMUM_SHARE
        )
        used: set[int] = set()
        for _, (row, safe), (other, unsafe) in near:
            if not {row, other} & used and length(safe) == length(unsafe):
                used |= {row, other}
                found.append(Match(safe, unsafe, (row, other)))
    return tuple(found)


def of_split(data: XsTest, split: str, encoder: Any) -> tuple[Match, ...]:
    """The matches, dealt to the splits in turn."""
    return matches(data, encoder)[SPLITS.index(split) :: len(SPLITS)]


def plan(data: XsTest, split: str, generator: np.random.Generator, encoder: Any) -> Plan:
    """The matches of a split in a random order; how many there are depends on the tokenizer."""
    found = of_split(data, split, encoder)
    return Plan(
        candidates=[found[i] for i in generator.permutation(len(found))],
        drafts=lambda pairs, match: (
            refusal_draft(
                f"{TASK}/{split}/xstest-{match.rows[0]}-{match.rows[1]}", split, minimal_edit(match.safe, match.unsafe)
            ),
        ),
        fewer=True,
        passed_over=sum(map(len, data.safe.values())) - len(matches(data, encoder)),
    )


def units(data: XsTest, split: str, encoder: Any) -> dict[str, tuple[str, ...]]:
    """What no other split may hold."""
    return {"prompt": tuple(text for match in of_split(data, split, encoder) for text in (match.safe, match.unsafe))}


def minimal_edit(source: str, target: str) -> tuple[Piece, ...]:
    """The pieces of two texts: the words they begin with, one edit, the words they end with."""
    a, b = re.findall(r"\s*\S+", source), re.findall(r"\s*\S+", target)
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    longest = min(len(a), len(b)) - start
    end = next((i for i, (x, y) in enumerate(zip(a[::-1], b[::-1], strict=False)) if x != y or i == longest), longest)
    edit = ("".join(a[start : len(a) - end]), "".join(b[start : len(b) - end]))
    return tuple(piece for piece in ("".join(a[:start]), edit, "".join(a[len(a) - end :])) if piece)


def _distance(source: str, target: str) -> float:
    """The larger share of words that the edit takes, 0..1."""
    edit = next(piece for piece in minimal_edit(source, target) if isinstance(piece, tuple))
    return max(len(side.split()) / len(whole.split()) for side, whole in zip(edit, (source, target), strict=False))
