"""Internal state stability on the benchmark: official ISS beside Raw-ISS, regularisation, relations, answers."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from sparse_control.metrics import over_seeds
from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.jacobian_iss.results import IssSummary
from sparse_control.records.read import ModelRecords
from sparse_control.tables.columns import (
    Column,
    Row,
    decimal,
    interval,
    label,
    named,
    signed,
    small,
    whole,
    with_deviation,
)
from sparse_control.tables.layers import UNRESOLVED, VALIDATED
from sparse_control.tables.sampling import fact_values, intervals
from sparse_control.tables.table import Table

VALIDATED_LAYERS, ALL_LAYERS = "validated layers", "all layers"  # rows over the window: of ISS, and of the ablation
ABLATION = "ablation only"  # status of the row over all layers, which has no official number by design
OF_A_LAYER = (
    *("raw_iss_matched_lam", "iss_calibration_sigma", "raw_iss_calibration_sigma"),
    *("lam_rel_iss", "lam_rel_raw", "reporting"),
)


def _official_iss(model: ModelRecords) -> Iterator[Row]:
    """ISS and Raw-ISS per layer and over the window; layer means come from the facts' rows.

    An unresolved layer has Raw-ISS and no ISS. The intervals resample relations: benchmark sampling alone.
    """
    summary, raw = model.iss.summary, model.iss.raw
    if summary is None:
        return
    by_layer: dict[tuple[str, int], dict[str, float | None]] = {}
    for fact in model.iss.fact_layers:
        by_layer.setdefault((fact.metric, fact.layer), {})[fact.fact] = fact.iss
    validated = summary.validated_layers
    for layer in sorted(summary.per_layer, key=lambda row: row.layer):
        means = _over_layers(by_layer, validated, [layer.layer])
        yield means | {"layer": str(layer.layer)} | {name: getattr(layer, name) for name in OF_A_LAYER}
    official = _over_layers(by_layer, validated, validated)
    yield official | {"layer": VALIDATED_LAYERS} | _intervals("iss", summary.ISS)
    ablation = _over_layers(by_layer, validated, summary.window) | {"status": ABLATION, "iss": None}
    yield ablation | {"layer": ALL_LAYERS} | _intervals("raw_iss", raw)


def _over_layers(
    by_layer: dict[tuple[str, int], dict[str, float | None]], validated: Sequence[int], layers: Sequence[int]
) -> Row:
    """Means over facts of the mean over `layers` (10.6); ISS only where every one of them is validated.

    A fact that is undefined in one of the layers is left out.
    """
    row: Row = {"status": _status(layers, validated)}
    for metric, name in (("Raw-ISS", "raw_iss"), ("ISS", "iss")):
        if metric == "ISS" and row["status"] == UNRESOLVED:
            continue
        tables = [by_layer.get((metric, layer), {}) for layer in layers]
        facts = tables[0] if tables else {}
        values = [[table.get(fact) for table in tables] for fact in facts]
        means = [math.fsum(value) / len(value) for value in values if None not in value]
        row |= {name: over_seeds.mean_or_none(means), "n_facts": len(means)}
    return row


def _status(layers: Sequence[int], validated: Sequence[int]) -> str:
    return VALIDATED if layers and set(layers) <= set(validated) else UNRESOLVED


def _intervals(name: str, source: Any) -> Row:
    if source is None:
        return {}
    kinds = ("bca", "percentile")
    return {
        f"{name}_{kind}_{end}": getattr(source, kind)[side]
        for kind in kinds
        for side, end in enumerate(("low", "high"))
    }


OFFICIAL_ISS = Table(
    name="official_iss",
    title="Official ISS and Raw-ISS",
    caption=(
        "ISS on Jacobian-transported states beside Raw-ISS (identity transport, an ablation and not the official "
        "metric), Raw-ISS at the regularisation of ISS, and the regularisations; mean over facts. The official "
        "number is the row of the validated layers; an unresolved layer has no ISS, and over all layers there is "
        "only the ablation. 95 % BCa intervals of the relation-clustered bootstrap (benchmark sampling alone) are "
        "for these two aggregate rows only."
    ),
    section="Jacobian-Transported ISS, 10, 11 and 18",
    group="iss",
    reads=("summary", "raw", "fact_layers"),
    rows=_official_iss,
    fields=(
        *("layer", "status", "iss", "iss_bca_low", "iss_bca_high", "iss_percentile_low", "iss_percentile_high"),
        *("raw_iss", "raw_iss_bca_low", "raw_iss_bca_high", *OF_A_LAYER, "n_facts"),
    ),
    columns=(
        label("layer", "Layer"),
        label("status", "Status"),
        decimal("iss", "ISS"),
        interval("iss_bca", "95 % interval"),
        decimal("raw_iss", "Raw-ISS"),
        interval("raw_iss_bca", "95 % interval"),
        decimal("raw_iss_matched_lam", "Raw-ISS\nmatched λ"),
        small("lam_rel_iss", "λ rel\nISS"),
        small("lam_rel_raw", "λ rel\nRaw"),
        whole("n_facts", "Facts"),
    ),
)


# --- ISS minus Raw-ISS ----------------------------------------------------------------------------------------------

OWN, MATCHED, CALIBRATION_SIGMA, SWEPT = "own lam_rel", "lam_rel of ISS", "Sigma of the calibration rows", "swept"
VARIANTS = {  # columns of official_iss that hold ISS and Raw-ISS
    OWN: ("iss", "raw_iss"),
    MATCHED: ("iss", "raw_iss_matched_lam"),
    CALIBRATION_SIGMA: ("iss_calibration_sigma", "raw_iss_calibration_sigma"),
}
VARIANT_NAMES = {OWN: "own λ", MATCHED: "λ of ISS", CALIBRATION_SIGMA: "calibration Σ"}

Pair = tuple[float | None, float | None]  # ISS, Raw-ISS


def difference(iss: float | None, raw_iss: float | None) -> float | None:
    """ISS - Raw-ISS where there are both."""
    return None if iss is None or raw_iss is None else iss - raw_iss


def pairs_at(summary: IssSummary, variant: str, lam_rel: float | None = None) -> dict[int, Pair]:
    """ISS and Raw-ISS by layer in one of the variants, or at a value that was swept."""
    if variant == SWEPT:
        return {row.layer: (row.iss, row.raw_iss) for row in summary.sweep if row.lam_rel == lam_rel}
    iss, raw_iss = VARIANTS[variant]
    return {row.layer: (getattr(row, iss), getattr(row, raw_iss)) for row in summary.per_layer}


def swept(summary: IssSummary) -> set[float]:
    """The regularisations of the sweep."""
    return {row.lam_rel for row in summary.sweep}


def mean_pair(pairs: dict[int, Pair], layers: Sequence[int], validated: Sequence[int]) -> Row:
    """iss, raw_iss and difference as means over `layers`; ISS only where every one of them is validated."""
    means: list[float | None] = []
    for side in (0, 1):
        values = [pairs.get(layer, (None, None))[side] for layer in layers]
        means.append(None if None in values else over_seeds.mean_or_none(values))
    iss = means[0] if set(layers) <= set(validated) else None
    return {"iss": iss, "raw_iss": means[1], "difference": difference(iss, means[1])}


def _robustness(model: ModelRecords) -> Iterator[Row]:
    """ISS and Raw-ISS, each at its own regularisation, both at that of ISS, and with Sigma of the calibration rows.

    Per layer, and over the validated layers of both. The interval, where every fact's value is known, is of the
    paired difference: one resampling of relations for both.
    """
    summary = model.iss.summary
    for variant in VARIANTS if summary else ():
        for row in _with_mean(summary, pairs_at(summary, variant)):
            layers = summary.validated_layers if row["layer"] == VALIDATED_LAYERS else [int(row["layer"])]
            edges = _paired(model.iss, layers) if variant == OWN and row["difference"] is not None else {}
            yield {"variant": variant} | row | edges


def _paired(iss: IssRecords, layers: Sequence[int]) -> Row:
    official, raw = (fact_values(iss, metric, layers) for metric in ("ISS", "Raw-ISS"))
    facts = [(relation, value - raw[name][1]) for name, (relation, value) in official.items() if name in raw]
    return {f"difference_{name}": edge for name, edge in intervals(iss, facts).items() if name != "mean"}


def _with_mean(summary: IssSummary, pairs: dict[int, Pair]) -> Iterator[Row]:
    """A row per layer, and one over the validated layers."""
    layers = {str(layer): [layer] for layer in sorted(pairs)} | {VALIDATED_LAYERS: summary.validated_layers}
    for name, chosen in layers.items():
        status = _status(chosen, summary.validated_layers)
        yield {"layer": name, "status": status} | mean_pair(pairs, chosen, summary.validated_layers)


def _by_layer(rows: list[Row]) -> list[Row]:
    """The rows of a layer next to each other."""
    order = list(dict.fromkeys(row["layer"] for row in rows))
    return sorted(rows, key=lambda row: order.index(row["layer"]))


ROBUSTNESS = Table(
    name="robustness",
    title="ISS minus Raw-ISS under each variant",
    caption=(
        "ISS, Raw-ISS and their difference with each one's own frozen regularisation, with that of ISS for both, "
        "and with the whitening's Σ from the calibration rows instead of the evaluated ones. Over the validated "
        "layers both are means over the same layers. 95 % BCa interval of the paired difference: one resampling "
        "of relations for both (benchmark sampling alone)."
    ),
    section="Jacobian-Transported ISS, 10.2, 11 and 18",
    group="iss",
    reads=("summary", "fact_layers", "freeze"),
    rows=_robustness,
    fields=(
        *("layer", "status", "variant", "iss", "raw_iss", "difference"),
        *(f"difference_{kind}_{end}" for kind in ("percentile", "bca") for end in ("low", "high")),
    ),
    columns=(
        label("layer", "Layer"),
        label("status", "Status"),
        Column("Variant", lambda row: VARIANT_NAMES[row["variant"]], "l"),
        decimal("iss", "ISS"),
        decimal("raw_iss", "Raw-ISS"),
        signed("difference", "ISS − Raw-ISS"),
        interval("difference_bca", "95 % interval"),
    ),
    printed=_by_layer,
)


def _lam_rel_sweep(model: ModelRecords) -> list[Row]:
    summary = model.iss.summary
    rows = []
    for lam_rel in sorted(swept(summary)) if summary else ():
        rows += [{"lam_rel": lam_rel} | row for row in _with_mean(summary, pairs_at(summary, SWEPT, lam_rel))]
    return _by_layer(rows)


LAM_REL_SWEEP = Table(
    name="lam_rel_sweep",
    title="ISS over the regularisation",
    caption=(
        "ISS, Raw-ISS and their difference at each relative regularisation λ of the whitening; only the frozen λ "
        "is official. Over the validated layers all three are means over the same layers."
    ),
    section="Jacobian-Transported ISS, 10.2 and 11",
    group="iss",
    reads=("summary",),
    rows=_lam_rel_sweep,
    fields=("layer", "status", "lam_rel", "iss", "raw_iss", "difference"),
    columns=(
        label("layer", "Layer"),
        label("status", "Status"),
        Column("λ rel", lambda row: f"{row['lam_rel']:g}"),
        decimal("iss", "ISS"),
        decimal("raw_iss", "Raw-ISS"),
        signed("difference", "ISS − Raw-ISS"),
    ),
)


# --- relations and answers ------------------------------------------------------------------------------------------


def _per_relation(model: ModelRecords) -> Iterator[Row]:
    ordered = sorted(model.iss.facts, key=lambda row: row.relation)
    for relation, group in groupby(ordered, key=lambda row: row.relation):
        facts = list(group)
        row: Row = {"relation": relation, "n_facts": len({fact.fact for fact in facts})}
        for metric, name in (("ISS", "iss"), ("Raw-ISS", "raw_iss")):
            values = [fact.iss for fact in facts if fact.metric == metric and fact.iss is not None]
            row |= {name: over_seeds.mean_or_none(values), f"{name}_sd": over_seeds.deviation_or_none(values)}
        yield row | {"difference": difference(row["iss"], row["raw_iss"])}


PER_RELATION = Table(
    name="per_relation",
    title="Heterogeneity between relations",
    caption=(
        "ISS (mean over validated layers) and Raw-ISS (over all layers asked for) of each relation, with the "
        "sample sd over its facts, their difference, and its number of facts."
    ),
    section="Jacobian-Transported ISS, 18",
    group="iss",
    reads=("facts",),
    rows=_per_relation,
    fields=("relation", "iss", "iss_sd", "raw_iss", "raw_iss_sd", "difference", "n_facts"),
    columns=(
        named("relation", "Relation"),
        with_deviation("iss", "iss_sd", "ISS"),
        with_deviation("raw_iss", "raw_iss_sd", "Raw-ISS"),
        signed("difference", "ISS − Raw-ISS"),
        whole("n_facts", "Facts"),
    ),
)


def _answer_accuracy(model: ModelRecords) -> list[Row]:
    if model.iss.summary is None:
        return []
    accuracy = model.iss.summary.answer_accuracy
    shares = [("all", "all prompts", accuracy.overall)]
    shares += [("family", *item) for item in accuracy.per_family.items()]
    shares += [("relation", *item) for item in sorted(accuracy.per_relation.items())]
    return [{"by": by, "name": name, "share": share} for by, name, share in shares]


ANSWER_ACCURACY = Table(
    name="answer_accuracy",
    title="Answers of the model",
    caption=(
        "Share of benchmark prompts whose first answer token the model gets right, by condition family and by "
        "relation. No fact is left out for it."
    ),
    section="Jacobian-Transported ISS, 10",
    group="iss",
    reads=("summary",),
    rows=_answer_accuracy,
    fields=("by", "name", "share"),
    columns=(label("by", "By"), named("name", "Prompts of"), decimal("share", "Right")),
)

TABLES = (OFFICIAL_ISS, ROBUSTNESS, LAM_REL_SWEEP, PER_RELATION, ANSWER_ACCURACY)
