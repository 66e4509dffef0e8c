"""Named alternatives to the official estimator, each validated on its own and none of them official (12.2)."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import pandas as pd

from sparse_control.metrics import over_seeds
from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.jacobian_iss.validation import AlternativeAttempt
from sparse_control.tables.common import Records, Table, data_frame, rows_of
from sparse_control.tables.estimator import width
from sparse_control.tables.layers import status_of

QB = "qb"  # the official estimator, for comparison
ORDER = (QB, "qb_deflated", "qb_activation", "output_sketch", "svd")
ERRORS = ("E_F", "E_vec", "C_vec", "E_vec_centred", "C_vec_centred", "E_ISS", "rho_fact")
PASSES, NOWHERE, NOT_TRIED = "yes", "none", "not tried"

CRITERIA = ("median_cosine", "median_relative_error", "iss_rank_difference", "iss_seed_deviation")
CURVE_COLUMNS = (
    *("model", "layer", "status", "estimator", "probe", "q", "p", "k", "r", "n", *ERRORS, *CRITERIA),
    *("passed", "reason", "chosen"),
)
NAMES = {"q": "power_iterations", "p": "oversampling", "n": "corpus_size"}


def alternatives_curve(records: Records) -> pd.DataFrame:
    """Every alternative at every setting, at the preregistered sketch seed."""

    def key(row: AlternativeAttempt) -> tuple[int, ...]:
        return row.layer, ORDER.index(row.estimator), row.power_iterations or 0, row.oversampling or 0, row.k

    return data_frame(
        CURVE_COLUMNS,
        (
            {name: getattr(row, NAMES.get(name, name), None) for name in CURVE_COLUMNS}
            | {"status": status_of(records.iss, row.layer)}
            for row in sorted(records.iss.alternatives, key=key)
        ),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    return over_seeds.mean_or_none([value for value in values if value is not None])


COLUMNS = (
    *("model", "layer", "status", "estimator", "q", "passes", "smallest_k", "k_over_d", "r"),
    *("common_k", *ERRORS, "E_vec_over_qb", "qb_fails_at_smallest_k"),
)


def alternatives(records: Records) -> pd.DataFrame:
    """Per layer and estimator the smallest k that passes, and the errors at one k common to all, beside plain QB.

    The common k is the middle one of those that every estimator was measured at. Criteria are those of the official
    estimator; plain QB passes where an attempt of its ladder does, and `qb_fails_at_smallest_k` is null where its
    ladder has no attempt at that k with as many power iterations.
    """
    iss = records.iss
    curve = rows_of(alternatives_curve(records))
    if not curve:
        return data_frame(COLUMNS, [])
    by_layer = {layer: list(group) for layer, group in groupby(curve, key=lambda row: row["layer"])}
    common = _common_rank(curve, iss)
    widths = {width(rung) for rung in iss.actions}
    d = widths.pop() if len(widths) == 1 else None
    rows = []
    for layer, attempts in by_layer.items():
        plain = _plain(iss, layer, sorted({row["q"] for row in attempts if row["q"] is not None}), common)
        base = {row["q"]: row["E_vec"] for row in plain}
        first = next(iter(base.values()), None)
        settings = groupby(attempts, key=lambda row: (row["estimator"], row["q"]))
        named = [_named(list(group), common) for _, group in settings]
        for row in sorted([*plain, *named], key=lambda row: (ORDER.index(row["estimator"]), row["q"] or 0)):
            reference = base.get(row["q"], first)
            ratio = row["E_vec"] / reference if reference and row["E_vec"] is not None else None
            rows.append(
                row
                | {"model": iss.model, "layer": layer, "status": status_of(iss, layer), "common_k": common}
                | {"k_over_d": row["smallest_k"] / d if d and row["smallest_k"] else None, "E_vec_over_qb": ratio}
                | {"qb_fails_at_smallest_k": _qb_fails(iss, layer, row)}
            )
    return data_frame(COLUMNS, rows)


def _qb_fails(iss: IssRecords, layer: int, row: dict[str, Any]) -> bool | None:
    """Whether plain QB fails at the rank this estimator passes at; null where it was not tried there."""
    if row["estimator"] == QB or row["smallest_k"] is None:
        return None
    setting = layer, row["smallest_k"], row["q"] or 0
    tried = [rung.passed for rung in iss.actions if (rung.layer, rung.k, rung.power_iterations) == setting]
    return not any(tried) if tried else None


def _common_rank(curve: Sequence[dict[str, Any]], iss: IssRecords) -> int | None:
    ranks = [{row["k"] for row in curve if row["estimator"] == name} for name in {row["estimator"] for row in curve}]
    if iss.comparison:
        ranks.append({row.k for row in iss.comparison.rows})
    shared = sorted(set.intersection(*ranks))
    return shared[len(shared) // 2] if shared else None


def _named(attempts: Sequence[dict[str, Any]], common: int | None) -> dict[str, Any]:
    passing = min((row for row in attempts if row["passed"]), key=lambda row: (row["k"], row["r"]), default=None)
    at = [row for row in attempts if row["k"] == common]
    errors = min(at, key=lambda row: row["r"], default=dict.fromkeys(ERRORS))
    return {
        "estimator": attempts[0]["estimator"],
        "q": attempts[0]["q"],
        "passes": PASSES if passing else NOWHERE,
        "smallest_k": passing["k"] if passing else None,
        "r": passing["r"] if passing else None,
    } | {name: errors[name] for name in ERRORS}


def _plain(iss: IssRecords, layer: int, powers: Sequence[int], common: int | None) -> list[dict[str, Any]]:
    """Plain QB at each power: its ladder, and its errors at the common k with the smallest oversampling."""
    probe = iss.freeze.settings.estimator.probe if iss.freeze else "gaussian"
    rows = []
    for power in powers:
        attempts = [rung for rung in iss.actions if (rung.layer, rung.power_iterations) == (layer, power)]
        passing = min((rung for rung in attempts if rung.passed), key=lambda rung: (rung.k, rung.r), default=None)
        measured = [
            row
            for row in (iss.comparison.rows if iss.comparison else ())
            if (row.layer, row.power_iterations, row.k, row.estimator, row.probe) == (layer, power, common, QB, probe)
        ]
        smallest = min((row.oversampling for row in measured), default=None)
        measured = [row for row in measured if row.oversampling == smallest]
        rows.append(
            {
                "estimator": QB,
                "q": power,
                "passes": PASSES if passing else NOWHERE if attempts else NOT_TRIED,
                "smallest_k": passing.k if passing else None,
                "r": passing.r if passing else None,
            }
            | {name: _mean(getattr(row, name) for row in measured) for name in ERRORS}
        )
    return rows


TABLES: dict[str, Table] = {"alternatives": alternatives, "alternatives_curve": alternatives_curve}
