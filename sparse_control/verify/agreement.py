"""The files of `jacobian_iss/` held against each other: one model, one freeze, and summaries that are of the rows."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from sparse_control.files import sha256_json
from sparse_control.metrics.over_seeds import mean_or_none
from sparse_control.records.jacobian_iss import FILES, IssRecords
from sparse_control.records.jacobian_iss.freeze import FreezeManifest
from sparse_control.records.jacobian_iss.results import FactLayer, FactMean, IssSummary, RawIss

TOLERANCE = 1e-9  # relative and absolute; another order of the same sum rounds differently
OFFICIAL, RAW = "ISS", "Raw-ISS"
SUMMARY, ABLATION, FACTS = (FILES[field][0] for field in ("summary", "raw", "facts"))
Disagreement = tuple[str, str]  # file below jacobian_iss/; the field and both values


def disagreements(iss: IssRecords) -> Iterator[Disagreement]:
    """Every field that says another thing than another file; a file that is not there is held against nothing."""
    yield from _models(iss)
    if iss.freeze and iss.summary:
        yield from _frozen(iss.freeze, iss.summary)
    if iss.freeze:
        for place, record in ((SUMMARY, iss.summary), (ABLATION, iss.raw)):
            if record:
                yield from _hashes(iss.freeze, place, record)
    if iss.fact_layers:
        yield from _fact_means(iss.fact_layers, iss.facts)
        yield from _per_layer(iss)
    if iss.facts and iss.summary:
        yield from _per_relation(iss.facts, iss.summary)


def _models(iss: IssRecords) -> Iterator[Disagreement]:
    named: dict[str, list[str]] = {}
    for field in ("freeze", *(field for field in FILES if field != "freeze")):
        content = getattr(iss, field)
        rows = content if isinstance(content, tuple) else () if content is None else (content,)
        if rows:
            named[field] = sorted({row.model for row in rows})
    if named:
        first, (reference, *_) = next(iter(named.items()))
        for field, models in named.items():
            if models != [reference]:
                detail = f"model: {', '.join(models)}, but {FILES[first][0]} is of {reference}"
                yield FILES[field][0], detail


def _frozen(freeze: FreezeManifest, summary: IssSummary) -> Iterator[Disagreement]:
    layers = {status: sorted(int(number) for number, layer in freeze.layers.items() if layer.status == status)
              for status in ("validated", "unresolved")}  # fmt: skip
    for field, found, expected in (
        ("window", sorted(summary.window), sorted(map(int, freeze.layers))),
        ("validated_layers", sorted(summary.validated_layers), layers["validated"]),
        ("unresolved_layers", sorted(summary.unresolved_layers), layers["unresolved"]),
    ):
        if found != expected:
            yield SUMMARY, f"{field}: {found}, but freeze_manifest.json has {expected}"
    for number in sorted({*summary.lam_rel, *freeze.lam_rel}, key=int):
        for part in ("iss", "raw"):
            found, expected = (getattr(lam.get(number), part, None) for lam in (summary.lam_rel, freeze.lam_rel))
            yield from _differ(SUMMARY, f"lam_rel.{number}.{part}", found, expected, "freeze_manifest.json has")
    if summary.null != freeze.settings.null:
        yield SUMMARY, f"null: {summary.null}, but freeze_manifest.json has {freeze.settings.null}"
    for row in summary.per_layer:
        reporting = getattr(freeze.layers.get(str(row.layer)), "reporting", None)
        if row.reporting != reporting:
            place = f"per_layer: layer {row.layer}: reporting"
            yield SUMMARY, f"{place}: {row.reporting}, but freeze_manifest.json has {reporting}"
        frozen = freeze.lam_rel.get(str(row.layer))
        for field, part in (("lam_rel_iss", "iss"), ("lam_rel_raw", "raw")):
            found, expected = getattr(row, field), getattr(frozen, part, None)
            if found is not None or row.status == "validated":
                place = f"per_layer: layer {row.layer}: {field}"
                yield from _differ(SUMMARY, place, found, expected, "freeze_manifest.json has")


def _hashes(freeze: FreezeManifest, place: str, record: IssSummary | RawIss) -> Iterator[Disagreement]:
    for field, expected in (
        ("params_sha256", sha256_json(freeze.settings.model_dump())),
        ("corpus_sha256", freeze.corpus_sha256),
        ("frozen_code_sha256", freeze.code_sha256),
    ):
        found = getattr(record.provenance, field)
        if found != expected:
            yield place, f"provenance.{field}: {found}, but that of freeze_manifest.json is {expected}"
    code, accepted = record.provenance.code_sha256, record.provenance.accepted_code
    if (code == freeze.code_sha256) is (accepted is not None):
        detail = f"provenance.accepted_code: {accepted!r}, where code_sha256 is {code} and frozen {freeze.code_sha256}"
        yield place, detail


def _fact_means(fact_layers: Iterable[FactLayer], facts: Iterable[FactMean]) -> Iterator[Disagreement]:
    """A fact's mean over its layers; undefined where it is undefined in one of them."""
    rows: dict[tuple[str, str], list[float | None]] = {}
    for row in fact_layers:
        rows.setdefault((row.metric, row.fact), []).append(row.iss)
    stored = {(row.metric, row.fact): row for row in facts}
    for key in sorted({*rows, *stored}):
        place, values = f"{key[0]} of {key[1]}", rows.get(key)
        if values is None or key not in stored:
            where = FILES["fact_layers"][0] if values is None else FACTS
            yield FACTS, f"{place}: no rows in {where}"
            continue
        expected = None if None in values else mean_or_none(values)
        yield from _differ(FACTS, f"{place}: iss", stored[key].iss, expected)
        if stored[key].n_layers != len(values):
            yield FACTS, f"{place}: n_layers: {stored[key].n_layers}, but there are rows of {len(values)}"


