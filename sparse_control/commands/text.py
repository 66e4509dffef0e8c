"""Rows of text in columns, and values as JSON."""

import json
from collections.abc import Sequence
from typing import Any


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """One line per row, columns as wide as their widest cell, two spaces between."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def json_text(value: Any) -> str:
    """A value as indented JSON of ASCII characters alone, which is the same text in every encoding of a terminal."""
    return json.dumps(value, indent=1, ensure_ascii=True, allow_nan=False)
