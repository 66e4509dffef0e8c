"""A rendered file against what it should hold."""

import csv
import io
import math
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

import pandas as pd

from sparse_control.files import read_text
from sparse_control.records import manifest
from sparse_control.tables.render import csv_text
from sparse_control.verify.check import Check, attempt
from sparse_control.verify.finding import TOLERANCE


def same_cell(saved: str, expected: str) -> bool:
    """Equal text, or equal numbers up to rounding: the same sum may round differently on another machine."""
    if saved == expected:
        return True
    try:
        return math.isclose(float(saved), float(expected), rel_tol=TOLERANCE)
    except ValueError:
        return False


def cell_check(paper: Path, path: Path, frame: pd.DataFrame) -> Check:
    """The saved .csv at `path` below `paper`, cell by cell."""
    title = f"recomputed {path.relative_to(paper.parent).as_posix()}"
    parsed, check = attempt(
        title, lambda: [list(csv.reader(io.StringIO(text))) for text in (csv_text(frame), read_text(path))]
    )
    if parsed is None:
        return check
    expected, saved = parsed
    if saved[:1] != expected[:1]:
        found = ",".join(saved[0]) if saved else "none"
        return Check(title, "FAIL", f"expected columns {','.join(expected[0])}, got {found}")
    if len(saved) != len(expected):
        return Check(title, "FAIL", f"expected {len(expected) - 1} rows, got {len(saved) - 1}")
    wrong = [
        f"row {number}, column {column}: saved {old!r:.120}, recomputed {new!r:.120}"
        for number, (saved_row, row) in enumerate(zip(saved[1:], expected[1:], strict=True), start=1)
        for column, old, new in zip_longest(expected[0], saved_row, row, fillvalue="")
        if not same_cell(old, new)
    ]
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return Check(title, "FAIL", wrong[0] + more) if wrong else Check(title, "ok")


def text_check(paper: Path, path: Path, text: str) -> Check:
    """The saved file at `path` below `paper`, byte by byte."""
    title = f"rendered {path.relative_to(paper.parent).as_posix()}"
    saved, check = attempt(title, lambda: read_text(path))
    if saved is None or saved == text:
        return check
    lines = zip_longest(saved.split("\n"), text.split("\n"))
    number, (old, new) = next((number, pair) for number, pair in enumerate(lines, start=1) if pair[0] != pair[1])
    return Check(title, "FAIL", f"line {number}: saved {old!r:.120}, rendered {new!r:.120}")


def unmade_checks(paper: Path, folder: str, made: Iterable[str]) -> Iterator[Check]:
    """Every file of a folder below `paper` that the manifest lists and no measurement makes."""
    listed, _ = attempt(manifest.NAME, lambda: manifest.read_rendered_manifest(paper))
    present = set(manifest.rendered_files(paper)).intersection(listed.files if listed else ())
    for name in sorted(present - {f"{folder}/{name}" for name in made}):
        if name.startswith(f"{folder}/"):
            yield Check(f"rendered {paper.name}/{name}", "FAIL", "no measurements make it; remove it, or run reproduce")