def _per_layer(iss: IssRecords) -> Iterator[Disagreement]:
    values: dict[tuple[str, int], list[float]] = {}
    for row in iss.fact_layers:
        values.setdefault((row.metric, row.layer), []).extend([] if row.iss is None else [row.iss])
    for row in iss.summary.per_layer if iss.summary else ():
        for field, metric in (("iss", OFFICIAL), ("raw_iss", RAW)):
            expected = mean_or_none(values.get((metric, row.layer), []))
            yield from _differ(SUMMARY, f"per_layer: layer {row.layer}: {field}", getattr(row, field), expected)
    if iss.raw:
        stored = {row.layer: row.raw_iss for row in iss.raw.per_layer}
        for layer in sorted({*stored, *(layer for metric, layer in values if metric == RAW)}):
            expected = mean_or_none(values.get((RAW, layer), []))
            yield from _differ(ABLATION, f"per_layer: layer {layer}: raw_iss", stored.get(layer), expected)


def _per_relation(facts: Iterable[FactMean], summary: IssSummary) -> Iterator[Disagreement]:
    values: dict[tuple[str, str], list[float]] = {}
    for row in facts:
        values.setdefault((row.metric, row.relation), []).extend([] if row.iss is None else [row.iss])
    stored = {row.relation: row for row in summary.per_relation}
    if len(stored) != len(summary.per_relation):
        yield SUMMARY, "per_relation: relation: one stands twice"
    for relation in sorted({*stored, *(relation for _, relation in values)}):
        row, raw = stored.get(relation), values.get((RAW, relation), [])
        place = f"per_relation: {relation}"
        yield from _differ(SUMMARY, f"{place}: iss", getattr(row, "iss", None), mean_or_none(
            values.get((OFFICIAL, relation), [])
        ))  # fmt: skip
        yield from _differ(SUMMARY, f"{place}: raw_iss", getattr(row, "raw_iss", None), mean_or_none(raw))
        if getattr(row, "n_facts", 0) != len(raw):
            yield SUMMARY, f"{place}: n_facts: {getattr(row, 'n_facts', 0)}, but {FACTS} has {len(raw)}"


def _differ(
    place: str, field: str, found: float | None, expected: float | None, source: str = "its rows give"
) -> Iterator[Disagreement]:
    same: Any = found is expected or (
        None not in (found, expected) and math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    )
    if not same:
        yield place, f"{field}: {found}, but {source} {expected}"
