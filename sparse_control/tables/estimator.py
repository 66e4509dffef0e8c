"""The low-rank estimator: what passed, ranks against the exact reference, corpus sizes, sketch seeds."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from sparse_control.errors import InputError
from sparse_control.metrics import over_seeds
from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.jacobian_iss.validation import ActionValidation
from sparse_control.records.read import ModelRecords
from sparse_control.tables.columns import (
    EMPTY,
    Column,
    Row,
    decimal,
    label,
    named,
    small,
    whole,
    with_deviation,
    yes_no,
)
from sparse_control.tables.layers import OUTSIDE, UNRESOLVED, VALIDATED, status_of
from sparse_control.tables.table import Table, mean_of_known

CALIBRATION = "On calibration facts; not the official ISS."
LAYER_AND_STATUS = (whole("layer", "Layer"), label("status", "Status"))


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


def with_setting(record: Any) -> Row:
    """A record of an estimator as a row, its setting under the letters p, q and n."""
    return dict(record) | {"p": record.oversampling, "q": record.power_iterations, "n": record.corpus_size}


# --- attempts, and the one that was frozen --------------------------------------------------------------------------

CRITERIA = ("median_cosine", "median_relative_error", "iss_rank_difference", "iss_seed_deviation")
OF_A_RUNG = ("k", "k_over_d", "p", "r", "r_is_d", "q", "n", "step", *CRITERIA)
CRITERIA_COLUMNS = (
    decimal("median_cosine", "Median\ncosine", 4),
    small("median_relative_error", "Median\nrel. error"),
    small("iss_rank_difference", "Rank\ndiff."),
    small("iss_seed_deviation", "Seed\nsd"),
)
SHORT = dict(zip((name.replace("_", " ") for name in CRITERIA), ("cosine", "error", "rank", "seeds"), strict=True))


def _rung(rung: ActionValidation) -> Row:
    return with_setting(rung) | {"r_is_d": rung.r == width(rung)}


def _estimator_validation(model: ModelRecords) -> Iterator[Row]:
    iss = model.iss
    for layer, rung in final_rungs(iss).items():
        frozen = iss.freeze.layers.get(str(layer)) if iss.freeze else None
        yield _rung(rung) | {
            "status": VALIDATED if rung.chosen else UNRESOLVED,
            "rungs": sum(other.layer == layer for other in iss.actions),
            "reporting": frozen.reporting if frozen else None,
        }


def _ladder(model: ModelRecords) -> Iterator[Row]:
    ordered = sorted(model.iss.actions, key=lambda row: row.layer)
    for layer, group in groupby(ordered, key=lambda row: row.layer):
        status = status_of(model.iss, layer)
        for number, rung in enumerate(group, start=1):
            yield _rung(rung) | {"status": status, "attempt": number}


def _columns_kept(row: Row) -> str:
    return f"{row['r']}, exact" if row["r_is_d"] else str(row["r"])


def _failed(row: Row) -> str:
    """The criteria that failed, in short; other remarks as they are."""
    reason = row["reason"]
    if reason is None:
        return EMPTY
    short = [word for part in reason.split("; ") for name, word in SHORT.items() if part.startswith(name)]
    return ", ".join(short) if len(short) == len(reason.split("; ")) else reason


def _remark(row: Row) -> str:
    """What failed; that r = d is said in the column of r."""
    return EMPTY if row["r_is_d"] and row["status"] == VALIDATED else _failed(row)


def _ends_of_steps(rows: list[Row]) -> list[Row]:
    """Per layer the last attempt of each step of the ladder."""
    last = {(row["layer"], row["step"]): row["attempt"] for row in rows}
    return [row for row in rows if row["attempt"] == last[row["layer"], row["step"]]]


ESTIMATOR_VALIDATION = Table(
    name="estimator_validation",
    title="Estimator validation",
    caption=(
        f"{CALIBRATION} "
        "Per layer the frozen estimator, or the last one tried where none meets all criteria (unresolved): rank k, "
        "k/d, oversampling p, columns r = min(k + p, d), power iterations q, corpus size n, last step of the failure "
        "ladder and rungs tried. An estimator with r = d is exact up to rounding and not low rank; it is marked so. "
        "Median cosine (≥ {median_cosine}) and median relative error (≤ {median_relative_error}) of transported "
        "held-out activations, |ISS(2k) − ISS(k)| (≤ {iss_rank_difference}), sample sd of ISS over sketch seeds "
        "(≤ {iss_seed_deviation}). Remark: the criteria that failed, or what is to be known of an estimator that "
        "passed. Every attempt stands in the table Failure ladder."
    ),
    section="Jacobian-Transported ISS, 7 and 12",
    group="iss",
    reads=("actions", "freeze"),
    rows=_estimator_validation,
    fields=("layer", "status", *OF_A_RUNG, "rungs", "reporting", "reason"),
    columns=(
        *LAYER_AND_STATUS,
        whole("k", "k"),
        decimal("k_over_d", "k/d", 2),
        whole("p", "p"),
        Column("r", _columns_kept),
        whole("q", "q"),
        whole("n", "n"),
        label("step", "Step"),
        whole("rungs", "Rungs"),
        *CRITERIA_COLUMNS,
        Column("Remark", _remark, "w26"),
    ),
)

LADDER = Table(
    name="ladder",
    title="Failure ladder",
    caption=(
        f"{CALIBRATION} "
        "Attempts at the estimator of a layer, in order: larger k, larger p, larger n, power iterations; the first "
        "that meets all criteria is frozen, and where none does the layer is unresolved. Shown: the last attempt of "
        "each step; ladder.csv has every attempt with its reason in full."
    ),
    section="Jacobian-Transported ISS, 12.1",
    group="iss",
    reads=("actions", "freeze"),
    rows=_ladder,
    fields=(
        *("layer", "status", "attempt", *OF_A_RUNG),
        *("iss", "partner_r", "direct_action", "passed", "chosen", "reason"),
    ),
    columns=(
        *LAYER_AND_STATUS,
        whole("attempt", "Attempt"),
        label("step", "Step"),
        whole("k", "k"),
        whole("p", "p"),
        Column("r", _columns_kept),
        whole("q", "q"),
        whole("n", "n"),
        *CRITERIA_COLUMNS,
        Column("Failed", lambda row: "none" if row["passed"] else _failed(row), "l"),
    ),
    printed=_ends_of_steps,
)

# --- ranks ----------------------------------------------------------------------------------------------------------

ERRORS = ("E_F", "E_vec", "C_vec", "E_vec_centred", "C_vec_centred", "E_ISS")
RANK_MEANS = (*ERRORS, "rho_fact", "svd_floor_E_F", "svd_floor_E_vec")
RANK_KEYS = ("layer", "estimator", "probe", "p", "q", "k", "r")


def _rank_curve(model: ModelRecords) -> Iterator[Row]:
    """Means over sketch seeds."""
    comparison = model.iss.comparison
    if comparison is None:
        return

    def key(row: Any) -> tuple[Any, ...]:
        return row.layer, row.estimator, row.probe, row.oversampling, row.power_iterations, row.k, row.r

    floors = {floor.layer: floor for floor in comparison.noise_floor}
    widths = {width(rung) for rung in model.iss.actions}
    for values, group in groupby(sorted(comparison.rows, key=key), key=key):
        seeds = list(group)
        row: Row = dict(zip(RANK_KEYS, values, strict=True)) | {"n": comparison.corpus_size, "seeds": len(seeds)}
        row |= {"status": status_of(model.iss, row["layer"]), "r_is_d": row["r"] in widths}
        for name in RANK_MEANS:
            row[name] = mean_of_known(getattr(seed, name) for seed in seeds)
        row["E_vec_sd"] = over_seeds.deviation_or_none([seed.E_vec for seed in seeds])
        floor = floors.get(row["layer"])
        yield row | {f"noise_floor_{name}": getattr(floor, name, None) for name in ("E_F", "E_vec")}


def _main_ranks(rows: list[Row]) -> list[Row]:
    """Per layer of the window, Gaussian probes: for each k the smallest p, at the ends of q; and the largest r.

    Beside the plain ones is the error with Rademacher probes.
    """
    key = ("layer", "estimator", "p", "q", "k")
    rademacher = {tuple(row[name] for name in key): row["E_vec"] for row in rows if row["probe"] == "rademacher"}
    window = [row for row in rows if row["probe"] == "gaussian" and row["status"] != OUTSIDE]
    window = [row | {"E_vec_rademacher": rademacher.get(tuple(row[name] for name in key))} for row in window]
    chosen = []
    for _, group in groupby(window, key=lambda row: (row["layer"], row["estimator"])):
        layer = sorted(group, key=lambda row: (row["q"], row["k"], row["p"]))
        first_p = {k: min(row["p"] for row in layer if row["k"] == k) for k in {row["k"] for row in layer}}
        ends = {layer[0]["q"], layer[-1]["q"]}
        widest = max(layer, key=lambda row: row["r"])  # the first of the widest: smallest q, k and p
        chosen += [row for row in layer if row is widest or (row["q"] in ends and row["p"] == first_p[row["k"]])]
    return chosen


RANK_CURVE = Table(
    name="rank_curve",
    title="Low-rank estimators against the full empirical reference (Experiment A)",
    caption=(
        f"{CALIBRATION} "
        "Relative Frobenius error E_F, mean relative error E_vec and mean cosine C_vec of transported held-out "
        "activations (centred: their mean taken off), E_ISS = |ISS full − ISS k| and the Spearman correlation ρ fact "
        "of per-fact ISS, means over sketch seeds (± sample sd); best: the same error of the best rank-r matrix; "
        "r = d is exact, not low rank. All errors are against the average over this finite corpus, to which a "
        "validated layer is faithful. Corpus error is separate (table Corpus size); split halves: E_vec between the "
        "averages over two corpus halves, the corpus error at n/2 and not a bound on these columns. Rad.: E_vec with "
        "Rademacher probes, otherwise Gaussian ones. Shown: layers of the window, for each k the smallest p, at the "
        "smallest and the largest q, and the largest r; rank_curve.csv has every layer and row."
    ),
    section="Jacobian-Transported ISS, 5.4 and 16",
    group="iss",
    reads=("comparison", "actions", "freeze"),
    rows=_rank_curve,
    sketch_seeds=lambda model: {row.seed for row in model.iss.comparison.rows} if model.iss.comparison else (),
    fields=(
        *("n", "status", *RANK_KEYS, "r_is_d", "seeds", *RANK_MEANS),
        *("E_vec_sd", "noise_floor_E_F", "noise_floor_E_vec"),
    ),
    columns=(
        *LAYER_AND_STATUS,
        whole("k", "k"),
        whole("p", "p"),
        whole("q", "q"),
        Column("r", _columns_kept),
        decimal("E_F", "E_F"),
        decimal("svd_floor_E_F", "best\nE_F"),
        with_deviation("E_vec", "E_vec_sd", "E_vec"),
        decimal("E_vec_rademacher", "Rad.\nE_vec"),
        decimal("svd_floor_E_vec", "best\nE_vec"),
        decimal("noise_floor_E_vec", "halves\nE_vec"),
        decimal("C_vec", "C_vec", 4),
        decimal("C_vec_centred", "C_vec\ncentred", 4),
        decimal("E_ISS", "E_ISS", 4),
        decimal("rho_fact", "ρ fact"),
    ),
    printed=_main_ranks,
)

# --- corpus and sketch seeds ----------------------------------------------------------------------------------------


def _corpus_convergence(model: ModelRecords) -> Iterator[Row]:
    for row in sorted(model.iss.corpus_convergence, key=lambda row: (row.layer, row.n)):
        yield dict(row) | {"status": status_of(model.iss, row.layer)}


CORPUS_CONVERGENCE = Table(
    name="corpus_convergence",
    title="Corpus size",
    caption=(
        f"{CALIBRATION} "
        "Median cosine and median relative error of activations transported with n and with 2n corpus prompts, the "
        "difference in ISS between them, whether the fixed rule holds (cosine ≥ {corpus_cosine} and difference ≤ "
        "{corpus_iss_difference}), and the n it chooses: the smallest at which it holds, else the largest."
    ),
    section="Jacobian-Transported ISS, 8.2",
    group="iss",
    reads=("corpus_convergence", "actions", "freeze"),
    rows=_corpus_convergence,
    fields=(
        *("layer", "status", "n", "cosine_to_2n", "relative_error_to_2n", "iss_difference"),
        *("converged", "chosen"),
    ),
    columns=(
        *LAYER_AND_STATUS,
        whole("n", "n"),
        decimal("cosine_to_2n", "Cosine to 2n", 4),
        small("relative_error_to_2n", "Rel. error to 2n"),
        decimal("iss_difference", "|ISS(n) − ISS(2n)|", 4),
        yes_no("converged", "Holds"),
        yes_no("chosen", "Chosen"),
    ),
)


def _corpus_halves(model: ModelRecords) -> Iterator[Row]:
    comparison = model.iss.comparison
    for floor in sorted(comparison.noise_floor if comparison else (), key=lambda floor: floor.layer):
        yield dict(floor) | {"status": status_of(model.iss, floor.layer), "n": comparison.corpus_size // 2}


CORPUS_HALVES = Table(
    name="corpus_halves",
    title="Split halves of the corpus, the noise floor",
    caption=(
        f"{CALIBRATION} "
        "The exact averages over two disjoint halves of the corpus, n prompts each, against each other: no error of "
        "an estimator below these is a claim about the population. Shown: layers of the window; corpus_halves.csv has "
        "every layer."
    ),
    section="Jacobian-Transported ISS, 8",
    group="iss",
    reads=("comparison", "actions", "freeze"),
    rows=_corpus_halves,
    fields=("layer", "status", "n", *ERRORS),
    columns=(
        *LAYER_AND_STATUS,
        whole("n", "n"),
        decimal("E_F", "E_F"),
        decimal("E_vec", "E_vec"),
        decimal("C_vec", "C_vec", 4),
        decimal("E_vec_centred", "E_vec\ncentred"),
        decimal("C_vec_centred", "C_vec\ncentred", 4),
        decimal("E_ISS", "E_ISS", 4),
    ),
    printed=lambda rows: [row for row in rows if row["status"] != OUTSIDE],
)


def _seed_stability(model: ModelRecords) -> Iterator[Row]:
    """At the setting that `estimator_validation` shows."""
    final = final_rungs(model.iss)
    for row in sorted(model.iss.seed_stability, key=lambda row: row.layer):
        rung = final.get(row.layer)
        if rung is None or _setting(rung) != _setting(row):
            continue
        yield with_setting(row) | {
            "status": status_of(model.iss, row.layer),
            "seeds": len(row.seeds),
            "mean": over_seeds.mean_or_none(row.values),
            "sd": over_seeds.deviation_or_none(row.values),
        }


def _setting(row: Any) -> tuple[int, ...]:
    return row.k, row.oversampling, row.power_iterations, row.corpus_size


SEED_STABILITY = Table(
    name="seed_stability",
    title="Sketch seeds",
    caption=(
        f"{CALIBRATION} "
        "Mean and sample sd over sketch seeds of every registered metric of transported states and of the agreement "
        "with direct actions, per layer at the estimator setting of the validation table. Reported is the "
        "preregistered seed where the sd of ISS is ≤ {negligible_seed_deviation}, else the mean over seeds (column "
        "reporting of estimator_validation.csv)."
    ),
    section="Jacobian-Transported ISS, 9",
    group="iss",
    reads=("seed_stability", "actions", "freeze"),
    rows=_seed_stability,
    sketch_seeds=lambda model: {seed for row in model.iss.seed_stability for seed in row.seeds},
    fields=("layer", "status", "k", "p", "q", "n", "metric", "seeds", "mean", "sd"),
    columns=(
        *LAYER_AND_STATUS,
        whole("k", "k"),
        whole("p", "p"),
        whole("q", "q"),
        whole("n", "n"),
        named("metric", "Metric"),
        whole("seeds", "Seeds"),
        small("mean", "Mean"),
        small("sd", "sd"),
    ),
)

TABLES = (ESTIMATOR_VALIDATION, LADDER, RANK_CURVE, CORPUS_CONVERGENCE, CORPUS_HALVES, SEED_STABILITY)
