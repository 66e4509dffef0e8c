"""Internal state stability on the benchmark: official ISS beside Raw-ISS, regularisation, relations, answers."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pandas as pd

from sparse_control.metrics import over_seeds
from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.jacobian_iss.results import IssSummary
from sparse_control.tables.common import Records, Table, data_frame
from sparse_control.tables.sampling import fact_values, intervals

VALIDATED, ASKED = "validated layers", "all layers"  # rows over the window: of ISS, and of the Raw-ISS ablation
ABLATION = "ablation only"  # status of the row over all layers, which has no official number by design

OFFICIAL_COLUMNS = (
    "model",
    "layer",
    "status",
    "iss",
    "iss_bca_low",
    "iss_bca_high",
    "iss_percentile_low",
    "iss_percentile_high",
    "raw_iss",
    "raw_iss_bca_low",
    "raw_iss_bca_high",
    "raw_iss_matched_lam",
    "iss_calibration_sigma",
    "raw_iss_calibration_sigma",
    "lam_rel_iss",
    "lam_rel_raw",
    "reporting",
    "n_facts",
)
OF_A_LAYER = (
    *("raw_iss_matched_lam", "iss_calibration_sigma", "raw_iss_calibration_sigma"),
    *("lam_rel_iss", "lam_rel_raw", "reporting"),
)


def official_iss(records: Records) -> pd.DataFrame:
    """Official ISS beside Raw-ISS per layer and over the window (10.6, 11); layer means come from the facts' rows.

    An unresolved layer has Raw-ISS and no ISS. The intervals resample relations: benchmark sampling alone.
    """
    summary, raw = records.iss.summary, records.iss.raw
    if summary is None:
        return data_frame(OFFICIAL_COLUMNS, [])
    by_layer: dict[tuple[str, int], dict[str, float | None]] = {}
    for fact in records.iss.fact_layers:
        if fact.model == summary.model:
            by_layer.setdefault((fact.metric, fact.layer), {})[fact.fact] = fact.iss
    rows: list[dict[str, Any]] = []
    for layer in sorted(summary.per_layer, key=lambda row: row.layer):
        rows.append(
            _over_layers(by_layer, summary.validated_layers, [layer.layer])
            | {"layer": str(layer.layer)}
            | {name: getattr(layer, name) for name in OF_A_LAYER}
        )
    rows.append(
        _over_layers(by_layer, summary.validated_layers, summary.validated_layers)
        | {"layer": VALIDATED}
        | _intervals("iss", summary.ISS)
    )
    rows.append(
        _over_layers(by_layer, summary.validated_layers, summary.window)
        | {"layer": ASKED, "status": ABLATION, "iss": None}
        | _intervals("raw_iss", raw)
    )
    return data_frame(OFFICIAL_COLUMNS, [row | {"model": summary.model} for row in rows])


def _over_layers(
    by_layer: dict[tuple[str, int], dict[str, float | None]], validated: Sequence[int], layers: Sequence[int]
) -> dict[str, Any]:
    """Means over facts of the mean over `layers` (10.6); ISS only where every one of them is validated.

    A fact that is undefined in one of the layers is left out.
    """
    row: dict[str, Any] = {"status": "validated" if layers and set(layers) <= set(validated) else "unresolved"}
    for metric, name in (("Raw-ISS", "raw_iss"), ("ISS", "iss")):
        if metric == "ISS" and row["status"] == "unresolved":
            continue
        tables = [by_layer.get((metric, layer), {}) for layer in layers]
        facts = tables[0] if tables else {}
        values = [[table.get(fact) for table in tables] for fact in facts]
        means = [math.fsum(value) / len(value) for value in values if None not in value]
        row |= {name: over_seeds.mean_or_none(means), "n_facts": len(means)}
    return row


def _intervals(name: str, source: Any) -> dict[str, Any]:
    if source is None:
        return {}
    kinds = ("bca", "percentile")
    return {
        f"{name}_{kind}_{end}": getattr(source, kind)[side]
        for kind in kinds
        for side, end in enumerate(("low", "high"))
    }


ROBUSTNESS_COLUMNS = (
    *("model", "layer", "status", "variant", "iss", "raw_iss", "difference"),
    *("difference_percentile_low", "difference_percentile_high", "difference_bca_low", "difference_bca_high"),
)
OWN, MATCHED, CALIBRATION_SIGMA = "own lam_rel", "lam_rel of ISS", "Sigma of the calibration rows"
VARIANTS = {  # columns of official_iss that hold ISS and Raw-ISS
    OWN: ("iss", "raw_iss"),
    MATCHED: ("iss", "raw_iss_matched_lam"),
    CALIBRATION_SIGMA: ("iss_calibration_sigma", "raw_iss_calibration_sigma"),
}


def difference(iss: float | None, raw_iss: float | None) -> float | None:
    """ISS - Raw-ISS where there are both."""
    return None if iss is None or raw_iss is None else iss - raw_iss


def over_layers(values: Sequence[float | None]) -> float | None:
    """Mean over layers; None where one of them has no value."""
    return None if None in values else over_seeds.mean_or_none([value for value in values if value is not None])


def robustness(records: Records) -> pd.DataFrame:
    """ISS and Raw-ISS, each at its own regularisation, both at that of ISS, and with Sigma of the calibration rows.

    Per layer, and over the validated layers of both. The interval, where every fact's value is known, is of the
    paired difference: one resampling of relations for both.
    """
    summary = records.iss.summary
    rows = []
    for variant, names in VARIANTS.items() if summary else ():
        pairs = {row.layer: tuple(getattr(row, name) for name in names) for row in summary.per_layer}
        for row in _with_mean(summary, pairs):
            layers = summary.validated_layers if row["layer"] == VALIDATED else [int(row["layer"])]
            edges = _paired(records.iss, layers) if variant == OWN and row["difference"] is not None else {}
            rows.append({"variant": variant} | row | edges)
    return data_frame(ROBUSTNESS_COLUMNS, rows)


def _paired(iss: IssRecords, layers: Sequence[int]) -> dict[str, Any]:
    official, raw = (fact_values(iss, metric, layers) for metric in ("ISS", "Raw-ISS"))
    facts = [(relation, value - raw[name][1]) for name, (relation, value) in official.items() if name in raw]
    return {f"difference_{name}": edge for name, edge in intervals(iss, facts).items() if name != "mean"}


def _with_mean(summary: IssSummary, pairs: dict[int, tuple[float | None, float | None]]) -> list[dict[str, Any]]:
    """A row of ISS, Raw-ISS and their difference per layer, and one over the validated layers."""
    places = [(str(layer), [layer]) for layer in sorted(pairs)] + [(VALIDATED, summary.validated_layers)]
    rows = []
    for name, layers in places:
        iss, raw_iss = (over_layers([pairs.get(layer, (None, None))[side] for layer in layers]) for side in (0, 1))
        official = bool(layers) and set(layers) <= set(summary.validated_layers)
        rows.append(
            {
                "model": summary.model,
                "layer": name,
                "status": "validated" if official else "unresolved",
                "iss": iss if official else None,
                "raw_iss": raw_iss,
                "difference": difference(iss, raw_iss) if official else None,
            }
        )
    return rows


LAM_COLUMNS = ("model", "layer", "status", "lam_rel", "iss", "raw_iss", "difference")


def lam_rel_sweep(records: Records) -> pd.DataFrame:
    """ISS, Raw-ISS and their difference over the regularisation of the whitening, per layer and over validated ones.

    The layers of the mean are the same for both (10.2).
    """
    summary = records.iss.summary
    rows = []
    for lam_rel in sorted({row.lam_rel for row in summary.sweep}) if summary else ():
        pairs = {row.layer: (row.iss, row.raw_iss) for row in summary.sweep if row.lam_rel == lam_rel}
        rows += [{"lam_rel": lam_rel} | row for row in _with_mean(summary, pairs)]
    order = {name: place for place, name in enumerate(dict.fromkeys(row["layer"] for row in rows))}
    return data_frame(LAM_COLUMNS, sorted(rows, key=lambda row: order[row["layer"]]))


RELATION_COLUMNS = ("model", "relation", "iss", "iss_sd", "raw_iss", "raw_iss_sd", "difference", "n_facts")


def per_relation(records: Records) -> pd.DataFrame:
    """ISS and Raw-ISS of each relation: mean and sample sd over its facts (18, heterogeneity)."""
    rows = []
    ordered = sorted(records.iss.facts, key=lambda row: (row.model, row.relation))
    for (model, relation), group in groupby(ordered, key=lambda row: (row.model, row.relation)):
        facts = list(group)
        row: dict[str, Any] = {"model": model, "relation": relation, "n_facts": len({fact.fact for fact in facts})}
        for metric, name in (("ISS", "iss"), ("Raw-ISS", "raw_iss")):
            values = [fact.iss for fact in facts if fact.metric == metric and fact.iss is not None]
            row |= {name: over_seeds.mean_or_none(values), f"{name}_sd": over_seeds.deviation_or_none(values)}
        rows.append(row | {"difference": difference(row["iss"], row["raw_iss"])})
    return data_frame(RELATION_COLUMNS, rows)


ACCURACY_COLUMNS = ("model", "by", "name", "share")


def answer_accuracy(records: Records) -> pd.DataFrame:
    """Share of prompts whose first answer token the model gets right; ISS does not depend on it."""
    summary = records.iss.summary
    if summary is None:
        return data_frame(ACCURACY_COLUMNS, [])
    accuracy = summary.answer_accuracy
    shares = [("all", "all prompts", accuracy.overall)]
    shares += [("family", *item) for item in accuracy.per_family.items()]
    shares += [("relation", *item) for item in sorted(accuracy.per_relation.items())]
    rows = [dict(zip(ACCURACY_COLUMNS, (summary.model, *row), strict=True)) for row in shares]
    return data_frame(ACCURACY_COLUMNS, rows)


TABLES: dict[str, Table] = {
    "official_iss": official_iss,
    "robustness": robustness,
    "lam_rel_sweep": lam_rel_sweep,
    "per_relation": per_relation,
    "answer_accuracy": answer_accuracy,
}
