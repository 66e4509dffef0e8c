"""The low-rank estimator: what passed, ranks against the exact reference, corpus sizes, sketch seeds."""

from itertools import groupby
from typing import Any

import pandas as pd

from sparse_control.errors import InputError
from sparse_control.metrics import over_seeds
from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.jacobian_iss.validation import ActionValidation
from sparse_control.tables.common import Records, Table, data_frame
from sparse_control.tables.layers import UNRESOLVED, VALIDATED, status_of

RUNG_COLUMNS = (
    "k",
    "k_over_d",
    "p",
    "r",
    "r_is_d",
    "q",
    "n",
    "step",
    "median_cosine",
    "median_relative_error",
    "iss_rank_difference",
    "iss_seed_deviation",
)
ESTIMATOR_COLUMNS = ("model", "layer", "status", *RUNG_COLUMNS, "rungs", "reporting", "reason")
LADDER_COLUMNS = (
    *("model", "layer", "status", "attempt", *RUNG_COLUMNS),
    *("iss", "partner_r", "direct_action", "passed", "chosen", "reason"),
)
RUNG_NAMES = {"p": "oversampling", "q": "power_iterations", "n": "corpus_size"}


def final_rungs(iss: IssRecords) -> dict[int, ActionValidation]:
    """Per layer the frozen rung, or the last one tried where none passed.

    Raises:
        InputError: a layer with two frozen rungs.
    """
    found = {}
    for layer, group in groupby(sorted(iss.actions, key=lambda row: row.layer), key=lambda row: row.layer):
        rungs = list(group)  # sorting is stable: rungs keep their order
        chosen = [rung for rung in rungs if rung.chosen]
        if len(chosen) > 1:
            raise InputError(f"per_model_action_validation.jsonl: layer {layer} has {len(chosen)} chosen rungs")
        found[layer] = (chosen or rungs)[-1]
    return found


def width(rung: ActionValidation) -> int | None:
    """d, from k and k/d."""
    return round(rung.k / rung.k_over_d) if rung.k_over_d else None


def _rung(rung: ActionValidation, columns: tuple[str, ...]) -> dict[str, Any]:
    row = {name: getattr(rung, RUNG_NAMES.get(name, name), None) for name in columns}
    return row | {"r_is_d": rung.r == width(rung)}


def estimator_validation(records: Records) -> pd.DataFrame:
    """Per layer the frozen rung, or the last one tried where none passed (ISS source document, 7.4 and 12)."""
    iss, rows = records.iss, []
    for layer, rung in final_rungs(iss).items():
        frozen = iss.freeze.layers.get(str(layer)) if iss.freeze else None
        rows.append(
            _rung(rung, ESTIMATOR_COLUMNS)
            | {
                "status": VALIDATED if rung.chosen else UNRESOLVED,
                "rungs": sum(other.layer == layer for other in iss.actions),
                "reporting": frozen.reporting if frozen else None,
            }
        )
    return data_frame(ESTIMATOR_COLUMNS, rows)


def ladder(records: Records) -> pd.DataFrame:
    """Every attempt of the failure ladder, in order, with its reason (12.1)."""
    rows = []
    ordered = sorted(records.iss.actions, key=lambda row: row.layer)
    for layer, group in groupby(ordered, key=lambda row: row.layer):
        status = status_of(records.iss, layer)
        rows += [
            _rung(rung, LADDER_COLUMNS) | {"status": status, "attempt": number}
            for number, rung in enumerate(group, start=1)
        ]
    return data_frame(LADDER_COLUMNS, rows)


RANK_MEANS = (
    "E_F",
    "E_vec",
    "C_vec",
    "E_vec_centred",
    "C_vec_centred",
    "E_ISS",
    "rho_fact",
    "svd_floor_E_F",
    "svd_floor_E_vec",
)
RANK_KEYS = ("layer", "estimator", "probe", "p", "q", "k", "r")
RANK_NOISE = ("E_vec_sd", "noise_floor_E_F", "noise_floor_E_vec")
RANK_COLUMNS = ("model", "n", "status", *RANK_KEYS, "r_is_d", "seeds", *RANK_MEANS, *RANK_NOISE)


