"""What goes with what over facts and relations, and where selected sites are: findings that no single table shows."""

import re
import statistics
from collections.abc import Sequence
from typing import Any

import pandas as pd

from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.read import ModelRecords
from sparse_control.tables.official import ANSWER_ACCURACY, PER_RELATION
from sparse_control.tables.sampling import fact_values

Found = dict[str, Any]
LAST_THIRD = 2 / 3  # depth from which on a site is in the last third of the layers
_LAYER = re.compile(r"L(\d+)\.")


def correlations(model: ModelRecords) -> Found:
    """Of ISS with Raw-ISS over facts, and of both with what the model knows over relations.

    Over facts the means over the validated layers are compared, by Pearson's correlation, and single layers beside it;
    over relations ranks are (Spearman).
    """
    iss = model.iss
    if iss.summary is None:
        return {}
    layers = sorted(iss.summary.validated_layers)
    found: Found = {"ISS and Raw-ISS over facts, correlation": _over_facts(iss, layers)}
    for layer in layers:
        found[f"ISS and Raw-ISS over facts at layer {layer}, correlation"] = _over_facts(iss, [layer])
    known = {row["name"]: row["share"] for row in ANSWER_ACCURACY.rows(model) if row["by"] == "relation"}
    rows = [row for row in PER_RELATION.rows(model) if row["relation"] in known]
    for name, column in (("ISS", "iss"), ("Raw-ISS", "raw_iss")):
        pairs = [(row[column], known[row["relation"]]) for row in rows if row[column] is not None]
        found[f"{name} and answers over relations, rank correlation"] = _ranked(pairs)
    return found | {"relations compared": len(rows)}


def _over_facts(iss: IssRecords, layers: Sequence[int]) -> float | None:
    official, raw = (fact_values(iss, metric, layers) for metric in ("ISS", "Raw-ISS"))
    return _linear([(value, raw[fact][1]) for fact, (_, value) in official.items() if fact in raw])


def _linear(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Pearson's correlation; None where either side is constant or there are fewer than two pairs."""
    try:
        return statistics.correlation(*map(list, zip(*pairs, strict=True)))
    except (statistics.StatisticsError, TypeError):
        return None


def _ranked(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's correlation, ties at their mean rank."""
    ranks = [pd.Series(side, dtype=float).rank().tolist() for side in zip(*pairs, strict=True)]
    return _linear(list(zip(*ranks, strict=True))) if ranks else None


def supports(model: ModelRecords) -> Found:
    """Of every task and selector with directions P: the share of selected sites in the last third of the layers.

    Layers are counted to the last one that any record selects from; the control that takes every site names them all.
    """
    chosen: dict[tuple[str, str], list[int]] = {}
    last = 0
    for record in model.six_axis:
        layers = [int(_LAYER.match(name)[1]) for name in record.support or ()]
        last = max([last, *layers])
        if record.supported and record.condition == "P":
            chosen.setdefault((record.task, record.selector), []).extend(layers)
    return {
        f"{task}, {selector}: share of sites in the last third of the layers": statistics.fmean(
            layer >= LAST_THIRD * (last + 1) for layer in layers
        )
        for (task, selector), layers in sorted(chosen.items())
        if layers
    }
