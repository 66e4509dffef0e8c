"""Tables recomputed and rendered again, against those that were rendered."""

import csv
import io
import math
from collections.abc import Collection, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path

import pandas as pd

from sparse_control.files import read_text
from sparse_control.provenance.sources import sources_of
from sparse_control.records import manifest
from sparse_control.records.paths import TABLES, paper_folder
from sparse_control.records.read import Records
from sparse_control.tables import all_tables
from sparse_control.tables.render import csv_text, render
from sparse_control.verify.check import Check, attempt
from sparse_control.verify.finding import TOLERANCE
from sparse_control.verify.prose import claim_checks, value_checks


def table_checks(root: Path, project: Path, records: Records, missing: Collection[str]) -> Iterator[Check]:
    """Recomputed, rendered and claimed; tables that are made of a missing measurement are left out.

    Args:
        root: the folder measured into.
        project: the project folder, of templates, claims and values.
        records: that were read of `root`.
        missing: listed files that are not there, relative to `root`.
    """
    frames, check = attempt("tables", lambda: all_tables(records))
    if frames is None:
        yield check
        return
    paper = paper_folder(root, project)
    saved = [name.removeprefix(f"{TABLES}/") for name in manifest.rendered_files(paper) if name.endswith(".csv")]
    names = dict.fromkeys([*frames, *(name.removesuffix(".csv") for name in saved)])  # a table may be without rows
    lost = {name: set(sources_of(name, missing)) for name in names}
    skipped = [name for name in names if lost[name]]
    for name, frame in frames.items():
        if name not in skipped:
            yield from _cells(paper, name, frame)
    files, check = attempt("rendered tables", lambda: render(records, project, frames))
    if files is None:
        yield check
        return
    yield from _rendered(paper, files, skipped)
    if skipped:
        causes = ", ".join(sorted(set.union(*lost.values())))
        yield Check("tables", "skip", f"{', '.join(skipped)} not recomputed; missing: {causes}")
    whole = {name: frame for name, frame in frames.items() if name not in skipped}
    yield from claim_checks(root, project, whole, skipped)
    yield from value_checks(root, project, whole, skipped)


def same_cell(saved: str, expected: str) -> bool:
    """Equal text, or equal numbers up to rounding: the same sum may round differently on another machine."""
    if saved == expected:
        return True
    try:
        return math.isclose(float(saved), float(expected), rel_tol=TOLERANCE)
    except ValueError:
        return False


def _cells(paper: Path, name: str, frame: pd.DataFrame) -> Iterator[Check]:
    """The saved .csv cell by cell."""
    path = paper / TABLES / f"{name}.csv"
    title = f"recomputed {path.relative_to(paper.parent).as_posix()}"
    parsed, check = attempt(
        title, lambda: [list(csv.reader(io.StringIO(text))) for text in (csv_text(frame), read_text(path))]
    )
    if parsed is None:
        yield check
        return
    expected, saved = parsed
    if saved[:1] != expected[:1]:
        found = ",".join(saved[0]) if saved else "none"
        yield Check(title, "FAIL", f"expected columns {','.join(expected[0])}, got {found}")
        return
    if len(saved) != len(expected):
        yield Check(title, "FAIL", f"expected {len(expected) - 1} rows, got {len(saved) - 1}")
        return
    wrong = [
        f"row {number}, column {column}: saved {old!r:.120}, recomputed {new!r:.120}"
        for number, (saved_row, row) in enumerate(zip(saved[1:], expected[1:], strict=True), start=1)
        for column, old, new in zip_longest(expected[0], saved_row, row, fillvalue="")
        if not same_cell(old, new)
    ]
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    yield Check(title, "FAIL", wrong[0] + more) if wrong else Check(title, "ok")


def _rendered(paper: Path, files: Mapping[str, str], skipped: Collection[str]) -> Iterator[Check]:
    """The saved .tex and .html, byte by byte; pages and values are made of every table."""
    unsure = {f"{name}.tex" for name in skipped}
    for name, text in files.items():
        whole = name.endswith(".html") or name == "values.tex"
        if name.endswith(".csv") or name in unsure or (whole and skipped):
            continue
        path = paper / TABLES / name
        title = f"rendered {path.relative_to(paper.parent).as_posix()}"
        saved, check = attempt(title, lambda path=path: read_text(path))
        if saved is None or saved == text:
            yield check
            continue
        lines = zip_longest(saved.split("\n"), text.split("\n"))
        number, (old, new) = next((number, pair) for number, pair in enumerate(lines, start=1) if pair[0] != pair[1])
        yield Check(title, "FAIL", f"line {number}: saved {old!r:.120}, rendered {new!r:.120}")
    if not skipped:
        listed, _ = attempt(manifest.NAME, lambda: manifest.read_rendered_manifest(paper))
        present = set(manifest.rendered_files(paper)).intersection(listed.files if listed else ())
        for name in sorted(present - {f"{TABLES}/{name}" for name in files}):
            if name.startswith(f"{TABLES}/"):
                title = f"{paper.name}/{name}"
                yield Check(f"rendered {title}", "FAIL", "no measurements make it; remove it, or run reproduce")
