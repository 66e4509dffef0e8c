"""What the measurements were made with: one model, one set of settings, and which code."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparse_control.code_hash import code_sha256
from sparse_control.records.code import CodeClosure, changed_files, counted, read_closure
from sparse_control.records.paths import ISS_FILES, STAGES, STUDY
from sparse_control.records.six_axis import Measurement
from sparse_control.verify.check import Check, Status, attempt, named
from sparse_control.verify.reading import Model, Study

FREEZE, SUMMARY = ISS_FILES["freeze"], ISS_FILES["summary"]


def _weights(provenance: Mapping[str, Any]) -> str | None:
    return provenance.get("weights_sha256")


def provenance_checks(model: Model) -> Iterator[Check]:
    """Weights, settings and code of everything that was measured on a model, and that each null is its folder's."""
    records, root = model.records, model.paths.root
    measured_on = {str(record.key): record.provenance.model for record in records.six_axis}
    if records.iss.summary:
        measured_on[SUMMARY] = records.iss.summary.provenance.model
    if measured_on:
        yield named(f"provenance {model.paths.model} weights", lambda: _one_model(measured_on))
    if records.six_axis:
        yield named(f"provenance {model.paths.model} settings and code", lambda: _one_setting(records.six_axis))
    measured = {record.provenance.code_sha256 for record in records.six_axis}
    yield from _code(root, f"provenance {model.paths.model} six-axis code", (STUDY,), measured)
    for study in model.studies:
        if study.iss.freeze or study.iss.summary:
            yield named(f"null of {study.name}", lambda study=study: _null(study, model.studies[0]))
        yield from _iss_code(study)


def _null(study: Study, official: Study) -> tuple[Status, str]:
    iss, expected = study.iss, study.paths.null
    for file, found in (
        (FREEZE, iss.freeze.settings.null if iss.freeze else expected),
        (SUMMARY, iss.summary.null if iss.summary else expected),
    ):
        if found != expected:
            return "FAIL", f"{file}: null: {found}, expected {expected}"
    if iss.summary is None:
        return "ok", ""
    model = iss.summary.provenance.model
    if ("redrawn_weights" in model) is not (expected == "redrawn_weights"):
        return "FAIL", f"{SUMMARY}: provenance.model.redrawn_weights does not go with null {expected}"
    if official.iss.summary is not None:
        reference = official.iss.summary.provenance.model
        if _weights(model) != _weights(reference):
            weights = _weights(model), _weights(reference)
            return "FAIL", "was made of weights {}, the official measurement of {}".format(*weights)
    return "ok", ""


def _one_model(measured_on: Mapping[str, Mapping[str, Any]]) -> tuple[Status, str]:
    """Everything was measured on the same weights, and where records keep the model's identity, on the same of that."""
    first, reference = next(iter(measured_on.items()))
    for what, found in measured_on.items():
        if not _weights(found):
            return "FAIL", f"{what}: provenance.model.weights_sha256 is missing"
        if _weights(found) != _weights(reference):
            return "FAIL", f"{what} was measured on weights {_weights(found)}, {first} on {_weights(reference)}"
    kept = {what: found for what, found in measured_on.items() if "identity" in found}
    first, reference = next(iter(kept.items()), ("", {}))
    for what, found in kept.items():
        if found["identity"] != reference["identity"]:
            parts, others = _identity_parts(found), _identity_parts(reference)
            names = [name for name in sorted({*parts, *others}) if parts.get(name) != others.get(name)]
            return "FAIL", f"{what} and {first} were measured on different models: {', '.join(names) or 'identity'}"
    return "ok", ""


def _identity_parts(model: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: model.get(name) for name in ("quantisation", "dtype")}
    return plain | dict(model.get("files") or {}) | dict(model.get("versions") or {})


def _one_setting(records: tuple[Measurement, ...]) -> tuple[Status, str]:
    """Records of one table were measured under one set of settings by one version of the code."""
    for field in ("params_sha256", "code_sha256"):
        values = {getattr(record.provenance, field): record for record in records}
        if len(values) > 1:
            first, second = list(values.values())[:2]
            return "FAIL", f"{field} differs between {first.key} and {second.key}; measure them again together"
    return "ok", ""


def _iss_code(study: Study) -> Iterator[Check]:
    """Code of the freeze and of stage D; that another was accepted is said with its reason."""
    iss, name = study.iss, f"provenance {study.name} code"
    measured = {iss.freeze.code_sha256} if iss.freeze else set()
    measured |= {record.provenance.code_sha256 for record in (iss.summary, iss.raw) if record}
    yield from _code(study.paths.root, name, tuple(STAGES.values()), measured)
    if iss.summary and (reason := iss.summary.provenance.accepted_code):
        yield Check(name, "warn", f"measured by other code than the frozen one, because: {reason}")


def _code(root: Path, name: str, modules: tuple[str, ...], measured: set[str]) -> Iterator[Check]:
    """A measurement by another version of the code is worth a word; it is not wrong for that."""
    for sha256 in sorted(measured):
        closure, check = attempt(f"code {sha256}", lambda sha256=sha256: read_closure(root, sha256))
        if check.status == "FAIL":
            yield check
        if sha256 != code_sha256(*modules):
            yield Check(name, "warn", *_changes(closure, sha256))


def _changes(closure: CodeClosure | None, sha256: str) -> tuple[str, tuple[str, ...]]:
    text = "measured by another version of the code than is here"
    if closure is None:
        return f"{text}; which modules changed is not known, as code/{sha256}.json is not here", ()
    found = changed_files(closure)
    if not any(found.values()):
        return f"{text}, of the same modules by other names", ()
    return f"{text}: {counted(found)}", tuple(f"{what}: {name}" for what, names in found.items() for name in names)
