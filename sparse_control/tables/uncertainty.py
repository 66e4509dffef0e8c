"""Five sources of uncertainty, each in columns of its own and never mixed (source document, 18)."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from sparse_control.metrics import over_seeds
from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.tables.common import Records, Table, data_frame
from sparse_control.tables.estimator import final_rungs
from sparse_control.tables.layers import status_of, statuses
from sparse_control.tables.official import VALIDATED
from sparse_control.tables.sampling import Fact, intervals

CORPUS = ("corpus_n", "corpus_iss_difference", "halves_iss_difference")
RANK = ("rank_2k_iss_difference", "rank_exact_iss_difference")
SEEDS = ("seeds", "seed_iss_sd")
SAMPLING = ("iss", "percentile_low", "percentile_high", "bca_low", "bca_high")
RELATIONS = ("relations", "relation_sd", "relation_min", "relation_max", "relation_range")
COLUMNS = ("model", "layer", "status", *CORPUS, *RANK, *SEEDS, *SAMPLING, *RELATIONS)
BOUNDS = (CORPUS[1], CORPUS[2], *RANK, SEEDS[1])


def uncertainty(records: Records) -> pd.DataFrame:
    """Corpus, rank and sketch seeds on the calibration set; sampling and heterogeneity on the benchmark.

    The last row is of the mean over validated layers. Its first three sources are means over those layers: by the
    triangle inequality the mean changes by no more than that, and its standard deviation is no larger.
    """
    iss = records.iss
    layers = sorted(statuses(iss))
    rows = [_layer(iss, layer) for layer in layers]
    if not rows:
        return data_frame(COLUMNS, [])
    validated = [row for row in rows if row["status"] == "validated"]
    status = "validated" if validated else "unresolved"
    whole: dict[str, Any] = {"model": iss.model, "layer": VALIDATED, "status": status}
    for name in BOUNDS:
        values = [row.get(name) for row in validated]
        whole[name] = None if None in values else over_seeds.mean_or_none(values)
    facts = [(fact.relation, fact.iss) for fact in iss.facts if fact.metric == "ISS" and fact.iss is not None]
    return data_frame(COLUMNS, [*rows, whole | _benchmark(iss, facts)])


def _layer(iss: IssRecords, layer: int) -> dict[str, Any]:
    row: dict[str, Any] = {"model": iss.model, "layer": str(layer), "status": status_of(iss, layer)}
    row |= _corpus(iss, layer) | _rank_and_seeds(iss, layer)
    facts = [
        (fact.relation, fact.iss)
        for fact in iss.fact_layers
        if (fact.metric, fact.layer) == ("ISS", layer) and fact.iss is not None
    ]
    return row | _benchmark(iss, facts)


def _corpus(iss: IssRecords, layer: int) -> dict[str, Any]:
    """n against 2n at the n of the estimator, or at the largest smaller one that has a 2n; and the two halves."""
    rung = final_rungs(iss).get(layer)
    compared = [row for row in iss.corpus_convergence if row.layer == layer and row.iss_difference is not None]
    compared = [row for row in compared if rung is None or row.n <= rung.corpus_size]
    largest = max(compared, key=lambda row: row.n, default=None)
    halves = [floor for floor in (iss.comparison.noise_floor if iss.comparison else ()) if floor.layer == layer]
    return {
        "corpus_n": largest.n if largest else None,
        "corpus_iss_difference": largest.iss_difference if largest else None,
        "halves_iss_difference": halves[0].E_ISS if halves else None,
    }


def _rank_and_seeds(iss: IssRecords, layer: int) -> dict[str, Any]:
    """k against 2k and against the exact reference, and the spread over sketch seeds, at the final rung."""
    rung = final_rungs(iss).get(layer)
    if rung is None:
        return {}
    probe = iss.freeze.settings.estimator.probe if iss.freeze else None
    setting = (layer, rung.k, rung.oversampling, rung.power_iterations)
    exact = [
        row.E_ISS
        for row in (iss.comparison.rows if iss.comparison else ())
        if (row.layer, row.k, row.oversampling, row.power_iterations) == setting
        and row.estimator == "qb"
        and probe in (None, row.probe)
        and row.E_ISS is not None
    ]
    seeds = {
        len(row.seeds)
        for row in iss.seed_stability
        if (row.layer, row.k, row.oversampling, row.power_iterations, row.corpus_size) == (*setting, rung.corpus_size)
    }
    return {
        "rank_2k_iss_difference": rung.iss_rank_difference,
        "rank_exact_iss_difference": over_seeds.mean_or_none(exact),
        "seeds": max(seeds, default=None),
        "seed_iss_sd": rung.iss_seed_deviation,
    }


def _benchmark(iss: IssRecords, facts: Sequence[Fact]) -> dict[str, Any]:
    """Bootstrap over relations of the mean over facts, and how far the relations lie apart."""
    if not facts or iss.freeze is None:
        return {}
    names = sorted({relation for relation, _ in facts})
    means = [_mean(value for relation, value in facts if relation == name) for name in names]
    found = intervals(iss, facts)
    row: dict[str, Any] = {"iss": found.pop("mean"), "relations": len(means)} | found
    row |= {"relation_sd": over_seeds.deviation_or_none(means), "relation_min": min(means), "relation_max": max(means)}
    return row | {"relation_range": max(means) - min(means)}


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)


TABLES: dict[str, Table] = {"uncertainty": uncertainty}
