"""A table rounded and captioned, nothing but strings, and how a terminal shows it."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sparse_control.records.base import printable

GAP = "  "  # between columns
SHORTEST = 12  # characters to which a column of words is cut at most


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A table ready for a template.

    Attributes:
        name: of its files.
        label: by which LaTeX refers to it, of letters alone.
        by_model: whether there are several models; then the first cell of a row is the name of its model.
    """

    name: str
    label: str
    title: str
    caption: str
    by_model: bool
    headings: tuple[str, ...]
    aligns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def plain_text(table: Shown, width: int | None = None) -> str:
    """A table for the terminal: title and caption, then aligned columns.

    Args:
        table: what is shown.
        width: characters of a line at most; captions are wrapped, and columns that do not fit beside each other come
            below each other, the first ones of words again before each part. None: lines as long as they are.
    """
    about = f"{table.name}: {table.title}. {printable(table.caption)}"
    caption = [about] if width is None else textwrap.wrap(about, width)
    every = range(len(table.headings))
    whole = width is None
    lines = list(_rows(table, every, [_width(table, index) for index in every]) if whole else _parts(table, width))
    if not table.rows:
        lines.append("(no records)")
    return "\n".join([*caption, "", *lines]) + "\n"


def _parts(table: Shown, width: int) -> Iterator[str]:
    """The columns in as many parts as the width needs; long words of the first ones are cut to leave room."""
    keys = _keys(table.aligns)
    widths = [min(_width(table, index), width * 3 // 5) for index in range(len(table.headings))]
    room = width - max([widths[index] + len(GAP) for index in range(len(keys), len(widths))], default=0)
    while sum(widths[key] + len(GAP) for key in keys) - len(GAP) > room:
        widest = max(keys, key=lambda key: widths[key])
        if widths[widest] <= SHORTEST:
            break
        widths[widest] -= 1
    part = list(keys)
    for index in range(len(keys), len(widths)):
        if part != keys and sum(widths[one] + len(GAP) for one in (*part, index)) - len(GAP) > width:
            yield from _rows(table, part, widths)
            yield ""
            part = list(keys)
        part.append(index)
    yield from _rows(table, part, widths)


def _keys(aligns: Sequence[str]) -> list[int]:
    """The first columns, those of words, which say what a row is of."""
    for index, align in enumerate(aligns):
        if align == "r":
            return list(range(max(1, index)))
    return list(range(len(aligns)))


def _heading(table: Shown, index: int) -> list[str]:
    return table.headings[index].split("\n")


def _width(table: Shown, index: int) -> int:
    return max(map(len, [*_heading(table, index), *(printable(row[index]) for row in table.rows)]))


def _rows(table: Shown, columns: Sequence[int], every: Sequence[int]) -> Iterator[str]:
    """The heading over as many lines as its longest column has, a rule, and the rows, of some columns.

    Args:
        every: width of every column of the table.
    """
    widths = [every[index] for index in columns]
    headings = [_heading(table, index) for index in columns]
    height = max(map(len, headings))
    padded = [[""] * (height - len(lines)) + lines for lines in headings]
    for cells in zip(*padded, strict=True):
        yield _line(cells, widths, [table.aligns[index] for index in columns])
    yield "-" * len(GAP.join("-" * width for width in widths))
    for row in table.rows:
        yield _line([printable(row[index]) for index in columns], widths, [table.aligns[index] for index in columns])


def _line(cells: Sequence[str], widths: Sequence[int], aligns: Sequence[str]) -> str:
    cut = [cell if len(cell) <= width else cell[: width - 1] + "…" for cell, width in zip(cells, widths, strict=True)]
    parts = zip(cut, widths, aligns, strict=True)
    return GAP.join(cell.rjust(width) if align == "r" else cell.ljust(width) for cell, width, align in parts).rstrip()
