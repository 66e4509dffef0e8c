"""Every check over a root: hashes, records, recomputation, re-rendering, claims and provenance."""

import csv
import io
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from sparse_control.artifact import manifest
from sparse_control.artifact.agreement import disagreements
from sparse_control.artifact.claims import check_claim, read_claims
from sparse_control.artifact.iss_files import FILES, FreezeManifest, IssRecords, read_iss_file
from sparse_control.artifact.layout import LAYOUTS
from sparse_control.artifact.measurements import Measurement, measurement_files, read_measurements
from sparse_control.artifact.records import printable
from sparse_control.artifact.render import csv_text, render
from sparse_control.artifact.tables import Records, all_tables, read_published
from sparse_control.artifact.tables.common import cell_text
from sparse_control.code_hash import code_sha256
from sparse_control.errors import InputError
from sparse_control.files import read_text, sha256_file
from sparse_control.iss.uncertainty import relation_bootstrap

BINARY = (".pt", ".safetensors")
CELL_TOLERANCE = 1e-9  # relative; the same sum may round differently on another machine
# the modules whose closures code_sha256 covers, in six-axis records and in the freeze manifest
SIX_AXIS_CODE = ("sparse_control.protocol.study",)
# what reading content of another shape than expected can raise, beside InputError
MALFORMED = (OSError, csv.Error, ValueError, ArithmeticError, KeyError, TypeError, AttributeError, RecursionError)
ISS_CODE = tuple(f"sparse_control.stages.{name}" for name in ("a_reference", "b_validate", "c_freeze", "d_official"))


@dataclass(frozen=True)
class Check:
    """One line of the report; `warn` and `skip` say something without failing."""

    name: str
    status: Literal["ok", "FAIL", "warn", "skip"]
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.status:4} {self.name}" + (f": {self.detail}" if self.detail else "")


def verify(root: Path, project: Path) -> list[Check]:
    """Run every check over `root`; templates and claims come from `project`.

    Raises:
        InputError: nothing can be checked: the folder is missing, unreadable, or without any measurement.
    """
    root, project = Path(root), Path(project)
    manifest.check_root(root)
    records, read = _records(root, project)
    checks = [*_manifest(root), *read]
    if records is None:
        checks.append(Check("tables", "skip", "not recomputed, as records above cannot be read"))
    else:
        missing = _missing_records(root)
        checks += [*_frozen(root, records.iss.freeze), *_unhashed(root, records.iss.freeze), *_provenance(records)]
        checks += [] if "iss" in missing else [*_agreement(records.iss), *_summary(records.iss)]
        checks += _tables(root, project, records, missing)
    return [
        Check(printable(check.name), check.status, printable(check.detail.replace(f"{root}/", ""))) for check in checks
    ]


def _attempt(name: str, action: Callable[[], Any]) -> tuple[Any, Check]:
    try:
        return action(), Check(name, "ok")
    except InputError as error:
        return None, Check(name, "FAIL", str(error))
    except MALFORMED as error:
        return None, Check(name, "FAIL", f"{type(error).__name__}: {error}")


# --- (a) files against the manifest ---------------------------------------------------------------------------------


def _manifest(root: Path) -> Iterator[Check]:
    listed, check = _attempt(manifest.NAME, lambda: manifest.read_manifest(root))
    if listed is None:
        mend = f"{root / manifest.NAME} is missing; restore it from git, or measure again"
        yield check if check.status == "FAIL" else Check(manifest.NAME, "FAIL", mend)
        return
    halves = (
        (listed.measurements, manifest.measured_files(root), "restore it from git or measure it again"),
        (listed.tables, manifest.table_files(root), "run `python -m sparse_control reproduce`"),
    )
    for hashes, present, mend in halves:
        for name in sorted({*hashes, *present}):
            title = f"manifest {name}"
            verdict, check = _attempt(title, lambda name=name: _hash_verdict(root, name, hashes.get(name), mend))
            yield Check(title, *verdict) if verdict else check


def _hash_verdict(root: Path, name: str, expected: str | None, mend: str) -> tuple[Literal["ok", "FAIL"], str]:
    if expected is None:
        return "FAIL", f"{name} is not listed in {manifest.NAME}; remove it, or {mend}"
    if not (root / name).is_file():
        return "FAIL", f"{name} is missing; {mend}"
    found = sha256_file(root / name)
    return ("ok", "") if found == expected else ("FAIL", f"{name} changed (SHA-256 {found}, listed {expected}); {mend}")


def _frozen(root: Path, freeze: FreezeManifest | None) -> Iterator[Check]:
    """Factors and other files the freeze manifest lists; large binaries may be absent until they are pulled."""
    for name, expected in sorted((freeze.files if freeze else {}).items()):
        title = f"frozen {name}"
        verdict, check = _attempt(title, lambda name=name, expected=expected: _frozen_verdict(root, name, expected))
        yield Check(title, *verdict) if verdict else check


