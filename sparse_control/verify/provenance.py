"""What the measurements were made with: one model, one set of settings, and which code."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparse_control.code_hash import code_sha256
from sparse_control.records.code import CodeClosure, changed_files, read_closure
from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.manifest import SUB_ROOTS
from sparse_control.records.read import Records
from sparse_control.records.six_axis import Measurement
from sparse_control.verify.check import Check, attempt

# the modules whose closures code_sha256 covers, in six-axis records and in the freeze manifest
SIX_AXIS_CODE = ("sparse_control.protocol.study",)
ISS_CODE = tuple(f"sparse_control.stages.{name}" for name in ("a_reference", "b_validate", "c_freeze", "d_official"))
NULL_OF = {"": "none", "experiment_b": "none"} | {name: name.rpartition("/")[2] for name in SUB_ROOTS if "/" in name}


def _weights(provenance: Mapping[str, Any]) -> str | None:
    return provenance.get("weights_sha256")


def provenance_checks(root: Path, records: Records) -> Iterator[Check]:
    """Weights, settings and code of the root's own measurements."""
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
    yield _null_check("", records.iss, records.iss)
    measured = {record.provenance.code_sha256 for record in records.measurements}
    yield from _code(root, "provenance six-axis code", SIX_AXIS_CODE, measured)
    yield from code_checks(root, "", records.iss)


def sub_root_checks(root: Path, place: str, iss: IssRecords, official: IssRecords) -> Iterator[Check]:
    """That a null is the null of its folder and of the official model, and which code measured it."""
    yield _null_check(place, iss, official)
    yield from code_checks(root / place, f"{place}/", iss)


def _null_check(place: str, iss: IssRecords, official: IssRecords) -> Check:
    name, expected = f"null {place or 'of the official measurement'}", NULL_OF[place]
    for where, found in (
        ("freeze_manifest.json", iss.freeze.settings.null if iss.freeze else expected),
        ("iss_model_summary.json", iss.summary.null if iss.summary else expected),
    ):
        if found != expected:
            return Check(name, "FAIL", f"{where}: null: {found}, expected {expected}")
    if iss.summary is None:
        return Check(name, "ok")
    model = iss.summary.provenance.model
    if ("redrawn_weights" in model) is not (expected == "redrawn_weights"):
        detail = f"iss_model_summary.json: provenance.model.redrawn_weights does not go with null {expected}"
        return Check(name, "FAIL", detail)
    if expected != "none" and official.summary is not None:
        reference = official.summary.provenance.model
        if _weights(model) != _weights(reference):
            detail = f"was made of weights {_weights(model)}, the official measurement of {_weights(reference)}"
            return Check(name, "FAIL", detail)
    return Check(name, "ok")


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


def code_checks(root: Path, place: str, iss: IssRecords) -> Iterator[Check]:
    """Code of the freeze and of stage D; that another was accepted is said with its reason."""
    measured = {iss.freeze.code_sha256} if iss.freeze else set()
    measured |= {record.provenance.code_sha256 for record in (iss.summary, iss.raw) if record}
    yield from _code(root, f"provenance {place}ISS code", ISS_CODE, measured)
    if iss.summary and (reason := iss.summary.provenance.accepted_code):
        detail = f"measured by other code than the frozen one, because: {reason}"
        yield Check(f"provenance {place}ISS code", "warn", detail)


def _code(root: Path, name: str, modules: tuple[str, ...], measured: set[str]) -> Iterator[Check]:
    """A measurement by another version of the code is worth a word; it is not wrong for that."""
    for sha256 in sorted(measured):
        closure, check = attempt(f"code {sha256}", lambda sha256=sha256: read_closure(root, sha256))
        if check.status == "FAIL":
            yield check
        if sha256 != code_sha256(*modules):
            yield Check(name, "warn", _changes(closure, sha256))


def _changes(closure: CodeClosure | None, sha256: str) -> str:
    text = "measured by another version of the code than stands here"
    if closure is None:
        return f"{text}; which modules changed is not known, as code/{sha256}.json is not here"
    found = changed_files(closure)
    words = [f"{what}: {', '.join(names)}" for what, names in found.items() if names]
    return f"{text}; {'; '.join(words)}" if words else f"{text}, of the same modules by other names"
