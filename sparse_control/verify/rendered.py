"""Tables recomputed and rendered again, against those that stand in `paper/tables/`."""

import csv
import io
import math
from collections.abc import Collection, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path

import pandas as pd

from sparse_control.files import read_text
from sparse_control.records import manifest
from sparse_control.records.read import Records
from sparse_control.tables import TABLES, all_tables
from sparse_control.tables.render import csv_text, render
from sparse_control.verify.check import Check, attempt
from sparse_control.verify.prose import claim_checks, value_checks

CELL_TOLERANCE = 1e-9  # relative; the same sum may round differently on another machine


def table_checks(root: Path, project: Path, records: Records, missing: Mapping[str, str]) -> Iterator[Check]:
    """Recomputed, rendered and claimed; tables that hang on a measurement in `missing` are left out.

    Args:
        missing: group of tables, or sub-root -> a listed measurement that is not there.
    """
    frames, check = attempt("tables", lambda: all_tables(records))
    if frames is None:
        yield check
        return
    skipped = [name for name in frames if _hangs_on(name) & set(missing)]
    for name, frame in frames.items():
        if name not in skipped:
            yield from _cells(root, name, frame)
    files, check = attempt("rendered tables", lambda: render(records, project, frames))
    if files is None:
        yield check
        return
    yield from _rendered(root, files, skipped)
    if skipped:
        causes = ", ".join(sorted(set(missing.values())))
        yield Check("tables", "skip", f"{', '.join(skipped)} not recomputed; missing: {causes}")
    whole = {name: frame for name, frame in frames.items() if name not in skipped}
    yield from claim_checks(root, project, whole, skipped)
    yield from value_checks(root, project, whole, skipped)


def _hangs_on(name: str) -> set[str]:
    """The groups of measurements that a table is made of."""
    place, _, table = name.rpartition("/")
    if place:
        return {place}
    return {TABLES[table].group} | (set(manifest.SUB_ROOTS) if table in ("nulls", "findings") else set())


def same_cell(saved: str, expected: str) -> bool:
    """Equal text, or equal numbers up to rounding."""
    if saved == expected:
        return True
    try:
        return math.isclose(float(saved), float(expected), rel_tol=CELL_TOLERANCE)
    except ValueError:
        return False


def _cells(root: Path, name: str, frame: pd.DataFrame) -> Iterator[Check]:
    """The saved .csv cell by cell."""
    place = f"paper/tables/{name}.csv"
    title = f"recomputed {place}"
    parsed, check = attempt(
        title, lambda: [list(csv.reader(io.StringIO(text))) for text in (csv_text(frame), read_text(root / place))]
    )
    if parsed is None:
        yield check
        return
    expected, saved = parsed
    if saved[:1] != expected[:1]:
        found = ",".join(saved[0]) if saved else "none"
        yield Check(title, "FAIL", f"{place}: expected columns {','.join(expected[0])}, got {found}")
        return
    if len(saved) != len(expected):
        yield Check(title, "FAIL", f"{place}: expected {len(expected) - 1} rows, got {len(saved) - 1}")
        return
    wrong = [
        f"{place}: row {number}, column {column}: saved {old!r:.120}, recomputed {new!r:.120}"
        for number, (saved_row, row) in enumerate(zip(saved[1:], expected[1:], strict=True), start=1)
        for column, old, new in zip_longest(expected[0], saved_row, row, fillvalue="")
        if not same_cell(old, new)
    ]
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    yield Check(title, "FAIL", wrong[0] + more) if wrong else Check(title, "ok")


def _rendered(root: Path, files: Mapping[str, str], skipped: Collection[str]) -> Iterator[Check]:
    """The saved .tex and .html, byte by byte; pages and values hang on every table."""
    unsure = {f"{name}.tex" for name in skipped}
    for name, text in files.items():
        whole = name.endswith(".html") or name == "values.tex"
        if name.endswith(".csv") or name in unsure or (whole and skipped):
            continue
        place = f"paper/tables/{name}"
        saved, check = attempt(f"rendered {place}", lambda place=place: read_text(root / place))
        if saved is None or saved == text:
            yield check
            continue
        lines = zip_longest(saved.split("\n"), text.split("\n"))
        number, (old, new) = next((number, pair) for number, pair in enumerate(lines, start=1) if pair[0] != pair[1])
        yield Check(check.name, "FAIL", f"{place}:{number}: saved {old!r:.120}, rendered {new!r:.120}")
    if not skipped:
        listed, _ = attempt(manifest.NAME, lambda: manifest.read_manifest(root))
        made = {f"paper/tables/{name}" for name in files}
        present = set(manifest.table_files(root)).intersection(listed.tables if listed else ())
        for name in sorted(present - made):
            yield Check(f"rendered {name}", "FAIL", f"{name}: no measurements make it; remove it, or run reproduce")
