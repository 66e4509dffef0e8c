"""The low-rank estimator: what passed, ranks against the exact reference, corpus sizes, sketch seeds."""

from itertools import groupby
from typing import Any

import pandas as pd

from sparse_control.artifact import axes
from sparse_control.artifact.iss_files import ActionValidation
from sparse_control.artifact.tables.common import Records, Table, data_frame
from sparse_control.errors import InputError

ESTIMATOR_COLUMNS = (
    "model",
    "layer",
    "status",
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
    "rungs",
    "reason",
)


def estimator_validation(records: Records) -> pd.DataFrame:
    """Per layer the frozen rung, or the last one tried where none passed (ISS source document, 7.4 and 12)."""
    ordered = sorted(records.iss.actions, key=lambda row: (row.model, row.layer))  # stable: rungs keep their order
    rows = []
    for (model, layer), group in groupby(ordered, key=lambda row: (row.model, row.layer)):
        rungs = list(group)
        chosen = [rung for rung in rungs if rung.chosen]
        if len(chosen) > 1:
            raise InputError(
                f"per_model_action_validation.jsonl: layer {layer} of {model} has {len(chosen)} chosen rungs"
            )
        rows.append(
            _estimator_row((chosen or rungs)[-1], status="validated" if chosen else "unresolved", rungs=len(rungs))
        )
    return data_frame(ESTIMATOR_COLUMNS, rows)


def width(rung: ActionValidation) -> int | None:
    """d, from k and k/d."""
    return round(rung.k / rung.k_over_d) if rung.k_over_d else None


def _estimator_row(rung: ActionValidation, *, status: str, rungs: int) -> dict[str, Any]:
    own = ("status", "rungs", "r_is_d")
    names = {"p": "oversampling", "q": "power_iterations", "n": "corpus_size"}
    row = {name: getattr(rung, names.get(name, name)) for name in ESTIMATOR_COLUMNS if name not in own}
    return row | {"status": status, "rungs": rungs, "r_is_d": rung.r == width(rung)}


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
RANK_COLUMNS = ("model", "n", *RANK_KEYS, "r_is_d", "seeds", *RANK_MEANS, *RANK_NOISE)


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
        row["r_is_d"] = row["r"] in widths
        for name in RANK_MEANS:
            row[name] = axes.mean_or_none([value for seed in seeds if (value := getattr(seed, name)) is not None])
        row["E_vec_sd"] = axes.deviation_or_none([seed.E_vec for seed in seeds])
        floor = floors.get(row["layer"])
        row |= {f"noise_floor_{name}": getattr(floor, name, None) for name in ("E_F", "E_vec")}
        rows.append(row)
    return data_frame(RANK_COLUMNS, rows)


STABILITY_COLUMNS = ("model", "layer", "k", "p", "q", "metric", "seeds", "mean", "sd")


def seed_stability(records: Records) -> pd.DataFrame:
    """Mean and sample sd of each metric over sketch seeds (9), at the setting that `estimator_validation` shows."""
    settings = {
        (row["model"], row["layer"]): (row["k"], row["p"], row["q"])
        for row in estimator_validation(records).to_dict("records")
    }
    latest: dict[tuple[str, int, str], dict[str, Any]] = {}
    for row in records.iss.seed_stability:
        if settings.get((row.model, row.layer)) == (row.k, row.oversampling, row.power_iterations):
            latest[row.model, row.layer, row.metric] = {  # a setting tried again on a larger corpus comes later
                "model": row.model,
                "layer": row.layer,
                "k": row.k,
                "p": row.oversampling,
                "q": row.power_iterations,
                "metric": row.metric,
                "seeds": len(row.seeds),
                "mean": axes.mean_or_none(row.values),
                "sd": axes.deviation_or_none(row.values),
            }
    return data_frame(STABILITY_COLUMNS, latest.values())


CORPUS_COLUMNS = ("model", "layer", "n", "cosine_to_2n", "iss_difference")


def corpus_convergence(records: Records) -> pd.DataFrame:
    """n corpus prompts against 2n (8.2)."""
    rows = records.iss.corpus_convergence
    return data_frame(CORPUS_COLUMNS, ({name: getattr(row, name) for name in CORPUS_COLUMNS} for row in rows))


TABLES: dict[str, Table] = {
    "estimator_validation": estimator_validation,
    "rank_curve": rank_curve,
    "corpus_convergence": corpus_convergence,
    "seed_stability": seed_stability,
}