def _frozen_verdict(root: Path, name: str, expected: str) -> tuple[Literal["ok", "FAIL", "skip"], str]:
    path = root / "jacobian_iss" / name
    if not path.is_file():
        missing = "not in this folder; `dvc pull` brings what is versioned"
        return "skip" if path.suffix in BINARY else "FAIL", missing
    found = sha256_file(path)
    return ("ok", "") if found == expected else ("FAIL", f"{name} changed (SHA-256 {found}, frozen {expected})")


def _unhashed(root: Path, freeze: FreezeManifest | None) -> Iterator[Check]:
    """Binaries that no manifest vouches for: an error among the factors, a remark for what only stages A and D read."""
    base = root / "jacobian_iss"
    listed = freeze.files if freeze else {}
    for path in _binaries(base / "low_rank_factors"):
        name = path.relative_to(base).as_posix()
        if name not in listed:
            yield Check(f"frozen {name}", "FAIL", f"{name} is not listed in freeze_manifest.json; remove it")
    for folder in ("full_reference", "transported_states"):
        names = [path.relative_to(base).as_posix() for path in _binaries(base / folder)]
        unlisted = [name for name in names if name not in listed]
        if unlisted:
            detail = f"{len(unlisted)} files are not hashed in {manifest.NAME}, and not checked: {', '.join(unlisted)}"
            yield Check(f"binaries below jacobian_iss/{folder}", "skip", detail)


def _binaries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in BINARY)


# --- records --------------------------------------------------------------------------------------------------------


def _records(root: Path, project: Path) -> tuple[Records | None, list[Check]]:
    """Read file by file, so that every broken one is named."""
    checks, measurements, fields = [], [], {}
    for path in measurement_files(root):
        name = f"records {path.relative_to(root).as_posix()}"
        rows, check = _attempt(name, lambda path=path: read_measurements(root, path))
        checks.append(check)
        measurements += rows or []
    for field, (name, _) in FILES.items():
        if (root / "jacobian_iss" / name).exists():
            fields[field], check = _attempt(
                f"records jacobian_iss/{name}", lambda field=field: read_iss_file(root, field)
            )
            checks.append(check)
    published, check = _attempt("paper/published.yaml", lambda: read_published(project))
    checks.append(check)
    if any(check.status == "FAIL" for check in checks):
        return None, checks
    return Records(measurements=tuple(measurements), iss=IssRecords(**fields), published=published), checks


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


def _agreement(iss: IssRecords) -> Iterator[Check]:
    """The files of `jacobian_iss/` held against each other."""
    found, check = _attempt("jacobian_iss files agree", lambda: list(disagreements(iss)))
    if found:
        yield from (Check(f"agreement jacobian_iss/{place}", "FAIL", detail) for place, detail in found)
    else:
        yield check


def _summary(iss: IssRecords) -> Iterator[Check]:
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
        name = f"stored mean and intervals of {metric}"
        if stored is None or not facts:
            yield Check(name, "FAIL", f"{len(facts)} facts have a value, but the stored summary is {stored!r:.60}")
            continue
        values, relations = [row.iss for row in facts], [row.relation for row in facts]
        found, check = _attempt(name, lambda values=values, relations=relations: relation_bootstrap(
            values, relations, n_resamples=settings.bootstrap_resamples, seed=settings.bootstrap_seed
        ))  # fmt: skip
        if found is None:
            yield check
            continue
        wrong = [
            f"{part} stored {old}, recomputed {new}"
            for part in ("mean", "percentile", "bca")
            for old, new in [(_edges(getattr(stored, part)), _edges(found[part]))]
            if not all(map(_same_cell, old, new))
        ]
        yield Check(name, "FAIL", "; ".join(wrong)) if wrong else Check(name, "ok")


def _edges(value: Any) -> list[str]:
    return [cell_text(part) for part in (value if isinstance(value, (list, tuple)) else [value])]


# --- (b) to (d) tables ---------------------------------------------------------------------------------------------


def _tables(root: Path, project: Path, records: Records, missing: Mapping[str, str]) -> Iterator[Check]:
    """Recomputed, rendered and claimed; tables of a group in `missing` are not, as their measurements are not whole."""
    frames, check = _attempt("tables", lambda: all_tables(records))
    if frames is None:
        yield check
        return
    skipped = [name for name in frames if LAYOUTS[name].group in missing]
    for name, frame in frames.items():
        if name not in skipped:
            yield from _cells(root, name, frame)
    files, check = _attempt("rendered tables", lambda: render(records, project, frames))
    if files is None:
        yield check
        return
    unsure = {f"{name}.tex" for name in skipped} | ({"index.html"} if skipped else set())
    yield from _rendered(root, {name: text for name, text in files.items() if name not in unsure})
    if skipped:
        causes = ", ".join(sorted(set(missing.values())))
        yield Check("tables", "skip", f"{', '.join(skipped)} not recomputed; missing: {causes}")
    yield from _claims(root, project, {name: frame for name, frame in frames.items() if name not in skipped}, skipped)


