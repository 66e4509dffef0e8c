"""The two nulls beside the official measurement: what of ISS - Raw-ISS is left without word order or training."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from sparse_control.records.jacobian_iss.results import IssSummary, LayerSummary
from sparse_control.tables.common import Records, Table, data_frame
from sparse_control.tables.official import MATCHED, OWN, VARIANTS, difference, over_layers

NULLS = {"shuffled_tokens": "nulls/shuffled_tokens", "redrawn_weights": "nulls/redrawn_weights"}
NAMES = ("official", *NULLS)
COMMON, EACH = "validated in all", "validated in each"
VALUES = ("iss", "raw_iss", "difference")
COLUMNS = (
    *("model", "layers", "lam", "lam_rel", *(f"{name}_{value}" for name in NAMES for value in VALUES)),
    *(f"{name}_layers" for name in NAMES),
)

Pair = tuple[float | None, float | None]  # ISS, Raw-ISS


def nulls(records: Records) -> pd.DataFrame:
    """ISS, Raw-ISS and their difference, officially and in both nulls, at each regularisation.

    A null is another freeze, so that other layers may be validated; the first rows are of the layers that are
    validated everywhere, the next of each one's own validated layers, the last of single layers.
    """
    found = {"official": records.iss.summary}
    found |= {name: records.sub_roots[place].summary for name, place in NULLS.items() if place in records.sub_roots}
    summaries = {name: summary for name, summary in found.items() if summary is not None}
    if "official" not in summaries or len(summaries) == 1:
        return data_frame(COLUMNS, [])
    validated = {name: set(summary.validated_layers) for name, summary in summaries.items()}
    common = sorted(set.intersection(*validated.values()))
    places: list[tuple[str, dict[str, Sequence[int]]]] = [
        (COMMON, dict.fromkeys(summaries, common)),
        (EACH, {name: summary.validated_layers for name, summary in summaries.items()}),
    ]
    shared = sorted(set.intersection(*(set(summary.window) for summary in summaries.values())))
    places += [(str(layer), dict.fromkeys(summaries, [layer])) for layer in shared]
    rows = []
    for place, layers in places:
        for lam, lam_rel, pairs_of in _regularisations(summaries):
            row: dict[str, Any] = {"model": records.iss.model, "layers": place, "lam": lam, "lam_rel": lam_rel}
            for name, summary in summaries.items():
                row |= _values(name, pairs_of(summary), layers[name], summary.validated_layers)
            rows.append(row)
    return data_frame(COLUMNS, rows)


def _regularisations(
    summaries: dict[str, IssSummary],
) -> list[tuple[str, float | None, Callable[[IssSummary], dict[int, Pair]]]]:
    """Own and matched regularisation, then every value that was swept in all."""
    found: list[tuple[str, float | None, Callable[[IssSummary], dict[int, Pair]]]] = [
        (name, None, lambda summary, names=VARIANTS[name]: {row.layer: _pair(row, names) for row in summary.per_layer})
        for name in (OWN, MATCHED)
    ]
    swept = [{row.lam_rel for row in summary.sweep} for summary in summaries.values()]
    for value in sorted(set.intersection(*swept)):
        found.append(("swept", value, lambda summary, value=value: _swept(summary, value)))
    return found


def _pair(row: LayerSummary, names: tuple[str, str]) -> Pair:
    return getattr(row, names[0]), getattr(row, names[1])


def _swept(summary: IssSummary, lam_rel: float) -> dict[int, Pair]:
    return {row.layer: (row.iss, row.raw_iss) for row in summary.sweep if row.lam_rel == lam_rel}


def _values(name: str, pairs: dict[int, Pair], layers: Sequence[int], validated: Sequence[int]) -> dict[str, Any]:
    """ISS stands only where every layer is validated."""
    iss, raw_iss = (over_layers([pairs.get(layer, (None, None))[side] for layer in layers]) for side in (0, 1))
    if not set(layers) <= set(validated):
        iss = None
    values = {"iss": iss, "raw_iss": raw_iss, "difference": difference(iss, raw_iss)}
    return {f"{name}_{key}": value for key, value in values.items()} | {
        f"{name}_layers": " ".join(map(str, layers)) or None
    }


TABLES: dict[str, Table] = {"nulls": nulls}
