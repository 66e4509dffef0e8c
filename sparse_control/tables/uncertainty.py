"""Five sources of uncertainty, each in columns of its own and never mixed (source document, 18)."""

from collections.abc import Sequence

from sparse_control.metrics import over_seeds
from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.read import ModelRecords
from sparse_control.tables.columns import EMPTY, Column, Row, decimal, fixed, interval, label, significant
from sparse_control.tables.estimator import final_rungs
from sparse_control.tables.layers import UNRESOLVED, VALIDATED, status_of, statuses
from sparse_control.tables.official import VALIDATED_LAYERS
from sparse_control.tables.sampling import Fact, intervals
from sparse_control.tables.table import Table, mean_of_known

CORPUS = ("corpus_n", "corpus_iss_difference", "halves_iss_difference")
RANK = ("rank_2k_iss_difference", "rank_exact_iss_difference")
SEEDS = ("seeds", "seed_iss_sd")
SAMPLING = ("iss", "percentile_low", "percentile_high", "bca_low", "bca_high")
RELATIONS = ("relations", "relation_sd", "relation_min", "relation_max", "relation_range")
CALIBRATED = (*CORPUS[1:], *RANK, SEEDS[1])  # of the calibration set


def _uncertainty(model: ModelRecords) -> list[Row]:
    """Corpus, rank and sketch seeds on the calibration set; sampling and heterogeneity on the benchmark.

    The last row is of the mean over validated layers. Its first three sources are means over those layers: by the
    triangle inequality the mean changes by no more than that, and its standard deviation is no larger.
    """
    iss = model.iss
    rows = [_layer(iss, layer) for layer in sorted(statuses(iss))]
    if not rows:
        return []
    validated = [row for row in rows if row["status"] == VALIDATED]
    whole: Row = {"layer": VALIDATED_LAYERS, "status": VALIDATED if validated else UNRESOLVED}
    for name in CALIBRATED:
        values = [row.get(name) for row in validated]
        whole[name] = None if None in values else over_seeds.mean_or_none(values)
    facts = [(fact.relation, fact.iss) for fact in iss.facts if fact.metric == "ISS" and fact.iss is not None]
    return [*rows, whole | _benchmark(iss, facts)]


def _layer(iss: IssRecords, layer: int) -> Row:
    row: Row = {"layer": str(layer), "status": status_of(iss, layer)}
    row |= _corpus(iss, layer) | _rank_and_seeds(iss, layer)
    facts = [
        (fact.relation, fact.iss)
        for fact in iss.fact_layers
        if (fact.metric, fact.layer) == ("ISS", layer) and fact.iss is not None
    ]
    return row | _benchmark(iss, facts)


def _corpus(iss: IssRecords, layer: int) -> Row:
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


def _rank_and_seeds(iss: IssRecords, layer: int) -> Row:
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
    ]
    seeds = {
        len(row.seeds)
        for row in iss.seed_stability
        if (row.layer, row.k, row.oversampling, row.power_iterations, row.corpus_size) == (*setting, rung.corpus_size)
    }
    return {
        "rank_2k_iss_difference": rung.iss_rank_difference,
        "rank_exact_iss_difference": mean_of_known(exact),
        "seeds": max(seeds, default=None),
        "seed_iss_sd": rung.iss_seed_deviation,
    }


def _benchmark(iss: IssRecords, facts: Sequence[Fact]) -> Row:
    """Bootstrap over relations of the mean over facts, and how far the relations lie apart."""
    if not facts or iss.freeze is None:
        return {}
    names = sorted({relation for relation, _ in facts})
    means = [over_seeds.mean_or_none([value for relation, value in facts if relation == name]) for name in names]
    found = intervals(iss, facts)
    row: Row = {"iss": found.pop("mean"), "relations": len(means)} | found
    row |= {"relation_sd": over_seeds.deviation_or_none(means), "relation_min": min(means), "relation_max": max(means)}
    return row | {"relation_range": max(means) - min(means)}


def _seeds_text(row: Row) -> str:
    count = "" if row["seeds"] is None else f" ({row['seeds']})"
    return significant(row["seed_iss_sd"], 2) + count


def _two_digits(name: str, heading: str) -> Column:
    return Column(heading, lambda row: significant(row[name], 2))


def _corpus_text(row: Row) -> str:
    if row["corpus_iss_difference"] is None:
        return EMPTY
    return significant(row["corpus_iss_difference"], 2) + ("" if row["corpus_n"] is None else f" ({row['corpus_n']})")


def _range_text(row: Row) -> str:
    if row["relation_min"] is None:
        return EMPTY
    return f"{fixed(row['relation_min'], 2)} to {fixed(row['relation_max'], 2)}"


UNCERTAINTY = Table(
    name="uncertainty",
    title="Five sources of uncertainty, never mixed",
    caption=(
        "Corpus: |ISS(n) − ISS(2n)| (n) and the difference between two disjoint halves of the corpus. Rank: "
        "|ISS(2k) − ISS(k)| and E_ISS against the exact finite-corpus reference. Sketch seeds: sample sd of ISS "
        "(number of seeds). These are of calibration ISS; over the validated layers they are means over layers, "
        "which bound that of the mean. Benchmark sampling: 95 % intervals of ISS, percentile and BCa, from the "
        "bootstrap that resamples relations. Heterogeneity: sd and range of ISS over relations."
    ),
    section="Jacobian-Transported ISS, 18",
    group="iss",
    reads=("actions", "freeze", "corpus_convergence", "comparison", "seed_stability", "fact_layers", "facts"),
    rows=_uncertainty,
    fields=("layer", "status", *CORPUS, *RANK, *SEEDS, *SAMPLING, *RELATIONS),
    columns=(
        label("layer", "Layer"),
        label("status", "Status"),
        Column("Corpus\nn, 2n", _corpus_text),
        _two_digits("halves_iss_difference", "Corpus\nhalves"),
        _two_digits("rank_2k_iss_difference", "Rank\nk, 2k"),
        _two_digits("rank_exact_iss_difference", "Rank\nexact"),
        Column("Seeds\nsd", _seeds_text),
        interval("percentile", "Sampling\npercentile"),
        interval("bca", "Sampling\nBCa"),
        decimal("relation_sd", "Relations\nsd"),
        Column("Relations\nrange", _range_text),
    ),
)

TABLES = (UNCERTAINTY,)