def rank_curve(records: Records) -> pd.DataFrame:
    """Experiment A: low-rank estimators against the full empirical reference, means over sketch seeds (5.4)."""
    comparison = records.iss.comparison
    if comparison is None:
        return data_frame(RANK_COLUMNS, [])

    def key(row: Any) -> tuple[Any, ...]:
        return row.layer, row.estimator, row.probe, row.oversampling, row.power_iterations, row.k, row.r

    floors = {floor.layer: floor for floor in comparison.noise_floor}
    widths = {width(rung) for rung in records.iss.actions if rung.model == comparison.model}
    rows = []
    for values, group in groupby(sorted(comparison.rows, key=key), key=key):
        seeds = list(group)
        row: dict[str, Any] = dict(zip(RANK_KEYS, values, strict=True))
        row |= {"model": comparison.model, "n": comparison.corpus_size, "seeds": len(seeds)}
        row["status"] = status_of(records.iss, row["layer"])
        row["r_is_d"] = row["r"] in widths
        for name in RANK_MEANS:
            row[name] = over_seeds.mean_or_none([value for seed in seeds if (value := getattr(seed, name)) is not None])
        row["E_vec_sd"] = over_seeds.deviation_or_none([seed.E_vec for seed in seeds])
        floor = floors.get(row["layer"])
        row |= {f"noise_floor_{name}": getattr(floor, name, None) for name in ("E_F", "E_vec")}
        rows.append(row)
    return data_frame(RANK_COLUMNS, rows)


STABILITY_COLUMNS = ("model", "layer", "status", "k", "p", "q", "n", "metric", "seeds", "mean", "sd")


def seed_stability(records: Records) -> pd.DataFrame:
    """Mean and sample sd of each metric over sketch seeds (9), at the setting that `estimator_validation` shows."""
    final = final_rungs(records.iss)
    rows = []
    for row in sorted(records.iss.seed_stability, key=lambda row: row.layer):
        rung = final.get(row.layer)
        if rung is None or _setting(rung) != _setting(row):
            continue
        rows.append(
            {
                "model": row.model,
                "layer": row.layer,
                "status": status_of(records.iss, row.layer),
                "k": row.k,
                "p": row.oversampling,
                "q": row.power_iterations,
                "n": row.corpus_size,
                "metric": row.metric,
                "seeds": len(row.seeds),
                "mean": over_seeds.mean_or_none(row.values),
                "sd": over_seeds.deviation_or_none(row.values),
            }
        )
    return data_frame(STABILITY_COLUMNS, rows)


def _setting(row: Any) -> tuple[int, ...]:
    return row.k, row.oversampling, row.power_iterations, row.corpus_size


CORPUS_COLUMNS = (
    *("model", "layer", "status", "n", "cosine_to_2n", "relative_error_to_2n", "iss_difference"),
    *("converged", "chosen"),
)


def corpus_convergence(records: Records) -> pd.DataFrame:
    """n corpus prompts against 2n, and the n at which the fixed rule lets the ladder start (8.2)."""
    ordered = sorted(records.iss.corpus_convergence, key=lambda row: (row.layer, row.n))
    return data_frame(
        CORPUS_COLUMNS,
        (
            {name: getattr(row, name, None) for name in CORPUS_COLUMNS} | {"status": status_of(records.iss, row.layer)}
            for row in ordered
        ),
    )


HALVES = ("E_F", "E_vec", "C_vec", "E_vec_centred", "C_vec_centred", "E_ISS")
HALVES_COLUMNS = ("model", "layer", "status", "n", *HALVES)


def corpus_halves(records: Records) -> pd.DataFrame:
    """Two disjoint halves of the corpus against each other, each of n prompts: no claim is made below these errors."""
    comparison = records.iss.comparison
    return data_frame(
        HALVES_COLUMNS,
        (
            {"model": comparison.model, "layer": floor.layer, "status": status_of(records.iss, floor.layer)}
            | {"n": comparison.corpus_size // 2}
            | {name: getattr(floor, name) for name in HALVES}
            for floor in sorted(comparison.noise_floor if comparison else (), key=lambda floor: floor.layer)
        ),
    )


TABLES: dict[str, Table] = {
    "estimator_validation": estimator_validation,
    "ladder": ladder,
    "rank_curve": rank_curve,
    "corpus_convergence": corpus_convergence,
    "corpus_halves": corpus_halves,
    "seed_stability": seed_stability,
}
