"""Internal state stability on the benchmark: official ISS beside Raw-ISS, relations, regularisation."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pandas as pd

from sparse_control.artifact import axes
from sparse_control.artifact.tables.common import Records, Table, data_frame

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
    "lam_rel_iss",
    "lam_rel_raw",
    "n_facts",
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
            | {
                "layer": str(layer.layer),
                "raw_iss_matched_lam": layer.raw_iss_matched_lam,
                "lam_rel_iss": layer.lam_rel_iss,
                "lam_rel_raw": layer.lam_rel_raw,
            }
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
        row |= {name: axes.mean_or_none(means), "n_facts": len(means)}
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


RELATION_COLUMNS = ("model", "relation", "iss", "raw_iss", "n_facts")


def relations(records: Records) -> pd.DataFrame:
    """ISS and Raw-ISS of each relation, from the facts' means (18, heterogeneity)."""
    rows = []
    ordered = sorted(records.iss.facts, key=lambda row: (row.model, row.relation))
    for (model, relation), group in groupby(ordered, key=lambda row: (row.model, row.relation)):
        facts = list(group)
        values = {
            metric: [fact.iss for fact in facts if fact.metric == metric and fact.iss is not None]
            for metric in ("ISS", "Raw-ISS")
        }
        rows.append(
            {
                "model": model,
                "relation": relation,
                "iss": axes.mean_or_none(values["ISS"]),
                "raw_iss": axes.mean_or_none(values["Raw-ISS"]),
                "n_facts": len({fact.fact for fact in facts}),
            }
        )
    return data_frame(RELATION_COLUMNS, rows)


LAM_COLUMNS = ("model", "layer", "lam_rel", "iss", "raw_iss")


def lam_sweep(records: Records) -> pd.DataFrame:
    """ISS and Raw-ISS over the regularisation of the whitening (10.2)."""
    summary = records.iss.summary
    rows = sorted(summary.sweep, key=lambda row: (row.layer, row.lam_rel)) if summary else []
    return data_frame(
        LAM_COLUMNS,
        ({"model": summary.model, **{name: getattr(row, name) for name in LAM_COLUMNS[1:]}} for row in rows),
    )


TABLES: dict[str, Table] = {
    "official_iss": official_iss,
    "relations": relations,
    "lam_sweep": lam_sweep,
}