def _same_cell(saved: str, expected: str) -> bool:
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
    parsed, check = _attempt(
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
        if not _same_cell(old, new)
    ]
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    yield Check(title, "FAIL", wrong[0] + more) if wrong else Check(title, "ok")


def _rendered(root: Path, files: Mapping[str, str]) -> Iterator[Check]:
    """The saved .tex and .html, byte by byte."""
    for name, text in files.items():
        if name.endswith(".csv"):
            continue
        place = f"paper/tables/{name}"
        saved, check = _attempt(f"rendered {place}", lambda place=place: read_text(root / place))
        if saved is None or saved == text:
            yield check
            continue
        lines = zip_longest(saved.split("\n"), text.split("\n"))
        number, (old, new) = next((number, pair) for number, pair in enumerate(lines, start=1) if pair[0] != pair[1])
        yield Check(check.name, "FAIL", f"{place}:{number}: saved {old!r:.120}, rendered {new!r:.120}")


# --- claims ---------------------------------------------------------------------------------------------------------


def _claims(
    root: Path, project: Path, frames: Mapping[str, pd.DataFrame], skipped: Collection[str]
) -> Iterator[Check]:
    """The paper speaks of the project's own measurements; another root is not held to it."""
    if root.resolve() != project.resolve():
        yield Check("claims", "skip", "the paper speaks of the measurements of the project folder")
        return
    claims, check = _attempt("claims", lambda: read_claims(project / "paper" / "claims.yaml"))
    if claims is None:
        yield check
        return
    paper, check = _attempt("claims in paper/main.tex", lambda: read_text(project / "paper" / "main.tex"))
    if paper is None:
        yield check
        return
    prose = " ".join(paper.split())
    for claim in claims:
        if claim.table in skipped:
            yield Check(f"claim {claim.id}", "skip", f"table {claim.table} was not recomputed")
            continue
        text, check = _attempt(f"claim {claim.id}", lambda claim=claim: check_claim(claim, frames))
        if text is not None and " ".join(claim.sentence.split()) not in prose:
            yield Check(check.name, "FAIL", f"paper/main.tex does not have the sentence: {claim.sentence}")
        else:
            yield Check(check.name, "ok", text) if text is not None else check


# --- (e) provenance -------------------------------------------------------------------------------------------------


def _weights(provenance: Mapping[str, Any]) -> str | None:
    return provenance.get("weights_sha256")


def _provenance(records: Records) -> Iterator[Check]:
    groups: dict[str, list[Measurement]] = {}
    for record in records.measurements:
        groups.setdefault(record.model, []).append(record)
    summary = records.iss.summary
    for model in sorted({*groups, *([summary.model] if summary else [])}):
        named = {
            f"{record.task}.{record.selector}.{record.condition} seed {record.seed}": _weights(record.provenance.model)
            for record in groups.get(model, [])
        }
        if summary and summary.model == model:
            named["iss_model_summary.json"] = _weights(summary.provenance.model)
        yield _one_model(model, named)
        if model in groups:
            yield _one_setting(model, groups[model])
    yield from _code(records)


def _one_model(model: str, named: Mapping[str, str | None]) -> Check:
    name = f"provenance {model} weights"
    for place, weights in named.items():
        if not weights:
            return Check(name, "FAIL", f"{place}: provenance.model.weights_sha256 is missing")
    first, reference = next(iter(named.items()))
    for place, weights in named.items():
        if weights != reference:
            return Check(name, "FAIL", f"{place} was measured on weights {weights}, {first} on {reference}")
    return Check(name, "ok")


def _one_setting(model: str, records: list[Measurement]) -> Check:
    """Records of one table were measured under one set of settings by one version of the code."""
    name = f"provenance {model} settings and code"
    for field in ("params_sha256", "code_sha256"):
        values = {getattr(record.provenance, field): record for record in records}
        if len(values) > 1:
            first, second = list(values.values())[:2]
            return Check(
                name, "FAIL", f"{field} differs between {first.key} and {second.key}; measure them again together"
            )
    return Check(name, "ok")


def _code(records: Records) -> Iterator[Check]:
    """A measurement by another version of the code is worth a word; it is not wrong for that."""
    freeze = records.iss.freeze
    for kind, modules, measured in (
        ("six-axis", SIX_AXIS_CODE, {record.provenance.code_sha256 for record in records.measurements}),
        ("ISS", ISS_CODE, {freeze.code_sha256} if freeze else set()),
    ):
        if measured - {code_sha256(*modules)}:
            yield Check(f"provenance {kind} code", "warn", "measured by another version of the code than stands here")
