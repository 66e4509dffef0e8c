"""Every check over a root: hashes, records, recomputation, re-rendering, rules, claims and provenance.

The nulls and the medium model are roots of their own below it; each is checked as the root is, and its tables with
those of the root.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparse_control.errors import InputError
from sparse_control.iss.uncertainty import relation_bootstrap
from sparse_control.records import manifest
from sparse_control.records.base import printable
from sparse_control.records.jacobian_iss import FILES, IssRecords, read_iss_file
from sparse_control.records.published import read_published
from sparse_control.records.read import Records
from sparse_control.records.six_axis import measurement_files, read_measurements
from sparse_control.tables.table import cell_text
from sparse_control.verify.agreement import disagreements
from sparse_control.verify.check import Check, attempt
from sparse_control.verify.files import factor_checks, frozen_checks, manifest_checks, unhashed_checks
from sparse_control.verify.frozen import freeze_checks
from sparse_control.verify.provenance import provenance_checks, sub_root_checks
from sparse_control.verify.rendered import same_cell, table_checks
from sparse_control.verify.rules import broken_rules

__all__ = ["Check", "verify"]


def verify(root: Path, project: Path) -> list[Check]:
    """Run every check over `root`; templates, claims and values come from `project`.

    Raises:
        InputError: nothing can be checked: the folder is missing, unreadable, or without any measurement.
    """
    root, project = Path(root), Path(project)
    manifest.check_root(root)
    places = manifest.sub_roots(root)
    records, read = _records(root, project, places)
    checks = list(manifest_checks(root, ""))
    for place in places:
        checks += manifest_checks(root / place, f"{place}/")
    checks += read
    if records is None:
        checks.append(Check("tables", "skip", "not recomputed, as records above cannot be read"))
    else:
        missing = _missing_records(root)
        checks += provenance_checks(root, records)
        checks += _iss_checks(root, "", records.iss, whole="iss" not in missing)
        for place, iss in records.sub_roots.items():
            lost = _missing_records(root / place)
            missing |= {place: f"{place}/{lost['iss']}"} if "iss" in lost else {}
            checks += sub_root_checks(root, place, iss, records.iss)
            checks += _iss_checks(root / place, f"{place}/", iss, whole=place not in missing)
        checks += table_checks(root, project, records, missing)
    return [
        Check(printable(check.name), check.status, printable(check.detail.replace(f"{root}/", ""))) for check in checks
    ]


def _iss_checks(root: Path, place: str, iss: IssRecords, *, whole: bool) -> Iterator[Check]:
    """Frozen files, and where no record is missing agreement, rules and stored intervals."""
    yield from frozen_checks(root, place, iss.freeze)
    yield from unhashed_checks(root, place, iss.freeze)
    yield from freeze_checks(root, place, iss)
    if whole:
        yield from factor_checks(root, place, iss)
        yield from _agreement(place, iss)
        yield from _summary(place, iss)


# --- records --------------------------------------------------------------------------------------------------------


def _records(root: Path, project: Path, places: list[str]) -> tuple[Records | None, list[Check]]:
    """Read file by file, so that every broken one is named."""
    checks, measurements = [], []
    for path in measurement_files(root):
        name = f"records {path.relative_to(root).as_posix()}"
        rows, check = attempt(name, lambda path=path: read_measurements(root, path))
        checks.append(check)
        measurements += rows or []
    parts = {}
    for place in ("", *places):
        fields: dict[str, Any] = {}
        for field, (name, _) in FILES.items():
            if not (root / place / "jacobian_iss" / name).exists():
                continue
            title = f"records {place + '/' if place else ''}jacobian_iss/{name}"
            fields[field], check = attempt(title, lambda place=place, field=field: read_iss_file(root / place, field))
            checks.append(check)
        parts[place] = fields
    published, check = attempt("paper/published.yaml", lambda: read_published(project))
    checks.append(check)
    if any(check.status == "FAIL" for check in checks):
        return None, checks
    iss = {place: IssRecords(**fields) for place, fields in parts.items()}
    return Records(measurements=tuple(measurements), iss=iss.pop(""), published=published, sub_roots=iss), checks


def _missing_records(root: Path) -> dict[str, str]:
    """Group of tables -> the first listed measurement without which its tables cannot be what they were."""
    iss = {f"jacobian_iss/{name}" for name, _ in FILES.values()}
    try:
        listed = (manifest.read_manifest(root) or manifest.Manifest()).measurements
    except InputError:  # named by the check of the manifest
        return {}
    missing: dict[str, str] = {}
    for name in sorted(listed):
        if not (root / name).is_file():
            groups = ("protocol", "published") if name.startswith("measurements/") else ("iss",) if name in iss else ()
            for group in (*groups, *(("setup",) if groups else ())):
                missing.setdefault(group, name)
    return missing


# --- internal state stability ---------------------------------------------------------------------------------------


def _agreement(place: str, iss: IssRecords) -> Iterator[Check]:
    """The files of `jacobian_iss/` held against each other and against the fixed rules."""
    for title, kind, source in (
        ("files agree", "agreement", disagreements),
        ("decisions follow the rules", "rule", broken_rules),
    ):
        found, check = attempt(f"{place}jacobian_iss {title}", lambda source=source: list(source(iss)))
        if found:
            yield from (Check(f"{kind} {place}jacobian_iss/{name}", "FAIL", detail) for name, detail in found)
        else:
            yield check


def _summary(place: str, iss: IssRecords) -> Iterator[Check]:
    """Means and bootstrap intervals the measuring run stored, against the facts' own rows."""
    if iss.summary is None or iss.freeze is None:
        return
    settings = iss.freeze.settings.iss
    for metric, stored in (("ISS", iss.summary.ISS), ("Raw-ISS", iss.raw)):
        facts = [
            row for row in iss.facts if (row.model, row.metric) == (iss.summary.model, metric) and row.iss is not None
        ]
        if stored is None and not facts:
            continue
        name = f"stored mean and intervals of {place}{metric}"
        if stored is None or not facts:
            yield Check(name, "FAIL", f"{len(facts)} facts have a value, but the stored summary is {stored!r:.60}")
            continue
        values, relations = [row.iss for row in facts], [row.relation for row in facts]
        found, check = attempt(name, lambda values=values, relations=relations: relation_bootstrap(
            values, relations, n_resamples=settings.bootstrap_resamples, seed=settings.bootstrap_seed
        ))  # fmt: skip
        if found is None:
            yield check
            continue
        wrong = [
            f"{part} stored {old}, recomputed {new}"
            for part in ("mean", "percentile", "bca")
            for old, new in [(_edges(getattr(stored, part)), _edges(found[part]))]
            if not all(map(same_cell, old, new))
        ]
        yield Check(name, "FAIL", "; ".join(wrong)) if wrong else Check(name, "ok")


def _edges(value: Any) -> list[str]:
    return [cell_text(part) for part in (value if isinstance(value, (list, tuple)) else [value])]
