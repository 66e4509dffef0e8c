"""Tables recomputed and rendered again, against those that were rendered."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from sparse_control.provenance.sources import sources_of
from sparse_control.records import manifest
from sparse_control.records.paths import TABLES, paper_folder
from sparse_control.records.read import Records
from sparse_control.tables.parts import all_tables
from sparse_control.tables.render import render
from sparse_control.verify.cells import cell_check, text_check, unmade_checks
from sparse_control.verify.check import Check, attempt
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
            yield cell_check(paper, paper / TABLES / f"{name}.csv", frame)
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


def _rendered(paper: Path, files: Mapping[str, str], skipped: Collection[str]) -> Iterator[Check]:
    """The saved .tex and .html, byte by byte; pages and values are made of every table."""
    unsure = {f"{name}.tex" for name in skipped}
    for name, text in files.items():
        whole = name.endswith(".html") or name == "values.tex"
        if name.endswith(".csv") or name in unsure or (whole and skipped):
            continue
        yield text_check(paper, paper / TABLES / name, text)
    if not skipped:
        yield from unmade_checks(paper, TABLES, files)
