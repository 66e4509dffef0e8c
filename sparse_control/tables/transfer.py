"""Experiment B: does the rank of the small model do for the medium one (source document, 7 and 16)?"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from sparse_control.metrics import over_seeds
from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.jacobian_iss.validation import ActionValidation
from sparse_control.tables.common import Records, Table, data_frame
from sparse_control.tables.estimator import final_rungs, width
from sparse_control.tables.layers import statuses

PLACE = "experiment_b"
OF_A_MODEL = ("model", "layer", "d", "status", "k", "k_over_d", "p", "q", "n")
AT_SMALL = ("k", "E_vec", "C_vec", "E_ISS", "median_cosine", "median_relative_error", "passed")
COLUMNS = (
    *("model", "depth", *(f"small_{name}" for name in OF_A_MODEL), *(f"medium_{name}" for name in OF_A_MODEL)),
    *(f"medium_at_small_k_{name}" for name in AT_SMALL),
    *("transfers", "reason"),
)


def rank_transfer(records: Records) -> pd.DataFrame:
    """Per representative depth the smallest k that passes on either model, and the medium one's errors at the small k.

    Depths are the representative layers of both settings in order. The rank transfers where the medium model, on its
    own corpus size, passes at the rank, oversampling and power of the small one; null where it was not tried there.
    """
    small, medium = records.iss, records.sub_roots.get(PLACE)
    if medium is None:
        return data_frame(COLUMNS, [])
    pairs = zip(_representative(small), _representative(medium), strict=False)
    return data_frame(
        COLUMNS,
        (
            {"model": f"{small.model}, {medium.model}", "depth": depth}
            | _of_model("small", small, first)
            | _of_model("medium", medium, second)
            | _at_small_rank(final_rungs(small).get(first), medium, second)
            for depth, (first, second) in enumerate(pairs, start=1)
        ),
    )


def _representative(iss: IssRecords) -> Sequence[int]:
    window = statuses(iss)
    chosen = iss.freeze.settings.alternatives.layers if iss.freeze else list(window)
    return [layer for layer in chosen if layer in window]


def _of_model(name: str, iss: IssRecords, layer: int) -> dict[str, Any]:
    rung = final_rungs(iss).get(layer)
    row: dict[str, Any] = {"model": iss.model, "layer": layer, "status": statuses(iss)[layer]}
    if rung is not None:
        row["d"] = width(rung)
        if rung.chosen:
            row |= {"k": rung.k, "k_over_d": rung.k_over_d, "p": rung.oversampling, "q": rung.power_iterations}
            row["n"] = rung.corpus_size
    return {f"{name}_{key}": value for key, value in row.items()}


def _at_small_rank(rung: ActionValidation | None, medium: IssRecords, layer: int) -> dict[str, Any]:
    if rung is None or not rung.chosen:
        return {"reason": "no rank passes on the small model"}
    row: dict[str, Any] = {"k": rung.k}
    measured = [
        other
        for other in (medium.comparison.rows if medium.comparison else ())
        if (other.layer, other.k, other.oversampling, other.power_iterations, other.estimator)
        == (layer, rung.k, rung.oversampling, rung.power_iterations, "qb")
    ]
    probes = {other.probe for other in measured}
    probe = "gaussian" if "gaussian" in probes else next(iter(probes), None)
    for name in ("E_vec", "C_vec", "E_ISS"):
        values = [value for other in measured if other.probe == probe and (value := getattr(other, name)) is not None]
        row[name] = over_seeds.mean_or_none(values)
    tried = [other for other in medium.actions if other.layer == layer and _setting(other) == _setting(rung)]
    if tried:
        row |= {name: getattr(tried[-1], name) for name in ("median_cosine", "median_relative_error", "passed")}
    final = final_rungs(medium).get(layer)
    reason = None if tried else "not tried on the medium model"
    if tried and not tried[-1].passed:
        reason = tried[-1].reason
    elif not tried and final is not None and final.chosen:
        reason = f"not tried on the medium model, whose ladder ended at k = {final.k}"
    return {f"medium_at_small_k_{key}": value for key, value in row.items()} | {
        "transfers": tried[-1].passed if tried else None,
        "reason": reason,
    }


def _setting(rung: ActionValidation) -> tuple[int, ...]:
    return rung.k, rung.oversampling, rung.power_iterations


TABLES: dict[str, Table] = {"rank_transfer": rank_transfer}
