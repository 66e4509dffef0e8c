"""The files of `jacobian_iss/` held against each other: one freeze, and summaries that are of the rows."""

from collections.abc import Iterable, Iterator

from sparse_control.files import sha256_json
from sparse_control.metrics.over_seeds import mean_or_none
from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.jacobian_iss.freeze import FreezeManifest
from sparse_control.records.jacobian_iss.results import FactLayer, FactMean, IssSummary, RawIss
from sparse_control.records.paths import ISS_FILES
from sparse_control.verify.finding import Finding, differ

OFFICIAL, RAW = "ISS", "Raw-ISS"
FREEZE, SUMMARY, ABLATION, FACTS, FACT_LAYERS = (
    ISS_FILES[field] for field in ("freeze", "summary", "raw", "facts", "fact_layers")
)
FROZEN = f"{FREEZE} has"


def disagreements(iss: IssRecords) -> Iterator[Finding]:
    """Every field that says another thing than another file; a file that is not there is held against nothing."""
    if iss.freeze and iss.summary:
        yield from _frozen(iss.freeze, iss.summary)
    if iss.freeze:
        for file, record in ((SUMMARY, iss.summary), (ABLATION, iss.raw)):
            if record:
                yield from _hashes(iss.freeze, file, record)
    if iss.fact_layers:
        yield from _fact_means(iss.fact_layers, iss.facts)
        yield from _per_layer(iss)
    if iss.facts and iss.summary:
        yield from _per_relation(iss.facts, iss.summary)
        yield from _counts(iss)


def _frozen(freeze: FreezeManifest, summary: IssSummary) -> Iterator[Finding]:
    layers = {status: sorted(int(number) for number, layer in freeze.layers.items() if layer.status == status)
              for status in ("validated", "unresolved")}  # fmt: skip
    for field, found, expected in (
        ("window", sorted(summary.window), sorted(map(int, freeze.layers))),
        ("validated_layers", sorted(summary.validated_layers), layers["validated"]),
        ("unresolved_layers", sorted(summary.unresolved_layers), layers["unresolved"]),
    ):
        if found != expected:
            yield SUMMARY, f"{field}: {found}, but {FROZEN} {expected}"
    for number in sorted({*summary.lam_rel, *freeze.lam_rel}, key=int):
        for part in ("iss", "raw"):
            found, expected = (getattr(lam.get(number), part, None) for lam in (summary.lam_rel, freeze.lam_rel))
            yield from differ(SUMMARY, f"lam_rel.{number}.{part}", found, expected, FROZEN)
    if summary.null != freeze.settings.null:
        yield SUMMARY, f"null: {summary.null}, but {FROZEN} {freeze.settings.null}"
    for row in summary.per_layer:
        reporting = getattr(freeze.layers.get(str(row.layer)), "reporting", None)
        if row.reporting != reporting:
            yield SUMMARY, f"per_layer: layer {row.layer}: reporting: {row.reporting}, but {FROZEN} {reporting}"
        frozen = freeze.lam_rel.get(str(row.layer))
        for field, part in (("lam_rel_iss", "iss"), ("lam_rel_raw", "raw")):
            found, expected = getattr(row, field), getattr(frozen, part, None)
            if found is not None or row.status == "validated":
                yield from differ(SUMMARY, f"per_layer: layer {row.layer}: {field}", found, expected, FROZEN)


def _hashes(freeze: FreezeManifest, file: str, record: IssSummary | RawIss) -> Iterator[Finding]:
    for field, expected in (
        ("params_sha256", sha256_json(freeze.settings.model_dump())),
        ("corpus_sha256", freeze.corpus_sha256),
        ("facts", freeze.settings.facts),
        ("frozen_code_sha256", freeze.code_sha256),
    ):
        found = getattr(record.provenance, field)
        if found != expected:
            yield file, f"provenance.{field}: {found}, but that of {FREEZE} is {expected}"
    code, accepted = record.provenance.code_sha256, record.provenance.accepted_code
    if (code == freeze.code_sha256) is (accepted is not None):
        detail = f"provenance.accepted_code: {accepted!r}, where code_sha256 is {code} and frozen {freeze.code_sha256}"
        yield file, detail


def _fact_means(fact_layers: Iterable[FactLayer], facts: Iterable[FactMean]) -> Iterator[Finding]:
    """A fact's mean over its layers; undefined where it is undefined in one of them (10.6).

    Stage D and the tables state the same mean; this one is the independent check of both.
    """
    rows: dict[tuple[str, str], list[float | None]] = {}
    for row in fact_layers:
        rows.setdefault((row.metric, row.fact), []).append(row.iss)
    stored = {(row.metric, row.fact): row for row in facts}
    for key in sorted({*rows, *stored}):
        what, values = f"{key[0]} of {key[1]}", rows.get(key)
        if values is None or key not in stored:
            where = FACT_LAYERS if values is None else FACTS
            yield FACTS, f"{what}: no rows in {where}"
            continue
        expected = None if None in values else mean_or_none(values)
        yield from differ(FACTS, f"{what}: iss", stored[key].iss, expected)
        if stored[key].n_layers != len(values):
            yield FACTS, f"{what}: n_layers: {stored[key].n_layers}, but there are rows of {len(values)}"


def _per_layer(iss: IssRecords) -> Iterator[Finding]:
    values: dict[tuple[str, int], list[float]] = {}
    for row in iss.fact_layers:
        values.setdefault((row.metric, row.layer), []).extend([] if row.iss is None else [row.iss])
    for row in iss.summary.per_layer if iss.summary else ():
        for field, metric in (("iss", OFFICIAL), ("raw_iss", RAW)):
            expected = mean_or_none(values.get((metric, row.layer), []))
            yield from differ(SUMMARY, f"per_layer: layer {row.layer}: {field}", getattr(row, field), expected)
    if iss.raw:
        stored = {row.layer: row.raw_iss for row in iss.raw.per_layer}
        for layer in sorted({*stored, *(layer for metric, layer in values if metric == RAW)}):
            expected = mean_or_none(values.get((RAW, layer), []))
            yield from differ(ABLATION, f"per_layer: layer {layer}: raw_iss", stored.get(layer), expected)


def _per_relation(facts: Iterable[FactMean], summary: IssSummary) -> Iterator[Finding]:
    values: dict[tuple[str, str], list[float]] = {}
    for row in facts:
        values.setdefault((row.metric, row.relation), []).extend([] if row.iss is None else [row.iss])
    stored = {row.relation: row for row in summary.per_relation}
    if len(stored) != len(summary.per_relation):
        yield SUMMARY, "per_relation: relation: one is there twice"
    for relation in sorted({*stored, *(relation for _, relation in values)}):
        row, raw = stored.get(relation), values.get((RAW, relation), [])
        what = f"per_relation: {relation}"
        yield from differ(SUMMARY, f"{what}: iss", getattr(row, "iss", None), mean_or_none(
            values.get((OFFICIAL, relation), [])
        ))  # fmt: skip
        yield from differ(SUMMARY, f"{what}: raw_iss", getattr(row, "raw_iss", None), mean_or_none(raw))
        if getattr(row, "n_facts", 0) != len(raw):
            yield SUMMARY, f"{what}: n_facts: {getattr(row, 'n_facts', 0)}, but {FACTS} has {len(raw)}"


def _counts(iss: IssRecords) -> Iterator[Finding]:
    """Facts and relations behind the two means."""
    for file, metric, record in ((SUMMARY, OFFICIAL, iss.summary.ISS), (ABLATION, RAW, iss.raw)):
        if record is not None:
            facts = [row for row in iss.facts if row.metric == metric and row.iss is not None]
            counts = {"n_facts": len(facts), "n_relations": len({row.relation for row in facts})}
            for field, expected in counts.items():
                if getattr(record, field) != expected:
                    yield file, f"{metric}: {field}: {getattr(record, field)}, but {FACTS} has {expected}"
